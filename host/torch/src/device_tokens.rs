//! Passes over tokens by libtorch's operators: on GPUs, and on the CPU in the types that
//! [`crate::tokens`] does not take. Everything is computed in f32. Each operator is a launch, and
//! reads and writes its tensors in the GPU's memory, so that operators are few and convert types on
//! their way.

use tch::{Device, Kind, Tensor};

use crate::{Result, scalar};

/// Each span of a modulation or gate [N, spans, width] beside its tokens, [N, spans, 1, width], and
/// the tokens as [N, spans, tokens of a span, width].
fn by_spans(tokens: &Tensor, spans: &Tensor) -> Result<(Tensor, Tensor)> {
    let (batch, count, width) = tokens.size3()?;
    let (_, number, _) = spans.size3()?;
    let tokens = tokens.f_view([batch, number, count / number.max(1), width])?;
    Ok((tokens, spans.f_unsqueeze(2)?))
}

/// A norm over the width, then a factor and summand of each value, or shift and scale [N, spans,
/// width] of each span; a result of type `kind`. libtorch's norm of 16-bit values would round its
/// result to their type before the modulation: it has values in f32.
///
/// # Errors
/// Tensors do not fit; memory is out.
pub fn layer_norm(
    tokens: &Tensor,
    epsilon: f64,
    affine: Option<(&Tensor, &Tensor)>,
    modulation: Option<[&Tensor; 2]>,
    kind: Kind,
) -> Result<Tensor> {
    let width = tokens.size().last().copied().unwrap_or_default();
    let (weight, bias) = affine.map_or((None, None), |(weight, bias)| (Some(weight), Some(bias)));
    let wide = tokens.f_to_kind(Kind::Float)?;
    let normed = wide.f_layer_norm([width], weight, bias, epsilon, true)?;
    drop(wide);
    let Some([shift, scale]) = modulation else { return Ok(normed.f_to_kind(kind)?) };
    let factor = scalar::add(&scale.f_to_kind(Kind::Float)?, 1.0)?;
    let output = match kind {
        Kind::Float => normed.shallow_clone(),
        _ => Tensor::f_empty(normed.size(), (kind, normed.device()))?,
    };
    let ((onto, _), (normed, factor)) = (by_spans(&output, &factor)?, by_spans(&normed, &factor)?);
    let shift = shift.f_to_kind(Kind::Float)?.f_unsqueeze(2)?;
    let _ = shift.f_addcmul_out(&onto, &normed, &factor)?;
    Ok(output)
}

/// The norm by the mean of squares of f32 values over the last axis, times a weight. On GPUs it is
/// one launch, if the weight is of the values' type; the CPU's is made of several.
fn norm_squares(values: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor> {
    Ok(values.f_internal_fused_rms_norm(weight.numel() as i64, Some(weight), epsilon)?.0)
}

/// Norms queries or keys of `heads` heads in place, by the mean of squares of as many values as
/// there are weights, and then turns pairs by cosines and sines [tokens, width of a head], side by
/// side: a pair and its turn are complex numbers.
///
/// # Errors
/// As [`layer_norm`].
pub fn norm_heads(tokens: &Tensor, weight: &Tensor, epsilon: f64, heads: i64, rotation: Option<&Tensor>) -> Result<()> {
    let (batch, count, width) = tokens.size3()?;
    let (over, pairs) = (weight.numel() as i64, width / heads.max(1) / 2);
    let wide = tokens.f_to_kind(Kind::Float)?.f_contiguous()?;
    let normed = norm_squares(&wide.f_view([batch, count, width / over.max(1), over])?, weight, epsilon)?;
    drop(wide);
    if let Some(rotation) = rotation {
        let turns = rotation.f_view([1, count, 1, pairs, 2])?.f_view_as_complex()?;
        let _ = normed.f_view([batch, count, heads, pairs, 2])?.f_view_as_complex()?.f_mul_(&turns)?;
    }
    tokens.shallow_clone().f_copy_(&normed.f_view([batch, count, width])?)?;
    Ok(())
}

/// Tokens normed by the mean of squares over their width, with a result of type `kind`.
///
/// # Errors
/// As [`layer_norm`].
pub fn root_mean_square_norm(tokens: &Tensor, weight: &Tensor, epsilon: f64, kind: Kind) -> Result<Tensor> {
    let wide = tokens.f_to_kind(Kind::Float)?.f_contiguous()?;
    Ok(norm_squares(&wide, weight, epsilon)?.f_to_kind(kind)?)
}

/// The gelu by an approximation of libtorch's, onto tokens of the same extents, which may be the
/// same.
///
/// # Errors
/// As [`layer_norm`].
pub fn gelu(output: &Tensor, tokens: &Tensor, approximation: &str) -> Result<()> {
    // The bits of a CPU's depend on the places of values in memory.
    if output.device() == Device::Cpu || output.f_kind()? != tokens.f_kind()? {
        output.shallow_clone().f_copy_(&tokens.f_gelu(approximation)?)?;
    } else {
        let _ = tokens.f_gelu_out(output, approximation)?;
    }
    Ok(())
}

/// x · σ(1.702 x) of each value, likewise.
///
/// # Errors
/// As [`layer_norm`].
pub fn quick_gelu(output: &Tensor, tokens: &Tensor) -> Result<()> {
    let _ = scalar::multiply(tokens, 1.702)?.f_sigmoid_()?.f_mul_out(output, tokens)?;
    Ok(())
}

/// Adds other tokens in place, multiplied by the gate [N, spans, width] of their span.
///
/// # Errors
/// As [`layer_norm`].
pub fn add_gated(tokens: &Tensor, gate: &Tensor, other: &Tensor) -> Result<()> {
    let ((mut onto, gate), (other, _)) = (by_spans(tokens, gate)?, by_spans(other, gate)?);
    let _ = onto.f_addcmul_(&other, &gate)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 3] = [Kind::Float, Kind::BFloat16, Kind::Half];

    /// Part of a wider tensor.
    fn random(shape: [i64; 3], kind: Kind) -> Tensor {
        let wide = Tensor::randn([shape[0], shape[1] + 2, shape[2] + 6], (Kind::Float, Device::Cpu)).to_kind(kind);
        wide.narrow(1, 1, shape[1]).narrow(2, 4, shape[2])
    }

    fn single(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    fn assert_close(found: &Tensor, expected: &Tensor, kind: Kind, of: &str) {
        assert_eq!((found.kind(), found.size()), (kind, expected.size()), "{of}");
        let (found, expected) = (found.to_kind(Kind::Double), expected.to_kind(Kind::Double));
        let difference = f64::try_from((found - &expected).abs().max()).unwrap();
        let most = f64::try_from(expected.abs().max()).unwrap().max(1.0);
        // One rounding, to the type of the result.
        let bound = match kind {
            Kind::Float => 3e-6,
            Kind::Half => 6e-4,
            _ => 4.5e-3,
        };
        assert!(difference <= bound * most, "{of} {kind:?}: {difference} of {most}");
    }

    #[test]
    fn norms_are_rounded_once() {
        let _no_grad = tch::no_grad_guard();
        for (from, to) in KINDS.into_iter().flat_map(|from| KINDS.map(|to| (from, to))) {
            let width = 96;
            let tokens = random([2, 6, width], from);
            let plain = tokens.to_kind(Kind::Double).layer_norm([width], None::<Tensor>, None::<Tensor>, 1e-6, true);
            for count in [1, 3] {
                let both = single(&[2, count, 2 * width]);
                let (shift, scale) = (both.narrow(2, 0, width), both.narrow(2, width, width));
                let before = tokens.copy();
                let found = layer_norm(&tokens, 1e-6, None, Some([&shift, &scale]), to).unwrap();
                let each = |of: &Tensor| of.repeat_interleave_self_int(6 / count, 1, None).to_kind(Kind::Double);
                assert_close(&found, &(&plain * (each(&scale) + 1.0) + each(&shift)), to, "modulated");
                assert_eq!(tokens, before);
            }
            let (weight, bias) = (single(&[width]), single(&[width]));
            let found = layer_norm(&tokens, 1e-6, Some((&weight, &bias)), None, to).unwrap();
            assert_close(&found, &(&plain * weight.to_kind(Kind::Double) + bias.to_kind(Kind::Double)), to, "affine");
            let squares = tokens.to_kind(Kind::Double).square().mean_dim(-1, true, Kind::Double) + 1e-6;
            let expected = tokens.to_kind(Kind::Double) * squares.rsqrt() * weight.to_kind(Kind::Double);
            assert_close(&root_mean_square_norm(&tokens, &weight, 1e-6, to).unwrap(), &expected, to, "squares");
            assert!(layer_norm(&tokens, 1e-6, None, Some([&single(&[2, 5, width]), &weight]), to).is_err());
        }
    }

    #[test]
    fn heads_are_normed_and_turned() {
        let _no_grad = tch::no_grad_guard();
        for (heads, each) in [(2, 12), (3, 16), (4, 128)] {
            let width = heads * each;
            for (over, kind) in [each, width].into_iter().flat_map(|over| KINDS.map(|kind| (over, kind))) {
                let weight = single(&[over]);
                let angles = single(&[7, each / 2]);
                // Some rows of a table, as text and image have of one.
                let table = Tensor::stack(&[angles.cos(), angles.sin()], -1).reshape([7, each]).narrow(0, 2, 5);
                for rotation in [None, Some(&table)] {
                    let tokens = random([2, 5, width], kind);
                    let parts = tokens.to_kind(Kind::Double).reshape([2, 5, width / over, over]);
                    let factor = (parts.square().mean_dim(-1, true, Kind::Double) + 1e-6).rsqrt();
                    let mut expected = (&parts * factor * weight.to_kind(Kind::Double)).reshape([2, 5, width]);
                    if rotation.is_some() {
                        let pairs = expected.reshape([2, 5, heads, each / 2, 2]);
                        let (even, odd) = (pairs.select(-1, 0), pairs.select(-1, 1));
                        let angle = angles.narrow(0, 2, 5).to_kind(Kind::Double).reshape([1, 5, 1, each / 2]);
                        let first = &even * angle.cos() - &odd * angle.sin();
                        let second = &even * angle.sin() + &odd * angle.cos();
                        expected = Tensor::stack(&[first, second], -1).reshape([2, 5, width]);
                    }
                    norm_heads(&tokens, &weight, 1e-6, heads, rotation).unwrap();
                    assert_close(&tokens, &expected, kind, &format!("{heads}×{each} over {over}"));
                }
            }
        }
    }

    #[test]
    fn gelus_and_gated_sums_are_rounded_once() {
        let _no_grad = tch::no_grad_guard();
        for (from, to) in KINDS.into_iter().flat_map(|from| KINDS.map(|to| (from, to))) {
            let tokens = random([2, 6, 45], from) * 4.0;
            let wide = tokens.to_kind(Kind::Double);
            let (gate, onto) = (single(&[2, 2, 45]), random([2, 6, 45], to));
            let factor = gate.repeat_interleave_self_int(3, 1, None).to_kind(Kind::Double);
            let expected = onto.to_kind(Kind::Double) + &wide * factor;
            add_gated(&onto, &gate, &tokens).unwrap();
            assert_close(&onto, &expected, to, "gated");
            if from != to {
                continue;
            }
            for approximation in ["none", "tanh"] {
                let output = random([2, 6, 45], to);
                gelu(&output, &tokens, approximation).unwrap();
                assert_close(&output, &wide.gelu(approximation), to, approximation);
            }
            let output = random([2, 6, 45], to);
            quick_gelu(&output, &tokens).unwrap();
            // The sigmoid has the type of the values.
            let difference = output.to_kind(Kind::Double) - &wide * (&wide * 1.702).sigmoid();
            assert!(f64::try_from(difference.abs().max()).unwrap() < 0.1, "{to:?}");
        }
    }
}
