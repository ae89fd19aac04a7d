//! Errors.

use std::{io, path::PathBuf};

use thiserror::Error;
use tilewright_files::Quote;
use tilewright_plan::{Failure, words::with_noun};

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason that the server can't start or could not do something. Each is one line: what, where,
/// what to do.
#[derive(Debug, Error)]
pub enum Error {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] tilewright_config::Error),
    /// A policy can't be put in force.
    #[error(transparent)]
    Rollout(#[from] tilewright_rollout::Error),
    /// A model's file, a latent or a device does not serve.
    #[error(transparent)]
    Pipeline(#[from] tilewright_pipeline::Error),
    /// An output can't be written.
    #[error(transparent)]
    Media(#[from] tilewright_media::Error),
    /// The database can't be read or written.
    #[error("{}: {source}", path.display())]
    Store {
        /// The database.
        path: PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
    /// A file or folder can't be read or written.
    #[error("{}: can't be {verb}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// `read`, `written` …
        verb: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Another server works in the data folder.
    #[error(
        "{}: another server works here{}: stop it, or give [server] another data folder",
        folder.display(),
        process.map_or_else(String::new, |process| format!(" (process {process})"))
    )]
    InUse {
        /// The data folder.
        folder: PathBuf,
        /// The other server's process, if the system can say it.
        process: Option<i32>,
    },
    /// The server can't listen on an address.
    #[error("can't listen on {address}: choose another [server] listen")]
    Listen {
        /// The address.
        address: tilewright_config::Address,
        /// The cause.
        source: io::Error,
    },
    /// A certificate, key or token does not serve.
    #[error("{}: {reason}", path.display())]
    Credential {
        /// The file.
        path: PathBuf,
        /// The fault, and the contents expected.
        reason: String,
    },
    /// The database was written by a newer program.
    #[error("{}: was written by a newer Tilewright (version {found} of its tables, {known} is known): update this one, or give [server] another data folder", path.display())]
    NewerStore {
        /// The database.
        path: PathBuf,
        /// The version of its tables.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// A configured model, or a part of it, is not to be found.
    #[error("[models.{model}]: {}", one_line(reason))]
    Model {
        /// The model's name.
        model: String,
        /// The cause, which the words above tell with its own causes.
        reason: Box<tilewright_pipeline::Error>,
    },
    /// A model's configured family is unknown.
    #[error("{}: [models.{model}] family: {reason}", path.display())]
    Family {
        /// The model's file.
        path: PathBuf,
        /// The model's name.
        model: String,
        /// The reason, with the known families.
        reason: String,
    },
    /// A device can't be used any more by this process.
    #[error("{0}; its jobs begin anew after the next start")]
    LostDevice(String),
    /// There is no folder to keep anything in.
    #[error("there is no home folder to keep jobs in: give [server] data")]
    NoHome,
    /// The metrics can't be set up.
    #[error("the metrics can't be set up")]
    Metrics(#[from] prometheus::Error),
    /// Traces can't be sent.
    #[error("traces can't be sent to {endpoint}: {reason}")]
    Traces {
        /// The address of the collector.
        endpoint: String,
        /// The cause.
        reason: String,
    },
}

impl Error {
    /// The fault of a write: true if the disk is full, false if the write failed otherwise, none if
    /// the error is of another kind.
    pub fn write_fault(&self) -> Option<bool> {
        use rusqlite::ErrorCode::{CannotOpen, DiskFull, ReadOnly, SystemIoFailure};
        match self {
            Error::Store { source, .. } => match source.sqlite_error_code()? {
                DiskFull => Some(true),
                SystemIoFailure | ReadOnly | CannotOpen => Some(false),
                _ => None,
            },
            Error::File { verb: "written" | "made", source, .. }
            | Error::Rollout(tilewright_rollout::Error::Storage { verb: "written", source, .. }) => {
                Some(tilewright_rollout::is_full(source))
            }
            _ => None,
        }
    }

    /// True if the configuration is wrong, rather than the machine.
    pub fn is_input(&self) -> bool {
        match self {
            Error::Config(_)
            | Error::Credential { .. }
            | Error::NewerStore { .. }
            | Error::Family { .. }
            | Error::NoHome
            | Error::Traces { .. } => true,
            Error::Model { reason, .. } => reason.is_input(),
            Error::Rollout(error) => error.is_input(),
            Error::Pipeline(error) => error.is_input(),
            Error::Media(error) => error.is_input(),
            Error::Store { .. }
            | Error::File { .. }
            | Error::InUse { .. }
            | Error::Listen { .. }
            | Error::LostDevice(_)
            | Error::Metrics(_) => false,
        }
    }
}

/// The error of a job's work in one line, in terms of the API: the engine's own advice is for the
/// command line.
pub(crate) fn decode_line(error: &tilewright_engine::Error) -> String {
    let tilewright_engine::Error::Exhausted { attempts, last, .. } = error else { return one_line(error) };
    let advice = match last {
        Failure::NonFinite { .. } => {
            "a policy that asks for f32 may do it, unless the latent or the model's weights are damaged"
        }
        Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
            "raise memory_limit_bytes, as far as the route and the device allow, or swap to a policy whose plans hold less"
        }
    };
    format!("gave up after {}, the last: {last}: {advice}", with_noun(*attempts, "attempt"))
}

/// An error and its causes, in one line. It quotes no file that is not what it should be: such a
/// file may be anybody's, and the line may be for somebody else.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause.filter(|cause| !cause.is::<Quote>()) {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(": ").chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_was_given_up_says_why_without_options_of_the_command_line() {
        for (last, words) in [
            (Failure::OverLimit { bytes: 1 << 20 }, "raise memory_limit_bytes"),
            (Failure::NonFinite { values: 3 }, "3 values are NaN or infinite: a policy that asks for f32"),
        ] {
            let advice = "raise --memory-limit, or try --policy fixed".to_owned();
            let line = decode_line(&tilewright_engine::Error::Exhausted { attempts: 6, last, advice });
            assert!(line.starts_with("gave up after 6 attempts, the last: ") && line.contains(words), "{line}");
            assert!(!line.contains("--"), "{line}");
        }
    }
}
