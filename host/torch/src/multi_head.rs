//! Attention of several heads side by side in their tokens.

use std::ops::Range;

use tch::Tensor;
use tilewright_kernels::{heads_of_biased, rows_of_pieces};

use crate::{Error, Result, attention, ffi, packed, pieces::part, tokens};

/// The way in which attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In a fused kernel, which has no scores in memory: [`attention::is_fused`] says if a head's
    /// width has one.
    Fused {
        /// Each head is first copied to lie by itself, where libtorch's kernel is used.
        apart: bool,
    },
    /// In products, for this number of queries at once; for as many as keep the scores small, if
    /// none is given.
    Pieces(Option<i64>),
}

/// Attention of `heads` heads: `query` [N, tokens, width], `key` and `value` [N, others, width],
/// with the heads side by side in the width. The result is written onto `output`, which is like the
/// query, and may be it unless `add`; if `add`, the result is added to what `output` holds. Tensors
/// may be part of wider ones.
///
/// # Errors
/// Shapes don't fit; libtorch's error.
pub fn attend_onto(output: &Tensor, [query, key, value]: [&Tensor; 3], heads: i64, add: bool, way: Way) -> Result<()> {
    let shapes = [query.size(), key.size(), value.size()];
    let width = shapes[0].last().copied().unwrap_or_default();
    let is_sound = shapes.iter().all(|shape| shape.len() == 3 && shape[0] == shapes[0][0] && shape[2] == width)
        && shapes[1] == shapes[2]
        && output.size() == shapes[0]
        && heads > 0
        && width % heads == 0;
    if !is_sound {
        return Err(Error::Torch(format!("attention of {heads} heads with {shapes:?} onto {:?}", output.size())));
    }
    if matches!(way, Way::Fused { .. })
        && packed::has_products(output.f_kind()?)
        && [output, query, key, value].into_iter().all(tokens::fits)
    {
        return attend_in_blocks(output, [query, key, value], heads, add);
    }
    let (queries, keys, values) = (split(query, heads)?, split(key, heads)?, split(value, heads)?);
    if let Way::Pieces(step) = way {
        return attend_in_pieces(output, [queries, keys, values], add, step);
    }
    let apart = |heads: Tensor| if way == (Way::Fused { apart: true }) { heads.f_contiguous() } else { Ok(heads) };
    let (queries, keys, values) = (apart(queries)?, apart(keys)?, apart(values)?);
    let mut pieces = attention::pieces(&queries, &keys)?;
    while let Some(rows) = pieces.begin()? {
        write(output, &rows, attention::library(&part(&queries, 2, &rows)?, &keys, &values)?, add)?;
    }
    Ok(())
}

/// Writes rows of the result [N, heads, rows, width of a head].
fn write(output: &Tensor, rows: &Range<i64>, mixed: Tensor, add: bool) -> Result<()> {
    let mixed = mixed.f_transpose(1, 2)?.f_flatten(2, 3)?;
    let mut output = part(output, 1, rows)?;
    match add {
        true => drop(output.f_add_(&mixed)?),
        false => output.f_copy_(&mixed)?,
    }
    Ok(())
}

/// Heads side by side as [N, heads, tokens, width of a head].
fn split(tensor: &Tensor, heads: i64) -> Result<Tensor> {
    Ok(tensor.f_unflatten(2, [heads, tensor.size()[2] / heads])?.f_transpose(1, 2)?)
}

/// Queries, keys and values are [N, heads, tokens, width of a head]; scores and softmax are f32.
fn attend_in_pieces(output: &Tensor, [query, key, value]: [Tensor; 3], add: bool, queries: Option<i64>) -> Result<()> {
    let (batch, heads, count, each) = query.size4()?;
    let step = rows_of_pieces(batch * heads, count, key.size()[2], queries);
    // Arranged here and not with each piece.
    let (transposed, value) = (key.f_transpose(2, 3)?.f_contiguous()?, value.f_contiguous()?);
    let mut pieces = attention::pieces(&query, &key)?.of_at_most(step);
    let scale = 1.0 / (each as f64).sqrt();
    while let Some(rows) = pieces.begin()? {
        let mixed = attention::weighted(&part(&query, 2, &rows)?, &transposed, &value, scale, None)?;
        write(output, &rows, mixed, add)?;
    }
    Ok(())
}

/// Attention of `heads` heads of queries, keys and values [N, tokens, width], of which the products
/// of queries and keys are multiplied by `scale` and have `bias` [1, heads or 1, tokens, tokens] in
/// f32 added, onto `output`. A few heads at a time have their scores in memory.
///
/// # Errors
/// Shapes don't fit; libtorch's error.
pub fn attend_biased_onto(
    output: &Tensor,
    [query, key, value]: [&Tensor; 3],
    heads: i64,
    bias: &Tensor,
    scale: f64,
) -> Result<()> {
    let (shape, summand) = (query.size(), bias.size());
    let &[batch, tokens, width] = &shape[..] else {
        return Err(Error::Torch(format!("attention with queries {shape:?}")));
    };
    let is_sound = [key, value, output].iter().all(|tensor| tensor.size() == shape)
        && heads > 0
        && width % heads == 0
        && matches!(summand[..], [1, of, queries, keys] if (of == 1 || of == heads) && [queries, keys] == [tokens; 2]);
    if !is_sound {
        return Err(Error::Torch(format!("attention of {heads} heads of {shape:?} with a bias of {summand:?}")));
    }
    let each = width / heads;
    let (query, key, value) = (split(query, heads)?, split(key, heads)?, split(value, heads)?);
    let step = heads_of_biased(batch, heads, tokens);
    for first in (0..heads).step_by(step as usize) {
        let count = step.min(heads - first);
        let of = |tensor: &Tensor| tensor.f_narrow(1, first, count);
        let (queries, keys, values) = (of(&query)?, of(&key)?.f_transpose(2, 3)?, of(&value)?);
        let summands = if summand[1] == 1 { bias.shallow_clone() } else { of(bias)? };
        let mut pieces = attention::pieces(&queries, &of(&key)?)?;
        let output = output.f_narrow(2, first * each, count * each)?;
        while let Some(rows) = pieces.begin()? {
            let summand = part(&summands, 2, &rows)?;
            let mixed = attention::weighted(&part(&queries, 2, &rows)?, &keys, &values, scale, Some(&summand))?;
            write(&output, &rows, mixed, false)?;
        }
    }
    Ok(())
}

/// By `shim/multi_head.cpp`.
fn attend_in_blocks(output: &Tensor, [query, key, value]: [&Tensor; 3], heads: i64, add: bool) -> Result<()> {
    let kind = output.f_kind()?;
    for tensor in [query, key, value] {
        if tensor.f_kind()? != kind {
            return Err(Error::Torch(format!("attention in {kind:?} with {:?}", tensor.f_kind()?)));
        }
    }
    let size = query.size();
    if query.numel() == 0 {
        return Ok(());
    }
    let raw = ffi::RawHeads {
        extents: ffi::RawExtents { samples: size[0], tokens: size[1], width: size[2] / heads, spans: heads },
        others: key.size()[1],
        query: tokens::rows(query),
        key: tokens::rows(key),
        value: tokens::rows(value),
        output: tokens::rows(output),
        add: add.into(),
    };
    // SAFETY: every address is of as many values as the shapes and strides say, which `attend_onto`
    // compared, and lives through the call.
    unsafe { ffi::tw_attend_heads(&raw) }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn each_head_attends_by_itself() {
        let _no_grad = tch::no_grad_guard();
        // Tokens, others, heads, width of a head.
        let sizes =
            [(7, 11, 3, 8), (1, 1, 1, 2), (130, 77, 2, 12), (65, 1030, 2, 128), (3, 513, 5, 24), (64, 64, 1, 512)];
        for (count, others, heads, each) in sizes {
            for kind in [Kind::Float, Kind::BFloat16] {
                let random = |shape: [i64; 3]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind);
                let batch = 2;
                let wide = random([batch, count, 3 * heads * each + 5]);
                let query = wide.narrow(2, 2, heads * each);
                let both = random([batch, others, 2 * heads * each]);
                let (key, value) = (both.narrow(2, 0, heads * each), both.narrow(2, heads * each, heads * each));
                let output = Tensor::ones([batch, count, heads * each], (kind, Device::Cpu));
                for way in
                    [Way::Fused { apart: false }, Way::Fused { apart: true }, Way::Pieces(None), Way::Pieces(Some(5))]
                {
                    let output = output.copy();
                    attend_onto(&output, [&query, &key, &value], heads, true, way).unwrap();
                    for head in 0..heads {
                        let of = |tensor: &Tensor| tensor.narrow(2, head * each, each).to_kind(Kind::Double);
                        let scores = of(&query).matmul(&of(&key).transpose(1, 2)) / (each as f64).sqrt();
                        let expected: Tensor = scores.softmax(-1, Kind::Double).matmul(&of(&value)) + 1.0;
                        let difference = f64::try_from((of(&output) - expected).abs().max()).unwrap();
                        let bound = if kind == Kind::Float { 1e-5 } else { 3e-2 };
                        assert!(
                            difference < bound,
                            "{count} to {others}, {each} wide, {kind:?}, {way:?}: {difference}"
                        );
                    }
                }
                assert!(
                    attend_onto(
                        &output,
                        [&query, &key, &value],
                        heads + heads * each,
                        false,
                        Way::Fused { apart: false }
                    )
                    .is_err()
                );
                assert!(
                    attend_onto(
                        &output,
                        [&query, &key, &wide.narrow(2, 0, 1)],
                        heads,
                        false,
                        Way::Fused { apart: false }
                    )
                    .is_err()
                );
            }
        }
    }
}
