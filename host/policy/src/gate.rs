//! The gate that every policy passes before it is put to work: is it WebAssembly, without features that are off, of the contract's
//! world, within the limits; does it describe itself and take its settings; and what does it answer to the golden requests.
//!
//! [`PolicyHost::check`] passes the whole verdict on. [`PolicyHost::admit`] puts a policy to work and remembers what the gate found: a
//! policy that fails golden requests still decides, under the sandbox's protection, unless only policies that pass are wanted. The
//! policies that ship pass in tests and not again where they run.

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

use tracing::subscriber::{NoSubscriber, with_default};

pub use finding::{Call, Finding, Problem, Severity, Step};
pub use verdict::{Counts, GoldenSet, State, StepState, Verdict, Worst};

use crate::{LoadedPolicy, Policy, PolicyError, PolicyHost, cache, load, shipped};
use trial::Trial;

/// What is asked of a policy from a file before it is put to work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Refuse what fails golden requests, rather than to warn of it.
    pub require_checked: bool,
}

/// A policy that was put to work.
pub struct Admitted {
    /// At work.
    pub policy: Policy,
    /// What the gate had to say; none for the policies that ship.
    pub verdict: Option<Verdict>,
}

impl Admitted {
    /// What to tell the user: one line, where the policy does not pass.
    pub fn warning(&self) -> Option<String> {
        let verdict = self.verdict.as_ref().filter(|verdict| !verdict.passes())?;
        let policy = &verdict.policy;
        Some(format!("{policy} {}: see 'tilewright policy check {policy}'", verdict.fails()))
    }
}

impl PolicyHost {
    /// The same host, drawing requests of the golden set from this seed, so that a check can be repeated. Without a
    /// seed, every check draws its own.
    #[must_use]
    pub fn drawing(self, seed: Option<u32>) -> Self {
        Self { seed, ..self }
    }

    /// Everything that the gate finds out about a policy: one that ships, by its name, or a file.
    ///
    /// # Errors
    /// [`PolicyError`] where there is no policy to speak of (no such file, not WebAssembly, broken), or where it has no such setting.
    pub fn check(&self, name_or_file: &str, settings: &[(String, String)]) -> Result<Verdict, PolicyError> {
        self.check_module(name_or_file, &self.bytes(name_or_file)?, settings)
    }

    /// The same of a module at hand; `origin` names it in errors.
    ///
    /// # Errors
    /// As [`PolicyHost::check`].
    pub fn check_module(
        &self,
        origin: &str,
        bytes: &[u8],
        settings: &[(String, String)],
    ) -> Result<Verdict, PolicyError> {
        let refused = |error: PolicyError| -> Result<Verdict, PolicyError> {
            let finding = refusal::finding(error, !settings.is_empty())?;
            Ok(Verdict::new(origin, load::digest(bytes), vec![finding]))
        };
        let judged = self.load(origin, bytes).and_then(|policy| {
            let verdict = self.judged(&policy, settings)?;
            // A check renews the kept verdict, which may be from another day; but not for a chosen seed, whose requests
            // a module may know.
            let cache = self.cache.as_ref().filter(|_| self.seed.is_none());
            kept::keep(cache, &self.verdict_name(&policy, settings), &verdict);
            Ok(verdict)
        });
        judged.or_else(refused)
    }

    /// Puts a policy to work. One that does not ship passes the gate first; what was found is kept, so that it does so once.
    ///
    /// # Errors
    /// Any [`PolicyError`] of a policy that can't be put to work; [`PolicyError::NotAdmitted`] where it has to pass and does not.
    pub fn admit(
        &self,
        loaded: &LoadedPolicy,
        settings: &[(String, String)],
        admission: Admission,
    ) -> Result<Admitted, PolicyError> {
        let policy = loaded.configure(settings)?;
        if loaded.ships() {
            return Ok(Admitted { policy, verdict: None });
        }
        let name = self.verdict_name(loaded, settings);
        let verdict = match kept::find(self.cache.as_ref(), &name, loaded.origin()) {
            Some(verdict) => verdict,
            None => {
                let verdict = self.judged(loaded, settings)?;
                kept::keep(self.cache.as_ref(), &name, &verdict);
                verdict
            }
        };
        if admission.require_checked && !verdict.passes() {
            return Err(PolicyError::NotAdmitted { policy: loaded.origin().into(), fails: verdict.fails() });
        }
        Ok(Admitted { policy, verdict: Some(verdict) })
    }

    /// What the verdict on a policy is kept under.
    fn verdict_name(&self, policy: &LoadedPolicy, settings: &[(String, String)]) -> String {
        kept::name(&policy.inspection().digest, settings, &self.limits, cache::compiler(&self.sandbox.engine))
    }

    /// The verdict on a policy that describes itself.
    fn judged(&self, policy: &LoadedPolicy, settings: &[(String, String)]) -> Result<Verdict, PolicyError> {
        let started = Instant::now();
        let description = policy.description();
        let identity = tilewright_plan::Planner::identity(&policy.configure(settings)?).clone();
        // What it logs would be told a few hundred times.
        let seed = self.seed.unwrap_or_else(golden::any_seed);
        let Trial { set, worst, findings } =
            with_default(NoSubscriber::default(), || trial::try_out(policy, settings, seed))?;
        let verdict = Verdict::new(policy.origin(), identity.digest, findings);
        let (name, version) = (description.name.clone(), description.version.clone());
        let elapsed_ms = trial::milliseconds(started.elapsed());
        Ok(Verdict { name, version, settings: identity.settings, golden: set, worst, elapsed_ms, ..verdict })
    }

    fn bytes(&self, name_or_file: &str) -> Result<Cow<'static, [u8]>, PolicyError> {
        if Self::names_file(name_or_file) {
            return self.read_file(Path::new(name_or_file)).map(Cow::Owned);
        }
        match shipped::POLICIES.iter().find(|(known, _)| *known == name_or_file) {
            Some((_, bytes)) => Ok(Cow::Borrowed(bytes)),
            None => Err(PolicyError::Unknown { name: name_or_file.into(), known: shipped::names().collect() }),
        }
    }
}
