//! The encoder against diffusers, on the fixtures that `tests/fixtures/make_fixtures.py` made.

#![cfg(feature = "torch")]

use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tilewright_fixtures::{example, fixture};
use tilewright_models::{
    Checkpoint, ComputeFormat, Error, HalfConfig, Identity,
    kl::{Config, Encoder, EncoderConfig},
};
use tilewright_plan::{Dtype, Layout, Precision};

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(fixture("cases.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["encodes"].as_array().unwrap().clone()
}

/// The only tensor of a file.
fn only(path: &str) -> Tensor {
    let file = Checkpoint::open(&fixture(path)).unwrap();
    let name = file.names().next().unwrap().to_owned();
    let shape = file.shape(&name).unwrap().to_vec();
    file.load(&name, &shape, Kind::Float, Device::Cpu).unwrap()
}

fn open(path: &Path) -> (Checkpoint, Identity) {
    let file = Checkpoint::open(path).unwrap();
    let identity = Identity::of_decoder(&file).unwrap();
    (file, identity)
}

fn encoder(vae: &str, precision: Precision, layout: Layout) -> Encoder {
    let (file, identity) = open(&fixture(vae));
    let config = EncoderConfig::read(&file, &identity).unwrap();
    let format = ComputeFormat::new(precision, layout).unwrap();
    Encoder::load(&file, &identity, &config, format, Device::Cpu).unwrap()
}

fn encode(case: &Value, precision: Precision, layout: Layout) -> Tensor {
    let _no_grad = tch::no_grad_guard();
    let encoder = encoder(case["vae"].as_str().unwrap(), precision, layout);
    let mut last = 0.0_f64;
    let output = encoder.forward(&only(case["picture"].as_str().unwrap()), &mut |share| {
        assert!(share >= last, "progress goes forward");
        last = share;
        Ok(())
    });
    assert!((last - 1.0).abs() < 1e-9, "progress ends at 1, not {last}");
    output.unwrap()
}

fn largest(tensor: &Tensor) -> f64 {
    f64::try_from(tensor.abs().max()).unwrap()
}

#[test]
fn encodes_in_f32_agree_with_diffusers_in_both_memory_orders() {
    let cases = cases();
    assert!(cases.len() >= 4);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let expected = only(case["reference"].as_str().unwrap());
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let found = encode(&case, Precision::Uniform(Dtype::F32), layout);
            assert_eq!(found.size(), expected.size(), "{name}");
            assert!(found.is_contiguous());
            let difference = largest(&(found - &expected));
            let tolerance = 1e-4 * largest(&expected).max(1.0);
            assert!(difference <= tolerance, "{name} {layout}: {difference} > {tolerance}");
        }
    }
}

#[test]
fn half_and_mixed_encodes_stay_near_f32() {
    let case = cases().into_iter().find(|case| case["name"] == "encode-sd15-diffusers").unwrap();
    let expected = only(case["reference"].as_str().unwrap());
    let power = f64::try_from(expected.square().mean(Kind::Float)).unwrap();
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        let decibels = |precision| {
            let error = f64::try_from((encode(&case, precision, layout) - &expected).square().mean(Kind::Float));
            10.0 * (power / error.unwrap()).log10()
        };
        let [bf16, mixed, half] =
            [Precision::Uniform(Dtype::Bf16), Precision::Mixed(Dtype::Bf16), Precision::Mixed(Dtype::F16)]
                .map(decibels);
        println!("{layout}: bf16 {bf16:.1} dB, mixed bf16 {mixed:.1} dB, mixed f16 {half:.1} dB");
        assert!(bf16 > 25.0 && mixed > 32.0 && half > 45.0, "{layout}: {bf16} {mixed} {half}");
    }
}

#[test]
fn architectures_are_read_off_names_and_shapes() {
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let (file, identity) = open(&fixture(case["vae"].as_str().unwrap()));
        let config = EncoderConfig::read(&file, &identity).unwrap();
        let widths: Vec<u64> = config.down_blocks.iter().map(|block| block.channels as u64).collect();
        let expected: Vec<u64> =
            case["block_out_channels"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect();
        assert_eq!(widths, expected, "{name}");
        let layers = case["layers_per_block"].as_u64().unwrap() as usize;
        assert!(config.down_blocks.iter().all(|block| block.layers == layers), "{name}");
        assert_eq!(u64::from(config.spatial_scale()), case["spatial_scale"].as_u64().unwrap(), "{name}");
        assert_eq!(config.latent_channels as u64, case["latent_channels"].as_u64().unwrap(), "{name}");
        assert_eq!((config.image_channels, config.middle_layers), (3, 2), "{name}");
        let decoder = Config::read(&file, &identity).unwrap();
        let model = config.model(decoder.family, &file, &identity);
        assert_eq!(model.stored.name(), case["stored"].as_str().unwrap(), "{name}");
        assert_ne!(model.parameter_bytes, decoder.model(decoder.family, &file, &identity).parameter_bytes, "{name}");
        config.check_weights(&file, &identity).unwrap();
    }
}

#[test]
fn the_bundled_model_gives_its_own_pictures_back() {
    let _no_grad = tch::no_grad_guard();
    let path = example("models/flux-tiny/ae.safetensors");
    let (file, identity) = open(&path);
    let format = ComputeFormat::new(Precision::Uniform(Dtype::F32), Layout::ChannelsLast).unwrap();
    let config = Config::read(&file, &identity).unwrap();
    let decoder = tilewright_models::kl::Decoder::load(&file, &identity, &config, format, Device::Cpu).unwrap();
    let encoder = EncoderConfig::read(&file, &identity).unwrap();
    let encoder = Encoder::load(&file, &identity, &encoder, format, Device::Cpu).unwrap();
    let latent = tilewright_models::Latent::read(&example("latents/astronaut.latent"), None);
    let latent = latent.unwrap().pictures().unwrap();
    let picture = decoder.forward(&latent, None, &mut |_| Ok(())).unwrap().clamp(-1.0, 1.0);
    let back = encoder.forward(&picture, &mut |_| Ok(())).unwrap();
    assert_eq!(back.size(), latent.size());
    let again = decoder.forward(&back, None, &mut |_| Ok(())).unwrap().clamp(-1.0, 1.0);
    let error = f64::try_from((again - picture).square().mean(Kind::Float)).unwrap();
    let decibels = 10.0 * (4.0 / error).log10();
    println!("{decibels:.1} dB");
    assert!(decibels > 25.0, "{decibels} dB");
}

#[test]
fn what_cannot_be_encoded_is_refused_by_name() {
    let vae = "sdxl-checkpoint/sd_xl_base.safetensors";
    let encoder = encoder(vae, Precision::Uniform(Dtype::F32), Layout::ChannelsLast);
    let shapes: [(&[i64], &str); 6] = [
        (&[1, 3, 28, 42], "42×28 pixels can't be encoded: the sides have to be multiples of 4"),
        (&[1, 3, 30, 44], "multiples of 4"),
        (&[1, 3, 0, 44], "can't be encoded"),
        (&[0, 3, 28, 44], "0 pictures"),
        (&[1, 4, 28, 44], "the picture has 4 channels, the VAE takes 3"),
        (&[3, 28, 44], "[N, C, H, W] is expected"),
    ];
    for (shape, words) in shapes {
        let picture = Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        let error = encoder.forward(&picture, &mut |_| Ok(())).unwrap_err();
        assert!(matches!(error, Error::Picture { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// The header of a fixture with some change, and its data, in a folder.
fn changed(folder: &Path, vae: &str, change: impl Fn(&mut serde_json::Map<String, Value>)) -> PathBuf {
    let bytes = std::fs::read(fixture(vae)).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    change(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    let path = folder.join("vae.safetensors");
    let bytes = [(header.len() as u64).to_le_bytes().as_slice(), &header, &bytes[8 + length..]].concat();
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn files_without_a_sound_encoder_are_refused_by_name() {
    const PREFIX: &str = "first_stage_model.";
    let folder = tempfile::tempdir().unwrap();
    let refusal = |path: &Path| {
        let (file, identity) = open(path);
        let format = ComputeFormat::new(Precision::Uniform(Dtype::F32), Layout::ChannelsLast).unwrap();
        let loaded = EncoderConfig::read(&file, &identity)
            .and_then(|config| Encoder::load(&file, &identity, &config, format, Device::Cpu).map(drop));
        loaded.unwrap_err().to_string()
    };
    let alone = refusal(&fixture("flux-bfl/ae.safetensors"));
    assert!(alone.contains("no encoder in it: only the decoder's part is there; give the whole VAE"), "{alone}");

    let rename = |from: &str, to: &str| {
        changed(folder.path(), "sdxl-checkpoint/sd_xl_base.safetensors", |header| {
            let tensor = header.remove(&format!("{PREFIX}{from}")).unwrap();
            header.insert(format!("{PREFIX}{to}"), tensor);
        })
    };
    for name in [
        "encoder.conv_in.weight",
        "encoder.down.0.block.0.conv1.weight",
        "encoder.down.1.downsample.conv.weight",
        "encoder.down.2.block.0.norm2.bias",
        "encoder.mid.attn_1.q.weight",
        "encoder.mid.block_2.conv1.weight",
        "encoder.norm_out.weight",
        "encoder.conv_out.bias",
        "quant_conv.weight",
    ] {
        let said = refusal(&rename(name, "elsewhere"));
        assert!(said.contains(&format!("tensor {PREFIX}{name} is missing")), "{name}: {said}");
    }
    let said = refusal(&rename("encoder.down.0.block.0.conv1.weight", "encoder.down.0.attn.0.q.weight"));
    assert!(said.contains("encoder.down.0.attn.0.q.weight has no place in the encoder"), "{said}");
    let misshapen = changed(folder.path(), "sdxl-checkpoint/sd_xl_base.safetensors", |header| {
        header[&format!("{PREFIX}encoder.down.1.downsample.conv.weight")]["shape"] = serde_json::json!([32, 288, 1, 1]);
    });
    let said = refusal(&misshapen);
    assert!(
        said.contains("encoder.down.1.downsample.conv.weight has shape [32, 288, 1, 1], [32, 32, 3, 3] expected"),
        "{said}"
    );
}
