//! Cancellation within the operations of each stage, between two reports of progress.

mod scripted;

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use scripted::{Script, Scripted, alone, flux, latent, machine, plan, vae};
use tch::{Device, Kind, Tensor};
use tilewright_engine::{
    Budget, Cancelled, ConditioningTensors, DecodeJob, DenoiseJob, Denoiser, EncodeJob, Error, Observer, Prompt,
    Sampling, StopCheck, TextJob, Texts, WeightStore,
};
use tilewright_fixtures::{example, fixture};
use tilewright_models::{Checkpoint, DenoiserFile, EncoderFile};
use tilewright_plan::{
    Denoise, DenoisePlan, Dtype, Layout, Objective, Place, Precision, Space, Text, TextPlan, WeightForm,
};
use tilewright_sampling::ModelSampling;
use tilewright_torch::memory;

/// Wishes for the end at a look.
struct Stops {
    at: usize,
    looks: Arc<AtomicUsize>,
    reports: usize,
}

impl Observer for Stops {
    fn stop_check(&self) -> Option<StopCheck> {
        let (at, looks) = (self.at, self.looks.clone());
        Some(Arc::new(move || looks.fetch_add(1, Ordering::SeqCst) + 1 >= at))
    }

    fn progress(&mut self, _: f64) -> ControlFlow<Cancelled> {
        self.reports += 1;
        ControlFlow::Continue(())
    }
}

/// Runs work that is to end at a look: its error, the looks, and the reports of progress.
fn run(work: &dyn Fn(&mut dyn Observer) -> Option<Error>, at: usize) -> (Option<Error>, usize, usize) {
    let mut stops = Stops { at, looks: Arc::default(), reports: 0 };
    let ended = work(&mut stops);
    (ended, stops.looks.load(Ordering::SeqCst), stops.reports)
}

fn ends_soon(stage: &str, work: &dyn Fn(&mut dyn Observer) -> Option<Error>) {
    // Kernels that are tried at their first use look, too.
    run(work, usize::MAX);
    let in_use = || memory::of(Device::Cpu).unwrap().in_use;
    let before = in_use();
    let (ended, looks, reports) = run(work, usize::MAX);
    assert!(ended.is_none(), "{stage}: {ended:?}");
    assert!(looks > 3 * reports, "{stage}: {looks} looks, {reports} reports");
    for at in [1, looks / 3, looks / 2, looks] {
        let (ended, seen, _) = run(work, at);
        assert!(matches!(ended, Some(Error::Interrupted)), "{stage} at {at} of {looks}: {ended:?}");
        assert_eq!(seen, at, "{stage}: it goes on");
        assert_eq!(in_use(), before, "{stage}");
    }
}

#[test]
fn every_stage_ends_at_the_look_at_which_it_is_cancelled() {
    let _alone = alone();
    let precisions = [Precision::Uniform(Dtype::F32), Precision::Mixed(Dtype::Bf16)];
    let none = WeightStore::new(Budget::Bytes(0));
    let file = Arc::new(Checkpoint::open_part(&fixture("text-t5"), &[]).unwrap());
    let encoder = Arc::new(EncoderFile::find_all(&file).unwrap().remove(0));
    let ids: Vec<u32> = (0..64).collect();
    let embedded = [encoder.add_positions(&encoder.embed(&ids).unwrap().unsqueeze(0)).unwrap()];
    for precision in precisions {
        for weights in [WeightForm::Packed, WeightForm::Expanded] {
            ends_soon("text", &|observer| {
                let texts = Texts { encoder: &encoder, weights: &none, embedded: &embedded, left_out: 1 };
                let job = TextJob::new(machine(), None, texts, 1 << 34, Objective::Balanced).unwrap();
                let plan = TextPlan { precision, weights, ..TextPlan::plain(Place::Host) };
                job.run(&mut Script::<Text>::new([plan]), observer).err().map(|unfinished| unfinished.error)
            });
        }
    }
    let transformer = Checkpoint::open(&fixture("sample-flux-original/flux1-tiny.safetensors")).unwrap();
    let denoiser = Denoiser::single(DenoiserFile::open(transformer).unwrap()).sharing(&none);
    let sampling = sampling();
    for precision in precisions {
        for weights in [WeightForm::Packed, WeightForm::Expanded] {
            ends_soon("denoise", &|observer| {
                let job = DenoiseJob::new(machine(), &denoiser, &sampling, 1 << 32, Objective::Balanced).unwrap();
                let plan = DenoisePlan { precision, weights, ..DenoisePlan::plain() };
                let ended = job.run(&mut Script::<Denoise>::new([plan]), None, observer);
                ended.err().map(|unfinished| unfinished.error)
            });
        }
    }
    let (decoder, latents) = (flux(), latent([1, 16, 16, 16]));
    let bundled = vae(&example("models/flux-tiny/ae.safetensors"));
    let pictures = latent([1, 3, 128, 128]);
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        let plan = || Scripted::new([plan(Space::Whole, 1, Precision::Uniform(Dtype::F32), layout)]);
        ends_soon("decode", &|observer| {
            let job = DecodeJob::new(machine(), &decoder, &latents, 1_u64 << 32, Objective::Balanced).unwrap();
            job.run(&mut plan(), observer).err().map(|unfinished| unfinished.error)
        });
        ends_soon("encode", &|observer| {
            let job = EncodeJob::new(machine(), &bundled, &pictures, 1_u64 << 32, Objective::Balanced).unwrap();
            job.run(&mut plan(), observer).err().map(|unfinished| unfinished.error)
        });
    }
}

fn sampling() -> Sampling {
    let values =
        |shape: &[i64]| Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, Device::Cpu)).sin().reshape(shape);
    let tensors = ConditioningTensors { text: values(&[1, 9, 32]), pooled: Some(values(&[1, 24])), image: None };
    Sampling {
        latents: values(&[1, 16, 24, 24]),
        noise: None,
        positive: vec![Prompt::whole(tensors)],
        negative: Vec::new(),
        condition: None,
        kept: None,
        guidance: Some(3.5),
        cfg: 1.0,
        sigmas: vec![1.0, 0.5, 0.0],
        sampler: "euler".parse().unwrap(),
        model: ModelSampling::shifted(3.0),
        whole_timesteps: false,
        reuse: None,
        seeds: vec![7],
    }
}
