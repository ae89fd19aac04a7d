//! The tensors of samples, and the store of a denoiser's weights.

use std::path::PathBuf;

use tch::Tensor;
use tilewright_engine::{Finished, Sampled, Sampling, WeightStore};
use tilewright_media::Texts;

use super::{NOISY, NOISY_SIGMA, SampleModel, kept};
use crate::{LatentOutput, Result};

impl SampleModel {
    /// A digest by which a later run of a sample is recognised as the same: by its input, and by
    /// the settings that the user chose.
    ///
    /// # Errors
    /// Memory is out.
    pub fn fingerprint(&self, sampling: &Sampling, chosen: &[(&str, &str)]) -> Result<String> {
        kept::fingerprint(self, sampling, chosen)
    }

    /// Leases weights from this store, which other models may share, instead of from one of its
    /// own.
    #[must_use]
    pub fn sharing(self, weights: &WeightStore) -> Self {
        Self { denoiser: self.denoiser.sharing(weights), ..self }
    }

    /// Latents of the model's own space in that of the VAE.
    ///
    /// # Errors
    /// Memory is out.
    pub fn to_vae(&self, latents: &Tensor) -> Result<Tensor> {
        Ok(self.scaling.undo(latents)?)
    }

    /// Latents of the VAE's space in that of the model.
    ///
    /// # Errors
    /// As [`Self::to_vae`].
    pub fn from_vae(&self, latents: &Tensor) -> Result<Tensor> {
        Ok(self.scaling.apply(latents)?)
    }

    /// Writes a sample's latents in the VAE's space with texts and its record, and the noise that
    /// the last sigma leaves in them, if there is any. Returns the file's name.
    ///
    /// # Errors
    /// Memory is out, or the file can't be written.
    pub fn write(
        &self,
        output: &LatentOutput,
        Finished { output: sampled, record, .. }: &Finished<Sampled, tilewright_plan::Denoise>,
        texts: &Texts,
    ) -> Result<PathBuf> {
        let noisy = sampled.noisy.as_ref().map(|(noisy, sigma)| -> Result<_> {
            Ok([(NOISY, noisy.shallow_clone()), (NOISY_SIGMA, Tensor::f_from_slice(&[*sigma])?)])
        });
        let noisy = noisy.transpose()?;
        output.write_with(&self.to_vae(&sampled.latents)?, noisy.as_ref().map_or(&[], |noisy| noisy), texts, record)
    }
}
