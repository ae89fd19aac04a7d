//! The files of a place, by what they are and never by their names.

use std::{
    error::Error,
    fs, iter,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tilewright_models::{Architecture, Checkpoint, DenoiserConfig, EncoderKind, Family, Inspection, Role};

use super::{
    places::Place,
    walk::{self, Candidate, Inode, OtherName},
};

/// A file with networks.
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    /// The number of its place.
    #[serde(skip)]
    pub place: usize,
    /// The number of the folder of its place that it was found in: earlier ones go before later
    /// ones, as ComfyUI searches them.
    #[serde(skip)]
    pub folder: usize,
    /// The file and its path, whatever they are called.
    #[serde(skip)]
    pub(super) inodes: Vec<Inode>,
    /// The name that it goes by: its own without the ending, or that of its pipeline or repository.
    pub name: String,
    /// The file; of a pipeline's part the folder.
    pub path: PathBuf,
    /// Further names of the same file: links to it, and paths through other folders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<OtherName>,
    /// The folder of its pipeline, if it is of one.
    pub pipeline: Option<PathBuf>,
    /// The networks in it.
    pub contents: Vec<Content>,
    /// The type that most of it is stored in.
    pub stored: String,
    /// The size in bytes, shards together.
    pub bytes: u64,
    /// The reason that it can't be used, if it can't.
    pub problem: Option<String>,
}

impl Item {
    /// The paths that lead to it, its own first.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        iter::once(self.path.as_path()).chain(self.also.iter().map(|other| other.path.as_path()))
    }

    /// True if a path leads to it, under whatever name.
    pub fn is_at(&self, path: &Path) -> bool {
        self.path == path || Inode::of(path).is_some_and(|inode| self.inodes.contains(&inode))
    }
}

/// A network in a file.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "part")]
pub enum Content {
    /// A transformer that latents are sampled with.
    Transformer {
        /// The published model that it is.
        model: String,
        /// The architecture.
        config: DenoiserConfig,
    },
    /// A text encoder.
    TextEncoder {
        /// The published encoder that it is.
        model: String,
        /// The kind of the encoder.
        kind: EncoderKind,
        /// The width of its states.
        width: i64,
    },
    /// An encoder of pictures.
    VisionEncoder {
        /// The published encoder that it is.
        model: String,
        /// The width of its states.
        width: i64,
    },
    /// An autoencoder with its decoder.
    Vae {
        /// The family, as far as it can be identified.
        family: Family,
        /// Channels of a latent.
        channels: i64,
        /// True for clips.
        is_video: bool,
    },
    /// A network that no part of a run is made of.
    Other {
        /// The network's name.
        model: String,
    },
}

impl Content {
    /// The architecture of a transformer of clips.
    pub(super) fn clips(&self) -> Option<&DenoiserConfig> {
        match self {
            Content::Transformer { config, .. } if config.facts().is_video => Some(config),
            _ => None,
        }
    }

    /// The network in words.
    pub fn in_words(&self) -> String {
        match self {
            Content::Transformer { model, .. } => format!("transformer: {model}"),
            Content::TextEncoder { model, .. } => format!("text encoder: {model}"),
            Content::VisionEncoder { model, .. } => format!("vision encoder: {model}"),
            Content::Vae { family, channels, is_video } => {
                let of = if *is_video { "clips" } else { "pictures" };
                format!("VAE of {of}: {}, {channels} channels", family.name())
            }
            Content::Other { model } => model.clone(),
        }
    }
}

/// The items of places, in the order of places and paths.
pub(super) fn within(places: &[Place]) -> Vec<Item> {
    walk::collect(places).into_iter().map(Candidate::look).collect()
}

impl Candidate {
    /// Looks into a file, of which only the descriptions of tensors are read.
    fn look(self) -> Item {
        let Self { place, folder, name, file, path, pipeline, also } = self;
        let files = tilewright_models::files_of(&file);
        let inodes = files.iter().chain([&path]).filter_map(|path| Inode::of(path)).collect();
        let bytes = fs::metadata(&file).map_or(0, |facts| facts.len());
        let item = |contents, stored, bytes, problem| Item {
            place,
            folder,
            inodes,
            name,
            path,
            also,
            pipeline,
            contents,
            stored,
            bytes,
            problem,
        };
        let opened = match Checkpoint::open(&file) {
            Ok(opened) => opened,
            Err(error) => return item(Vec::new(), String::new(), bytes, Some(reason(&error, &file))),
        };
        let inspection = Inspection::of(&opened);
        let mut problem = inspection.problem.clone();
        let mut contents = Vec::new();
        if let Some(transformer) = &inspection.transformer {
            problem = problem.or(transformer.problem.clone());
            contents.push(match &transformer.found {
                Some(found) => Content::Transformer { model: transformer.model.clone(), config: found.config.clone() },
                None => Content::Other { model: transformer.model.clone() },
            });
        }
        for encoder in &inspection.text_encoders {
            problem = problem.or(encoder.problem.clone());
            let (kind, width) = (encoder.config.kind(), encoder.config.hidden());
            contents.push(Content::TextEncoder { model: encoder.model.clone(), kind, width });
        }
        if let Some(decoder) = &inspection.decoder {
            problem = problem.or(decoder.missing.first().map(|name| format!("tensor {name} is missing")));
            contents.extend(decoder.config.as_ref().map(|config| Content::Vae {
                family: config.family(),
                channels: config.latent_channels() as i64,
                is_video: matches!(config, Architecture::Wan(_)),
            }));
        }
        if let Some(encoder) = &inspection.vision_encoder {
            problem = problem.or(encoder.problem.clone());
            contents.push(Content::VisionEncoder { model: encoder.model.clone(), width: encoder.config.hidden() });
        }
        let is_known = |role: Role| match role {
            Role::Denoiser => inspection.transformer.is_some(),
            Role::TextEncoder => !inspection.text_encoders.is_empty(),
            Role::VisionEncoder => inspection.vision_encoder.is_some(),
            _ => false,
        };
        let others: Vec<Content> = inspection
            .parts
            .iter()
            .filter(|part| !is_known(part.role))
            .map(|part| Content::Other { model: part.name.to_owned() })
            .collect();
        contents.extend(others);
        let stored = inspection.stored.iter().max_by_key(|(_, count)| **count);
        let stored = stored.map(|(name, _)| name.clone()).unwrap_or_default();
        item(contents, stored, opened.file_bytes(), problem)
    }
}

/// The reason that a file can't be opened, without its name where that is given beside it.
fn reason(error: &dyn Error, file: &Path) -> String {
    let words = error.to_string();
    let words = words.strip_prefix(&format!("{}: ", file.display())).unwrap_or(&words);
    let causes = iter::successors(error.source(), |&cause| cause.source());
    causes.fold(words.to_owned(), |words, cause| format!("{words}: {cause}"))
}
