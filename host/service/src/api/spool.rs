//! What is uploaded, on its way into a file.

use tempfile::NamedTempFile;
use tokio::{io::AsyncWriteExt, task::spawn_blocking};

use crate::{
    App,
    problem::{Outcome, Problem},
};

/// A file that is being written; gone where it is not finished.
pub struct Spool {
    file: NamedTempFile,
    writing: tokio::fs::File,
    /// Written so far.
    pub bytes: u64,
}

impl Spool {
    /// Begins one.
    ///
    /// # Errors
    /// The disk does not take it.
    pub async fn new(app: &App) -> Outcome<Self> {
        let house = app.house.clone();
        let file = spawn_blocking(move || house.upload()).await??;
        let again = file.reopen().map_err(|error| Problem::unable(&error))?;
        Ok(Self { file, writing: tokio::fs::File::from_std(again), bytes: 0 })
    }

    /// Writes some more.
    ///
    /// # Errors
    /// The disk does not take it.
    pub async fn write(&mut self, chunk: &[u8]) -> Outcome<()> {
        self.bytes += chunk.len() as u64;
        self.writing.write_all(chunk).await.map_err(|error| Problem::unable(&error))
    }

    /// The file, whole.
    ///
    /// # Errors
    /// The disk does not take it.
    pub async fn finish(mut self) -> Outcome<NamedTempFile> {
        self.writing.flush().await.map_err(|error| Problem::unable(&error))?;
        Ok(self.file)
    }
}
