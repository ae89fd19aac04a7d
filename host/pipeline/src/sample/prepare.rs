//! The preparation of a sample: the files of its outline are read, noise is drawn, and both become
//! the input of a job.

use std::path::Path;

use tch::Tensor;
use tilewright_engine::{Kept, Prompt, Sampling};
use tilewright_sampling::{Convention, noise_of};

use super::{
    SampleModel, SampleOutline, SampleRequest, Steps,
    conditioning_shape::ConditioningShape,
    inputs::{self, Conditioning, read},
    outline::NOISE,
    way::Way,
};
use crate::Result;

/// The tensors of a request's conditionings.
struct Conditionings {
    positive: Vec<Conditioning>,
    negative: Vec<Conditioning>,
}

impl Conditionings {
    fn read(request: &SampleRequest, outline: &SampleOutline) -> Result<Self> {
        let read = |asked: &[super::PromptRequest], shapes: &[ConditioningShape], positive: Option<&Conditioning>| {
            let both = asked.iter().zip(shapes);
            both.map(|(asked, shape)| Conditioning::read(&asked.path, shape, positive)).collect::<Result<Vec<_>>>()
        };
        let positive = read(&request.conditioning, &outline.conditionings, None)?;
        let negative = read(&request.negative, &outline.negatives, positive.first())?;
        Ok(Self { positive, negative })
    }
}

impl SampleModel {
    /// Reads the files of a request and checks that they go together.
    ///
    /// # Errors
    /// A file is unsound, of another model, or of another size.
    pub fn prepare(&self, request: &SampleRequest) -> Result<Sampling> {
        let outline = self.outline(request)?;
        let shape = outline.shape.latents.clone();
        let Conditionings { positive, negative } = Conditionings::read(request, &outline)?;
        let latent = request.latent.as_ref().map(|path| self.latent(path)).transpose()?;
        let first_noise = match &request.noise {
            Some(path) => read(path, NOISE)?.checked(&shape)?,
            None if request.adds_noise => noise_of(&request.seeds, &shape)?,
            None => tilewright_torch::scalar::full(&shape, 0.0, (tch::Kind::Float, tch::Device::Cpu))?,
        };
        let Way { sampler, sigmas, model, whole_timesteps, .. } = outline.way;
        let kept = latent.map(|latent| latent.f_expand(&shape, false)?.f_contiguous()).transpose()?;
        let [mut new, old] = model.noise_factors(sigmas.first().copied().unwrap_or(1.0), true);
        let begins =
            matches!(&request.steps, Steps::Count { span, scheduler: None, .. } if span.start.unwrap_or(0) == 0);
        if request.convention == Convention::Diffusers && kept.is_none() && begins {
            // Pipelines of diffusers begin with the noise as it is, also a little below the largest
            // sigma.
            new = 1.0;
        }
        let mut latents = tilewright_torch::scalar::multiply(&first_noise, new)?;
        if let Some(kept) = &kept {
            latents = latents.f_add(&tilewright_torch::scalar::multiply(kept, old)?)?;
        }
        if let (false, Some(path)) = (request.adds_noise, &request.latent)
            && let Some(noisy) = inputs::noisy(path, &shape, sigmas.first().copied().unwrap_or_default())?
        {
            latents = noisy;
        }
        let kept = match (&request.mask, kept) {
            (Some(path), Some(latents)) => {
                Some(Kept { latents, mask: inputs::mask(path, &shape)?, clean: self.keeps_clean() })
            }
            _ => None,
        };
        let condition = positive.first().map(|first| first.condition(&shape)).transpose()?.flatten();
        let prompts = |all: Vec<Conditioning>, within: Vec<[f64; 2]>| -> Vec<Prompt> {
            let both = all.into_iter().zip(within);
            both.map(|(of, within)| Prompt { tensors: of.tensors, within }).collect()
        };
        Ok(Sampling {
            latents,
            noise: match &kept {
                None => None,
                Some(_) if sampler.has_other_mask_noise() => {
                    let next: Vec<u64> = request.seeds.iter().map(|seed| seed.wrapping_add(1)).collect();
                    Some(noise_of(&next, &shape)?)
                }
                Some(_) => Some(first_noise),
            },
            positive: prompts(positive, outline.within.positive),
            negative: prompts(negative, outline.within.negative),
            condition,
            kept,
            guidance: outline.shape.guidance,
            cfg: request.cfg,
            sigmas,
            sampler,
            model,
            whole_timesteps,
            seeds: request.seeds.clone(),
            reuse: request.reuse,
        })
    }

    /// Reads the values of a request's files one after the other and keeps none: those of a request
    /// that only waits, or is never carried out, are sound.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn check_values(&self, request: &SampleRequest, outline: &SampleOutline) -> Result<()> {
        Conditionings::read(request, outline)?;
        request.latent.as_ref().map(|path| self.latent(path)).transpose()?;
        request.noise.as_ref().map(|path| read(path, NOISE)).transpose()?;
        request.mask.as_ref().map_or(Ok(()), |path| self.check_mask(path, outline))
    }

    /// Reads the mask of a sample and keeps none of it.
    ///
    /// # Errors
    /// It is unsound, or of another size.
    pub fn check_mask(&self, path: &Path, outline: &SampleOutline) -> Result<()> {
        inputs::mask(path, &outline.shape.latents).map(drop)
    }

    /// Latents of a file, in the model's own space. Those that are all zero, as an empty latent's,
    /// stay zero.
    fn latent(&self, path: &Path) -> Result<Tensor> {
        let values = self.latent_file(path)?.0.read()?.values;
        let values = if self.config().facts().is_video { values } else { values.f_squeeze_dim(2)? };
        let is_empty = f64::try_from(&values.f_abs()?.f_max()?)? == 0.0;
        if is_empty { Ok(values) } else { Ok(self.scaling.apply(&values)?) }
    }
}
