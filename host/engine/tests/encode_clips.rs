//! Encodes of clips: agreement with diffusers in every division of time and space, what is asked
//! for and when, failures on the way, and peaks against their estimates.

mod scripted;

use std::{ops::ControlFlow, path::Path};

use scripted::{Hears, Quiet, Scripted, alone, is_spared, largest, machine, plan, square};
use serde_json::Value;
use tch::{Kind, Tensor};
use tilewright_engine::{
    Cancelled, ClipEncodeJob, ClipExtents, EncodedClip, Error, Finished, Observer, Overrides, Unfinished, VideoVaeFile,
};
use tilewright_fixtures::{example, fixture};
use tilewright_models::Checkpoint;
use tilewright_plan::{Dtype, Failure, Layout, Objective, Plan, Precision, Space, Stage, Tile, Time};
use tilewright_torch::memory;

const F32: Precision = Precision::Uniform(Dtype::F32);

fn vae(path: &str) -> VideoVaeFile {
    opened(&fixture(path))
}

fn opened(path: &Path) -> VideoVaeFile {
    VideoVaeFile::open(path, Overrides::default()).unwrap()
}

fn tiny() -> VideoVaeFile {
    vae("wan21-original/Wan2.1_VAE.safetensors")
}

/// The bundled network, whose activations are those of a trained one.
fn trained() -> VideoVaeFile {
    opened(&example("models/wan-tiny/Wan2.1_VAE.safetensors"))
}

/// A clip that is the same in every run, [T, C, H, W]: waves that move.
fn clip(frames: i64, height: i64, width: i64) -> Tensor {
    let places = |count: i64| Tensor::arange(count, (Kind::Float, tch::Device::Cpu));
    let time = places(frames).view([-1, 1, 1, 1]) * 0.4;
    let colour = places(3).view([1, -1, 1, 1]) * 0.9;
    let down = places(height).view([1, 1, -1, 1]) * 0.13;
    let across = places(width).view([1, 1, 1, -1]) * 0.09;
    ((down + &time).sin() * (across + time * 0.5 + colour).cos() * 0.8).contiguous()
}

fn through(space: Space, time: Time) -> Plan {
    Plan { time, ..plan(space, 1, F32, Layout::ChannelsFirst) }
}

fn carried(frames: u32) -> Time {
    Time::Carried { frames }
}

fn extents(clip: &Tensor) -> ClipExtents {
    let (frames, _, height, width) = clip.size4().unwrap();
    ClipExtents { frames: frames as u32, height: height as u32, width: width as u32 }
}

fn job<'a>(vae: &'a VideoVaeFile, clip: &Tensor, limit: u64) -> ClipEncodeJob<'a> {
    ClipEncodeJob::new(machine(), vae, extents(clip), limit, Objective::Balanced).unwrap()
}

/// Runs a job on a clip, and gives how many frames it asked for in turn.
fn run(
    job: &ClipEncodeJob<'_>,
    clip: &Tensor,
    plans: impl IntoIterator<Item = Plan>,
    observer: &mut dyn Observer,
) -> (Result<Finished<EncodedClip>, Unfinished>, Vec<u32>) {
    let (mut next, mut asked) = (0, Vec::new());
    let encoded = job.run(&mut Scripted::new(plans), observer, &mut |count| {
        asked.push(count);
        let count = i64::from(count).min(clip.size()[0] - next);
        next += count;
        // Their own, as frames that are read are.
        Ok(clip.narrow(0, next - count, count).copy())
    });
    (encoded, asked)
}

fn encoded(vae: &VideoVaeFile, clip: &Tensor, plan: Plan) -> Tensor {
    run(&job(vae, clip, 1 << 34), clip, [plan], &mut Quiet).0.unwrap().output.latents
}

#[test]
fn encodes_agree_with_diffusers_in_chunks_of_any_size() {
    let _alone = alone();
    let text = std::fs::read_to_string(fixture("video_cases.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let cases = all["encodes"].as_array().unwrap();
    assert!(cases.len() >= 10);
    for case in cases {
        let tensor = |path: &Value, name: &str| {
            let file = Checkpoint::open(&fixture(path.as_str().unwrap())).unwrap();
            file.load(name, file.shape(name).unwrap(), Kind::Float, tch::Device::Cpu).unwrap()
        };
        let (clips, expected) = (tensor(&case["clip"], "sample"), tensor(&case["reference"], "latent"));
        let vae = vae(case["vae"].as_str().unwrap());
        let scale = i64::from(vae.model.spatial_scale);
        for sample in 0..clips.size()[0] {
            let clip = clips.get(sample).transpose(0, 1);
            let expected = expected.narrow(0, sample, 1);
            let frames = clip.size()[0];
            // As whole latent pixels, which is what the program encodes.
            if clip.size()[2] % scale != 0 || clip.size()[3] % scale != 0 {
                continue;
            }
            for (layout, time) in [
                (Layout::ChannelsFirst, Time::Whole),
                (Layout::ChannelsLast, carried(1)),
                (Layout::ChannelsFirst, carried(8)),
                (Layout::ChannelsLast, carried(1 << 10)),
            ] {
                let plan = Plan { layout, ..through(Space::Whole, time) };
                let (done, asked) = run(&job(&vae, &clip, 1 << 34), &clip, [plan], &mut Quiet);
                let done = done.unwrap();
                assert_eq!(done.output.latents.size(), expected.size(), "{}", case["name"]);
                assert_eq!((i64::from(done.output.frames), asked[0]), (frames, 1));
                assert_eq!(i64::from(asked.iter().sum::<u32>()), frames);
                let difference = largest(&(done.output.latents - &expected));
                let tolerance = 1e-4 * largest(&expected).max(1.0);
                assert!(difference <= tolerance, "{} {layout} {time:?}: {difference}", case["name"]);
            }
        }
    }
}

#[test]
fn tiles_are_encoded_alone_with_their_own_past_and_faded() {
    let _alone = alone();
    for (vae, scale) in [(tiny(), 8), (vae("wan22-original/Wan2.2_VAE.safetensors"), 16)] {
        let clip = clip(13, 8 * scale, 14 * scale);
        // Two tiles of 8 × 8 latent pixels beside each other, 2 of which they share.
        let tiles = square(8 * scale as u32, 2 * scale as u32);
        let alone = |left: i64| {
            let part = clip.narrow(3, left * scale, 8 * scale).contiguous();
            encoded(&vae, &part, through(Space::Whole, Time::Whole))
        };
        let (left, right) = (alone(0), alone(6));
        let ramp = (Tensor::arange(2, (Kind::Float, tch::Device::Cpu)) + 0.5) / 2.0;
        let faded = right.narrow(4, 0, 2) * &ramp + left.narrow(4, 6, 2) * (1.0 - &ramp);
        let expected = Tensor::cat(&[left.narrow(4, 0, 6), faded, right.narrow(4, 2, 6)], 4);
        for time in [Time::Whole, carried(8), carried(12)] {
            let found = encoded(&vae, &clip, through(tiles, time));
            assert_eq!(found.size(), expected.size());
            assert!(largest(&(found - &expected)) <= 1e-4 * largest(&expected).max(1.0), "{time:?}");
        }
    }
}

#[test]
fn memory_that_runs_out_costs_no_frame() {
    let _alone = alone();
    let vae = trained();
    let clip = clip(17, 160, 192);
    let generous = job(&vae, &clip, 1 << 34);
    let whole = encoded(&vae, &clip, through(Space::Whole, Time::Whole));
    let peak = |plan: &Plan| generous.estimate(plan).unwrap().peak_bytes;
    let (all, tiled) = (through(Space::Whole, carried(8)), through(square(96, 16), carried(4)));
    assert!(peak(&tiled) * 3 < peak(&all) * 2, "{} {}", peak(&tiled), peak(&all));
    vae.release();
    let before = memory::of(machine().device).unwrap().in_use;
    // More than what the first frame alone takes: it fails with a past.
    let limit = peak(&all) * 8 / 10;
    let (mut hears, job) = (Hears::default(), job(&vae, &clip, limit));
    let (done, asked) = run(&job, &clip, [all.clone(), tiled.clone()], &mut hears);
    let done = done.unwrap();
    assert!(matches!(hears.0[..], [Failure::OutOfMemory { .. }]), "{:?}", hears.0);
    assert_eq!(asked.iter().sum::<u32>(), 17, "nothing is asked for twice: {asked:?}");
    let outcome = done.record.outcome.unwrap();
    assert!(outcome.attempts == 2 && outcome.peak_bytes <= limit, "{} > {limit}", outcome.peak_bytes);
    assert_eq!(done.output.latents.size(), whole.size());
    // The first frame is what whole makes of it; later ones are near.
    let first = |latents: &Tensor| latents.narrow(2, 0, 1);
    assert!(largest(&(first(&done.output.latents) - first(&whole))) <= 1e-5);
    let noise = f64::try_from((&done.output.latents - &whole).square().mean(Kind::Double)).unwrap().sqrt();
    let power = f64::try_from(whole.square().mean(Kind::Double)).unwrap().sqrt();
    assert!(noise < 0.3 * power, "{noise} of {power}");
    drop(done);
    vae.release();
    assert_eq!(memory::of(machine().device).unwrap().in_use, before, "everything was given back");
}

/// A clip whose values are beyond f16's from one frame on, in some columns.
fn overflowing(frames: i64, from: i64, columns: (i64, i64)) -> Tensor {
    let clip = clip(frames, 64, 160);
    let _ = clip.narrow(0, from, frames - from).narrow(3, columns.0, columns.1).fill_(3e5);
    clip
}

#[test]
fn what_is_not_finite_is_redone_in_a_wider_type_from_there_on() {
    let _alone = alone();
    let vae = tiny();
    let clip = overflowing(13, 6, (130, 8));
    let wide = encoded(&vae, &clip, through(Space::Whole, Time::Whole));
    let half = |plan: Plan| Plan { precision: Precision::Uniform(Dtype::F16), ..plan };
    for (narrow, next) in [
        (through(Space::Whole, carried(4)), through(Space::Whole, carried(8))),
        // The second tile fails after the first one has taken the frames; then in smaller ones, in
        // larger ones, and in one.
        (through(square(96, 16), carried(8)), through(square(96, 16), carried(4))),
        (through(square(96, 16), carried(8)), through(square(64, 16), carried(4))),
        (through(square(64, 16), carried(4)), through(square(96, 24), carried(4))),
        (through(square(96, 16), carried(4)), through(Space::Whole, Time::Whole)),
    ] {
        let what = format!("{} then {}", narrow.space, next.space);
        let mut hears = Hears::default();
        let (done, asked) = run(&job(&vae, &clip, 1 << 34), &clip, [half(narrow), next], &mut hears);
        let done = done.unwrap_or_else(|unfinished| panic!("{what}: {}", unfinished.error));
        assert!(matches!(hears.0[..], [Failure::NonFinite { values }] if values > 0), "{what}: {:?}", hears.0);
        assert_eq!(asked.iter().sum::<u32>(), 13, "{what}");
        assert_eq!(done.output.latents.size(), wide.size());
        assert_eq!(tilewright_torch::non_finite(&done.output.latents).unwrap(), 0);
        // Away from tiles' edges and from what is beyond f16 it is what f32 makes of the whole, to
        // f16's precision.
        let inner = |latents: &Tensor| latents.narrow(3, 2, 4).narrow(4, 0, 3);
        let apart = inner(&(&done.output.latents - &wide)).abs().max();
        let most = largest(&inner(&wide));
        let within = if what.starts_with("whole") { 0.02 } else { 0.4 };
        assert!(f64::try_from(apart).unwrap() < within * most, "{what}");
    }
}

#[test]
fn a_new_division_goes_on_from_the_old_ones_past() {
    let _alone = alone();
    let vae = tiny();
    let clip = clip(17, 64, 160);
    // An interruption by a failure that depends on nothing: the values of one chunk, which f32
    // could hold.
    let hot = clip.copy();
    let _ = hot.narrow(0, 5, 4).narrow(3, 0, 8).fill_(3e5);
    let narrow = Plan { precision: Precision::Mixed(Dtype::F16), ..through(Space::Whole, carried(4)) };
    let tiles = through(square(64, 16), carried(4));
    let (done, _) = run(&job(&vae, &hot, 1 << 34), &hot, [narrow, tiles.clone()], &mut Quiet);
    let found = done.unwrap().output.latents;
    let whole = encoded(&vae, &hot, through(Space::Whole, carried(4)));
    let afresh = encoded(&vae, &hot, tiles);
    // Right after the change the past is the whole's: nearer to it than tiles are that never saw
    // beyond their edges.
    let third = |latents: &Tensor| latents.narrow(2, 2, 1).narrow(4, 6, 14);
    let noise = |latents: &Tensor| f64::try_from((third(latents) - third(&whole)).square().mean(Kind::Double)).unwrap();
    assert!(noise(&found) < 0.9 * noise(&afresh), "{} {}", noise(&found), noise(&afresh));
}

#[test]
fn memory_does_not_grow_with_the_clip_but_for_its_latents() {
    let _alone = alone();
    let vae = tiny();
    let peak = |frames: i64, space: Space| {
        let clip = clip(1, 96, 96);
        let extents = ClipExtents { frames: frames as u32, height: 96, width: 96 };
        let job = ClipEncodeJob::new(machine(), &vae, extents, 1_u64 << 34, Objective::Balanced).unwrap();
        let mut planner = Scripted::new([through(space, carried(8))]);
        let done = job.run(&mut planner, &mut Quiet, &mut |count| Ok(clip.repeat([i64::from(count), 1, 1, 1])));
        done.unwrap().record.outcome.unwrap().peak_bytes as i64
    };
    for space in [Space::Whole, square(64, 16)] {
        let (short, long) = (peak(17, space), peak(97, space));
        let latents = 4 * 16 * 12 * 12 * (25 - 5);
        assert!(long - short <= 2 * latents + (64 << 10), "{space}: {short} {long}");
    }
}

#[test]
fn clips_that_end_early_or_can_t_be_read() {
    let _alone = alone();
    let vae = tiny();
    let (promised, there) = (clip(17, 64, 64), clip(11, 64, 64));
    let (done, asked) = run(&job(&vae, &promised, 1 << 34), &there, [through(Space::Whole, carried(4))], &mut Quiet);
    let done = done.unwrap();
    assert_eq!((done.output.frames, asked), (9, vec![1, 4, 4, 4]));
    let expected = encoded(&vae, &there.narrow(0, 0, 9), through(Space::Whole, carried(4)));
    assert!(largest(&(done.output.latents - expected)) <= 1e-6);
    let ends = |source: &mut dyn FnMut(u32) -> Result<Tensor, Box<dyn std::error::Error + Send + Sync>>| {
        let mut planner = Scripted::new([through(Space::Whole, Time::Whole)]);
        let unfinished = job(&vae, &promised, 1 << 34).run(&mut planner, &mut Quiet, &mut |count| source(count));
        let error = unfinished.unwrap_err().error;
        assert!(matches!(error, Error::Source(_)) && error.is_input() && planner.recovered.is_empty());
        error.to_string()
    };
    assert_eq!(ends(&mut |_| Err("no such frame".into())), "no such frame");
    assert_eq!(ends(&mut |_| Ok(promised.narrow(0, 0, 0))), "the clip has no frames");
    assert!(ends(&mut |_| Ok(promised.narrow(0, 0, 1).narrow(3, 0, 56))).contains("[1, 3, 64, 56]"));
    struct Stops(u32);
    impl Observer for Stops {
        fn progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
            assert!((0.0..=1.0).contains(&share));
            self.0 = self.0.saturating_sub(1);
            Cancelled::unless(self.0 > 0)
        }
    }
    let job = job(&vae, &promised, 1 << 34);
    let (stopped, _) = run(&job, &promised, [through(square(64, 0), carried(4))], &mut Stops(30));
    assert!(matches!(stopped.unwrap_err().error, Error::Interrupted));
}

#[test]
fn requests_say_what_can_be_done() {
    let _alone = alone();
    let vae = tiny();
    let clip = clip(9, 64, 72);
    let encode = job(&vae, &clip, 1 << 30);
    let request = encode.request();
    assert_eq!((request.batch, request.frames, request.height, request.width), (1, 9, 64, 72));
    let can = encode.capabilities();
    assert_eq!((encode.stage(), can.exact, can.carried), (Stage::Encode, false, true));
    assert_ne!(request.model.parameter_bytes, vae.model.parameter_bytes);
    let bands = Space::Exact(Tile { height: 64, width: 72, overlap: 0 });
    assert!(encode.estimate(&through(bands, Time::Whole)).unwrap_err().contains("exact"));
    let faded = Time::Blended { frames: 8, overlap: 4 };
    assert!(encode.estimate(&through(Space::Whole, faded)).unwrap_err().contains("causal"));
    assert_eq!(encode.estimate(&through(square(64, 16), carried(8))).unwrap().tiles, 4);
    let refused = |frames, height, width, limit| {
        let extents = ClipExtents { frames, height, width };
        let error = ClipEncodeJob::new(machine(), &vae, extents, limit, Objective::Balanced).unwrap_err();
        assert!(error.is_input());
        error.to_string()
    };
    for (frames, height, width) in [(0, 64, 64), (4, 64, 64), (5, 60, 64), (5, 64, 0)] {
        assert!(refused(frames, height, width, 1 << 30).contains("multiples of 8"), "{frames} {height} {width}");
    }
    assert!(refused(5, 64, 64, 1 << 16).contains("the least is about"));
    // The decoder alone.
    let text = std::fs::read_to_string(fixture("video_cases.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let mut alone = all["cases"].as_array().unwrap().iter().filter(|case| case["encoder"] == false);
    let file = alone.next().expect("a file without an encoder is among the fixtures")["vae"].as_str().unwrap();
    let error = VideoVaeFile::open(&fixture(file), Overrides::default()).unwrap().encoding().unwrap_err().to_string();
    assert!(error.contains("no encoder in it"), "{error}");
}

/// Below this, what libraries hold whatever the size is a large part.
const LEAST: u64 = 4 << 20;

#[test]
fn peaks_of_encodes_are_estimated_before_they_are_measured() {
    let _alone = alone();
    let precisions =
        [F32, Precision::Uniform(Dtype::Bf16), Precision::Mixed(Dtype::Bf16), Precision::Uniform(Dtype::F16)];
    let networks = [(tiny(), 8), (trained(), 8), (vae("wan22-original/Wan2.2_VAE.safetensors"), 16)];
    let (mut wrong, mut compared, mut number) = (Vec::new(), 0, 0);
    for (network, (vae, scale)) in networks.iter().enumerate() {
        for frames in [1, 9] {
            let clip = clip(frames, 20 * scale, 24 * scale);
            let job = job(vae, &clip, 1 << 34);
            for precision in precisions {
                // If f16 is emulated, more of it takes minutes.
                if precision.dtype() == Dtype::F16 && (frames > 1 || network > 0) {
                    continue;
                }
                for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
                    for (space, time) in [
                        (Space::Whole, Time::Whole),
                        (Space::Whole, carried(8)),
                        (square(12 * *scale as u32, 2 * *scale as u32), carried(4)),
                    ] {
                        number += 1;
                        if is_spared(precision, number) {
                            continue;
                        }
                        let plan = Plan { precision, layout, ..through(space, time) };
                        let Ok(cost) = job.estimate(&plan) else { continue };
                        let (done, _) = run(&job, &clip, [plan], &mut Quiet);
                        let outcome = done.unwrap().record.outcome.unwrap();
                        let ratio = cost.peak_bytes as f64 / outcome.peak_bytes as f64;
                        let speed = cost.elapsed.as_secs_f64() / outcome.elapsed.as_secs_f64();
                        let what = format!(
                            "network {network}, {frames} {space} {time:?} {precision} {layout}: {ratio:.3} of {}, {speed:.2} of the time",
                            outcome.peak_bytes
                        );
                        println!("{what}");
                        let large = outcome.peak_bytes > LEAST;
                        compared += u32::from(large);
                        // Emulated f16 is nothing that a CPU is asked for, and the fixtures' layers
                        // are narrower than the blocks that channels are reordered in: enough is
                        // enough there.
                        let most = match (precision.dtype(), network) {
                            (Dtype::F16, _) => f64::MAX,
                            (_, 1) => 1.2,
                            _ => 1.35,
                        };
                        if ratio < 0.95 || (large && ratio > most) {
                            wrong.push(what);
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared > 20, "{compared} plans were large enough to compare");
}
