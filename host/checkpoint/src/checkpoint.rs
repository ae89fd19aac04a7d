//! Files mapped into memory and checked before anything is read from them.

use std::{
    collections::{BTreeMap, HashMap},
    io::{ErrorKind, Read},
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use half::{bf16, f16};
use tilewright_files::{Format, LOOKED_AT, Quote};
use tilewright_kernels::{Bytes, Packed, Stored, e4m3};
use tilewright_mapped::{Identity, MappedFile};

use crate::{
    Error, Result, advice,
    contents::{Contents, Entry},
    error::Shape,
    gguf, pickle,
    quantized::Quantization,
    safetensors_file,
    shards::{self, Shards},
    zeros::Tail,
};

/// The identity of the contents of one file or of several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileId(Vec<Identity>);

impl FileId {
    /// The identity of both together.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// A file that is nowhere, for tests: a number for each.
    #[doc(hidden)]
    pub fn for_tests(number: u64) -> Self {
        Self(vec![Identity::for_tests(number)])
    }
}

/// The format of a file of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Hugging Face's safetensors.
    Safetensors,
    /// ggml's GGUF.
    Gguf,
    /// PyTorch's pickle of tensors.
    Pickle,
}

impl Container {
    /// The format's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
            Self::Pickle => "pickle",
        }
    }
}

/// A tensor's facts and the file that it is in.
struct Place {
    file: usize,
    entry: Entry,
    /// The bytes row by row of a tensor that lies otherwise in the file, from when they are asked
    /// for.
    gathered: OnceLock<Arc<Vec<u8>>>,
}

impl Place {
    fn bytes<'a>(&'a self, files: &'a [Arc<MappedFile>]) -> Option<&'a [u8]> {
        let bytes = (*files[self.file]).as_ref().get(self.entry.range.clone())?;
        match self.entry.strides {
            None => Some(bytes),
            Some(_) => Some(self.gathered.get_or_init(|| Arc::new(self.entry.gather(bytes)))),
        }
    }
}

/// A file of weights, or several shards of one. Tensors are views of the mapped files until they
/// are loaded.
pub struct Checkpoint {
    path: PathBuf,
    id: FileId,
    container: Container,
    files: Vec<Arc<MappedFile>>,
    tensors: BTreeMap<String, Place>,
    texts: HashMap<String, String>,
    arrays: HashMap<String, Range<usize>>,
    quantization: Quantization,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checkpoint({}, {} tensors)", self.path.display(), self.tensors.len())
    }
}

/// One file, opened and checked.
struct Opened {
    container: Container,
    mapped: MappedFile,
    contents: Contents,
}

/// Reads what a file's bytes hold; a fault is words.
type Reader = fn(&[u8]) -> std::result::Result<Contents, String>;

fn open_file(path: &Path) -> Result<Opened> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let format = |reason: String| Error::Format { path: path.to_owned(), reason };
    let file = tilewright_files::open(path).map_err(|error| match error.kind() {
        ErrorKind::IsADirectory => format(shards::folder_hint(path)),
        _ => read(error),
    })?;
    let metadata = file.metadata().map_err(read)?;
    let mut start = Vec::new();
    (&file).take(LOOKED_AT).read_to_end(&mut start).map_err(read)?;
    let (container, reader): (_, Reader) = match Format::of(&start) {
        Some(Format::Safetensors) | None => (Container::Safetensors, safetensors_file::read),
        Some(Format::Gguf) => (Container::Gguf, gguf::read),
        Some(Format::PickleInZip) => (Container::Pickle, pickle::read_zip),
        Some(Format::Pickle) => (Container::Pickle, pickle::read_legacy),
        Some(text @ Format::Text) => {
            let (reason, source) = (advice::of_format(text), Quote::of_text(&start));
            return Err(Error::Text { path: path.to_owned(), reason, source });
        }
        Some(other) => return Err(format(advice::of_format(other))),
    };
    if container == Container::Safetensors {
        safetensors_file::check_start(&start, metadata.len()).map_err(format)?;
    }
    let mapped = MappedFile::new(path, file).map_err(read)?;
    let contents = reader(&mapped).map_err(|reason| format(Tail::of(&mapped).map_or(reason, Tail::in_words)));
    // Before what was found: of a file that changes meanwhile it means nothing.
    mapped.check()?;
    Ok(Opened { container, mapped, contents: contents? })
}

impl Checkpoint {
    /// Maps a file and checks its header: every tensor's bytes lie within the file, none overlap,
    /// shapes and sizes agree. An index of shards, or a shard beside its index, opens them all.
    ///
    /// # Errors
    /// [`Error::Read`] if a file can't be opened, [`Error::Format`] if one is unsound or the shards
    /// do not belong together.
    pub fn open(path: &Path) -> Result<Self> {
        match Shards::of(path)? {
            Some(shards) => Self::join(&shards),
            None => Self::of_files(path, vec![open_file(path)?], None),
        }
    }

    /// Opens a part of a model: a file as in [`Self::open`], or the folder that it is in, as
    /// [`crate::find_part`] finds it.
    ///
    /// # Errors
    /// As [`Self::open`] and [`crate::find_part`].
    pub fn open_part(path: &Path, parts: &[&str]) -> Result<Self> {
        Self::open(&shards::find_part(path, parts)?)
    }

    fn join(shards: &Shards) -> Result<Self> {
        let opened = shards.files.iter().map(|path| open_file(path)).collect::<Result<Vec<_>>>()?;
        Self::of_files(&shards.path, opened, Some(shards))
    }

    fn of_files(path: &Path, opened: Vec<Opened>, shards: Option<&Shards>) -> Result<Self> {
        let (mut tensors, mut texts, mut files) = (BTreeMap::new(), HashMap::new(), Vec::new());
        let mut arrays = HashMap::new();
        let (mut id, mut container) = (FileId(Vec::new()), Container::Safetensors);
        for (index, file) in opened.into_iter().enumerate() {
            if let Some(shards) = shards {
                shards.check(index, &file.contents)?;
            }
            id.0.push(file.mapped.identity().clone());
            container = file.container;
            texts.extend(file.contents.texts);
            // GGUF files have no shards.
            arrays.extend(file.contents.arrays);
            for (name, entry) in file.contents.tensors {
                if let Some(Place { file: other, .. }) = tensors.get(&name) {
                    let other: &Arc<MappedFile> = &files[*other];
                    let reason = format!(
                        "tensor {name} is in this shard and in {}: they are of two downloads, get both again",
                        other.path().display()
                    );
                    return Err(Error::Format { path: file.mapped.path().to_owned(), reason });
                }
                tensors.insert(name, Place { file: index, entry, gathered: OnceLock::new() });
            }
            files.push(Arc::new(file.mapped));
        }
        let mut file = Self {
            path: path.to_owned(),
            id,
            container,
            files,
            tensors,
            texts,
            arrays,
            quantization: Quantization::default(),
        };
        let quantization = Quantization::read(&file).map(|quantization| file.quantization = quantization);
        let ends = quantization.and_then(|()| file.check_ends());
        file.check_unchanged()?;
        ends.map(|()| file)
    }

    /// Refuses a file whose end never arrived.
    fn check_ends(&self) -> Result<()> {
        // Another way to store weights may have zeros of its own.
        if self.refused_quantization().is_some() {
            return Ok(());
        }
        for (index, file) in self.files.iter().enumerate() {
            let within = self.tensors.iter().filter(|(_, place)| place.file == index);
            let within = within.map(|(name, place)| (name.as_str(), &place.entry));
            if let Some((tail, count)) = Tail::of_broken((**file).as_ref(), within) {
                return Err(Error::Format { path: file.path().to_owned(), reason: tail.in_words_of(count) });
            }
        }
        Ok(())
    }

    /// The bytes of a tokenizer's array under a key of a GGUF file.
    pub(crate) fn array_bytes(&self, key: &str) -> Option<&[u8]> {
        self.files.first()?.get(self.arrays.get(key)?.clone())
    }

    /// Path of the file; of shards that of the index, or of the first.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a configuration beside the file.
    pub fn config_path(&self) -> PathBuf {
        self.path.with_file_name("config.json")
    }

    /// The identity of the files that were opened.
    pub fn id(&self) -> &FileId {
        &self.id
    }

    /// The format of the file.
    pub fn container(&self) -> Container {
        self.container
    }

    /// The number of shards: 1 for a single file.
    pub fn shards(&self) -> usize {
        self.files.len()
    }

    /// The paths of its files, in their order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path())
    }

    /// Bytes of all its files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }

    /// The tensors' names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor's shape; none if there is no such tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|place| place.entry.shape.as_slice())
    }

    /// A tensor's stored type; none if there is no such tensor.
    pub fn find_stored(&self, name: &str) -> Option<Stored> {
        self.tensors.get(name).map(|place| place.entry.stored)
    }

    /// A tensor's bytes; none if there is no such tensor.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.tensors.get(name)?.bytes(&self.files)
    }

    /// A tensor's bytes, which keep the file mapped; none if there is no such tensor.
    pub fn shared_bytes(&self, name: &str) -> Option<Bytes> {
        let place = self.tensors.get(name)?;
        match (place.bytes(&self.files)?, place.gathered.get()) {
            (_, None) => Bytes::new(self.files[place.file].clone(), place.entry.range.clone()),
            (bytes, Some(gathered)) => Bytes::new(gathered.clone(), 0..bytes.len()),
        }
    }

    /// Checks that the files are as they were when they were opened: that all that was read of them
    /// until now counts. `load` and [`Self::values`] check the file that they read; whoever reads
    /// [`Self::bytes`] or [`Self::shared_bytes`] calls this afterwards.
    ///
    /// # Errors
    /// [`Error::Changed`] names the first file that is not; [`Error::Read`] if the disk failed.
    pub fn check_unchanged(&self) -> Result<()> {
        Ok(self.files.iter().try_for_each(|file| file.check())?)
    }

    /// True if the files are as they were, and their paths still lead to them.
    pub fn is_current(&self) -> bool {
        self.files.iter().all(|file| file.is_current())
    }

    /// Asks the system to read a tensor's bytes ahead of their use.
    pub fn read_ahead(&self, name: &str) {
        if let Some(Place { file, entry, .. }) = self.tensors.get(name) {
            self.files[*file].read_ahead(&entry.range);
        }
    }

    /// Gives the memory of a tensor's bytes back; they are read again when they are used.
    pub fn give_back(&self, name: &str) {
        if let Some(Place { file, entry, .. }) = self.tensors.get(name) {
            self.files[*file].give_back(&entry.range);
        }
    }

    /// The file's free-form texts: ComfyUI's `prompt` and `workflow`, GGUF's keys.
    pub fn texts(&self) -> &HashMap<String, String> {
        &self.texts
    }

    /// The scales beside quantized weights.
    pub fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// The path of the file that a tensor is in.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        let place = self.tensors.get(name);
        place.map_or_else(|| self.path.clone(), |place| self.files[place.file].path().to_owned())
    }

    /// The bytes and the stored type of a tensor that is expected to have a shape.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Shape`] if the file does not hold it so.
    pub(crate) fn expected(&self, name: &str, shape: &[usize]) -> Result<(&[u8], Stored)> {
        let found = self.shape(name);
        let (Some(found), Some(bytes), Some(stored)) = (found, self.bytes(name), self.find_stored(name)) else {
            return Err(self.missing(name, shape));
        };
        if found != shape {
            let (path, name, found) = (self.path.clone(), name.to_owned(), Shape(found.to_vec()));
            return Err(Error::Shape { path, name, found, expected: Shape(shape.to_vec()) });
        }
        Ok((bytes, stored))
    }

    pub(crate) fn missing(&self, name: &str, expected: &[usize]) -> Error {
        Error::Missing { path: self.path.clone(), name: name.to_owned(), expected: Shape(expected.to_vec()) }
    }

    /// The values of a tensor of a shape, rounded to f32, of those that are stored one by one.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Shape`] or [`Error::Stored`] if the file does not hold it so;
    /// [`Error::Changed`] if it has changed since it was opened.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let (bytes, stored) = self.expected(name, shape)?;
        let values = match stored {
            Stored::F64 => bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes) as f32).collect(),
            Stored::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
            Stored::F16 => bytes.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
            Stored::Bf16 => bytes.as_chunks().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
            // The upper half of an f16.
            Stored::F8E5m2 => bytes.iter().map(|&byte| f16::from_bits(u16::from(byte) << 8).to_f32()).collect(),
            Stored::F8E4m3 => bytes.iter().map(|&byte| e4m3(byte)).collect(),
            _ => return Err(self.cannot_load(name, stored)),
        };
        self.check_file_of(name)?;
        Ok(values)
    }

    /// Checks that the file that a tensor is in is as it was when it was opened.
    pub(crate) fn check_file_of(&self, name: &str) -> Result<()> {
        Ok(self.tensors.get(name).map_or(Ok(()), |place| self.files[place.file].check())?)
    }

    pub(crate) fn cannot_load(&self, name: &str, stored: Stored) -> Error {
        Error::Stored { path: self.path.clone(), name: name.to_owned(), found: stored.to_string() }
    }

    /// True if a tensor's values can be loaded: they are numbers with a fraction that need no
    /// description.
    pub fn can_load(&self, name: &str) -> bool {
        self.find_stored(name).is_some_and(|stored| is_plain(stored) || Packed::expands_alone(stored))
    }

    /// Checks that a tensor's values can be loaded, without reading one.
    ///
    /// # Errors
    /// [`Error::Changed`] if the file has changed since it was opened, [`Error::Stored`] if they
    /// can't: it says of what type they are.
    pub fn check_loads(&self, name: &str) -> Result<()> {
        match self.find_stored(name).filter(|_| !self.can_load(name)) {
            None => Ok(()),
            Some(stored) => self.check_file_of(name).and(Err(self.cannot_load(name, stored))),
        }
    }

    /// True for a tensor without values.
    pub fn is_empty(&self, name: &str) -> bool {
        self.shape(name).is_some_and(|shape| shape.contains(&0))
    }
}

/// True of a type whose values stand in a file as they are computed in.
fn is_plain(stored: Stored) -> bool {
    stored == Stored::F64 || stored.computable().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(contents: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        std::fs::write(&path, contents).unwrap();
        Checkpoint::open(&path).unwrap_err().to_string()
    }

    fn with_header(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(vec![0; data]);
        bytes
    }

    #[test]
    fn broken_files_are_refused_in_one_line() {
        let axes = vec!["0"; 17].join(",");
        let pipe = {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            std::error::Error::source(&Checkpoint::open(&path).unwrap_err()).unwrap().to_string()
        };
        assert_eq!(pipe, "a named pipe, not a file");
        let cases: [(Vec<u8>, &str); 18] = [
            (vec![], "an empty file (0 bytes): copy or download it again"),
            (vec![0xff; 3], "3 bytes are no safetensors file"),
            (b"PK\x03\x04aaaaaaaaaaaaaaaaaaaaaaaaaaa/data.pkl".to_vec(), "truncated: a zip archive without"),
            (b"PK\x03\x04aaaaaaaaaaaa".to_vec(), "a zip archive, not a safetensors file: unpack it"),
            (b"<!doctype html>\n<html>".to_vec(), "a web page (HTML), not a safetensors file: the download"),
            (b"Invalid username\nor password".to_vec(), "a text, not a safetensors file: give the safetensors file"),
            (b"\0\0\0\x20ftypisom".to_vec(), "an MP4 or QuickTime video, not a safetensors file"),
            (
                with_header(&format!(r#"{{"a":{{"dtype":"F32","shape":[{axes}],"data_offsets":[0,0]}}}}"#), 0),
                "its header has more than 16 axes of a tensor: no model's or latent's has",
            ),
            (
                [(99_u64 << 20).to_le_bytes().to_vec(), b"{}".to_vec()].concat(),
                "a header of 103809024 bytes: files have at most 32.0 MiB",
            ),
            (b"\x80\x02}q\x00(X\x06".to_vec(), "truncated: its pickle ends within byte 7"),
            (vec![0xff; 10], "nor another kind that is known"),
            ([1000_u64.to_le_bytes().to_vec(), b"{}".to_vec()].concat(), "truncated"),
            (with_header("{\"a\":", 0), "header is no valid description"),
            (with_header(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 4), "truncated"),
            (
                with_header(
                    r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
                    12,
                ),
                "overlap",
            ),
            (with_header(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8), "disagree"),
            (
                with_header(
                    r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}}"#,
                    8,
                ),
                "larger than any memory",
            ),
            (
                with_header(r#"{"a":{"dtype":"Q9","shape":[2],"data_offsets":[0,8]}}"#, 8),
                "header is no valid description",
            ),
        ];
        for (contents, words) in cases {
            let message = refusal(&contents);
            assert!(message.contains(words) && !message.contains('\n'), "{message:?} lacks {words:?}");
        }
    }
}
