//! Models in several files, and the folders that diffusers saves them in.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    Error, Result,
    contents::Contents,
    pickle::{PICKLE_ENDINGS, is_pickle},
};

/// The most bytes of an index: one of 10,000 tensors has a million.
const MOST_BYTES: u64 = 32 << 20;

/// The most shards.
const MOST_SHARDS: usize = 1 << 10;

/// The end of an index's name. diffusers puts the name of a variant, such as fp16, before `.json`.
const INDEX: &str = ".safetensors.index.json";
const VARIANT: [&str; 2] = [".safetensors.index.", ".json"];

/// The names that diffusers and transformers give a model's file in its folder, the usual one
/// first.
const FILES: [&str; 5] = [
    "diffusion_pytorch_model.safetensors",
    "model.safetensors",
    "pytorch_model.safetensors",
    "diffusion_pytorch_model.bin",
    "pytorch_model.bin",
];

/// The description of a pipeline, in its folder.
const PIPELINE: &str = "model_index.json";

/// An index as it stands in its file.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files of a model, and the tensors that its index says are in each.
#[derive(Debug)]
pub struct Shards {
    /// The index.
    pub index: PathBuf,
    /// The files, in the order of their names.
    pub files: Vec<PathBuf>,
    tensors: Vec<BTreeSet<String>>,
}

impl Shards {
    /// The shards that a path stands for: it is an index, or a shard whose index is beside it.
    ///
    /// # Errors
    /// The index can't be read or is unsound; a file that it names is not there.
    pub fn of(path: &Path) -> Result<Option<Self>> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if is_index(&name) && path.is_file() {
            return Self::read(path).map(Some);
        }
        let Some((whole, of)) = whole_name(&name) else { return Ok(None) };
        let mut indices = vec![path.with_file_name(format!("{whole}{INDEX}"))];
        if let Some((whole, variant)) = whole.rsplit_once('.') {
            indices.push(path.with_file_name(format!("{whole}{}{variant}{}", VARIANT[0], VARIANT[1])));
        }
        match indices.iter().find(|index| index.is_file()) {
            Some(index) => Self::read(index).map(Some),
            None if of > 1 && path.is_file() => {
                let index = indices[0].file_name().unwrap_or_default().to_string_lossy();
                let reason = format!("one of {of} shards, without their index {index} beside it: download it, too");
                Err(Error::Format { path: path.to_owned(), reason })
            }
            None => Ok(None),
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let format = |reason: String| Error::Format { path: path.to_owned(), reason };
        let text = tilewright_files::read_text(path, MOST_BYTES)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let index: Index =
            serde_json::from_str(&text).map_err(|error| format(format!("no sound index of shards ({error})")))?;
        let names: BTreeSet<&String> = index.weight_map.values().collect();
        if names.is_empty() || names.len() > MOST_SHARDS {
            return Err(format(format!("an index of {} files: 1 to {MOST_SHARDS} were expected", names.len())));
        }
        let (mut files, mut tensors) = (Vec::new(), Vec::new());
        for name in names {
            // Nothing outside of the index's folder is opened at a file's word.
            let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == name.as_str());
            if !is_plain {
                return Err(format(format!("names the file {name:?}: shards stand beside their index")));
            }
            let file = path.with_file_name(name);
            if !file.exists() {
                return Err(format(format!("names the shard {name}, which is missing: download it, too")));
            }
            let within = index.weight_map.iter().filter(|(_, shard)| *shard == name);
            tensors.push(within.map(|(tensor, _)| tensor.clone()).collect());
            files.push(file);
        }
        Ok(Self { index: path.to_owned(), files, tensors })
    }

    /// Checks that a shard holds the tensors that the index says, and no others.
    ///
    /// # Errors
    /// [`Error::Format`] with the first tensor that is missing or too many.
    pub fn check(&self, shard: usize, contents: &Contents) -> Result<()> {
        let path = &self.files[shard];
        let expected = &self.tensors[shard];
        let refuse = |fault: String| {
            let reason = format!("{fault}: it does not belong to {}", self.index.display());
            Err(Error::Format { path: path.clone(), reason })
        };
        if let Some(name) = expected.iter().find(|name| !contents.tensors.contains_key(*name)) {
            return refuse(format!("tensor {name} is missing in this shard"));
        }
        match contents.tensors.keys().find(|name| !expected.contains(*name)) {
            Some(name) => refuse(format!("tensor {name} is in this shard and not in the index")),
            None => Ok(()),
        }
    }
}

fn is_index(name: &str) -> bool {
    let [start, end] = VARIANT;
    name.ends_with(INDEX) || name.split_once(start).is_some_and(|(_, rest)| rest.ends_with(end))
}

/// The name of the whole that a shard is of, and the number of its shards: `model` and 3 of
/// `model-00001-of-00003.safetensors`.
fn whole_name(name: &str) -> Option<(&str, usize)> {
    let (rest, of) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (whole, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number(number).then_some(())?;
    is_number(of).then(|| Some((whole, of.parse().ok()?)))?
}

/// The file of a part in a folder: that of a model, or of a whole pipeline.
///
/// # Errors
/// There is none, or several that might be it.
pub fn find_in(folder: &Path, parts: &[&str]) -> Result<PathBuf> {
    let within = parts.iter().map(|part| folder.join(part)).find(|folder| folder.is_dir());
    let refuse = |reason: String| Err(Error::Format { path: folder.to_owned(), reason });
    let folder = match within {
        Some(within) => within,
        None if folder.join(PIPELINE).is_file() => {
            return refuse(format!("a pipeline without a folder called {}", parts.join(" or ")));
        }
        None => folder.to_owned(),
    };
    let usual = FILES.iter().flat_map(|name| [folder.join(name), folder.join(name.replace(".safetensors", INDEX))]);
    if let Some(file) = usual.into_iter().find(|file| file.is_file()) {
        return Ok(file);
    }
    let entries = std::fs::read_dir(&folder).map_err(|source| Error::Read { path: folder.clone(), source })?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    for end in [INDEX, ".safetensors", ".gguf"].into_iter().chain(PICKLE_ENDINGS) {
        let fits = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_named = name.ends_with(end) || end == INDEX && is_index(&name);
            is_named && (!PICKLE_ENDINGS.contains(&end) || is_pickle(path))
        };
        let found: Vec<&PathBuf> = files.iter().filter(fits).collect();
        match found[..] {
            [] => {}
            [only] => return Ok(only.clone()),
            [first, ..] => {
                let count = found.len();
                return refuse(format!("a folder with {count} of {end}: give one, such as {}", first.display()));
            }
        }
    }
    refuse("a folder without a file of weights (.safetensors, .gguf, .pth)".into())
}

/// The file of a part of a model: the path itself, or if it is a folder, the file within, as
/// diffusers saves it. `parts` are the part's folders within a pipeline's folder, such as
/// `transformer`; the first that is there counts.
///
/// # Errors
/// The folder holds no such part, or more than one file that might be it.
pub fn find_part(path: &Path, parts: &[&str]) -> Result<PathBuf> {
    if path.is_dir() { find_in(path, parts) } else { Ok(path.to_owned()) }
}

/// Every model's file in a folder: those of a pipeline's parts, or the only one.
///
/// # Errors
/// The folder can't be read, or holds no such file, or more than one without being a pipeline's.
pub fn models_in(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.join(PIPELINE).is_file() {
        return Ok(vec![find_in(folder, &[])?]);
    }
    let entries = std::fs::read_dir(folder).map_err(|source| Error::Read { path: folder.to_owned(), source })?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    // Tokenizers and schedulers have no weights.
    let found: Vec<PathBuf> = folders.iter().filter_map(|part| find_in(part, &[]).ok()).collect();
    match found.is_empty() {
        true => Err(Error::Format {
            path: folder.to_owned(),
            reason: "the folder of a pipeline that holds no model's file: download its parts, too".into(),
        }),
        false => Ok(found),
    }
}

/// Advice on a folder in a file's place.
pub fn folder_hint(path: &Path) -> String {
    let usual = ["diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors"];
    match usual.iter().map(|name| path.join(name)).find(|file| file.is_file()) {
        Some(file) => format!("a folder: give the file in it, {}", file.display()),
        None => "a folder: give the .safetensors file in it".into(),
    }
}
