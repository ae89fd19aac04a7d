//! The decoder against diffusers, on the fixtures that `tests/fixtures/make_fixtures.py` made.

#![cfg(feature = "torch")]

use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tilewright_fixtures::fixture;
use tilewright_models::{
    Checkpoint, ComputeFormat, Family, HalfConfig, Identity, Latent, Scaling,
    kl::{Config, Decoder},
};
use tilewright_plan::{Dtype, Layout, Precision};

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(fixture("cases.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["cases"].as_array().unwrap().clone()
}

fn reference(case: &Value) -> Tensor {
    let file = Checkpoint::open(&fixture(case["reference"].as_str().unwrap())).unwrap();
    let shape = file.shape("sample").unwrap().to_vec();
    file.load("sample", &shape, Kind::Float, Device::Cpu).unwrap()
}

fn decode(case: &Value, precision: Precision, layout: Layout, band: Option<u32>) -> Tensor {
    let _no_grad = tch::no_grad_guard();
    let file = Checkpoint::open(&fixture(case["vae"].as_str().unwrap())).unwrap();
    let identity = Identity::of_decoder(&file).unwrap();
    let config = Config::read(&file, &identity).unwrap();
    let several = case["tensors"].as_u64().unwrap() > 1;
    let tensor = case["tensor"].as_str().filter(|_| several);
    let mut latent = Latent::read(&fixture(case["latent"].as_str().unwrap()), tensor).unwrap();
    latent.check(&config).unwrap();
    if case["scaled"].as_bool().unwrap() {
        latent.unscale(&Scaling::Factor { factor: config.scaling.unwrap(), shift: config.shift }).unwrap();
    }
    let format = ComputeFormat::new(precision, layout).unwrap();
    let decoder = Decoder::load(&file, &identity, &config, format, Device::Cpu).unwrap();
    let mut last = 0.0_f64;
    let output = decoder.forward(&latent.pictures().unwrap(), band, &mut |share| {
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
fn whole_decodes_in_f32_agree_with_diffusers_in_both_memory_orders() {
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let expected = reference(&case);
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let found = decode(&case, Precision::Uniform(Dtype::F32), layout, None);
            assert_eq!(found.size(), expected.size(), "{name}");
            let difference = largest(&(found - &expected));
            let tolerance = 1e-4 * largest(&expected).max(1.0);
            assert!(difference <= tolerance, "{name} {layout}: {difference} > {tolerance}");
        }
    }
}

#[test]
fn bands_of_any_height_give_the_whole_picture() {
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let expected = reference(&case);
        let tolerance = 1e-4 * largest(&expected).max(1.0);
        for (layout, band) in [
            (Layout::ChannelsFirst, 40),
            (Layout::ChannelsLast, 8),
            (Layout::ChannelsLast, 40),
            (Layout::ChannelsLast, 72),
            (Layout::ChannelsLast, 1 << 20),
        ] {
            let found = decode(&case, Precision::Uniform(Dtype::F32), layout, Some(band));
            let difference = largest(&(found - &expected));
            assert!(difference <= tolerance, "{name} {layout} in bands of {band}: {difference} > {tolerance}");
        }
    }
}

#[test]
fn bands_round_no_more_than_the_whole_in_other_types() {
    for case in cases().into_iter().filter(|case| matches!(case["name"].as_str(), Some("flux-bfl" | "sd15-diffusers")))
    {
        let expected = reference(&case);
        for precision in [Precision::Uniform(Dtype::Bf16), Precision::Mixed(Dtype::Bf16)] {
            for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
                let error = |band| {
                    let found = decode(&case, precision, layout, band);
                    f64::try_from((found - &expected).square().mean(Kind::Float)).unwrap()
                };
                assert!(error(Some(24)) < 1.5 * error(None), "{precision} {layout}");
            }
        }
    }
}

#[test]
fn half_and_mixed_decodes_stay_near_f32() {
    for case in cases().into_iter().filter(|case| matches!(case["name"].as_str(), Some("flux-bfl" | "sd15-diffusers")))
    {
        let expected = reference(&case);
        let decibels = |precision| {
            let found = decode(&case, precision, Layout::ChannelsFirst, None);
            let error = f64::try_from((found - &expected).square().mean(Kind::Float)).unwrap();
            10.0 * (4.0 / error).log10()
        };
        assert!(decibels(Precision::Uniform(Dtype::Bf16)) > 30.0);
        assert!(decibels(Precision::Mixed(Dtype::Bf16)) > 35.0);
        assert!(decibels(Precision::Mixed(Dtype::F16)) > 45.0);
    }
}

#[test]
fn files_are_told_apart_by_their_contents() {
    for case in cases() {
        let name = case["name"].as_str().unwrap();
        let file = Checkpoint::open(&fixture(case["vae"].as_str().unwrap())).unwrap();
        let identity = Identity::of_decoder(&file).unwrap();
        let config = Config::read(&file, &identity).unwrap();
        assert_eq!(identity.layout.to_string(), case["layout"].as_str().unwrap(), "{name}");
        assert_eq!(identity.prefix, case["prefix"].as_str().unwrap(), "{name}");
        if case["family_known"].as_bool().unwrap() {
            assert_eq!(config.family.name(), case["family"].as_str().unwrap(), "{name}");
        }
        let widths: Vec<u64> = config.up_blocks.iter().rev().map(|block| block.channels as u64).collect();
        let expected: Vec<u64> =
            case["block_out_channels"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect();
        assert_eq!(widths, expected, "{name}");
        assert_eq!(u64::from(config.spatial_scale()), case["spatial_scale"].as_u64().unwrap(), "{name}");
        assert_eq!(config.post_quant, case["post_quant_conv"].as_bool().unwrap(), "{name}");
        assert_eq!(config.middle_attention, case["mid_attention"].as_bool().unwrap(), "{name}");
        assert_eq!(
            config.model(config.family, &file, &identity).stored.name(),
            case["stored"].as_str().unwrap(),
            "{name}"
        );
        assert_eq!(config.weights(&file, &identity).unwrap().problems(), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn a_family_that_the_tensors_rule_out_is_refused() {
    for (name, fits, told) in [
        ("sd15-ldm/vae-ft-mse.safetensors", &["sd", "sdxl"][..], "sd or sdxl"),
        ("sdxl-checkpoint/sd_xl_base.safetensors", &["sdxl"], "sdxl"),
        ("flux-bfl/ae.safetensors", &["flux", "sd3"], "flux or sd3"),
    ] {
        let file = Checkpoint::open(&fixture(name)).unwrap();
        let identity = Identity::of_decoder(&file).unwrap();
        for said in ["sd", "sdxl", "sd3", "flux", "kl", "wan-2.1", "wan-2.2"] {
            let checked = identity.check_family(&file, said.parse::<Family>().unwrap());
            assert_eq!(checked.is_ok(), fits.contains(&said), "{name} {said}");
            if let Err(error) = checked {
                let words = format!("is of the family {told}, as its tensors show, not of {said}: ");
                assert!(error.to_string().contains(&words), "{error}");
            }
        }
    }
}
