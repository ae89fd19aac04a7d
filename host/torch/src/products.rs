//! Linear layers by libtorch, in pieces where they take long.

use tch::{Device, Tensor};

use crate::{
    Result,
    pieces::{Operation, Pieces},
};

fn pieces(left: &Tensor, weight: &Tensor, rows: i64) -> Result<Pieces> {
    let operations = 2.0 * rows as f64 * weight.numel() as f64;
    Ok(Pieces::of(left.device(), left.f_kind()?, rows, Operation::Product(operations)))
}

/// A linear layer over the last axis; the weight is [out, into].
///
/// # Errors
/// The shapes don't go together, or memory is out; the work is cancelled.
pub fn linear(left: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let mut shape = left.size();
    let width = shape.last().copied().unwrap_or(1).max(1);
    let rows = left.numel() as i64 / width;
    let mut pieces = pieces(left, weight, rows)?;
    if pieces.is_whole() {
        pieces.begin()?;
        return Ok(left.f_linear(weight, bias)?);
    }
    let out = weight.size()[0];
    let output = Tensor::f_empty([rows, out], (left.f_kind()?, left.device()))?;
    pieces.write(0, &output, &left.f_reshape([-1, width])?, |rows| Ok(rows.f_linear(weight, bias)?))?;
    if let Some(width) = shape.last_mut() {
        *width = out;
    }
    Ok(output.f_view(&shape[..])?)
}

/// The same of rows [M, into] onto [M, out], which may be part of wider rows, and of another type.
///
/// # Errors
/// As [`linear`].
pub fn linear_onto(output: &Tensor, left: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    if left.device() != Device::Cpu && output.f_kind()? == left.f_kind()? {
        return linear_in_place(output, left, weight, bias);
    }
    pieces(left, weight, left.size()[0])?.write(0, output, left, |rows| Ok(rows.f_linear(weight, bias)?))
}

/// The same onto rows of the type of the product, which is written there and nowhere before. On a
/// GPU rows may lie apart; a bias is laid out in such a result first then, in a pass that takes as
/// long as the copy that it saves, but no memory (pytorch v2.11.0, aten/src/ATen/native/cuda/
/// Blas.cpp, `addmm_out_cuda_impl`: cuBLASLt, which adds it on the way, is for results without
/// gaps).
fn linear_in_place(output: &Tensor, left: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    let columns = weight.f_transpose(0, 1)?;
    pieces(left, weight, left.size()[0])?.write_each(0, output, left, |onto, rows| {
        let _ = match bias {
            Some(bias) => bias.f_addmm_out(onto, rows, &columns)?,
            None => rows.f_mm_out(onto, &columns)?,
        };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::{
        Error,
        cancel::{Scope, tests::after},
        pieces::Rates,
    };

    #[test]
    fn a_product_in_pieces_has_the_values_of_the_whole() {
        let _no_grad = tch::no_grad_guard();
        for kind in [Kind::Float, Kind::BFloat16] {
            let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind);
            let (left, weight, bias) = (random(&[2, 1100, 3072]), random(&[3072, 3072]), random(&[3072]));
            let whole = linear(&left, &weight, Some(&bias)).unwrap();
            let near = if kind == Kind::Float { 1e-5 } else { 1e-2 };
            let is_close = |found: &Tensor, whole: &Tensor| found.allclose(whole, near, 100.0 * near, false);
            let (check, asked) = after(usize::MAX);
            let _scope = Scope::enter(check, Rates::default());
            assert!(is_close(&linear(&left, &weight, Some(&bias)).unwrap(), &whole), "{kind:?}");
            let onto = Tensor::zeros([2200, 3072], (kind, Device::Cpu));
            linear_onto(&onto, &left.view([2200, 3072]), &weight, Some(&bias)).unwrap();
            assert!(is_close(&onto, &whole.view([2200, 3072])), "{kind:?}");
            assert!(asked.load(std::sync::atomic::Ordering::SeqCst) >= 4, "it is in pieces");
        }
    }

    #[test]
    fn a_product_in_place_has_the_values_of_one_that_is_copied() {
        let _no_grad = tch::no_grad_guard();
        for kind in [Kind::Float, Kind::BFloat16, Kind::Half] {
            let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind);
            let (left, weight, bias) = (random(&[33, 40]), random(&[24, 40]), random(&[24]));
            for bias in [None, Some(&bias)] {
                let expected = left.linear(&weight, bias).to_kind(Kind::Double);
                // Rows lie apart, and what is between them stays.
                let wide = random(&[33, 31]);
                let before = wide.copy();
                linear_in_place(&wide.narrow(1, 3, 24), &left, &weight, bias).unwrap();
                let difference = (wide.narrow(1, 3, 24).to_kind(Kind::Double) - expected).abs().max();
                let bound = if kind == Kind::Float { 1e-4 } else { 0.3 };
                assert!(f64::try_from(difference).unwrap() < bound, "{kind:?}");
                for (start, width) in [(0, 3), (27, 4)] {
                    assert_eq!(wide.narrow(1, start, width), before.narrow(1, start, width));
                }
            }
        }
    }

    #[test]
    fn no_piece_of_a_product_begins_after_the_cancellation() {
        let _no_grad = tch::no_grad_guard();
        let ones = |shape: [i64; 2]| Tensor::ones(shape, (Kind::Float, Device::Cpu));
        let (left, weight, output) = (ones([3072, 3072]), ones([3072, 3072]), ones([3072, 3072]));
        let _scope = Scope::enter(after(2).0, Rates::default());
        assert!(matches!(linear_onto(&output, &left, &weight, None), Err(Error::Cancelled)));
        let written = |row: i64| f64::try_from(output.get(row).max()).unwrap() == 3072.0;
        assert_eq!([0, 1535, 1536, 3071].map(written), [true, true, false, false]);
    }
}
