//! Changes to policies: swap, rollback, pause, promotion; and their checks. Each change is stored
//! before it is in force, and is not in force if it can't be stored.

use std::sync::{Arc, MutexGuard, TryLockError, atomic::Ordering};

use tilewright_config::Source;
use tilewright_files::digest::sha256;
use tilewright_gate::Verdict;
use tilewright_registry::{Reference, without_user};
use tilewright_signing::Refusal;

use super::{ActiveRoute, Change, CheckResult, Replacement, Rollout, lock, now};
use crate::{
    CanaryState, Error, EventKind, Result, Revision,
    slot::{Changing, RefusedModule, Slot},
    source::{FetchedModule, PolicySpec, PreparedPolicy, Settings, describe_source, find_shipped, yield_processor},
    state::{SavedCanary, SavedPolicy, SavedState},
};

impl Rollout {
    /// Swaps a policy's revision after the new one has passed its gate and is warm. Nothing changes
    /// until then, and no job waits.
    ///
    /// # Errors
    /// The reason of the refusal; nothing has changed then.
    pub fn swap(&self, name: &str, replacement: &Replacement, settings: Option<&[(String, String)]>) -> Result<Change> {
        let slot = self.find(name)?;
        let swapping = match slot.swapping.try_lock() {
            Ok(swapping) => swapping,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { name: name.into() }),
        };
        self.swap_slot(&slot, swapping, replacement, settings, None)
    }

    /// Swaps a policy; `_swapping` keeps out other swaps of it. `configured`: the policy's new
    /// configuration, if it changes.
    pub(super) fn swap_slot(
        &self,
        slot: &Arc<Slot>,
        _swapping: MutexGuard<'_, ()>,
        replacement: &Replacement,
        settings: Option<&[(String, String)]>,
        configured: Option<PolicySpec>,
    ) -> Result<Change> {
        let wanted = configured.clone().unwrap_or_else(|| slot.changing().wanted.clone());
        let policies = self.config.load().policies.clone();
        let in_force = slot.forces.load().in_force.clone();
        let settings = settings_for(replacement, settings, &wanted, &in_force);
        let digest = wanted.digest.as_deref().filter(|_| *replacement == Replacement::Configured);
        let fetched = self.replacement(replacement, &wanted);
        let (origin, seen) = match &fetched {
            Ok(fetched) => (fetched.origin.clone(), Some(fetched.fingerprint())),
            Err(_) => (replacement.origin(&wanted), None),
        };
        let source = SourceChange { seen: seen.filter(|_| *replacement == Replacement::Configured), configured };
        let prepared =
            fetched.and_then(|fetched| self.sources.prepare(fetched, digest, settings, wanted.grants, &policies));
        yield_processor();
        match prepared {
            Ok(prepared) => self.put_in_force(slot, prepared, EventKind::Swapped, source, None),
            // The module is sound: the swap is tried again when there is room.
            Err(error @ Error::Storage { .. }) => Err(error),
            Err(error) => {
                self.record_refusal(slot, &origin, source, &error);
                Err(error)
            }
        }
    }

    fn replacement(&self, replacement: &Replacement, wanted: &PolicySpec) -> Result<FetchedModule> {
        let config = self.config.load();
        match replacement {
            Replacement::Stored { digest } => self.sources.fetch_stored(digest),
            Replacement::From(source) => {
                // Otherwise a caller with the right to swap could make the server contact any
                // machine in its reach.
                if let Source::Oci(reference) = source {
                    let parsed: Result<Reference, _> = reference.parse();
                    let is_allowed = parsed.as_ref().is_ok_and(|parsed| config.allows_registry(parsed.registry()));
                    if !is_allowed {
                        return Err(Error::RegistryNotAllowed {
                            reference: without_user(reference).chars().take(200).collect(),
                        });
                    }
                }
                self.sources.fetch(source, wanted.grants, &config)
            }
            Replacement::Configured => self.sources.fetch(&wanted.source, wanted.grants, &config),
        }
    }

    /// Puts a revision in force, after storing it with its number. `trial`: the route whose canary
    /// it was, and the reason for its promotion; the same write ends the trial.
    fn put_in_force(
        &self,
        slot: &Arc<Slot>,
        prepared: PreparedPolicy,
        what: EventKind,
        source: SourceChange,
        trial: Option<(&ActiveRoute, &str)>,
    ) -> Result<Change> {
        let mut written = lock(&self.written);
        self.check_in_service(slot)?;
        let mut saved = self.saved_state();
        if let Some((active, why)) = trial {
            let ended = saved_end(active, CanaryState::Promoted, why)
                .ok_or_else(|| Error::NoCanary { name: active.route.name.clone() })?;
            saved.canaries.insert(active.route.name.clone(), ended);
        }
        let before = slot.forces.load_full();
        let policy = saved_policy(&mut saved, slot)?;
        source.write(policy);
        let is_same = before.in_force.digest == prepared.digest
            && before.in_force.settings == prepared.settings
            && before.in_force.grants == prepared.grants;
        if is_same {
            self.keep(&mut written, saved)?;
            source.apply(&mut slot.changing());
            trial.inspect(|(active, why)| end(active, CanaryState::Promoted, why));
            return Ok(Change { in_force: before.in_force.clone(), changed: false });
        }
        let revision = Arc::new(Revision::new(&slot.name, policy.next, now(), prepared));
        policy.next += 1;
        (policy.in_force, policy.previous) = (revision.saved.clone(), Some(before.in_force.saved.clone()));
        // The pause by the watchdog was of another revision.
        let goes_on = std::mem::take(&mut policy.paused_by_watchdog);
        policy.paused &= !goes_on;
        if let Err(error) = self.keep(&mut written, saved.clone()) {
            if self.state.says(&saved) {
                // A restart may find this revision in force, so its number is used up.
                slot.changing().next = revision.number + 1;
            }
            return Err(error);
        }
        {
            let mut changing = slot.changing();
            changing.next = revision.number + 1;
            source.apply(&mut changing);
        }
        slot.take_over(revision.clone());
        if goes_on {
            slot.paused_by_watchdog.store(false, Ordering::Release);
            slot.paused.store(false, Ordering::Release);
        }
        trial.inspect(|(active, why)| end(active, CanaryState::Promoted, why));
        drop(written);
        yield_processor();
        let (new, old) = (revision.number, before.in_force.number);
        let why = trial.map_or_else(String::new, |(_, why)| format!("; {why}"));
        let unanswered: String = self
            .unanswered(&slot.facts())
            .into_iter()
            .inspect(|line| tracing::warn!(policy = slot.name, "{line}"))
            .map(|line| format!("; {line}"))
            .collect();
        let detail = format!(
            "revision {new} took over from {old}: {} {} from {}{why}{unanswered}",
            revision.identity.name, revision.identity.version, revision.origin
        );
        let route = trial.map(|(active, _)| active.route.name.as_str());
        self.emit(what, Some(&slot.name), route, Some(new), detail);
        Ok(Change { in_force: revision, changed: true })
    }

    /// Fails if a configuration that was read meanwhile no longer has the policy: a change would
    /// belong to no policy, and its number would be given out again.
    fn check_in_service(&self, slot: &Arc<Slot>) -> Result<()> {
        let is_in_service = self.slots.load().get(&slot.name).is_some_and(|known| Arc::ptr_eq(known, slot));
        if is_in_service { Ok(()) } else { Err(self.unknown(&slot.name)) }
    }

    fn record_refusal(&self, slot: &Slot, origin: &str, source: SourceChange, error: &Error) {
        // A source that only a refused configuration names does not become the policy's.
        if source.seen.is_some() && source.configured.is_none() {
            let mut written = lock(&self.written);
            source.apply(&mut slot.changing());
            self.settle_or_say(&mut written);
        }
        let in_force = slot.forces.load().in_force.number;
        let why = error.for_callers();
        if error.is_for_the_log() {
            tracing::warn!(policy = slot.name, error = error.one_line(), "a registry does not give a policy");
        }
        slot.refuse(RefusedModule { time: now(), origin: origin.into(), why: why.clone() });
        let detail = format!("{why}; revision {in_force} stays in force");
        self.emit(EventKind::Refused, Some(&slot.name), None, Some(in_force), detail);
    }

    /// Puts the previous revision in force again.
    ///
    /// # Errors
    /// [`Error::NoPrevious`], [`Error::UnknownPolicy`]
    pub fn roll_back(&self, name: &str) -> Result<Change> {
        let mut written = lock(&self.written);
        let slot = self.find(name)?;
        let before = slot.forces.load_full();
        let previous = before.previous.clone().ok_or_else(|| Error::NoPrevious { name: name.into() })?;
        let mut saved = self.saved_state();
        let policy = saved_policy(&mut saved, &slot)?;
        (policy.in_force, policy.previous) = (previous.saved.clone(), None);
        self.keep(&mut written, saved)?;
        slot.go_back();
        drop(written);
        let detail = format!("revision {} is in force again, {} drains", previous.number, before.in_force.number);
        self.emit(EventKind::RolledBack, Some(name), None, Some(previous.number), detail);
        Ok(Change { in_force: previous, changed: true })
    }

    /// Pauses a policy, so that the fallback decides in its place, or resumes it.
    ///
    /// # Errors
    /// [`Error::UnknownPolicy`], [`Error::Storage`]
    pub fn pause(&self, name: &str, paused: bool) -> Result<()> {
        let mut written = lock(&self.written);
        let slot = self.find(name)?;
        let mut saved = self.saved_state();
        let policy = saved_policy(&mut saved, &slot)?;
        (policy.paused, policy.paused_by_watchdog) = (paused, false);
        self.keep(&mut written, saved)?;
        slot.paused_by_watchdog.store(false, Ordering::Release);
        let changed = slot.paused.swap(paused, Ordering::AcqRel) != paused;
        drop(written);
        if changed {
            if !paused {
                // Resuming gives the revision another chance.
                slot.forces.load().in_force.reset();
            }
            let (what, detail) = match paused {
                true => (EventKind::Paused, "no longer asked: the native default decides"),
                false => (EventKind::Resumed, "asked again"),
            };
            self.emit(what, Some(name), None, None, detail.into());
        }
        Ok(())
    }

    /// Promotes a route's canary, whatever its trial has shown so far.
    ///
    /// # Errors
    /// [`Error::NoCanary`], [`Error::UnknownRoute`], or the reason why it can't be put in force.
    pub fn promote(&self, route: &str) -> Result<Change> {
        let active = self.on_trial(route)?;
        self.promote_active(&active, "on request")
    }

    /// Stops a route's canary.
    ///
    /// # Errors
    /// [`Error::NoCanary`], [`Error::UnknownRoute`], [`Error::Storage`]
    pub fn stop(&self, route: &str) -> Result<()> {
        let (active, why) = (self.on_trial(route)?, "on request");
        let mut written = lock(&self.written);
        let ended =
            saved_end(&active, CanaryState::Stopped, why).ok_or_else(|| Error::NoCanary { name: route.into() })?;
        let mut saved = self.saved_state();
        saved.canaries.insert(route.to_owned(), ended);
        self.keep(&mut written, saved)?;
        end(&active, CanaryState::Stopped, why);
        drop(written);
        self.report_stopped(&active, why);
        Ok(())
    }

    pub(super) fn on_trial(&self, route: &str) -> Result<Arc<ActiveRoute>> {
        let routes = self.routes.load();
        let known = || routes.iter().map(|active| active.route.name.clone()).collect();
        let found = routes.iter().find(|active| active.route.name == route).cloned();
        let found = found.ok_or_else(|| Error::UnknownRoute { name: route.into(), known: known() })?;
        // A revision that took over since the last job is the one on trial.
        if let Some(trial) = &found.route.canary {
            let candidate = self.find(&trial.policy)?.forces.load().in_force.clone();
            lock(&found.canary).is_of(&candidate);
        }
        let is_on_trial = found.route.canary.is_some() && lock(&found.canary).facts.state == CanaryState::Trial;
        if is_on_trial { Ok(found) } else { Err(Error::NoCanary { name: route.into() }) }
    }

    pub(super) fn promote_active(&self, active: &ActiveRoute, why: &str) -> Result<Change> {
        let trial = active.route.canary.as_ref().ok_or_else(|| Error::NoCanary { name: active.route.name.clone() })?;
        let candidate = self.find(&trial.policy)?.forces.load().in_force.clone();
        // Another revision may have taken over since: it begins a trial of its own.
        if lock(&active.canary).facts.revision != candidate.number {
            return Err(Error::NoCanary { name: active.route.name.clone() });
        }
        let slot = self.find(&active.route.policy)?;
        let fetched = self.sources.fetch_stored(&candidate.digest)?;
        let (settings, grants) = (Settings::Given(&candidate.settings), candidate.grants);
        let mut prepared = self.sources.prepare(fetched, None, settings, grants, &self.config.load().policies)?;
        prepared.origin = format!("{}, canary of route {}", candidate.origin, active.route.name);
        self.put_in_force(&slot, prepared, EventKind::Promoted, SourceChange::default(), Some((active, why)))
    }

    /// Stops a canary that does worse, even if that can't be stored.
    pub(super) fn stop_active(&self, active: &ActiveRoute, why: &str) {
        {
            let mut written = lock(&self.written);
            if saved_end(active, CanaryState::Stopped, why).is_none() {
                return;
            }
            end(active, CanaryState::Stopped, why);
            self.settle_or_say(&mut written);
        }
        self.report_stopped(active, why);
    }

    fn report_stopped(&self, active: &ActiveRoute, why: &str) {
        let policy = active.route.canary.as_ref().map(|canary| canary.policy.clone());
        let detail = format!("the canary gets no more jobs: {why}");
        self.emit(EventKind::CanaryStopped, policy.as_deref(), Some(&active.route.name), None, detail);
    }

    /// Stores a module with its signature and returns the gate's verdict on it, with the grants of
    /// the policy that it is for. If signatures are required, the signature is verified before the
    /// module is looked at.
    ///
    /// # Errors
    /// [`Error::Garbled`], [`Error::Unsigned`], [`Error::UnknownPolicy`], or the error of a module
    /// that can't be loaded or stored at all.
    pub fn upload(&self, bytes: Vec<u8>, signature: Option<String>, policy: Option<&str>) -> Result<CheckResult> {
        let grants = policy.map(|name| Ok::<_, Error>(self.find(name)?.changing().wanted.grants)).transpose()?;
        let digest = sha256(&bytes);
        let origin = crate::module::describe_module(&digest);
        if let Some(signature) = &signature {
            check_signature(signature)?;
        }
        // An uploaded copy of a policy that ships needs no signature.
        let shipped = find_shipped(&bytes);
        let fetched = FetchedModule { bytes, origin, shipped, signature, reference: None };
        let (settings, grants) = (Settings::Given(&[]), grants.unwrap_or_default());
        let verdict = self.sources.check(&fetched, settings, grants, &self.config.load().policies)?;
        Ok(CheckResult { digest, verdict })
    }

    /// Stores a signature beside a stored module; its key is checked when the module is put in
    /// force.
    ///
    /// # Errors
    /// The module is not stored; the text is not a signature.
    pub fn sign(&self, digest: &str, signature: &str) -> Result<()> {
        check_signature(signature)?;
        let bytes = self.sources.modules.get(digest)?;
        let policies = self.config.load().policies.clone();
        if policies.require_signed {
            // A trusted signature is not replaced by one that is not trusted.
            let verified = policies.trusted.verify(&bytes, Some(signature));
            verified.map_err(|refusal| Error::Unsigned { policy: crate::module::describe_module(digest), refusal })?;
        }
        self.sources.modules.sign(digest, signature)
    }

    /// The gate's verdict on a replacement for a policy, with its settings and grants.
    ///
    /// # Errors
    /// The module can't be fetched or loaded.
    pub fn check(
        &self,
        name: &str,
        replacement: &Replacement,
        settings: Option<&[(String, String)]>,
    ) -> Result<Verdict> {
        let slot = self.find(name)?;
        let wanted = slot.changing().wanted.clone();
        let fetched = self.replacement(replacement, &wanted)?;
        let in_force = slot.forces.load().in_force.clone();
        let settings = settings_for(replacement, settings, &wanted, &in_force);
        self.sources.check(&fetched, settings, wanted.grants, &self.config.load().policies)
    }
}

impl Replacement {
    /// The request in words, if it can't be met.
    fn origin(&self, wanted: &PolicySpec) -> String {
        match self {
            Replacement::Stored { digest } => crate::module::describe_module(digest),
            Replacement::From(source) => describe_source(source),
            Replacement::Configured => describe_source(&wanted.source),
        }
    }
}

/// Refuses a text that is not a signature, even if the configuration does not require signatures.
fn check_signature(text: &str) -> Result<()> {
    match tilewright_signing::key_of(text) {
        Ok(_) => Ok(()),
        Err(Refusal::Garbled { detail }) => Err(Error::Garbled { detail }),
        Err(refusal) => Err(Error::Garbled { detail: refusal.to_string() }),
    }
}

/// The changes to a policy's source in a swap.
#[derive(Default)]
pub(super) struct SourceChange {
    /// The fingerprint of the source's current module.
    seen: Option<String>,
    configured: Option<PolicySpec>,
}

impl SourceChange {
    fn write(&self, saved: &mut SavedPolicy) {
        saved.seen = self.seen.clone().or(saved.seen.take());
        if let Some(wanted) = &self.configured {
            saved.configured = wanted.text();
        }
    }

    fn apply(self, changing: &mut Changing) {
        changing.seen = self.seen.or(changing.seen.take());
        if let Some(wanted) = self.configured {
            changing.wanted = wanted;
        }
    }
}

/// A policy's entry in the state that is about to be stored.
fn saved_policy<'a>(saved: &'a mut SavedState, slot: &Slot) -> Result<&'a mut SavedPolicy> {
    let known = saved.policies.keys().cloned().collect();
    saved.policies.get_mut(&slot.name).ok_or_else(|| Error::UnknownPolicy { name: slot.name.clone(), known })
}

/// The entry of a trial that ends, for the saved state; `None` if it has ended already.
fn saved_end(active: &ActiveRoute, state: CanaryState, why: &str) -> Option<SavedCanary> {
    let canary = lock(&active.canary);
    let is_on_trial = canary.facts.state == CanaryState::Trial;
    let (policy, digest) = (canary.facts.policy.clone(), canary.digest.clone());
    is_on_trial.then(|| SavedCanary { policy, digest, state, why: Some(why.into()) })
}

fn end(active: &ActiveRoute, state: CanaryState, why: &str) {
    let mut canary = lock(&active.canary);
    (canary.facts.state, canary.facts.why) = (state, Some(why.into()));
}

/// The settings of a replacement: the given ones, or else the configured ones if those are asked
/// for, or else those in force.
fn settings_for<'a>(
    replacement: &Replacement,
    given: Option<&'a [(String, String)]>,
    wanted: &'a PolicySpec,
    in_force: &'a Revision,
) -> Settings<'a> {
    match (given, replacement) {
        (Some(given), _) => Settings::Given(given),
        (None, Replacement::Configured) => Settings::Given(&wanted.settings),
        (None, _) => Settings::InForce { name: &in_force.identity.name, settings: &in_force.settings },
    }
}
