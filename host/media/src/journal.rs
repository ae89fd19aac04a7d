//! The journal of a decode: its finished frames in a folder `OUT.partial` beside the output, from
//! which the next run resumes after an interruption or a kill.
//!
//! `frames-N.f32` holds the frames of sample N in order: planes of f32, then a checksum over number
//! and values. `job.json` identifies the job and counts the committed frames. It is replaced
//! atomically after the frames are synced, so that it never counts a frame that is not on the disk;
//! data beyond its count are cut. Checksums reveal a disk that lost data it had acknowledged.
//!
//! The folder's name can be guessed: the folder has to be this user's, and links in it are not
//! followed.

use std::{
    fs::{self, File},
    io::{self, BufReader, ErrorKind, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tilewright_outputs::OwnFolder;

use crate::{
    error::{Error, Result},
    frame::{Frame, Shape},
    output::Output,
    raw,
};

const ENDING: &str = ".partial";
const JOB: &str = "job.json";
/// The job's file before it is complete.
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
    job: JournalJob,
    /// Frames written, committed or not.
    done: Vec<usize>,
    files: Vec<File>,
    /// Held while the journal is open; the system releases it when the process ends.
    lock: File,
}

#[derive(Debug, Serialize, Deserialize)]
struct JournalJob {
    version: u32,
    fingerprint: String,
    shape: Shape,
    /// Finished frames of each sample.
    done: Vec<usize>,
}

impl Journal {
    /// Opens the journal of an output, or begins one; also returns the number of finished frames of
    /// each sample.
    ///
    /// The fingerprint covers everything that determines the frames' values: latent, weights, plan.
    ///
    /// # Errors
    /// [`Error::Job`] if the journal belongs to another job, [`Error::Busy`] if another
    /// process has it; else [`Error::Write`] or [`Error::Read`].
    pub fn open(output: &Output, fingerprint: &str, shape: Shape) -> Result<(Self, Vec<usize>)> {
        let (folder, lock) = lock(&Self::folder_of(output))?;
        let found = find_frames(&folder, fingerprint, shape).inspect_err(|error| {
            if matches!(error, Error::Write { .. }) {
                // Nothing new is to stay, as after a failure on a full disk.
                let _ = sweep(&folder);
            }
        });
        let (job, files, done) = found?;
        Ok((Self { folder, job, done: done.clone(), files, lock }, done))
    }

    /// The journal's folder of an output: `clip.mp4.partial` for `clip.mp4`.
    pub fn folder_of(output: &Output) -> PathBuf {
        // Components drop a slash at the end; `.` has no name to add to.
        let path: PathBuf = output.path().components().collect();
        let path = if path.file_name().is_some() { path } else { fs::canonicalize(&path).unwrap_or(path) };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(ENDING);
        path.with_file_name(name)
    }

    /// The journal's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Adds a finished frame. The frames of one sample come in order. The next commit makes it
    /// count.
    ///
    /// # Errors
    /// [`Error::Frame`] for a frame of another shape or out of order; [`Error::Write`].
    pub fn append(&mut self, sample: usize, index: usize, frame: &Frame) -> Result<()> {
        let shape = &self.job.shape;
        shape.check(self.folder(), &self.done, sample, index, frame)?;
        let mut record = raw::bytes(&frame.values);
        record.extend(checksum(index, &record).to_le_bytes());
        // Written at its offset, not at the end, so that the rest of a failed write is overwritten.
        let written = self.files[sample].write_all_at(&record, index as u64 * record_bytes(shape));
        written.map_err(|error| unwritable(&self.folder, &frames_name(sample), error))?;
        self.done[sample] += 1;
        Ok(())
    }

    /// Syncs the frames so far to the disk.
    ///
    /// # Errors
    /// [`Error::Write`]; the last commit still counts then.
    pub fn commit(&mut self) -> Result<()> {
        for (sample, file) in self.files.iter().enumerate() {
            file.sync_data().map_err(|error| unwritable(&self.folder, &frames_name(sample), error))?;
        }
        let JournalJob { fingerprint, shape, .. } = &self.job;
        let (fingerprint, shape, done) = (fingerprint.clone(), *shape, self.done.clone());
        let job = JournalJob { version: VERSION, fingerprint, shape, done };
        let text = serde_json::to_vec_pretty(&job).map_err(io::Error::from);
        let replaced = text.and_then(|text| self.folder.replace(JOB, NEW_JOB, &text));
        replaced.map_err(|error| unwritable(&self.folder, JOB, error))?;
        self.job = job;
        Ok(())
    }

    /// Reads a finished frame.
    ///
    /// # Errors
    /// [`Error::Read`], also for a missing frame.
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

    /// The number of frames of all samples that the next decode can resume from.
    pub fn resumable_frames(&self) -> usize {
        // Damaged frames no longer count, uncommitted ones not yet.
        self.done.iter().zip(&self.job.done).map(|(done, committed)| done.min(committed)).sum()
    }

    /// Removes the journal, when the output is complete or nothing is to stay. Other files in the
    /// folder stay.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn remove(self) -> Result<()> {
        // The job's file first: without it, the remaining files count for nothing if this is
        // interrupted.
        self.forget(JOB)?;
        sweep(&self.folder)
    }

    /// True if a journal's folder has a frame to resume from.
    pub fn is_begun(folder: &Path) -> bool {
        folder.join(JOB).is_file()
    }

    /// Removes a journal without finished frames, as [`Journal::remove`] does. For a program that
    /// ends in the middle of its decode.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn sweep(folder: &Path) -> Result<()> {
        // Opening would make the folder.
        if !folder.is_dir() {
            return Ok(());
        }
        sweep(&OwnFolder::open(folder).map_err(|error| Error::write(folder, error))?)
    }

    fn forget(&self, name: &str) -> Result<()> {
        self.folder.remove(name).map_err(|error| unwritable(&self.folder, name, error))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Closing alone is not enough: a child process that is just being started shares the file
        // until its program begins.
        let _ = self.lock.unlock();
    }
}

/// The job of a journal, its files, and the number of whole frames of each sample; for an empty
/// folder, those of a new job.
fn find_frames(folder: &OwnFolder, fingerprint: &str, shape: Shape) -> Result<(JournalJob, Vec<File>, Vec<usize>)> {
    let job = match folder.read(JOB, MOST_JOB) {
        Ok(text) => parse_job(folder.path(), &text, fingerprint, &shape)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (fingerprint, done) = (fingerprint.to_owned(), vec![0; shape.samples]);
            JournalJob { version: VERSION, fingerprint, shape, done }
        }
        Err(error) => return Err(unreadable(folder, JOB, error)),
    };
    let (mut files, mut done) = (Vec::new(), Vec::new());
    for (sample, &claimed) in job.done.iter().enumerate() {
        let name = frames_name(sample);
        let file = folder.file(&name, true).map_err(|error| unwritable(folder, &name, error))?;
        let whole = whole_frames(&file, &shape, claimed).map_err(|error| unreadable(folder, &name, error))?;
        // Frames after the last commit are cut, too: nobody has synced them.
        let cut = file.set_len(whole as u64 * record_bytes(&shape));
        cut.map_err(|error| unwritable(folder, &name, error))?;
        files.push(file);
        done.push(whole);
    }
    Ok((job, files, done))
}

/// Removes the files of a journal without a job, and the folder if it is empty then. A journal with
/// a job is left alone.
fn sweep(folder: &OwnFolder) -> Result<()> {
    if !folder.file(JOB, false).is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Ok(());
    }
    let is_own = |name: &str| {
        let is_frames = name.starts_with("frames-") && name.ends_with(".f32");
        name == NEW_JOB || is_frames
    };
    let names = folder.names().map_err(|error| Error::read(folder.path(), error))?;
    let own = names.iter().filter_map(|name| name.to_str()).filter(|name| is_own(name));
    // The lock last: the journal is this process's until then.
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

/// Locks the journal for this process; makes its folder if it is missing.
fn lock(path: &Path) -> Result<(OwnFolder, File)> {
    OwnFolder::locked(path, LOCK).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => Error::Busy { path: path.to_owned() },
        ErrorKind::PermissionDenied => refusal(path, &error),
        _ => Error::write(path, error),
    })
}

/// The error for a file or folder of another user, or of a kind that this program does not make.
fn refusal(path: &Path, error: &io::Error) -> Error {
    Error::output(path, format!("{error}: delete it, or give -o another name"))
}

fn unwritable(folder: &OwnFolder, name: &str, error: io::Error) -> Error {
    let path = folder.path().join(name);
    if error.kind() == ErrorKind::PermissionDenied { refusal(&path, &error) } else { Error::write(path, error) }
}

fn unreadable(folder: &OwnFolder, name: &str, error: io::Error) -> Error {
    let path = folder.path().join(name);
    if error.kind() == ErrorKind::PermissionDenied { refusal(&path, &error) } else { Error::read(path, error) }
}

/// The job of an existing journal, if it is this one.
fn parse_job(folder: &Path, text: &[u8], fingerprint: &str, shape: &Shape) -> Result<JournalJob> {
    let other = |what: &str| Error::Job { path: folder.to_owned(), what: what.to_owned() };
    let job: JournalJob = serde_json::from_slice(text).map_err(|_| other("version of this program"))?;
    let fits = job.done.len() == shape.samples && job.done.iter().all(|&done| done <= shape.frames);
    match job {
        JournalJob { version, .. } if version != VERSION => Err(other("version of this program")),
        JournalJob { shape: found, .. } if found != *shape || !fits => Err(other("size or count of frames")),
        JournalJob { fingerprint: ref found, .. } if found != fingerprint => Err(other("latent, model or plan")),
        job => Ok(job),
    }
}

fn frames_name(sample: usize) -> String {
    format!("frames-{sample}.f32")
}

fn record_bytes(shape: &Shape) -> u64 {
    u64::from(shape.width) * u64::from(shape.height) * shape.channels as u64 * 4 + CHECKSUM as u64
}

/// Covers the frame's number, too, so that a frame at another's offset is not accepted.
fn checksum(index: usize, values: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&(index as u64).to_le_bytes());
    hasher.update(values);
    hasher.finalize()
}

/// A record's values, if its checksum fits.
fn values(index: usize, record: &[u8]) -> Option<&[u8]> {
    let (values, sum) = record.split_last_chunk::<CHECKSUM>()?;
    (checksum(index, values) == u32::from_le_bytes(*sum)).then_some(values)
}

/// The number of claimed frames that are whole, up to the first that is not.
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
