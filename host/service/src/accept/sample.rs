//! The inspection of a sample before its job is accepted: what it makes, and the least memory for
//! it.

use std::path::PathBuf;

use tilewright_engine::Quote;
use tilewright_pipeline::{LatentMap, PromptRequest, SampleModel, SampleOutline, SampleRequest, Size, Steps};
use tilewright_plan::{Denoise, Objective, Stage};
use tilewright_sampling::Span;
use tilewright_service_api::{JobRequest, JobStage, OutputFormat, SampleFields};

use super::{
    Inspection, Refusal, Work, describe::describe, generate::fields_of, internal, invalid, settings::settings_of,
};
use crate::{
    device::DeviceState,
    jobs::inputs::{Input, Uploads},
    models::OpenModel,
};

/// The most values of latents, all samples together: 128 MiB of them.
const MOST_VALUES: u64 = 1 << 25;

/// The most samples of a batch, and the most sigmas.
const MOST_SAMPLES: u32 = 1024;
const MOST_SIGMAS: usize = 10_001;

/// Fields that are for decodes alone.
type Alone = (&'static str, fn(&JobRequest) -> bool);

const OF_DECODES: [Alone; 4] = [
    ("scaled", |request| request.scaled),
    ("tensor", |request| request.tensor.is_some()),
    ("fps", |request| request.fps.is_some()),
    ("count_weights", |request| request.count_weights),
];

/// Reads the files of a request.
///
/// # Errors
/// They can't be sampled as the request asks.
pub fn inspect<'a>(
    model: &'a OpenModel,
    device: &DeviceState,
    request: &JobRequest,
    fields: &SampleFields,
    uploads: &'a Uploads,
) -> Result<Inspection<'a>, Refusal> {
    if let Some((name, _)) = OF_DECODES.iter().find(|(_, is_given)| is_given(request)) {
        return Err(invalid(format!("{name}: is for decodes: leave it out of a sample")));
    }
    for (name, is_given) in
        [("negative_prompt", request.negative_prompt.is_some()), ("text_tokens", request.text_tokens.is_some())]
    {
        if is_given {
            return Err(invalid(format!("{name}: expected a prompt with it")));
        }
    }
    let format = request.format.unwrap_or(OutputFormat::Safetensors);
    if !matches!(format, OutputFormat::Safetensors | OutputFormat::Latent) {
        return Err(invalid(format!(
            "format: a sample is a latent, not {}: expected safetensors or latent",
            format.ending()
        )));
    }
    let Some(transformer) = &model.transformer else {
        return Err(invalid(format!("model: {} has no transformer: it only decodes", model.name)));
    };
    if fields.preview && model.vae.is_none() {
        return Err(invalid(format!("sample.preview: model {} has no vae to take the colours from", model.name)));
    }
    if uploads.contains_key(&Input::Image) {
        return Err(invalid("image: a picture to begin with is for prompts: give its latent instead"));
    }
    let paths = move |input: Input| uploads.get(&input).map(|upload| upload.path().to_owned());
    if let (true, Some(vae)) = (fields.preview, &model.vae) {
        LatentMap::check(transformer, (&vae.model, &vae.path))
            .map_err(|_| invalid(format!("sample.preview: the vae of model {} is of another model", model.name)))?;
    }
    let fields = &fields_of(request, None, transformer).map_err(Refusal::Invalid)?;
    let asked = sample_request(transformer, fields, paths).map_err(Refusal::Invalid)?;
    let refused = move |error: &tilewright_pipeline::Error| invalid(describe(error, model, paths));
    // Latents and noise are made when the job's turn comes.
    let outline = transformer.outline(&asked).map_err(|error| refused(&error))?;
    let shape = &outline.shape.latents;
    let quote = quote(device, transformer, &outline)?;
    let (least_bytes, expected) = (quote.least_bytes().unwrap_or_default(), quote.fastest());
    let settings = settings_of(model, transformer, request, (&asked, shape)).map_err(|error| refused(&error))?;
    Ok(Inspection {
        settings: Some(settings),
        work: work_of(transformer, &outline, JobStage::Denoise),
        latent: None,
        format,
        least_bytes,
        counts_weights: true,
        expected,
        check_values: Box::new(move || transformer.check_values(&asked, &outline).map_err(|error| refused(&error))),
    })
}

/// The least memory and time of a sample.
fn quote(device: &DeviceState, transformer: &SampleModel, outline: &SampleOutline) -> Result<Quote<Denoise>, Refusal> {
    let shape = &outline.shape;
    Quote::denoise(&device.machine.basis(), &transformer.denoiser, shape, u64::MAX, Objective::Fastest)
        .map_err(internal)
}

/// The work of a job that samples.
pub fn work_of(transformer: &SampleModel, outline: &SampleOutline, job: JobStage) -> Work {
    let shape = &outline.shape.latents;
    let [frames, height, width] = transformer.extents(shape);
    Work {
        stage: Stage::Denoise,
        job,
        family: transformer.denoiser.config().facts().family.name().to_owned(),
        quantized: transformer.denoiser.files().iter().any(|file| file.is_quantized()),
        samples: shape.first().map_or(1, |samples| *samples as u32),
        frames,
        height,
        width,
        steps: Some(outline.shape.steps() as u32),
        around: None,
    }
}

/// A field that names something.
///
/// # Errors
/// One line: nothing has the name.
pub fn named<T: std::str::FromStr<Err = String>>(name: &str, text: Option<&String>) -> Result<Option<T>, String> {
    let line = |error: String| format!("sample.{name}: {}", error.replace(char::is_control, " "));
    match text {
        Some(text) if text.len() > 64 => Err(format!("sample.{name}: expected at most 64 characters")),
        text => text.map(|text| text.parse().map_err(line)).transpose(),
    }
}

/// The request as the pipeline takes it, with the files of its inputs.
///
/// # Errors
/// One line: a field makes no sense.
pub fn sample_request(
    transformer: &SampleModel,
    fields: &SampleFields,
    path: impl Fn(Input) -> Option<PathBuf>,
) -> Result<SampleRequest, String> {
    let prompt = |input| path(input).map(|path| PromptRequest { path, within: None });
    let Some(conditioning) = prompt(Input::Conditioning) else {
        return Err("conditioning: expected a file: send it in a part of that name, or give its path".into());
    };
    let size = match (fields.width, fields.height) {
        (Some(width), Some(height)) => {
            Some(Size { width, height, frames: fields.frames.unwrap_or_else(|| transformer.usual_frames()) })
        }
        (None, None) if fields.frames.is_some() => return Err("sample.frames: give width and height with it".into()),
        (None, None) => None,
        _ => return Err("sample.width and sample.height: give both, or neither with a latent".into()),
    };
    let seeds = fields.seed.as_ref().map_or_else(|| vec![0], |seeds| seeds.list());
    let is_within = |count: usize| (1..=MOST_SAMPLES as usize).contains(&count);
    if !is_within(seeds.len()) || fields.batch.is_some_and(|batch| !is_within(batch as usize)) {
        return Err(format!("sample.batch and sample.seed: expected 1 to {MOST_SAMPLES} samples"));
    }
    let steps = match &fields.sigmas {
        Some(sigmas) if sigmas.len() > MOST_SIGMAS => {
            return Err(format!("sample.sigmas: expected at most {MOST_SIGMAS}"));
        }
        Some(sigmas) => Steps::Sigmas(sigmas.clone()),
        None => Steps::Count {
            steps: fields.steps,
            strength: fields.denoise.unwrap_or(1.0),
            scheduler: named("scheduler", fields.scheduler.as_ref())?,
            span: Span { start: fields.start_step, end: fields.end_step, leftover: fields.leftover_noise },
        },
    };
    let beside_sigmas = [
        ("steps", fields.steps.is_some()),
        ("scheduler", fields.scheduler.is_some()),
        ("denoise", fields.denoise.is_some()),
        ("start_step", fields.start_step.is_some()),
        ("end_step", fields.end_step.is_some()),
    ];
    if let (Steps::Sigmas(_), Some((name, _))) = (&steps, beside_sigmas.iter().find(|(_, given)| *given)) {
        return Err(format!("sample.{name} and sample.sigmas: give one of them"));
    }
    let is_given = |input| path(input).is_some();
    // As the command line has it.
    let needs = [
        ("sample.cfg", fields.cfg.is_some(), "a negative conditioning", is_given(Input::Negative)),
        ("negative", is_given(Input::Negative), "sample.cfg", fields.cfg.is_some()),
        ("sample.denoise", fields.denoise.is_some(), "a latent", is_given(Input::Latent)),
        ("sample.no_add_noise", fields.no_add_noise, "a latent", is_given(Input::Latent)),
        ("sample.leftover_noise", fields.leftover_noise, "sample.end_step", fields.end_step.is_some()),
        ("mask", is_given(Input::Mask), "a latent", is_given(Input::Latent)),
    ];
    if let Some((name, _, needed, _)) = needs.iter().find(|(_, given, _, has)| *given && !has) {
        return Err(format!("{name}: expected {needed} with it"));
    }
    if fields.no_add_noise && is_given(Input::Noise) {
        return Err("sample.no_add_noise and noise: give one of them".into());
    }
    Ok(SampleRequest {
        conditioning: vec![conditioning],
        negative: prompt(Input::Negative).into_iter().collect(),
        size,
        latent: path(Input::Latent),
        noise: path(Input::Noise),
        batch: fields.batch,
        mask: path(Input::Mask),
        seeds,
        adds_noise: !fields.no_add_noise,
        sampler: named("sampler", fields.sampler.as_ref())?,
        steps,
        shift: fields.shift,
        guidance: fields.guidance,
        cfg: fields.cfg.unwrap_or(1.0),
        reuse: fields.reuse,
        convention: named("as", fields.convention.as_ref())?.unwrap_or_default(),
        most_values: MOST_VALUES,
        most_samples: MOST_SAMPLES.into(),
    })
}
