//! Passes over tokens on the CPU, each of which reads and writes them once: norms with modulation,
//! norms and rotation of heads, gelu, gated sums. Tensors are [N, tokens, width] in f32 or bf16 and
//! may be part of wider ones; everything is computed in f32.

use std::ptr;

use tch::{Device, Kind, Tensor};

use crate::{Error, Result, ffi};

/// True if these passes take a tensor: f32 or bf16 on the CPU, with the values of a token side by
/// side.
pub fn fits(tensor: &Tensor) -> bool {
    let is_known = matches!(tensor.f_kind(), Ok(Kind::Float | Kind::BFloat16));
    tensor.device() == Device::Cpu && is_known && tensor.dim() == 3 && tensor.stride()[2] == 1
}

fn refused(what: &str, tensors: &[&Tensor]) -> Error {
    let shapes: Vec<String> = tensors.iter().map(|tensor| format!("{:?}", tensor.size())).collect();
    Error::Torch(format!("{what} of {}: f32 or bf16 tokens of one shape on the CPU were expected", shapes.join(", ")))
}

/// The rows of tokens that [`fits`] passed.
pub(crate) fn rows(tokens: &Tensor) -> ffi::RawRows {
    let stride = tokens.stride();
    ffi::RawRows {
        values: tokens.data_ptr(),
        apart: stride[1],
        sample_apart: stride[0],
        bf16: (tokens.kind() == Kind::BFloat16).into(),
    }
}

fn extents(tokens: &Tensor, spans: i64) -> ffi::RawExtents {
    let size = tokens.size();
    ffi::RawExtents { samples: size[0], tokens: size[1], width: size[2], spans }
}

/// f32 values on the CPU, one after another.
pub(crate) fn vector(tensor: &Tensor, values: i64) -> Option<*const f32> {
    let is_sound = tensor.f_kind().is_ok_and(|kind| kind == Kind::Float)
        && tensor.device() == Device::Cpu
        && tensor.is_contiguous()
        && tensor.numel() as i64 == values;
    is_sound.then(|| tensor.data_ptr().cast_const().cast())
}

/// Spans [N, spans, width] in f32 that belong to tokens: their address, and the values from one to
/// the next and from sample to sample.
fn spans(tensor: &Tensor, tokens: &Tensor) -> Option<(*const f32, [i64; 3])> {
    let (size, of) = (tensor.size(), tokens.size());
    let is_sound = tensor.f_kind().is_ok_and(|kind| kind == Kind::Float)
        && tensor.device() == Device::Cpu
        && size.len() == 3
        && [size[0], size[2]] == [of[0], of[2]]
        && size[1] > 0
        && of[1] % size[1] == 0
        && tensor.stride()[2] == 1;
    let stride = tensor.stride();
    is_sound.then(|| (tensor.data_ptr().cast_const().cast(), [size[1], stride[1], stride[0]]))
}

/// A norm over the width, then a factor and summand of each value, or shift and scale [N, spans,
/// width] of each span, onto tokens of the same extents.
///
/// # Errors
/// Tensors do not fit.
pub fn layer_norm(
    output: &Tensor,
    input: &Tensor,
    epsilon: f64,
    affine: Option<(&Tensor, &Tensor)>,
    modulation: Option<[&Tensor; 2]>,
) -> Result<()> {
    let fault = || refused("a norm", &[input, output]);
    if !fits(input) || !fits(output) || input.size() != output.size() {
        return Err(fault());
    }
    let width = input.size()[2];
    let (mut weight, mut bias, mut shift, mut scale) = (ptr::null(), ptr::null(), ptr::null(), ptr::null());
    let mut places = [1, 0, 0];
    if let Some((factors, summands)) = affine {
        weight = vector(factors, width).ok_or_else(fault)?;
        bias = vector(summands, width).ok_or_else(fault)?;
    }
    if let Some([shifts, scales]) = modulation {
        (shift, places) = spans(shifts, input).ok_or_else(fault)?;
        let other;
        (scale, other) = spans(scales, input).ok_or_else(fault)?;
        if other != places {
            return Err(fault());
        }
    }
    let raw = ffi::RawLayerNorm {
        extents: extents(input, places[0]),
        input: rows(input),
        output: rows(output),
        epsilon: epsilon as f32,
        weight,
        bias,
        shift,
        scale,
        span_apart: places[1],
        modulation_sample_apart: places[2],
    };
    // SAFETY: every address is of as many values as the shapes and strides checked above say, and
    // lives through the call.
    unsafe { ffi::tw_layer_norm_rows(&raw) }
}

/// Norms queries or keys in place, by the mean of squares of as many values as there are weights,
/// and then turns pairs by cosines and sines [tokens, width of a head], side by side.
///
/// # Errors
/// Tensors do not fit.
pub fn norm_heads(tokens: &Tensor, weight: &Tensor, epsilon: f64, rotation: Option<&Tensor>) -> Result<()> {
    let fault = || refused("a norm of heads", &[tokens, weight]);
    let over = weight.numel() as i64;
    if !fits(tokens) || over == 0 || tokens.size()[2] % over != 0 {
        return Err(fault());
    }
    let size = tokens.size();
    let (mut table, mut turned) = (ptr::null(), 1);
    if let Some(rotation) = rotation {
        turned = rotation.size().last().copied().unwrap_or(1);
        let is_sound = turned > 0 && turned % 2 == 0 && size[2] % turned == 0 && over % turned == 0;
        table = vector(rotation, size[1] * turned).filter(|_| is_sound).ok_or_else(fault)?;
    }
    let raw = ffi::RawHeadNorm {
        extents: extents(tokens, 1),
        rows: rows(tokens),
        epsilon: epsilon as f32,
        weight: vector(weight, over).ok_or_else(fault)?,
        over,
        rotation: table,
        turned,
    };
    // SAFETY: as in `layer_norm`.
    unsafe { ffi::tw_norm_heads(&raw) }
}

/// The gelu by a tanh of each value, onto tokens of the same extents, which may be the same.
///
/// # Errors
/// Tensors do not fit.
pub fn gelu(output: &Tensor, input: &Tensor) -> Result<()> {
    if !fits(input) || !fits(output) || input.size() != output.size() {
        return Err(refused("a gelu", &[input, output]));
    }
    let raw = ffi::RawGelu { extents: extents(input, 1), input: rows(input), output: rows(output) };
    // SAFETY: as in `layer_norm`.
    unsafe { ffi::tw_gelu_rows(&raw) }
}

/// Adds other tokens in place, multiplied by the gate [N, spans, width] of their span if there is
/// one.
///
/// # Errors
/// Tensors do not fit.
pub fn add_gated(tokens: &Tensor, gate: Option<&Tensor>, other: &Tensor) -> Result<()> {
    let fault = || refused("a gated sum", &[tokens, other]);
    if !fits(tokens) || !fits(other) || tokens.size() != other.size() {
        return Err(fault());
    }
    let (mut address, mut places) = (ptr::null(), [1, 0, 0]);
    if let Some(gate) = gate {
        (address, places) = spans(gate, tokens).ok_or_else(fault)?;
    }
    let raw = ffi::RawGatedSum {
        extents: extents(tokens, places[0]),
        tokens: rows(tokens),
        other: rows(other),
        gate: address,
        span_apart: places[1],
        gate_sample_apart: places[2],
    };
    // SAFETY: as in `layer_norm`.
    unsafe { ffi::tw_add_gated(&raw) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(shape: [i64; 3], kind: Kind) -> Tensor {
        // Part of a wider tensor, whose other values must stay.
        let wide = Tensor::randn([shape[0], shape[1] + 2, shape[2] + 6], (Kind::Float, Device::Cpu)).to_kind(kind);
        wide.narrow(1, 1, shape[1]).narrow(2, 4, shape[2])
    }

    fn assert_close(found: &Tensor, expected: &Tensor, kind: Kind, of: &str) {
        let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
        let difference = f64::try_from((found - &expected).abs().max()).unwrap();
        let most = f64::try_from(expected.abs().max()).unwrap().max(1.0);
        let bound = if kind == Kind::Float { 3e-6 } else { 5e-3 };
        assert!(difference <= bound * most, "{of}: {difference} of {most}");
    }

    const KINDS: [[Kind; 2]; 4] = [
        [Kind::Float, Kind::Float],
        [Kind::Float, Kind::BFloat16],
        [Kind::BFloat16, Kind::Float],
        [Kind::BFloat16, Kind::BFloat16],
    ];

    #[test]
    fn norms_are_libtorchs() {
        let _no_grad = tch::no_grad_guard();
        for width in [24, 128, 1537] {
            for [from, to] in KINDS {
                let input = random([2, 6, width], from);
                let wide = input.to_kind(Kind::Double);
                let plain = wide.layer_norm([width], None::<Tensor>, None::<Tensor>, 1e-6, true);
                for count in [1, 3] {
                    let both = Tensor::randn([2, count, 2 * width], (Kind::Float, Device::Cpu));
                    let (shift, scale) = (both.narrow(2, 0, width), both.narrow(2, width, width));
                    let output = random([2, 6, width], to);
                    layer_norm(&output, &input, 1e-6, None, Some([&shift, &scale])).unwrap();
                    let each = |of: &Tensor| of.repeat_interleave_self_int(6 / count, 1, None).to_kind(Kind::Double);
                    let expected = &plain * (each(&scale) + 1.0) + each(&shift);
                    assert_close(&output, &expected, to, &format!("modulated {width} {from:?} {to:?}"));
                }
                let (weight, bias) = (
                    Tensor::randn([width], (Kind::Float, Device::Cpu)),
                    Tensor::randn([width], (Kind::Float, Device::Cpu)),
                );
                let output = random([2, 6, width], to);
                layer_norm(&output, &input, 1e-6, Some((&weight, &bias)), None).unwrap();
                let expected = &plain * weight.to_kind(Kind::Double) + bias.to_kind(Kind::Double);
                assert_close(&output, &expected, to, &format!("affine {width} {from:?} {to:?}"));
                assert!(
                    layer_norm(&output, &input, 1e-6, Some((&weight, &bias.narrow(0, 1, width - 1))), None).is_err()
                );
                let five = Tensor::randn([2, 5, width], (Kind::Float, Device::Cpu));
                assert!(layer_norm(&output, &input, 1e-6, None, Some([&five, &five])).is_err(), "6 tokens in 5 spans");
            }
        }
    }

    #[test]
    fn heads_are_normed_and_turned() {
        let _no_grad = tch::no_grad_guard();
        for (heads, each) in [(2, 12), (3, 16), (4, 128)] {
            let width = heads * each;
            for over in [each, width] {
                for kind in [Kind::Float, Kind::BFloat16] {
                    let tokens = random([2, 5, width], kind);
                    let weight = Tensor::randn([over], (Kind::Float, Device::Cpu));
                    let angles = Tensor::randn([5, each / 2], (Kind::Float, Device::Cpu));
                    let rotation = Tensor::stack(&[angles.cos(), angles.sin()], -1).reshape([5, each]);
                    let parts = tokens.to_kind(Kind::Double).reshape([2, 5, width / over, over]);
                    let factor = (parts.square().mean_dim(-1, true, Kind::Double) + 1e-6).rsqrt();
                    let normed = (&parts * factor * weight.to_kind(Kind::Double)).reshape([2, 5, heads, each / 2, 2]);
                    let (even, odd) = (normed.select(-1, 0), normed.select(-1, 1));
                    let angle = angles.to_kind(Kind::Double).reshape([1, 5, 1, each / 2]);
                    let first = &even * angle.cos() - &odd * angle.sin();
                    let second = &even * angle.sin() + &odd * angle.cos();
                    let expected = Tensor::stack(&[first, second], -1).reshape([2, 5, width]);
                    norm_heads(&tokens, &weight, 1e-6, Some(&rotation)).unwrap();
                    assert_close(&tokens, &expected, kind, &format!("{heads}×{each} over {over} {kind:?}"));
                    assert!(norm_heads(&tokens, &weight, 1e-6, Some(&rotation.narrow(0, 0, 4))).is_err());
                }
            }
        }
    }

    #[test]
    fn gelu_and_gated_sums_are_libtorchs() {
        let _no_grad = tch::no_grad_guard();
        for [from, to] in KINDS {
            let input = random([2, 6, 45], from) * 4.0;
            let output = random([2, 6, 45], to);
            gelu(&output, &input).unwrap();
            assert_close(&output, &input.to_kind(Kind::Double).gelu("tanh"), to, "gelu");
            let (tokens, gate) = (random([2, 6, 45], to), Tensor::randn([2, 2, 45], (Kind::Float, Device::Cpu)));
            let factor = gate.repeat_interleave_self_int(3, 1, None).to_kind(Kind::Double);
            let expected = tokens.to_kind(Kind::Double) + input.to_kind(Kind::Double) * factor;
            add_gated(&tokens, Some(&gate), &input).unwrap();
            assert_close(&tokens, &expected, to, "gated");
            let expected = tokens.to_kind(Kind::Double) + input.to_kind(Kind::Double);
            add_gated(&tokens, None, &input).unwrap();
            assert_close(&tokens, &expected, to, "sum");
        }
    }
}
