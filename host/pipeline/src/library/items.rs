//! The files of a place, by what they are and never by their names.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tilewright_models::{
    Architecture, Checkpoint, DenoiserConfig, EncoderKind, Family, Inspection, PICKLE_ENDINGS, Role, is_pickle,
};

use super::places::{Keeping, Place, REPOSITORY};

/// The most files of a place that are looked into, and the depth of its folders.
const MOST_FILES: usize = 4096;
const DEEPEST: usize = 6;

/// The description of a pipeline in its folder.
const PIPELINE: &str = "model_index.json";

const INDEX: &str = ".safetensors.index.json";
const ENDINGS: [&str; 3] = [".safetensors", ".sft", ".gguf"];

/// A file with networks.
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    /// The number of its place.
    #[serde(skip)]
    pub place: usize,
    /// The name that it goes by: its own without the ending, or that of its pipeline or repository.
    pub name: String,
    /// The file; of a pipeline's part the folder.
    pub path: PathBuf,
    /// The folder of its pipeline, if it is of one.
    pub pipeline: Option<PathBuf>,
    /// The networks in it.
    pub contents: Vec<Content>,
    /// The type that most of it is stored in.
    pub stored: String,
    /// Its size in bytes, shards together.
    pub bytes: u64,
    /// The reason that it can't be used, if it can't.
    pub problem: Option<String>,
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
        /// Its kind.
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
        /// The family, as far as it can be told.
        family: Family,
        /// Channels of a latent.
        channels: i64,
        /// True for clips.
        is_video: bool,
    },
    /// A network that no part of a run is made of.
    Other {
        /// Its name.
        model: String,
    },
}

impl Content {
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

/// The items of a place, in the order of their paths.
pub(super) fn within(index: usize, place: &Place) -> Vec<Item> {
    let mut found = Vec::new();
    match place.keeping {
        Keeping::HuggingFace => {
            for repository in folders(&place.path) {
                let name = file_name(&repository);
                let (Some(name), Some(snapshot)) = (name.strip_prefix(REPOSITORY), snapshot(&repository)) else {
                    continue;
                };
                walk(&snapshot, Some(&name.replace("--", "/")), 0, &mut found);
            }
        }
        Keeping::ComfyUi | Keeping::Bundled | Keeping::Folder => walk(&place.path, None, 0, &mut found),
    }
    if found.len() >= MOST_FILES {
        tracing::warn!("{}: more than {MOST_FILES} files: the others are left out", place.path.display());
    }
    found.into_iter().map(|file| file.look(index)).collect()
}

/// A file to look into.
struct Candidate {
    /// The file itself.
    file: PathBuf,
    /// The path by which it is opened.
    path: PathBuf,
    name: String,
    pipeline: Option<PathBuf>,
}

/// The snapshot of a repository that `main` names, or the newest one.
fn snapshot(repository: &Path) -> Option<PathBuf> {
    let snapshots = repository.join("snapshots");
    let main = tilewright_files::read_text(&repository.join("refs/main"), 256).ok();
    let main =
        main.map(|text| snapshots.join(text.trim())).filter(|path| path.starts_with(&snapshots) && path.is_dir());
    main.or_else(|| {
        let changed = |path: &PathBuf| fs::metadata(path).and_then(|facts| facts.modified()).ok();
        folders(&snapshots).into_iter().max_by_key(changed)
    })
}

/// Collects the files below a folder. `repository` names everything in it.
fn walk(folder: &Path, repository: Option<&str>, depth: usize, found: &mut Vec<Candidate>) {
    let is_pipeline = folder.join(PIPELINE).is_file();
    let name = |own: String| repository.map_or(own, str::to_owned);
    if is_pipeline {
        for part in folders(folder) {
            let file = tilewright_models::find_part(&part, &[]);
            let Ok(file) = file else { continue };
            let (name, pipeline) = (name(file_name(folder)), Some(folder.to_owned()));
            found.push(Candidate { file, path: part, name, pipeline });
        }
        return;
    }
    let mut entries: Vec<PathBuf> = entries(folder);
    entries.sort();
    let wholes: BTreeSet<String> = entries
        .iter()
        .map(|path| file_name(path))
        .filter_map(|name| name.strip_suffix(INDEX).map(str::to_owned))
        .collect();
    for path in entries {
        if found.len() >= MOST_FILES {
            return;
        }
        let own = file_name(&path);
        if own.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            if depth < DEEPEST {
                walk(&path, repository, depth + 1, found);
            }
            continue;
        }
        let is_index = own.ends_with(INDEX);
        let pickled = PICKLE_ENDINGS.iter().find(|ending| own.ends_with(**ending) && is_pickle(&path));
        let ending = ENDINGS.iter().find(|ending| own.ends_with(**ending)).or(pickled);
        let is_shard = own.rsplit_once("-of-").and_then(|(start, _)| start.rsplit_once('-'));
        let is_shard = is_shard.is_some_and(|(whole, _)| wholes.contains(whole));
        let (false, Some(end)) = (is_shard, if is_index { Some(&INDEX) } else { ending }) else { continue };
        let own = own.strip_suffix(end).unwrap_or(&own).to_owned();
        found.push(Candidate { file: path.clone(), path, name: name(own), pipeline: None });
    }
}

impl Candidate {
    fn look(self, place: usize) -> Item {
        let Self { file, path, name, pipeline } = self;
        let bytes = |path: &Path| fs::metadata(path).map_or(0, |facts| facts.len());
        let item =
            |contents, stored, bytes, problem| Item { place, name, path, pipeline, contents, stored, bytes, problem };
        let opened = match Checkpoint::open(&file) {
            Ok(opened) => opened,
            Err(error) => {
                let words = error.to_string();
                let words = words.strip_prefix(&format!("{}: ", file.display())).map_or(words.clone(), str::to_owned);
                return item(Vec::new(), String::new(), bytes(&file), Some(words));
            }
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

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The folders in a folder, in order.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = entries(folder).into_iter().filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
