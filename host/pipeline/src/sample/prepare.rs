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
use crate::{Error, Result, Setting};

/// The name of the tensor in noise files.
const NOISE: &str = "noise";

/// The longest side of a picture in pixels, and the most frames.
const MOST_PIXELS: u32 = 1 << 15;
const MOST_FRAMES: u32 = 1 << 12;

/// The largest change that outputs are reused up to, as in ComfyUI's node EasyCache.
const MOST_REUSE: f64 = 3.0;

/// The way of a sample: its sampler, sigmas and model.
pub(super) struct Way {
    pub sampler: Sampler,
    pub sigmas: Vec<f64>,
    pub shift: Shift,
    model: ModelSampling,
    whole_timesteps: bool,
}

fn wrong(setting: Setting, reason: String) -> Error {
    Error::Setting { setting, reason }
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
    /// The way from times to sigmas that a request asks for, if no saved scheduler is followed.
    pub(crate) fn shift_of(&self, request: &SampleRequest) -> Shift {
        replaced(self.shift(request.convention), request.shift.or(self.defaults.shift))
    }

    /// The way that a request asks for. As diffusers has it, a saved pipeline's scheduler is
    /// followed where the request says nothing else.
    pub(super) fn way(&self, request: &SampleRequest, tokens: u64) -> Result<Way> {
        let as_diffusers = request.convention == Convention::Diffusers;
        let saved = match &self.pipeline {
            Some(folder) if as_diffusers => SavedScheduler::open(folder)?,
            _ => None,
        };
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
        Ok(Way { sampler, sigmas, shift, model, whole_timesteps })
    }

    /// Checks that a size can be sampled, before anything is read or encoded for it.
    ///
    /// # Errors
    /// A side or the frames are none that the model makes.
    pub fn check_size(&self, size: Size) -> Result<()> {
        self.shape_of(size).map(drop)
    }

    /// The tokens of the image of latents [N, C, (T,) h, w].
    pub(super) fn image_tokens(&self, shape: &[i64]) -> u64 {
        let [frames, height, width] = [shape[shape.len() - 3], shape[shape.len() - 2], shape[shape.len() - 1]];
        let frames = if self.config().is_video() { frames } else { 1 };
        let patch = self.config().patch();
        (frames * ((height + patch - 1) / patch) * ((width + patch - 1) / patch)) as u64
    }

    /// True if guidance is an input of the transformer.
    pub(super) fn is_guided(&self) -> bool {
        matches!(self.config(), DenoiserConfig::Flux(config) if config.guidance)
    }

    /// Checks guidance as an input of the transformer.
    ///
    /// # Errors
    /// The transformer has no such input, or the guidance is not finite.
    pub fn check_guidance(&self, guidance: Option<f64>) -> Result<()> {
        let Some(guidance) = guidance else { return Ok(()) };
        if !self.is_guided() {
            return Err(wrong(
                Setting::Guidance,
                format!(
                    "this transformer takes no guidance ({guidance}): it is for transformers with guidance as an input, such as Flux.1 dev; others have --cfg"
                ),
            ));
        }
        if !(guidance as f32).is_finite() {
            return Err(wrong(Setting::Guidance, "a guidance that is not finite".into()));
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
            return Err(wrong(
                Setting::Sampler,
                format!(
                    "{} reads a negative conditioning on its own: give --negative, with --cfg",
                    request.sampler.unwrap_or_default()
                ),
            ));
        }
        if let Some(reuse) = request.reuse.filter(|reuse| !(*reuse > 0.0 && *reuse <= MOST_REUSE)) {
            let reason = format!("a reuse of {reuse}: a part above 0 and at most {MOST_REUSE} was expected, as 0.2");
            return Err(wrong(Setting::Reuse, reason));
        }
        if !(request.cfg as f32).is_finite() {
            return Err(wrong(Setting::Cfg, format!("a guidance (cfg) of {}: a number was expected", request.cfg)));
        }
        let latent = request.latent.as_ref().map(|path| self.latent(path)).transpose()?;
        let given = request.noise.as_ref().map(|path| read(path, NOISE)).transpose()?;
        let shape = self.shape(request, latent.as_ref(), given.as_ref(), conditioning)?;
        if shape[0].unsigned_abs() > request.most_samples {
            let most = request.most_samples;
            let reason = format!("a batch of {} samples: at most {most} are made at once", shape[0]);
            return Err(wrong(Setting::Batch, reason));
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
        let Way { sampler, sigmas, model, whole_timesteps, .. } = self.way(request, self.image_tokens(&shape))?;
        check_finite(sampler, &model, &sigmas)?;
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
                let reason = format!("beside a {name} for a part of the way: leave one of them out");
                return Err(wrong(Setting::Reuse, reason));
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
            guidance: self.guidance_of(request).map(|guidance| guidance as f32),
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
            let reason = format!("{seeds} seeds for a batch of {}: one, or as many", request.batch.unwrap_or(1));
            return Err(wrong(Setting::Batch, reason));
        }
        if shape[0] != 1 && shape[0] != batch && latent.is_some() {
            let reason = format!("{} latents for a batch of {batch}: one, or as many, were expected", shape[0]);
            return Err(wrong(Setting::Batch, reason));
        }
        shape[0] = batch;
        Ok(shape)
    }

    pub(super) fn shape_of(&self, size: Size) -> Result<Vec<i64>> {
        let Size { width, height, frames } = size;
        let [space, time] = self.scales();
        if width > MOST_PIXELS || height > MOST_PIXELS || frames > MOST_FRAMES || frames == 0 {
            let setting = match (width > MOST_PIXELS, height > MOST_PIXELS) {
                (true, _) => Setting::Width,
                (_, true) => Setting::Height,
                _ => Setting::Frames,
            };
            let most = format!("at most {MOST_PIXELS} pixels a side and {MOST_FRAMES} frames can be made");
            return Err(wrong(setting, format!("a size of {width}×{height} and {frames} frames: {most}")));
        }
        let step = space;
        if width == 0 || height == 0 || width % step != 0 || height % step != 0 {
            let next = |side: u32| side.div_ceil(step).max(1) * step;
            let setting = if width == 0 || width % step != 0 { Setting::Width } else { Setting::Height };
            let (fit, more) = (format!("{}×{}", next(width), next(height)), format!("multiples of {step} pixels"));
            return Err(wrong(setting, format!("a size of {width}×{height}: sides are {more}, as {fit}")));
        }
        let channels = self.config().latent_channels();
        let [rows, columns] = [height / space, width / space].map(i64::from);
        if !self.config().is_video() {
            return match frames {
                1 => Ok(vec![1, channels, rows, columns]),
                _ => Err(wrong(Setting::Frames, format!("{frames} frames: this transformer makes pictures"))),
            };
        }
        if (frames - 1) % time != 0 {
            let next = (frames - 1).div_ceil(time) * time + 1;
            let reason = format!("{frames} frames: one more than a multiple of {time}, as {next}, was expected");
            return Err(wrong(Setting::Frames, reason));
        }
        Ok(vec![1, channels, i64::from((frames - 1) / time + 1), rows, columns])
    }
}
