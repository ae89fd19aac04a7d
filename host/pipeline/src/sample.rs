//! A sample: from files of a transformer, conditioning, noise and latents to the input of a job.

mod generated;
mod inputs;
mod kept;
mod saved;

use std::path::{Path, PathBuf};

use tch::Tensor;
use tilewright_engine::{Denoiser, Kept, Prompt, Sampled, Sampling};
use tilewright_models::{
    Checkpoint, DenoiserConfig, DenoiserFile, Error as ModelError, Family, LatentFile, Lora, LoraFit, Scaling,
};
use tilewright_sampling::{
    Convention, FlowScheduler, ModelSampling, Sampler, Schedule, Scheduler, Shift, Span, check_sigmas, noise_of,
};

use self::{
    inputs::{Conditioning, Given, read},
    saved::SavedScheduler,
};
pub use self::{
    inputs::{NOISY, NOISY_SIGMA},
    kept::KeptSample,
};
use crate::{Error, LatentOutput, Result};

/// The folders of a denoiser in a pipeline's, and that of its second expert.
const FOLDERS: [&str; 2] = ["transformer", "unet"];
const SECOND: &str = "transformer_2";

/// The sigma at which WAN 2.2's experts change: from text, and from a picture
/// (github.com/Wan-Video/Wan2.2, wan/configs).
const BOUNDARY: f64 = 0.875;
const IMAGE_BOUNDARY: f64 = 0.9;

/// The guidance of a network that has it as an input (ComfyUI's `FluxGuidance`).
const GUIDANCE: f32 = 3.5;

/// The name of the tensor in noise files.
const NOISE: &str = "noise";

/// Frames of a clip if nobody says how many: of WAN 2.1's models, and of 2.2's own.
const FRAMES: u32 = 81;
const FRAMES_22: u32 = 121;

/// The longest side of a picture in pixels, and the most frames.
const MOST_PIXELS: u32 = 1 << 15;
const MOST_FRAMES: u32 = 1 << 12;
/// The largest change that outputs are reused up to, as in ComfyUI's node EasyCache.
const MOST_REUSE: f64 = 3.0;

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
    /// A mask: 1 where latents are made anew.
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
    /// Its file.
    pub path: PathBuf,
    /// The parts of the way from noise (0) to the sample (1) between which it counts; all of it if
    /// none is given.
    pub within: Option<[f64; 2]>,
}

/// A LoRA that is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraRequest {
    /// Its file.
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
}

/// The way of a sample: its sampler, sigmas and model.
struct Way {
    sampler: Sampler,
    sigmas: Vec<f64>,
    model: ModelSampling,
    whole_timesteps: bool,
}

impl SampleModel {
    /// Opens a denoiser in a file or a folder, or two experts in as many: first the one for high
    /// noise. `boundary` is the sigma at which they change.
    ///
    /// # Errors
    /// A file is unsound or holds no denoiser; the experts don't go together.
    pub fn open(paths: &[PathBuf], boundary: Option<f64>) -> Result<Self> {
        let open = |path: &Path, folders: &[&str]| -> Result<DenoiserFile> {
            let file = Checkpoint::open_part(path, folders).map_err(ModelError::from)?;
            Ok(DenoiserFile::open(file)?)
        };
        let path = paths.first().cloned().unwrap_or_default();
        let refused = |reason: String| Err(Error::Input { path: path.clone(), reason });
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
                let usual = if first.config.condition_channels() > 0 { IMAGE_BOUNDARY } else { BOUNDARY };
                let saved = if boundary.is_none() { saved::boundary(&path)? } else { None };
                Denoiser::experts(first, open(&low, &folders)?, boundary.or(saved).unwrap_or(usual))?
            }
        };
        Ok(Self { denoiser, scaling, path })
    }

    /// Adds a LoRA. Returns a line on what of it has no place in the denoiser, if anything.
    ///
    /// # Errors
    /// The file is unsound or no LoRA, or for another model.
    pub fn add(&mut self, request: &LoraRequest) -> Result<Option<String>> {
        let experts = match request.expert {
            Some(expert) => expert..expert + 1,
            None => 0..self.denoiser.files().len(),
        };
        let mut fit = None;
        for expert in experts {
            let file = Checkpoint::open(&request.path).map_err(ModelError::from)?;
            fit = Some(self.denoiser.add(expert, Lora::read(file, request.strength)?)?);
        }
        let Some(LoraFit { fitting, keys, first_without, text_keys }) = fit else { return Ok(None) };
        let path = request.path.display();
        let without = first_without.map(|first| {
            format!("{} of its {keys} keys have no place in the transformer, such as {first}", keys - fitting)
        });
        let text = (text_keys > 0).then(|| format!("{text_keys} keys are a text encoder's and left out"));
        let lines: Vec<String> = without.into_iter().chain(text).collect();
        Ok((!lines.is_empty()).then(|| format!("{path}: {}", lines.join("; "))))
    }

    fn config(&self) -> &DenoiserConfig {
        self.denoiser.config()
    }

    /// Latent pixels along a side are pixels over the first, and frames after the first one over
    /// the second.
    pub fn scales(&self) -> [u32; 2] {
        match self.config().family() {
            Family::Wan22 => [16, 4],
            Family::Wan21 => [8, 4],
            _ => [8, 1],
        }
    }

    /// The frames that are usual for the model: 1 of a picture.
    pub fn usual_frames(&self) -> u32 {
        match (self.config().is_video(), self.config().family()) {
            (false, _) => 1,
            (true, Family::Wan22) => FRAMES_22,
            (true, _) => FRAMES,
        }
    }

    /// Frames, height and width in pixels of what latents [N, C, (T,) h, w] become.
    pub fn extents(&self, latents: &[i64]) -> [u32; 3] {
        let [space, time] = self.scales();
        let [frames, height, width] = match *latents {
            [_, _, frames, height, width] => [frames, height, width],
            [_, _, height, width] => [1, height, width],
            _ => [1, 1, 1],
        };
        let [frames, height, width] = [frames, height, width].map(|extent| u32::try_from(extent).unwrap_or(u32::MAX));
        let frames = frames.saturating_sub(1).saturating_mul(time).saturating_add(1);
        [frames, height.saturating_mul(space), width.saturating_mul(space)]
    }

    /// The steps that are usual for the model.
    fn usual_steps(&self) -> u32 {
        match self.config() {
            DenoiserConfig::Flux(config) if !config.guidance => 4,
            _ => 20,
        }
    }

    /// The way from times to sigmas: ComfyUI's defaults for a model, or those of the published
    /// pipelines.
    fn shift(&self, convention: Convention) -> Shift {
        match (self.config(), convention) {
            (DenoiserConfig::Flux(config), _) if !config.guidance => Shift::Flow(1.0),
            (DenoiserConfig::Flux(_), Convention::ComfyUi) => Shift::Exponential(1.15),
            (DenoiserConfig::Flux(_), Convention::Diffusers) => Shift::BySize,
            (DenoiserConfig::Wan(_), Convention::ComfyUi) => Shift::Flow(8.0),
            (DenoiserConfig::Wan(config), Convention::Diffusers) => {
                Shift::Flow(if config.latent_channels == 48 { 5.0 } else { 3.0 })
            }
        }
    }

    /// The way that a request asks for. As diffusers has it, a saved pipeline's scheduler is
    /// followed where the request says nothing else.
    fn way(&self, request: &SampleRequest, tokens: u64) -> Result<Way> {
        let as_diffusers = request.convention == Convention::Diffusers;
        let saved = if as_diffusers { SavedScheduler::open(&self.path)? } else { None };
        let usual = saved.as_ref().map_or_else(|| self.shift(request.convention), |saved| saved.shift(tokens));
        let shift = match (usual, request.shift) {
            (usual, None) => usual,
            (Shift::Flow(_), Some(shift)) => Shift::Flow(shift),
            (_, Some(mu)) => Shift::Exponential(mu),
        };
        shift.check()?;
        let model = shift.model(tokens);
        let named = request.sampler.map(FlowScheduler::of);
        let flow = named.or(saved.map(|saved| saved.scheduler)).unwrap_or_default();
        let mut sampler = request.sampler.unwrap_or_default();
        // Along ComfyUI's sigmas, and sigmas by hand, the sampler of that name is ComfyUI's.
        let mut whole_timesteps = false;
        let sigmas = match &request.steps {
            Steps::Sigmas(sigmas) => {
                check_sigmas(sigmas)?;
                sigmas.clone()
            }
            Steps::Count { steps, strength, scheduler, span } => {
                let steps = steps.unwrap_or_else(|| self.usual_steps());
                span.of(match scheduler {
                    None if as_diffusers => {
                        if request.sampler.is_none() {
                            sampler = flow.sampler().parse().unwrap_or_default();
                        }
                        sampler = sampler.native();
                        whole_timesteps = flow.has_whole_timesteps();
                        flow.sigmas(shift, tokens, steps, *strength)?
                    }
                    scheduler => {
                        let scheduler = scheduler.unwrap_or_default();
                        Schedule { sampler, scheduler, model: model.clone() }.sigmas(steps, *strength)?
                    }
                })?
            }
        };
        Ok(Way { sampler, sigmas, model, whole_timesteps })
    }

    /// Reads the files of a request and checks that they go together.
    ///
    /// # Errors
    /// A file is unsound, of another model, or of another size.
    pub fn prepare(&self, request: &SampleRequest) -> Result<Sampling> {
        let config = self.config();
        let needs_negative = request.sampler.is_some_and(Sampler::needs_negative);
        let conditionings = Conditioning::open_all(&request.conditioning, config, None)?;
        let Some(conditioning) = conditionings.first() else {
            return Err(self.refused("no conditioning: give --conditioning".into()));
        };
        let negatives = match request.cfg != 1.0 || needs_negative {
            true => Conditioning::open_all(&request.negative, config, Some(conditioning))?,
            false => Vec::new(),
        };
        if needs_negative && negatives.is_empty() {
            return Err(self.refused(format!(
                "the sampler {} reads a negative conditioning on its own: give --negative, with --cfg",
                request.sampler.unwrap_or_default()
            )));
        }
        if let Some(reuse) = request.reuse.filter(|reuse| !(*reuse > 0.0 && *reuse <= MOST_REUSE)) {
            return Err(self
                .refused(format!("a reuse of {reuse}: a part above 0 and at most {MOST_REUSE} was expected, as 0.2")));
        }
        if !(request.cfg as f32).is_finite() {
            return Err(self.refused(format!("a guidance (cfg) of {}: a number was expected", request.cfg)));
        }
        let latent = request.latent.as_ref().map(|path| self.latent(path)).transpose()?;
        let given = request.noise.as_ref().map(|path| read(path, NOISE)).transpose()?;
        let shape = self.shape(request, latent.as_ref(), given.as_ref(), conditioning)?;
        if shape[0].unsigned_abs() > request.most_samples {
            let most = request.most_samples;
            return Err(self.refused(format!("a batch of {} samples: at most {most} are made at once", shape[0])));
        }
        let values = shape.iter().map(|extent| extent.unsigned_abs()).fold(1, u64::saturating_mul);
        if values > request.most_values {
            let most = request.most_values;
            return Err(self.refused(format!(
                "latents of {shape:?}, {values} values: at most {most} are sampled at once: ask for less, or for fewer samples"
            )));
        }
        for (of, asked) in
            conditionings.iter().zip(&request.conditioning).chain(negatives.iter().zip(&request.negative))
        {
            of.check(&asked.path, &shape, config)?;
        }
        let first_noise = match given {
            Some(given) => given.checked(&shape)?,
            None if request.adds_noise => noise_of(&request.seeds, &shape)?,
            None => tilewright_torch::scalar::full(&shape, 0.0, (tch::Kind::Float, tch::Device::Cpu))?,
        };
        let [frames, height, width] = [shape[shape.len() - 3], shape[shape.len() - 2], shape[shape.len() - 1]];
        let frames = if config.is_video() { frames } else { 1 };
        let patch = config.patch();
        let Way { sampler, sigmas, model, whole_timesteps } =
            self.way(request, (frames * ((height + patch - 1) / patch) * ((width + patch - 1) / patch)) as u64)?;
        let kept = latent.map(|latent| latent.f_expand(&shape, false)?.f_contiguous()).transpose()?;
        let [mut new, old] = model.noise_factors(sigmas.first().copied().unwrap_or(1.0), true);
        let begins =
            matches!(&request.steps, Steps::Count { span, scheduler: None, .. } if span.start.unwrap_or(0) == 0);
        if request.convention == Convention::Diffusers && kept.is_none() && begins {
            // Its pipelines begin with the noise as it is, also a little below the largest sigma.
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
            (None, _) => None,
            (Some(path), None) => {
                return Err(Error::Input {
                    path: path.clone(),
                    reason: "a mask without a latent: give it with --latent".into(),
                });
            }
            (Some(path), Some(latents)) => {
                let mask = inputs::mask(path, &shape)?;
                Some(Kept { latents, mask, clean: config.family() == Family::Wan22 })
            }
        };
        let guided = matches!(config, DenoiserConfig::Flux(config) if config.guidance);
        if let (Some(guidance), false) = (request.guidance, guided) {
            return Err(self.refused(format!(
                "takes no guidance ({guidance}): it is for transformers with guidance as an input, such as Flux.1 dev; others have --cfg"
            )));
        }
        if request.guidance.is_some_and(|guidance| !(guidance as f32).is_finite()) {
            return Err(self.refused("a guidance that is not finite".into()));
        }
        let condition = conditioning.condition(&shape)?;
        let prompts = |all: Vec<Conditioning>, asked: &[PromptRequest]| -> Vec<Prompt> {
            let within = |asked: &PromptRequest| match asked.within {
                None => [f64::INFINITY, 0.0],
                Some([start, end]) => [model.sigma_at(start), model.sigma_at(end)],
            };
            let both = all.into_iter().zip(asked);
            both.map(|(of, asked)| Prompt { tensors: of.tensors, within: within(asked) }).collect()
        };
        let positive = prompts(conditionings, &request.conditioning);
        let negative = prompts(negatives, &request.negative);
        for (prompts, name) in [(&positive, "--conditioning"), (&negative, "--negative")] {
            let is_bare = |sigma: &&f64| !prompts.iter().any(|prompt| prompt.counts(**sigma));
            let steps = &sigmas[..sigmas.len() - 1];
            // Some samplers also ask between the steps' sigmas, also where parts only just meet.
            let edges = prompts.iter().flat_map(|prompt| prompt.within).filter(|sigma| sigma.is_finite());
            let between: Vec<f64> = edges
                .flat_map(|edge| [edge * (1.0 - 1e-6), edge * (1.0 + 1e-6)])
                .filter(|sigma| sampler.calls() > 1 && *sigma < steps[0] && *sigma > steps[steps.len() - 1])
                .collect();
            if let Some(sigma) = steps.iter().chain(&between).find(is_bare).filter(|_| !prompts.is_empty()) {
                return Err(
                    self.refused(format!("no {name} counts at sigma {sigma:.4}: give one for each part of the way"))
                );
            }
            if request.reuse.is_some() && prompts.iter().any(|prompt| prompt.within != [f64::INFINITY, 0.0]) {
                return Err(self.refused(format!("--reuse and a {name} for a part of the way: leave one of them out")));
            }
        }
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
            positive,
            negative,
            condition,
            kept,
            guidance: guided.then(|| request.guidance.map_or(GUIDANCE, |guidance| guidance as f32)),
            cfg: request.cfg,
            sigmas,
            sampler,
            model,
            whole_timesteps,
            seeds: request.seeds.clone(),
            reuse: request.reuse,
        })
    }

    fn refused(&self, reason: String) -> Error {
        Error::Input { path: self.path.clone(), reason }
    }

    /// Latents of a file, in the model's own space. Those that are all zero, as an empty latent's,
    /// stay zero.
    fn latent(&self, path: &Path) -> Result<Tensor> {
        let latent = LatentFile::open(path, None)?.read()?;
        let (values, channels) = (latent.values, self.config().latent_channels());
        if values.size()[1] != channels {
            return Err(Error::Input {
                path: path.to_owned(),
                reason: format!("{} channels: this transformer's latents have {channels}", values.size()[1]),
            });
        }
        let values = match self.config().is_video() {
            true => values,
            false if values.size()[2] == 1 => values.f_squeeze_dim(2)?,
            false => {
                let reason = "a clip's latent: this transformer makes pictures".into();
                return Err(Error::Input { path: path.to_owned(), reason });
            }
        };
        let is_empty = f64::try_from(&values.f_abs()?.f_max()?)? == 0.0;
        if is_empty { Ok(values) } else { Ok(self.scaling.apply(&values)?) }
    }

    /// The shape of the latents: [N, C, h, w], or [N, C, T, h, w] of clips.
    fn shape(
        &self,
        request: &SampleRequest,
        latent: Option<&Tensor>,
        noise: Option<&Given>,
        conditioning: &Conditioning,
    ) -> Result<Vec<i64>> {
        let config = self.config();
        let mut shape = match (latent, request.size, noise) {
            (Some(latent), None, _) => latent.size(),
            (None, Some(size), _) => self.shape_of(size)?,
            (None, None, Some(noise)) => noise.tensor.size(),
            (Some(_), Some(_), _) => {
                return Err(self.refused("a size and a latent, which has its own: give one of them".into()));
            }
            (None, None, None) => return Err(self.refused("no size: give --size or --latent".into())),
        };
        let axes = if config.is_video() { 5 } else { 4 };
        if shape.len() != axes || shape[1] != config.latent_channels() {
            return Err(self.refused(format!(
                "latents of {shape:?}: {axes} axes and {} channels were expected",
                config.latent_channels()
            )));
        }
        let noises = noise.and_then(|noise| noise.tensor.size().first().copied());
        let samples = shape[0].max(conditioning.samples());
        let seeds = request.seeds.len() as i64;
        let batch = match seeds {
            ..=1 => request.batch.map(i64::from).or(noises).unwrap_or(samples),
            seeds => seeds,
        };
        if request.batch.is_some_and(|asked| i64::from(asked) != batch) {
            return Err(
                self.refused(format!("{seeds} seeds for a batch of {}: one, or as many", request.batch.unwrap_or(1)))
            );
        }
        if shape[0] != 1 && shape[0] != batch && latent.is_some() {
            return Err(
                self.refused(format!("{} latents for a batch of {batch}: one, or as many, were expected", shape[0]))
            );
        }
        shape[0] = batch;
        Ok(shape)
    }

    fn shape_of(&self, size: Size) -> Result<Vec<i64>> {
        let Size { width, height, frames } = size;
        let [space, time] = self.scales();
        if width > MOST_PIXELS || height > MOST_PIXELS || frames > MOST_FRAMES || frames == 0 {
            return Err(self.refused(format!(
                "a size of {width}×{height} and {frames} frames: at most {MOST_PIXELS} pixels a side and {MOST_FRAMES} frames can be made"
            )));
        }
        let step = space;
        if width == 0 || height == 0 || width % step != 0 || height % step != 0 {
            let next = |side: u32| side.div_ceil(step).max(1) * step;
            return Err(self.refused(format!(
                "a size of {width}×{height}: sides are multiples of {step} pixels, as {}×{}",
                next(width),
                next(height)
            )));
        }
        let channels = self.config().latent_channels();
        let [rows, columns] = [height / space, width / space].map(i64::from);
        if !self.config().is_video() {
            return match frames {
                1 => Ok(vec![1, channels, rows, columns]),
                _ => Err(self.refused(format!("{frames} frames: this transformer makes pictures"))),
            };
        }
        if (frames - 1) % time != 0 {
            let next = (frames - 1).div_ceil(time) * time + 1;
            return Err(
                self.refused(format!("{frames} frames: one more than a multiple of {time}, as {next}, was expected"))
            );
        }
        Ok(vec![1, channels, i64::from((frames - 1) / time + 1), rows, columns])
    }

    /// A digest by which a later run of a sample is recognised as the same: by its input, and by
    /// the settings that the user chose.
    ///
    /// # Errors
    /// A LoRA's file is gone; memory is out.
    pub fn fingerprint(&self, loras: &[LoraRequest], sampling: &Sampling, chosen: &[(&str, &str)]) -> Result<String> {
        kept::fingerprint(self, loras, sampling, chosen)
    }

    /// Latents of the model's own space in that of the VAE.
    ///
    /// # Errors
    /// Memory is out.
    pub fn to_vae(&self, latents: &Tensor) -> Result<Tensor> {
        Ok(self.scaling.undo(latents)?)
    }

    /// Writes a sample's latents in the VAE's space with its record among the texts, and the noise
    /// that the last sigma leaves in them, if there is any. Returns the file's name.
    ///
    /// # Errors
    /// Memory is out, or the file can't be written.
    pub fn write(&self, output: &LatentOutput, sampled: &Sampled) -> Result<PathBuf> {
        let noisy = sampled.noisy.as_ref().map(|(noisy, sigma)| -> Result<_> {
            Ok([(NOISY, noisy.shallow_clone()), (NOISY_SIGMA, Tensor::f_from_slice(&[*sigma])?)])
        });
        let noisy = noisy.transpose()?;
        output.write_with(
            &self.to_vae(&sampled.latents)?,
            noisy.as_ref().map_or(&[], |noisy| noisy),
            &Vec::new(),
            &sampled.record,
        )
    }
}

/// The way between a denoiser's latents and its VAE's, as published; none for latents of a number
/// of channels that no published VAE has.
fn scaling(config: &DenoiserConfig) -> Scaling {
    let none = Scaling::Factor { factor: 1.0, shift: 0.0 };
    match config.family().scaling() {
        Some((factor, shift)) => Scaling::Factor { factor, shift },
        None => Scaling::of_wan(config.latent_channels() as usize).unwrap_or(none),
    }
}
