//! Models: files, and the requests that they take.

use std::{collections::HashSet, num::NonZeroU32, path::PathBuf};

use pyo3::prelude::*;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tilewright_models::{Checkpoint, Family, Inspection, Kind, Start};
use tilewright_pipeline::{
    Asked, EmbeddingFolder, Foreseen, LoraRequest, Model as VaeModel, PromptRequest, SampleModel, SampleRequest, Size,
    Steps, TextEncoders, TextRequest,
};
use tilewright_plan::Objective;
use tilewright_prices::{ClipExtents, MemoryLimit, Overrides, Quote as Priced, Stored};
use tilewright_sampling::{Convention, Span};

use crate::{
    answer::{json, read},
    device::Device,
    errors::{detached, model},
    quote::{AnyQuote, Quote},
};

/// The folder of a pipeline that its VAE is in.
const VAE_FOLDERS: [&str; 1] = ["vae"];

/// The user's knowledge of files.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// The part of a checkpoint or pipeline that is meant, if it holds several.
    part: Option<Role>,
    family: Option<String>,
    scaling_factor: Option<f64>,
    shift_factor: Option<f64>,
    boundary: Option<f64>,
    /// Each as the program's `--lora` has it.
    loras: Vec<String>,
}

impl Options {
    /// Refuses numbers that scale nothing, and what is for another part.
    fn check(&self, role: Role) -> PyResult<()> {
        let given = [
            ("family", self.family.is_some(), Role::Vae),
            ("scaling_factor", self.scaling_factor.is_some(), Role::Vae),
            ("shift_factor", self.shift_factor.is_some(), Role::Vae),
            ("boundary", self.boundary.is_some(), Role::Transformer),
            ("loras", !self.loras.is_empty(), Role::Transformer),
        ];
        if let Some((name, ..)) = given.iter().find(|(_, is_given, of)| *is_given && *of != role) {
            return Err(model(format!("{name}: is for other parts of a model: leave it out")));
        }
        match self.scaling_factor.filter(|factor| !factor.is_normal()) {
            Some(factor) => Err(model(format!("scaling_factor: expected a number other than zero, not {factor}"))),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Role {
    Vae,
    Transformer,
    TextEncoder,
}

/// The request of a decode or an encode. Sides are in pixels.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VaeFields {
    width: NonZeroU32,
    height: NonZeroU32,
    #[serde(default = "one_sample")]
    frames: NonZeroU32,
    #[serde(default = "one_sample")]
    batch: NonZeroU32,
    #[serde(default)]
    memory_limit: Option<u64>,
    #[serde(default)]
    limit_counts_weights: bool,
    #[serde(default)]
    objective: Option<Objective>,
    #[serde(default)]
    allows_blended: bool,
}

fn one_sample() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// The request of a sample: from files, as the program's `sample` takes them, or of a size and
/// texts of some tokens.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SampleFields {
    width: Option<u32>,
    height: Option<u32>,
    frames: Option<u32>,
    batch: Option<u32>,
    text_tokens: Option<u32>,
    has_negative: Option<bool>,
    starts_with_picture: bool,
    /// Each as the program's `--conditioning` has it.
    conditioning: Vec<String>,
    negative: Vec<String>,
    latent: Option<PathBuf>,
    noise: Option<PathBuf>,
    mask: Option<PathBuf>,
    seeds: Vec<u64>,
    steps: Option<u32>,
    sigmas: Option<Vec<f64>>,
    sampler: Option<String>,
    scheduler: Option<String>,
    shift: Option<f64>,
    guidance: Option<f64>,
    cfg: Option<f64>,
    denoise: Option<f64>,
    reuse: Option<f64>,
    convention: Convention,
    memory_limit: Option<u64>,
    objective: Option<Objective>,
}

/// The request of prompts, of which each is a row of the conditioning.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TextFields {
    prompts: Vec<String>,
    /// Tokens of texts, in place of prompts.
    tokens: Vec<u32>,
    convention: Convention,
    text_tokens: Option<u32>,
    embeddings: Option<PathBuf>,
    memory_limit: Option<u64>,
    objective: Option<Objective>,
}

enum Part {
    Vae(Box<VaeModel>),
    Transformer(Box<SampleModel>),
    TextEncoders(Box<TextEncoders>),
}

/// Files of a model, read by their headers.
#[pyclass(frozen, module = "tilewright._native")]
pub struct Model {
    paths: Vec<PathBuf>,
    part: Part,
    notes: Vec<String>,
}

/// The role of a file or folder: what its first network is for.
fn role(path: &std::path::Path) -> PyResult<Role> {
    let file = Checkpoint::open_part(path, &[]).map_err(model)?;
    let inspection = Inspection::of(&file);
    let found = match inspection.identity.kind {
        Kind::KlAutoencoder | Kind::VideoAutoencoder => Some(Role::Vae),
        Kind::Transformer => Some(Role::Transformer),
        _ if inspection.transformer.is_some() => Some(Role::Transformer),
        _ if !inspection.text_encoders.is_empty() => Some(Role::TextEncoder),
        _ => None,
    };
    let others = [inspection.transformer.is_some(), !inspection.text_encoders.is_empty(), inspection.decoder.is_some()];
    if others.iter().filter(|there| **there).count() > 1 {
        return Err(model(format!(
            "{}: a checkpoint of several networks: name the part, as vae, transformer or text-encoder",
            path.display()
        )));
    }
    found.ok_or_else(|| {
        let problem = inspection.problem.unwrap_or_else(|| "no network in it that can be run".into());
        model(format!("{}: {problem}", path.display()))
    })
}

#[pymethods]
impl Model {
    /// Opens files of one part of a model; `options` is a JSON object.
    #[new]
    fn new(py: Python<'_>, paths: Vec<PathBuf>, options: &str) -> PyResult<Self> {
        let options: Options = read("the options of a model", options, model)?;
        detached(py, || Self::open(paths, options))
    }

    /// The part of a model that the files are: "vae", "video-vae", "transformer" or "text-encoder".
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.part {
            Part::Vae(vae) if vae.is_video() => "video-vae",
            Part::Vae(_) => "vae",
            Part::Transformer(_) => "transformer",
            Part::TextEncoders(_) => "text-encoder",
        }
    }

    /// Lines on LoRAs of which a part has no place in the transformer.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Each file, as a JSON list of the reports of `tilewright inspect`.
    fn inspect(&self, py: Python<'_>) -> PyResult<String> {
        #[derive(Serialize)]
        struct Report {
            file: String,
            #[serde(flatten)]
            inspection: Inspection,
        }
        detached(py, || {
            let report = |path: PathBuf| -> PyResult<Report> {
                let file = Checkpoint::open(&path).map_err(model)?;
                Ok(Report { file: file.path().display().to_string(), inspection: Inspection::of(&file) })
            };
            json(&self.files()?.into_iter().map(report).collect::<PyResult<Vec<_>>>()?)
        })
    }

    /// A decode, priced on a device.
    fn decode(&self, py: Python<'_>, device: &Device, request: &str) -> PyResult<Quote> {
        let fields: VaeFields = fields(request)?;
        detached(py, || self.decode_quote(device, fields))
    }

    /// An encode, priced on a device.
    fn encode(&self, py: Python<'_>, device: &Device, request: &str) -> PyResult<Quote> {
        let fields: VaeFields = fields(request)?;
        detached(py, || self.encode_quote(device, fields))
    }

    /// A sample, priced on a device.
    fn denoise(&self, py: Python<'_>, device: &Device, request: &str) -> PyResult<Quote> {
        let fields: SampleFields = fields(request)?;
        detached(py, || self.sample_quote(device, fields))
    }

    /// Runs of prompts through each text encoder, priced on a device.
    fn text(&self, py: Python<'_>, device: &Device, request: &str) -> PyResult<Vec<Quote>> {
        let fields: TextFields = fields(request)?;
        detached(py, || self.text_quotes(device, fields))
    }
}

fn fields<T: DeserializeOwned>(request: &str) -> PyResult<T> {
    read("the request", request, model)
}

impl VaeFields {
    fn limit(&self, device: &Device) -> MemoryLimit {
        let bytes = self.memory_limit.unwrap_or_else(|| device.basis.default_limit());
        MemoryLimit { bytes, counts_weights: self.limit_counts_weights }
    }

    fn objective(&self) -> Objective {
        self.objective.unwrap_or(Objective::Balanced)
    }

    /// A side, in latent pixels.
    fn latent(side: NonZeroU32, scale: u32, name: &str) -> PyResult<i64> {
        let side = side.get();
        match side.is_multiple_of(scale) {
            true => Ok(i64::from(side / scale)),
            false => Err(model(format!("a {name} of {side} pixels: a multiple of {scale} was expected"))),
        }
    }
}

impl Model {
    fn open(paths: Vec<PathBuf>, options: Options) -> PyResult<Self> {
        let Some(first) = paths.first() else { return Err(model("no file of a model is given")) };
        let role = match options.part {
            Some(role) => role,
            None => match role(first) {
                // A pipeline's folder holds all parts.
                Err(_) if first.join("model_index.json").is_file() => {
                    return Err(model(format!(
                        "{}: a pipeline's folder: name the part, as vae, transformer or text-encoder",
                        first.display()
                    )));
                }
                found => found?,
            },
        };
        options.check(role)?;
        let mut notes = Vec::new();
        let part = match role {
            Role::Vae => {
                if let Some(other) = paths.get(1) {
                    return Err(model(format!("{}: a VAE is one file or folder: leave it out", other.display())));
                }
                let family = options.family.as_deref().map(str::parse::<Family>).transpose().map_err(model)?;
                let overrides = Overrides { family, scaling: options.scaling_factor, shift: options.shift_factor };
                let path = tilewright_models::find_part(first, &VAE_FOLDERS).map_err(model)?;
                Part::Vae(Box::new(VaeModel::open(&path, overrides).map_err(model)?))
            }
            Role::Transformer => {
                let mut opened = SampleModel::open(&paths, options.boundary).map_err(model)?;
                for lora in &options.loras {
                    let lora: LoraRequest = lora.parse().map_err(|error| model(format!("{lora}: {error}")))?;
                    notes.extend(opened.add(&lora).map_err(model)?);
                }
                Part::Transformer(Box::new(opened))
            }
            Role::TextEncoder => Part::TextEncoders(Box::new(TextEncoders::open(&paths).map_err(model)?)),
        };
        Ok(Self { paths, part, notes })
    }

    /// The files that were opened, each once: a pipeline's folder may have several of a part, and a
    /// checkpoint several networks.
    fn files(&self) -> PyResult<Vec<PathBuf>> {
        let mut files: Vec<PathBuf> = match &self.part {
            Part::Vae(_) => {
                let found = self.paths.iter().map(|path| tilewright_models::find_part(path, &VAE_FOLDERS));
                found.collect::<Result<Vec<_>, _>>().map_err(model)?
            }
            Part::Transformer(transformer) => {
                transformer.denoiser.files().iter().map(|file| file.file().file().path().to_owned()).collect()
            }
            Part::TextEncoders(encoders) => encoders.models().into_iter().map(|(_, path)| path.to_owned()).collect(),
        };
        let mut seen = HashSet::new();
        files.retain(|path| seen.insert(path.clone()));
        Ok(files)
    }

    fn vae(&self) -> PyResult<&VaeModel> {
        match &self.part {
            Part::Vae(vae) => Ok(vae),
            _ => Err(self.refused("decodes and encodes are of a VAE")),
        }
    }

    fn refused(&self, reason: &str) -> PyErr {
        let path = self.paths.first().map(|path| path.display().to_string()).unwrap_or_default();
        model(format!("{path}: a {}: {reason}", self.kind()))
    }

    fn decode_quote(&self, device: &Device, fields: VaeFields) -> PyResult<Quote> {
        let vae = self.vae()?;
        vae.check_weights().map_err(model)?;
        let scale = vae.spatial_scale();
        let height = VaeFields::latent(fields.height, scale, "height")?;
        let width = VaeFields::latent(fields.width, scale, "width")?;
        let (batch, channels) = (i64::from(fields.batch.get()), vae.latent_channels() as i64);
        let (basis, limit, objective) = (&device.basis, fields.limit(device), fields.objective());
        let quote = match vae {
            VaeModel::Picture(_) if fields.frames.get() != 1 => {
                return Err(self.refused("it makes pictures: frames can't be asked for"));
            }
            VaeModel::Picture(file) => Priced::decode(basis, file, [batch, channels, height, width], limit, objective),
            VaeModel::Clip(file) => {
                let temporal = vae.temporal_scale();
                let later = fields.frames.get() - 1;
                if !later.is_multiple_of(temporal) {
                    return Err(model(format!(
                        "{} frames: one more than a multiple of {temporal} was expected",
                        fields.frames
                    )));
                }
                let frames = i64::from(later / temporal + 1);
                Priced::decode_clips(basis, file, [batch, channels, frames, height, width], limit, objective)
            }
        };
        let quote = quote.map_err(model)?.allowing_blended(fields.allows_blended);
        Ok(Quote::new(AnyQuote::Vae(quote), &device.fingerprint))
    }

    fn encode_quote(&self, device: &Device, fields: VaeFields) -> PyResult<Quote> {
        let (basis, limit, objective) = (&device.basis, fields.limit(device), fields.objective());
        let [width, height, frames, batch] =
            [fields.width, fields.height, fields.frames, fields.batch].map(NonZeroU32::get);
        let quote = match self.vae()? {
            VaeModel::Picture(_) if frames != 1 => {
                return Err(self.refused("it encodes pictures: frames can't be asked for"));
            }
            VaeModel::Picture(file) => {
                let channels = file.config.image_channels as i64;
                let shape = [i64::from(batch), channels, i64::from(height), i64::from(width)];
                Priced::encode(basis, file, &shape, limit, objective).map(|(quote, _)| quote)
            }
            VaeModel::Clip(_) if batch != 1 => return Err(self.refused("an encode takes one clip")),
            VaeModel::Clip(file) => {
                let extents = ClipExtents { frames, height, width };
                Priced::encode_clip(basis, file, extents, limit, objective).map(|(quote, _)| quote)
            }
        };
        let quote = quote.map_err(model)?.allowing_blended(fields.allows_blended);
        Ok(Quote::new(AnyQuote::Vae(quote), &device.fingerprint))
    }

    fn sample_quote(&self, device: &Device, fields: SampleFields) -> PyResult<Quote> {
        let Part::Transformer(transformer) = &self.part else {
            return Err(self.refused("samples are of a transformer"));
        };
        let (limit, objective) = (fields.memory_limit, fields.objective.unwrap_or(Objective::Balanced));
        let limit = limit.unwrap_or_else(|| device.basis.default_limit());
        let of_conditioning = [
            ("negative", !fields.negative.is_empty()),
            ("latent", fields.latent.is_some()),
            ("noise", fields.noise.is_some()),
            ("mask", fields.mask.is_some()),
        ];
        if fields.conditioning.is_empty()
            && let Some((name, _)) = of_conditioning.iter().find(|(_, is_given)| *is_given)
        {
            return Err(model(format!("{name}: goes with conditioning: give that, too, or text_tokens alone")));
        }
        let outline = match fields.conditioning.is_empty() {
            true => transformer.outline_foreseen(&chosen(transformer, &fields)?, foreseen(transformer, &fields)?),
            false => transformer.outline(&asked(transformer, fields)?),
        };
        let shape = outline.map_err(model)?.shape;
        let quote = Priced::denoise(&device.basis, &transformer.denoiser, &shape, limit, objective).map_err(model)?;
        Ok(Quote::new(AnyQuote::Denoise(quote), &device.fingerprint))
    }

    fn text_quotes(&self, device: &Device, fields: TextFields) -> PyResult<Vec<Quote>> {
        let Part::TextEncoders(encoders) = &self.part else {
            return Err(self.refused("prompts are for text encoders"));
        };
        if fields.prompts.is_empty() == fields.tokens.is_empty() {
            return Err(model("prompts, or the tokens of texts, were expected"));
        }
        if fields.tokens.contains(&0) {
            return Err(model("a text of 0 tokens"));
        }
        let embeddings = fields.embeddings.as_deref().map(EmbeddingFolder::open).transpose().map_err(model)?;
        let request = TextRequest {
            prompts: &fields.prompts,
            convention: fields.convention,
            tokens: fields.text_tokens,
            embeddings: embeddings.as_ref(),
            memory_limit: fields.memory_limit.unwrap_or_else(|| device.basis.default_limit()),
            objective: fields.objective.unwrap_or(Objective::Balanced),
        };
        // Nothing stays loaded for a next run, as in the program.
        let store = |_, _, _, _| Stored::default();
        let quotes = match fields.tokens.is_empty() {
            true => encoders.quotes(&device.basis, device.host.as_ref(), &request, &store),
            false => encoders.quotes_of(&device.basis, device.host.as_ref(), &request, &fields.tokens, &store),
        };
        let quotes = quotes.map_err(model)?;
        Ok(quotes.into_iter().map(|quote| Quote::new(AnyQuote::Text(quote), &device.fingerprint)).collect())
    }
}

/// A name of the samplers' or the schedulers' lists.
fn named<T: std::str::FromStr>(name: Option<&str>) -> PyResult<Option<T>>
where
    T::Err: std::fmt::Display,
{
    name.map(str::parse).transpose().map_err(|error: T::Err| model(error.to_string()))
}

/// The request of a size, and the model's defaults, as `tilewright generate` asks.
fn chosen(transformer: &SampleModel, fields: &SampleFields) -> PyResult<SampleRequest> {
    let [width, height] = transformer.usual_size();
    let size = [fields.width.unwrap_or(width), fields.height.unwrap_or(height)];
    Ok(transformer.choose(&Asked {
        size: Some(size),
        frames: fields.frames,
        batch: fields.batch,
        seeds: fields.seeds.clone(),
        steps: fields.steps,
        sigmas: fields.sigmas.clone(),
        sampler: named(fields.sampler.as_deref())?,
        scheduler: named(fields.scheduler.as_deref())?,
        shift: fields.shift,
        guidance: fields.guidance,
        cfg: fields.cfg,
        denoise: fields.denoise,
        reuse: fields.reuse,
        convention: fields.convention,
    }))
}

/// The inputs that a prompt's stages will make for the sample.
fn foreseen(transformer: &SampleModel, fields: &SampleFields) -> PyResult<Foreseen> {
    let tokens = transformer.text_tokens_of(fields.text_tokens, fields.convention).map_err(model)?;
    let request = chosen(transformer, fields)?;
    let has_negative = fields.has_negative.unwrap_or(request.cfg != 1.0);
    let start =
        fields.starts_with_picture.then(|| transformer.denoiser.config().facts().start.unwrap_or(Start::Latent));
    Ok(Foreseen { tokens, has_negative, start })
}

/// The request of files, as `tilewright sample` asks.
fn asked(transformer: &SampleModel, fields: SampleFields) -> PyResult<SampleRequest> {
    let frames = fields.frames.unwrap_or_else(|| transformer.usual_frames());
    let prompts = |texts: &[String]| {
        let prompt = |text: &String| text.parse::<PromptRequest>().map_err(|error| model(format!("{text}: {error}")));
        texts.iter().map(prompt).collect::<PyResult<Vec<_>>>()
    };
    Ok(SampleRequest {
        conditioning: prompts(&fields.conditioning)?,
        negative: prompts(&fields.negative)?,
        size: fields.width.zip(fields.height).map(|(width, height)| Size { width, height, frames }),
        latent: fields.latent,
        noise: fields.noise,
        batch: fields.batch,
        mask: fields.mask,
        seeds: if fields.seeds.is_empty() { vec![0] } else { fields.seeds },
        steps: match fields.sigmas {
            Some(sigmas) => Steps::Sigmas(sigmas),
            None => Steps::Count {
                steps: fields.steps,
                strength: fields.denoise.unwrap_or(1.0),
                scheduler: named(fields.scheduler.as_deref())?,
                span: Span::default(),
            },
        },
        shift: fields.shift,
        sampler: named(fields.sampler.as_deref())?,
        adds_noise: true,
        guidance: fields.guidance,
        cfg: fields.cfg.unwrap_or(1.0),
        reuse: fields.reuse,
        convention: fields.convention,
        most_values: SampleRequest::MOST_VALUES,
        most_samples: SampleRequest::MOST_SAMPLES,
    })
}
