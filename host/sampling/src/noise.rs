//! The noise that a seed stands for.

use std::sync::Mutex;

use tch::{Device, Kind, Tensor};

/// libtorch's generator on the CPU belongs to the whole process.
static GENERATOR: Mutex<()> = Mutex::new(());

/// Standard normal noise in f32: as `torch.manual_seed(seed); torch.randn(shape)` gives it on the
/// CPU.
///
/// # Errors
/// Memory is out.
pub fn noise(seed: u64, shape: &[i64]) -> tilewright_torch::Result<Tensor> {
    let _alone = GENERATOR.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    tch::manual_seed(seed.cast_signed());
    Ok(Tensor::f_randn(shape, (Kind::Float, Device::Cpu))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_noise_again() {
        let values = |seed| Vec::<f32>::try_from(noise(seed, &[2, 9]).unwrap().reshape([-1])).unwrap();
        assert_eq!(values(7), values(7));
        assert_ne!(values(7), values(8));
        // torch 2.11.0: torch.manual_seed(0); torch.randn(3)
        let expected = [1.540_996_1_f32, -0.293_428_87, -2.178_789_4];
        let found = Vec::<f32>::try_from(noise(0, &[3]).unwrap()).unwrap();
        assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-5), "{found:?}");
        assert_eq!(values(u64::MAX).len(), 18);
    }
}
