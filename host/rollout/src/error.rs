//! Errors.

use std::{io, path::PathBuf};

use thiserror::Error;
use tilewright_plan::words::did_you_mean;
use tilewright_policy::PolicyError;

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a policy can't be put in force. Each is one line: what, where, what to do.
/// Nothing has changed then.
#[derive(Debug, Error)]
pub enum Error {
    /// It can't be loaded, or fails its gate.
    #[error(transparent)]
    Policy(#[from] PolicyError),
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
    /// The policy's signature can't be read.
    #[error(transparent)]
    Signing(#[from] tilewright_signing::Error),
    /// No trusted key has signed it, and one has to.
    #[error("policy {policy}: {refusal}, and the configuration asks for signed ones (require-signed)")]
    Unsigned {
        /// The policy's origin.
        policy: String,
        /// The reason why the signature is refused.
        refusal: tilewright_signing::Refusal,
    },
    /// The text that came as a module's signature is not one.
    #[error("the signature: {detail}: give the module's whole .minisig file, as minisign writes it")]
    Garbled {
        /// The fault.
        detail: String,
    },
    /// The policy's digest is not the expected one.
    #[error(
        "policy {policy}: is {found}, where {wanted} is asked for: correct `digest`, or get the module that has it"
    )]
    OtherDigest {
        /// The policy's origin.
        policy: String,
        /// The expected digest.
        wanted: String,
        /// The policy's digest.
        found: String,
    },
    /// No policy of this name is in service.
    #[error("no policy '{name}' is in service: there are {}", known.join(", "))]
    UnknownPolicy {
        /// As asked for.
        name: String,
        /// The policies in service.
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
    /// A module that is not stored.
    #[error("no module {digest} is stored here: upload it first")]
    UnknownModule {
        /// As asked for.
        digest: String,
    },
    /// Another swap of the policy is under way.
    #[error("policy {name}: another revision is being brought in: try again when it is in force")]
    Busy {
        /// The policy.
        name: String,
    },
    /// There is no previous revision.
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
    /// State that outlives restarts can't be written or read.
    #[error("{}: can't be {verb}", path.display())]
    Storage {
        /// The file.
        path: PathBuf,
        /// `read` or `written`.
        verb: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    /// The error in one line, for callers, in terms of the API rather than of the command line.
    pub fn for_callers(&self) -> String {
        let line = match self {
            error if error.is_for_the_log() => {
                "the registry does not give this policy: the server's log says why".into()
            }
            Error::Policy(error) => policy_line(error).unwrap_or_else(|| self.one_line()),
            error => error.one_line(),
        };
        without_error_numbers(&line)
    }

    /// True if the details are for the log alone: those from a registry, or from the way to it,
    /// would tell a stranger which services listen where.
    pub(crate) fn is_for_the_log(&self) -> bool {
        matches!(self, Error::Registry(error) if !matches!(error, tilewright_registry::Error::Reference { .. }))
    }

    /// The error with its causes, in one line.
    pub(crate) fn one_line(&self) -> String {
        tilewright_wording::with_causes(self).lines().collect::<Vec<_>>().join(", ")
    }

    /// True if the request is wrong, false if the machine fails.
    pub fn is_input(&self) -> bool {
        !matches!(self, Error::Storage { .. } | Error::Policy(PolicyError::Sandbox { .. }))
    }
}

/// A policy's error in terms of the API; none if its own words name nothing of the command line.
fn policy_line(error: &PolicyError) -> Option<String> {
    Some(match error {
        PolicyError::Unknown { name, known } => format!(
            "source: unknown policy '{name}'{}: give one of {}, or oci://REGISTRY/NAME:TAG",
            did_you_mean(name, known.iter().copied()),
            known.join(", ")
        ),
        PolicyError::Ungranted { policy, why, .. } => format!(
            "policy {policy}: {why}: name it as a file in the server's configuration, with `memory` and `wasi` beside it"
        ),
        PolicyError::NotAdmitted { policy, fails } => format!(
            "policy {policy}: {fails}, and only policies that pass are put to work here: \
             POST /v1/policies/NAME/check tells all that it fails"
        ),
        PolicyError::TooSlow { policy, most } => format!(
            "policy {policy}: takes more than {} s of processor time for all that is asked of it here: \
             one that does less in each call may pass",
            most.as_secs_f64()
        ),
        _ => return None,
    })
}

/// A line without the system's numbers of errors, ` (os error 2)`, which say nothing to callers.
pub fn without_error_numbers(line: &str) -> String {
    const BEFORE: &str = " (os error ";
    let mut parts = line.split(BEFORE);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => text.push_str(rest),
            _ => {
                text.push_str(BEFORE);
                text.push_str(part);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn callers_are_told_in_terms_of_the_api() {
        let policy = || "module sha256:0123456789ab".to_owned();
        for (error, words) in [
            (
                PolicyError::Unknown { name: "fixd".into(), known: vec!["fixed"] },
                "(did you mean fixed?): give one of fixed,",
            ),
            (
                PolicyError::Ungranted { policy: policy(), why: "imports a clock".into(), grant: "--wasi inert" },
                "`wasi`",
            ),
            (PolicyError::NotAdmitted { policy: policy(), fails: "fails 1 of 2".into() }, "/v1/policies/NAME/check"),
            (PolicyError::TooSlow { policy: policy(), most: Duration::from_secs(9) }, "more than 9 s"),
            (
                PolicyError::Unreadable { path: "own.wasm".into(), source: io::Error::from_raw_os_error(2) },
                "No such file",
            ),
        ] {
            let line = Error::from(error).for_callers();
            assert!(line.contains(words), "{line}");
            assert!(["'tilewright", "--", "os error"].iter().all(|ours| !line.contains(ours)), "{line}");
        }
    }

    #[test]
    fn numbers_of_errors_go_and_nothing_else_does() {
        for (line, expected) in [
            ("a: can't be read: No such file (os error 2)", "a: can't be read: No such file"),
            ("gone (os error 2): at /a (os error 13)!", "gone: at /a!"),
            ("a file (os error x) of (os error 2", "a file (os error x) of (os error 2"),
        ] {
            assert_eq!(without_error_numbers(line), expected);
        }
    }
}
