//! The video decoder against diffusers, on the fixtures that
//! `tests/fixtures/make_video_fixtures.py` made.

#![cfg(feature = "torch")]

use std::path::Path;

use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tilewright_fixtures::fixture;
use tilewright_models::{
    Checkpoint, ComputeFormat, DecoderConfig, HalfConfig, Identity, Latent,
    wan_vae::{Clip, Config, Decoder, Spread},
};
use tilewright_plan::{Dtype, Layout, Precision};

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(fixture("video_cases.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["cases"].as_array().unwrap().clone()
}

/// A case's decoder, its latents [N, C, T, h, w] and what diffusers makes of them, [N, 3, T, H, W].
struct Case {
    name: String,
    decoder: Decoder,
    latents: Tensor,
    expected: Tensor,
}

impl Case {
    fn open(case: &Value, precision: Precision, layout: Layout) -> Self {
        let file = Checkpoint::open(&fixture(case["vae"].as_str().unwrap())).unwrap();
        let identity = Identity::of_decoder(&file).unwrap();
        let config = Config::read(&file, &identity).unwrap();
        let tensor = case["tensor"].as_str().filter(|_| case["tensors"].as_u64().unwrap() > 1);
        let mut latent = Latent::read(&fixture(case["latent"].as_str().unwrap()), tensor).unwrap();
        latent.check(&config).unwrap();
        if case["scaled"].as_bool().unwrap() {
            latent.unscale(&config.scaling().unwrap()).unwrap();
        }
        let format = ComputeFormat::new(precision, layout).unwrap();
        let decoder = Decoder::load(&file, &identity, &config, format, Device::Cpu).unwrap();
        let reference = Checkpoint::open(&fixture(case["reference"].as_str().unwrap())).unwrap();
        let shape = reference.shape("sample").unwrap().to_vec();
        let mut expected = reference.load("sample", &shape, Kind::Float, Device::Cpu).unwrap();
        if expected.dim() == 4 {
            expected = expected.unsqueeze(2);
        }
        Self { name: case["name"].as_str().unwrap().to_owned(), decoder, latents: latent.values, expected }
    }

    fn spread(&self, frames: u32, band: Option<u32>) -> Spread {
        Spread { frames, band, height: self.expected.size()[3] as u32 }
    }

    /// All samples, `chunk` latent frames at a time.
    fn decode(&self, chunk: i64, spread: &Spread) -> Tensor {
        let samples = self.latents.size()[0];
        let clips: Vec<Tensor> =
            (0..samples).map(|sample| self.sample(sample, Clip::default(), chunk, spread)).collect();
        Tensor::stack(&clips, 0)
    }

    /// [3, T, H, W]
    fn sample(&self, sample: i64, mut clip: Clip, chunk: i64, spread: &Spread) -> Tensor {
        let latents = self.latents.narrow(0, sample, 1);
        let count = latents.size()[2];
        let mut frames = Vec::new();
        while i64::from(clip.frames_pushed()) < count {
            let start = i64::from(clip.frames_pushed());
            let part = latents.narrow(2, start, chunk.min(count - start));
            let mut last = 0.0;
            let mut step = |share: f64| {
                assert!(share >= last && share <= 1.0, "{}: progress goes forward", self.name);
                last = share;
                Ok(())
            };
            let mut emit = |part| {
                frames.push(part);
                Ok(())
            };
            self.decoder.push(&mut clip, Some(&part), spread, &mut step, &mut emit).unwrap();
            assert!(clip.is_settled() && (last - 1.0).abs() < 1e-9, "{}: progress ends at 1, not {last}", self.name);
        }
        Tensor::cat(&frames, 0).transpose(0, 1)
    }
}

fn largest(tensor: &Tensor) -> f64 {
    f64::try_from(tensor.abs().max()).unwrap()
}

const F32: Precision = Precision::Uniform(Dtype::F32);

#[test]
fn whole_clips_agree_with_diffusers_in_both_memory_orders() {
    let _no_grad = tch::no_grad_guard();
    for case in cases() {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let case = Case::open(&case, F32, layout);
            let found = case.decode(i64::MAX, &case.spread(u32::MAX, None));
            assert_eq!(found.size(), case.expected.size(), "{}", case.name);
            let difference = largest(&(&found - &case.expected));
            assert!(difference <= 1e-4, "{} {layout}: {difference}", case.name);
        }
    }
}

/// WAN 2.1's decoder with the last convolution's channels four times each, as those of twice the
/// size have them, and with another bias for each pixel of a square.
fn upscaling(path: &Path, offsets: [f32; 4]) {
    let file = std::fs::read(fixture("wan21-original/Wan2.1_VAE.safetensors")).unwrap();
    let length = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let mut data = Vec::new();
    for (name, tensor) in header.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        let at = |place: usize| 8 + length + tensor["data_offsets"][place].as_u64().unwrap() as usize;
        let bytes = &file[at(0)..at(1)];
        let start = data.len();
        match name.as_str() {
            "decoder.head.2.weight" => bytes.chunks(bytes.len() / 3).for_each(|channel| data.extend(channel.repeat(4))),
            "decoder.head.2.bias" => {
                // In f32, where sums are exact.
                let biases = bytes.as_chunks().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32());
                let biases = biases.flat_map(|bias| offsets.map(|offset| bias + offset));
                biases.for_each(|bias| data.extend(bias.to_le_bytes()));
                tensor["dtype"] = "F32".into();
            }
            _ => data.extend(bytes),
        }
        if name.starts_with("decoder.head.2.") {
            tensor["shape"][0] = 12.into();
        }
        tensor["data_offsets"] = vec![start, data.len()].into();
    }
    let header = Value::from(header).to_string();
    std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
}

#[test]
fn a_decoder_of_twice_the_size_lays_its_squares_out_as_pixel_shuffle() {
    let _no_grad = tch::no_grad_guard();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("Wan2.1_VAE_upscale2x.safetensors");
    let offsets = [-0.3, -0.1, 0.15, 0.4];
    upscaling(&path, offsets);
    let mut case = cases().into_iter().find(|case| case["name"] == "wan21-original-17").unwrap();
    let plain = Case::open(&case, F32, Layout::ChannelsFirst);
    let plain = plain.decode(i64::MAX, &plain.spread(u32::MAX, None));
    case["vae"] = path.to_str().unwrap().into();
    let large = Case::open(&case, F32, Layout::ChannelsFirst);
    assert_eq!((large.decoder.config().spatial_scale(), large.decoder.config().image_channels), (16, 3));
    let pixels = offsets.map(|offset| &plain + f64::from(offset));
    // [N, 3, T, H, W] four times → [N · T, 12, H, W] → [N, 3, T, 2 · H, 2 · W]
    let channels = Tensor::stack(&pixels, 2).permute([0, 3, 1, 2, 4, 5]).flatten(2, 3).flatten(0, 1);
    let mut size = plain.size();
    size[3] *= 2;
    size[4] *= 2;
    let expected = channels.pixel_shuffle(2).clamp(-1.0, 1.0);
    let expected = expected.reshape([size[0], size[2], size[1], size[3], size[4]]).transpose(1, 2);
    // Nothing is known of pixels that were cut off at the ends.
    let known = plain.abs().lt(1.0).repeat_interleave_self_int(2, 3, None).repeat_interleave_self_int(2, 4, None);
    assert!(f64::try_from(known.to_kind(Kind::Float).mean(Kind::Float)).unwrap() > 0.5);
    for (chunk, frames, band) in [(i64::MAX, u32::MAX, None), (2, 3, Some(16))] {
        let found = large.decode(chunk, &Spread { frames, band, height: size[3] as u32 });
        assert_eq!(found.size(), size);
        let apart = largest(&((&found - &expected) * &known));
        assert!(apart < 1e-5, "chunks of {chunk}: {apart}");
    }
}

#[test]
fn chunks_and_bands_of_any_size_give_the_whole_clip() {
    let _no_grad = tch::no_grad_guard();
    for case in cases() {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let case = Case::open(&case, F32, layout);
            let whole = case.decode(i64::MAX, &case.spread(u32::MAX, None));
            for (chunk, frames, band) in
                [(1, 1, None), (2, 8, None), (3, 2, Some(16)), (5, 12, Some(40)), (1, 4, Some(8))]
            {
                let found = case.decode(chunk, &case.spread(frames, band));
                let difference = largest(&(&found - &whole));
                assert!(
                    difference <= 1e-5,
                    "{} {layout}, chunks of {chunk}, {frames}, {band:?}: {difference}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn a_clip_goes_on_from_any_frame() {
    let _no_grad = tch::no_grad_guard();
    let case = cases().into_iter().find(|case| case["name"] == "wan21-original-17").unwrap();
    let wide = cases().into_iter().find(|case| case["name"] == "wan22-original").unwrap();
    for case in [case, wide] {
        let case = Case::open(&case, F32, Layout::ChannelsLast);
        // A clip long enough that its beginning does not matter to its end.
        let latents = Tensor::cat(&vec![&case.latents; 40 / case.latents.size()[2] as usize], 2);
        let long = Case { latents, ..case };
        let spread = long.spread(4, None);
        let whole = long.sample(0, Clip::default(), 2, &spread);
        let frames = whole.size()[1];
        for done in [1, 2, 7, 30, frames - 5, frames - 1] {
            let clip = Clip::from_frame(long.decoder.config(), done as u32);
            if done > frames - 8 {
                assert!(clip.frames_pushed() > 0, "nothing is left out");
            }
            let rest = long.sample(0, clip, 3, &spread);
            assert_eq!(rest.size()[1], frames - done);
            let difference = largest(&(rest - whole.narrow(1, done, frames - done)));
            assert!(difference <= 1e-5, "{} from {done}: {difference}", long.name);
        }
    }
}

#[test]
fn what_was_interrupted_goes_on_where_it_was() {
    let _no_grad = tch::no_grad_guard();
    for name in ["wan21-original-17", "wan22-diffusers"] {
        let case = cases().into_iter().find(|case| case["name"] == name).unwrap();
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let case = Case::open(&case, F32, layout);
            let whole = case.sample(0, Clip::default(), 2, &case.spread(8, None));
            for patience in [1, 7, 20] {
                let latents = case.latents.narrow(0, 0, 1);
                let count = latents.size()[2];
                let (mut clip, mut frames) = (Clip::default(), Vec::new());
                for start in (0..count).step_by(2) {
                    let part = latents.narrow(2, start, 2.min(count - start));
                    let mut latents = Some(&part);
                    let mut turn = 0;
                    loop {
                        // Fewer frames at once and other bands each time, as after running out of
                        // memory.
                        let spread = case.spread([8, 4, 2, 1][turn % 4], [None, Some(16)][turn % 2]);
                        let mut steps = 0;
                        let mut step = |_| {
                            steps += 1;
                            match steps > patience {
                                true => Err(tilewright_torch::Error::OutOfMemory { bytes: 1 }.into()),
                                false => Ok(()),
                            }
                        };
                        let mut emit = |part| {
                            frames.push(part);
                            Ok(())
                        };
                        let outcome = case.decoder.push(&mut clip, latents.take(), &spread, &mut step, &mut emit);
                        turn += 1;
                        if outcome.is_ok() {
                            break;
                        }
                        assert!(!clip.is_settled() || steps > patience);
                    }
                }
                let found = Tensor::cat(&frames, 0).transpose(0, 1);
                let difference = largest(&(found - &whole));
                assert!(difference <= 1e-5, "{name} {layout}, {patience}: {difference}");
            }
        }
    }
}

#[test]
fn half_types_come_close() {
    let _no_grad = tch::no_grad_guard();
    let case = cases().into_iter().find(|case| case["name"] == "wan21-original-17").unwrap();
    for precision in [Precision::Uniform(Dtype::Bf16), Precision::Mixed(Dtype::Bf16)] {
        let case = Case::open(&case, precision, Layout::ChannelsLast);
        let whole = case.decode(i64::MAX, &case.spread(u32::MAX, None));
        let noise = f64::try_from((&whole - &case.expected).square().mean(Kind::Double)).unwrap().sqrt();
        assert!(noise < 0.02, "{precision}: {noise}");
        let chunks = case.decode(1, &case.spread(4, Some(16)));
        assert!(largest(&(&chunks - &whole)) < 0.05, "{}", largest(&(&chunks - &whole)));
    }
}
