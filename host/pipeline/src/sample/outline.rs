//! The outline of a sample: its request, checked by the headers of its files alone. Nothing of the
//! sample's size is in memory until it is prepared.

use std::path::Path;
use tilewright_wording::Setting;

use tilewright_models::{Checkpoint, Error as ModelError, LatentFile, Start};
use tilewright_prices::{PromptShape, SampleShape};
use tilewright_sampling::{Sampler, check_finite};

use super::{
    PromptRequest, SampleModel, SampleRequest,
    conditioning_shape::{ConditioningShape, check_shape, missing, shape_in},
    way::Way,
};
use crate::{Error, Result};

/// The name of the tensor in noise files.
pub(super) const NOISE: &str = "noise";

/// The largest change that outputs are reused up to, as in ComfyUI's node EasyCache.
const MOST_REUSE: f64 = 3.0;

/// The outline of a sample.
#[derive(Debug)]
pub struct SampleOutline {
    /// All that plans and prices depend on.
    pub shape: SampleShape,
    pub(super) way: Way,
    pub(super) conditionings: Vec<ConditioningShape>,
    pub(super) negatives: Vec<ConditioningShape>,
    /// The sigmas from and down to which each conditioning counts.
    pub(super) within: Within,
}

/// The parts of the way on which the conditionings count, and on which the negative ones do.
#[derive(Debug)]
pub(super) struct Within {
    pub positive: Vec<[f64; 2]>,
    pub negative: Vec<[f64; 2]>,
}

/// The inputs of a prompt's sample that its earlier stages will make.
#[derive(Clone, Copy, Debug, Default)]
pub struct Foreseen {
    /// Tokens of the text.
    pub tokens: u32,
    /// A negative conditioning counts.
    pub has_negative: bool,
    /// The place of a picture of the request's size, if one is begun with.
    pub start: Option<Start>,
}

/// The shapes of a sample's inputs.
struct InputShapes {
    conditionings: Vec<ConditioningShape>,
    negatives: Vec<ConditioningShape>,
    latent: Option<Vec<i64>>,
    noise: Option<Vec<i64>>,
    has_mask: bool,
}

impl SampleModel {
    /// Checks a request against the headers of its files.
    ///
    /// # Errors
    /// A file is unsound, of another model, or of another size; a setting makes no sense.
    pub fn outline(&self, request: &SampleRequest) -> Result<SampleOutline> {
        let config = self.config();
        let open = |asked: &[PromptRequest], positive: Option<&ConditioningShape>| {
            asked.iter().map(|asked| ConditioningShape::open(&asked.path, config, positive)).collect::<Result<Vec<_>>>()
        };
        let conditionings = open(&request.conditioning, None)?;
        let negatives = match self.has_negatives(request) {
            true => open(&request.negative, conditionings.first())?,
            false => Vec::new(),
        };
        self.outline_of(
            request,
            InputShapes {
                conditionings,
                negatives,
                latent: request
                    .latent
                    .as_deref()
                    .map(|path| self.latent_file(path))
                    .transpose()?
                    .map(|(_, shape)| shape),
                noise: request.noise.as_deref().map(noise_shape).transpose()?,
                has_mask: request.mask.is_some(),
            },
        )
    }

    /// The outline of a prompt's sample, before any stage has run: the request has its size, and no
    /// files yet but the mask.
    ///
    /// # Errors
    /// The size can't be sampled; a setting makes no sense.
    pub fn outline_foreseen(&self, request: &SampleRequest, foreseen: Foreseen) -> Result<SampleOutline> {
        let Some(size) = request.size else { return Err(self.no_size()) };
        let conditioning = || ConditioningShape::foreseen(self, foreseen.tokens, size);
        let whole = || PromptRequest { path: std::path::PathBuf::new(), within: None };
        let conditionings = vec![conditioning()?];
        let negatives = if foreseen.has_negative { vec![conditioning()?] } else { Vec::new() };
        let has_latent = matches!(foreseen.start, Some(Start::Latent | Start::FirstFrame));
        let latent = has_latent.then(|| self.shape_of(size)).transpose()?;
        let request = SampleRequest {
            conditioning: vec![whole()],
            negative: negatives.iter().map(|_| whole()).collect(),
            size: if latent.is_some() { None } else { Some(size) },
            ..request.clone()
        };
        let has_mask = request.mask.is_some() || foreseen.start == Some(Start::FirstFrame);
        self.outline_of(&request, InputShapes { conditionings, negatives, latent, noise: None, has_mask })
    }

    /// True if negative conditionings are read: guidance of 1 leaves them out, unless the sampler
    /// reads them on their own.
    fn has_negatives(&self, request: &SampleRequest) -> bool {
        request.cfg != 1.0 || request.sampler.is_some_and(Sampler::needs_negative)
    }

    fn outline_of(&self, request: &SampleRequest, inputs: InputShapes) -> Result<SampleOutline> {
        let Some(conditioning) = inputs.conditionings.first() else {
            return Err(self.refused(format!("no conditioning: give {}", Setting::Conditioning)));
        };
        check_settings(request, inputs.negatives.is_empty())?;
        let shape = self.shape(request, &inputs, conditioning)?;
        if shape[0].unsigned_abs() > request.most_samples {
            let most = request.most_samples;
            let reason = format!("a batch of {} samples: at most {most} are made at once", shape[0]);
            return Err(Error::wrong(Setting::Batch, reason));
        }
        let values = shape.iter().map(|extent| extent.unsigned_abs()).fold(1, u64::saturating_mul);
        if values > request.most_values {
            let most = request.most_values;
            return Err(self.refused(format!(
                "latents of {shape:?}, {values} values: at most {most} are sampled at once: ask for less, or for fewer samples"
            )));
        }
        let asked = || request.conditioning.iter().chain(&request.negative);
        for (of, asked) in inputs.conditionings.iter().chain(&inputs.negatives).zip(asked()) {
            of.check_batch(&asked.path, &shape)?;
        }
        if let (Some(noise), Some(path)) = (&inputs.noise, &request.noise) {
            check_shape((path, NOISE), noise, &shape)?;
        }
        let way = self.way(request, self.image_tokens(&shape))?;
        check_finite(way.sampler, &way.model, &way.sigmas)?;
        if let (Some(path), None) = (&request.mask, &inputs.latent) {
            return Err(Error::input(path, format!("a mask without a latent: give it with {}", Setting::Latent)));
        }
        self.check_guidance(request.guidance)?;
        conditioning.check_condition(&request.conditioning[0].path, &shape)?;
        let within = |asked: &[PromptRequest]| {
            let of = |asked: &PromptRequest| match asked.within {
                None => [f64::INFINITY, 0.0],
                Some([start, end]) => [way.model.sigma_at(start), way.model.sigma_at(end)],
            };
            asked.iter().map(of).collect::<Vec<_>>()
        };
        let mut within = Within { positive: within(&request.conditioning), negative: within(&request.negative) };
        within.negative.truncate(inputs.negatives.len());
        self.check_cover(request, &way, &within)?;
        let InputShapes { conditionings, negatives, has_mask, latent, .. } = inputs;
        let prompt = |(of, within): (&ConditioningShape, &[f64; 2])| PromptShape {
            text: of.text.clone(),
            pooled: of.pooled.clone(),
            image: of.image.clone(),
            is_whole: *within == [f64::INFINITY, 0.0],
        };
        let guides = request.cfg != 1.0 || way.sampler.needs_negative();
        let negative = negatives.iter().zip(&within.negative).filter(|_| guides);
        let prompts = conditionings.iter().zip(&within.positive).chain(negative).map(prompt).collect();
        let shape = SampleShape {
            latents: shape,
            prompts,
            positive: conditionings.len(),
            sigmas: way.sigmas.clone(),
            sampler: way.sampler,
            guidance: self.guidance_of(request).map(|guidance| guidance as f32),
            has_clean_frames: has_mask && latent.is_some() && self.keeps_clean(),
            reuse: request.reuse,
        };
        Ok(SampleOutline { shape, way, conditionings, negatives, within })
    }

    /// True if kept latents go in without noise.
    pub(super) fn keeps_clean(&self) -> bool {
        self.config().facts().start == Some(Start::FirstFrame)
    }

    /// Refuses steps at which no conditioning counts.
    fn check_cover(&self, request: &SampleRequest, way: &Way, within: &Within) -> Result<()> {
        let Way { sampler, sigmas, .. } = way;
        let counts = |within: &[f64; 2], sigma: f64| {
            let [from, to] = within.map(|sigma| sigma as f32);
            from >= sigma as f32 && sigma as f32 >= to
        };
        for (prompts, name) in [(&within.positive, Setting::Conditioning), (&within.negative, Setting::Negative)] {
            let is_bare = |sigma: &&f64| !prompts.iter().any(|prompt| counts(prompt, **sigma));
            let steps = &sigmas[..sigmas.len() - 1];
            // Some samplers also ask between the steps' sigmas, also where parts only just meet.
            let edges = prompts.iter().flatten().filter(|sigma| sigma.is_finite());
            let between: Vec<f64> = edges
                .flat_map(|edge| [edge * (1.0 - 1e-6), edge * (1.0 + 1e-6)])
                .filter(|sigma| sampler.calls() > 1 && *sigma < steps[0] && *sigma > steps[steps.len() - 1])
                .collect();
            if let Some(sigma) = steps.iter().chain(&between).find(is_bare).filter(|_| !prompts.is_empty()) {
                return Err(
                    self.refused(format!("no {name} counts at sigma {sigma:.4}: give one for each part of the way"))
                );
            }
            if request.reuse.is_some() && prompts.iter().any(|prompt| *prompt != [f64::INFINITY, 0.0]) {
                let reason = format!("beside a {name} for a part of the way: leave one of them out");
                return Err(Error::wrong(Setting::Reuse, reason));
            }
        }
        Ok(())
    }

    /// True if guidance is an input of the transformer.
    pub(super) fn is_guided(&self) -> bool {
        self.config().facts().guidance.is_some()
    }

    /// Checks guidance as an input of the transformer.
    ///
    /// # Errors
    /// The transformer has no such input, or the guidance is not finite.
    pub fn check_guidance(&self, guidance: Option<f64>) -> Result<()> {
        let Some(guidance) = guidance else { return Ok(()) };
        if !self.is_guided() {
            return Err(Error::wrong(
                Setting::Guidance,
                format!(
                    "this transformer takes no guidance ({guidance}): it is for transformers with guidance as an input, such as Flux.1 dev; others have {}",
                    Setting::Cfg
                ),
            ));
        }
        if !(guidance as f32).is_finite() {
            return Err(Error::wrong(Setting::Guidance, "a guidance that is not finite"));
        }
        Ok(())
    }

    fn no_size(&self) -> Error {
        self.refused(format!("no size: give {} or {}", Setting::Size, Setting::Latent))
    }

    pub(super) fn refused(&self, reason: String) -> Error {
        Error::input(&self.path, reason)
    }

    /// A latent's file, and the shape of its latents as the model has them.
    pub(super) fn latent_file(&self, path: &Path) -> Result<(LatentFile, Vec<i64>)> {
        let file = LatentFile::open(path, None)?;
        let (extents, channels) = (file.extents(), self.config().facts().latent_channels);
        if file.channels() != channels.unsigned_abs() {
            let reason = format!("{} channels: this transformer's latents have {channels}", file.channels());
            return Err(Error::input(path, reason));
        }
        let [samples, frames, rows, columns] =
            [extents.samples, extents.frames, extents.height, extents.width].map(i64::from);
        let shape = match self.config().facts().is_video {
            true => vec![samples, channels, frames, rows, columns],
            false if frames == 1 => vec![samples, channels, rows, columns],
            false => return Err(Error::input(path, "a clip's latent: this transformer makes pictures")),
        };
        Ok((file, shape))
    }

    /// The shape of the latents: [N, C, h, w], or [N, C, T, h, w] of clips.
    fn shape(
        &self,
        request: &SampleRequest,
        inputs: &InputShapes,
        conditioning: &ConditioningShape,
    ) -> Result<Vec<i64>> {
        let config = self.config();
        let (latent, noise) = (inputs.latent.as_ref(), inputs.noise.as_ref());
        let mut shape = match (latent, request.size, noise) {
            (Some(latent), None, _) => latent.clone(),
            (None, Some(size), _) => self.shape_of(size)?,
            (None, None, Some(noise)) => noise.clone(),
            (Some(_), Some(_), _) => {
                return Err(self.refused("a size and a latent, which has its own: give one of them".into()));
            }
            (None, None, None) => return Err(self.no_size()),
        };
        let axes = if config.facts().is_video { 5 } else { 4 };
        if shape.len() != axes || shape[1] != config.facts().latent_channels {
            return Err(self.refused(format!(
                "latents of {shape:?}: {axes} axes and {} channels were expected",
                config.facts().latent_channels
            )));
        }
        let noises = noise.and_then(|noise| noise.first().copied());
        let samples = shape[0].max(conditioning.samples());
        let seeds = request.seeds.len() as i64;
        let batch = match seeds {
            ..=1 => request.batch.map(i64::from).or(noises).unwrap_or(samples),
            seeds => seeds,
        };
        if request.batch.is_some_and(|asked| i64::from(asked) != batch) {
            let reason = format!("{seeds} seeds for a batch of {}: one, or as many", request.batch.unwrap_or(1));
            return Err(Error::wrong(Setting::Batch, reason));
        }
        if shape[0] != 1 && shape[0] != batch && latent.is_some() {
            let reason = format!("{} latents for a batch of {batch}: one, or as many, were expected", shape[0]);
            return Err(Error::wrong(Setting::Batch, reason));
        }
        shape[0] = batch;
        Ok(shape)
    }
}

/// The shape of the noise in a file.
fn noise_shape(path: &Path) -> Result<Vec<i64>> {
    let file = Checkpoint::open(path).map_err(ModelError::from)?;
    shape_in(&file, NOISE)?.ok_or_else(|| missing(&file, NOISE))
}

/// Checks the settings that depend on no file.
fn check_settings(request: &SampleRequest, has_no_negative: bool) -> Result<()> {
    if let Some(sampler) = request.sampler.filter(|sampler| sampler.needs_negative() && has_no_negative) {
        let [negative, cfg] = [Setting::Negative, Setting::Cfg];
        let reason = format!("{sampler} reads a negative conditioning on its own: give {negative}, with {cfg}");
        return Err(Error::wrong(Setting::Sampler, reason));
    }
    if let Some(reuse) = request.reuse.filter(|reuse| !(*reuse > 0.0 && *reuse <= MOST_REUSE)) {
        let reason = format!("a reuse of {reuse}: a part above 0 and at most {MOST_REUSE} was expected, as 0.2");
        return Err(Error::wrong(Setting::Reuse, reason));
    }
    if !(request.cfg as f32).is_finite() {
        return Err(Error::wrong(Setting::Cfg, format!("a guidance (cfg) of {}: a number was expected", request.cfg)));
    }
    Ok(())
}
