//! The peak signal-to-noise ratio of tensors.

use tch::{Kind, Tensor};

use crate::Result;

/// The PSNR in dB of values whose reference spans `peak`, both of one shape; infinite if they are
/// the same.
///
/// # Errors
/// The shapes differ; memory is out.
pub fn over(values: &Tensor, reference: &Tensor, peak: f64) -> Result<f64> {
    let square = values.f_sub(reference)?.f_square()?.f_mean(Kind::Double)?.f_double_value(&[])?;
    Ok(10.0 * (peak * peak / square).log10())
}

/// The PSNR in dB over the span of the reference's own values, for tensors without a fixed one,
/// such as latents.
///
/// # Errors
/// As [`over`].
pub fn over_span(values: &Tensor, reference: &Tensor) -> Result<f64> {
    let span = reference.f_max()?.f_sub(&reference.f_min()?)?.f_double_value(&[])?;
    over(values, reference, span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_span_is_twenty_decibels() {
        let reference = Tensor::from_slice(&[-1.0_f32, 0.0, 3.0, 1.0]);
        let values = Tensor::from_slice(&[-0.6_f32, 0.4, 3.4, 1.4]);
        assert!((over_span(&values, &reference).unwrap() - 20.0).abs() < 1e-5);
        assert!((over(&values, &reference, 40.0).unwrap() - 40.0).abs() < 1e-5);
        assert!(over_span(&reference, &reference).unwrap().is_infinite());
        assert!(over(&values, &Tensor::from_slice(&[1.0_f32; 3]), 1.0).is_err());
    }
}
