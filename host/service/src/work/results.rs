//! The results of a job: their names, and what is made of a result that can't be written.

use std::{fs, io, path::PathBuf};

use tilewright_rollout::is_full;
use tilewright_service_api::JobResult;

use super::{JobEnd, executed::Execution};
use crate::error::one_line;

impl Execution<'_> {
    /// The end of a job whose result could not be written. The job is done again if the disk was
    /// full; any other cause would be there again at the next try.
    pub fn classify_write_error(&self, error: &(dyn std::error::Error + 'static)) -> JobEnd {
        let mut line = one_line(error);
        if error.is::<io::Error>() {
            // The system's message does not name the file.
            line = format!("the result can't be written: {line}");
        }
        let causes = || std::iter::successors(Some(error), |error| error.source());
        let is_any =
            |is: fn(&io::Error) -> bool| causes().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is));
        if is_any(is_full) {
            self.turn.server.disk.note(true, line.clone());
            return JobEnd::Unwritten(line);
        }
        if is_any(|error: &io::Error| error.kind() == io::ErrorKind::FileTooLarge) {
            let advice = "no file may be that large on the server: ask for a smaller format, or send less at once";
            return JobEnd::Failed(format!("{line}: {advice}"));
        }
        // An encoder in another process reports a full disk in its own words, so the disk is
        // probed.
        match self.turn.server.disk.probe(&self.turn.server.jobs.files.job_folder(&self.stored.job.id)) {
            Err(error) if is_full(&error) => JobEnd::Unwritten(line),
            _ => JobEnd::Failed(line),
        }
    }

    /// The path of the job's result.
    ///
    /// # Errors
    /// The disk takes no writes.
    pub fn output(&self) -> Result<PathBuf, JobEnd> {
        self.turn.server.disk.step().map_err(|error| self.classify_write_error(&error))?;
        let name = format!("result.{}", self.stored.job.format.ending());
        Ok(self.turn.server.jobs.files.job_folder(&self.stored.job.id).join(name))
    }

    /// Syncs the results before any caller sees them, so that they survive a power failure.
    ///
    /// # Errors
    /// They can't be written.
    pub fn sync_results(&self, files: &[PathBuf]) -> Result<Vec<JobResult>, JobEnd> {
        self.turn
            .server
            .jobs
            .files
            .sync_results(&self.stored.job.id, files)
            .map_err(|error| self.classify_write_error(&error))?;
        let content_type = self.stored.job.format.content_type();
        let results = files.iter().enumerate().map(|(sample, path)| {
            let found = fs::metadata(path);
            let bytes = found
                .map_err(|error| JobEnd::Failed(format!("the result's file is missing after it was written: {error}")))?
                .len();
            Ok(JobResult { sample: sample as u32, bytes, content_type: content_type.into() })
        });
        results.collect()
    }
}
