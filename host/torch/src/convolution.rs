//! Convolutions whose rounding the caller names, in pieces where they take long.

use tch::Tensor;

use crate::{
    Result, miopen,
    pieces::{Operation, Pieces, part},
};

/// Rows of pieces are multiples of this.
const UNIT: i64 = 8;

/// The fewest rows of a piece: with fewer, most of its input would be its neighbours' rows.
const LEAST_ROWS: i64 = 16;

/// The fewest pixels of a piece: oneDNN takes other kernels for small pictures, whose sums have
/// other bits.
const LEAST_PIXELS: i64 = 16_384;

/// A 2-D convolution of [N, C, H, W] with a weight [out, C, h, w], without dilation or groups.
///
/// With `tf32`, NVIDIA's tensor cores round f32 operands to 10 bits of mantissa on the way into the
/// product. That goes with the call: libtorch's own switch is the whole process's, where jobs of
/// other precisions run at the same time.
///
/// # Errors
/// The shapes don't go together, or memory is out; the work is cancelled.
pub fn conv2d(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: i64,
    padding: [i64; 2],
    tf32: bool,
) -> Result<Tensor> {
    let ((batch, into, height, width), (out, _, tall, wide)) = (input.size4()?, weight.size4()?);
    let extent = |side: i64, padding: i64, window: i64| (side + 2 * padding - window) / stride.max(1) + 1;
    let (rows, columns) = (extent(height, padding[0], tall), extent(width, padding[1], wide));
    let taps = [batch, rows, columns, tall, wide].map(|extent| extent as f64).iter().product();
    let operation = Operation::Convolution { taps, channels: [into as f64, out as f64] };
    let least = (LEAST_PIXELS / columns.max(1) + 1).max(LEAST_ROWS);
    let mut pieces = Pieces::in_units(input.device(), input.f_kind()?, rows, operation, [UNIT, least]);
    let run =
        |input: &Tensor, padding: [i64; 2]| miopen::or_without(|| at_once(input, weight, bias, stride, padding, tf32));
    let is_whole = pieces.is_whole();
    let mut output = None;
    while let Some(piece) = pieces.begin()?.filter(|_| !is_whole) {
        // Rows of the input, of which those beyond it are zeros.
        let (first, end) = (piece.start * stride - padding[0], (piece.end - 1) * stride - padding[0] + tall);
        let there = first.max(0)..end.min(height);
        let mut needed = part(input, 2, &there)?;
        if there != (first..end) {
            needed = needed.f_constant_pad_nd([0, 0, there.start - first, end - there.end])?;
        }
        let found = run(&needed, [0, padding[1]])?;
        drop(needed);
        let all = match output.take() {
            Some(all) => all,
            None => like(&found, [batch, out, rows, columns])?,
        };
        part(&all, 2, &piece)?.f_copy_(&found)?;
        output = Some(all);
    }
    output.map_or_else(|| run(input, padding), Ok)
}

/// An uninitialised picture in the type and the memory order of another one.
fn like(picture: &Tensor, [batch, channels, height, width]: [i64; 4]) -> Result<Tensor> {
    let options = (picture.f_kind()?, picture.device());
    Ok(match picture.is_contiguous() {
        true => Tensor::f_empty([batch, channels, height, width], options)?,
        false => Tensor::f_empty([batch, height, width, channels], options)?.f_permute([0, 3, 1, 2])?,
    })
}

fn at_once(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: i64,
    padding: [i64; 2],
    tf32: bool,
) -> Result<Tensor> {
    if !tf32 {
        return Ok(input.f_conv2d(weight, bias, [stride; 2], padding, [1, 1], 1)?);
    }
    let (benchmark, deterministic, with_cudnn) = (false, false, true);
    Ok(input.f_internal_convolution(
        weight,
        bias,
        [stride; 2],
        padding,
        [1, 1],
        false,
        [0, 0],
        1,
        benchmark,
        deterministic,
        with_cudnn,
        true,
    )?)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::{
        Error,
        cancel::{Scope, tests::after},
        channels_last,
        pieces::{Rates, tests::slow},
        pointwise,
    };

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    #[test]
    fn a_convolution_in_pieces_has_the_values_of_the_whole() {
        let _no_grad = tch::no_grad_guard();
        for (side, stride, padding) in [(3, 1, 1), (1, 1, 0), (3, 2, 0), (3, 2, 1)] {
            let (input, weight, bias) =
                (random(&[1, 64, stride * 421, stride * 250]), random(&[128, 64, side, side]), random(&[128]));
            for input in [channels_last(&input).unwrap(), input] {
                let run = || conv2d(&input, &weight, Some(&bias), stride, [padding; 2], false).unwrap();
                let whole = run();
                let (check, asked) = after(usize::MAX);
                let scope = Scope::enter(check, slow());
                let found = run();
                drop(scope);
                assert!(asked.load(std::sync::atomic::Ordering::SeqCst) > 1, "it is in pieces");
                assert_eq!(found.stride(), whole.stride());
                assert!(found.allclose(&whole, 1e-5, 1e-4, false), "{side}×{side}, {stride}, {padding}");
            }
        }
    }

    #[test]
    fn a_pointwise_convolution_in_pieces_has_the_values_of_the_whole() {
        let _no_grad = tch::no_grad_guard();
        let (input, weight, bias) = (random(&[2, 512, 128, 200]), random(&[512, 512, 1, 1]), random(&[512]));
        let whole = pointwise(&input, &weight, &bias).unwrap();
        let (check, asked) = after(usize::MAX);
        let _scope = Scope::enter(check, Rates::default());
        assert!(pointwise(&input, &weight, &bias).unwrap().allclose(&whole, 1e-5, 1e-4, false));
        assert!(asked.load(std::sync::atomic::Ordering::SeqCst) > 1, "it is in pieces");
    }

    #[test]
    fn no_piece_of_a_convolution_begins_after_the_cancellation() {
        let _no_grad = tch::no_grad_guard();
        let (input, weight) = (random(&[1, 256, 256, 256]), random(&[512, 256, 3, 3]));
        let (check, asked) = after(1);
        let _scope = Scope::enter(check, Rates::default());
        assert!(matches!(conv2d(&input, &weight, None, 1, [1, 1], false), Err(Error::Cancelled)));
        assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 2, "one piece, and no other");
    }
}
