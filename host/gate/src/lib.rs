//! The gate that every policy passes before it is put to work: is it WebAssembly, without features that are off, of the contract's
//! world, within the limits; does it describe itself and take its settings; and what does it answer to the golden requests.
//!
//! [`check`] passes the whole verdict on. [`admit`] puts a policy to work and remembers what the gate found: a
//! policy that fails golden requests still decides, under the sandbox's protection, unless only policies that pass are wanted. The
//! policies that ship pass in tests and not again where they run.

#![deny(unsafe_code)]

mod finding;
pub mod golden;
mod judge;
mod kept;
mod machines;
mod prices;
mod refusal;
mod trial;
mod verdict;

use std::{borrow::Cow, path::Path, time::Instant};

use tilewright_files::digest::sha256;
use tilewright_policy::{LoadedPolicy, Policy, PolicyError, PolicyHost, shipped_module, shipped_names};
use tracing::subscriber::{NoSubscriber, with_default};

pub use finding::{Call, Finding, Problem, Severity, Step};
pub use verdict::{Counts, GoldenSet, StageSet, State, StepState, Verdict, Worst};

use trial::Trial;

/// The demands on a policy from a file before it is put to work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Refuse what fails golden requests, rather than to warn of it.
    pub require_checked: bool,
}

/// A policy that was put to work.
pub struct Admitted {
    /// At work.
    pub policy: Policy,
    /// The gate's verdict; none for the policies that ship.
    pub verdict: Option<Verdict>,
}

impl Admitted {
    /// The line for the user, if the policy does not pass.
    pub fn warning(&self) -> Option<String> {
        let verdict = self.verdict.as_ref().filter(|verdict| !verdict.passes())?;
        let policy = &verdict.policy;
        Some(format!("{policy} {}: see 'tilewright policy check {policy}'", verdict.fails()))
    }
}

/// Everything that the gate finds out about a policy: one that ships, by its name, or a file. Some requests of the
/// golden set are drawn: a check with a seed can be repeated, and without one every check draws its own.
///
/// # Errors
/// [`PolicyError`] where there is no policy to speak of (no such file, not WebAssembly, broken), or where it has no such setting.
pub fn check(
    host: &PolicyHost,
    name_or_file: &str,
    settings: &[(String, String)],
    seed: Option<u32>,
) -> Result<Verdict, PolicyError> {
    check_module(host, name_or_file, &bytes(host, name_or_file)?, settings, seed)
}

/// The same of a module at hand; `origin` names it in errors.
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
        let verdict = judged(&policy, settings, seed)?;
        // A check renews the kept verdict, which may be from another day; but not for a chosen seed, whose requests
        // a module may know.
        if seed.is_none() {
            kept::keep(host, &kept::name(host, &policy, settings), &verdict);
        }
        Ok(verdict)
    });
    judged.or_else(refused)
}

/// Puts a policy to work. One that does not ship passes the gate first; what was found is kept, so that it does so once.
///
/// # Errors
/// Any [`PolicyError`] of a policy that can't be put to work; [`PolicyError::NotAdmitted`] where it has to pass and does not.
pub fn admit(
    host: &PolicyHost,
    loaded: &LoadedPolicy,
    settings: &[(String, String)],
    admission: Admission,
) -> Result<Admitted, PolicyError> {
    let policy = loaded.configure(settings)?;
    if loaded.ships() {
        return Ok(Admitted { policy, verdict: None });
    }
    let name = kept::name(host, loaded, settings);
    let verdict = match kept::find(host, &name, loaded.origin()) {
        Some(verdict) => verdict,
        None => {
            let verdict = judged(loaded, settings, None)?;
            kept::keep(host, &name, &verdict);
            verdict
        }
    };
    if admission.require_checked && !verdict.passes() {
        return Err(PolicyError::NotAdmitted { policy: loaded.origin().into(), fails: verdict.fails() });
    }
    Ok(Admitted { policy, verdict: Some(verdict) })
}

/// The verdict on a policy that describes itself.
fn judged(policy: &LoadedPolicy, settings: &[(String, String)], seed: Option<u32>) -> Result<Verdict, PolicyError> {
    let started = Instant::now();
    let description = policy.description();
    let identity = tilewright_plan::Planner::identity(&policy.configure(settings)?).clone();
    let seed = seed.unwrap_or_else(golden::any_seed);
    // Its log would be told a few hundred times.
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
