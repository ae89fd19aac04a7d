//! Clips: every way through space and time against the whole, failures on the way, what is
//! delivered and when.

mod scripted;

use std::{ops::ControlFlow, path::PathBuf};

use scripted::{Hears, Quiet, Scripted, alone, is_spared, largest, machine, plan, square};
use tch::{Kind, Tensor};
use tilewright_engine::{Cancelled, ClipJob, Error, Next, Observer, Overrides, Sink, VideoVaeFile};
use tilewright_fixtures::{example, fixture};
use tilewright_plan::{Dtype, Failure, Layout, Objective, Plan, Precision, Space, Tile, Time};

const F32: Precision = Precision::Uniform(Dtype::F32);

fn tiny() -> VideoVaeFile {
    VideoVaeFile::open(&fixture("wan21-original/Wan2.1_VAE.safetensors"), Overrides::default()).unwrap()
}

/// The bundled network, whose activations are those of a trained one.
fn trained() -> VideoVaeFile {
    let path: PathBuf = example("models/wan-tiny/Wan2.1_VAE.safetensors");
    VideoVaeFile::open(&path, Overrides::default()).unwrap()
}

/// WAN 2.2: shortcuts past whole blocks, and patches of four pixels.
fn newer() -> VideoVaeFile {
    VideoVaeFile::open(&fixture("wan22-diffusers/diffusion_pytorch_model.safetensors"), Overrides::default()).unwrap()
}

/// A latent that is the same in every run.
fn latents(shape: [i64; 5]) -> Tensor {
    let values = Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, tch::Device::Cpu));
    (values * 0.7).sin().reshape(shape)
}

fn through(space: Space, time: Time) -> Plan {
    Plan { time, ..plan(space, 1, F32, Layout::ChannelsLast) }
}

fn carried(frames: u32) -> Time {
    Time::Carried { frames }
}

fn bands(height: u32) -> Space {
    Space::Exact(Tile { height, width: 4096, overlap: 0 })
}

/// Keeps what it is given, [C, T, H, W] per sample, and how many deliveries there were.
#[derive(Default)]
struct Kept {
    samples: Vec<Vec<Tensor>>,
    deliveries: usize,
}

impl Sink for Kept {
    fn frames(
        &mut self,
        sample: u32,
        first: u32,
        frames: &Tensor,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.samples.resize_with(self.samples.len().max(sample as usize + 1), Vec::new);
        let kept = &mut self.samples[sample as usize];
        let count: i64 = kept.iter().map(|part| part.size()[0]).sum();
        assert_eq!(i64::from(first), count, "frames come in order, each once");
        kept.push(frames.copy());
        self.deliveries += 1;
        Ok(())
    }
}

impl Kept {
    fn clip(&self) -> Tensor {
        let samples: Vec<Tensor> = self.samples.iter().map(|parts| Tensor::cat(parts, 0).transpose(0, 1)).collect();
        Tensor::stack(&samples, 0)
    }
}

fn decoded(vae: &VideoVaeFile, latents: &Tensor, plan: Plan) -> (Tensor, usize) {
    let job = ClipJob::new(machine(), vae, latents, 1_u64 << 34, Objective::Balanced).unwrap();
    let mut kept = Kept::default();
    job.run(&mut Scripted::new([plan]), &mut Quiet, &mut kept, &[]).unwrap();
    (kept.clip(), kept.deliveries)
}

#[test]
fn chunks_and_bands_give_the_whole_clip_and_tiles_come_close() {
    let _alone = alone();
    let exact: &[(Space, Time)] = &[
        (Space::Whole, carried(1)),
        (Space::Whole, carried(2)),
        (Space::Whole, carried(8)),
        (Space::Whole, carried(17)),
        (bands(32), carried(4)),
        (bands(64), Time::Whole),
    ];
    // The bundled network is exact in `memory_that_runs_out_on_the_way_costs_no_frame`, too.
    for (vae, exact) in [(tiny(), exact), (trained(), &[])] {
        let channels = vae.config.latent_channels as i64;
        let latents = latents([2, channels, 5, 12, 14]);
        let (whole, _) = decoded(&vae, &latents, through(Space::Whole, Time::Whole));
        assert_eq!(whole.size(), [2, 3, 17, 96, 112]);
        for &(space, time) in exact {
            let (found, deliveries) = decoded(&vae, &latents, through(space, time));
            assert!(largest(&(&found - &whole)) <= 1e-5, "{space} {time:?}");
            assert!(deliveries >= 4, "frames leave as they are decoded");
        }
        // Tiles see zeros beyond their edges: not the same, but no other picture.
        for time in [Time::Whole, carried(4)] {
            let (found, _) = decoded(&vae, &latents, through(square(64, 32), time));
            let noise = f64::try_from((&found - &whole).square().mean(Kind::Double)).unwrap().sqrt();
            assert!(noise > 1e-6 && noise < 0.15, "{time:?}: {noise}");
        }
        let (one, _) = decoded(&vae, &latents, through(square(64, 32), Time::Whole));
        let (other, _) = decoded(&vae, &latents, through(square(64, 32), carried(8)));
        assert!(largest(&(one - other)) <= 1e-5, "tiles carry their state");
    }
}

#[test]
fn tiles_are_decoded_alone_and_faded() {
    let _alone = alone();
    let vae = tiny();
    let latents = latents([1, 16, 3, 8, 14]);
    // Two tiles of 8 × 8 latent pixels beside each other, 2 of which they share.
    let (found, _) = decoded(&vae, &latents, through(square(64, 16), carried(4)));
    let alone = |left: i64| decoded(&vae, &latents.narrow(4, left, 8), through(Space::Whole, carried(4))).0;
    let (left, right) = (alone(0), alone(6));
    let ramp = (Tensor::arange(16, (Kind::Float, tch::Device::Cpu)) + 0.5) / 16.0;
    let faded = right.narrow(4, 0, 16) * &ramp + left.narrow(4, 48, 16) * (1.0 - &ramp);
    let expected = Tensor::cat(&[left.narrow(4, 0, 48), faded, right.narrow(4, 16, 48)], 4);
    assert!(largest(&(found - expected)) < 1e-5);
}

#[test]
fn a_clip_goes_on_where_it_ended() {
    let _alone = alone();
    let vae = tiny();
    let latents = latents([2, 16, 6, 9, 8]);
    for space in [Space::Whole, square(64, 16)] {
        let (whole, _) = decoded(&vae, &latents, through(space, carried(4)));
        for done in [[1, 0], [7, 0], [21, 5], [21, 20]] {
            let job = ClipJob::new(machine(), &vae, &latents, 1_u64 << 34, Objective::Balanced).unwrap();
            struct Rest(Tensor, Vec<u32>);
            impl Sink for Rest {
                fn frames(
                    &mut self,
                    sample: u32,
                    first: u32,
                    frames: &Tensor,
                ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                    assert_eq!(first, self.1[sample as usize]);
                    let count = frames.size()[0];
                    let expected = self.0.get(i64::from(sample)).narrow(1, i64::from(first), count).transpose(0, 1);
                    assert!(largest(&(frames - expected)) <= 1e-5);
                    self.1[sample as usize] += count as u32;
                    Ok(())
                }
            }
            let mut rest = Rest(whole.shallow_clone(), done.to_vec());
            job.run(&mut Scripted::new([through(space, carried(8))]), &mut Quiet, &mut rest, &done).unwrap();
            assert_eq!(rest.1, [21, 21]);
        }
    }
}

#[test]
fn memory_that_runs_out_on_the_way_costs_no_frame() {
    let _alone = alone();
    let vae = trained();
    let latents = latents([1, vae.config.latent_channels as i64, 9, 12, 12]);
    let (whole, _) = decoded(&vae, &latents, through(Space::Whole, carried(4)));
    let generous = ClipJob::new(machine(), &vae, &latents, 1_u64 << 34, Objective::Balanced).unwrap();
    let peak = |plan: &Plan| generous.estimate(plan).unwrap().peak_bytes;
    let (many, few) = (through(Space::Whole, carried(32)), through(Space::Whole, carried(1)));
    assert!(peak(&few) * 11 < peak(&many) * 10, "{} {}", peak(&few), peak(&many));
    let limit = (peak(&many) + peak(&few)) / 2;
    let job = ClipJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap();
    for next in [few, through(bands(32), carried(2)), through(square(64, 16), Time::Whole)] {
        let mut planner = Scripted::new([many.clone(), next.clone()]);
        let (mut hears, mut kept) = (Hears::default(), Kept::default());
        let finished = job.run(&mut planner, &mut hears, &mut kept, &[]).unwrap();
        assert!(matches!(hears.0[..], [Failure::OutOfMemory { .. }]), "{:?}", hears.0);
        assert_eq!(finished.record.attempts.len(), 1);
        let outcome = finished.record.outcome.unwrap();
        assert!(outcome.peak_bytes <= limit && outcome.attempts == 2, "{} > {limit}", outcome.peak_bytes);
        let found = kept.clip();
        assert_eq!(found.size(), whole.size());
        if !matches!(next.space, Space::Blended(_)) {
            assert!(largest(&(found - &whole)) <= 1e-5, "{}", next.space);
        }
    }
}

#[test]
fn a_policy_hears_of_every_chunk() {
    let _alone = alone();
    let vae = tiny();
    let latents = latents([1, 16, 6, 8, 8]);
    let job = ClipJob::new(machine(), &vae, &latents, 1_u64 << 34, Objective::Balanced).unwrap();
    let mut planner = Scripted::new([through(Space::Whole, carried(4))]);
    let finished = job.run(&mut planner, &mut Quiet, &mut Kept::default(), &[]).unwrap();
    // Neither the first frame alone nor the last chunk, but the whole.
    assert_eq!(planner.learned.len(), 4 + 1);
    let outcome = finished.record.outcome.unwrap();
    assert_eq!(planner.learned.last().unwrap().1, outcome);
    for (_, partial) in &planner.learned {
        let ratio = partial.elapsed.as_secs_f64() / outcome.elapsed.as_secs_f64();
        assert!(ratio > 0.05 && ratio < 20.0, "{ratio}: what a chunk makes likely for all of the clip");
        assert!(partial.peak_bytes > 0 && partial.peak_bytes <= outcome.peak_bytes);
    }
}

#[test]
fn a_tile_that_is_not_finite_is_redone_alone_in_a_wider_type() {
    let _alone = alone();
    let vae = trained();
    let values = latents([1, vae.config.latent_channels as i64, 4, 8, 20]);
    // Beyond what f16 holds once the first convolution has summed it up, in the third latent frame
    // of the last tile.
    let _ = values.narrow(2, 2, 1).narrow(4, 16, 2).fill_(6e4);
    let latents = values.copy();
    let wide = through(square(64, 16), carried(4));
    let (expected, _) = decoded(&vae, &latents, wide.clone());
    let narrow = Plan { precision: Precision::Uniform(Dtype::F16), ..wide.clone() };
    let job = ClipJob::new(machine(), &vae, &latents, 1_u64 << 34, Objective::Balanced).unwrap();
    let (mut hears, mut kept) = (Hears::default(), Kept::default());
    let mut planner = Scripted::new([narrow.clone(), wide]);
    job.run(&mut planner, &mut hears, &mut kept, &[]).unwrap();
    assert!(matches!(hears.0[..], [Failure::NonFinite { values }] if values > 0), "{:?}", hears.0);
    let found = kept.clip();
    // The last tile from there on is what f32 makes of it; the first one is f16 to the end.
    let right = |clip: &Tensor| clip.narrow(2, 5, 8).narrow(4, 112, 48);
    assert!(largest(&(right(&found) - right(&expected))) < 1e-5);
    let left = |clip: &Tensor| clip.narrow(2, 5, 8).narrow(4, 0, 40);
    let apart = largest(&(left(&found) - left(&expected)));
    assert!(apart > 1e-4 && apart < 0.2, "{apart}");
}

#[test]
fn an_interrupted_clip_has_delivered_what_was_done() {
    let _alone = alone();
    let vae = tiny();
    let latents = latents([1, 16, 6, 8, 8]);
    struct Impatient(u32);
    impl Observer for Impatient {
        fn progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
            assert!((0.0..=1.0).contains(&share));
            self.0 += 1;
            Cancelled::unless(self.0 < 150)
        }
    }
    let job = ClipJob::new(machine(), &vae, &latents, 1_u64 << 34, Objective::Balanced).unwrap();
    let mut kept = Kept::default();
    let mut planner = Scripted::new([through(Space::Whole, carried(4))]);
    let unfinished = job.run(&mut planner, &mut Impatient(0), &mut kept, &[]).unwrap_err();
    assert!(matches!(unfinished.error, Error::Interrupted));
    let (whole, _) = decoded(&vae, &latents, through(Space::Whole, carried(4)));
    let found = kept.clip();
    let count = found.size()[2];
    assert!(count > 0 && count < whole.size()[2], "{count}");
    assert!(largest(&(found - whole.narrow(2, 0, count))) <= 1e-5);
}

#[test]
fn frames_that_can_t_be_kept_end_the_decode() {
    let _alone = alone();
    struct Full;
    impl Sink for Full {
        fn frames(&mut self, _: u32, _: u32, _: &Tensor) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            Err("the disk is full".into())
        }
    }
    let vae = tiny();
    let latents = latents([1, 16, 2, 8, 8]);
    let job = ClipJob::new(machine(), &vae, &latents, 1_u64 << 34, Objective::Balanced).unwrap();
    let mut planner = Scripted::new([through(Space::Whole, carried(4))]);
    let unfinished = job.run(&mut planner, &mut Quiet, &mut Full, &[]).unwrap_err();
    assert_eq!(unfinished.error.to_string(), "the disk is full");
    assert!(planner.recovered.is_empty());
}

/// Keeps nothing, so that only what the decode itself holds is measured.
struct Shown;

impl Sink for Shown {
    fn frames(&mut self, _: u32, _: u32, _: &Tensor) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

#[test]
fn peaks_of_clips_are_estimated_before_they_are_measured() {
    let _alone = alone();
    let precisions = [F32, Precision::Uniform(Dtype::Bf16), Precision::Mixed(Dtype::Bf16)];
    let times = [Time::Whole, carried(1), carried(16)];
    let (mut ratios, mut count) = (Vec::new(), 0);
    for (name, vae, shapes) in [
        ("wan-tiny", trained(), vec![[1, 12, 20], [4, 8, 9]]),
        ("wan22", newer(), vec![[3, 8, 14]]),
        ("wan21", tiny(), vec![[21, 6, 5]]),
    ] {
        let scale = vae.config.spatial_scale();
        for (index, [frames, height, width]) in shapes.into_iter().enumerate() {
            let latents = latents([1, vae.config.latent_channels as i64, frames, height, width]);
            let job = ClipJob::new(machine(), &vae, &latents, 1_u64 << 34, Objective::Balanced).unwrap();
            for space in [Space::Whole, bands(3 * scale), square(8 * scale, 2 * scale)] {
                for (number, (time, precision)) in
                    times.iter().flat_map(|time| precisions.map(|precision| (*time, precision))).enumerate()
                {
                    count += 1;
                    if is_spared(precision, count) {
                        continue;
                    }
                    let layout = if (number + index) % 2 == 0 { Layout::ChannelsLast } else { Layout::ChannelsFirst };
                    let plan = Plan { precision, layout, ..through(space, time) };
                    let Ok(estimated) = job.estimate(&plan) else { continue };
                    let mut planner = Scripted::new([plan]);
                    let finished = job.run(&mut planner, &mut Quiet, &mut Shown, &[]).unwrap();
                    let measured = finished.record.outcome.unwrap().peak_bytes;
                    let ratio = estimated.peak_bytes as f64 / measured as f64;
                    let size = format!("{frames}×{height}×{width}");
                    let what = format!("{name} {size} {space} {time:?} {precision} {layout}: {estimated:?} {measured}");
                    println!("{ratio:.3} {what}");
                    assert!(ratio > 0.95 && ratio < 1.3, "{ratio:.3} {what}");
                    ratios.push(ratio);
                }
            }
        }
    }
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[ratios.len() * 9 / 10] < 1.15);
}

/// Asks for another plan between chunks, a few times.
struct Renewing(u32);

impl Observer for Renewing {
    fn between_chunks(&mut self) -> Next {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        left.map_or(Next::GoOn, |_| Next::AskAgain)
    }
}

#[test]
fn another_plan_takes_over_between_chunks_and_the_clip_is_the_same() {
    let _alone = alone();
    let vae = tiny();
    let latents = latents([1, vae.config.latent_channels as i64, 7, 8, 10]);
    let (whole, _) = decoded(&vae, &latents, through(Space::Whole, Time::Whole));
    let job = ClipJob::new(machine(), &vae, &latents, 1_u64 << 34, Objective::Balanced).unwrap();
    let plans = [through(Space::Whole, carried(4)), through(bands(32), carried(4)), through(Space::Whole, carried(8))];
    let mut planner = Scripted::new(plans.clone());
    let mut kept = Kept::default();
    let finished = job.run(&mut planner, &mut Renewing(2), &mut kept, &[]).unwrap();
    assert!(largest(&(kept.clip() - whole)) <= 1e-5);
    assert_eq!(finished.record.plan.time, plans[2].time, "the last plan is the record's");
    assert!(finished.record.attempts.is_empty() && planner.recovered.is_empty(), "nothing failed");
    let whole = finished.record.outcome.unwrap();
    assert!(planner.learned.iter().all(|(_, outcome)| *outcome != whole), "the whole is no plan's alone");
}
