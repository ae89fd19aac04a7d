//! The cost of a layer's hooks beside the operator that it runs: `cargo bench -p tilewright-nn
//! --bench ranges`. Off, recorded, and watched by a capture that wants no layer; ten runs each, in
//! turns, after a warm-up; mean and spread.

use std::time::Instant;

use tch::{Device, Kind, Tensor};
use tilewright_nn::{ComputeFormat, Costs, Listing, Meter, Scope, Torch, Watch};
use tilewright_torch::profile::Profiler;

const RUNS: usize = 10;

/// Calls of a run.
const CALLS: u32 = 20_000;

fn mean_and_spread(values: &[f64]) -> String {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|of| (of - mean).powi(2)).sum();
    format!("{mean:8.1} ± {:.1} ns", (squares / (values.len() - 1) as f64).sqrt())
}

/// Nanoseconds of a call.
fn time(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..CALLS).for_each(|_| run());
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn main() {
    let _no_grad = tch::no_grad_guard();
    let format = ComputeFormat::single();
    let ops = Torch::new(format, Device::Cpu, None);
    let meter = Meter::new(format, Costs::default());
    let listing = Listing::default();
    let scope = Scope::new(&listing, &meter).at("decoder").at("mid_block").at("norm");
    let layer = scope.layer();
    let tensor = Tensor::zeros([8], (Kind::Float, Device::Cpu));
    let bare = || drop(tensor.relu());
    let hooked = || {
        let output = layer.run(&ops, &tensor, |tensor| Ok::<_, tilewright_nn::Error>(tensor.relu()));
        drop(output.expect("a layer"));
    };
    time(bare);
    time(hooked);
    let mut lanes: [Vec<f64>; 4] = Default::default();
    for _ in 0..RUNS {
        lanes[0].push(time(bare));
        lanes[1].push(time(hooked));
        let watch = Watch::begin(Box::new(|_, _, _| Ok(())));
        lanes[2].push(time(hooked));
        drop(watch);
        let profiler = Profiler::begin(Device::Cpu, "decode").expect("a recording");
        lanes[3].push(time(hooked));
        drop(profiler);
    }
    for (name, lane) in
        ["the operator alone", "in a layer", "in a layer, watched", "in a layer, recorded"].iter().zip(&lanes)
    {
        println!("{name:22} {}", mean_and_spread(lane));
    }
}
