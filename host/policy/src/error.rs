//! Errors of loading and configuring a policy. Later nothing fails: there is always the fallback
//! plan.

use std::{io, path::PathBuf, time::Duration};
use tilewright_wording::Remedy;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tilewright_plan::{FallbackReason, words::did_you_mean};

use crate::{limits::Limits, load::grants};

/// The reason why a policy can't be used, in one line. It names the policy if one is known, and a
/// remedy if there is one.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// Neither a shipped policy nor a file.
    #[error("unknown policy '{name}'{}: give a file that ends in .wasm, or one of {}", did_you_mean(name, known.iter().copied()), known.join(", "))]
    Unknown {
        /// As asked for.
        name: String,
        /// The names of the policies that ship.
        known: Vec<&'static str>,
    },
    /// The file can't be read.
    #[error("policy {}: can't be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is larger than any policy may be.
    #[error("policy {policy}: the file has {bytes} bytes, of {most} allowed")]
    TooLarge {
        /// The file or name.
        policy: String,
        /// The file's size, in bytes.
        bytes: u64,
        /// The most.
        most: usize,
    },
    /// The bytes are not WebAssembly.
    #[error("policy {policy}: not WebAssembly ({found}): give a component, or a core module built with the SDK")]
    NotWebAssembly {
        /// The file or name.
        policy: String,
        /// The likely meaning of the bytes.
        found: &'static str,
    },
    /// WebAssembly that is broken, or uses a feature that is off.
    #[error("policy {policy}: not a module that can be run here: {detail}")]
    Invalid {
        /// The file or name.
        policy: String,
        /// The message of the validator or the compiler, in one line.
        detail: String,
        /// The kind of fault.
        fault: Fault,
    },
    /// The guest imports something that policies do not get.
    #[error("policy {policy}: imports {}, which policies are not given: only {} are offered", imports.join(", "), offered.join(" and "))]
    ImportNotOffered {
        /// The file or name.
        policy: String,
        /// The names of the imports.
        imports: Vec<String>,
        /// The interfaces that the version of the contract offers.
        offered: &'static [&'static str],
    },
    /// The guest needs more than policies get unless a user grants it.
    #[error("policy {policy}: {why}: to grant it that, give {grant}")]
    Ungranted {
        /// The file or name.
        policy: String,
        /// The need.
        why: String,
        /// The option that grants it.
        grant: &'static str,
    },
    /// The guest lacks an export that every policy has.
    #[error("policy {policy}: does not export {}: build it against {}", exports.join(", "), contract_text(contract))]
    MissingExport {
        /// The file or name.
        policy: String,
        /// The names of the missing exports.
        exports: Vec<String>,
        /// The version of the contract that asks for them.
        contract: &'static str,
    },
    /// The guest speaks a version of the contract that this host does not.
    #[error(
        "policy {policy}: built for version {found} of the contract, but this program speaks {known}: build it for that, or use a newer program"
    )]
    UnknownContract {
        /// The file or name.
        policy: String,
        /// The versions that it exports.
        found: String,
        /// The versions that are known, the oldest first.
        known: String,
    },
    /// The guest failed while it was loaded.
    #[error("policy {policy}: failed in {during}: {detail}")]
    Failed {
        /// The file or name.
        policy: String,
        /// The call that failed.
        during: &'static str,
        /// The failure, in one line.
        detail: String,
    },
    /// The description that the policy gives of itself can't be used.
    #[error("policy {policy}: describes itself with {detail}")]
    Description {
        /// The file or name.
        policy: String,
        /// The fault.
        detail: String,
    },
    /// A setting that the policy does not have.
    #[error("policy {policy} has no setting '{name}'{}: {}", did_you_mean(name, known.iter().map(String::as_str)), known_settings(known))]
    UnknownSetting {
        /// The policy.
        policy: String,
        /// As asked for.
        name: String,
        /// The names of its settings.
        known: Vec<String>,
    },
    /// A setting given as something other than its declared type.
    #[error("policy {policy}: setting {name}={value} is not {expected}")]
    SettingType {
        /// The policy.
        policy: String,
        /// The setting.
        name: String,
        /// As given.
        value: String,
        /// The expected value, with its article.
        expected: &'static str,
    },
    /// A setting given without a value.
    #[error("setting '{given}' is not of the form KEY=VALUE")]
    SettingForm {
        /// As given.
        given: String,
    },
    /// The policy refuses its settings.
    #[error("policy {policy}: {reason}")]
    Refused {
        /// The policy.
        policy: String,
        /// The policy's message.
        reason: String,
    },
    /// The policy fails golden requests, and only policies that pass are wanted.
    #[error(
        "policy {policy}: {fails}, and only policies that pass are put to work here: see 'tilewright policy check {policy}'"
    )]
    NotAdmitted {
        /// The file or name.
        policy: String,
        /// The failed requests, in a few words.
        fails: String,
    },
    /// The calls of one command take too long together, though no single call does.
    #[error(
        "policy {policy}: takes more than {} s of processor time for all that is asked of it here: see 'tilewright policy bench'",
        most.as_secs_f64()
    )]
    TooSlow {
        /// The policy.
        policy: String,
        /// The most.
        most: Duration,
    },
    /// The sandbox itself can't be set up on this machine.
    #[error("the policy sandbox can't be set up: {detail}")]
    Sandbox {
        /// The cause, in one line.
        detail: String,
    },
}

/// The reason why a module can't be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// It is no WebAssembly of any kind: damaged, cut short, or never valid.
    Broken,
    /// It uses features that are off, by the names that a policy's author knows.
    Features(Vec<String>),
    /// It is valid, but not allowed as a policy: too costly to compile, or linked in another way.
    Other,
}

fn contract_text(version: &str) -> String {
    format!("wit/policy.wit, tilewright:policy@{version}")
}

fn known_settings(known: &[String]) -> String {
    if known.is_empty() { "it has none".into() } else { format!("it has {}", known.join(", ")) }
}

/// The beginning of wasmtime's message about more instances, tables or memories than allowed.
const LIMIT: &str = "resource limit exceeded";

impl PolicyError {
    /// `during` of a failure while the policy is instantiated.
    pub const START: &'static str = "its start";

    /// `grant` of what needs as much as a language's runtime.
    pub const RUNTIME: &'static str = grants::RUNTIME;

    /// A failure to load a policy. If more memory or instances would help, it names the option that
    /// grants them.
    pub(crate) fn from_failure(
        policy: &str,
        limits: &Limits,
        during: &'static str,
        reason: FallbackReason,
        detail: &str,
    ) -> Self {
        let mut text = format!("{detail} ({reason})");
        let is_usual = limits.memory_bytes <= Limits::default().memory_bytes;
        if is_usual && (reason == FallbackReason::OutOfMemory || detail.starts_with(LIMIT)) {
            text.push_str(&format!("; {}", Remedy::GrantMemory));
        }
        PolicyError::Failed { policy: policy.into(), during, detail: text }
    }

    /// The error without the policy's name, for texts that name it already.
    pub fn bare(&self) -> String {
        if let PolicyError::Invalid { detail, .. } = self {
            return detail.clone();
        }
        let text = self.to_string();
        let after = text.strip_prefix("policy ").and_then(|text| text.split_once(": "));
        after.map_or(text.clone(), |(_, words)| words.to_owned())
    }
}
