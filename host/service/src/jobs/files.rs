//! Where a job's files are: one folder per job, with its latent and its results.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{Error, Result};

/// The folders below the server's data.
#[derive(Clone, Debug)]
pub struct Files {
    data: PathBuf,
}

impl Files {
    /// Makes a folder where it is missing, for the user alone.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn folder(path: &Path) -> Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|source| Error::File { path: path.to_owned(), verb: "made", source })
    }

    /// Makes the folders where they are missing, and removes what uploads left that were cut off.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn open(data: &Path) -> Result<Self> {
        let files = Self { data: data.to_owned() };
        let _ = fs::remove_dir_all(files.incoming());
        Self::folder(&files.jobs())?;
        Self::folder(&files.incoming())?;
        Ok(files)
    }

    /// The server's folder.
    pub fn data(&self) -> &Path {
        &self.data
    }

    fn jobs(&self) -> PathBuf {
        self.data.join("jobs")
    }

    /// Where uploads are written until they are a job's.
    pub fn incoming(&self) -> PathBuf {
        self.data.join("incoming")
    }

    /// A job's folder; its name is a UUID of ours.
    pub fn of(&self, id: &str) -> PathBuf {
        self.jobs().join(id)
    }

    /// A job's latent.
    pub fn latent(&self, id: &str) -> PathBuf {
        self.of(id).join("latent")
    }

    /// The results of a job with so many samples, in order, as `tilewright_media` names them.
    pub fn results(&self, id: &str, ending: &str, samples: u32) -> Vec<PathBuf> {
        let folder = self.of(id);
        if samples <= 1 || ending == "safetensors" {
            return vec![folder.join(format!("result.{ending}"))];
        }
        let digits = samples.to_string().len().max(2);
        (1..=samples).map(|number| folder.join(format!("result-{number:0digits$}.{ending}"))).collect()
    }

    /// Gives a job's folder its latent: the file is renamed.
    ///
    /// # Errors
    /// [`Error::File`]
    pub fn adopt(&self, id: &str, latent: tempfile::NamedTempFile) -> Result<()> {
        let (folder, path) = (self.of(id), self.latent(id));
        let adopted = || -> io::Result<()> {
            fs::create_dir(&folder)?;
            latent.as_file().sync_all()?;
            latent.persist(&path).map_err(|error| error.error)?;
            // The name has to be there after a crash, too.
            fs::File::open(&folder)?.sync_all()?;
            fs::File::open(self.jobs())?.sync_all()
        };
        adopted().map_err(|source| Error::File { path, verb: "written", source })
    }

    /// Removes a job's latent, which nothing needs once the job has ended.
    pub fn forget_latent(&self, id: &str) {
        let _ = fs::remove_file(self.latent(id));
    }

    /// Removes everything of a job.
    pub fn forget(&self, id: &str) {
        let folder = self.of(id);
        if let Err(error) = fs::remove_dir_all(&folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %folder.display(), "a job's files can't be removed");
        }
    }

    /// Jobs that there are folders of.
    pub fn ids(&self) -> Vec<String> {
        let entries = fs::read_dir(self.jobs()).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}
