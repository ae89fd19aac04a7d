//! Operations by name in a recording, with the operations and bytes that a meter counts for them.
//! Nothing is worked out unless somebody records.

use tch::{Kind, Tensor};
use tilewright_kernels::winograd_products;
use tilewright_plan::Layout;
use tilewright_torch::profile::{Amount, Category, Range, operation};

/// Bytes of a tensor's values, read or written once.
pub(super) fn bytes(tensor: &Tensor) -> f64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as f64
}

/// Bytes of several tensors.
fn all_bytes(tensors: &[&Tensor]) -> f64 {
    tensors.iter().map(|tensor| bytes(tensor)).sum()
}

/// An operation on each value of the first tensor: `operations` for each, reading or writing all of
/// the tensors once.
pub(super) fn each_value(name: &str, category: Category, operations: f64, tensors: &[&Tensor]) -> Option<Range> {
    operation(name, category, || Amount {
        operations: operations * tensors.first().map_or(0.0, |tensor| tensor.numel() as f64),
        bytes: all_bytes(tensors),
    })
}

/// A move of values: `times` reads and writes of a tensor.
pub(super) fn moved(name: &str, category: Category, tensor: &Tensor, times: f64) -> Option<Range> {
    operation(name, category, || Amount { operations: 0.0, bytes: times * bytes(tensor) })
}

/// A conversion to another type.
pub(super) fn cast(tensor: &Tensor, to: Kind) -> Option<Range> {
    operation("tilewright::cast", Category::Copies, || Amount {
        operations: 0.0,
        bytes: bytes(tensor) + (tensor.numel() * to.elt_size_in_bytes()) as f64,
    })
}

/// A product of tokens with a weight [out, into] that lies in memory as it is.
pub(super) fn linear(tokens: &Tensor, weight: &Tensor) -> Option<Range> {
    operation("tilewright::linear", Category::Gemm, || {
        let out = weight.size().first().copied().unwrap_or_default() as f64;
        let into = tokens.size().last().copied().unwrap_or_default().max(1) as f64;
        Amount {
            operations: 2.0 * tokens.numel() as f64 * out,
            bytes: bytes(weight) + bytes(tokens) * (1.0 + out / into),
        }
    })
}

/// A norm of a tensor in passes that read or write it.
pub(super) fn norm(name: &str, tensor: &Tensor, passes: impl FnOnce() -> u64) -> Option<Range> {
    // The mean, the squares, and a product and a sum to norm.
    const EACH: f64 = 6.0;
    operation(name, Category::Norm, || Amount {
        operations: EACH * tensor.numel() as f64,
        bytes: passes() as f64 * bytes(tensor),
    })
}

/// A product of rows `left` with a matrix of `rows` rows that is stored in some bytes.
pub(super) fn product(
    name: &str,
    left: &Tensor,
    rows: i64,
    stored: impl FnOnce() -> f64,
    output: &Tensor,
) -> Option<Range> {
    operation(name, Category::Gemm, || Amount {
        operations: 2.0 * left.numel() as f64 * rows as f64,
        bytes: bytes(left) + stored() + bytes(output),
    })
}

/// A convolution by libtorch of a picture with a weight [out, into, h, w].
pub(super) fn convolution(picture: &Tensor, weight: &Tensor, stride: i64, padding: [i64; 2]) -> Option<Range> {
    operation("tilewright::convolution", Category::Convolution, || {
        let (size, window) = (picture.size(), weight.size());
        let (&[batch, _, height, width], &[out, _, tall, wide]) = (&size[..], &window[..]) else {
            return Amount::default();
        };
        let along = |side: i64, padding: i64, window: i64| ((side + 2 * padding - window) / stride.max(1) + 1).max(0);
        let pixels = (batch * along(height, padding[0], tall) * along(width, padding[1], wide)) as f64;
        let each = picture.kind().elt_size_in_bytes() as f64;
        Amount {
            operations: 2.0 * pixels * weight.numel() as f64,
            bytes: bytes(picture) + bytes(weight) + each * pixels * out as f64,
        }
    })
}

/// A 3×3 convolution by Winograd's filtering of `rows` rows of `input` to `out` channels, over
/// `frames` frames: the products that are left of it.
pub(super) fn winograd(
    input: Option<&Tensor>,
    [out, rows]: [i64; 2],
    frames: usize,
    upsamples: bool,
    stores: bool,
) -> Option<Range> {
    operation("tilewright::winograd_convolution", Category::Convolution, || {
        let size = input.map(Tensor::size).unwrap_or_default();
        let &[batch, into, _, width] = &size[..] else { return Amount::default() };
        let width = if upsamples { 2 * width } else { width };
        let (pixels, channels) = ((batch * rows * width) as f64, [into, out].map(|channels| channels as f64));
        let read = if upsamples { pixels / 4.0 } else { pixels } * channels[0] * frames as f64;
        let written = if stores { pixels * channels[1] } else { 0.0 };
        Amount {
            operations: 2.0 * winograd_products(upsamples) * pixels * channels[0] * channels[1] * frames as f64,
            bytes: 4.0 * (read + written),
        }
    })
}

/// Attention of queries [N, tokens, width] with keys [N, others, width], all heads together.
pub(super) fn attention(name: &str, [query, key]: [&Tensor; 2], others: &[&Tensor]) -> Option<Range> {
    operation(name, Category::Attention, || Amount {
        operations: 4.0 * query.numel() as f64 * key.size().get(1).copied().unwrap_or_default() as f64,
        bytes: all_bytes(&[query, key]) + all_bytes(others),
    })
}

/// A copy to another memory order; nothing moves if a tensor is in it.
pub(super) fn reordered(tensor: &Tensor, layout: Layout) -> Option<Range> {
    operation("tilewright::memory_order", Category::Layout, || {
        let (size, steps) = (tensor.size(), tensor.stride());
        let order = match layout {
            Layout::ChannelsLast if size.len() == 4 => vec![1, 3, 2, 0],
            _ => (0..size.len()).rev().collect(),
        };
        let mut step = 1;
        let is_there = order.into_iter().all(|axis| {
            let fits = size[axis] == 1 || steps[axis] == step;
            step *= size[axis];
            fits
        });
        Amount { operations: 0.0, bytes: if is_there { 0.0 } else { 2.0 * bytes(tensor) } }
    })
}

/// Tensors put together.
pub(super) fn concatenated(parts: &[Tensor]) -> Option<Range> {
    operation("tilewright::concatenate", Category::Layout, || Amount {
        operations: 0.0,
        bytes: 2.0 * parts.iter().map(bytes).sum::<f64>(),
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind as Dtype};
    use tilewright_torch::profile::Profiler;

    use super::*;

    #[test]
    fn amounts_are_those_of_the_shapes() {
        let of = |shape: &[i64]| Tensor::zeros(shape, (Dtype::Float, Device::Cpu));
        let profiler = Profiler::begin(Device::Cpu, "decode").unwrap();
        drop(convolution(&of(&[2, 8, 16, 16]), &of(&[4, 8, 3, 3]), 1, [1, 1]));
        drop(product("tilewright::multiply", &of(&[5, 8]), 3, || 96.0, &of(&[5, 3])));
        drop(attention("tilewright::attention", [&of(&[1, 7, 8]), &of(&[1, 9, 8])], &[]));
        drop(winograd(Some(&of(&[1, 8, 12, 20])), [4, 10], 1, false, true));
        drop(reordered(&of(&[1, 8, 2, 2]), Layout::ChannelsFirst));
        drop(reordered(&of(&[1, 8, 2, 2]), Layout::ChannelsLast));
        drop(reordered(
            &of(&[1, 8, 2, 2]).permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]),
            Layout::ChannelsLast,
        ));
        let recording = profiler.end().unwrap();
        let mut found = Vec::new();
        for event in &recording.events {
            if let tilewright_torch::profile::Kind::Operation(_, amount) = event.kind {
                found.push([amount.operations, amount.bytes]);
            }
        }
        found.sort_by(|one, other| one[0].total_cmp(&other[0]).then(one[1].total_cmp(&other[1])));
        assert_eq!(
            found,
            [
                [0.0, 0.0],
                [0.0, 0.0],
                [0.0, 2.0 * 4.0 * 32.0],
                [2.0 * 5.0 * 8.0 * 3.0, 4.0 * (40.0 + 15.0) + 96.0],
                [4.0 * 7.0 * 8.0 * 9.0, 4.0 * (56.0 + 72.0)],
                [2.0 * 4.0 * 200.0 * 8.0 * 4.0, 4.0 * 200.0 * 12.0],
                [2.0 * 512.0 * 4.0 * 8.0 * 9.0, 4.0 * (4096.0 + 288.0 + 2048.0)],
            ]
        );
    }
}
