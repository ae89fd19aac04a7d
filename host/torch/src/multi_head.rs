//! Attention of several heads side by side in their tokens.

use tch::Tensor;

use crate::{Error, Result};

/// Attention of `heads` heads: `query` [N, tokens, width], `key` and `value` [N, others, width],
/// with the heads side by side in the width. The result is written onto `output`, which is like the
/// query; if `add`, it is added to what is there. Tensors may be part of wider ones.
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

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn each_head_attends_by_itself() {
        let _no_grad = tch::no_grad_guard();
        let random = |shape: [i64; 3]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (batch, heads, each) = (2, 3, 8);
        let wide = random([batch, 7, 3 * heads * each + 5]);
        let query = wide.narrow(2, 2, heads * each);
        let (key, value) = (random([batch, 11, heads * each]), random([batch, 11, heads * each]));
        let output = Tensor::ones([batch, 7, heads * each], (Kind::Float, Device::Cpu));
        attend_onto(&output, [&query, &key, &value], heads, true).unwrap();
        for head in 0..heads {
            let of = |tensor: &Tensor| tensor.narrow(2, head * each, each).to_kind(Kind::Double);
            let scores = of(&query).matmul(&of(&key).transpose(1, 2)) / (each as f64).sqrt();
            let expected: Tensor = scores.softmax(-1, Kind::Double).matmul(&of(&value)) + 1.0;
            let difference = f64::try_from((of(&output) - expected).abs().max()).unwrap();
            assert!(difference < 1e-5, "head {head}: {difference}");
        }
        assert!(attend_onto(&output, [&query, &key, &value], 5, false).is_err());
        assert!(attend_onto(&output, [&query, &key, &random([batch, 10, heads * each])], heads, false).is_err());
    }
}
