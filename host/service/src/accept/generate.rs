//! The inspection of a prompt before its job is accepted: what it makes, and the least memory for
//! its stages.

use std::path::{Path, PathBuf};

use tilewright_media::Shape;
use tilewright_models::Start;
use tilewright_pipeline::{
    Asked, EncodeSource, Foreseen, LatentMap, Model, PromptOutline, SampleModel, SampleRequest, Size, Steps,
    random_seed,
};
use tilewright_plan::Loss;
use tilewright_service_api::{JobRequest, JobSettings, JobStage, SampleFields, Seeds};

use super::{
    Around, Inspection, Refusal, Work,
    decode::choose_format,
    describe::describe,
    encode::of_image,
    internal, invalid,
    sample::{named, sample_request, work_of},
    settings::settings_of,
};
use crate::{
    device::DeviceState,
    jobs::inputs::{Input, Uploads},
    models::{OpenModel, OpenVae},
};

/// The most characters of a prompt.
const LONGEST: usize = 100_000;

/// The tokens that T5 may be asked to read.
const TEXT_TOKENS: std::ops::RangeInclusive<u32> = 3..=512;

/// Channels of what a prompt makes.
const CHANNELS: usize = 3;

/// Fields that are for other jobs.
type Alone = (&'static str, fn(&JobRequest) -> bool);

const OF_DECODES: [Alone; 3] = [
    ("scaled", |request| request.scaled),
    ("tensor", |request| request.tensor.is_some()),
    ("latent_path", |request| request.latent_path.is_some()),
];

/// The fields of a request's sample, with the seeds that the job was accepted with, if it was.
/// Those of a job from a prompt have the model's defaults where nothing is given.
///
/// # Errors
/// One line: a field makes no sense.
pub fn fields_of(
    request: &JobRequest,
    accepted: Option<&JobSettings>,
    transformer: &SampleModel,
) -> Result<SampleFields, String> {
    let mut fields = request.sample.as_deref().cloned().unwrap_or_default();
    fields.reuse = fields.reuse.or(Loss::reuse(&request.allow));
    match (accepted.map(|settings| &settings.seeds[..]), &fields.seed) {
        (Some([seed]), _) => fields.seed = Some(Seeds::Whole(*seed)),
        (Some(seeds), _) if !seeds.is_empty() => fields.seed = Some(Seeds::Each(seeds.to_vec())),
        (_, Some(Seeds::Drawn(_))) => fields.seed = Some(Seeds::Whole(random_seed())),
        _ => {}
    }
    if request.prompt.is_none() {
        return Ok(fields);
    }
    let SampleRequest { size, sampler, steps, cfg, .. } = transformer.choose(&asked(&fields)?);
    let steps = match steps {
        Steps::Count { steps, .. } => steps,
        Steps::Sigmas(_) => fields.steps,
    };
    Ok(SampleFields {
        width: size.map(|size| size.width),
        height: size.map(|size| size.height),
        frames: size.map(|size| size.frames),
        steps,
        sampler: sampler.map(|sampler| sampler.to_string()),
        // Without a negative conditioning it has no meaning.
        cfg: (cfg != 1.0).then_some(cfg),
        ..fields
    })
}

/// The fields of a job whose latent gives the size.
pub fn from_latent(fields: SampleFields) -> SampleFields {
    SampleFields { width: None, height: None, frames: None, ..fields }
}

/// The size of what begins with a picture, by the picture's header.
fn image_size(
    image: &Path,
    model: &OpenModel,
    (transformer, vae): (&SampleModel, &Model),
    fields: &SampleFields,
) -> Result<Size, Refusal> {
    if vae.is_video() {
        return Err(invalid(format!("image: model {} makes clips, and they begin with no picture here", model.name)));
    }
    if let Some((name, _)) =
        [("width", fields.width), ("height", fields.height)].iter().find(|(_, side)| side.is_some())
    {
        return Err(invalid(format!("sample.{name}: a picture to begin with has its size: leave one of them out")));
    }
    check_is_picture(image)?;
    let scale = vae.encoded_scale().map_err(internal)?;
    let size = transformer.size_of_picture(image, scale, fields.frames.unwrap_or(1));
    size.map_err(|error| unsound(image, &error))
}

/// Refuses whatever is no picture by its header: an encode would take a clip, too, which other
/// programs read.
fn check_is_picture(image: &Path) -> Result<(), Refusal> {
    let header = tilewright_media::picture_bytes(image).map_err(tilewright_pipeline::Error::from);
    header.map(drop).map_err(|error| unsound(image, &error))
}

/// Reads a picture and keeps none of it.
fn check_image(image: &Path) -> Result<(), Refusal> {
    let checked = EncodeSource::open(image, Some(1)).and_then(|source| source.check());
    checked.map_err(|error| unsound(image, &error))
}

/// The refusal of a picture that can't be read.
fn unsound(image: &Path, error: &tilewright_pipeline::Error) -> Refusal {
    invalid(of_image(error, image))
}

/// The settings that fields ask for.
fn asked(fields: &SampleFields) -> Result<Asked, String> {
    let size = match (fields.width, fields.height) {
        (Some(width), Some(height)) => Some([width, height]),
        (None, None) => None,
        _ => return Err("sample.width and sample.height: give both, or neither for the model's own size".into()),
    };
    Ok(Asked {
        size,
        frames: fields.frames,
        batch: fields.batch,
        seeds: fields.seed.as_ref().map_or_else(Vec::new, Seeds::list),
        steps: fields.steps,
        sigmas: fields.sigmas.clone(),
        sampler: named("sampler", fields.sampler.as_ref())?,
        scheduler: named("scheduler", fields.scheduler.as_ref())?,
        shift: fields.shift,
        guidance: fields.guidance,
        cfg: fields.cfg,
        denoise: fields.denoise,
        reuse: fields.reuse,
        convention: named("as", fields.convention.as_ref())?.unwrap_or_default(),
    })
}

/// The prompts of a request: the negative one comes second, if it counts.
pub fn prompts_of(request: &JobRequest, fields: &SampleFields) -> Vec<String> {
    let negative = fields.cfg.map(|_| request.negative_prompt.clone().unwrap_or_default());
    request.prompt.clone().into_iter().chain(negative).collect()
}

/// Looks into a request from a prompt.
///
/// # Errors
/// It can't be made as the request asks.
pub fn inspect<'a>(
    model: &'a OpenModel,
    device: &DeviceState,
    request: &JobRequest,
    prompt: &str,
    uploads: &'a Uploads,
) -> Result<Inspection<'a>, Refusal> {
    if let Some((name, _)) = OF_DECODES.iter().find(|(_, is_given)| is_given(request)) {
        return Err(invalid(format!("{name}: is for decodes: leave it out of a job from a prompt")));
    }
    if request.sample.as_ref().is_some_and(|sample| sample.leftover_noise) {
        return Err(invalid("sample.leftover_noise: is for samples: leave it out of a job from a prompt"));
    }
    let image = uploads.get(&Input::Image).map(|image| image.path());
    let given = request.sample.as_deref().cloned().unwrap_or_default();
    for (name, is_given) in [("mask", uploads.contains_key(&Input::Mask)), ("sample.denoise", given.denoise.is_some())]
    {
        if is_given && image.is_none() {
            return Err(invalid(format!("{name}: expected an image with it, which is made anew in part")));
        }
    }
    if let Some(input) = uploads.keys().find(|input| ![Input::Image, Input::Mask].contains(input)) {
        return Err(invalid(format!("{}: a prompt is the whole input: leave it out", input.name())));
    }
    for (name, text) in [("prompt", Some(prompt)), ("negative_prompt", request.negative_prompt.as_deref())] {
        if text.is_some_and(|text| text.chars().count() > LONGEST) {
            return Err(invalid(format!("{name}: expected at most {LONGEST} characters")));
        }
    }
    let (text, transformer, OpenVae { model: vae, path }) = model.for_prompts().map_err(Refusal::Invalid)?;
    LatentMap::check(transformer, (vae, path))
        .map_err(|_| invalid(format!("model: the vae of {} is of another model than its transformer", model.name)))?;
    if request.text_tokens.is_some_and(|tokens| !TEXT_TOKENS.contains(&tokens)) {
        let (least, most) = (TEXT_TOKENS.start(), TEXT_TOKENS.end());
        return Err(invalid(format!("text_tokens: expected {least} to {most}")));
    }
    let size_of_image = image.map(|image| image_size(image, model, (transformer, vae), &given)).transpose()?;
    let mut fields = fields_of(request, None, transformer).map_err(Refusal::Invalid)?;
    if let Some(Size { width, height, .. }) = size_of_image {
        (fields.width, fields.height) = (Some(width), Some(height));
    }
    let (width, height) = (fields.width.unwrap_or_default(), fields.height.unwrap_or_default());
    let size = Size { width, height, frames: fields.frames.unwrap_or(1) };
    // The files of the stages before the sample, which none has made yet; only the mask is there.
    let named = |input: Input| -> Option<PathBuf> {
        match input {
            Input::Conditioning => Some(PathBuf::from(input.name())),
            Input::Negative => fields.cfg.map(|_| PathBuf::from(input.name())),
            Input::Latent => image.map(|_| PathBuf::from(input.name())),
            Input::Mask => uploads.get(&Input::Mask).map(|mask| mask.path().to_owned()),
            Input::Noise | Input::Image => None,
        }
    };
    let mask = uploads.get(&Input::Mask).map(|mask| mask.path());
    let refused = move |error: &tilewright_pipeline::Error| {
        invalid(describe(error, model, |input| mask.filter(|_| input == Input::Mask).map(Path::to_owned)))
    };
    let asked = sample_request(transformer, &fields, named).map_err(Refusal::Invalid)?;
    transformer.check_size(size).map_err(|error| refused(&error))?;
    let tokens = transformer.text_tokens_of(request.text_tokens, asked.convention).map_err(|error| refused(&error))?;
    let foreseen = Foreseen { tokens, has_negative: fields.cfg.is_some(), start: image.map(|_| Start::Latent) };
    // Conditionings, latents and noise are made when the job's turn comes.
    let outline = SampleRequest { latent: None, size: Some(size), ..asked.clone() };
    let outline = PromptOutline::new(transformer, vae, &outline, foreseen).map_err(|error| refused(&error))?;
    let least = outline.least(&device.machine).map_err(internal)?;
    let sample = outline.sample;
    let facts = vae.facts();
    let around = Around {
        quantized_text: text.quantized,
        family: facts.family.clone(),
        quantized_vae: facts.quantized,
        encodes: image.is_some(),
    };
    let work = Work { around: Some(around), ..work_of(transformer, &sample, JobStage::Generate) };
    let settings = settings_of(model, transformer, request, (&asked, &sample.shape.latents));
    let mut settings = settings.map_err(|error| refused(&error))?;
    settings.text_tokens = Some(tokens);
    (settings.image, settings.mask) = (image.is_some(), uploads.contains_key(&Input::Mask));
    let (samples, frames) = (work.samples as usize, work.frames as usize);
    let made = Shape { samples, frames, width: work.width, height: work.height, channels: CHANNELS };
    let (format, rate) = choose_format(request, vae, &made)?;
    settings.fps = vae.is_video().then(|| rate.to_string());
    Ok(Inspection {
        settings: Some(settings),
        work,
        latent: None,
        format,
        least_bytes: least.bytes,
        counts_weights: true,
        expected: least.time,
        check_values: Box::new(move || {
            image.map_or(Ok(()), check_image)?;
            mask.map_or(Ok(()), |mask| transformer.check_mask(mask, &sample)).map_err(|error| refused(&error))
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_a_picture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("upload");
        let header = br#"{"sample":{"dtype":"F32","shape":[1,3,1,1],"data_offsets":[0,12]}}"#;
        let tensors = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 12]].concat();
        for bytes in [&b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom"[..], b"\x1a\x45\xdf\xa3", &tensors[..], b""] {
            std::fs::write(&path, bytes).unwrap();
            let Err(Refusal::Invalid(line)) = check_is_picture(&path) else { panic!("{bytes:?} is taken") };
            assert!(line.starts_with("image: ") && !line.contains("upload"), "{line}");
        }
    }
}
