//! Attention of several heads side by side in their tokens.

use tch::{Kind, Tensor};

use crate::{Error, Result, ffi, packed, tokens};

/// Attention of `heads` heads: `query` [N, tokens, width], `key` and `value` [N, others, width],
/// with the heads side by side in the width. The result is written onto `output`, which is like the
/// query, and may be it unless `add`; if `add`, the result is added to what is there. Tensors may
/// be part of wider ones.
///
/// # Errors
/// Shapes don't fit; libtorch's error.
pub fn attend_onto(output: &Tensor, [query, key, value]: [&Tensor; 3], heads: i64, add: bool) -> Result<()> {
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
    if has_own(output.f_kind()?) && [output, query, key, value].into_iter().all(tokens::fits) {
        return attend_in_blocks(output, [query, key, value], heads, add);
    }
    let split = |tensor: &Tensor| -> Result<Tensor> {
        let (batch, tokens, _) = tensor.size3()?;
        Ok(tensor
            .f_unflatten(2, [heads, width / heads])?
            .f_view([batch, tokens, heads, width / heads])?
            .f_transpose(1, 2)?)
    };
    let mixed = Tensor::f_scaled_dot_product_attention(
        &split(query)?,
        &split(key)?,
        &split(value)?,
        None::<Tensor>,
        0.0,
        false,
        None,
        false,
    )?;
    let mixed = mixed.f_transpose(1, 2)?.f_reshape(&shapes[0])?;
    let mut output = output.shallow_clone();
    match add {
        true => drop(output.f_add_(&mixed)?),
        false => drop(output.f_copy_(&mixed)?),
    }
    Ok(())
}

/// True if the kernel of `shim/multi_head.cpp` computes attention of a type on the CPU.
pub fn has_own(kind: Kind) -> bool {
    packed::has_products(kind)
}

/// Bytes that attention on the CPU holds beside its operands and result: to so many other tokens,
/// of heads of a width, in all samples together.
pub fn scratch_bytes(others: i64, width: i64, heads: i64, kind: Kind) -> u64 {
    let threads = i64::from(tch::get_num_threads().max(1));
    ffi::tw_attend_heads_scratch(others, width, heads, threads, (kind == Kind::BFloat16).into()).max(0) as u64
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
    ffi::call(|error, length| unsafe { ffi::tw_attend_heads(&raw, error, length) })
}

#[cfg(test)]
mod tests {
    use tch::Device;

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
                attend_onto(&output, [&query, &key, &value], heads, true).unwrap();
                for head in 0..heads {
                    let of = |tensor: &Tensor| tensor.narrow(2, head * each, each).to_kind(Kind::Double);
                    let scores = of(&query).matmul(&of(&key).transpose(1, 2)) / (each as f64).sqrt();
                    let expected: Tensor = scores.softmax(-1, Kind::Double).matmul(&of(&value)) + 1.0;
                    let difference = f64::try_from((of(&output) - expected).abs().max()).unwrap();
                    let bound = if kind == Kind::Float { 1e-5 } else { 3e-2 };
                    assert!(difference < bound, "{count} to {others}, {each} wide, {kind:?}: {difference}");
                }
                assert!(attend_onto(&output, [&query, &key, &value], heads + heads * each, false).is_err());
                assert!(attend_onto(&output, [&query, &key, &wide.narrow(2, 0, 1)], heads, false).is_err());
            }
        }
    }
}
