//! What an interrupted decode leaves, even a killed one, and how the next goes on from it: the finished frames as they were, in a
//! folder `OUT.partial` beside the output.
//!
//! `frames-N.f32` holds the frames of sample N, one after the other: planes of f32, then a checksum over number and values.
//! `job.json` says whose they are and how many count. It is replaced at once, after the frames are on the disk, so that it never
//! claims what is not there; what lies behind its count is cut. Checksums tell where a disk kept less than it said.
//!
//! Anybody can guess the folder's name: it has to be this user's, and links in it are not followed.

use std::{
    fs::{self, File, TryLockError},
    io::{self, BufReader, ErrorKind, Read},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tilewright_outputs::OwnFolder;

use crate::{
    clip::ClipWriter,
    error::{Error, Result},
    frame::{Frame, Shape},
    output::Output,
    raw,
};

const ENDING: &str = ".partial";
const JOB: &str = "job.json";
/// Its name before it is whole.
const NEW_JOB: &str = "job.new";
const LOCK: &str = "lock";
/// The layout of the folder.
const VERSION: u32 = 1;
/// A checksum's bytes.
const CHECKSUM: usize = 4;
/// The most bytes of a job's text: some twenty for each sample.
const MOST_JOB: u64 = 16 << 20;

/// The finished frames of a decode that may be interrupted. Used by one process at a time.
#[derive(Debug)]
pub struct Journal {
    folder: OwnFolder,
    job: Job,
    /// Frames written, committed or not.
    done: Vec<usize>,
    files: Vec<File>,
    /// Held as long as the journal is open; the system lets it go with the process.
    lock: File,
    /// The state that belongs to what was found.
    found: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    version: u32,
    fingerprint: String,
    shape: Shape,
    /// Finished frames of each sample.
    done: Vec<usize>,
    /// Commits so far; numbers the states.
    commits: u64,
    /// Whether there is a state for this commit.
    state: bool,
}

impl Journal {
    /// Opens the journal of an output, or begins one; also gives how many frames of each sample are finished.
    ///
    /// The fingerprint stands for all that decides the frames' values: latent, weights, plan.
    ///
    /// # Errors
    /// [`Error::Job`] where the journal is of another job, [`Error::Busy`] where another process has it; else [`Error::Write`] or
    /// [`Error::Read`].
    pub fn open(output: &Output, fingerprint: &str, shape: Shape) -> Result<(Self, Vec<usize>)> {
        let (folder, lock) = lock(&Self::folder_of(output))?;
        let found = found(&folder, fingerprint, shape).inspect_err(|error| {
            if matches!(error, Error::Write { .. }) {
                // As on a full disk, where nothing new is to stay.
                let _ = sweep(&folder);
            }
        });
        let (job, files, done) = found?;
        let state = state_name(job.commits);
        let is_there = job.state && done == job.done && folder.file(&state, false).is_ok();
        let found = is_there.then(|| folder.path().join(state));
        let journal = Self { folder, job, done: done.clone(), files, lock, found };
        journal.remove_states(|number| number != journal.job.commits)?;
        Ok((journal, done))
    }

    /// Where an output's journal is: `clip.mp4.partial` for `clip.mp4`.
    pub fn folder_of(output: &Output) -> PathBuf {
        // Without a slash at the end; `.` has no name to add to.
        let path: PathBuf = output.path().components().collect();
        let path = if path.file_name().is_some() { path } else { fs::canonicalize(&path).unwrap_or(path) };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(ENDING);
        path.with_file_name(name)
    }

    /// Where the journal is.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The caller's state that belongs to exactly the frames that were found, where there is one.
    pub fn saved_state(&self) -> Option<&Path> {
        self.found.as_deref()
    }

    /// Where the caller may write a state before the next commit, which makes it the one that belongs to the frames so far.
    pub fn state_path(&self) -> PathBuf {
        self.folder.path().join(state_name(self.job.commits + 1))
    }

    /// Adds a finished frame. Those of one sample come in order. It counts from the next commit on.
    ///
    /// # Errors
    /// [`Error::Frame`] for one of another shape or out of turn; [`Error::Write`].
    pub fn append(&mut self, sample: usize, index: usize, frame: &Frame) -> Result<()> {
        let shape = &self.job.shape;
        let next = self.done.get(sample).copied().filter(|&next| next < shape.frames);
        if let Some(reason) = shape.objection(sample, index, next, frame) {
            return Err(Error::Frame { path: self.folder().to_owned(), sample, index, reason });
        }
        let mut record = raw::bytes(&frame.values);
        record.extend(checksum(index, &record).to_le_bytes());
        // At its place, not at the end: what a failed write left is written over.
        let written = self.files[sample].write_all_at(&record, index as u64 * record_bytes(shape));
        written.map_err(|error| unwritable(&self.folder, &frames_name(sample), error))?;
        self.done[sample] += 1;
        Ok(())
    }

    /// Makes the frames so far, and the state where one was written, last: they are on the disk when this returns.
    ///
    /// # Errors
    /// [`Error::Write`]; the last commit still counts then.
    pub fn commit(&mut self) -> Result<()> {
        for (sample, file) in self.files.iter().enumerate() {
            file.sync_data().map_err(|error| unwritable(&self.folder, &frames_name(sample), error))?;
        }
        let commits = self.job.commits + 1;
        let state = state_name(commits);
        let has_state = match self.folder.file(&state, false) {
            Ok(file) => file.sync_all().map(|()| true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        let has_state = has_state.map_err(|error| unwritable(&self.folder, &state, error))?;
        let Job { fingerprint, shape, .. } = &self.job;
        let (fingerprint, shape, done) = (fingerprint.clone(), *shape, self.done.clone());
        let job = Job { version: VERSION, fingerprint, shape, done, commits, state: has_state };
        let text = serde_json::to_vec_pretty(&job).map_err(io::Error::from);
        let replaced = text.and_then(|text| self.folder.replace(JOB, NEW_JOB, &text));
        replaced.map_err(|error| unwritable(&self.folder, JOB, error))?;
        self.job = job;
        self.found = None;
        self.remove_states(|number| number < commits)
    }

    /// Feeds the finished frames to a new writer.
    ///
    /// # Errors
    /// As [`ClipWriter::frame`]; [`Error::Read`].
    pub fn replay(&self, writer: &mut ClipWriter) -> Result<()> {
        for (sample, &done) in self.done.iter().enumerate() {
            for index in 0..done {
                writer.frame(sample, index, &self.frame(sample, index)?)?;
            }
        }
        Ok(())
    }

    /// A finished frame.
    ///
    /// # Errors
    /// [`Error::Read`], also for one that is not there.
    pub fn frame(&self, sample: usize, index: usize) -> Result<Frame> {
        let Shape { width, height, channels, .. } = self.job.shape;
        let mut record = vec![0; record_bytes(&self.job.shape) as usize];
        let damaged = |error: io::Error| unreadable(&self.folder, &frames_name(sample), error);
        let file = self.files.get(sample).ok_or_else(|| damaged(ErrorKind::NotFound.into()))?;
        file.read_exact_at(&mut record, index as u64 * record_bytes(&self.job.shape)).map_err(damaged)?;
        let values = values(index, &record).ok_or_else(|| damaged(io::Error::other("its checksum is wrong")))?;
        let values = values.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
        Ok(Frame { width, height, channels, values })
    }

    /// How many frames of all samples the next decode can go on from.
    pub fn kept(&self) -> usize {
        // Those that were found damaged count no more, and those that are not committed not yet.
        self.done.iter().zip(&self.job.done).map(|(done, committed)| done.min(committed)).sum()
    }

    /// Removes the journal; for when the output is whole, or nothing is kept. What is not the
    /// journal's own is left.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn remove(self) -> Result<()> {
        // The job first: should this be interrupted, what is left counts for nothing.
        self.forget(JOB)?;
        sweep(&self.folder)
    }

    /// True if there is a frame to go on from in a journal's folder.
    pub fn is_begun(folder: &Path) -> bool {
        folder.join(JOB).is_file()
    }

    /// Removes a journal that has none, as [`Journal::remove`] does. For a program that ends in the
    /// middle of its decode.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn sweep(folder: &Path) -> Result<()> {
        // Opening would make it.
        if !folder.is_dir() {
            return Ok(());
        }
        sweep(&OwnFolder::open(folder).map_err(|error| Error::write(folder, error))?)
    }

    fn remove_states(&self, which: impl Fn(u64) -> bool) -> Result<()> {
        for name in self.folder.names().map_err(|error| Error::read(self.folder(), error))? {
            let Some(name) = name.to_str() else { continue };
            if state_number(name).is_some_and(&which) {
                self.forget(name)?;
            }
        }
        Ok(())
    }

    fn forget(&self, name: &str) -> Result<()> {
        self.folder.remove(name).map_err(|error| unwritable(&self.folder, name, error))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Closing alone is not enough: a child that is just being started holds the same file until its program begins.
        let _ = self.lock.unlock();
    }
}

/// The job of a journal, its files, and how many frames of each sample are whole; for an empty
/// folder, those of a new one.
fn found(folder: &OwnFolder, fingerprint: &str, shape: Shape) -> Result<(Job, Vec<File>, Vec<usize>)> {
    let job = match folder.read(JOB, MOST_JOB) {
        Ok(text) => known(folder.path(), &text, fingerprint, &shape)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (fingerprint, done) = (fingerprint.to_owned(), vec![0; shape.samples]);
            Job { version: VERSION, fingerprint, shape, done, commits: 0, state: false }
        }
        Err(error) => return Err(unreadable(folder, JOB, error)),
    };
    let (mut files, mut done) = (Vec::new(), Vec::new());
    for (sample, &claimed) in job.done.iter().enumerate() {
        let name = frames_name(sample);
        let file = folder.file(&name, true).map_err(|error| unwritable(folder, &name, error))?;
        let whole = whole_frames(&file, &shape, claimed).map_err(|error| unreadable(folder, &name, error))?;
        // Also what was written after the last commit: no state belongs to it.
        let cut = file.set_len(whole as u64 * record_bytes(&shape));
        cut.map_err(|error| unwritable(folder, &name, error))?;
        files.push(file);
        done.push(whole);
    }
    Ok((job, files, done))
}

/// Removes what a journal without a job has in its folder, and the folder if nothing else is in it.
/// If there is a job, all is left.
fn sweep(folder: &OwnFolder) -> Result<()> {
    if !folder.file(JOB, false).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(());
    }
    let is_own = |name: &str| {
        let is_frames = name.starts_with("frames-") && name.ends_with(".f32");
        name == NEW_JOB || is_frames || state_number(name).is_some()
    };
    let names = folder.names().map_err(|error| Error::read(folder.path(), error))?;
    let own = names.iter().filter_map(|name| name.to_str()).filter(|name| is_own(name));
    // The lock last: until then the journal is this process's.
    for name in own.chain([LOCK]) {
        folder.remove(name).map_err(|error| unwritable(folder, name, error))?;
    }
    match fs::remove_dir(folder.path()) {
        Err(error) if ![ErrorKind::DirectoryNotEmpty, ErrorKind::NotFound].contains(&error.kind()) => {
            Err(Error::write(folder.path(), error))
        }
        _ => Ok(()),
    }
}

/// Takes the journal for this process; makes its folder where there is none.
fn lock(path: &Path) -> Result<(OwnFolder, File)> {
    let failed = |error| Error::write(path, error);
    loop {
        let folder = OwnFolder::open(path).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => refused(path, &error),
            _ => failed(error),
        })?;
        let file = match folder.file(LOCK, true) {
            // Another process removed the folder in between.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened.map_err(|error| unwritable(&folder, LOCK, error))?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // A process that finished may have removed the file, and the folder, before this one locked it.
        let mine = file.metadata().map_err(failed)?.ino();
        let there = folder.file(LOCK, false).and_then(|file| file.metadata());
        if there.is_ok_and(|there| there.ino() == mine) && folder.is_in_place().map_err(failed)? {
            return Ok((folder, file));
        }
    }
}

/// The error for a file or folder that is not this user's own, or not of the kind that this program puts there.
fn refused(path: &Path, error: &io::Error) -> Error {
    Error::output(path, format!("{error}: delete it, or give -o another name"))
}

fn unwritable(folder: &OwnFolder, name: &str, error: io::Error) -> Error {
    let path = folder.path().join(name);
    if error.kind() == ErrorKind::PermissionDenied { refused(&path, &error) } else { Error::write(path, error) }
}

fn unreadable(folder: &OwnFolder, name: &str, error: io::Error) -> Error {
    let path = folder.path().join(name);
    if error.kind() == ErrorKind::PermissionDenied { refused(&path, &error) } else { Error::read(path, error) }
}

/// The job of a journal that is there, if it is this one.
fn known(folder: &Path, text: &[u8], fingerprint: &str, shape: &Shape) -> Result<Job> {
    let other = |what: &str| Error::Job { path: folder.to_owned(), what: what.to_owned() };
    let job: Job = serde_json::from_slice(text).map_err(|_| other("version of this program"))?;
    let fits = job.done.len() == shape.samples && job.done.iter().all(|&done| done <= shape.frames);
    match job {
        Job { version, .. } if version != VERSION => Err(other("version of this program")),
        Job { shape: found, .. } if found != *shape || !fits => Err(other("size or count of frames")),
        Job { fingerprint: ref found, .. } if found != fingerprint => Err(other("latent, model or plan")),
        job => Ok(job),
    }
}

fn frames_name(sample: usize) -> String {
    format!("frames-{sample}.f32")
}

fn state_name(commit: u64) -> String {
    format!("state-{commit}")
}

fn state_number(name: &str) -> Option<u64> {
    name.strip_prefix("state-").and_then(|rest| rest.parse().ok())
}

fn record_bytes(shape: &Shape) -> u64 {
    u64::from(shape.width) * u64::from(shape.height) * shape.channels as u64 * 4 + CHECKSUM as u64
}

/// Over the frame's number, too: a frame in another's place is none.
fn checksum(index: usize, values: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&(index as u64).to_le_bytes());
    hasher.update(values);
    hasher.finalize()
}

/// A record's values, if they are what was written.
fn values(index: usize, record: &[u8]) -> Option<&[u8]> {
    let (values, sum) = record.split_last_chunk::<CHECKSUM>()?;
    (checksum(index, values) == u32::from_le_bytes(*sum)).then_some(values)
}

/// How many of the claimed frames are there, each with all before it.
fn whole_frames(file: &File, shape: &Shape, claimed: usize) -> io::Result<usize> {
    let mut reader = BufReader::new(file);
    let mut record = vec![0; record_bytes(shape) as usize];
    for index in 0..claimed {
        match reader.read_exact(&mut record) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(index),
            read => read?,
        }
        if values(index, &record).is_none() {
            return Ok(index);
        }
    }
    Ok(claimed)
}

#[cfg(test)]
mod tests;
