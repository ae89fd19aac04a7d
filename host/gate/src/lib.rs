//! The gate that every policy passes before it is put to work. It checks, in order:
//!
//! 1. The file is WebAssembly.
//! 2. It uses no feature that is off.
//! 3. Its imports and exports are those of the contract.
//! 4. It starts within the limits.
//! 5. It describes itself.
//! 6. It takes its settings.
//! 7. It answers the golden requests.
//!
//! [`check`] returns the whole verdict. [`admit`] puts a policy to work and caches the verdict. A
//! policy that fails golden requests still decides, under the sandbox's protection, unless only
//! policies that pass are wanted. The shipped policies pass in tests, and not again on a user's
//! machine.

#![deny(unsafe_code)]

mod finding;
pub mod golden;
mod judge;
mod machines;
mod refusal;
mod trial;
mod verdict;
mod verdict_cache;
pub mod work;

use std::{borrow::Cow, path::Path, time::Instant};

use tilewright_files::digest::sha256;
use tilewright_policy::{LoadedPolicy, Policy, PolicyError, PolicyHost, shipped_module, shipped_names};
use tracing::subscriber::{NoSubscriber, with_default};

pub use finding::{Call, Finding, Problem, Severity, Step};
pub use verdict::{Counts, GoldenSet, StageSet, State, StepState, Verdict, Worst};

use trial::Trial;

/// The requirements on a policy from a file before it is put to work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// A policy that fails golden requests is refused instead of only warned about.
    pub require_checked: bool,
}

/// A policy that was put to work.
pub struct AdmittedPolicy {
    /// The policy, ready to decide.
    pub policy: Policy,
    /// The gate's verdict; none for the shipped policies.
    pub verdict: Option<Verdict>,
}

impl AdmittedPolicy {
    /// A line for the user, if the policy does not pass.
    pub fn warning(&self) -> Option<String> {
        let verdict = self.verdict.as_ref().filter(|verdict| !verdict.passes())?;
        let policy = &verdict.policy;
        Some(format!("{policy} {}: see 'tilewright policy check {policy}'", verdict.fails()))
    }
}

/// The gate's verdict on a policy: a shipped one, by its name, or a file. Some requests of the
/// golden set are drawn: a check with a seed can be repeated, and without one every check draws its
/// own.
///
/// # Errors
/// [`PolicyError`] if the policy can't be found or read, or has no such setting.
pub fn check(
    host: &PolicyHost,
    name_or_file: &str,
    settings: &[(String, String)],
    seed: Option<u32>,
) -> Result<Verdict, PolicyError> {
    check_module(host, name_or_file, &bytes(host, name_or_file)?, settings, seed)
}

/// The same for a module in memory; `origin` names it in errors.
///
/// # Errors
/// As [`check`].
pub fn check_module(
    host: &PolicyHost,
    origin: &str,
    bytes: &[u8],
    settings: &[(String, String)],
    seed: Option<u32>,
) -> Result<Verdict, PolicyError> {
    let refused = |error: PolicyError| -> Result<Verdict, PolicyError> {
        let finding = refusal::finding(error, !settings.is_empty())?;
        Ok(Verdict::new(origin, sha256(bytes), vec![finding]))
    };
    let judged = host.load(origin, bytes).and_then(|policy| {
        let verdict = judge_policy(&policy, settings, seed)?;
        // A check renews the cached verdict, which may be from another day. A chosen seed does not:
        // a module may know its requests.
        if seed.is_none() {
            verdict_cache::keep(host, &verdict_cache::name(host, &policy, settings), &verdict);
        }
        Ok(verdict)
    });
    judged.or_else(refused)
}

/// Puts a policy to work. A policy that is not shipped passes the gate first; the verdict is
/// cached, so that it does so once.
///
/// # Errors
/// Any [`PolicyError`] of a policy that can't be put to work; [`PolicyError::NotAdmitted`] if it
/// has to pass and does not.
pub fn admit(
    host: &PolicyHost,
    loaded: &LoadedPolicy,
    settings: &[(String, String)],
    admission: Admission,
) -> Result<AdmittedPolicy, PolicyError> {
    let policy = loaded.configure(settings)?;
    if loaded.ships() {
        return Ok(AdmittedPolicy { policy, verdict: None });
    }
    let name = verdict_cache::name(host, loaded, settings);
    let verdict = match verdict_cache::find(host, &name, loaded.origin()) {
        Some(verdict) => verdict,
        None => {
            let verdict = judge_policy(loaded, settings, None)?;
            verdict_cache::keep(host, &name, &verdict);
            verdict
        }
    };
    if admission.require_checked && !verdict.passes() {
        return Err(PolicyError::NotAdmitted { policy: loaded.origin().into(), fails: verdict.fails() });
    }
    Ok(AdmittedPolicy { policy, verdict: Some(verdict) })
}

/// The verdict on a policy that describes itself.
fn judge_policy(
    policy: &LoadedPolicy,
    settings: &[(String, String)],
    seed: Option<u32>,
) -> Result<Verdict, PolicyError> {
    let started = Instant::now();
    let description = policy.description();
    let identity = policy.configure(settings)?.identity().clone();
    let seed = seed.unwrap_or_else(golden::any_seed);
    // The policy's log would be repeated for hundreds of requests.
    let Trial { set, stages, worst, findings } =
        with_default(NoSubscriber::default(), || trial::try_out(policy, settings, seed))?;
    let verdict = Verdict::new(policy.origin(), identity.digest, findings);
    let (name, version) = (description.name.clone(), description.version.clone());
    let elapsed_ms = trial::milliseconds(started.elapsed());
    Ok(Verdict { name, version, settings: identity.settings, golden: set, stages, worst, elapsed_ms, ..verdict })
}

fn bytes(host: &PolicyHost, name_or_file: &str) -> Result<Cow<'static, [u8]>, PolicyError> {
    if PolicyHost::names_file(name_or_file) {
        return host.read_file(Path::new(name_or_file)).map(Cow::Owned);
    }
    match shipped_module(name_or_file) {
        Some(bytes) => Ok(Cow::Borrowed(bytes)),
        None => Err(PolicyError::Unknown { name: name_or_file.into(), known: shipped_names().collect() }),
    }
}
