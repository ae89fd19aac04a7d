//! The noise that a seed stands for.

use std::{ffi::c_void, ptr};

use tch::Tensor;

use crate::{Result, ffi, scalar::new_tensor};

/// Standard normal noise in f32: as `torch.manual_seed(seed); torch.randn(shape)` gives it on the
/// CPU, by a generator of its own.
///
/// # Errors
/// Memory is out.
pub fn noise(seed: u64, shape: &[i64]) -> Result<Tensor> {
    NoiseStream::new(seed)?.draw(shape)
}

/// A generator of noise, which goes on from draw to draw as PyTorch's on the CPU does.
#[derive(Debug)]
pub struct NoiseStream(*mut c_void);

// SAFETY: the generator is only reached through this owner, one call at a time.
unsafe impl Send for NoiseStream {}

impl Drop for NoiseStream {
    fn drop(&mut self) {
        // SAFETY: it was made by `tw_generator_create`, and is not used after this.
        unsafe { ffi::tw_generator_destroy(self.0) };
    }
}

impl NoiseStream {
    /// The generator of a seed.
    ///
    /// # Errors
    /// Memory is out.
    pub fn new(seed: u64) -> Result<Self> {
        let mut generator = ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        unsafe { ffi::tw_generator_create(seed, &raw mut generator) }?;
        Ok(Self(generator))
    }

    /// The next standard normal values, in f32 on the CPU.
    ///
    /// # Errors
    /// Memory is out.
    pub fn draw(&mut self, shape: &[i64]) -> Result<Tensor> {
        // SAFETY: the generator is alive, the shape is valid for its length; `new_tensor` gives
        // the place of the result.
        new_tensor(|result| unsafe { ffi::tw_generator_draw(self.0, shape.as_ptr(), shape.len() as i64, result) })
    }
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
            // A generator goes on where the last draw ended.
            let mut stream = NoiseStream::new(seed.cast_unsigned()).unwrap();
            tch::manual_seed(seed);
            for _ in 0..3 {
                let expected = Vec::<f32>::try_from(Tensor::randn([count], (Kind::Float, Device::Cpu))).unwrap();
                assert_eq!(Vec::<f32>::try_from(stream.draw(&[count]).unwrap()).unwrap(), expected, "{seed}");
            }
        }
    }
}
