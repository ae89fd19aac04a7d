//! The time to load and to decide, printed and never asserted:
//!
//! - loading, cold and cached;
//! - a decision of every shipped policy against a host that prices at once, in a new instance and
//!   in one that lasts;
//! - a guest that does nothing but answer, as the lower bound.
//!
//! `cargo bench -p tilewright-policy` runs all; `cargo bench -p tilewright-policy -- fixed` asks
//! `fixed` alone.

#[path = "../tests/hostile/guest.rs"]
#[allow(dead_code, reason = "the hostile tests use the rest")]
mod guest;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tilewright_plan::{
    Backend, Capabilities, Cost, CostModel, Device, Dtype, HostMemory, Model, Objective, Plan, Planner, Question,
    Request, Stage,
};
use tilewright_policy::{CacheDir, Limits, LoadedPolicy, PolicyHost, shipped_names};

struct Prices;

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let pixels = plan.space.tile().map_or(2048 * 2048, |tile| u64::from(tile.height) * u64::from(tile.width));
        let elapsed = Duration::from_nanos(pixels * u64::from(plan.precision.dtype().bits()));
        Ok(Cost { peak_bytes: pixels * 1000, elapsed, tiles: 1, shapes: 1, rework: 1.0, weights_bytes: 0 })
    }
}

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let cache = tempfile::tempdir().expect("a temporary directory");
    let cached = CacheDir::At(cache.path().join("policies"));
    let cold = PolicyHost::new(Limits::default(), &CacheDir::Off).expect("a sandbox");
    let warm = PolicyHost::new(Limits::default(), &cached).expect("a sandbox");
    for name in shipped_names().filter(|_| only.is_none()) {
        report(&format!("load {name}, cold"), 10, || drop(cold.load_shipped(name)));
        warm.load_shipped(name).expect("a policy that ships");
        report(&format!("load {name}, cached"), 20, || drop(warm.load_shipped(name)));
    }
    let adaptive = warm.load_shipped("adaptive").expect("a policy that ships");
    if only.is_none() {
        report("configure adaptive (a new instance)", 100, || drop(adaptive.configure(&[])));
    }
    let floor = warm.load("floor", &guest::HEALTHY.build()).expect("a healthy guest");
    let offered = offer(false);
    let (request, device) = (request(1), device(Backend::Cuda, vec![Dtype::Bf16, Dtype::F16]));
    let shipped = shipped_names().map(|name| (name, warm.load_shipped(name).expect("a policy that ships")));
    let all = [("floor", floor)].into_iter().chain(shipped);
    for (name, loaded) in all.filter(|(name, _)| only.as_ref().is_none_or(|only| only == name)) {
        let facts: Arc<dyn CostModel> = Arc::new(Prices);
        let configured = || loaded.configure(&[]).expect("its defaults");
        let mut fuel = 0;
        for (what, mut policy) in [("a picture", configured()), ("in an instance that lasts", configured().lasting())] {
            per_call(&format!("decide {name}, {what}"), || {
                let decision = policy.decide(&Question::new(Stage::Decode, &request, &device, &offered), facts.clone());
                assert_eq!(decision.fallback, None);
                fuel = decision.fuel;
            });
        }
        println!("    fuel {fuel}");
    }
    if only.is_none_or(|only| only == "adaptive") {
        each_case(&adaptive);
    }
}

/// `adaptive` on pictures and clips.
fn each_case(adaptive: &LoadedPolicy) {
    for (backend, fast) in [(Backend::Cpu, vec![]), (Backend::Cuda, vec![Dtype::Bf16, Dtype::F16])] {
        for (what, frames) in [("a picture", 1), ("a clip", 81)] {
            let mut policy = adaptive.configure(&[]).expect("its defaults");
            let offer = offer(frames > 1);
            let (request, device) = (request(frames), device(backend, fast.clone()));
            let mut fuel = Vec::new();
            let mut candidates = 0;
            report(&format!("decide adaptive, {what}, {backend:?}"), 1000, || {
                let decision =
                    policy.decide(&Question::new(Stage::Decode, &request, &device, &offer), Arc::new(Prices));
                assert_eq!(decision.fallback, None);
                candidates = decision.candidates.len();
                fuel.push(decision.fuel);
            });
            fuel.dedup();
            println!("    {candidates} estimates, fuel {fuel:?}");
        }
    }
}

/// Times blocks of calls, so that the clock does not count, and prints nanoseconds per call: the
/// least says what it takes, the rest how busy the machine is.
fn per_call(what: &str, mut run: impl FnMut()) {
    const BLOCK: u32 = 64;
    (0..10 * BLOCK).for_each(|_| run());
    let mut blocks: Vec<f64> = (0..2000)
        .map(|_| {
            let started = Instant::now();
            (0..BLOCK).for_each(|_| run());
            started.elapsed().as_nanos() as f64 / f64::from(BLOCK)
        })
        .collect();
    blocks.sort_by(f64::total_cmp);
    let mean = blocks.iter().sum::<f64>() / blocks.len() as f64;
    let (least, median) = (blocks[0], blocks[blocks.len() / 2]);
    println!("{what:40} {mean:8.0} ns (least {least:.0}, median {median:.0}, {:.0} per second)", 1e9 / median);
}

/// Runs it once to warm up and then `runs` times, and prints mean, deviation, minimum and maximum.
fn report(what: &str, runs: usize, mut run: impl FnMut()) {
    run();
    let mut times: Vec<f64> = Vec::with_capacity(runs);
    for _ in 0..runs {
        let started = Instant::now();
        run();
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    let mean = times.iter().sum::<f64>() / runs as f64;
    let deviation = (times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / runs as f64).sqrt();
    times.sort_by(f64::total_cmp);
    let (least, median, most) = (times[0], times[runs / 2], times[runs - 1]);
    println!(
        "{what:40} {mean:8.4} ms ± {deviation:.4} (least {least:.4}, median {median:.4}, most {most:.4}, {runs} runs)"
    );
}

fn request(frames: u32) -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::Bf16,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: if frames > 1 { 4 } else { 1 },
        },
        batch: 1,
        frames,
        height: 2048,
        width: 2048,
        memory_limit: 1 << 31,
        limit_counts_weights: false,
        allows_blended: true,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
}

fn device(backend: Backend, fast_dtypes: Vec<Dtype>) -> Device {
    Device {
        backend,
        name: "bench".into(),
        arch: "bench".into(),
        compute_units: 2,
        total_bytes: 1 << 34,
        free_bytes: 1 << 33,
        unified: false,
        fast_dtypes,
        hints: Vec::new(),
    }
}

fn offer(is_clip: bool) -> Capabilities {
    Capabilities {
        dtypes: vec![Dtype::F32, Dtype::Bf16, Dtype::F16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: is_clip,
        carried: is_clip,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    }
}
