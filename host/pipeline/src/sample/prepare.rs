//! The preparation of a sample: the files of a request are read and checked against each other,
//! and become the input of a job.

use std::path::Path;

use tch::Tensor;
use tilewright_engine::{Kept, Prompt, Sampling};
use tilewright_models::{DenoiserConfig, Family, LatentFile};
use tilewright_sampling::{
    Convention, FlowScheduler, ModelSampling, Sampler, Schedule, Shift, Times, check_finite, check_sigmas, noise_of,
};

use super::{
    PromptRequest, SampleModel, SampleRequest, Size, Steps,
    inputs::{self, Conditioning, Given, read},
    saved::SavedScheduler,
};
use crate::{Error, Result};

/// The guidance of a network that has it as an input (ComfyUI's `FluxGuidance`).
const GUIDANCE: f32 = 3.5;

/// The name of the tensor in noise files.
const NOISE: &str = "noise";

/// The longest side of a picture in pixels, and the most frames.
const MOST_PIXELS: u32 = 1 << 15;
const MOST_FRAMES: u32 = 1 << 12;

/// The largest change that outputs are reused up to, as in ComfyUI's node EasyCache.
const MOST_REUSE: f64 = 3.0;

/// The way of a sample: its sampler, sigmas and model.
struct Way {
    sampler: Sampler,
    sigmas: Vec<f64>,
    model: ModelSampling,
    whole_timesteps: bool,
}

/// A shift of the same kind with another number, if one is given.
fn replaced(usual: Shift, shift: Option<f64>) -> Shift {
    match (usual, shift) {
        (usual, None) => usual,
        (Shift::Flow(_), Some(shift)) => Shift::Flow(shift),
        (_, Some(mu)) => Shift::Exponential(mu),
    }
}

impl SampleModel {
    /// The steps that are usual for the model.
    fn usual_steps(&self) -> u32 {
        self.defaults.steps.unwrap_or_else(|| match self.config() {
            DenoiserConfig::Flux(config) if !config.guidance => 4,
            _ => 20,
        })
    }

    /// The way from times to sigmas: ComfyUI's defaults for a model, or those of the published
    /// pipelines.
    pub(crate) fn shift(&self, convention: Convention) -> Shift {
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

    /// The way from times to sigmas that a request asks for, if no saved scheduler is followed.
    pub(crate) fn shift_of(&self, request: &SampleRequest) -> Shift {
        replaced(self.shift(request.convention), request.shift.or(self.defaults.shift))
    }

    /// The way that a request asks for. As diffusers has it, a saved pipeline's scheduler is
    /// followed where the request says nothing else.
    fn way(&self, request: &SampleRequest, tokens: u64) -> Result<Way> {
        let as_diffusers = request.convention == Convention::Diffusers;
        let saved = if as_diffusers { SavedScheduler::open(&self.path)? } else { None };
        let usual = saved.as_ref().map_or_else(|| self.shift(request.convention), |saved| saved.shift(tokens));
        let own = if saved.is_none() { self.defaults.shift } else { None };
        let shift = replaced(usual, request.shift.or(own));
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
                        let times = match self.config() {
                            DenoiserConfig::Flux(_) => Times::Pipeline,
                            DenoiserConfig::Wan(_) => Times::Scheduler,
                        };
                        flow.sigmas(shift, tokens, steps, *strength, times)?
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

    /// Checks that a size can be sampled, before anything is read or encoded for it.
    ///
    /// # Errors
    /// A side or the frames are none that the model makes.
    pub fn check_size(&self, size: Size) -> Result<()> {
        self.shape_of(size).map(drop)
    }

    /// True if guidance is an input of the transformer.
    fn is_guided(&self) -> bool {
        matches!(self.config(), DenoiserConfig::Flux(config) if config.guidance)
    }

    /// Checks guidance as an input of the transformer.
    ///
    /// # Errors
    /// The transformer has no such input, or the guidance is not finite.
    pub fn check_guidance(&self, guidance: Option<f64>) -> Result<()> {
        let Some(guidance) = guidance else { return Ok(()) };
        if !self.is_guided() {
            return Err(self.refused(format!(
                "takes no guidance ({guidance}): it is for transformers with guidance as an input, such as Flux.1 dev; others have --cfg"
            )));
        }
        if !(guidance as f32).is_finite() {
            return Err(self.refused("a guidance that is not finite".into()));
        }
        Ok(())
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
        check_finite(sampler, &model, &sigmas)?;
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
        self.check_guidance(request.guidance)?;
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
            guidance: self.is_guided().then(|| request.guidance.map_or(GUIDANCE, |guidance| guidance as f32)),
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

    pub(super) fn shape_of(&self, size: Size) -> Result<Vec<i64>> {
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
}
