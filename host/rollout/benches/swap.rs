//! What a swap costs: from its call to the first decision by the new revision, and whether decisions under way notice swaps beside them.
//! Where one takes long, it says whether the decision waited for something itself (a lock: a voluntary context switch) or was only not
//! run by the system. `cargo bench --workspace --bench swap`; timings are printed, never asserted.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tilewright_config::{Case, Config, Source, Stage};
use tilewright_plan::{Backend, Cost, Device, Dtype, Facts, Model, Objective, Offer, Plan, Planner, Request, Trial};
use tilewright_policy::CacheDir;
use tilewright_rollout::{Decider, Replacement, Rollout};

/// Swaps that are timed.
const SWAPS: usize = 200;

/// Turns of decisions with and without swaps beside them, and how long each takes.
const TURNS: usize = 10;
const TURN: Duration = Duration::from_secs(1);

/// What no swap may add to a decision.
const LONG: Duration = Duration::from_millis(1);

const CONFIG: &str = "[policies.own]\nsource = 'fixed'\n[[routes]]\npolicy = 'own'\n";

const CASE: Case<'static> = Case {
    stage: Stage::Decode,
    family: "flux",
    model: "bench",
    arch: "bench",
    device: "main",
    tag: None,
    quantized: false,
    pixels: 1 << 22,
    frames: 1,
};

struct Prices;

impl Facts for Prices {
    fn estimate(&self, plan: &Plan) -> Result<Cost, String> {
        let pixels = plan.space.tile().map_or(2048 * 2048, |tile| u64::from(tile.height) * u64::from(tile.width));
        let elapsed = Duration::from_nanos(pixels);
        Ok(Cost { peak_bytes: pixels * 1000, elapsed, tiles: 1, shapes: 1, rework: 1.0 })
    }

    fn trials(&self, _most: u32) -> Vec<Trial> {
        Vec::new()
    }
}

fn main() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let config = Config::parse(CONFIG, Path::new("bench.toml")).expect("a configuration");
    let cache = CacheDir::At(folder.path().join("policies"));
    let rollout = Rollout::open(folder.path(), &config, cache, Box::new(|_| ())).expect("a policy that ships");

    let first: Vec<f64> = (0..SWAPS + 10)
        .map(|turn| {
            let started = Instant::now();
            let revision = swap(&rollout, turn);
            let decided = decide(&rollout);
            assert_eq!(decided.revision, revision);
            started.elapsed().as_secs_f64() * 1e3
        })
        .skip(10)
        .collect();
    report("swap call to first decision", "ms", first);

    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    decisions(&rollout);
    for turn in 0..TURNS {
        alone.extend(decisions(&rollout));
        let (ends, swaps) = (AtomicBool::new(false), &rollout);
        thread::scope(|scope| {
            let swapping = scope.spawn(|| {
                let mut count = 0;
                while !ends.load(Ordering::Relaxed) {
                    swap(swaps, 1000 * turn + count);
                    count += 1;
                }
                count
            });
            beside.extend(decisions(&rollout));
            ends.store(true, Ordering::Relaxed);
            let swapped = swapping.join().expect("swaps");
            println!("    {swapped} swaps in turn {}", turn + 1);
        });
    }
    for (what, decisions) in [("a decision, nothing beside it", alone), ("a decision, swaps beside it", beside)] {
        let long = |decided: &&Decided| decided.elapsed > LONG;
        let waited = decisions.iter().filter(|decided| decided.waited).count();
        let (long, both) =
            (decisions.iter().filter(long).count(), decisions.iter().filter(long).filter(|d| d.waited).count());
        report(what, "us", decisions.iter().map(|decided| decided.elapsed.as_secs_f64() * 1e6).collect());
        println!("    over {LONG:?}: {long}, of which waited for something: {both}; waited in all: {waited}");
    }
}

/// Puts another revision in force: the same module, which is cached, with other settings. Its number.
fn swap(rollout: &Arc<Rollout>, turn: usize) -> u64 {
    let tile = 64 + 8 * (turn % 100);
    let settings = [("tile".to_owned(), tile.to_string()), ("overlap".to_owned(), (turn % 3).to_string())];
    let replacement = Replacement::From(Source::Shipped("fixed".into()));
    rollout.swap("own", &replacement, Some(&settings)).expect("a policy that ships").in_force.number
}

struct Decided {
    revision: u64,
    elapsed: Duration,
    /// For something, rather than for a processor.
    waited: bool,
}

/// How often this thread has waited for something so far.
fn waits() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

/// A job's decision as the service has it made: admitted, with an instance of the revision in force.
fn decide(rollout: &Arc<Rollout>) -> Decided {
    let assignment = rollout.admit(&CASE).expect("a route");
    let revision = assignment.revision.number;
    let mut decider = Decider::new(rollout.clone(), assignment);
    let (offer, device) = (offer(), device());
    let request = request(&offer);
    let before = waits();
    let started = Instant::now();
    let decision = decider.decide(&request, &device, &offer, Arc::new(Prices));
    let elapsed = started.elapsed();
    assert_eq!(decision.fallback, None);
    Decided { revision, elapsed, waited: waits() != before }
}

/// Decisions one after the other for a turn.
fn decisions(rollout: &Arc<Rollout>) -> Vec<Decided> {
    let until = Instant::now() + TURN;
    let mut decided = Vec::new();
    while Instant::now() < until {
        decided.push(decide(rollout));
    }
    decided
}

fn report(what: &str, unit: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let deviation = (times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / times.len() as f64).sqrt();
    let at = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)];
    println!(
        "{what:32} {mean:.2} {unit} ± {deviation:.2} (median {:.2}, p99 {:.2}, p99.99 {:.2}, most {:.2}, {} times)",
        at(0.5),
        at(0.99),
        at(0.9999),
        at(1.0),
        times.len()
    );
}

fn request(offer: &Offer) -> Request {
    let model = Model {
        family: "flux".into(),
        stored: Dtype::Bf16,
        quantized: false,
        parameter_bytes: 1 << 27,
        spatial_scale: 8,
        temporal_scale: 1,
    };
    let (batch, frames, height, width) = (1, 1, 2048, 2048);
    let (memory_limit, objective) = (1 << 31, Objective::Balanced);
    Request { model, batch, frames, height, width, memory_limit, objective, hints: offer.hints() }
}

fn device() -> Device {
    Device {
        backend: Backend::Cpu,
        name: "bench".into(),
        arch: "bench".into(),
        compute_units: 2,
        total_bytes: 1 << 34,
        free_bytes: 1 << 33,
        unified: false,
        fast_dtypes: Vec::new(),
    }
}

fn offer() -> Offer {
    Offer {
        dtypes: vec![Dtype::F32],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: false,
        carried: false,
        offload: false,
        prefetch_most: 0,
        running: None,
    }
}
