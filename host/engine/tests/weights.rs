//! Weights: loads that tell how far they are and can be cancelled, a store that models share, and
//! limits that count them.

mod scripted;

use std::ops::ControlFlow;

use scripted::{Quiet, Scripted, alone, flux, latent, machine, plan, single, square, vae};
use tch::{Device, Kind, Tensor};
use tilewright_engine::{
    Budget, Cancelled, ClipEncodeJob, ClipExtents, ClipJob, DecodeJob, EncodeJob, Error, MemoryLimit, Observer,
    Overrides, Refusal, Sink, Usage, VideoVaeFile, WeightStore,
};
use tilewright_fixtures::{example, fixture};
use tilewright_plan::{Dtype, Failure, Layout, Objective, Plan, Precision, Record, Space};
use tilewright_torch::memory;

/// Hears the shares of loads, and cancels at one of them.
struct Loading {
    shares: Vec<f64>,
    cancels_at: f64,
}

impl Loading {
    fn until(cancels_at: f64) -> Self {
        Self { shares: Vec::new(), cancels_at }
    }
}

impl Observer for Loading {
    fn loading_progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        self.shares.push(share);
        Cancelled::unless(share < self.cancels_at)
    }
}

/// Takes frames and forgets them.
struct Nowhere;

impl Sink for Nowhere {
    fn frames(&mut self, _: u32, _: u32, _: &Tensor) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

fn wan() -> VideoVaeFile {
    VideoVaeFile::open(&fixture("wan21-original/Wan2.1_VAE.safetensors"), Overrides::default()).unwrap()
}

/// A piece of work that gives its record, or its error.
type Work = Box<dyn Fn(&mut dyn Observer) -> Result<Record, Error>>;

/// Every kind of work, small, with weights from a store.
fn works(store: &WeightStore, limit: MemoryLimit) -> Vec<Work> {
    let (pictures, clips) = (flux().sharing(store), wan().sharing(store));
    let bundled = vae(&example("models/flux-tiny/ae.safetensors"));
    let (encodes, clip_encodes) = (bundled.sharing(store), wan().sharing(store));
    let planner = || Scripted::new([single(Space::Whole)]);
    let objective = Objective::Balanced;
    vec![
        Box::new(move |observer| {
            let latents = latent([1, 16, 8, 8]);
            let job = DecodeJob::new(machine(), &pictures, &latents, limit, objective).unwrap();
            job.run(&mut planner(), observer).map(|finished| finished.record).map_err(|unfinished| unfinished.error)
        }),
        Box::new(move |observer| {
            let picture = Tensor::zeros([1, 3, 64, 64], (Kind::Float, Device::Cpu));
            let job = EncodeJob::new(machine(), &encodes, &picture, limit, objective).unwrap();
            job.run(&mut planner(), observer).map(|finished| finished.record).map_err(|unfinished| unfinished.error)
        }),
        Box::new(move |observer| {
            let latents = latent([1, 16, 6, 6]).unsqueeze(2).repeat([1, 1, 3, 1, 1]);
            let job = ClipJob::new(machine(), &clips, &latents, limit, objective).unwrap();
            let finished = job.run(&mut planner(), observer, &mut Nowhere, &[0]);
            finished.map(|finished| finished.record).map_err(|unfinished| unfinished.error)
        }),
        Box::new(move |observer| {
            let extents = ClipExtents { frames: 9, height: 48, width: 48 };
            let job = ClipEncodeJob::new(machine(), &clip_encodes, extents, limit, objective).unwrap();
            let mut frames = |count: u32| Ok(Tensor::zeros([i64::from(count), 3, 48, 48], (Kind::Float, Device::Cpu)));
            let finished = job.run(&mut planner(), observer, &mut frames);
            finished.map(|finished| finished.record).map_err(|unfinished| unfinished.error)
        }),
    ]
}

fn usage(store: &WeightStore) -> Usage {
    store.usage(machine().device)
}

#[test]
fn a_load_that_is_cancelled_leaves_nothing_and_the_next_one_is_whole() {
    let _alone = alone();
    let store = WeightStore::new(Budget::Bytes(1 << 32));
    let works = works(&store, MemoryLimit::from(1 << 32));
    for (number, work) in works.iter().enumerate() {
        let (before, in_use) = (usage(&store), memory::of(machine().device).unwrap().in_use);
        for cancels_at in [0.0, 0.4] {
            let mut loading = Loading::until(cancels_at);
            assert!(matches!(work(&mut loading).unwrap_err(), Error::Interrupted));
            assert_eq!(usage(&store), before, "{number}");
            assert_eq!(memory::of(machine().device).unwrap().in_use, in_use, "{number}");
            let (last, earlier) = loading.shares.split_last().unwrap();
            assert!(*last >= cancels_at && earlier.iter().all(|share| *share < cancels_at), "{:?}", loading.shares);
        }
        let mut loading = Loading::until(2.0);
        work(&mut loading).unwrap();
        let shares = &loading.shares;
        assert_eq!(shares[0], 0.0);
        assert!(shares.len() > 20 && shares.is_sorted() && (0.9..1.0).contains(shares.last().unwrap()), "{shares:?}");
        assert_eq!(usage(&store).loads, before.loads + 1);
        // Weights that are there are not loaded, and nothing is told of a load.
        let mut loading = Loading::until(0.0);
        work(&mut loading).unwrap();
        assert_eq!((loading.shares.len(), usage(&store).hits), (0, before.hits + 1));
    }
    assert_eq!(usage(&store).leased_bytes, 0);
}

#[test]
fn models_of_one_file_share_their_weights_and_a_budget_frees_the_idle_ones_of_others() {
    let _alone = alone();
    let store = WeightStore::new(Budget::Bytes(1 << 32));
    let [decode, .., clip, _] = &works(&store, MemoryLimit::from(1 << 32))[..] else { panic!("four works") };
    decode(&mut Quiet).unwrap();
    let picture = usage(&store);
    let (other, latents) = (flux().sharing(&store), latent([1, 16, 8, 8]));
    let job = DecodeJob::new(machine(), &other, &latents, 1_u64 << 32, Objective::Balanced).unwrap();
    job.run(&mut Scripted::new([single(Space::Whole)]), &mut Quiet).unwrap();
    assert_eq!((usage(&store).loads, usage(&store).hits), (1, 1), "the other model's");
    // There is room for one more byte: the picture's weights go.
    let budget = picture.idle_bytes + 1;
    store.set_budget(machine().device, Budget::Bytes(budget));
    clip(&mut Quiet).unwrap();
    let after = usage(&store);
    assert_eq!((after.loads, after.leased_bytes), (2, 0));
    assert!(after.evictions >= 1 && after.idle_bytes <= budget, "{after:?}");
}

#[test]
fn a_limit_that_counts_weights_has_them_in_estimates_and_peaks() {
    let _alone = alone();
    let store = WeightStore::new(Budget::Bytes(1 << 32));
    let bytes = 1 << 32;
    let aside = works(&store, MemoryLimit::from(bytes));
    let within = works(&store, MemoryLimit { bytes, counts_weights: true });
    for (number, (aside, within)) in aside.iter().zip(&within).enumerate() {
        aside(&mut Quiet).unwrap();
        let (aside, within) = (aside(&mut Quiet).unwrap(), within(&mut Quiet).unwrap());
        let model = &aside.request.model;
        // In f32 and channels first, the plan's types.
        let weights = model.parameter_bytes * 8 / u64::from(model.stored.bits()) * 4;
        let of = |record: &Record| (record.estimate.unwrap().peak_bytes, record.outcome.unwrap().peak_bytes);
        let ((estimate, peak), (full_estimate, full_peak)) = (of(&aside), of(&within));
        assert_eq!(full_estimate, estimate + weights, "{number}");
        assert!(full_peak.abs_diff(peak + weights) < 1 << 16, "{number}: {full_peak}, {peak} and {weights}");
        let text = |record: &Record| serde_json::to_string(record).unwrap();
        assert!(text(&within).contains(r#""limit_counts_weights":true"#));
        assert!(!text(&aside).contains("limit_counts_weights"), "records are as they were");
        assert_eq!(serde_json::from_str::<Record>(&text(&within)).unwrap().request, within.request);
    }
}

#[test]
fn a_limit_that_counts_weights_leaves_less_for_the_rest() {
    let _alone = alone();
    let (vae, latents) = (flux(), latent([1, 16, 40, 40]));
    let job = |bytes, counts_weights| {
        let limit = MemoryLimit { bytes, counts_weights };
        DecodeJob::new(machine(), &vae, &latents, limit, Objective::Balanced)
    };
    let (whole, tiled) = (single(Space::Whole), single(square(96, 16)));
    let run = |bytes, counts_weights| {
        let mut planner = Scripted::new([whole.clone(), tiled.clone()]);
        job(bytes, counts_weights).unwrap().run(&mut planner, &mut Quiet).unwrap().record
    };
    let ample = run(1 << 32, false);
    let peak = ample.outcome.unwrap().peak_bytes;
    let estimate =
        |counts_weights, plan: &Plan| job(1 << 32, counts_weights).unwrap().estimate(plan).unwrap().peak_bytes;
    let weights = estimate(true, &whole) - estimate(false, &whole);
    assert!(weights > 1 << 20, "{weights}");
    let limit = peak + weights / 2;
    assert_eq!(run(limit, false).attempts, []);
    let tight = run(limit, true);
    assert!(matches!(tight.attempts[0].failure, Failure::OutOfMemory { .. }), "{:?}", tight.attempts);
    assert_eq!(tight.plan, tiled);
    assert!(tight.outcome.unwrap().peak_bytes <= limit);

    let least = |counts_weights| match job(1 << 16, counts_weights).unwrap_err() {
        error @ Error::Refused(Refusal::DoesNotFit { least, .. }) => (least, error.to_string()),
        other => panic!("{other}"),
    };
    let ((aside, said_aside), (within, said_within)) = (least(false), least(true));
    assert!(within > aside, "{within} {aside}");
    assert!(said_within.contains(", weights included (tiles of") && !said_aside.contains("weights"), "{said_within}");
    assert!(job(within, true).is_ok() && job(aside, true).is_err());
}

#[test]
fn what_was_measured_with_weights_says_as_much_as_without() {
    let _alone = alone();
    let (vae, latents) = (flux(), latent([1, 16, 16, 16]));
    let job = |counts_weights| {
        let limit = MemoryLimit { bytes: 1 << 32, counts_weights };
        DecodeJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap()
    };
    let planner = || Scripted::new([single(Space::Whole)]);
    let records = [false, true].map(|counts| job(counts).run(&mut planner(), &mut Quiet).unwrap().record);
    let told = |counts_weights| {
        let mut planner = planner();
        job(counts_weights).with_history(&records).decide(&mut planner);
        planner.trials.iter().map(|trial| trial.outcome.peak_bytes).collect::<Vec<_>>()
    };
    let (aside, within) = (told(false), told(true));
    let weights = within[0] - aside[0];
    assert!(weights > 1 << 20);
    assert!(aside[0].abs_diff(aside[1]) < 1 << 16, "{aside:?}");
    assert!(within[0].abs_diff(within[1]) < 1 << 16, "{within:?}");
}

#[test]
fn weights_take_the_bytes_that_are_estimated() {
    let _alone = alone();
    let latents = latent([1, 16, 8, 8]);
    let by_type = |dtype| {
        let (vae, plan) = (flux(), plan(Space::Whole, 1, Precision::Uniform(dtype), Layout::ChannelsFirst));
        let peak = |limit| {
            let job = DecodeJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap();
            job.estimate(&plan).ok().map(|cost| cost.peak_bytes)
        };
        Some(peak(MemoryLimit { bytes: 1 << 32, counts_weights: true })? - peak(MemoryLimit::from(1 << 32))?)
    };
    let wide = by_type(Dtype::F32).unwrap();
    assert!(by_type(Dtype::Bf16).is_none_or(|narrow| wide == 2 * narrow), "{wide}");
    let held = || memory::of(Device::Cpu).unwrap().in_use as f64;
    let types = [Dtype::F32, Dtype::Bf16];
    let precisions = types.into_iter().flat_map(|dtype| [Precision::Uniform(dtype), Precision::Mixed(dtype)]);
    for (precision, layout) in
        precisions.flat_map(|precision| [Layout::ChannelsFirst, Layout::ChannelsLast].map(|layout| (precision, layout)))
    {
        let vae = flux();
        let job = |limit| DecodeJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap();
        let plan = plan(Space::Whole, 1, precision, layout);
        let within = job(MemoryLimit { bytes: 1 << 32, counts_weights: true });
        let Ok(estimate) = within.estimate(&plan) else { continue };
        let weights = estimate.peak_bytes - job(MemoryLimit::from(1 << 32)).estimate(&plan).unwrap().peak_bytes;
        let before = held();
        let finished = within.run(&mut Scripted::new([plan]), &mut Quiet).unwrap();
        drop(finished);
        let share = (held() - before) / weights as f64;
        assert!((0.99..1.02).contains(&share), "{precision} {layout}: {share} of {weights}");
    }
}
