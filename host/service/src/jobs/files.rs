//! The files of jobs: one folder per job, with the files that it reads and its results.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tilewright_pipeline::KeptSample;
use tilewright_rollout::{Disk, without_error_numbers};

use super::{
    inputs::{Input, Uploads},
    profiles::is_profiles,
};
use crate::{Error, Result};

/// The name of a sample's preview.
const PREVIEW: &str = "preview.png";

/// The name of the latent of the picture that a job begins with.
const START: &str = "start.safetensors";

/// The name of a small picture of a job's result.
const THUMBNAIL: &str = "thumbnail.png";

/// The names of a sample's result; of a job from a prompt it is the input of the decode.
const LATENTS: [&str; 3] = ["result.latent", "result.safetensors", "latent"];

/// The most tries to remove a folder in which files come into being.
const MOST_TRIES: u32 = 10;

/// The folders below the server's data.
#[derive(Clone, Debug)]
pub struct JobFiles {
    data: PathBuf,
    disk: Disk,
}

/// True of the folder that keeps the last finished step of a sample.
fn is_steps(path: &Path) -> bool {
    LATENTS.iter().any(|name| KeptSample::folder_of(Path::new(name)).file_name() == path.file_name())
}

impl JobFiles {
    /// Makes a folder if it is missing, for the user alone.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn create_folder(path: &Path, disk: &Disk) -> Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        if path.is_dir() {
            return Ok(());
        }
        let make = || -> io::Result<()> {
            disk.step()?;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
            disk.sync_folder(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))
        };
        disk.track(path, make()).map_err(|source| Error::File { path: path.to_owned(), verb: "made", source })
    }

    /// Makes the folders if they are missing, and removes uploads that were cut off.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn open(data: &Path, disk: Disk) -> Result<Self> {
        let files = Self { data: data.to_owned(), disk };
        Self::create_folder(&files.jobs(), &files.disk)?;
        Self::create_folder(&files.incoming(), &files.disk)?;
        // The folder itself stays: a full disk may not take another.
        for left in fs::read_dir(files.incoming()).into_iter().flatten().flatten() {
            let _ = fs::remove_file(left.path());
        }
        Ok(files)
    }

    /// The writer of these files.
    pub const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The server's folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Dumps of the watchdog.
    pub fn dumps(&self) -> PathBuf {
        self.data.join("dumps")
    }

    /// The database of measurements.
    pub fn history(&self) -> PathBuf {
        self.data.join("history.sqlite")
    }

    /// A line for callers: without the path of the server's folder, which does not concern them,
    /// and without the system's numbers of errors.
    pub fn strip_data_folder(&self, line: &str) -> String {
        without_error_numbers(&line.replace(&format!("{}/", self.data.display()), ""))
    }

    fn jobs(&self) -> PathBuf {
        self.data.join("jobs")
    }

    /// The folder of uploads that no job has adopted yet.
    pub fn incoming(&self) -> PathBuf {
        self.data.join("incoming")
    }

    /// A job's folder; its name is the job's id, a UUID.
    pub fn job_folder(&self, id: &str) -> PathBuf {
        self.jobs().join(id)
    }

    /// The finished steps of a job's sample that are kept; none if there are none.
    pub fn kept_steps(&self, id: &str) -> Option<u32> {
        LATENTS.iter().find_map(|name| KeptSample::kept_steps(&self.job_folder(id).join(name)))
    }

    /// A file that a job reads.
    pub fn input(&self, id: &str, input: Input) -> PathBuf {
        self.job_folder(id).join(input.name())
    }

    /// The results of a job with `samples` samples, in order, as `tilewright_media` names them.
    pub fn results(&self, id: &str, ending: &str, samples: u32) -> Vec<PathBuf> {
        let folder = self.job_folder(id);
        if samples <= 1 || ["safetensors", "latent"].contains(&ending) {
            return vec![folder.join(format!("result.{ending}"))];
        }
        let digits = samples.to_string().len().max(2);
        (1..=samples).map(|number| folder.join(format!("result-{number:0digits$}.{ending}"))).collect()
    }

    /// Moves the files of a request into a job's folder.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn adopt(&self, id: &str, uploads: Uploads) -> Result<()> {
        let folder = self.job_folder(id);
        let mut path = folder.clone();
        let adopt = || -> io::Result<()> {
            self.disk.step()?;
            fs::create_dir(&folder)?;
            for (input, upload) in uploads {
                path = self.input(id, input);
                self.disk.step()?;
                upload.as_file().sync_all()?;
                self.disk.step()?;
                upload.persist(&path).map_err(|error| error.error)?;
            }
            // The name has to survive a crash, too.
            self.disk.sync_folder(&folder)?;
            self.disk.sync_folder(&self.jobs())
        };
        let adopted = adopt();
        self.disk.track(&folder, adopted).map_err(|source| Error::File { path, verb: "written", source })
    }

    /// Syncs results: they survive a power failure after this has returned.
    ///
    /// # Errors
    /// The disk does not take them.
    pub fn sync_results(&self, id: &str, files: &[PathBuf]) -> io::Result<()> {
        let folder = self.job_folder(id);
        let sync = || -> io::Result<()> {
            for file in files {
                self.disk.step()?;
                fs::File::open(file)?.sync_all()?;
            }
            self.disk.sync_folder(&folder)
        };
        self.disk.track(&folder, sync())
    }

    /// The picture of a sample so far.
    pub fn preview(&self, id: &str) -> PathBuf {
        self.job_folder(id).join(PREVIEW)
    }

    /// The latent of the picture that a job begins with.
    pub fn start(&self, id: &str) -> PathBuf {
        self.job_folder(id).join(START)
    }

    /// The small picture of a job's first result.
    pub fn thumbnail(&self, id: &str) -> PathBuf {
        self.job_folder(id).join(THUMBNAIL)
    }

    /// Removes everything written of a job's results, but for the steps that a sample goes on from
    /// and the profiles of the stages that have ended.
    pub fn forget_results(&self, id: &str) {
        for entry in fs::read_dir(self.job_folder(id)).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if Input::named(name).is_none() && name != START && !is_steps(&path) && !is_profiles(name) {
                // A file that can't be removed is overwritten.
                let _ = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            }
        }
    }

    /// Removes the files that a job read, the steps that it kept and the events of its profiles:
    /// nothing needs them once it has ended, but for the picture that it began with, and its mask:
    /// it may be made again from them.
    pub fn forget_inputs(&self, id: &str) {
        let began = self.input(id, Input::Image).is_file();
        self.forget_events(id);
        let is_kept = |input: Input| began && [Input::Image, Input::Mask].contains(&input);
        for entry in fs::read_dir(self.job_folder(id)).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name == PREVIEW || name == START || Input::named(name).is_some_and(|input| !is_kept(input)) {
                let _ = fs::remove_file(&path);
            } else if is_steps(&path) {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }

    /// Removes everything of a job. Files that are being read stay for their readers.
    pub fn forget(&self, id: &str) {
        let folder = self.job_folder(id);
        // A thumbnail may come into being meanwhile.
        let again = |error: &io::Error| error.kind() == io::ErrorKind::DirectoryNotEmpty;
        let mut removed = fs::remove_dir_all(&folder);
        for _ in 1..MOST_TRIES {
            if removed.as_ref().is_err_and(again) {
                removed = fs::remove_dir_all(&folder);
            }
        }
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %folder.display(), "a job's files can't be removed");
        }
    }

    /// The ids of the jobs that have a folder.
    pub fn ids(&self) -> Vec<String> {
        let entries = fs::read_dir(self.jobs()).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}
