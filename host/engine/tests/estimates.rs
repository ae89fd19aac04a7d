//! Estimated peaks against measured ones. Times are not compared here: other work on the machine is
//! in them.

mod scripted;

use std::time::Duration;

use scripted::{Quiet, Scripted, alone, is_spared, latent, machine, plan, square, vae};
use tilewright_engine::DecodeJob;
use tilewright_fixtures::fixture;
use tilewright_plan::{Dtype, Layout, Objective, Outcome, PoolStatistics, Precision, Record, Space, Tile};

/// Below this, what libraries hold whatever the size is a large part.
const LEAST: u64 = 4 << 20;

#[test]
fn peaks_are_estimated_before_they_are_measured() {
    let _alone = alone();
    let precisions = [
        Precision::Uniform(Dtype::F32),
        Precision::Uniform(Dtype::Bf16),
        Precision::Mixed(Dtype::Bf16),
        Precision::Uniform(Dtype::F16),
    ];
    let networks = [
        ("flux-bfl/ae.safetensors", 16, 20),
        ("sdxl-diffusers/diffusion_pytorch_model.fp16.safetensors", 4, 96),
        ("five-levels/diffusion_pytorch_model.safetensors", 16, 17),
    ];
    let (mut compared, mut number) = (0, 0);
    for (file, channels, side) in networks {
        let vae = vae(&fixture(file));
        let scale = vae.config.spatial_scale();
        for samples in [1, 2] {
            let latents = latent([samples, channels, side, side + 3]);
            let job = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 32, Objective::Balanced).unwrap();
            for precision in precisions {
                // If f16 is emulated, the others take minutes.
                if precision.dtype() == Dtype::F16 && (samples > 1 || !file.starts_with("five-levels")) {
                    continue;
                }
                for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
                    let bands = Space::Exact(Tile { height: 8 * scale, width: (side as u32 + 3) * scale, overlap: 0 });
                    let tiles = square(12 * scale, 2 * scale);
                    for (space, batch) in [(Space::Whole, 1), (Space::Whole, 2), (tiles, 2), (bands, 1), (bands, 2)] {
                        number += 1;
                        if is_spared(precision, number) {
                            continue;
                        }
                        let plan = plan(space, batch, precision, layout);
                        let estimated = job.estimate(&plan).unwrap().peak_bytes;
                        let finished = job.run(&mut Scripted::new([plan]), &mut Quiet).unwrap();
                        let measured = finished.record.outcome.unwrap().peak_bytes;
                        let ratio = estimated as f64 / measured as f64;
                        let what = format!("{file} {samples} {space} {precision} {layout} {batch}");
                        // Libraries take other kernels for f16 on each processor than the probe.
                        let least = if precision.dtype() == Dtype::F16 { 0.75 } else { 0.95 };
                        assert!(ratio >= least, "{what}: {estimated} is {ratio:.3} of {measured}");
                        if measured > LEAST {
                            assert!(ratio <= 1.35, "{what}: {estimated} is {ratio:.3} of {measured}");
                            compared += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(compared > 30, "{compared} plans were large enough to compare");
}

#[test]
fn what_was_measured_at_another_size_is_told_as_what_it_makes_likely_here() {
    let _alone = alone();
    let vae = vae(&fixture("flux-bfl/ae.safetensors"));
    let (small, large) = (latent([1, 16, 12, 12]), latent([1, 16, 24, 24]));
    let job = |latents| DecodeJob::new(machine(), &vae, latents, 1_u64 << 32, Objective::Balanced).unwrap();
    let whole = plan(Space::Whole, 1, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst);
    let mut record = job(&small).decide(&mut Scripted::new([whole.clone()])).0;
    let then = record.estimate.unwrap();
    let outcome = Outcome {
        elapsed: then.elapsed * 3,
        load: Duration::ZERO,
        peak_bytes: then.peak_bytes / 2,
        attempts: 1,
        pool: PoolStatistics { hits: 0, misses: 0, held_bytes: 0, fragmentation: 0.0 },
        cold: false,
        weights_bytes: 0,
    };
    record.outcome = Some(outcome);
    let unmeasured = Record { outcome: None, ..record.clone() };
    let mut planner = Scripted::new([whole.clone()]);
    // The first run on a GPU also loads its kernels: its time says nothing of the next.
    let cold =
        Record { outcome: Some(Outcome { elapsed: then.elapsed * 40, cold: true, ..outcome }), ..record.clone() };
    let later = job(&large).with_history(&[unmeasured, cold, record]);
    later.decide(&mut planner);
    let now = later.estimate(&whole).unwrap();
    let [trial] = &planner.trials[..] else { panic!("{:?}", planner.trials) };
    let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-3;
    assert!(near(trial.outcome.elapsed.as_secs_f64(), 3.0 * now.elapsed.as_secs_f64()), "{trial:?} {now:?}");
    assert!(near(trial.outcome.peak_bytes as f64, 0.5 * now.peak_bytes as f64), "{trial:?} {now:?}");
}
