//! Uploads on their way into a file.

use std::{io, sync::Arc};

use tempfile::NamedTempFile;
use tilewright_rollout::is_full;
use tokio::io::AsyncWriteExt;

use crate::{
    accept::Refusal,
    app::App,
    problem::{ApiResult, Problem},
    state::ServerState,
};

/// A file that is being written; removed unless it is finished.
pub struct Spool {
    server: Arc<ServerState>,
    file: NamedTempFile,
    writing: tokio::fs::File,
    /// Bytes written so far.
    pub bytes: u64,
}

impl Spool {
    /// Begins a file.
    ///
    /// # Errors
    /// The disk does not take it.
    pub async fn new(app: &App) -> ApiResult<Self> {
        let file = app.blocking(|app| Ok(app.server.create_upload()?)).await?;
        let server = app.server.clone();
        server.disk.step().map_err(|error| unwritten(&server, &error))?;
        let again = file.reopen().map_err(|error| Problem::internal(&error))?;
        Ok(Self { server, file, writing: tokio::fs::File::from_std(again), bytes: 0 })
    }

    /// Appends a chunk.
    ///
    /// # Errors
    /// The disk does not take it.
    pub async fn write(&mut self, chunk: &[u8]) -> ApiResult<()> {
        self.bytes += chunk.len() as u64;
        self.writing.write_all(chunk).await.map_err(|error| unwritten(&self.server, &error))
    }

    /// Appends a chunk of an upload that may have `most` bytes in all.
    ///
    /// # Errors
    /// It has more, or the disk does not take it.
    pub async fn write_within(&mut self, chunk: &[u8], most: u64) -> ApiResult<()> {
        if self.bytes + chunk.len() as u64 > most {
            self.server.metrics.count_refused("too_large");
            return Err(Refusal::TooLarge(most).into());
        }
        self.write(chunk).await
    }

    /// Ends the writing and returns the whole file.
    ///
    /// # Errors
    /// The disk does not take it.
    pub async fn finish(mut self) -> ApiResult<NamedTempFile> {
        self.writing.flush().await.map_err(|error| unwritten(&self.server, &error))?;
        Ok(self.file)
    }
}

/// The answer to an upload that can't be written. Readiness says so, too, until the disk takes
/// writes again.
pub fn unwritten(server: &ServerState, error: &io::Error) -> Problem {
    if error.kind() == io::ErrorKind::FileTooLarge {
        // Nothing is wrong with the disk, and a later try would end the same.
        return Problem::too_large("no file may be that large on the server: send less at once");
    }
    server.disk.note(is_full(error), error.to_string());
    Problem::not_written(is_full(error))
}
