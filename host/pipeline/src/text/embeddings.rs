//! Textual inversion: vectors that a prompt names in the place of words.

use std::path::{Path, PathBuf};

use tch::{Device, Kind, Tensor};
use tilewright_models::{Checkpoint, Error as ModelError};
use tilewright_text::Embeddings;

use crate::{Error, Result};

/// The endings of an embedding's file, the first that is there counts.
const ENDINGS: [&str; 2] = ["", ".safetensors"];

/// The most vectors of an embedding: CLIP takes no more tokens at once.
const MOST_VECTORS: usize = 75;

/// A folder of embeddings.
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
            false => Err(Error::Input { path: path.to_owned(), reason: "no folder of embeddings".into() }),
        }
    }

    /// The folder's path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The embeddings whose vectors are as wide as an encoder's tokens.
    pub(super) fn of(&self, width: i64) -> OfWidth<'_> {
        OfWidth { folder: self, width }
    }

    /// The vectors [vectors, width] of an embedding, in f32; none if there is no such embedding, or
    /// none of this width.
    pub(super) fn vectors(&self, name: &str, width: i64) -> Result<Option<Tensor>> {
        // A prompt may come from a stranger: it names files of the folder alone.
        let is_within = !name.is_empty() && !name.contains(['/', '\\', '\0']) && !name.starts_with('.');
        let paths = ENDINGS.iter().map(|ending| self.0.join(format!("{name}{ending}")));
        let Some(path) = paths.filter(|_| is_within).find(|path| path.is_file()) else { return Ok(None) };
        let file = Checkpoint::open(&path).map_err(ModelError::from)?;
        let fits = |tensor: &&str| {
            let shape = file.shape(tensor).unwrap_or_default();
            shape.last() == Some(&(width as usize)) && shape.len() <= 2
        };
        let Some(tensor) = file.names().find(fits) else { return Ok(None) };
        let shape = file.shape(tensor).unwrap_or_default().to_vec();
        let count = if shape.len() == 2 { shape[0] } else { 1 };
        if !(1..=MOST_VECTORS).contains(&count) {
            let reason = format!("tensor {tensor} holds {count} vectors: 1 to {MOST_VECTORS} were expected");
            return Err(Error::Input { path, reason });
        }
        let vectors = file.load(tensor, &shape, Kind::Float, Device::Cpu).map_err(ModelError::from)?;
        Ok(Some(vectors.f_reshape([count as i64, width])?))
    }
}

/// The embeddings of a folder that suit an encoder.
pub(super) struct OfWidth<'a> {
    folder: &'a EmbeddingFolder,
    width: i64,
}

impl Embeddings for OfWidth<'_> {
    fn vectors(&self, name: &str) -> Option<usize> {
        match self.folder.vectors(name, self.width) {
            Ok(found) => {
                if found.is_none() {
                    tracing::warn!(name, width = self.width, "no embedding of this name for this encoder: left out");
                }
                found.map(|vectors| vectors.size()[0] as usize)
            }
            Err(error) => {
                tracing::warn!(name, %error, "an embedding can't be read: left out");
                None
            }
        }
    }
}
