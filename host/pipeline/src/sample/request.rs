//! The request for a sample: its files, its size and its steps.

use std::{path::PathBuf, str::FromStr};

use tilewright_sampling::{Convention, Sampler, Scheduler, Span};

use super::LoraRequest;

/// The size of a sample that has no latent to begin from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Frames of a clip.
    pub frames: u32,
}

/// The sigmas that are asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Steps {
    /// By hand.
    Sigmas(Vec<f64>),
    /// So many, along the model's own sigmas.
    Count {
        /// Steps; the model's usual number if none is given.
        steps: Option<u32>,
        /// The share of the way from noise that is gone.
        strength: f64,
        /// The scheduler; that of the reference if none is given.
        scheduler: Option<Scheduler>,
        /// The part of the steps that is taken.
        span: Span,
    },
}

/// The settings of a prompt's picture or clip that are asked for: where nothing is, the model's
/// defaults count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Width and height in pixels.
    pub size: Option<[u32; 2]>,
    /// Frames of a clip.
    pub frames: Option<u32>,
    /// Samples of one seed.
    pub batch: Option<u32>,
    /// One seed, or one for each sample; 0 if there is none.
    pub seeds: Vec<u64>,
    /// Steps.
    pub steps: Option<u32>,
    /// Sigmas by hand, in place of steps.
    pub sigmas: Option<Vec<f64>>,
    /// The sampler.
    pub sampler: Option<Sampler>,
    /// The scheduler.
    pub scheduler: Option<Scheduler>,
    /// The shift of sigmas.
    pub shift: Option<f64>,
    /// The guidance of a network that has it as an input.
    pub guidance: Option<f64>,
    /// The factor of guidance by a negative prompt.
    pub cfg: Option<f64>,
    /// The share of the way from noise that is gone.
    pub denoise: Option<f64>,
    /// The change of the network's output up to which the last one may serve once more.
    pub reuse: Option<f64>,
    /// The reference that is followed.
    pub convention: Convention,
}

/// A request for a sample.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// Conditionings; at least one.
    pub conditioning: Vec<PromptRequest>,
    /// The conditionings that guidance leads away from.
    pub negative: Vec<PromptRequest>,
    /// The size, if there is no latent.
    pub size: Option<Size>,
    /// Latents to begin from, in the VAE's own space.
    pub latent: Option<PathBuf>,
    /// Noise; else that of the seed.
    pub noise: Option<PathBuf>,
    /// Samples; else as many as the noise, the latent or the conditioning has.
    pub batch: Option<u32>,
    /// A mask: 1 where latents are made again.
    pub mask: Option<PathBuf>,
    /// The seed of the noise, also of that which the sampler adds; or one for each sample.
    pub seeds: Vec<u64>,
    /// The noise of the first sigma is added; else the latent has it already.
    pub adds_noise: bool,
    /// The sampler; that of the reference if none is given.
    pub sampler: Option<Sampler>,
    /// Sigmas.
    pub steps: Steps,
    /// The shift of the model's sigmas, in place of its own.
    pub shift: Option<f64>,
    /// The guidance of a network that has it as an input.
    pub guidance: Option<f64>,
    /// The factor of guidance by a negative conditioning.
    pub cfg: f64,
    /// The change of the network's output up to which the last one may serve once more.
    pub reuse: Option<f64>,
    /// The reference that is followed.
    pub convention: Convention,
    /// The most values of the latents, all samples together: more are refused before any is made.
    pub most_values: u64,
    /// The most samples of a batch, wherever its size comes from.
    pub most_samples: u64,
}

/// A conditioning that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptRequest {
    /// The conditioning's file.
    pub path: PathBuf,
    /// The parts of the way from noise (0) to the sample (1) between which it counts; all of it if
    /// none is given.
    pub within: Option<[f64; 2]>,
}

impl SampleRequest {
    /// The most values of latents where nobody bounds them otherwise: more is a slip.
    pub const MOST_VALUES: u64 = 1 << 38;

    /// The most samples of a batch where nobody bounds them otherwise: a plan divides them one by
    /// one.
    pub const MOST_SAMPLES: u64 = 1 << 16;

    /// A sample of a size from the noise of seed 0, with `steps` steps of the model's defaults.
    pub fn plain(conditioning: Vec<PromptRequest>, size: Size, steps: u32) -> Self {
        Self {
            conditioning,
            negative: Vec::new(),
            size: Some(size),
            latent: None,
            noise: None,
            batch: None,
            mask: None,
            seeds: vec![0],
            adds_noise: true,
            sampler: None,
            steps: Steps::Count { steps: Some(steps), strength: 1.0, scheduler: None, span: Span::default() },
            shift: None,
            guidance: None,
            cfg: 1.0,
            reuse: None,
            convention: Convention::default(),
            most_values: Self::MOST_VALUES,
            most_samples: Self::MOST_SAMPLES,
        }
    }
}

impl FromStr for PromptRequest {
    type Err = String;

    /// A conditioning's file, with the part of the way that it is for behind it. A file whose own
    /// name ends so is taken as it is.
    fn from_str(text: &str) -> Result<Self, String> {
        let whole = PromptRequest { path: text.into(), within: None };
        let Some((path, part)) = text.rsplit_once('@').filter(|(path, _)| !path.is_empty() && !whole.path.exists())
        else {
            return Ok(whole);
        };
        let number = |text: &str| text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
        let within = part.split_once('-').and_then(|(start, end)| Some([number(start)?, number(end)?]));
        let within = within.filter(|[start, end]| start < end);
        let within = within
            .ok_or("expected a file, or FILE@START-END with parts of the way from 0 to 1, as x.safetensors@0-0.4")?;
        Ok(PromptRequest { path: path.into(), within: Some(within) })
    }
}

impl FromStr for LoraRequest {
    type Err = String;

    /// A LoRA's file, with its strength and the expert that it is for behind it. A file whose own
    /// name ends so is taken as it is.
    fn from_str(text: &str) -> Result<Self, String> {
        let whole = LoraRequest { path: text.into(), strength: 1.0, expert: None };
        if whole.path.exists() {
            return Ok(whole);
        }
        let (rest, expert) = match (text.strip_suffix("@high"), text.strip_suffix("@low")) {
            (Some(rest), _) => (rest, Some(0)),
            (_, Some(rest)) => (rest, Some(1)),
            _ => (text, None),
        };
        let (path, strength) = match rest.rsplit_once(':') {
            Some((path, strength)) if !path.is_empty() => {
                let strength = strength.parse().ok().filter(|of: &f64| of.is_finite());
                (path, strength.ok_or("expected a file, or FILE:STRENGTH with a finite number, as x.safetensors:0.8")?)
            }
            _ => (rest, 1.0),
        };
        Ok(LoraRequest { path: path.into(), strength, expert })
    }
}
