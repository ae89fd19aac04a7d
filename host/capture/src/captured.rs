//! The reading of captures.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tilewright_files::json_fault;

use crate::{
    End, FileEntry, Manifest, Result, StageEntry, Tensor,
    manifest::{FACTS, INPUTS, LAYERS, OUTPUTS, RECORD},
    tensor,
    verify::{self, changed},
};

/// A whole capture of this version, in which nothing was changed.
#[derive(Clone, Debug)]
pub struct Captured {
    folder: PathBuf,
    manifest: Manifest,
}

/// A tensor of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTensor {
    /// The layer's dotted name.
    pub layer: String,
    /// The number of the layer's call in the stage.
    pub call: u32,
    /// The side that it was taken from.
    pub end: End,
    /// The tensor.
    pub tensor: Tensor,
}

impl Captured {
    /// Opens a capture, and reads all of it once to check it.
    ///
    /// # Errors
    /// [`Error::NoCapture`](crate::Error::NoCapture) for a folder without a manifest,
    /// [`Error::Format`](crate::Error::Format) and [`Error::Version`](crate::Error::Version) for
    /// those of other programs, [`Error::Changed`](crate::Error::Changed) if a file is missing,
    /// added, a link, or has other contents; [`Error::Io`](crate::Error::Io).
    pub fn open(folder: &Path) -> Result<Self> {
        let manifest = verify::read_manifest(folder)?;
        verify::check(folder, &manifest)?;
        Ok(Self { folder: folder.to_owned(), manifest })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The contents, with their sizes and digests.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The stages, in the order in which they finished.
    pub fn stages(&self) -> &[StageEntry] {
        &self.manifest.stages
    }

    /// A stage's inputs by name; none were captured of a text stage without prompts.
    ///
    /// # Errors
    /// The file has changed since the capture was opened, or is no safetensors file.
    pub fn inputs(&self, stage: &StageEntry) -> Result<BTreeMap<String, Tensor>> {
        self.tensors(stage, INPUTS)
    }

    /// A stage's outputs by name.
    ///
    /// # Errors
    /// As [`Captured::inputs`].
    pub fn outputs(&self, stage: &StageEntry) -> Result<BTreeMap<String, Tensor>> {
        self.tensors(stage, OUTPUTS)
    }

    /// A stage's facts, if there are any.
    ///
    /// # Errors
    /// The file has changed since the capture was opened, or is no JSON.
    pub fn facts(&self, stage: &StageEntry) -> Result<Option<Value>> {
        self.json(stage, FACTS)
    }

    /// A stage's record, if there is one.
    ///
    /// # Errors
    /// As [`Captured::facts`].
    pub fn record(&self, stage: &StageEntry) -> Result<Option<Value>> {
        self.json(stage, RECORD)
    }

    /// The tensors of a stage's layers, in the order in which they were captured; each is read when
    /// it is asked for.
    ///
    /// # Errors
    /// As [`Captured::inputs`], for each.
    pub fn layers<'a>(&'a self, stage: &StageEntry) -> impl Iterator<Item = Result<LayerTensor>> + use<'a> {
        let within = format!("{}/{LAYERS}/", stage.folder);
        let of_stage = self.manifest.files.iter().filter(move |file| file.path.starts_with(&within));
        of_stage.map(|file| self.layer(file))
    }

    /// The files of a stage's layers, in the order in which they were captured.
    pub fn layer_files(&self, stage: &StageEntry) -> Vec<FileEntry> {
        let within = format!("{}/{LAYERS}/", stage.folder);
        self.manifest.files.iter().filter(|file| file.path.starts_with(&within)).cloned().collect()
    }

    /// The tensor in a layer's file.
    ///
    /// # Errors
    /// As [`Captured::inputs`].
    pub fn layer(&self, file: &FileEntry) -> Result<LayerTensor> {
        let mut tensors = self.parse(file)?.into_iter();
        let no_layer = || changed(&self.folder, &file.path, "holds no tensor of a layer");
        let (Some((key, tensor)), None) = (tensors.next(), tensors.next()) else { return Err(no_layer()) };
        let (layer, call, end) = tensor::parse_layer_key(&key).ok_or_else(no_layer)?;
        Ok(LayerTensor { layer: layer.to_owned(), call, end, tensor })
    }

    fn tensors(&self, stage: &StageEntry, name: &str) -> Result<BTreeMap<String, Tensor>> {
        self.file(stage, name).map_or_else(|| Ok(BTreeMap::new()), |file| self.parse(file))
    }

    fn parse(&self, file: &FileEntry) -> Result<BTreeMap<String, Tensor>> {
        tensor::parse(&self.contents(file)?).map_err(|fault| changed(&self.folder, &file.path, fault))
    }

    fn json(&self, stage: &StageEntry, name: &str) -> Result<Option<Value>> {
        self.file(stage, name).map(|file| self.value(file)).transpose()
    }

    /// A file's JSON.
    pub(crate) fn value(&self, file: &FileEntry) -> Result<Value> {
        serde_json::from_slice(&self.contents(file)?)
            .map_err(|error| changed(&self.folder, &file.path, format!("is no JSON ({})", json_fault(&error))))
    }

    fn contents(&self, file: &FileEntry) -> Result<Vec<u8>> {
        verify::contents(&self.folder, file)
    }

    fn file(&self, stage: &StageEntry, name: &str) -> Option<&FileEntry> {
        let path = format!("{}/{name}", stage.folder);
        self.manifest.files.iter().find(|file| file.path == path)
    }
}
