//! What an interrupted decode leaves, even a killed one, and how the next goes on from it: the finished frames as they were, in a
//! folder `OUT.partial` beside the output.
//!
//! `frames-N.f32` holds the frames of sample N, one after the other: planes of f32, then a checksum over number and values.
//! `job.json` says whose they are and how many count. It is replaced at once, after the frames are on the disk, so that it never
//! claims what is not there; what lies behind its count is cut. Checksums tell where a disk kept less than it said.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufReader, ErrorKind, Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

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

/// The finished frames of a decode that may be interrupted. Used by one process at a time.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
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
        let folder = Self::folder_of(output);
        let lock = lock(&folder)?;
        let job = match fs::read(folder.join(JOB)) {
            Ok(text) => known(&folder, &text, fingerprint, &shape)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (fingerprint, done) = (fingerprint.to_owned(), vec![0; shape.samples]);
                Job { version: VERSION, fingerprint, shape, done, commits: 0, state: false }
            }
            Err(error) => return Err(Error::read(folder.join(JOB), error)),
        };
        let (mut files, mut done) = (Vec::new(), Vec::new());
        for (sample, &claimed) in job.done.iter().enumerate() {
            let path = frames_path(&folder, sample);
            let failed = |error| Error::write(&path, error);
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
            let whole = whole_frames(&file, &shape, claimed).map_err(|error| Error::read(&path, error))?;
            // Also what was written after the last commit: no state belongs to it.
            file.set_len(whole as u64 * record_bytes(&shape)).map_err(failed)?;
            files.push(file);
            done.push(whole);
        }
        let state = state_path(&folder, job.commits);
        let found = (job.state && done == job.done && state.is_file()).then_some(state);
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
        &self.folder
    }

    /// The caller's state that belongs to exactly the frames that were found, where there is one.
    pub fn saved_state(&self) -> Option<&Path> {
        self.found.as_deref()
    }

    /// Where the caller may write a state before the next commit, which makes it the one that belongs to the frames so far.
    pub fn state_path(&self) -> PathBuf {
        state_path(&self.folder, self.job.commits + 1)
    }

    /// Adds a finished frame. Those of one sample come in order. It counts from the next commit on.
    ///
    /// # Errors
    /// [`Error::Frame`] for one of another shape or out of turn; [`Error::Write`].
    pub fn append(&mut self, sample: usize, index: usize, frame: &Frame) -> Result<()> {
        let shape = &self.job.shape;
        let next = self.done.get(sample).copied().filter(|&next| next < shape.frames);
        if let Some(reason) = shape.objection(sample, index, next, frame) {
            return Err(Error::Frame { path: self.folder.clone(), sample, index, reason });
        }
        let mut record = raw::bytes(&frame.values);
        record.extend(checksum(index, &record).to_le_bytes());
        // At its place, not at the end: what a failed write left is written over.
        let written = self.files[sample].write_all_at(&record, index as u64 * record_bytes(shape));
        written.map_err(|error| Error::write(frames_path(&self.folder, sample), error))?;
        self.done[sample] += 1;
        Ok(())
    }

    /// Makes the frames so far, and the state where one was written, last: they are on the disk when this returns.
    ///
    /// # Errors
    /// [`Error::Write`]; the last commit still counts then.
    pub fn commit(&mut self) -> Result<()> {
        for (sample, file) in self.files.iter().enumerate() {
            file.sync_data().map_err(|error| Error::write(frames_path(&self.folder, sample), error))?;
        }
        let state = self.state_path();
        let has_state = match File::open(&state) {
            Ok(file) => file.sync_all().map(|()| true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        let has_state = has_state.map_err(|error| Error::write(&state, error))?;
        let commits = self.job.commits + 1;
        let Job { fingerprint, shape, .. } = &self.job;
        let (fingerprint, shape, done) = (fingerprint.clone(), *shape, self.done.clone());
        let job = Job { version: VERSION, fingerprint, shape, done, commits, state: has_state };
        write_job(&self.folder, &job).map_err(|error| Error::write(self.folder.join(JOB), error))?;
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
        let damaged = |error: io::Error| Error::read(frames_path(&self.folder, sample), error);
        let file = self.files.get(sample).ok_or_else(|| damaged(ErrorKind::NotFound.into()))?;
        file.read_exact_at(&mut record, index as u64 * record_bytes(&self.job.shape)).map_err(damaged)?;
        let values = values(index, &record).ok_or_else(|| damaged(io::Error::other("its checksum is wrong")))?;
        let values = values.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect();
        Ok(Frame { width, height, channels, values })
    }

    /// Removes the journal; for when the output is whole. What is not the journal's own is left.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn remove(self) -> Result<()> {
        // The job first: should this be interrupted, what is left counts for nothing.
        remove(&self.folder.join(JOB))?;
        remove(&self.folder.join(NEW_JOB))?;
        (0..self.files.len()).try_for_each(|sample| remove(&frames_path(&self.folder, sample)))?;
        self.remove_states(|_| true)?;
        remove(&self.folder.join(LOCK))?;
        match fs::remove_dir(&self.folder) {
            Err(error) if ![ErrorKind::DirectoryNotEmpty, ErrorKind::NotFound].contains(&error.kind()) => {
                Err(Error::write(&self.folder, error))
            }
            _ => Ok(()),
        }
    }

    fn remove_states(&self, which: impl Fn(u64) -> bool) -> Result<()> {
        for entry in fs::read_dir(&self.folder).map_err(|error| Error::read(&self.folder, error))?.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("state-")).and_then(|rest| rest.parse().ok());
            if number.is_some_and(&which) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Closing alone is not enough: a child that is just being started holds the same file until its program begins.
        let _ = self.lock.unlock();
    }
}

/// Takes the journal for this process; makes its folder where there is none.
fn lock(folder: &Path) -> Result<File> {
    let failed = |error| Error::write(folder, error);
    let path = folder.join(LOCK);
    loop {
        if let Err(error) = fs::create_dir(folder)
            && !folder.is_dir()
        {
            return Err(failed(error));
        }
        let file = match OpenOptions::new().create(true).truncate(false).write(true).open(&path) {
            // Another process removed the folder in between.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened.map_err(failed)?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: folder.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Whoever finished may have removed the file before this locked it.
        let mine = file.metadata().map_err(failed)?.ino();
        if fs::metadata(&path).is_ok_and(|there| there.ino() == mine) {
            return Ok(file);
        }
    }
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

fn write_job(folder: &Path, job: &Job) -> io::Result<()> {
    let path = folder.join(NEW_JOB);
    let mut file = File::create(&path)?;
    file.write_all(&serde_json::to_vec_pretty(job)?)?;
    file.sync_all()?;
    fs::rename(path, folder.join(JOB))?;
    // So that the name is on the disk, too.
    File::open(folder)?.sync_all()
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::write(path, error)),
        _ => Ok(()),
    }
}

fn frames_path(folder: &Path, sample: usize) -> PathBuf {
    folder.join(format!("frames-{sample}.f32"))
}

fn state_path(folder: &Path, commit: u64) -> PathBuf {
    folder.join(format!("state-{commit}"))
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
