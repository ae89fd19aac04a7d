//! The estimate of a clip's causal state against the state itself.

#![cfg(feature = "torch")]

use tch::{Device, Kind, Tensor};
use tilewright_fixtures::fixture;
use tilewright_kernels::{Measured, Rate, Scratch, Speed};
use tilewright_models::{
    Checkpoint, HalfConfig, Identity, Metered, PlanFormat,
    wan_vae::{Clip, Config, Decoder, Extent, Spread},
};
use tilewright_plan::{Backend, Dtype, Layout, Precision};
use tilewright_torch::kernels;

/// A device of which nothing but what it can run matters.
fn device() -> Measured {
    let (kernels, rate) = (kernels(Device::Cpu), Rate { per_product: 1e-11, per_value: 1e-10 });
    let speed = |dtype, layout| Speed {
        dtype,
        layout,
        flops_per_second: 1e11,
        plain: rate,
        winograd: Some(rate)
            .filter(|_| (dtype, layout) == (Dtype::F32, Layout::ChannelsLast) && kernels.has_products(dtype)),
        attention_flops_per_second: 1e11,
        fused_attention: true,
        heads: None,
        norm_bytes_per_second: None,
        scratch: Scratch::default(),
    };
    let both = |dtype| [Layout::ChannelsLast, Layout::ChannelsFirst].map(|layout| speed(dtype, layout));
    let speeds = [both(Dtype::F32), both(Dtype::Bf16)].concat();
    Measured {
        speeds,
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

#[test]
fn the_state_is_as_large_as_was_estimated() {
    let _no_grad = tch::no_grad_guard();
    // These networks are too small to share out.
    tilewright_torch::set_threads(1);
    let kernels = kernels(Device::Cpu);
    for name in [
        "wan21-original/Wan2.1_VAE.safetensors",
        "wan21-three-levels/Wan2.1_VAE.safetensors",
        "wan22-diffusers/diffusion_pytorch_model.safetensors",
    ] {
        let file = Checkpoint::open(&fixture(name)).unwrap();
        let identity = Identity::of_decoder(&file).unwrap();
        let config = Config::read(&file, &identity).unwrap();
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let layouts = [Layout::ChannelsLast, Layout::ChannelsFirst].into_iter();
            let formats = layouts.flat_map(|layout| PlanFormat::all(dtype, layout, &kernels));
            for plan_format in formats.filter(|format| format.precision != Precision::Mixed(Dtype::F32)) {
                let format = plan_format.compute().unwrap();
                let decoder = Decoder::load(&file, &identity, &config, format, Device::Cpu).unwrap();
                let costs = Metered::new(&config, &device(), &kernels);
                for latent_frames in [1, 2, 5] {
                    let shape = [1, config.latent_channels as i64, i64::from(latent_frames), 4, 6];
                    let latents = Tensor::zeros(shape, (Kind::Float, Device::Cpu));
                    let (height, width) = (4 * config.spatial_scale(), 6 * config.spatial_scale());
                    let mut clip = Clip::default();
                    let spread = Spread { frames: 8, band: None, height };
                    decoder.push(&mut clip, Some(&latents), &spread, &mut |_| Ok(()), &mut |_| Ok(())).unwrap();
                    let pushed = latent_frames;
                    let extent = Extent { latent_frames, pushed, frames: 8, height, width, band: None, tiled: None };
                    let cost = costs.pass(plan_format, &extent).unwrap();
                    assert_eq!(
                        cost.state_bytes,
                        clip.bytes(Device::Cpu) as u64,
                        "{name} {plan_format} {latent_frames}"
                    );
                    assert!(cost.peak_bytes > cost.state_bytes, "{name} {plan_format}");
                }
            }
        }
    }
}
