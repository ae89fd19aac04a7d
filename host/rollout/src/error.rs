//! Errors.

use std::{io, path::PathBuf};

use thiserror::Error;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a policy can't be put in force. Each is one line: what, where, what to do. Nothing has changed then.
#[derive(Debug, Error)]
pub enum Error {
    /// It can't be loaded, or does not pass its gate.
    #[error(transparent)]
    Policy(#[from] tilewright_policy::PolicyError),
    /// A registry does not give it.
    #[error(transparent)]
    Registry(#[from] tilewright_registry::Error),
    /// A registry from which requests may not fetch policies.
    #[error(
        "policy oci://{reference}: the configuration allows no such registry: add it to [server] registries, or name the policy in [policies.NAME]"
    )]
    RegistryNotAllowed {
        /// The reference as given, without user information.
        reference: String,
    },
    /// A registry gives another policy or version than the one that was signed.
    #[error("policy {policy}: {mismatch}: ask for what was signed, or for a digest")]
    Mismatch {
        /// The policy's origin.
        policy: String,
        /// The difference.
        mismatch: String,
    },
    /// Its signature can't be read.
    #[error(transparent)]
    Signing(#[from] tilewright_signing::Error),
    /// Nobody trusted has signed it, and somebody has to.
    #[error("policy {policy}: {refusal}, and the configuration asks for signed ones (require-signed)")]
    Unsigned {
        /// Where it is from.
        policy: String,
        /// Why the signature does not do.
        refusal: tilewright_signing::Refusal,
    },
    /// It is another module than the one that was asked for.
    #[error(
        "policy {policy}: is {found}, where {wanted} is asked for: correct `digest`, or get the module that has it"
    )]
    OtherDigest {
        /// Where it is from.
        policy: String,
        /// What it has to be.
        wanted: String,
        /// What it is.
        found: String,
    },
    /// No policy of this name is in service.
    #[error("no policy '{name}' is in service: there are {}", known.join(", "))]
    UnknownPolicy {
        /// As asked for.
        name: String,
        /// Those in service.
        known: Vec<String>,
    },
    /// No route of this name.
    #[error("no route '{name}': there are {}", known.join(", "))]
    UnknownRoute {
        /// As asked for.
        name: String,
        /// The routes.
        known: Vec<String>,
    },
    /// No route takes such a job.
    #[error("no route takes this job ({case}): add one to [[routes]] without conditions, as the last")]
    NoRoute {
        /// The job's facts in words.
        case: String,
    },
    /// A module that nobody put there.
    #[error("no module {digest} is stored here: upload it first")]
    UnknownModule {
        /// As asked for.
        digest: String,
    },
    /// One swap comes after the other.
    #[error("policy {name}: another revision is being brought in: try again when it is in force")]
    Busy {
        /// The policy.
        name: String,
    },
    /// There is nothing to go back to.
    #[error("policy {name}: has no previous revision to roll back to")]
    NoPrevious {
        /// The policy.
        name: String,
    },
    /// The route has no canary, or none that is still on trial.
    #[error("route {name}: has no canary on trial")]
    NoCanary {
        /// The route.
        name: String,
    },
    /// The state kept across restarts was written by a newer program.
    #[error(
        "{}: was written by a newer Tilewright (version {found} of this file, {known} is known): update this one, or give [server] another data folder",
        path.display()
    )]
    Newer {
        /// The state file.
        path: PathBuf,
        /// The version of that file.
        found: u64,
        /// The newest version that this program knows.
        known: u32,
    },
    /// What has to be kept across restarts can't be written or read.
    #[error("{}: can't be {verb}", path.display())]
    Storage {
        /// The file.
        path: PathBuf,
        /// `read` or `written`.
        verb: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// The error in one line, for callers. Details from a registry, or from the way to it, would tell a stranger which
    /// services listen where: they are for the log alone.
    pub fn for_callers(&self) -> String {
        match self {
            Error::Registry(tilewright_registry::Error::Reference { .. }) => self.one_line(),
            Error::Registry(_) => "the registry does not give this policy: the server's log says why".into(),
            error => error.one_line(),
        }
    }

    /// The error with its causes, in one line.
    pub(crate) fn one_line(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(source) = cause {
            text.push_str(": ");
            text.push_str(&source.to_string());
            cause = source.source();
        }
        text.lines().collect::<Vec<_>>().join(", ")
    }

    /// Whether what was asked for is wrong, rather than the machine.
    pub fn is_input(&self) -> bool {
        !matches!(self, Error::Storage { .. } | Error::Policy(tilewright_policy::PolicyError::Sandbox { .. }))
    }
}
