//! WAN's files, whole and damaged, as headers of the published sizes over empty space.

#![cfg(feature = "torch")]

mod wan_header;

use serde_json::{Value, json};
use tilewright_fixtures::fixture;
use tilewright_models::{
    Checkpoint, ComputeFormat, DecoderConfig, Error, Family, FileLayout, HalfConfig, Identity, Inspection, Kind,
    Latent, Result,
    wan_vae::{Config, Encoder, EncoderConfig, UpBlock, Upsample},
};
use tilewright_plan::{Dtype, Layout, Precision};
use wan_header::{Header, Network, SMALL_21, SMALL_22, WAN_21, WAN_22};

const LAYOUTS: [FileLayout; 2] = [FileLayout::Diffusers, FileLayout::WanOriginal];

fn read(file: &Checkpoint) -> Result<(Identity, Config)> {
    let identity = Identity::of_decoder(file)?;
    let config = Config::read(file, &identity)?;
    Ok((identity, config))
}

#[test]
fn the_published_networks_are_read_in_both_layouts() {
    let up = |into, channels, upsample: Option<(usize, bool)>, duplicated| UpBlock {
        into,
        channels,
        layers: 3,
        upsample: upsample.map(|(channels, temporal)| Upsample { channels, temporal }),
        duplicated,
    };
    let wan21 = vec![
        up(384, 384, Some((192, true)), false),
        up(192, 384, Some((192, true)), false),
        up(192, 192, Some((96, false)), false),
        up(96, 96, None, false),
    ];
    let wan22 = vec![
        up(1024, 1024, Some((1024, true)), true),
        up(1024, 1024, Some((1024, true)), true),
        up(1024, 512, Some((512, false)), true),
        up(512, 256, None, false),
    ];
    for (network, family, blocks, scale) in
        [(&WAN_21, Family::Wan21, wan21, (8, 4)), (&WAN_22, Family::Wan22, wan22, (16, 4))]
    {
        for layout in LAYOUTS {
            let folder = tempfile::tempdir().unwrap();
            let file = Header::of(network, layout).open(folder.path()).unwrap();
            let (identity, config) = read(&file).unwrap();
            assert_eq!((identity.kind, identity.layout, identity.family), (Kind::VideoAutoencoder, layout, family));
            assert_eq!((config.family, &config.up_blocks), (family, &blocks));
            assert_eq!((config.spatial_scale(), config.temporal_scale()), scale);
            assert_eq!((config.latent_channels, config.middle_channels), (network.latent, blocks[0].into));
            assert_eq!((config.out_channels, config.patch, config.image_channels), (network.image, network.patch, 3));
            let (mean, std) = (config.latents_mean.clone().unwrap(), config.latents_std.clone().unwrap());
            assert_eq!((mean.len(), std.len()), (network.latent, network.latent));
            assert_eq!(config.weights(&file, &identity).unwrap().problems(), Vec::<String>::new());
            assert_eq!(config.weights(&file, &identity).unwrap().left_over(), Vec::<String>::new());
            let model = config.model(config.family, &file, &identity);
            assert_eq!((model.family.as_str(), model.temporal_scale), (family.name(), 4));

            let encoder = EncoderConfig::read(&file, &identity).unwrap();
            assert_eq!((encoder.spatial_scale(), encoder.temporal_scale()), scale);
            assert_eq!((encoder.latent_channels, encoder.first_channels), (network.latent, network.encoder));
            let widths: Vec<_> = encoder.down_blocks.iter().map(|block| (block.channels, block.layers)).collect();
            assert_eq!(widths, [1, 2, 4, 4].map(|multiple| (network.encoder * multiple, 2)));
        }
    }
}

#[test]
fn the_number_of_layers_is_read_off_the_numbering() {
    for layers in [1, 2, 3] {
        for network in [&SMALL_21, &SMALL_22] {
            for layout in LAYOUTS {
                let folder = tempfile::tempdir().unwrap();
                let file = Header::of(&Network { layers, ..*network }, layout).open(folder.path()).unwrap();
                let (identity, config) = read(&file).unwrap();
                assert!(config.up_blocks.iter().all(|block| block.layers == layers + 1), "{layers} {layout}");
                assert_eq!(config.weights(&file, &identity).unwrap().problems(), Vec::<String>::new());
                let encoder = EncoderConfig::read(&file, &identity).unwrap();
                assert!(encoder.down_blocks.iter().all(|block| block.layers == layers), "{layers} {layout}");
            }
        }
    }
}

#[test]
fn a_prefix_and_a_file_without_encoder_are_understood() {
    for prefix in ["vae.", "first_stage_model."] {
        for layout in LAYOUTS {
            let folder = tempfile::tempdir().unwrap();
            let header = Header::of(&SMALL_21, layout).without("encoder.").under(prefix);
            let file = header.open(folder.path()).unwrap();
            let (identity, config) = read(&file).unwrap();
            assert_eq!((identity.prefix.as_str(), identity.layout), (prefix, layout));
            assert_eq!(config.weights(&file, &identity).unwrap().problems(), Vec::<String>::new());
            assert!(!Inspection::of(&file).encoder);
            let error = EncoderConfig::read(&file, &identity).unwrap_err();
            assert!(
                matches!(error, Error::Unknown { .. }) && error.to_string().contains("no encoder in it"),
                "{error}"
            );
        }
    }
}

#[test]
fn diffusers_networks_are_read_as_it_made_them() {
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(fixture("video_cases.json")).unwrap()).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    assert!(cases.len() >= 18);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let file = Checkpoint::open(&fixture(case["vae"].as_str().unwrap())).unwrap();
        let (identity, config) = read(&file).unwrap();
        let layout = if case["layout"] == "original" { FileLayout::WanOriginal } else { FileLayout::Diffusers };
        assert_eq!(identity.layout, layout, "{name}");
        let found = serde_json::to_value(&config).unwrap();
        for field in
            ["latent_channels", "middle_channels", "up_blocks", "patch", "out_channels", "latents_mean", "latents_std"]
        {
            assert_eq!(found[field], case[field], "{name}: {field}");
        }
        assert_eq!(found["family"], format!("wan-{}", case["version"].as_str().unwrap()), "{name}");
        assert_eq!(json!(config.spatial_scale()), case["spatial_scale"], "{name}");
        assert_eq!(json!(config.temporal_scale()), case["temporal_scale"], "{name}");
        let names = Config::HALF.names(&file, &identity);
        assert_eq!(json!(names.len()), case["decoder_tensors"], "{name}");
        assert_eq!(config.weights(&file, &identity).unwrap().problems(), Vec::<String>::new(), "{name}");
        assert_eq!(config.weights(&file, &identity).unwrap().left_over(), Vec::<String>::new(), "{name}");
        let model = config.model(config.family, &file, &identity);
        assert_eq!(json!(model.stored.name()), case["stored"], "{name}");
        let inspection = Inspection::of(&file);
        assert_eq!(json!(inspection.encoder), case["encoder"], "{name}");
        assert_eq!(json!(inspection.decoder.unwrap().parameters), case["decoder_parameters"], "{name}");

        let several = case["tensors"].as_u64().unwrap() > 1;
        let tensor = case["tensor"].as_str().filter(|_| several);
        let latent = Latent::read(&fixture(case["latent"].as_str().unwrap()), tensor).unwrap();
        latent.check(&config).unwrap();
        let frames = latent.extents().frames;
        assert_eq!(json!([frames, config.frames(frames)]), json!([case["latent_frames"], case["frames"]]), "{name}");
        assert_eq!(config.scaling().is_some(), !case["latents_mean"].is_null(), "{name}");
    }
}

/// The damage as inspection reports it: the config's error, or the missing and left-over tensors.
fn complaints(header: Header) -> String {
    let folder = tempfile::tempdir().unwrap();
    let inspection = Inspection::of(&header.open(folder.path()).unwrap());
    assert_eq!(inspection.identity.kind, Kind::VideoAutoencoder);
    let decoder = inspection.decoder.unwrap();
    let missing = decoder.missing.join("\n");
    format!("{missing}\nleft over: {}", decoder.left_over.join(", "))
}

#[test]
fn damage_is_named_as_the_file_would() {
    let original = || Header::of(&SMALL_21, FileLayout::WanOriginal);
    let nested = || Header::of(&SMALL_22, FileLayout::WanOriginal);
    let diffusers = || Header::of(&SMALL_22, FileLayout::Diffusers);
    let cases: Vec<(Header, &[&str])> = vec![
        (
            original().without("decoder.middle.0.residual.0.gamma"),
            &["tensor decoder.middle.0.residual.0.gamma is missing ([32, 1, 1, 1] expected)\nleft over: "],
        ),
        (
            original().without("decoder.upsamples.3.resample.1.weight"),
            &["tensor decoder.upsamples.3.resample.1.weight is missing ([16, 32, 3, 3] expected)"],
        ),
        (
            original().without("decoder.conv1.weight"),
            &["tensor decoder.conv1.weight is missing ([32, 4, 3, 3, 3] expected)"],
        ),
        (original().without("conv2.bias"), &["tensor conv2.bias is missing ([4] expected)"]),
        (
            nested().without("decoder.upsamples.1.upsamples.3.time_conv.bias"),
            &["tensor decoder.upsamples.1.upsamples.3.time_conv.bias is missing ([96] expected)"],
        ),
        (
            diffusers().without("decoder.up_blocks.0.upsampler.resample.1.bias"),
            &["tensor decoder.up_blocks.0.upsampler.resample.1.bias is missing ([48] expected)"],
        ),
        (
            original().reshaped("decoder.upsamples.1.residual.2.weight", &[32, 288, 3]),
            &["tensor decoder.upsamples.1.residual.2.weight has shape [32, 288, 3], [32, 32, 3, 3, 3] expected"],
        ),
        (
            nested().reshaped("decoder.middle.1.to_qkv.weight", &[48, 144, 1, 1]),
            &["tensor decoder.middle.1.to_qkv.weight has shape [48, 144, 1, 1], [144, 48, 1, 1] expected"],
        ),
        (
            original().with("decoder.upsamples.3.residual.0.gamma", &[4]).with("decoder.middle.3.norm.gamma", &[4]),
            &["left over: decoder.middle.3.norm.gamma, decoder.upsamples.3.residual.0.gamma"],
        ),
        (
            original().with("decoder.upsamples.63.residual.0.gamma", &[4]),
            &["left over: decoder.upsamples.63.residual.0.gamma"],
        ),
        (
            original().with("decoder.upsamples.18446744073709551615.residual.0.gamma", &[4]),
            &["left over: decoder.upsamples.18446744073709551615.residual.0.gamma"],
        ),
        (
            diffusers().with("decoder.up_blocks.1.resnets.1.conv_shortcut.weight", &[48, 48, 1, 1, 1]),
            &["left over: decoder.up_blocks.1.resnets.1.conv_shortcut.weight"],
        ),
        (
            original().reshaped("decoder.head.2.weight", &[7, 8, 3, 3, 3]).reshaped("decoder.head.2.bias", &[7]),
            &["the decoder ends in 7 channels"],
        ),
        (
            original().without("decoder.upsamples."),
            &["tensor decoder.upsamples.0.residual.2.weight is missing ([32, 32, 3, 3, 3] expected)"],
        ),
    ];
    for (header, words) in cases {
        let found = complaints(header);
        for words in words {
            assert!(found.contains(words), "{found:?} lacks {words:?}");
        }
    }
    assert_eq!(complaints(original()), "\nleft over: ");
    assert_eq!(complaints(nested()), "\nleft over: ");
}

#[test]
fn an_encoder_is_loaded_whole_or_not_at_all() {
    let load = |header: Header| {
        let folder = tempfile::tempdir().unwrap();
        let file = header.open(folder.path())?;
        let identity = Identity::of(&file);
        let config = EncoderConfig::read(&file, &identity)?;
        let format = ComputeFormat::new(Precision::Uniform(Dtype::F32), Layout::ChannelsFirst)?;
        Encoder::load(&file, &identity, &config, format, tch::Device::Cpu).map(|_| ())
    };
    let original = || Header::of(&SMALL_21, FileLayout::WanOriginal);
    let nested = || Header::of(&SMALL_22, FileLayout::WanOriginal);
    for whole in [original(), nested(), original().without("decoder."), Header::of(&SMALL_22, FileLayout::Diffusers)] {
        load(whole).unwrap();
    }
    let cases = [
        (original().without("conv1.weight"), "tensor conv1.weight is missing ([8, 8, 1, 1, 1] expected)"),
        (
            original().without("encoder.downsamples.5.time_conv.weight"),
            "tensor encoder.downsamples.5.time_conv.weight is missing ([16, 16, 3, 1, 1] expected)",
        ),
        (
            nested().reshaped("encoder.downsamples.1.downsamples.0.shortcut.weight", &[8, 16, 1, 1, 1]),
            "downsamples.0.shortcut.weight has shape [8, 16, 1, 1, 1], [16, 8, 1, 1, 1] expected",
        ),
        (
            nested().with("encoder.downsamples.0.downsamples.9.residual.0.gamma", &[8]),
            "encoder.downsamples.0.downsamples.9.residual.0.gamma has no place in",
        ),
        (
            original().reshaped("encoder.conv1.weight", &[8, 5, 3, 3, 3]),
            "the encoder takes 5 channels: pictures have 3 or 4, or 12",
        ),
    ];
    for (header, words) in cases {
        let message = load(header).unwrap_err().to_string();
        assert!(message.contains(words) && !message.contains('\n'), "{message:?} lacks {words:?}");
    }
}

#[test]
fn config_json_tells_the_latents_statistics() {
    let of = |text: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let file = Header::of(&SMALL_21, FileLayout::Diffusers).open(folder.path()).unwrap();
        read(&file).map(|(_, config)| (config.latents_mean, config.latents_std)).map_err(|error| error.to_string())
    };
    let text = |mean: &str| {
        format!(r#"{{"_class_name": "AutoencoderKLWan", "latents_mean": {mean}, "latents_std": [1, 2, 3, 4]}}"#)
    };
    assert_eq!(of(&text("[0, 0, 0.5, 0]")), Ok((Some(vec![0.0, 0.0, 0.5, 0.0]), Some(vec![1.0, 2.0, 3.0, 4.0]))));
    assert_eq!(
        of(r#"{"_class_name": "AutoencoderKL", "latents_mean": 7}"#.replace('7', "[]").as_str()),
        Ok((None, None))
    );
    assert_eq!(of("{}"), Ok((None, None)));
    for (broken, words) in [
        ("{", "config.json: no valid configuration"),
        (&text("[0, 1]"), "2 values of latents_mean and 4 of latents_std: the latent has 4 channels"),
        (&text("[0, 0, 0, 0]").replace("[1, 2, 3, 4]", "[1, 2, 0, 4]"), "a latents_std of 0 is nonsense"),
    ] {
        let message = of(broken).unwrap_err();
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
}

#[test]
fn latents_of_another_kind_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = Header::of(&SMALL_21, FileLayout::Diffusers).open(folder.path()).unwrap();
    let (_, config) = read(&file).unwrap();
    let message = |shape: &[usize]| {
        let folder = tempfile::tempdir().unwrap();
        let path = Header::default().with("a", shape).write(folder.path());
        Latent::read(&path, None).unwrap().check(&config).map_err(|error| error.to_string())
    };
    assert_eq!(message(&[1, 4, 5, 3, 2]), Ok(()));
    assert_eq!(message(&[1, 4, 3, 2]), Ok(()));
    let refusal = message(&[1, 16, 5, 3, 2]).unwrap_err();
    assert!(refusal.contains("the latent has 16 channels, the VAE (wan-2.1) takes 4"), "{refusal}");
    let refusal = message(&[1, 4, 20_000, 1, 1]).unwrap_err();
    assert!(refusal.contains("a clip of 79997 frames is out of reach"), "{refusal}");
    let refusal = message(&[1, 4, 2, 1, 20_000]).unwrap_err();
    assert!(refusal.contains("a picture of 160000×8 pixels is out of reach"), "{refusal}");
}
