//! A sample: from files of a transformer, conditioning, noise and latents to a latent's file.

mod conditioning_shape;
mod defaults;
#[cfg(feature = "torch")]
mod generated;
#[cfg(feature = "torch")]
mod inputs;
#[cfg(feature = "torch")]
mod kept;
mod outline;
#[cfg(feature = "torch")]
mod paced;
#[cfg(feature = "torch")]
mod prepare;
mod request;
mod saved;
mod settings;
mod sizes;
#[cfg(feature = "torch")]
mod tensors;
mod way;

use std::path::{Path, PathBuf};

use tilewright_models::{Checkpoint, DenoiserConfig, DenoiserFile, Error as ModelError, Lora, LoraFit, Scaling};
use tilewright_prices::extents;

#[cfg(feature = "torch")]
pub(crate) use self::conditioning_shape::{CONDITION, IMAGE, POOLED, TEXT};
#[cfg(feature = "torch")]
pub(crate) use self::inputs::{check_conditioning, read};
use self::saved::Defaults;
pub(crate) use self::saved::text_tokens;
pub use self::{
    conditioning_shape::{MASK, NOISY, NOISY_SIGMA},
    defaults::random_seed,
    outline::{Foreseen, SampleOutline},
    request::{Asked, PromptRequest, SampleRequest, Size, Steps},
    settings::Settings,
};
#[cfg(feature = "torch")]
pub use self::{kept::KeptSample, paced::PacedSteps};
use crate::{Error, Model, Parts, Result, files::Denoiser};

/// The folders of a denoiser in a pipeline's, and that of its second expert.
pub(crate) const FOLDERS: [&str; 2] = ["transformer", "unet"];
const SECOND: &str = "transformer_2";

/// A LoRA that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraRequest {
    /// The LoRA's file.
    pub path: PathBuf,
    /// The factor of its changes.
    pub strength: f64,
    /// The expert that it is for, by its number; all of them if none is given.
    pub expert: Option<usize>,
}

/// A denoiser, and the way between its latents and the VAE's.
#[derive(Debug)]
pub struct SampleModel {
    /// The denoiser.
    pub denoiser: Denoiser,
    scaling: Scaling,
    /// The folder or file of the first transformer.
    path: PathBuf,
    /// The folder of its pipeline, if it is in one.
    pipeline: Option<PathBuf>,
    /// The settings with which its pipeline is meant to be run.
    defaults: Defaults,
    /// LoRAs by their paths and experts, with the factors that ComfyUI does not read of them; none
    /// where a strength can't express one.
    lora_factors: Vec<(PathBuf, usize, Option<f64>)>,
}

impl SampleModel {
    /// Opens a denoiser in a file or a folder, or two experts in as many: first the one for high
    /// noise. `boundary` is the sigma at which they change.
    ///
    /// # Errors
    /// A file is unsound or holds no denoiser; the experts don't go together.
    pub fn open(paths: &[PathBuf], boundary: Option<f64>) -> Result<Self> {
        Self::open_with(paths, None, boundary)
    }

    /// The same of a model's parts, with the defaults of its pipeline.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_parts(parts: &Parts, boundary: Option<f64>) -> Result<Self> {
        Self::open_with(&parts.transformers, parts.pipeline.clone(), boundary)
    }

    fn open_with(paths: &[PathBuf], pipeline: Option<PathBuf>, boundary: Option<f64>) -> Result<Self> {
        let open = |path: &Path, folders: &[&str]| -> Result<DenoiserFile> {
            let file = Checkpoint::open_part(path, folders).map_err(ModelError::from)?;
            Ok(DenoiserFile::open(file)?)
        };
        let path = paths.first().cloned().unwrap_or_default();
        let pipeline = pipeline.or_else(|| saved::pipeline_of(&path, &FOLDERS));
        let refused = |reason: String| Err(Error::input(&path, reason));
        let second = match paths {
            [folder] if folder.join(SECOND).is_dir() => Some((folder.clone(), vec![SECOND])),
            [_] => None,
            [_, low] => Some((low.clone(), FOLDERS.to_vec())),
            _ => return refused(format!("{} transformers: one, or two experts, were expected", paths.len())),
        };
        let first = open(&path, &FOLDERS)?;
        let scaling = scaling(&first.config);
        let denoiser = match second {
            None if boundary.is_some() => {
                return refused("a boundary between two experts, and one transformer: give both".into());
            }
            None => Denoiser::single(first),
            Some((low, folders)) => {
                let names =
                    [&path, &low].map(|path| path.file_name().unwrap_or_default().to_string_lossy().to_lowercase());
                if names[0].contains("low") && !names[0].contains("high") && names[1].contains("high") {
                    return refused("the expert for low noise, by its name: give the one for high noise first".into());
                }
                let usual = first.config.facts().published.boundary;
                let saved = match &pipeline {
                    Some(folder) if boundary.is_none() => saved::boundary(folder)?,
                    _ => None,
                };
                Denoiser::experts(first, open(&low, &folders)?, boundary.or(saved).unwrap_or(usual))?
            }
        };
        let defaults = pipeline.as_deref().map(Defaults::open).transpose()?.unwrap_or_default();
        Ok(Self { denoiser, scaling, defaults, path, pipeline, lora_factors: Vec::new() })
    }

    /// The same without LoRAs. Both share the files.
    #[must_use]
    pub fn without_loras(&self) -> Self {
        Self {
            denoiser: self.denoiser.without_loras(),
            scaling: self.scaling.clone(),
            path: self.path.clone(),
            pipeline: self.pipeline.clone(),
            defaults: self.defaults.clone(),
            lora_factors: Vec::new(),
        }
    }

    /// Adds a LoRA. Returns a line on what of it has no place in the denoiser, if anything.
    ///
    /// # Errors
    /// The file is unsound or no LoRA, or for another model.
    pub fn add(&mut self, request: &LoraRequest) -> Result<Option<String>> {
        let count = self.denoiser.files().len();
        let experts = match request.expert {
            Some(expert) => expert..expert + 1,
            None => 0..count,
        };
        let (mut fits, mut notes, mut second_keys) = (Vec::<LoraFit>::new(), Vec::new(), 0);
        for expert in experts {
            let lora = Lora::open(&request.path, request.strength)?;
            (notes, second_keys) = (lora.notes.clone(), lora.second_keys());
            let Some(lora) = lora.for_expert(expert) else { continue };
            // ComfyUI knows only the first of two halves.
            let unread = if expert > 0 && second_keys > 0 { None } else { lora.unread_factor() };
            self.lora_factors.push((request.path.clone(), expert, unread));
            let fit = self.denoiser.add(expert, lora)?;
            if !fits.contains(&fit) {
                fits.push(fit);
            }
        }
        let Some(text_keys) = fits.first().map(|fit| fit.text_keys) else {
            let reason = match count {
                1 => "a LoRA for the expert of low noise alone (transformer_2), and there is one transformer",
                _ => "nothing in this LoRA is for the expert that it is given to: its keys are for the other one",
            };
            return Err(Error::input(&request.path, reason));
        };
        let without = fits.into_iter().filter_map(|LoraFit { fitting, keys, first_without, .. }| {
            let first = first_without?;
            Some(format!("{} of its {keys} keys have no place in the transformer, such as {first}", keys - fitting))
        });
        let mut lines: Vec<String> = without.collect();
        if text_keys > 0 {
            lines.push(format!("{text_keys} keys are a text encoder's and left out"));
        }
        if second_keys > 0 && count == 1 {
            lines.push(format!("{second_keys} keys are for a second expert (transformer_2) and left out"));
        }
        lines.extend(notes);
        Ok((!lines.is_empty()).then(|| format!("{}: {}", request.path.display(), lines.join("; "))))
    }

    /// The factor of a LoRA that ComfyUI does not read, for an expert; none if a strength can't
    /// tell it.
    pub(crate) fn unread_factor(&self, path: &Path, expert: usize) -> Option<f64> {
        let of = |known: &&(PathBuf, usize, Option<f64>)| known.0 == path && known.1 == expert;
        self.lora_factors.iter().find(of).map_or(Some(1.0), |(_, _, factor)| *factor)
    }

    /// The same model with the scaling that its VAE specifies, if it does: that goes before the
    /// scaling of the denoiser's family.
    #[must_use]
    pub fn scaled_for(self, vae: &Model) -> Self {
        match vae.scaling() {
            Some(scaling) => Self { scaling, ..self },
            None => self,
        }
    }

    fn config(&self) -> &DenoiserConfig {
        self.denoiser.config()
    }

    /// Latent pixels along a side are pixels over the first, and frames after the first one over
    /// the second.
    pub fn scales(&self) -> [u32; 2] {
        self.config().facts().published.scales
    }

    /// Frames, height and width in pixels of what latents [N, C, (T,) h, w] become.
    pub fn extents(&self, latents: &[i64]) -> [u32; 3] {
        let [space, time] = self.scales();
        let [frames, height, width] = extents(latents).map(|extent| u32::try_from(extent).unwrap_or(u32::MAX));
        let frames = frames.saturating_sub(1).saturating_mul(time).saturating_add(1);
        [frames, height.saturating_mul(space), width.saturating_mul(space)]
    }
}

/// The way between a denoiser's latents and its VAE's, as published; none for latents of a number
/// of channels that no published VAE has.
fn scaling(config: &DenoiserConfig) -> Scaling {
    let none = Scaling::Factor { factor: 1.0, shift: 0.0 };
    match config.facts().family.scaling() {
        Some((factor, shift)) => Scaling::Factor { factor, shift },
        None => Scaling::of_wan(config.facts().latent_channels as usize).unwrap_or(none),
    }
}
