//! The meter's prices of single operations.

use tilewright_kernels::{Kernels, Measured, Rate, Scratch, Speed};
use tilewright_nn::{ComputeFormat, Costs, GroupNorm, Meter, Ops, Window};
use tilewright_plan::{Backend, Dtype, Layout, Precision};

fn measured(backend: Backend, fused_attention: bool) -> Measured {
    let speed = Speed {
        dtype: Dtype::Bf16,
        layout: Layout::ChannelsFirst,
        flops_per_second: 1e13,
        plain: Rate { per_product: 2e-13, per_value: 0.0 },
        winograd: None,
        attention_flops_per_second: 1e13,
        fused_attention,
        heads: None,
        norm_bytes_per_second: None,
        scratch: Scratch::default(),
    };
    Measured {
        speeds: vec![speed],
        bytes_per_second: 2e11,
        transfer_bytes_per_second: None,
        backend,
        miopen: None,
        hurried: false,
        disturbed: false,
        int8_per_product: None,
        fp8_per_product: None,
        large_convolutions: false,
        expansion: None,
    }
}

fn meter(measured: &Measured) -> Meter {
    let format = ComputeFormat::new(Precision::Uniform(Dtype::Bf16), Layout::ChannelsFirst).unwrap();
    let kernels = if measured.backend == Backend::Cpu { Kernels::default() } else { Kernels::of_a_gpu() };
    Meter::new(format, Costs::new(&measured.speeds[0], measured, &kernels))
}

/// The time of a convolution of 128 channels, per pixel.
fn convolution(backend: Backend, side: i64) -> f64 {
    let meter = meter(&measured(backend, true));
    let picture = meter.input(&[1, 128, side, side], Dtype::Bf16).unwrap();
    meter.convolution(&picture, &vec![128, 128, 3, 3], &vec![128], Window { stride: 1, padding: [1; 2] }).unwrap();
    meter.seconds() / (side * side) as f64
}

#[test]
fn a_convolution_that_miopen_has_no_kernel_for_is_priced_as_slow() {
    // 9 · 128 · 1024² values of two bytes are 2.25 GiB; of 512², a quarter of that.
    let (small, large) = (convolution(Backend::Rocm, 512), convolution(Backend::Rocm, 1024));
    assert!(large > 10.0 * small, "{small} and {large}");
    let (small, large) = (convolution(Backend::Cuda, 512), convolution(Backend::Cuda, 1024));
    assert!(large < 1.1 * small, "{small} and {large}");
}

#[test]
fn a_norm_takes_what_norms_were_measured_to_take() {
    let norm = |dtype, norm_bytes_per_second| {
        let mut measured = measured(Backend::Cuda, true);
        let narrow = Speed { norm_bytes_per_second, ..measured.speeds[0] };
        let single = Speed { dtype: Dtype::F32, norm_bytes_per_second: Some(1e10), ..narrow };
        measured.speeds = vec![narrow, single];
        let meter = meter(&measured);
        let picture = meter.input(&[1, 64, 100, 100], dtype).unwrap();
        let (weight, bias) = (&vec![64], &vec![64]);
        meter.group_norm(&picture, GroupNorm { weight, bias, groups: 32, epsilon: 1e-6 }).unwrap();
        meter.seconds()
    };
    // 1.28 MB, read or written four times; in f32 twice as much, three times.
    let expected = [
        (norm(Dtype::Bf16, Some(2e10)), 4.0 * 1.28e6 / 2e10),
        (norm(Dtype::Bf16, None), 4.0 * 1.28e6 / 2e11),
        (norm(Dtype::F32, Some(2e10)), 3.0 * 2.56e6 / 1e10),
    ];
    for (found, expected) in expected {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} in place of {expected}");
    }
}

#[test]
fn attention_in_pieces_holds_its_scores() {
    let held = |fused_attention| {
        let measured = measured(Backend::Rocm, fused_attention);
        let meter = meter(&measured);
        let tokens = || meter.input(&[1, 16384, 512], Dtype::Bf16).unwrap();
        meter.attention(tokens(), &tokens(), &tokens()).unwrap();
        meter.peak_bytes()
    };
    // 16 M scores and their softmax, in f32; the matrix of all has 268 M. The fused kernel holds
    // its result in f32, 32 MiB.
    let (fused, pieces) = (held(true), held(false));
    assert!(pieces > fused + (96 << 20) && pieces < fused + (128 << 20), "{fused} and {pieces}");
}
