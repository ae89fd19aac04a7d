//! Textual inversion: vectors that a prompt names in the place of words.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use tilewright_models::{Checkpoint, EncoderKind, Error as ModelError};
use tilewright_tokenizer::Embeddings;

use super::encoders::TextEncoder;
use crate::{Error, Result};

/// The endings of embeddings' files, which a prompt may leave out; the first that exists counts.
const ENDINGS: [&str; 5] = ["safetensors", "pt", "bin", "ckpt", "pth"];

/// The most vectors of an embedding: past this a file is another thing.
const MOST_VECTORS: usize = 1024;

/// The most folders within folders that are looked through.
const DEEPEST: usize = 8;

/// A folder of embeddings, and of folders of them.
#[derive(Clone, Debug)]
pub struct EmbeddingFolder(PathBuf);

impl EmbeddingFolder {
    /// A folder of embeddings' files.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn open(path: &Path) -> Result<Self> {
        match path.is_dir() {
            true => Ok(Self(path.to_owned())),
            false => Err(Error::input(path, "no folder of embeddings")),
        }
    }

    /// The folder's path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The embeddings for an encoder.
    pub(super) fn of<'a>(&'a self, encoder: &TextEncoder) -> OfEncoder<'a> {
        OfEncoder { folder: self, width: encoder.width(), kind: encoder.file.config.kind() }
    }

    /// The file of a name: in the folder itself, or in the first folder within that has it.
    fn file(&self, name: &str) -> Option<PathBuf> {
        // A prompt may come from a stranger: it names files within the folder alone.
        let path = Path::new(name);
        let is_within = path.components().all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || !is_within || name.contains(['\0', '\\']) {
            return None;
        }
        let mut folders = vec![(self.0.clone(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let whole = folder.join(path);
            let with = |ending: &&str| {
                let mut file = whole.clone().into_os_string();
                file.push(".");
                file.push(ending);
                PathBuf::from(file)
            };
            let own = Some(whole.clone()).filter(|path| ENDINGS.iter().any(|of| path.extension() == Some(of.as_ref())));
            if let Some(found) = own.into_iter().chain(ENDINGS.iter().map(with)).find(|path| path.is_file()) {
                return Some(found);
            }
            if depth < DEEPEST {
                let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
                let mut inner: Vec<PathBuf> = entries
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                    .map(|entry| entry.path())
                    .collect();
                // The last is looked through next.
                inner.sort_by(|one, other| other.cmp(one));
                folders.extend(inner.into_iter().map(|path| (path, depth + 1)));
            }
        }
        None
    }
}

/// The embeddings of a folder for one encoder.
pub(super) struct OfEncoder<'a> {
    folder: &'a EmbeddingFolder,
    width: i64,
    kind: EncoderKind,
}

impl OfEncoder<'_> {
    /// The name of the encoder's tensor in a file for several (comfyanonymous/ComfyUI,
    /// comfy/sd1_clip.py, `load_embed`).
    fn key(&self) -> &'static str {
        match self.kind {
            EncoderKind::Clip => "clip_l",
            EncoderKind::OpenClip => "clip_g",
            EncoderKind::T5 => "t5xxl",
            EncoderKind::Umt5 => "umt5xxl",
        }
    }

    /// The file of an embedding, the name of its tensor for the encoder, and its vectors' number;
    /// none if there is no such embedding, or none of the encoder's width.
    fn locate(&self, name: &str) -> Result<Option<(Checkpoint, String, usize)>> {
        let Some(path) = self.folder.file(name) else { return Ok(None) };
        let file = Checkpoint::open(&path).map_err(ModelError::from)?;
        let fits = |tensor: &&str| {
            let shape = file.shape(tensor).unwrap_or_default();
            shape.last() == Some(&(self.width as usize)) && shape.len() <= 2
        };
        let own = file.names().find(|tensor| *tensor == self.key());
        let found = own.or_else(|| file.names().find(fits)).filter(fits).map(str::to_owned);
        let Some(tensor) = found else { return Ok(None) };
        let shape = file.shape(&tensor).unwrap_or_default();
        let count = if shape.len() == 2 { shape[0] } else { 1 };
        if !(1..=MOST_VECTORS).contains(&count) {
            let reason = format!("tensor {tensor} holds {count} vectors: 1 to {MOST_VECTORS} were expected");
            return Err(Error::input(path, reason));
        }
        Ok(Some((file, tensor, count)))
    }

    /// The vectors [vectors, width] of an embedding, in f32; none if there is no such embedding, or
    /// none of the encoder's width.
    #[cfg(feature = "torch")]
    pub fn find(&self, name: &str) -> Result<Option<tch::Tensor>> {
        let Some((file, tensor, count)) = self.locate(name)? else { return Ok(None) };
        let shape = file.shape(&tensor).unwrap_or_default();
        let vectors = file.load(&tensor, shape, tch::Kind::Float, tch::Device::Cpu).map_err(ModelError::from)?;
        let values = tilewright_torch::non_finite(&vectors)?;
        if values > 0 {
            let reason = format!("tensor {tensor} holds {values} values that are NaN or infinite");
            return Err(Error::input(file.path(), reason));
        }
        Ok(Some(vectors.f_reshape([count as i64, self.width])?))
    }

    /// The number of an embedding's vectors; none if there are none for the encoder.
    #[cfg(feature = "torch")]
    fn count(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.find(name)?.map(|vectors| vectors.size()[0] as usize))
    }

    /// The number of an embedding's vectors, whose values are not looked at; none if there are none
    /// for the encoder.
    #[cfg(not(feature = "torch"))]
    fn count(&self, name: &str) -> Result<Option<usize>> {
        let Some((file, tensor, count)) = self.locate(name)? else { return Ok(None) };
        file.check_loads(&tensor).map_err(ModelError::from)?;
        Ok(Some(count))
    }
}

impl Embeddings for OfEncoder<'_> {
    fn vectors(&self, name: &str) -> Option<usize> {
        match self.count(name) {
            Ok(count) => count,
            Err(error) => {
                tracing::warn!(name, %error, "an embedding can't be read");
                None
            }
        }
    }

    fn left_out(&self, name: &str) {
        let kind = self.kind.name();
        if self.folder.file(name).is_some() {
            tracing::warn!(name, "the embedding has no vectors for {kind}, and is left out of its prompt");
        } else {
            tracing::warn!(name, "no embedding of this name: it is left out");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_within_the_folder_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("people").join("old");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("face.safetensors"), "").unwrap();
        fs::write(folder.path().join("style.v2.pt"), "").unwrap();
        fs::write(folder.path().with_extension("safetensors"), "").unwrap();
        let embeddings = EmbeddingFolder::open(folder.path()).unwrap();
        let find = |name: &str| embeddings.file(name).is_some();
        for name in ["face", "old/face", "people/old/face", "face.safetensors", "style.v2"] {
            assert!(find(name), "{name}");
        }
        let outside = format!("../{}", folder.path().file_name().unwrap().to_string_lossy());
        for name in ["", "none", "style", "..", &outside, "/etc/passwd", "old/../old/face", "old\\face"] {
            assert!(!find(name), "{name}");
        }
        fs::remove_file(folder.path().with_extension("safetensors")).unwrap();
    }
}
