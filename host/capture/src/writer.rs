//! The writing of captures, stage by stage.

use std::{
    fmt,
    fs::{self, DirEntry},
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use serde_json::Value;
use tilewright_outputs::folder_of;
use tilewright_plan::Stage;

use crate::{
    End, Error, Keep, LayerPattern, Manifest, Result, StageEntry, TensorView,
    hidden::Hidden,
    manifest::{FACTS, FORMAT, FORMAT_VERSION, INPUTS, OUTPUTS, RECORD, TILEWRIGHT, layer_path, stage_folder},
    redact,
    room::{self, Measure},
    sink::{Need, Sink},
    tensor::{file_parts, layer_key},
};

/// The settings of a capture.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder to make: one that is not there yet, or empty.
    pub folder: PathBuf,
    /// The layers of which inputs and outputs are captured; none without it.
    pub layers: Option<LayerPattern>,
    /// The most bytes of the whole capture.
    pub limit: u64,
    /// Prompts, and tokens of them, go in, too.
    pub prompts: bool,
}

impl Settings {
    /// A capture without layers, limit and prompts.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), layers: None, limit: u64::MAX, prompts: false }
    }
}

/// A capture that is being written. It has its name, and can be taken for a capture, only when it
/// is finished; unless it is, nothing of it stays.
pub struct Capture {
    sink: Arc<Mutex<Sink>>,
    layers: Option<Arc<LayerPattern>>,
    prompts: bool,
}

impl Capture {
    /// Begins a capture, in a hidden folder beside the one to make, and removes the hidden folders
    /// that killed processes left there.
    ///
    /// # Errors
    /// [`Error::Folder`] if something stands there that is no empty folder; [`Error::Io`] if its
    /// parent is missing or not writable; [`Error::NoRoom`].
    pub fn begin(settings: Settings) -> Result<Self> {
        Self::begin_with(settings, Box::new(room::measure))
    }

    pub(crate) fn begin_with(settings: Settings, measure: Measure) -> Result<Self> {
        let Settings { folder, layers, limit, prompts } = settings;
        // So that it is the same folder if the process changes its own.
        let target = std::path::absolute(&folder).map_err(Error::io(&folder, "made"))?;
        // Without a slash at the end, which would lead through a link.
        let target: PathBuf = target.components().collect();
        check_free(&folder, &target)?;
        let parent = folder_of(&target);
        room::check(measure(parent), parent, 0)?;
        let hidden = Hidden::create(parent).map_err(Error::io(parent, "written to"))?;
        let manifest = Manifest {
            format: FORMAT.into(),
            version: FORMAT_VERSION,
            tilewright: TILEWRIGHT.into(),
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            prompts,
            layers: layers.as_ref().map(ToString::to_string),
            left_out: 0,
            bytes: 0,
            stages: Vec::new(),
            files: Vec::new(),
            sha256: String::new(),
        };
        let sink = Sink::new(hidden, target, limit, measure, manifest);
        Ok(Self { sink: Arc::new(Mutex::new(sink)), layers: layers.map(Arc::new), prompts })
    }

    /// Begins a stage, under a number that no other of the capture has. Several may be at work at
    /// once.
    ///
    /// # Errors
    /// [`Error::Twice`], [`Error::Ended`], or its folder can't be made.
    pub fn stage(&self, stage: Stage, index: u32) -> Result<StageWriter> {
        let folder = stage_folder(stage, index);
        lock(&self.sink).begin_stage(&folder)?;
        Ok(StageWriter {
            sink: Arc::clone(&self.sink),
            layers: self.layers.clone(),
            prompts: self.prompts,
            entry: StageEntry { stage, index, folder, elapsed_ms: 0.0, withheld: 0 },
            number: 0,
        })
    }

    /// Puts everything on the disk, and gives the folder its name; returns what is in it.
    ///
    /// # Errors
    /// [`Error::Unfinished`], [`Error::Ended`], [`Error::NoRoom`], or the disk fails; nothing of
    /// the capture stays then.
    pub fn finish(self) -> Result<Manifest> {
        lock(&self.sink).finish()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        lock(&self.sink).end();
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("layers", &self.layers).field("prompts", &self.prompts).finish_non_exhaustive()
    }
}

/// A stage of a capture, which may be given to the thread that runs it. Without prompts, the inputs
/// and layers of a text stage are left out: tokens are the prompt in another form, and the first
/// layers nearly so. Its outputs stay, as the inputs of the next stage; with the model at hand they
/// may still say something about the prompt.
pub struct StageWriter {
    sink: Arc<Mutex<Sink>>,
    layers: Option<Arc<LayerPattern>>,
    prompts: bool,
    entry: StageEntry,
    number: u32,
}

impl StageWriter {
    /// Writes all inputs, by name.
    ///
    /// # Errors
    /// [`Error::Tensor`], [`Error::Limit`], [`Error::NoRoom`], [`Error::Ended`], or the disk fails,
    /// as if they were written before. The capture ends with every error but the first.
    pub fn inputs(&mut self, tensors: &[(&str, TensorView)]) -> Result<()> {
        if self.is_withheld() {
            self.entry.withheld += tensors.len() as u64;
            return Ok(());
        }
        self.tensors(INPUTS, tensors)
    }

    /// Writes all outputs, by name.
    ///
    /// # Errors
    /// As [`StageWriter::inputs`].
    pub fn outputs(&mut self, tensors: &[(&str, TensorView)]) -> Result<()> {
        self.tensors(OUTPUTS, tensors)
    }

    /// True if tensors of this layer are captured. The answer costs little, and saves all other
    /// work for the rest.
    pub fn wants(&self, layer: &str) -> bool {
        !self.is_withheld() && self.layers.as_ref().is_some_and(|layers| layers.matches(layer))
    }

    /// Writes a tensor of a layer's call, if the layer is captured; false if it is left out, be it
    /// by its name or the limit.
    ///
    /// # Errors
    /// As [`StageWriter::inputs`], but for the limit.
    pub fn layer(&mut self, layer: &str, call: u32, end: End, tensor: TensorView) -> Result<bool> {
        if self.layers.as_ref().is_none_or(|layers| !layers.matches(layer)) {
            return Ok(false);
        }
        if self.is_withheld() {
            self.entry.withheld += 1;
            return Ok(false);
        }
        let key = layer_key(layer, call, end);
        let (header, parts) = file_parts(&[(&key, tensor)])?;
        let path = layer_path(&self.entry.folder, self.number);
        let parts: Vec<&[u8]> = [&*header].into_iter().chain(parts).collect();
        let is_written = lock(&self.sink).write(path, &parts, Need::Layer)?;
        self.number += u32::from(is_written);
        Ok(is_written)
    }

    /// Forgets the tensors of layers so far: an attempt failed, and another one begins.
    ///
    /// # Errors
    /// [`Error::Ended`], or the disk fails.
    pub fn forget_layers(&mut self) -> Result<()> {
        lock(&self.sink).forget_layers(&self.entry.folder)
    }

    /// Writes the facts that running the stage again takes beside its inputs. Without prompts,
    /// their text is left out, as by [`redact`].
    ///
    /// # Errors
    /// As [`StageWriter::inputs`].
    pub fn facts(&mut self, facts: &Value) -> Result<()> {
        self.json(FACTS, facts)
    }

    /// Writes the stage's record, as [`StageWriter::facts`] does.
    ///
    /// # Errors
    /// As [`StageWriter::inputs`].
    pub fn record(&mut self, record: &Value) -> Result<()> {
        self.json(RECORD, record)
    }

    /// Adds the stage to the capture.
    ///
    /// # Errors
    /// [`Error::Ended`].
    pub fn finish(mut self, elapsed: Duration) -> Result<()> {
        self.entry.elapsed_ms = elapsed.as_secs_f64() * 1e3;
        lock(&self.sink).finish_stage(self.entry)
    }

    fn is_withheld(&self) -> bool {
        self.entry.stage == Stage::Text && !self.prompts
    }

    fn tensors(&self, name: &str, tensors: &[(&str, TensorView)]) -> Result<()> {
        let (header, parts) = file_parts(tensors)?;
        let parts: Vec<&[u8]> = [&*header].into_iter().chain(parts).collect();
        self.required(name, &parts)
    }

    fn json(&self, name: &str, value: &Value) -> Result<()> {
        let mut value = value.clone();
        // A capture is its user's own, and running a stage again takes its files.
        redact(&mut value, Keep { prompts: self.prompts, names: true });
        self.required(name, &[format!("{value:#}\n").as_bytes()])
    }

    fn required(&self, name: &str, parts: &[&[u8]]) -> Result<()> {
        let path = format!("{}/{name}", self.entry.folder);
        lock(&self.sink).write(path, parts, Need::Required).map(drop)
    }
}

impl fmt::Debug for StageWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageWriter").field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// A panic elsewhere leaves the sink as it was between two files.
fn lock(sink: &Mutex<Sink>) -> MutexGuard<'_, Sink> {
    sink.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that a folder can be made there.
fn check_free(folder: &Path, target: &Path) -> Result<()> {
    let refused = |reason| Err(Error::Folder { folder: folder.to_owned(), reason });
    if target.file_name().is_none() {
        return refused("no name of a new folder: give another name");
    }
    match fs::symlink_metadata(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(folder, "made")(error)),
        Ok(facts) if facts.is_symlink() => return refused("is a link: give another name"),
        Ok(facts) if !facts.is_dir() => return refused("is a file: give another name"),
        Ok(_) => {}
    }
    let first: Option<std::io::Result<DirEntry>> = fs::read_dir(target).map_err(Error::io(folder, "read"))?.next();
    if first.is_some() { refused("is not empty: give another name, or remove it") } else { Ok(()) }
}
