//! The cost of a swap: the time from its call to the first decision by the new revision, and its
//! effect on decisions under way, compared with that of a thread that has nothing to do with
//! policies. A slow decision is reported with its cause: it waited for something itself (a lock: a
//! voluntary context switch) or was preempted by the system. `cargo bench --workspace --bench
//! swap`; timings are printed, never asserted.

use std::{
    collections::BTreeMap,
    fs::File,
    hint::black_box,
    io::Read,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tilewright_config::{Case, Config, Source, Stage};
use tilewright_plan::{
    Backend, Capabilities, Cost, CostModel, Device, Dtype, HostMemory, Model, Objective, Plan, Planner, Question,
    Request,
};
use tilewright_policy::CacheDir;
use tilewright_rollout::{Decider, Disk, Replacement, Rollout};

/// Swaps that are timed.
const SWAPS: usize = 200;

/// Rounds of decisions with and without swaps beside them, and the length of each.
const TURNS: usize = 10;
const TURN: Duration = Duration::from_secs(1);

/// The time that no swap may add to a decision.
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

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let pixels = plan.space.tile().map_or(2048 * 2048, |tile| u64::from(tile.height) * u64::from(tile.width));
        let elapsed = Duration::from_nanos(pixels);
        Ok(Cost { peak_bytes: pixels * 1000, elapsed, tiles: 1, shapes: 1, rework: 1.0, weights_bytes: 0 })
    }
}

fn main() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let config = Config::parse(CONFIG, Path::new("bench.toml")).expect("a configuration");
    let cache = CacheDir::At(folder.path().join("policies"));
    let (disk, used) = (Disk::new(), BTreeMap::new());
    let rollout =
        Rollout::open(folder.path(), disk, &used, &config, cache, Box::new(|_| ())).expect("a policy that ships");

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

    decisions(&rollout);
    let mut decided: Vec<_> = Load::ALL.iter().map(|_| Vec::new()).collect();
    for turn in 0..TURNS {
        for (beside, decided) in Load::ALL.into_iter().zip(&mut decided) {
            let ends = AtomicBool::new(false);
            thread::scope(|scope| {
                let other = scope.spawn(|| beside.run(&rollout, 1000 * turn, &ends));
                decided.extend(decisions(&rollout));
                ends.store(true, Ordering::Relaxed);
                let swapped = other.join().expect("it ends");
                println!("    {swapped} swaps in turn {}, {}", turn + 1, beside.words());
            });
        }
    }
    for (beside, decided) in Load::ALL.into_iter().zip(decided) {
        let long: Vec<_> = decided.iter().filter(|decided| decided.elapsed > LONG).collect();
        let count = |which: fn(&Decided) -> bool| long.iter().filter(|decided| which(decided)).count();
        let (waited, set_aside) =
            (count(|decided| decided.switches.waited), count(|decided| decided.switches.set_aside));
        report(beside.words(), "us", decided.iter().map(|decided| decided.elapsed.as_secs_f64() * 1e6).collect());
        println!(
            "    over {LONG:?}: {}, of which waited for something: {waited}, set aside by the system: {set_aside}",
            long.len()
        );
    }
}

/// The load of another thread beside decisions.
#[derive(Clone, Copy)]
enum Load {
    Nothing,
    /// Arithmetic, which has nothing to do with policies: the effect of a busy processor alone.
    Arithmetic,
    /// Ten swaps a second.
    Swaps,
    /// One swap after the other.
    SwapsWithoutPause,
}

impl Load {
    const ALL: [Self; 4] = [Self::Nothing, Self::Arithmetic, Self::Swaps, Self::SwapsWithoutPause];

    fn words(self) -> &'static str {
        match self {
            Self::Nothing => "a decision, nothing beside it",
            Self::Arithmetic => "a decision, arithmetic beside it",
            Self::Swaps => "a decision, ten swaps a second",
            Self::SwapsWithoutPause => "a decision, swaps without pause",
        }
    }

    fn pause(self) -> Duration {
        if matches!(self, Self::Swaps) { Duration::from_millis(100) } else { Duration::ZERO }
    }

    /// Runs until `ends` is set; returns the number of swaps.
    fn run(self, rollout: &Arc<Rollout>, first: usize, ends: &AtomicBool) -> usize {
        let (mut swaps, mut number) = (0, 1_u64);
        while !ends.load(Ordering::Relaxed) {
            match self {
                Self::Nothing => thread::sleep(Duration::from_millis(10)),
                Self::Arithmetic => {
                    number =
                        (0..1000).fold(number, |number, _| black_box(number.wrapping_mul(6_364_136_223_846_793_005)))
                }
                Self::Swaps | Self::SwapsWithoutPause => {
                    swap(rollout, first + swaps);
                    swaps += 1;
                    thread::sleep(self.pause());
                }
            }
        }
        swaps
    }
}

/// Puts another revision in force: the same module, which is cached, with other settings. Returns
/// its number.
fn swap(rollout: &Arc<Rollout>, turn: usize) -> u64 {
    let tile = 64 + 8 * (turn % 100);
    let settings = [("tile".to_owned(), tile.to_string()), ("overlap".to_owned(), (turn % 3).to_string())];
    let replacement = Replacement::From(Source::Shipped("fixed".into()));
    rollout.swap("own", &replacement, Some(&settings)).expect("a policy that ships").in_force.number
}

struct Decided {
    revision: u64,
    elapsed: Duration,
    switches: Switches,
}

/// The context switches that a thread has had.
struct Switches {
    /// It waited for something, say a lock.
    waited: bool,
    /// The system ran another thread.
    set_aside: bool,
}

/// The voluntary and involuntary context switches of this thread so far.
fn switches() -> [u64; 2] {
    // Nothing is allocated: an allocation may wait as well, and would be counted.
    let mut text = [0; 4096];
    let read = File::open("/proc/thread-self/status").and_then(|mut file| file.read(&mut text)).unwrap_or_default();
    let text = str::from_utf8(&text[..read]).unwrap_or_default();
    ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
    })
}

/// One decision as the service makes it: admitted, with an instance of the revision in force.
fn decide(rollout: &Arc<Rollout>) -> Decided {
    let assignment = rollout.admit(&CASE).expect("a route");
    let revision = assignment.revision.number;
    let mut decider = Decider::new(rollout.clone(), assignment);
    let (offer, device) = (offer(), device());
    let request = request();
    let before = switches();
    let started = Instant::now();
    let decision = decider.decide(&Question::new(Stage::Decode, &request, &device, &offer), Arc::new(Prices));
    let elapsed = started.elapsed();
    assert_eq!(decision.fallback, None);
    let after = switches();
    let switches = Switches { waited: after[0] != before[0], set_aside: after[1] != before[1] };
    Decided { revision, elapsed, switches }
}

/// Decisions in sequence for one round.
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

fn request() -> Request {
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
    Request {
        model,
        batch,
        frames,
        height,
        width,
        memory_limit,
        limit_counts_weights: false,
        allows_blended: true,
        objective,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
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
        hints: Vec::new(),
    }
}

fn offer() -> Capabilities {
    Capabilities {
        dtypes: vec![Dtype::F32],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: false,
        carried: false,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    }
}
