//! The colours of latents without their decoder: a linear map from a latent pixel's channels to
//! red, green and blue, fitted to the decoder that the user has. Nothing about any model is built
//! in.

use std::path::Path;

use tch::{Device, Kind, Tensor};
use tilewright_engine::{Machine, Observer};
use tilewright_media::Frame;
use tilewright_plan::{Objective, Planner};
use tilewright_torch::{noise, scalar};

use crate::{Decode, Error, FrameStore, Model, Result, SampleModel, frame};

/// The side of the latents that the map is fitted to, and of the squares of one colour in them:
/// decoders answer to neighbours, too, and pictures are smooth for the most part.
const SIDE: i64 = 32;
const SQUARE: i64 = 4;

/// The share of the values that vary within a square.
const FINE: f64 = 0.3;

/// Keeps the fit sound where channels say nothing, as a share of the number of pixels.
const RIDGE: f64 = 1e-4;

/// The seed of the latents that the map is fitted to.
const SEED: u64 = 1;

/// The most pixels along a side of a preview.
const MOST_SIDE: i64 = 512;

/// A map from latents in a transformer's space to colours.
#[derive(Debug)]
pub struct LatentMap {
    /// [channels + 1, 3], row by row: the last row is the colour of zeros. Values, since tensors
    /// don't go to other threads.
    weights: Vec<f32>,
    /// Pixels of a preview along a side for each of the latent.
    scale: i64,
}

/// The observer of a fit, which nobody waits for.
struct Unobserved;

impl Observer for Unobserved {}

impl LatentMap {
    /// Checks that a VAE takes a transformer's latents; `path` is the VAE's, for errors.
    ///
    /// # Errors
    /// It is of another model.
    pub fn check(transformer: &SampleModel, (vae, path): (&Model, &Path)) -> Result<()> {
        let config = transformer.denoiser.config();
        let (channels, own) = (config.facts().latent_channels, vae.latent_channels() as i64);
        if channels != own || config.facts().is_video != vae.is_video() {
            let kind = |is_video| if is_video { "clips" } else { "pictures" };
            let reason = format!(
                "a VAE of {} with {own} channels, and the transformer makes {} with {channels}: give the VAE that it was trained with",
                kind(vae.is_video()),
                kind(config.facts().is_video)
            );
            return Err(Error::input(path, reason));
        }
        Ok(())
    }

    /// Decodes a latent of noise by a planner's plan, and fits the map to what comes out. This
    /// takes as long as a picture of 256 × 256 pixels, and holds the VAE's weights meanwhile.
    /// `path` is the VAE's, for errors.
    ///
    /// # Errors
    /// The VAE is of another model than the transformer; the decode does not fit into the limit, or
    /// fails.
    pub fn fit(
        machine: &Machine,
        transformer: &SampleModel,
        (vae, path): (&Model, &Path),
        planner: &mut dyn Planner,
        memory_limit: u64,
    ) -> Result<Self> {
        Self::check(transformer, (vae, path))?;
        let channels = transformer.denoiser.config().facts().latent_channels;
        let latents = noise_field(channels)?;
        let input =
            transformer.to_vae(&if vae.is_video() { latents.f_unsqueeze(2)? } else { latents.shallow_clone() })?;
        let job = Decode::new(machine, vae, &input, memory_limit, Objective::Balanced)?;
        let mut frames = FrameStore::new(true);
        let decoded = job.run(planner, &mut Unobserved, &mut frames, &[0]);
        decoded.map_err(|unfinished| unfinished.error)?;
        let picture = frames.tensor()?.f_narrow(0, 0, 1)?.f_narrow(1, 0, 3)?;
        let scale = i64::from(vae.spatial_scale());
        let colours = picture.f_adaptive_avg_pool2d([SIDE, SIDE])?;
        let rows = |tensor: &Tensor, width: i64| {
            tensor.f_permute([0, 2, 3, 1])?.f_reshape([-1, width])?.f_to_kind(Kind::Double)
        };
        let ones = Tensor::f_ones([SIDE * SIDE, 1], (Kind::Double, Device::Cpu))?;
        let values = Tensor::f_cat(&[rows(&latents, channels)?, ones], 1)?;
        let square = values.f_transpose(0, 1)?.f_matmul(&values)?;
        let ridge = Tensor::f_eye(channels + 1, (Kind::Double, Device::Cpu))?;
        let ridge = scalar::multiply(&ridge, RIDGE * (SIDE * SIDE) as f64)?;
        let wanted = values.f_transpose(0, 1)?.f_matmul(&rows(&colours, 3)?)?;
        let weights = Tensor::f_linalg_solve(&square.f_add(&ridge)?, &wanted, true)?;
        let weights = Vec::try_from(&weights.f_to_kind(Kind::Float)?.f_reshape([-1])?)?;
        Ok(Self { weights, scale })
    }

    /// A picture of latents [N, C, h, w] or [N, C, T, h, w]: samples side by side, the middle frame
    /// of clips.
    ///
    /// # Errors
    /// The latents are of another model; memory is out.
    pub fn picture(&self, latents: &Tensor) -> Result<Frame> {
        let latents = latents.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?;
        let latents = match latents.dim() {
            5 => latents.f_select(2, latents.size()[2] / 2)?,
            _ => latents,
        };
        let pixels = latents.f_permute([0, 2, 3, 1])?;
        let weights = Tensor::f_from_slice(&self.weights)?.f_reshape([-1, 3])?;
        let channels = weights.size()[0] - 1;
        let colours = pixels.f_matmul(&weights.f_narrow(0, 0, channels)?)?;
        let colours = colours.f_add(&weights.f_narrow(0, channels, 1)?)?.f_permute([0, 3, 1, 2])?;
        let row: Vec<Tensor> =
            (0..colours.size()[0]).map(|sample| colours.f_narrow(0, sample, 1)).collect::<Result<_, _>>()?;
        let row = Tensor::f_cat(&row, 3)?;
        let [height, width] = [row.size()[2], row.size()[3]];
        let scale = (MOST_SIDE / height.max(width).max(1)).clamp(1, self.scale);
        let size = [height * scale, width * scale];
        let row = row.f_upsample_bilinear2d(size, false, None::<f64>, None::<f64>)?;
        Ok(frame(&scalar::clamp(&row, -1.0, 1.0)?.f_squeeze_dim(0)?)?)
    }
}

/// Noise [1, C, side, side] of squares with a little of their own in each pixel.
fn noise_field(channels: i64) -> Result<Tensor> {
    let field = |side: i64, seed: u64| noise(seed, &[1, channels, side, side]);
    let coarse = field(SIDE / SQUARE, SEED)?.f_upsample_nearest2d([SIDE, SIDE], None::<f64>, None::<f64>)?;
    let fine = scalar::multiply(&field(SIDE, SEED + 1)?, FINE)?;
    Ok(coarse.f_add(&fine)?)
}
