//! Reports on files, from the names and shapes of their tensors.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use tilewright_checkpoint::Stored;
use tilewright_plan::Dtype;

use crate::{
    Checkpoint, DenoiserConfig, DenoiserFile, EncoderConfig, EncoderFile, Error, Family, HalfConfig, Identity, Kind,
    Lora, Result, kl,
    known::{Half, Known, Weights},
    parts::{Part, Role},
    wan_vae,
};

/// The report of `tilewright inspect` on a file.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The file's identity.
    #[serde(flatten)]
    pub identity: Identity,
    /// Tensors in the whole file.
    pub tensors: usize,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Elements by stored type.
    pub stored: BTreeMap<String, u64>,
    /// The file's format.
    pub format: &'static str,
    /// The files that it stands in.
    pub files: usize,
    /// The networks in it beside an autoencoder that can be run.
    pub parts: Vec<Part>,
    /// The text encoders that can be run.
    pub text_encoders: Vec<EncoderInspection>,
    /// The encoder of pictures that can be run, if there is one.
    pub vision_encoder: Option<EncoderInspection>,
    /// The transformer that can be sampled with, if there is one.
    pub transformer: Option<DenoiserInspection>,
    /// The changes to a transformer's weights, if it is a LoRA.
    pub lora: Option<LoraInspection>,
    /// An autoencoder's encoder is in the file.
    pub encoder: bool,
    /// The decoder, if there is one.
    pub decoder: Option<DecoderInspection>,
    /// The tensors by name with their shapes, if it is a latent or raw frames.
    pub latents: BTreeMap<String, Vec<usize>>,
    /// The file's texts by name with their lengths in bytes.
    pub texts: BTreeMap<String, usize>,
    /// The reason that no network in it can be run, if there is one.
    pub problem: Option<String>,
}

/// A decoder's architecture, of either kind.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Architecture {
    /// A KL autoencoder's.
    Kl(kl::Config),
    /// A video autoencoder's.
    Wan(wan_vae::Config),
}

impl Architecture {
    /// The family.
    pub fn family(&self) -> Family {
        match self {
            Architecture::Kl(config) => config.family,
            Architecture::Wan(config) => config.family,
        }
    }

    /// Channels of a latent.
    pub fn latent_channels(&self) -> usize {
        match self {
            Architecture::Kl(config) => config.latent_channels,
            Architecture::Wan(config) => config.latent_channels,
        }
    }

    /// Reads one of a kind, and looks for its weights.
    fn read<'a, C: HalfConfig>(
        file: &'a Checkpoint,
        identity: &'a Identity,
        of: fn(C) -> Self,
    ) -> Result<(Weights<'a>, Self)> {
        let config = C::read(file, identity)?;
        Ok((config.weights(file, identity)?, of(config)))
    }
}

/// The report of `tilewright inspect` on a decoder.
#[derive(Clone, Debug, Serialize)]
pub struct DecoderInspection {
    /// The architecture; absent if tensors that it is read from are missing.
    pub config: Option<Architecture>,
    /// Elements of the decoder's tensors.
    pub parameters: u64,
    /// Bytes of the decoder's tensors as stored.
    pub parameter_bytes: u64,
    /// The type that most of the decoder is stored in.
    pub stored: Option<Dtype>,
    /// Tensors that are missing or misshapen, one line each.
    pub missing: Vec<String>,
    /// Tensors that the decoder has no place for.
    pub left_over: Vec<String>,
    /// Tensors that the decoder needs and whose stored type can't be loaded, such as integers.
    pub uncomputable: Vec<String>,
}

impl DecoderInspection {
    /// Looks at the decoder of a file that has one.
    fn of(file: &Checkpoint, identity: &Identity) -> Option<Self> {
        if !identity.has_decoder(file) {
            return None;
        }
        let outcome = match identity.kind {
            Kind::KlAutoencoder => Architecture::read(file, identity, Architecture::Kl),
            Kind::VideoAutoencoder => Architecture::read(file, identity, Architecture::Wan),
            _ => return None,
        };
        let (missing, left_over, uncomputable, config) = match outcome {
            Ok((weights, config)) => (weights.problems(), weights.left_over(), weights.uncomputable(), Some(config)),
            Err(error) => (vec![error.to_string()], Vec::new(), Vec::new(), None),
        };
        let names = Half::Decoder.names(file, identity);
        let bytes = |name: &String| file.bytes(name).map(|bytes| bytes.len() as u64);
        Some(Self {
            config,
            parameters: names.iter().map(|name| elements(file, name)).sum(),
            parameter_bytes: names.iter().filter_map(bytes).sum(),
            stored: most_common(file, &names),
            missing,
            left_over,
            uncomputable,
        })
    }
}

/// The report of `tilewright inspect` on a transformer that latents are sampled with.
#[derive(Clone, Debug, Serialize)]
pub struct DenoiserInspection {
    /// The published model that it is.
    pub model: String,
    /// The architecture and what follows from it, if its tensors tell it.
    #[serde(flatten)]
    pub found: Option<FoundDenoiser>,
    /// The reason that it can't be run, if it can't.
    pub problem: Option<String>,
}

/// A transformer whose architecture is known.
#[derive(Clone, Debug, Serialize)]
pub struct FoundDenoiser {
    /// The family of the autoencoder that decodes its latents.
    pub family: Family,
    /// The layout of its names.
    pub layout: String,
    /// The prefix of every name.
    pub prefix: String,
    /// The architecture.
    pub config: DenoiserConfig,
    /// Elements of its weights.
    pub parameters: u64,
    /// Bytes of its weights as they are stored.
    pub stored_bytes: u64,
    /// The type that most bytes are stored in.
    pub stored: String,
}

/// The report of `tilewright inspect` on a LoRA.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoraInspection {
    /// Layers that are changed, those of text encoders aside.
    pub layers: usize,
    /// The smallest and the largest rank.
    pub ranks: Option<[usize; 2]>,
    /// The smallest and the largest factor of a layer's change at a strength of 1.
    pub scales: Option<[f64; 2]>,
    /// Keys of text encoders.
    pub text_keys: usize,
    /// Keys of a second expert's layers.
    pub second_keys: usize,
    /// Notes on its factors.
    pub notes: Vec<String>,
    /// The reason that it can't be applied, if it can't.
    pub problem: Option<String>,
}

impl LoraInspection {
    /// Looks at the changes in a file that has some.
    fn of(file: &Checkpoint) -> Option<Self> {
        Part::of(file).into_iter().find(|part| part.role == Role::Lora)?;
        let lora = Checkpoint::open(file.path()).map_err(Error::from).and_then(|file| Lora::read(file, 1.0));
        Some(match lora {
            Ok(lora) => Self {
                layers: lora.layers(),
                ranks: lora.ranks(),
                scales: lora.scales(),
                text_keys: lora.text_keys,
                second_keys: lora.second_keys(),
                notes: lora.notes,
                problem: None,
            },
            Err(error) => Self { problem: Some(in_words(file, &error)), ..Self::default() },
        })
    }
}

/// An error without the file's name, which the report has.
fn in_words(file: &Checkpoint, error: &Error) -> String {
    let words = error.to_string();
    words.strip_prefix(&format!("{}: ", file.path().display())).map_or(words.clone(), str::to_owned)
}

impl DenoiserInspection {
    /// Looks at the transformer of a file that has one.
    fn of(file: &Checkpoint) -> Option<Self> {
        let part = Part::of(file).into_iter().find(|part| part.role == Role::Denoiser)?;
        let denoiser = Checkpoint::open(file.path()).map_err(Error::from).and_then(DenoiserFile::find);
        Some(match denoiser {
            Ok(denoiser) => Self {
                model: denoiser.config.model(),
                problem: denoiser.check().err().map(|error| in_words(file, &error)),
                found: Some(FoundDenoiser {
                    family: denoiser.config.facts().family,
                    layout: denoiser.file().layout.to_string(),
                    prefix: denoiser.file().prefix.clone(),
                    parameters: denoiser.parameters,
                    stored_bytes: denoiser.stored_bytes,
                    stored: denoiser.stored().name().to_owned(),
                    config: denoiser.config,
                }),
            },
            Err(error) => Self { model: part.name.to_owned(), found: None, problem: Some(in_words(file, &error)) },
        })
    }
}

/// The report of `tilewright inspect` on an encoder of text or of pictures.
#[derive(Clone, Debug, Serialize)]
pub struct EncoderInspection {
    /// The published encoder that it is.
    pub model: String,
    /// The layout of its names.
    pub layout: String,
    /// The prefix of every name.
    pub prefix: String,
    /// The architecture.
    pub config: EncoderConfig,
    /// Bytes of its weights as they are stored, those of its tables left out.
    pub stored_bytes: u64,
    /// The type that most bytes are stored in.
    pub stored: String,
    /// The reason that it can't be run, if it can't.
    pub problem: Option<String>,
}

impl EncoderInspection {
    /// Looks at the text encoders of a file.
    fn all(file: &Checkpoint) -> Vec<Self> {
        let opened = Checkpoint::open(file.path()).map_err(Error::from);
        let found = opened.and_then(|file| EncoderFile::find_all(&Arc::new(file))).unwrap_or_default();
        found.into_iter().map(|encoder| Self::new(file, encoder)).collect()
    }

    /// Looks at the encoder of pictures of a file that has one.
    fn vision(file: &Checkpoint) -> Option<Self> {
        Part::of(file).into_iter().find(|part| part.role == Role::VisionEncoder)?;
        let opened = Checkpoint::open(file.path()).ok()?;
        EncoderFile::find_vision(&Arc::new(opened)).ok().map(|encoder| Self::new(file, encoder))
    }

    fn new(file: &Checkpoint, encoder: EncoderFile) -> Self {
        Self {
            model: encoder.config.model(),
            layout: encoder.file().layout.to_string(),
            prefix: encoder.file().prefix.clone(),
            stored_bytes: encoder.stored_bytes,
            stored: encoder.stored().name().to_owned(),
            problem: encoder.check().err().map(|error| in_words(file, &error)),
            config: encoder.config,
        }
    }
}

/// The number of a tensor's elements.
fn elements(file: &Checkpoint, name: &str) -> u64 {
    file.shape(name).map_or(0, |shape| shape.iter().product::<usize>() as u64)
}

impl Inspection {
    /// Looks at a file without loading it.
    pub fn of(file: &Checkpoint) -> Self {
        let identity = Identity::of(file);
        let mut stored = BTreeMap::new();
        for name in file.names() {
            let dtype = file.find_stored(name).map_or("?".into(), |stored| stored.name().to_owned());
            *stored.entry(dtype).or_default() += elements(file, name);
        }
        let decoder = DecoderInspection::of(file, &identity);
        let latents = match identity.kind {
            Kind::Latent | Kind::Pixels => {
                file.names().filter_map(|name| Some((name.to_owned(), file.shape(name)?.to_vec()))).collect()
            }
            _ => BTreeMap::new(),
        };
        Self {
            tensors: file.names().len(),
            parameters: file.names().map(|name| elements(file, name)).sum(),
            stored,
            format: file.container().name(),
            files: file.shards(),
            parts: Part::of(file),
            text_encoders: EncoderInspection::all(file),
            vision_encoder: EncoderInspection::vision(file),
            transformer: DenoiserInspection::of(file),
            lora: LoraInspection::of(file),
            encoder: Known::of_encoder(file, &identity, identity.kind).is_ok(),
            decoder,
            latents,
            texts: file.texts().iter().map(|(name, text)| (name.clone(), text.len())).collect(),
            problem: file.refusal(),
            identity,
        }
    }
}

/// The type that most elements of these tensors are stored in.
pub(crate) fn most_common(file: &Checkpoint, names: &[String]) -> Option<Dtype> {
    let mut counts: BTreeMap<Dtype, usize> = BTreeMap::new();
    for name in names {
        let Some(dtype) = file.find_stored(name).and_then(Stored::computable) else { continue };
        *counts.entry(dtype).or_default() += file.bytes(name).map_or(0, <[u8]>::len) * 8 / dtype.bits() as usize;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(dtype, _)| dtype)
}
