//! Latents that are tensors, and the noise of samplers for them.

use std::marker::PhantomData;

use tch::{Device, Kind, Tensor};
use tilewright_torch::{Error as TorchError, NoiseStream, copy, noise, scalar};

use crate::{Latents, Noise, NoiseKind, Sampler, brownian::BrownianNoise};

/// Latents in f32, on any device. `E` is the error of the model that samplers ask.
#[derive(Debug)]
pub struct Tensors<E>(Tensor, PhantomData<fn() -> E>);

impl<E> Tensors<E> {
    /// Latents in f32.
    pub fn new(tensor: Tensor) -> Self {
        Self(tensor, PhantomData)
    }

    /// The tensor, which is never written to.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }
}

impl<E: From<TorchError>> Latents for Tensors<E> {
    type Scalar = f32;
    type Error = E;

    fn combine(terms: &[(f32, &Self)]) -> Result<Self, E> {
        let sum = || -> tilewright_torch::Result<Tensor> {
            let mut sum: Option<Tensor> = None;
            for (factor, Self(tensor, _)) in terms {
                let term = match *factor {
                    1.0 => tensor.shallow_clone(),
                    factor => scalar::multiply(tensor, f64::from(factor))?,
                };
                sum = Some(match sum {
                    Some(sum) => sum.f_add(&term)?,
                    None => term,
                });
            }
            sum.ok_or_else(|| TorchError::Torch("a sum of no latents".into()))
        };
        Ok(Self::new(sum()?))
    }

    fn share(&self) -> Self {
        Self::new(self.0.shallow_clone())
    }

    fn deviation(low: &Self, high: &Self, previous: &Self, absolute: f32, relative: f32) -> Result<f32, E> {
        let mean = || -> tilewright_torch::Result<f64> {
            let largest = low.0.f_abs()?.f_maximum(&previous.0.f_abs()?)?;
            let allowed =
                scalar::clamp_min_in_place(scalar::multiply(&largest, f64::from(relative))?, absolute.into())?;
            let apart = low.0.f_sub(&high.0)?.f_div(&allowed)?;
            Ok(f64::try_from(&apart.f_mul(&apart)?.f_mean(Kind::Double)?)?)
        };
        Ok(mean()?.sqrt() as f32)
    }
}

/// A way to noise.
enum Way {
    Silent,
    Independent(NoiseStream),
    Brownian(BrownianNoise),
}

impl Way {
    fn new(sampler: Sampler, seed: u64, sigmas: &[f32], draws: usize, shape: &[i64]) -> tilewright_torch::Result<Self> {
        Ok(match sampler.noise() {
            NoiseKind::None => Way::Silent,
            NoiseKind::Independent => {
                let mut stream = NoiseStream::new(seed.wrapping_add(1))?;
                for _ in 0..draws {
                    drop(stream.draw(shape)?);
                }
                Way::Independent(stream)
            }
            NoiseKind::Brownian => {
                let above = sigmas.iter().copied().filter(|sigma| *sigma > 0.0);
                let [least, most] = [above.clone().fold(f32::INFINITY, f32::min), above.fold(0.0, f32::max)];
                Way::Brownian(BrownianNoise::new(shape, least, most, seed)?)
            }
        })
    }

    fn next(&mut self, from: f32, to: f32, shape: &[i64]) -> tilewright_torch::Result<Tensor> {
        match self {
            Way::Silent => Err(TorchError::Torch("noise of a sampler that has none".into())),
            Way::Independent(stream) => stream.draw(shape),
            Way::Brownian(noise) => noise.draw(from, to),
        }
    }
}

/// The noise that seeds stand for: one seed for a whole batch, or one for each of its samples.
///
/// # Errors
/// Memory is out.
pub fn noise_of(seeds: &[u64], shape: &[i64]) -> tilewright_torch::Result<Tensor> {
    let (shape, seeds) = each(seeds, shape);
    let all = seeds.iter().map(|seed| noise(*seed, &shape)).collect::<tilewright_torch::Result<Vec<Tensor>>>()?;
    Ok(Tensor::f_cat(&all, 0)?)
}

/// The shape that each seed makes noise of.
fn each<'a>(seeds: &'a [u64], shape: &[i64]) -> (Vec<i64>, &'a [u64]) {
    let mut shape = shape.to_vec();
    if seeds.len() > 1 {
        shape[0] = 1;
    }
    (shape, seeds)
}

/// The noise that a sampler adds on its way: that of ComfyUI, drawn on the CPU whatever the device.
pub struct SamplerNoise {
    ways: Vec<Way>,
    shape: Vec<i64>,
    device: Device,
}

impl SamplerNoise {
    /// The noise of seeds, one for the batch or one for each sample, for latents of a shape, along
    /// sigmas of which `draws` are behind. Seeds of independent noise are one more than those of
    /// the first noise, as on a CPU in ComfyUI.
    ///
    /// # Errors
    /// Memory is out, or the sigmas are too far apart for Brownian noise.
    pub fn new(
        sampler: Sampler,
        seeds: &[u64],
        sigmas: &[f32],
        draws: usize,
        shape: &[i64],
        device: Device,
    ) -> tilewright_torch::Result<Self> {
        let (shape, seeds) = each(seeds, shape);
        let ways = seeds.iter().map(|seed| Way::new(sampler, *seed, sigmas, draws, &shape));
        Ok(Self { ways: ways.collect::<tilewright_torch::Result<Vec<Way>>>()?, shape, device })
    }

    /// The next noise, for the way between two sigmas.
    ///
    /// # Errors
    /// Memory is out, or the sigmas are the same.
    pub fn next(&mut self, from: f32, to: f32) -> tilewright_torch::Result<Tensor> {
        let shape = &self.shape;
        let all = self.ways.iter_mut().map(|way| way.next(from, to, shape));
        let all = all.collect::<tilewright_torch::Result<Vec<Tensor>>>()?;
        copy(&Tensor::f_cat(&all, 0)?.f_to_device(self.device)?)
    }
}

impl<E: From<TorchError>> Noise<Tensors<E>> for SamplerNoise {
    fn draw(&mut self, from: f32, to: f32) -> Result<Tensors<E>, E> {
        Ok(Tensors::new(self.next(from, to)?))
    }
}
