//! Errors of a policy's project.

use std::{io, path::PathBuf};

use thiserror::Error;

use tilewright_policy::PolicyError;

/// The reason why a project can't be created or built. Each is one line, with its causes after it,
/// that names the remedy.
#[derive(Debug, Error)]
pub enum ProjectError {
    /// An invalid name.
    #[error("'{name}' can't be a policy's name: {why}")]
    Name {
        /// As given.
        name: String,
        /// The fault.
        why: &'static str,
    },
    /// The project's folder exists already.
    #[error("{}: exists already; give another name", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A file or folder can't be read or written.
    #[error("{}: can't be read or written", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A folder without a file that identifies a policy's project.
    #[error("{}: no policy project: none of {} is in it; 'tilewright policy new' begins one", path.display(), markers.join(", "))]
    NoProject {
        /// The folder.
        path: PathBuf,
        /// The files that would identify one.
        markers: Vec<String>,
    },
    /// A program that building needs.
    #[error("{what} is missing: {advice}")]
    Missing {
        /// The program's description, for people.
        what: &'static str,
        /// The command that installs it.
        advice: String,
    },
    /// The tool-chain was run and failed.
    #[error("{tool} failed ({status}): {}", said.last().map_or("it said nothing", String::as_str))]
    Tool {
        /// The program.
        tool: String,
        /// The program's exit status.
        status: String,
        /// The last lines of the program's output.
        said: Vec<String>,
    },
    /// The tool-chain succeeded, but its output is missing or ambiguous.
    #[error("{tool} made no policy: {detail}")]
    NoOutput {
        /// The program.
        tool: String,
        /// The missing part, and the remedy.
        detail: String,
    },
    /// The output is not a policy.
    #[error("built, but not usable")]
    Policy(#[from] PolicyError),
    /// The contract's bindings can't be generated.
    #[error("the contract's bindings can't be generated: {detail}")]
    Bindings {
        /// The cause.
        detail: String,
    },
}

impl ProjectError {
    /// True if the arguments or the project are wrong, false if the work failed.
    pub fn is_input(&self) -> bool {
        matches!(self, Self::Name { .. } | Self::Exists { .. } | Self::NoProject { .. })
    }

    /// The last lines of the tool-chain that failed.
    pub fn last_lines(&self) -> &[String] {
        match self {
            Self::Tool { said, .. } => said,
            _ => &[],
        }
    }

    /// A function for `map_err` on operations on a file.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let sandbox = PolicyError::Sandbox { detail: "no memory".into() };
        let file = ProjectError::file("/nowhere")(io::Error::other("no such thing"));
        for (error, cause) in [(ProjectError::from(sandbox), "no memory"), (file, "no such thing")] {
            assert!(!error.to_string().contains(cause), "{error}");
            assert!(error.source().is_some_and(|source| source.to_string().contains(cause)), "{error}");
        }
    }
}
