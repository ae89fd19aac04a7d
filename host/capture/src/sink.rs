//! The place where a capture's files are written: exclusively, for this user alone, within the
//! limit, and only while the disk has room.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::{
    Error, FileEntry, Manifest, Result, StageEntry,
    hidden::{Hidden, make_folder},
    manifest::{BASE_BYTES, LAYERS, MANIFEST, MOST_FILES, ROW_BYTES},
    room::{self, Measure},
};

/// The importance of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The capture makes no sense without it.
    Required,
    /// It is left out if it would pass the limit.
    Layer,
}

/// A capture's hidden folder and what is in it.
pub(crate) struct Sink {
    /// None once the capture has finished or failed.
    hidden: Option<Hidden>,
    target: PathBuf,
    limit: u64,
    measure: Measure,
    manifest: Manifest,
    /// The folders of stages that have begun, finished ones included.
    folders: Vec<String>,
}

impl Sink {
    pub fn new(hidden: Hidden, target: PathBuf, limit: u64, measure: Measure, manifest: Manifest) -> Self {
        Self { hidden: Some(hidden), target, limit, measure, manifest, folders: Vec::new() }
    }

    /// Ends the capture, and removes it.
    pub fn end(&mut self) {
        self.hidden = None;
    }

    /// Makes the folder of a stage.
    pub fn begin_stage(&mut self, folder: &str) -> Result<()> {
        if self.folders.iter().any(|other| other == folder) {
            return Err(Error::Twice { folder: folder.to_owned() });
        }
        let path = self.contents()?.join(folder);
        let made = make_folder(&path).and_then(|()| make_folder(&path.join(LAYERS)));
        made.map_err(Error::io(&path, "made")).inspect_err(|_| self.end())?;
        self.folders.push(folder.to_owned());
        Ok(())
    }

    /// Adds a stage to the manifest.
    pub fn finish_stage(&mut self, stage: StageEntry) -> Result<()> {
        self.contents()?;
        self.manifest.stages.push(stage);
        Ok(())
    }

    /// Writes a file; false if it was left out because of the limit.
    ///
    /// # Errors
    /// The limit of a required file, which costs layers their place first; the disk has no room, or
    /// fails. The capture ends then, and nothing of it stays.
    pub fn write(&mut self, path: String, parts: &[&[u8]], need: Need) -> Result<bool> {
        let written = self.try_write(path, parts, need);
        if written.is_err() {
            self.end();
        }
        written
    }

    fn try_write(&mut self, path: String, parts: &[&[u8]], need: Need) -> Result<bool> {
        let contents = self.contents()?.to_owned();
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        if need == Need::Layer && (self.needed(bytes) > self.limit || self.manifest.files.len() + 64 > MOST_FILES) {
            self.manifest.left_out += 1;
            return Ok(false);
        }
        while self.needed(bytes) > self.limit {
            if !self.drop_layer(&contents)? {
                return Err(Error::Limit { file: path, needed: self.needed(bytes), limit: self.limit });
            }
        }
        room::check((self.measure)(&contents), room_folder(&self.target), bytes)?;
        let sha256 = write_new(&contents.join(&path), parts).map_err(Error::io(&path, "written"))?;
        self.manifest.files.push(FileEntry { path, bytes, sha256 });
        self.manifest.bytes += bytes;
        Ok(true)
    }

    /// The bytes of the whole capture with one more file.
    fn needed(&self, bytes: u64) -> u64 {
        let rows = (self.manifest.files.len() + self.folders.len() + 1) as u64;
        let pattern = self.manifest.layers.as_ref().map_or(0, |text| 2 * text.len() as u64);
        self.manifest.bytes.saturating_add(bytes).saturating_add(BASE_BYTES + pattern + rows * ROW_BYTES)
    }

    /// Removes the last tensor of a layer; false if there is none.
    fn drop_layer(&mut self, contents: &Path) -> Result<bool> {
        let is_layer = |file: &FileEntry| file.path.split('/').nth(1) == Some(LAYERS);
        let Some(at) = self.manifest.files.iter().rposition(is_layer) else { return Ok(false) };
        let file = self.manifest.files.remove(at);
        let path = contents.join(&file.path);
        fs::remove_file(&path).map_err(Error::io(&path, "removed"))?;
        self.manifest.bytes -= file.bytes;
        self.manifest.left_out += 1;
        Ok(true)
    }

    /// Removes the tensors of a stage's layers; the numbers of their files are not used again.
    pub fn forget_layers(&mut self, folder: &str) -> Result<()> {
        let contents = self.contents()?.to_owned();
        let of_stage = format!("{folder}/{LAYERS}/");
        let (gone, kept) = std::mem::take(&mut self.manifest.files)
            .into_iter()
            .partition(|file: &FileEntry| file.path.starts_with(&of_stage));
        self.manifest.files = kept;
        for file in gone {
            self.manifest.bytes -= file.bytes;
            let path = contents.join(&file.path);
            fs::remove_file(&path).map_err(Error::io(&path, "removed")).inspect_err(|_| self.end())?;
        }
        Ok(())
    }

    /// Writes the manifest and gives the capture its name, once everything is on the disk.
    pub fn finish(&mut self) -> Result<Manifest> {
        let finished = self.try_finish();
        self.end();
        finished.map(|()| self.manifest.clone())
    }

    fn try_finish(&mut self) -> Result<()> {
        let contents = self.contents()?.to_owned();
        let is_finished = |folder: &&String| self.manifest.stages.iter().any(|stage| stage.folder == **folder);
        if let Some(folder) = self.folders.iter().find(|folder| !is_finished(folder)) {
            return Err(Error::Unfinished { folder: folder.clone() });
        }
        let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all()).map_err(Error::io(path, "written"));
        for file in &self.manifest.files {
            sync(&contents.join(&file.path))?;
        }
        for folder in &self.folders {
            let layers = contents.join(folder).join(LAYERS);
            // It stays only if there is something in it.
            if fs::remove_dir(&layers).is_err() {
                sync(&layers)?;
            }
            sync(&contents.join(folder))?;
        }
        let path = contents.join(MANIFEST);
        let text = self.manifest.sealed();
        room::check((self.measure)(&contents), room_folder(&self.target), text.len() as u64)?;
        write_new(&path, &[&text]).map_err(Error::io(&path, "written"))?;
        sync(&path)?;
        sync(&contents)?;
        let hidden = self.hidden.take().ok_or(Error::Ended)?;
        hidden.place(&self.target).map_err(Error::io(&self.target, "made"))
    }

    fn contents(&self) -> Result<&Path> {
        self.hidden.as_ref().map(Hidden::contents).ok_or(Error::Ended)
    }
}

/// The folder that messages about room name: the hidden one says nothing to a user.
fn room_folder(target: &Path) -> &Path {
    tilewright_outputs::folder_of(target)
}

/// Writes a file of a name that must be free, and returns its digest.
fn write_new(path: &Path, parts: &[&[u8]]) -> io::Result<String> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut digest = Sha256::new();
    for part in parts {
        file.write_all(part)?;
        digest.update(part);
    }
    Ok(crate::verify::name_of(digest))
}
