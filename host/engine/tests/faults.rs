//! Failures, and the way that a job goes on: memory, numbers, interruption.

mod scripted;

use std::{ops::ControlFlow, path::Path};

use scripted::{
    Hears, Quiet, Scripted, alone, cases, flux, largest, latent, machine, plan, reference, single, square,
    stored_latent, vae,
};
use tch::Tensor;
use tilewright_engine::{Cancelled, DecodeJob, Error, Observer, Refusal, VaeFile};
use tilewright_fixtures::fixture;
use tilewright_models::Checkpoint;
use tilewright_plan::{Dtype, Failure, FallbackReason, Layout, Objective, Plan, Precision, Space};
use tilewright_torch::memory;

/// Plans that differ, and are carried out alike for one sample.
fn alike(of: &Plan) -> [Plan; 6] {
    [1, 2, 3, 4, 5, 6].map(|batch| Plan { batch, ..of.clone() })
}

/// A plan that exceeds a limit, one that is far below it, and the limit in bytes.
struct Tight {
    whole: Plan,
    tiled: Plan,
    limit: u64,
}

impl Tight {
    fn of(vae: &VaeFile, latents: &Tensor) -> Self {
        let generous = DecodeJob::new(machine(), vae, latents, 1_u64 << 32, Objective::Balanced).unwrap();
        let (whole, tiled) = (single(Space::Whole), single(square(96, 16)));
        let peak = |plan: &Plan| generous.estimate(plan).unwrap().peak_bytes;
        let limit = (peak(&whole) + peak(&tiled)) / 2;
        assert!(peak(&tiled) < limit / 2, "the tiles are much leaner");
        Self { whole, tiled, limit }
    }
}

fn in_use() -> u64 {
    memory::of(machine().device).unwrap().in_use
}

#[test]
fn what_does_not_fit_is_recorded_and_tiles_that_fit_succeed() {
    let _alone = alone();
    let vae = flux();
    let latents = latent([1, 16, 40, 40]);
    let Tight { whole, tiled, limit } = Tight::of(&vae, &latents);
    let job = DecodeJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap();
    let before = in_use();
    let mut planner = Scripted::new([whole.clone(), tiled.clone()]);
    let mut heard = Hears::default();
    let finished = job.run(&mut planner, &mut heard).unwrap();
    let record = &finished.record;
    assert_eq!(record.attempts.len(), 1);
    assert_eq!(record.attempts[0].plan, whole);
    assert!(matches!(record.attempts[0].failure, Failure::OutOfMemory { bytes } if bytes > 0 && bytes < limit));
    assert_eq!(heard.0, [record.attempts[0].failure]);
    assert_eq!(planner.recovered.len(), 1);
    assert_eq!((&planner.recovered[0][0].plan, planner.recovered[0][0].failure), (&whole, record.attempts[0].failure));
    let outcome = record.outcome.unwrap();
    assert_eq!(record.plan, tiled);
    assert_eq!(outcome.attempts, 2);
    assert!(outcome.peak_bytes > 0 && outcome.peak_bytes <= limit, "{} > {limit}", outcome.peak_bytes);
    assert_eq!(planner.learned, [(tiled, outcome)]);
    drop(finished);
    vae.release();
    assert_eq!(in_use(), before, "everything was given back");
}

#[test]
fn four_failures_are_the_end() {
    let _alone = alone();
    let vae = flux();
    let latents = latent([1, 16, 24, 24]);
    let generous = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 32, Objective::Balanced).unwrap();
    let limit = generous.estimate(&single(Space::Whole)).unwrap().peak_bytes / 2;
    let job = DecodeJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap();
    let before = in_use();
    let mut planner = Scripted::new(alike(&single(Space::Whole)));
    let unfinished = job.run(&mut planner, &mut Quiet).unwrap_err();
    let Error::Exhausted { attempts: 4, last: Failure::OutOfMemory { .. }, .. } = unfinished.error else {
        panic!("{}", unfinished.error);
    };
    let message = unfinished.error.to_string();
    for words in ["4 attempts", "out of memory", "memory-limit", "policy fixed set space=blended set tile=64"] {
        assert!(message.contains(words) && !message.contains('\n'), "{message:?} lacks {words:?}");
    }
    assert!(!unfinished.error.is_input());
    let record = unfinished.record.unwrap();
    assert_eq!(record.attempts.len(), 4);
    assert!(record.outcome.is_none());
    assert_eq!(planner.recovered.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(planner.learned.is_empty());
    vae.release();
    assert_eq!(in_use(), before);
}

#[test]
fn the_last_attempts_are_the_host_s_own() {
    let _alone = alone();
    let vae = flux();
    let latents = latent([1, 16, 40, 40]);
    let Tight { whole, tiled, limit } = Tight::of(&vae, &latents);
    let job = DecodeJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap();
    let run = |own: &[&Plan]| {
        let mut planner = Scripted::new(alike(&whole));
        planner.own = own.iter().map(|plan| (*plan).clone()).collect();
        let end = job.run(&mut planner, &mut Quiet);
        (end, planner.recovered.len(), planner.own.len())
    };
    // The planner has three attempts. The fourth is the host's, and its record says so.
    let (end, asked, left) = run(&[&tiled]);
    let record = end.unwrap().record;
    assert_eq!((record.attempts.len(), asked, left), (3, 2, 0));
    assert_eq!((&record.plan, &record.answer), (&tiled, &None));
    assert_eq!(record.fallback.unwrap().reason, FallbackReason::Exhausted);
    assert_eq!(record.outcome.unwrap().attempts, 4);
    // The next ones mend what the fourth shows.
    let [_, _, _, fourth, fifth, sixth] = alike(&whole);
    let (end, asked, left) = run(&[&fourth, &fifth, &tiled, &tiled]);
    let record = end.unwrap().record;
    assert_eq!((record.attempts.len(), asked, left), (5, 2, 1));
    assert!(record.attempts[3..].iter().all(|attempt| attempt.fallback.is_some()));
    // Six attempts in all, although a plan is left.
    let (end, asked, left) = run(&[&fourth, &fifth, &sixth, &tiled]);
    let Error::Exhausted { attempts: 6, .. } = end.unwrap_err().error else { panic!("six attempts are the end") };
    assert_eq!((asked, left), (2, 1));
    vae.release();
}

#[test]
fn a_plan_that_failed_is_not_tried_again() {
    let _alone = alone();
    let vae = flux();
    let latents = latent([1, 16, 40, 40]);
    let Tight { whole, tiled, limit } = Tight::of(&vae, &latents);
    let job = DecodeJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap();
    // The fallback plan stands in for a planner that repeats one.
    let mut planner = Scripted::new([whole.clone()]);
    planner.own = [tiled.clone()].into();
    let record = job.run(&mut planner, &mut Quiet).unwrap().record;
    assert_eq!((record.attempts.len(), &record.plan, &record.answer), (1, &tiled, &None));
    // Without one, the repeat is the end.
    let mut heard = Hears::default();
    let unfinished = job.run(&mut Scripted::new([whole]), &mut heard).unwrap_err();
    assert!(matches!(unfinished.error, Error::Exhausted { attempts: 1, .. }), "{}", unfinished.error);
    assert_eq!(heard.0.len(), 1);
    vae.release();
}

#[test]
fn a_limit_that_nothing_fits_in_says_the_least_that_does() {
    let _alone = alone();
    let vae = flux();
    for latents in [latent([1, 16, 24, 24]), latent([2, 16, 9, 30]), latent([1, 16, 5, 6])] {
        let refused = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 16, Objective::Leanest).unwrap_err();
        assert!(refused.is_input());
        let message = refused.to_string();
        let Error::Refused(Refusal::DoesNotFit { limit, least, tile, .. }) = refused else { panic!("{message}") };
        assert_eq!(limit, 1 << 16);
        assert!(message.contains("64.0 KiB") && message.contains(&format!("tiles of {tile} pixels")), "{message}");
        assert!(DecodeJob::new(machine(), &vae, &latents, least - 1, Objective::Leanest).is_err());

        let job = DecodeJob::new(machine(), &vae, &latents, least, Objective::Leanest).unwrap();
        let candidates = job.capabilities().dtypes.iter().flat_map(|dtype| {
            [Layout::ChannelsFirst, Layout::ChannelsLast].into_iter().flat_map(|layout| {
                [Space::Whole, square(tile, 0)].map(|space| plan(space, 1, Precision::Uniform(*dtype), layout))
            })
        });
        let leanest = candidates.min_by_key(|plan| job.estimate(plan).unwrap().peak_bytes).unwrap();
        let finished = job.run(&mut Scripted::new([leanest]), &mut Quiet).map_err(|unfinished| unfinished.error);
        let outcome = finished.unwrap().record.outcome.unwrap();
        assert_eq!(outcome.attempts, 1);
        assert!(outcome.peak_bytes <= least);
    }
}

/// A copy of flux-bfl's file with values of one tensor replaced; they are stored in bf16.
fn damaged(folder: &Path, tensor: &str, value: f32) -> VaeFile {
    let original = fixture("flux-bfl/ae.safetensors");
    let path = folder.join("ae.safetensors");
    let mut bytes = std::fs::read(&original).unwrap();
    let file = Checkpoint::open(&original).unwrap();
    let found = file.bytes(tensor).unwrap();
    let at = bytes.windows(found.len()).position(|window| window == found).unwrap();
    let stored = ((value.to_bits() >> 16) as u16).to_le_bytes();
    for pair in bytes[at..at + found.len()].chunks_exact_mut(2) {
        pair.copy_from_slice(&stored);
    }
    std::fs::write(&path, bytes).unwrap();
    vae(&path)
}

#[test]
fn what_overflows_in_half_precision_is_decoded_again_in_f32() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    // Past f16's range, and far within f32's.
    let vae = damaged(folder.path(), "decoder.up.0.block.0.conv1.bias", 1e6);
    let latents = latent([1, 16, 5, 6]);
    let job = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 30, Objective::Balanced).unwrap();
    let before = in_use();
    let half = plan(Space::Whole, 1, Precision::Uniform(Dtype::F16), Layout::ChannelsFirst);
    let mut planner = Scripted::new([half.clone(), single(Space::Whole)]);
    let finished = job.run(&mut planner, &mut Quiet).unwrap();
    let attempt = &finished.record.attempts[0];
    assert_eq!(attempt.plan, half);
    assert!(matches!(attempt.failure, Failure::NonFinite { values } if values > 0 && values <= 3 * 40 * 48));
    assert_eq!(planner.recovered[0][0].failure, attempt.failure);
    assert_eq!(finished.record.outcome.unwrap().attempts, 2);
    assert_eq!(tilewright_torch::non_finite(&finished.output).unwrap(), 0);
    drop(finished);

    // Half precision to the end: the advice names the way out.
    let unfinished = job.run(&mut Scripted::new(alike(&half)), &mut Quiet).unwrap_err();
    let message = unfinished.error.to_string();
    assert!(message.contains("NaN") && message.contains("set precision=f32"), "{message}");
    assert_eq!(unfinished.record.unwrap().attempts.len(), 4);
    vae.release();
    assert_eq!(in_use(), before);
}

#[test]
fn what_is_not_finite_in_f32_is_not_tried_again() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let vae = damaged(folder.path(), "decoder.conv_out.bias", f32::NAN);
    let latents = latent([1, 16, 5, 6]);
    let job = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 30, Objective::Balanced).unwrap();
    for space in [Space::Whole, square(32, 8)] {
        let mut planner = Scripted::new([single(space)]);
        let unfinished = job.run(&mut planner, &mut Quiet).unwrap_err();
        assert!(planner.recovered.is_empty());
        let Error::Exhausted { attempts: 1, last: Failure::NonFinite { values }, .. } = unfinished.error else {
            panic!("{}", unfinished.error);
        };
        // The attempt fails at the first tile already.
        assert_eq!(values, if space == Space::Whole { 3 * 40 * 48 } else { 3 * 32 * 32 });
        assert!(unfinished.error.to_string().contains("damaged"));
        assert_eq!(unfinished.record.unwrap().attempts.len(), 1);
    }
}

#[test]
fn an_interrupted_job_leaves_nothing_behind() {
    let _alone = alone();
    struct Stops {
        after: u32,
        last: f64,
    }
    impl Observer for Stops {
        fn progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
            assert!(share > self.last && share <= 1.0 + 1e-9, "progress goes forward");
            self.last = share;
            self.after = self.after.saturating_sub(1);
            Cancelled::unless(self.after > 0)
        }
    }
    let case = cases("blends").into_iter().find(|case| case["name"] == "blend-flux").unwrap();
    let (vae, latents) = (flux(), stored_latent(&case));
    let job = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 30, Objective::Balanced).unwrap();
    let before = in_use();
    for space in [Space::Whole, square(48, 8)] {
        for after in [1, 3, 30] {
            if space == Space::Whole && after == 30 {
                continue;
            }
            let mut planner = Scripted::new([single(space)]);
            let unfinished = job.run(&mut planner, &mut Stops { after, last: 0.0 }).unwrap_err();
            assert!(matches!(unfinished.error, Error::Interrupted), "{}", unfinished.error);
            assert!(planner.recovered.is_empty() && planner.learned.is_empty());
            assert!(unfinished.record.unwrap().outcome.is_none());
            vae.release();
            assert_eq!(in_use(), before);
        }
    }
    let mut stops = Stops { after: u32::MAX, last: 0.0 };
    let finished = job.run(&mut Scripted::new([single(square(48, 8))]), &mut stops).unwrap();
    assert!((stops.last - 1.0).abs() < 1e-6, "progress ends at 1, not {}", stops.last);
    let expected = reference(&case);
    assert!(largest(&(&finished.output - &expected)) <= 1e-4 * largest(&expected).max(1.0));
    drop((finished, expected));
    vae.release();
    assert_eq!(in_use(), before);
}
