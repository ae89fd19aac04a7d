//! The noise that a seed stands for.

use tch::Tensor;

use crate::{Result, ffi, scalar::new_tensor};

/// Standard normal noise in f32: as `torch.manual_seed(seed); torch.randn(shape)` gives it on the
/// CPU, by a generator of its own.
///
/// # Errors
/// Memory is out.
pub fn noise(seed: u64, shape: &[i64]) -> Result<Tensor> {
    // SAFETY: the shape is valid for its length; `new_tensor` gives places for result and error.
    new_tensor(|result, error, length| unsafe {
        ffi::tw_noise(seed, shape.as_ptr(), shape.len() as i64, result, error, length)
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn a_seed_gives_pytorchs_noise() {
        let values = |seed, shape: &[i64]| Vec::<f32>::try_from(noise(seed, shape).unwrap().reshape([-1])).unwrap();
        assert_eq!(values(7, &[2, 9]), values(7, &[2, 9]));
        assert_ne!(values(7, &[2, 9]), values(8, &[2, 9]));
        // torch 2.11.0: torch.manual_seed(0); torch.randn(3)
        let expected = [1.540_996_1_f32, -0.293_428_87, -2.178_789_4];
        let found = values(0, &[3]);
        assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-5), "{found:?}");
        // From 16 values on libtorch fills whole vectors.
        for (seed, count) in [(7, 15), (7, 16), (i64::MAX, 1000), (-1, 77)] {
            tch::manual_seed(seed);
            let expected = Vec::<f32>::try_from(Tensor::randn([count], (Kind::Float, Device::Cpu))).unwrap();
            assert_eq!(values(seed.cast_unsigned(), &[count]), expected, "{seed}");
        }
    }
}
