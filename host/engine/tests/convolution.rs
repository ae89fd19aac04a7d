//! The option `convolution`: direct convolutions give the same picture by other arithmetic, at the
//! peak that was estimated.

mod scripted;

use scripted::{Quiet, Scripted, alone, latent, machine, plan, vae};
use tch::{Device, Kind, Tensor};
use tilewright_engine::{ClipJob, DecodeJob, EncodeJob, MemoryLimit, Overrides, Sink, VideoVaeFile};
use tilewright_fixtures::example;
use tilewright_plan::{
    CONVOLUTION, Capabilities, Cost, DIRECT, Dtype, Layout, Objective, Options, Outcome, Plan, Precision, Space, Time,
    Value,
};
use tilewright_torch::packed;

const F32: Precision = Precision::Uniform(Dtype::F32);

fn direct(plan: &Plan) -> Plan {
    Plan { options: Options::new(vec![(CONVOLUTION.into(), Value::Text(DIRECT.into()))]), ..plan.clone() }
}

/// True where the processor has filtered convolutions, which the offer says as well.
fn is_offered(capabilities: &Capabilities) -> bool {
    let offered = capabilities.options.iter().any(|option| option.name == CONVOLUTION);
    assert_eq!(offered, packed::has_products(Kind::Float), "{:?}", capabilities.options);
    offered
}

/// Fails unless direct convolutions hold fewer weights, and both peaks were estimated.
fn check([filtered, direct]: [(Cost, Outcome); 2]) {
    for (estimated, measured) in [filtered, direct] {
        let ratio = estimated.peak_bytes as f64 / measured.peak_bytes as f64;
        assert!(ratio > 0.95 && ratio < 1.35, "{ratio:.3}: {estimated:?} {measured:?}");
        assert_eq!(estimated.weights_bytes, measured.weights_bytes);
    }
    assert!(direct.1.weights_bytes < filtered.1.weights_bytes, "{:?} {:?}", direct.1, filtered.1);
}

/// Fails unless two results are of different arithmetic, and alike.
fn compare(filtered: &Tensor, direct: &Tensor) {
    let most = (filtered - direct).abs().max().double_value(&[]);
    assert!(most > 0.0 && most < 1e-4, "{most}");
}

#[test]
fn pictures_are_decoded_and_encoded_by_direct_convolutions() {
    let _alone = alone();
    let vae = vae(&example("models/flux-tiny/ae.safetensors"));
    let limit = MemoryLimit { bytes: 1 << 32, counts_weights: true };
    let latents = latent([1, 16, 24, 27]);
    let job = DecodeJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap();
    if !is_offered(job.capabilities()) {
        return;
    }
    let filtered = plan(Space::Whole, 1, F32, Layout::ChannelsLast);
    let run = |plan: Plan| {
        let finished = job.run(&mut Scripted::new([plan.clone()]), &mut Quiet).unwrap();
        (finished.output, (job.estimate(&plan).unwrap(), finished.record.outcome.unwrap()))
    };
    let [(one, of_one), (other, of_other)] = [filtered.clone(), direct(&filtered)].map(run);
    compare(&one, &other);
    check([of_one, of_other]);
    // In the other memory order all convolutions are direct ones.
    let first = plan(Space::Whole, 1, F32, Layout::ChannelsFirst);
    let [(one, of_one), (other, of_other)] = [first.clone(), direct(&first)].map(run);
    assert_eq!((one, of_one.0), (other, of_other.0));

    let pictures = Tensor::arange(3 * 96 * 96, (Kind::Float, Device::Cpu)).sin().reshape([1, 3, 96, 96]);
    let job = EncodeJob::new(machine(), &vae, &pictures, limit, Objective::Balanced).unwrap();
    assert!(is_offered(job.capabilities()));
    let run = |plan: Plan| {
        let finished = job.run(&mut Scripted::new([plan.clone()]), &mut Quiet).unwrap();
        (finished.output, (job.estimate(&plan).unwrap(), finished.record.outcome.unwrap()))
    };
    let [(one, of_one), (other, of_other)] = [filtered.clone(), direct(&filtered)].map(run);
    compare(&one, &other);
    check([of_one, of_other]);
}

/// Keeps the frames.
#[derive(Default)]
struct Frames(Vec<Tensor>);

impl Sink for Frames {
    fn frames(
        &mut self,
        _sample: u32,
        _first: u32,
        frames: &Tensor,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.push(frames.copy());
        Ok(())
    }
}

#[test]
fn clips_are_decoded_by_direct_convolutions() {
    let _alone = alone();
    let path = example("models/wan-tiny/Wan2.1_VAE.safetensors");
    let vae = VideoVaeFile::open(&path, Overrides::default()).unwrap();
    let shape = [1, vae.config.latent_channels as i64, 3, 12, 13];
    let latents = Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, Device::Cpu)) * 0.7;
    let latents = latents.sin().reshape(shape);
    let limit = MemoryLimit { bytes: 1 << 32, counts_weights: true };
    let job = ClipJob::new(machine(), &vae, &latents, limit, Objective::Balanced).unwrap();
    if !is_offered(job.capabilities()) {
        return;
    }
    let filtered = Plan { time: Time::Carried { frames: 4 }, ..plan(Space::Whole, 1, F32, Layout::ChannelsLast) };
    let run = |plan: Plan| {
        let mut frames = Frames::default();
        let finished = job.run(&mut Scripted::new([plan.clone()]), &mut Quiet, &mut frames, &[]).unwrap();
        (Tensor::cat(&frames.0, 0), (job.estimate(&plan).unwrap(), finished.record.outcome.unwrap()))
    };
    let [(one, of_one), (other, of_other)] = [filtered.clone(), direct(&filtered)].map(run);
    compare(&one, &other);
    check([of_one, of_other]);
}
