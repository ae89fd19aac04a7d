//! A safetensors file, mapped into memory and checked before anything is read from it.

use std::{
    collections::{BTreeMap, HashMap},
    io::{ErrorKind, Read},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use memmap2::Mmap;
use safetensors::{SafeTensorError, SafeTensors, tensor::Metadata};
use tch::{Device, Tensor};
use tilewright_files::{Format, LOOKED_AT, header};
use tilewright_plan::{Dtype, bytes};

use crate::{Error, Result, error::Shape};

pub use safetensors::Dtype as Stored;

/// The message for a file that is not safetensors: its format, and the remedy.
fn advice(format: Format, path: &Path, start: &[u8]) -> String {
    let (name, advice) = (format.name(), format.advice());
    match format {
        Format::Pickle | Format::PickleInZip => {
            let command = conversion(path, &path.with_extension("safetensors"));
            format!("{name}, not safetensors: {advice}: {command}")
        }
        // A server's answer in place of a file tells the fault.
        Format::Text => format!("{name} ('{}'), not a safetensors file: {advice}", beginning(start)),
        _ => format!("{name}, not a safetensors file: {advice}"),
    }
}

/// A text's first line, cut short.
fn beginning(start: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(start);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let shown: String = line.chars().take(MOST).collect();
    if shown.len() < line.len() { shown + "…" } else { shown }
}

/// The shell command that makes a safetensors file of a pickle without running code in it. Weights
/// may stand under `state_dict`; tied ones share memory, which safetensors can't express.
fn conversion(from: &Path, to: &Path) -> String {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    format!(
        "python3 -c \"import sys, torch, safetensors.torch as s; d = torch.load(sys.argv[1], map_location='cpu', weights_only=True); \
         d = d.get('state_dict', d); \
         s.save_file({{k: v.clone().contiguous() for k, v in d.items() if hasattr(v, 'clone')}}, sys.argv[2])\" {} {}",
        quoted(from),
        quoted(to)
    )
}

/// The identity of a file's contents as far as the file system tells: a file that was replaced or
/// written to since has another one. Names do not matter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl FileId {
    fn of(metadata: &std::fs::Metadata) -> Self {
        let (device, inode) = (metadata.dev(), metadata.ino());
        Self { device, inode, bytes: metadata.len(), modified: metadata.modified().ok() }
    }

    /// A file that is nowhere, for tests: a number for each.
    #[doc(hidden)]
    pub fn for_tests(number: u64) -> Self {
        Self { device: 0, inode: number, bytes: 0, modified: None }
    }
}

/// A safetensors file. Tensors are views of the mapped file until they are loaded.
pub struct Checkpoint {
    path: PathBuf,
    id: FileId,
    map: Mmap,
    /// Place of the tensors' first byte in the file.
    data: usize,
    header: Metadata,
    names: BTreeMap<String, usize>,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checkpoint({}, {} tensors)", self.path.display(), self.names.len())
    }
}

impl Checkpoint {
    /// Maps a file and checks its header: every tensor's bytes lie within the file, none overlap,
    /// shapes and sizes agree.
    ///
    /// # Errors
    /// [`Error::Read`] if the file can't be opened, [`Error::Format`] if it is no sound safetensors
    /// file.
    pub fn open(path: &Path) -> Result<Self> {
        let read = |source| Error::Read { path: path.to_owned(), source };
        let format = |reason: String| Error::Format { path: path.to_owned(), reason };
        let file = tilewright_files::open(path).map_err(|error| match error.kind() {
            ErrorKind::IsADirectory => format(folder_hint(path)),
            _ => read(error),
        })?;
        let metadata = file.metadata().map_err(read)?;
        let (id, length) = (FileId::of(&metadata), metadata.len());
        let mut start = Vec::new();
        (&file).take(LOOKED_AT).read_to_end(&mut start).map_err(read)?;
        match Format::of(&start) {
            Some(Format::Safetensors) | None => {}
            Some(other) => return Err(format(advice(other, path, &start))),
        }
        let Some(announced) = start.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return Err(format(format!(
                "{length} bytes are no safetensors file: it starts with the header's length in 8 bytes"
            )));
        };
        if announced > header::MOST_BYTES {
            let most = bytes::display(header::MOST_BYTES);
            return Err(format(match start.get(8) {
                Some(b'{') => format!("a header of {announced} bytes: files have at most {most}"),
                _ => format!(
                    "no safetensors file, nor another kind that is known: its first 8 bytes are no header's length of at most {most}"
                ),
            }));
        }
        if announced > length - 8 {
            return Err(format(format!(
                "truncated, or no safetensors file: a header of {announced} bytes is announced and {} bytes follow; copy or download it again",
                length - 8
            )));
        }
        // SAFETY: the map is only read, and every read goes through offsets checked against its
        // length below. A file that another process cuts short meanwhile ends this process with
        // SIGBUS, as with every reader that maps files.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let text = map.get(8..8 + announced as usize).unwrap_or_default();
        header::check(text).map_err(|reason| format(format!("its header has {reason}: no model's or latent's has")))?;
        let (length, header) = SafeTensors::read_metadata(&map).map_err(|error| format(explain(&error)))?;
        let names = header.tensors().into_keys().enumerate().map(|(index, name)| (name, index)).collect();
        Ok(Self { path: path.to_owned(), id, map, data: length + 8, header, names })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the file that was opened.
    pub fn id(&self) -> &FileId {
        &self.id
    }

    /// The tensors' names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        self.names.keys().map(String::as_str)
    }

    /// A tensor's shape; none if there is no such tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.header.info(name).map(|info| info.shape.as_slice())
    }

    /// A tensor's stored type; none if there is no such tensor.
    pub fn find_stored(&self, name: &str) -> Option<Stored> {
        self.header.info(name).map(|info| info.dtype)
    }

    /// A tensor's bytes; none if there is no such tensor.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let (start, end) = self.header.info(name)?.data_offsets;
        self.map.get(self.data.checked_add(start)?..self.data.checked_add(end)?)
    }

    /// The file's free-form texts, such as ComfyUI's `prompt` and `workflow`.
    pub fn texts(&self) -> Option<&HashMap<String, String>> {
        self.header.metadata().as_ref()
    }

    /// Loads a tensor as `kind` on `device`, copied once.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Shape`] or [`Error::Stored`] if the file does not hold it as
    /// expected; libtorch's failures.
    pub fn load(&self, name: &str, expected: &[usize], kind: tch::Kind, device: Device) -> Result<Tensor> {
        let shape = || Shape(expected.to_vec());
        let found = self.shape(name);
        let (Some(found), Some(bytes), Some(stored)) = (found, self.bytes(name), self.find_stored(name)) else {
            return Err(Error::Missing { path: self.path.clone(), name: name.to_owned(), expected: shape() });
        };
        if found != expected {
            return Err(Error::Shape {
                path: self.path.clone(),
                name: name.to_owned(),
                found: Shape(found.to_vec()),
                expected: shape(),
            });
        }
        let stored = computable(stored).ok_or_else(|| Error::Stored {
            path: self.path.clone(),
            name: name.to_owned(),
            found: format!("{stored:?}"),
        })?;
        let extents: Vec<i64> = expected.iter().map(|&extent| extent as i64).collect();
        let stored = tilewright_torch::kind(stored)?;
        Ok(tilewright_torch::from_bytes(bytes, &extents, stored, kind, device)?)
    }
}

/// The stored types that tensors can be computed from.
pub(crate) fn computable(stored: Stored) -> Option<Dtype> {
    match stored {
        Stored::F32 => Some(Dtype::F32),
        Stored::F16 => Some(Dtype::F16),
        Stored::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}

fn folder_hint(path: &Path) -> String {
    let usual = ["diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors"];
    match usual.iter().map(|name| path.join(name)).find(|file| file.is_file()) {
        Some(file) => format!("a folder: give the file in it, {}", file.display()),
        None => "a folder: give the .safetensors file in it".into(),
    }
}

/// The library's errors in words that need no knowledge of the format.
fn explain(error: &SafeTensorError) -> String {
    let reason = match error {
        SafeTensorError::MetadataIncompleteBuffer => {
            return "truncated or padded: the header describes more or fewer bytes than the file has; copy or download it again".into();
        }
        SafeTensorError::InvalidOffset(name) => format!("the bytes of tensor {name} overlap others or leave a gap"),
        SafeTensorError::TensorInvalidInfo => "a tensor's shape and size in bytes disagree".into(),
        SafeTensorError::ValidationOverflow => "a tensor's shape is larger than any memory".into(),
        SafeTensorError::InvalidHeader(_) => "the header is no text".into(),
        SafeTensorError::InvalidHeaderDeserialization(error) => {
            format!("the header is no valid description of tensors ({error})")
        }
        other => format!("{other}"),
    };
    format!("no sound safetensors file: {reason}")
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

    #[test]
    fn the_conversion_can_be_pasted_into_a_shell() {
        let command = conversion(Path::new("a b/it's.pth"), Path::new("out.safetensors"));
        assert!(command.starts_with("python3 -c \"import sys, torch"), "{command}");
        assert!(command.contains("weights_only=True"), "{command}");
        assert!(command.ends_with(r#"sys.argv[2])" 'a b/it'\''s.pth' 'out.safetensors'"#), "{command}");
        // Nothing within the double quotes is the shell's.
        assert_eq!(command.matches('"').count(), 2, "{command}");
        assert!(!command.contains(['$', '`', '!']), "{command}");
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
            (vec![], "an empty file (0 bytes), not a safetensors file: copy or download it again"),
            (vec![0xff; 3], "3 bytes are no safetensors file"),
            (
                b"PK\x03\x04aaaaaaaaaaaaaaaaaaaaaaaaaaa/data.pkl".to_vec(),
                "pickles can run code; convert it: python3 -c",
            ),
            (b"PK\x03\x04aaaaaaaaaaaa".to_vec(), "a zip archive, not a safetensors file: unpack it"),
            (b"<!doctype html>\n<html>".to_vec(), "a web page (HTML), not a safetensors file: the download"),
            (b"Invalid username\nor password".to_vec(), "a text ('Invalid username'), not a safetensors file"),
            (b"\0\0\0\x20ftypisom".to_vec(), "an MP4 or QuickTime video, not a safetensors file"),
            (
                with_header(&format!(r#"{{"a":{{"dtype":"F32","shape":[{axes}],"data_offsets":[0,0]}}}}"#), 0),
                "its header has more than 16 axes of a tensor: no model's or latent's has",
            ),
            (
                [(99_u64 << 20).to_le_bytes().to_vec(), b"{}".to_vec()].concat(),
                "a header of 103809024 bytes: files have at most 32.0 MiB",
            ),
            (b"\x80\x02}q\x00(X\x06".to_vec(), "pickle"),
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
