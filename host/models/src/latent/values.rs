//! A latent with its values.

use std::path::{Path, PathBuf};

use tch::{Device, Kind, Tensor};
use tilewright_torch::{non_finite, scalar};

use super::{COMFYUI_LEGACY, Extents, Form, LatentFile, Origin, Scaling};
use crate::{DecoderConfig, Error, Result};

impl Scaling {
    /// A latent of the autoencoder's own space as the model has it: (z − shift) · factor, or (z −
    /// mean) / std with the channels along the second axis.
    ///
    /// # Errors
    /// The latents have another number of channels, or memory is out.
    pub fn apply(&self, latents: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Scaling::Factor { factor, shift } => scalar::multiply(&scalar::add(latents, -*shift)?, *factor)?,
            Scaling::PerChannel { mean, std } => {
                latents.f_sub(&per_channel(mean, latents)?)?.f_div(&per_channel(std, latents)?)?
            }
        })
    }

    /// A latent of the model's in the autoencoder's own space: z / factor + shift, or z · std +
    /// mean.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub fn undo(&self, latents: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Scaling::Factor { factor, shift } => scalar::add(&scalar::divide(latents, *factor)?, *shift)?,
            Scaling::PerChannel { mean, std } => {
                latents.f_mul(&per_channel(std, latents)?)?.f_add(&per_channel(mean, latents)?)?
            }
        })
    }
}

/// A value for each channel beside latents, in f32.
fn per_channel(values: &[f64], latents: &Tensor) -> Result<Tensor> {
    let mut shape = vec![1; latents.dim()];
    shape[1] = -1;
    let values = Tensor::f_from_slice(values)?.f_to_kind(Kind::Float)?;
    Ok(values.f_to_device(latents.device())?.f_reshape(&shape)?)
}

/// A latent that can be decoded.
#[derive(Debug)]
pub struct Latent {
    /// Path of its file.
    pub path: PathBuf,
    /// The program that saved it.
    pub origin: Origin,
    /// [N, C, T, h, w] in f32, finite; a picture has one frame.
    pub values: Tensor,
    /// ComfyUI's `prompt`, `workflow` and the file's other texts, by name, sorted.
    pub texts: Vec<(String, String)>,
}

impl LatentFile {
    /// Reads the values.
    ///
    /// # Errors
    /// The values are not finite, or memory runs out.
    pub fn read(self) -> Result<Latent> {
        let Self { file, tensor, origin, form } = self;
        let found = file.shape(&tensor).unwrap_or_default();
        let extents = form.size.map(|extent| extent as i64);
        let mut values = file.load(&tensor, found, Kind::Float, Device::Cpu)?.f_reshape(extents)?;
        let bad = non_finite(&values)?;
        if bad > 0 {
            let reason = format!(
                "{bad} of {} values of tensor {tensor} are NaN or infinite: the sampler that made it failed, sample again (perhaps in bf16 or f32)",
                values.numel()
            );
            return Err(Error::Latent { path: form.path, reason });
        }
        if origin == Origin::ComfyUiLegacy {
            values = scalar::multiply(&values, COMFYUI_LEGACY)?;
        }
        let mut texts: Vec<_> = file.texts().iter().map(|(name, text)| (name.clone(), text.clone())).collect();
        texts.sort();
        Ok(Latent { path: form.path, origin, values, texts })
    }
}

impl Latent {
    /// Reads a latent as [`LatentFile::open`] finds it, for any model.
    ///
    /// # Errors
    /// As [`LatentFile::open`] and [`LatentFile::read`].
    pub fn read(path: &Path, tensor: Option<&str>) -> Result<Self> {
        LatentFile::open(path, tensor)?.read()
    }

    pub(super) fn form(&self) -> Form {
        let size = self.values.size();
        Form { path: self.path.clone(), size: std::array::from_fn(|axis| size[axis] as u64) }
    }

    /// The latent's extents.
    pub fn extents(&self) -> Extents {
        self.form().extents()
    }

    /// The values as pictures, [N, C, h, w].
    ///
    /// # Errors
    /// It is a clip of several frames.
    pub fn pictures(&self) -> Result<Tensor> {
        match self.extents().frames {
            1 => Ok(self.values.f_squeeze_dim(2)?),
            frames => Err(self.form().refuse(format!("the latent has {frames} frames: it is a clip, not a picture"))),
        }
    }

    /// Checks that a decoder can take it.
    ///
    /// # Errors
    /// The channels differ, it is a clip and the decoder is one of pictures, or the pictures or the
    /// clip would be absurdly large or long.
    pub fn check(&self, config: &impl DecoderConfig) -> Result<()> {
        self.form().check(config)
    }

    /// Undoes a model's scaling (diffusers' `AutoencoderKL` and `AutoencoderKLWan` pipelines).
    ///
    /// # Errors
    /// Memory runs out, or the channels are not as many as the scaling has.
    pub fn unscale(&mut self, scaling: &Scaling) -> Result<()> {
        self.values = scaling.undo(&self.values)?;
        Ok(())
    }
}
