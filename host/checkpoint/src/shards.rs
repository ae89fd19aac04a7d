//! Models in several files, and the folders that diffusers saves them in.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use tilewright_files::{is_there, json_fault};

use crate::{
    Error, Result,
    contents::Contents,
    pickle::{PICKLE_ENDINGS, is_pickle},
};

/// The most bytes of an index: one of 10,000 tensors has a million.
const MOST_BYTES: u64 = 32 << 20;

/// The most shards.
const MOST_SHARDS: usize = 1 << 10;

/// The end of an index's name, behind that of its shards. diffusers puts the name of a variant,
/// such as fp16, before `.json`.
const INDEX: &str = ".index.json";
const VARIANT: [&str; 2] = [".index.", ".json"];

/// The ends of shards' names.
const SHARDS: [&str; 2] = [".safetensors", ".bin"];

/// The ends of names of files of weights, besides pickles'.
const ENDINGS: [&str; 3] = [".safetensors", ".sft", ".gguf"];

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
    /// The index, or the first shard where there is none.
    pub path: PathBuf,
    /// The files, in the order of their names.
    pub files: Vec<PathBuf>,
    /// The tensors of each file; none without an index.
    tensors: Option<Vec<BTreeSet<String>>>,
}

impl Shards {
    /// The shards that a path stands for: it is an index, or a shard whose index is beside it, or
    /// one of as many as their names say.
    ///
    /// # Errors
    /// The index can't be read or is unsound; a shard is not there.
    pub fn of(path: &Path) -> Result<Option<Self>> {
        let name = file_name(path);
        if is_index(&name) && path.is_file() {
            return Self::read(path).map(Some);
        }
        let Some(shard) = ShardName::of(&name) else { return Ok(None) };
        match shard.indices().into_iter().map(|index| path.with_file_name(index)).find(|index| index.is_file()) {
            Some(index) => Self::read(&index).map(Some),
            None if shard.of > 1 && path.is_file() => Self::by_names(path, &shard).map(Some),
            None => Ok(None),
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let format = |reason: String| Error::Format { path: path.to_owned(), reason };
        let text = tilewright_files::read_text(path, MOST_BYTES)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let index: Index = serde_json::from_str(&text)
            .map_err(|error| format(format!("no sound index of shards ({})", json_fault(&error))))?;
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
            if !is_there(&file) {
                return Err(format(missing(path, name)));
            }
            let within = index.weight_map.iter().filter(|(_, shard)| *shard == name);
            tensors.push(within.map(|(tensor, _)| tensor.clone()).collect());
            files.push(file);
        }
        Ok(Self { path: path.to_owned(), files, tensors: Some(tensors) })
    }

    /// The shards that one without an index belongs to. Their names say how many there are.
    fn by_names(path: &Path, shard: &ShardName<'_>) -> Result<Self> {
        let format = |reason: String| Err(Error::Format { path: path.to_owned(), reason });
        if shard.of > MOST_SHARDS {
            return format(format!("one of {} shards: at most {MOST_SHARDS} were expected", shard.of));
        }
        let files: Vec<PathBuf> = (1..=shard.of).map(|number| path.with_file_name(shard.sibling(number))).collect();
        let missing: Vec<String> = files.iter().filter(|file| !is_there(file)).map(|file| file_name(file)).collect();
        match &missing[..] {
            [] => Ok(Self { path: files[0].clone(), files, tensors: None }),
            [only] => format(format!("one of {} shards, of which {only} is missing: download it, too", shard.of)),
            [first, others @ ..] => format(format!(
                "one of {} shards, of which {first} and {} more are missing: download them, too",
                shard.of,
                others.len()
            )),
        }
    }

    /// Checks that a shard holds the tensors that the index says, and no others.
    ///
    /// # Errors
    /// [`Error::Format`] with the first tensor that is missing or too many.
    pub fn check(&self, shard: usize, contents: &Contents) -> Result<()> {
        let Some(tensors) = &self.tensors else { return Ok(()) };
        let (path, expected) = (&self.files[shard], &tensors[shard]);
        let refuse = |fault: String| {
            let reason = format!("{fault}: it does not belong to {}", self.path.display());
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

/// The words on a shard that an index names and that is missing. Shards of another number beside it
/// are those of another download than the index.
fn missing(index: &Path, name: &str) -> String {
    let folder = index.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| file_name(&entry.path()));
    let of_other = |other: String| {
        let (own, other) = (ShardName::of(name)?, ShardName::of(&other)?);
        (own.whole == other.whole && own.of != other.of).then_some(other.of)
    };
    match beside.filter_map(of_other).min() {
        None => format!("names the shard {name}, which is missing: download it, too"),
        Some(of) => format!(
            "names the shard {name}, which is missing, and beside it are shards of {of}: it is the index of another \
             download: get the one of these, or remove it"
        ),
    }
}

/// The name of the whole that a file is a shard of: `model` of `model-00001-of-00003.safetensors`.
pub fn whole_of(name: &str) -> Option<&str> {
    ShardName::of(name).filter(|shard| shard.of > 1).map(|shard| shard.whole)
}

/// The name of a shard in its parts: `model`, `00001` and 3 of `model-00001-of-00003.safetensors`.
struct ShardName<'a> {
    whole: &'a str,
    number: &'a str,
    written_of: &'a str,
    of: usize,
    ending: &'static str,
}

impl<'a> ShardName<'a> {
    fn of(name: &'a str) -> Option<Self> {
        let (rest, ending) = without_ending(name)?;
        let (rest, written_of) = rest.rsplit_once("-of-")?;
        let (whole, number) = rest.rsplit_once('-')?;
        let read = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<usize>().ok())?;
        let (place, of) = (read(number)?, read(written_of)?);
        (1..=of).contains(&place).then_some(Self { whole, number, written_of, of, ending })
    }

    /// The names that the index may have.
    fn indices(&self) -> Vec<String> {
        let Self { whole, ending, .. } = self;
        let [start, end] = VARIANT;
        let plain = format!("{whole}{ending}{INDEX}");
        let of_variant = whole.rsplit_once('.').map(|(whole, variant)| format!("{whole}{ending}{start}{variant}{end}"));
        [plain].into_iter().chain(of_variant).collect()
    }

    /// The name of another shard of the same whole.
    fn sibling(&self, number: usize) -> String {
        let (whole, width) = (self.whole, self.number.len());
        format!("{whole}-{number:0width$}-of-{}{}", self.written_of, self.ending)
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A name without the end of a shard's, and that end.
fn without_ending(name: &str) -> Option<(&str, &'static str)> {
    SHARDS.into_iter().find_map(|ending| Some((name.strip_suffix(ending)?, ending)))
}

fn is_index(name: &str) -> bool {
    let [start, end] = VARIANT;
    let of_shards = |whole: &str| without_ending(whole).is_some();
    // The name of a variant has no dot.
    let of_variant = || name.strip_suffix(end).and_then(|rest| rest.rsplit_once(start));
    name.strip_suffix(INDEX).is_some_and(of_shards) || of_variant().is_some_and(|(whole, _)| of_shards(whole))
}

/// The files that a path stands for: the shards of an index or of a shard, or else itself.
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    match Shards::of(path) {
        Ok(Some(shards)) => shards.files,
        Ok(None) | Err(_) => vec![path.to_owned()],
    }
}

/// The paths among those of a folder that stand for a model: files of weights, and of shards the
/// index, or else the first.
pub fn models_among(paths: &[PathBuf]) -> Vec<PathBuf> {
    let names: Vec<String> = paths.iter().map(|path| file_name(path)).collect();
    let mut wholes = BTreeSet::new();
    let mut stands = |path: &Path, name: &String| {
        if is_index(name) {
            return true;
        }
        match ShardName::of(name).filter(|shard| shard.of > 1) {
            Some(shard) => {
                let has_index = shard.indices().iter().any(|index| names.contains(index));
                !has_index && wholes.insert((shard.whole.to_owned(), shard.of, shard.ending))
            }
            None => {
                let ends = |ending: &&str| name.ends_with(*ending);
                // Optimizers' states and much else have these names, too.
                ENDINGS.iter().any(ends) || PICKLE_ENDINGS.iter().any(ends) && is_pickle(path)
            }
        }
    };
    paths.iter().zip(&names).filter(|(path, name)| stands(path, name)).map(|(path, _)| path.clone()).collect()
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
    let entries = std::fs::read_dir(&folder).map_err(|source| Error::Read { path: folder.clone(), source })?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| is_there(path)).collect();
    files.sort();
    let models = models_among(&files);
    // A model's file, its index, or its first shard.
    let usual = FILES.iter().flat_map(|file| {
        let is_shard = |path: &&PathBuf| {
            ShardName::of(&file_name(path)).is_some_and(|of| Some((of.whole, of.ending)) == without_ending(file))
        };
        let named = |name: String| models.iter().find(|path| file_name(path) == name);
        [named((*file).to_owned()), named(format!("{file}{INDEX}")), models.iter().find(is_shard)]
    });
    if let Some(file) = usual.flatten().next() {
        return Ok(file.clone());
    }
    for end in [INDEX, ".safetensors", ".gguf"].into_iter().chain(PICKLE_ENDINGS) {
        let fits = |path: &&PathBuf| match is_index(&file_name(path)) {
            true => end == INDEX,
            false => file_name(path).ends_with(end),
        };
        let found: Vec<&PathBuf> = models.iter().filter(fits).collect();
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
/// `transformer`; the first that exists counts.
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
