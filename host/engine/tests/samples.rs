//! Samples: their weights on lease, their memory against its estimate, and ways on after failures.

mod scripted;

use scripted::{Quiet, Script, alone, machine};
use tch::{Device, Kind, Tensor};
use tilewright_engine::{
    Budget, ConditioningTensors, DenoiseJob, Denoiser, Finished, Prompt, Sampled, Sampling, Usage, WeightStore,
};
use tilewright_fixtures::fixture;
use tilewright_models::{Checkpoint, DenoiserFile};
use tilewright_plan::{Denoise, DenoisePlan, Dtype, Failure, Objective, Precision, WeightForm};
use tilewright_sampling::{ModelSampling, Sampler};
use tilewright_torch::memory;

fn file(name: &str) -> DenoiserFile {
    DenoiserFile::open(Checkpoint::open(&fixture(name)).unwrap()).unwrap()
}

fn flux(store: &WeightStore) -> Denoiser {
    Denoiser::single(file("sample-flux-original/flux1-tiny.safetensors")).sharing(store)
}

fn wan_experts(store: &WeightStore) -> Denoiser {
    let names =
        ["sample-wan-t2v-original/wan-tiny.safetensors", "sample-wan22-t2v-experts/wan-tiny-low-noise.safetensors"];
    let [high, low] = names.map(file);
    Denoiser::experts(high, low, 0.875).unwrap().sharing(store)
}

/// Values that look random and are always the same.
fn values(shape: &[i64]) -> Tensor {
    let count: i64 = shape.iter().product();
    Tensor::arange(count, (Kind::Float, Device::Cpu)).sin().reshape(shape)
}

fn sampling(latents: &[i64], text: &[i64], pooled: Option<&[i64]>) -> Sampling {
    let tensors = ConditioningTensors { text: values(text), pooled: pooled.map(values), image: None };
    Sampling {
        latents: values(latents),
        noise: None,
        positive: vec![Prompt::whole(tensors)],
        negative: Vec::new(),
        condition: None,
        kept: None,
        guidance: pooled.map(|_| 3.5),
        cfg: 1.0,
        sigmas: vec![1.0, 0.9, 0.5, 0.2, 0.0],
        sampler: "euler".parse::<Sampler>().unwrap(),
        model: ModelSampling::shifted(3.0),
        whole_timesteps: false,
        reuse: None,
        seeds: vec![7],
    }
}

fn flux_sampling() -> Sampling {
    sampling(&[1, 16, 48, 48], &[1, 9, 32], Some(&[1, 24]))
}

fn wan_sampling() -> Sampling {
    sampling(&[1, 16, 3, 24, 24], &[1, 18, 16], None)
}

/// A plan whose weights lie in memory in f32.
fn expanded() -> DenoisePlan {
    DenoisePlan { weights: WeightForm::Expanded, ..DenoisePlan::plain() }
}

fn job<'a>(denoiser: &'a Denoiser, sampling: &'a Sampling, memory_limit: u64) -> DenoiseJob<'a> {
    DenoiseJob::new(machine(), denoiser, sampling, memory_limit, Objective::Balanced).unwrap()
}

fn run(job: &DenoiseJob<'_>, plans: &[DenoisePlan]) -> Finished<Sampled, Denoise> {
    let mut planner = Script::<Denoise>::new(plans.iter().cloned());
    job.run(&mut planner, None, &mut Quiet).map_err(|unfinished| unfinished.error).unwrap()
}

fn usage(store: &WeightStore) -> Usage {
    store.usage(Device::Cpu)
}

#[test]
fn two_equal_samples_load_once() {
    let _alone = alone();
    let store = WeightStore::new(Budget::Bytes(1 << 30));
    let (denoiser, sampling) = (flux(&store), flux_sampling());
    let before = memory::of(Device::Cpu).unwrap().in_use;
    let job = job(&denoiser, &sampling, 1 << 32);
    let expected = job.estimate(&expanded()).unwrap();
    let first = run(&job, &[expanded()]);
    let second = run(&job, &[expanded()]);
    assert_eq!((usage(&store).loads, usage(&store).hits), (1, 1));
    assert!(first.output.latents.equal(&second.output.latents));
    for finished in [&first, &second] {
        let outcome = finished.record.outcome.unwrap();
        assert_eq!(outcome.weights_bytes, expected.weights_bytes);
        let ratio = outcome.peak_bytes as f64 / expected.peak_bytes as f64;
        assert!((0.95..=1.05).contains(&ratio), "{outcome:?} {expected:?}");
    }
    drop((first, second));
    denoiser.release();
    assert_eq!(memory::of(Device::Cpu).unwrap().in_use, before);
}

#[test]
fn the_price_of_a_batch_counts_each_of_its_groups() {
    let _alone = alone();
    let store = WeightStore::new(Budget::Last);
    let denoiser = flux(&store);
    let step = |batch: i64| {
        let sampling =
            Sampling { seeds: vec![7; batch as usize], ..sampling(&[batch, 16, 48, 48], &[1, 9, 32], Some(&[1, 24])) };
        let plan = DenoisePlan { samples: Some(1), ..expanded() };
        job(&denoiser, &sampling, 1 << 32).estimate(&plan).unwrap().step.as_secs_f64()
    };
    let ratio = step(8) / step(2);
    assert!((3.0..=4.5).contains(&ratio), "{ratio}");
}

#[test]
fn a_retry_in_the_same_residency_loads_nothing() {
    let _alone = alone();
    let store = WeightStore::new(Budget::Last);
    let (denoiser, sampling) = (flux(&store), flux_sampling());
    let (whole, parts) = (expanded(), DenoisePlan { feed_forward: 8, ..expanded() });
    let held = |plan: &DenoisePlan| job(&denoiser, &sampling, 1 << 32).estimate(plan).unwrap().held_bytes();
    let limit = (held(&whole) + held(&parts)) / 2;
    assert!(held(&parts) < limit && limit < held(&whole));
    let expected = run(&job(&denoiser, &sampling, 1 << 32), std::slice::from_ref(&parts)).output.latents;
    denoiser.release();
    let loads = usage(&store).loads;
    let finished = run(&job(&denoiser, &sampling, limit), &[whole, parts]);
    let attempt = &finished.record.attempts[0];
    assert!(matches!(attempt.failure, Failure::OutOfMemory { .. }), "{}", attempt.failure);
    assert_eq!((usage(&store).loads - loads, usage(&store).hits), (1, 1));
    assert_eq!(finished.record.outcome.unwrap().attempts, 2);
    assert!(finished.output.latents.equal(&expected));
}

#[test]
fn another_type_takes_the_place_of_the_first_one() {
    let _alone = alone();
    let store = WeightStore::new(Budget::Last);
    let (denoiser, sampling) = (flux(&store), flux_sampling());
    let job = job(&denoiser, &sampling, 1 << 32);
    run(&job, &[expanded()]);
    let wide = usage(&store).idle_bytes;
    run(&job, &[DenoisePlan { precision: Precision::Mixed(Dtype::Bf16), ..expanded() }]);
    let usage = usage(&store);
    assert_eq!((usage.loads, usage.hits, usage.evictions), (2, 0, 1));
    assert!(usage.idle_bytes < wide * 6 / 10, "{usage:?}");
}

#[test]
fn experts_stay_where_there_is_room_and_count_one_by_one() {
    let _alone = alone();
    for (budget, hits) in [(Budget::Last, 0), (Budget::Room { own: 0, lent: 1 << 32 }, 2)] {
        let store = WeightStore::new(budget);
        let (denoiser, sampling) = (wan_experts(&store), wan_sampling());
        let expected = job(&denoiser, &sampling, 1 << 32).estimate(&expanded()).unwrap();
        // The limit has room for one expert.
        let job = job(&denoiser, &sampling, expected.held_bytes() * 21 / 20);
        let first = run(&job, &[expanded()]);
        let second = run(&job, &[expanded()]);
        assert!(first.output.latents.equal(&second.output.latents));
        assert_eq!(usage(&store).hits, hits, "{budget:?}");
        for finished in [first, second] {
            assert!(finished.record.attempts.is_empty(), "{:?}", finished.record.attempts);
            let outcome = finished.record.outcome.unwrap();
            let ratio = outcome.peak_bytes as f64 / expected.peak_bytes as f64;
            assert!((0.95..=1.05).contains(&ratio), "{budget:?} {outcome:?} {expected:?}");
        }
    }
}

#[test]
fn models_that_have_no_room_together_take_turns() {
    let _alone = alone();
    let sampling = [flux_sampling(), wan_sampling()];
    let alone_with = |store: &WeightStore| [flux(store), wan_experts(store)];
    let ample = WeightStore::new(Budget::Last);
    let [flux, wan] = alone_with(&ample);
    let held = [(&flux, &sampling[0]), (&wan, &sampling[1])].map(|(denoiser, sampling)| {
        job(denoiser, sampling, 1 << 32).estimate(&expanded()).unwrap().held_bytes() * 21 / 20
    });
    // Each job may hold all that there is, and each model's weights fit alone.
    let most = held.into_iter().max().unwrap();
    let store = WeightStore::new(Budget::Room { own: 0, lent: most });
    let [flux, wan] = alone_with(&store);
    for _ in 0..2 {
        for (denoiser, sampling, held) in [(&flux, &sampling[0], held[0]), (&wan, &sampling[1], held[1])] {
            let before = memory::of(Device::Cpu).unwrap().in_use;
            let finished = run(&job(denoiser, sampling, held), &[expanded()]);
            assert!(finished.record.attempts.is_empty());
            let usage = usage(&store);
            assert!(usage.idle_bytes <= most && usage.reserved_bytes == 0, "{usage:?}");
            assert!(memory::of(Device::Cpu).unwrap().in_use <= before + most);
        }
    }
    assert!(usage(&store).evictions > 0);
}
