//! Estimates for a device that is described and not there: they are the same on every machine, with
//! libtorch and without it.

use std::sync::Arc;

use tilewright_fixtures::fixture;
use tilewright_kernels::{Kernels, Measured, Rate, Scratch, Speed};
use tilewright_models::{
    Checkpoint, ComputeFormat, EncoderFile, HalfConfig, Identity, Metered, PlanFormat, kl, wan_vae,
};
use tilewright_nn::{Costs, Meter};
use tilewright_plan::{Backend, Dtype, Layout, Precision};

fn opened(name: &str) -> Checkpoint {
    Checkpoint::open_part(&fixture(name), &[]).unwrap()
}

/// A processor that was measured in f32 and bf16, channels-last.
fn measured() -> Measured {
    let rate = Rate { per_product: 1e-11, per_value: 1e-10 };
    let speed = |dtype| Speed {
        dtype,
        layout: Layout::ChannelsLast,
        flops_per_second: 1e11,
        plain: rate,
        winograd: Some(rate),
        attention_flops_per_second: 1e11,
        fused_attention: true,
        heads: None,
        norm_bytes_per_second: None,
        scratch: Scratch { inputs: 1.0, weights: 1.0, small: 20480 },
    };
    Measured {
        speeds: vec![speed(Dtype::F32), speed(Dtype::Bf16)],
        bytes_per_second: 1e10,
        transfer_bytes_per_second: None,
        backend: Backend::Cpu,
        miopen: None,
        hurried: false,
        disturbed: false,
        int8_per_product: None,
        fp8_per_product: None,
        large_convolutions: false,
        expansion: None,
    }
}

/// Two threads with AVX-512 and its extensions, and a processor with AVX2 alone.
fn kernels() -> [Kernels; 2] {
    let new = Kernels { threads: 2, ..Kernels::default() };
    [new, Kernels { block: 8, products: [false; 2], int8: false, ..new }]
}

fn formats(kernels: &Kernels) -> Vec<PlanFormat> {
    [Dtype::F32, Dtype::Bf16]
        .into_iter()
        .flat_map(|dtype| PlanFormat::all(dtype, Layout::ChannelsLast, kernels))
        .filter(|format| format.precision != Precision::Mixed(Dtype::F32))
        .collect()
}

#[test]
fn a_picture() {
    let file = opened("flux-bfl/ae.safetensors");
    let config = kl::Config::read(&file, &Identity::of_decoder(&file).unwrap()).unwrap();
    let mut found = Vec::new();
    for kernels in kernels() {
        let metered = Metered::new(&config, &measured(), &kernels);
        for format in formats(&kernels) {
            for band in [None, Some(64)] {
                let pass = metered.pass(format, &kl::Extent { batch: 1, height: 512, width: 384, band }).unwrap();
                found.push(pass.peak_bytes);
            }
            found.push(metered.weight_bytes(format).unwrap());
        }
    }
    // Whole, in bands, and the weights: in f32, in f32 with direct convolutions, in bf16, mixed,
    // and mixed with direct convolutions; then those of the processor that has no other.
    let expected = [
        [151_019_520, 78_864_384, 3_681_292],
        [176_250_880, 89_423_872, 1_429_900],
        [88_133_632, 47_677_440, 714_950],
        [138_432_512, 77_287_424, 1_845_836],
        [125_829_120, 82_477_056, 718_278],
        [176_250_880, 89_423_872, 1_429_900],
        [88_133_632, 47_677_440, 714_950],
        [125_829_120, 82_477_056, 718_278],
    ];
    assert_eq!(found, expected.concat());
}

#[test]
fn a_clip() {
    let file = opened("wan21-original/Wan2.1_VAE.safetensors");
    let config = wan_vae::Config::read(&file, &Identity::of_decoder(&file).unwrap()).unwrap();
    let extent =
        wan_vae::Extent { latent_frames: 5, pushed: 1, frames: 4, height: 256, width: 320, band: None, tiled: None };
    let mut found = Vec::new();
    for kernels in kernels() {
        for format in formats(&kernels) {
            let cost = Metered::new(&config, &measured(), &kernels).pass(format, &extent).unwrap();
            found.push([cost.peak_bytes, cost.state_bytes]);
        }
    }
    // The peak and the causal state in the same formats.
    let expected = [
        [45_322_240, 32_440_320],
        [58_671_104, 32_440_320],
        [29_343_744, 16_220_160],
        [45_125_632, 32_440_320],
        [34_996_224, 16_629_760],
        [59_986_432, 32_440_320],
        [30_001_408, 16_220_160],
        [35_653_888, 16_629_760],
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_text() {
    let mut found = Vec::new();
    for name in ["text-clip-l/model.safetensors", "text-t5"] {
        let encoder = EncoderFile::find_all(&Arc::new(opened(name))).unwrap().remove(0);
        for kernels in kernels() {
            let meter = Meter::new(ComputeFormat::single(), Costs { kernels, ..Costs::default() });
            encoder.meter(&meter, [2, 77], 1).unwrap();
            found.push(meter.peak_bytes());
        }
    }
    // Either encoder on both processors.
    assert_eq!(found, [521_444, 521_444, 513_436, 513_436]);
}
