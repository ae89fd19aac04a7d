//! What is done to policies: swapped, rolled back, paused, promoted, checked, and read anew.

use std::{
    collections::BTreeMap,
    sync::{Arc, TryLockError, atomic::Ordering},
};

use tilewright_config::{Config, Source};
use tilewright_policy::Verdict;
use tilewright_registry::Reference;

use super::{Change, Checked, InForce, Replacement, Rollout, lock, now, one_line, opening::wanted};
use crate::{
    CanaryState, Error, Result, Revision, What,
    slot::{Refused, Slot},
    source::{Fetched, Prepared, Settings, Wanted, shipped_as, step_aside},
};

impl Rollout {
    /// Another revision of a policy takes over, once it has passed its gate and is warm. Until then nothing changes, and nobody waits.
    ///
    /// # Errors
    /// Why it is not let in; nothing has changed then.
    pub fn swap(&self, name: &str, replacement: &Replacement, settings: Option<&[(String, String)]>) -> Result<Change> {
        let slot = self.find(name)?;
        let _swapping = match slot.swapping.try_lock() {
            Ok(swapping) => swapping,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { name: name.into() }),
        };
        let wanted = slot.changing().wanted.clone();
        let policies = self.config.load().policies.clone();
        let in_force = slot.forces.load().in_force.clone();
        let settings = settings_for(replacement, settings, &wanted, &in_force);
        let digest = wanted.digest.as_deref().filter(|_| *replacement == Replacement::Configured);
        let fetched = self.replacement(replacement, &wanted);
        let (origin, seen) = match &fetched {
            Ok(fetched) => (fetched.origin.clone(), Some(fetched.fingerprint())),
            Err(_) => (wanted.source.to_string(), None),
        };
        if let Some(seen) = seen.filter(|_| *replacement == Replacement::Configured) {
            slot.changing().seen = Some(seen);
        }
        let prepared =
            fetched.and_then(|fetched| self.sources.prepare(fetched, digest, settings, wanted.grants, &policies));
        step_aside();
        match prepared {
            Ok(prepared) => Ok(self.put_in_force(&slot, prepared, What::Swapped, None)),
            Err(error) => {
                self.refused(&slot, &origin, &error);
                Err(error)
            }
        }
    }

    fn replacement(&self, replacement: &Replacement, wanted: &Wanted) -> Result<Fetched> {
        match replacement {
            Replacement::Stored { digest } => self.sources.stored(digest),
            Replacement::From(source) => {
                // Whoever may ask for a swap could make the server ask any machine that it reaches.
                if let Source::Oci(reference) = source {
                    let parsed: Result<Reference, _> = reference.parse();
                    let is_allowed =
                        parsed.as_ref().is_ok_and(|parsed| self.config.load().allows_registry(parsed.registry()));
                    if !is_allowed {
                        return Err(Error::RegistryNotAllowed { reference: reference.chars().take(200).collect() });
                    }
                }
                self.sources.fetch(source, wanted.grants)
            }
            Replacement::Configured => self.sources.fetch(&wanted.source, wanted.grants),
        }
    }

    fn put_in_force(&self, slot: &Arc<Slot>, prepared: Prepared, what: What, trial: Option<(&str, &str)>) -> Change {
        let mut changing = slot.changing();
        let before = slot.forces.load_full();
        if before.in_force.digest == prepared.digest
            && before.in_force.settings == prepared.settings
            && before.in_force.grants == prepared.grants
        {
            return Change { in_force: before.in_force.clone(), changed: false };
        }
        let revision = Arc::new(Revision::new(&slot.name, changing.next, now(), prepared));
        changing.next += 1;
        slot.take_over(revision.clone());
        // What the watchdog paused was another revision.
        if slot.paused_by_watchdog.swap(false, Ordering::AcqRel) {
            slot.paused.store(false, Ordering::Release);
        }
        drop(changing);
        step_aside();
        let (new, old) = (revision.number, before.in_force.number);
        let why = trial.map_or_else(String::new, |(_, why)| format!("; {why}"));
        let detail = format!(
            "revision {new} took over from {old}: {} {} from {}{why}",
            revision.identity.name, revision.identity.version, revision.origin
        );
        self.tell(what, Some(&slot.name), trial.map(|(route, _)| route), Some(new), detail);
        Change { in_force: revision, changed: true }
    }

    fn refused(&self, slot: &Slot, origin: &str, error: &Error) {
        let in_force = slot.forces.load().in_force.number;
        let why = error.for_callers();
        if why != one_line(error) {
            tracing::warn!(policy = slot.name, error = one_line(error), "a registry does not give a policy");
        }
        slot.refuse(Refused { time: now(), origin: origin.into(), why: why.clone() });
        let detail = format!("{why}; revision {in_force} stays in force");
        self.tell(What::Refused, Some(&slot.name), None, Some(in_force), detail);
    }

    /// The previous revision takes over again.
    ///
    /// # Errors
    /// [`Error::NoPrevious`], [`Error::UnknownPolicy`]
    pub fn roll_back(&self, name: &str) -> Result<Change> {
        let slot = self.find(name)?;
        let changing = slot.changing();
        let gone = slot.go_back().ok_or_else(|| Error::NoPrevious { name: name.into() })?;
        let in_force = slot.forces.load().in_force.clone();
        drop(changing);
        let detail = format!("revision {} is in force again, {} drains", in_force.number, gone.number);
        self.tell(What::RolledBack, Some(name), None, Some(in_force.number), detail);
        Ok(Change { in_force, changed: true })
    }

    /// From now on the native default decides in a policy's place, or no longer.
    ///
    /// # Errors
    /// [`Error::UnknownPolicy`]
    pub fn pause(&self, name: &str, paused: bool) -> Result<()> {
        let slot = self.find(name)?;
        slot.paused_by_watchdog.store(false, Ordering::Release);
        if slot.paused.swap(paused, Ordering::AcqRel) != paused {
            if !paused {
                // Whoever asks for it again gives it another chance.
                slot.forces.load().in_force.begin_anew();
            }
            let (what, detail) = match paused {
                true => (What::Paused, "no longer asked: the native default decides"),
                false => (What::Resumed, "asked again"),
            };
            self.tell(what, Some(name), None, None, detail.into());
        }
        Ok(())
    }

    /// A route's canary takes over, whatever its trial has shown so far.
    ///
    /// # Errors
    /// [`Error::NoCanary`], [`Error::UnknownRoute`], or why it can't be put in force.
    pub fn promote(&self, route: &str) -> Result<Change> {
        let taking = self.on_trial(route)?;
        self.promoted(&taking, "somebody asked")
    }

    /// A route's canary gets nothing any more.
    ///
    /// # Errors
    /// [`Error::NoCanary`], [`Error::UnknownRoute`]
    pub fn stop(&self, route: &str) -> Result<()> {
        let taking = self.on_trial(route)?;
        self.stopped(&taking, "somebody asked");
        Ok(())
    }

    fn on_trial(&self, route: &str) -> Result<Arc<InForce>> {
        let routes = self.routes.load();
        let known = || routes.iter().map(|taking| taking.route.name.clone()).collect();
        let found = routes.iter().find(|taking| taking.route.name == route).cloned();
        let found = found.ok_or_else(|| Error::UnknownRoute { name: route.into(), known: known() })?;
        let is_on_trial = found.route.canary.is_some() && lock(&found.canary).facts.state == CanaryState::Trial;
        if is_on_trial { Ok(found) } else { Err(Error::NoCanary { name: route.into() }) }
    }

    pub(super) fn promoted(&self, taking: &InForce, why: &str) -> Result<Change> {
        let trial = taking.route.canary.as_ref().ok_or_else(|| Error::NoCanary { name: taking.route.name.clone() })?;
        let candidate = self.find(&trial.policy)?.forces.load().in_force.clone();
        // Another one may have taken over since: it begins a trial of its own.
        if lock(&taking.canary).facts.revision != candidate.number {
            return Err(Error::NoCanary { name: taking.route.name.clone() });
        }
        let slot = self.find(&taking.route.policy)?;
        let fetched = self.sources.stored(&candidate.digest)?;
        let policies = self.config.load().policies.clone();
        let mut prepared =
            self.sources.prepare(fetched, None, Settings::Given(&candidate.settings), candidate.grants, &policies)?;
        prepared.origin = format!("{}, canary of route {}", candidate.origin, taking.route.name);
        if !self.end_trial(taking, CanaryState::Promoted, why) {
            return Err(Error::NoCanary { name: taking.route.name.clone() });
        }
        Ok(self.put_in_force(&slot, prepared, What::Promoted, Some((&taking.route.name, why))))
    }

    pub(super) fn stopped(&self, taking: &InForce, why: &str) {
        if self.end_trial(taking, CanaryState::Stopped, why) {
            let policy = taking.route.canary.as_ref().map(|canary| canary.policy.clone());
            let detail = format!("the canary gets no more jobs: {why}");
            self.tell(What::CanaryStopped, policy.as_deref(), Some(&taking.route.name), None, detail);
        }
    }

    /// False where it has ended already.
    fn end_trial(&self, taking: &InForce, state: CanaryState, why: &str) -> bool {
        let mut canary = lock(&taking.canary);
        if canary.facts.state != CanaryState::Trial {
            return false;
        }
        (canary.facts.state, canary.facts.why) = (state, Some(why.into()));
        drop(canary);
        self.write_or_say();
        true
    }

    /// Goes by another configuration: what has changed of a policy goes through the gate and takes over, routes change together.
    ///
    /// # Errors
    /// A policy that is new can't be put in force: the old configuration stays whole. One that was in service before and can't be replaced
    /// stays as it is: a line for each is given back.
    pub fn reload(&self, config: &Config) -> Result<Vec<String>> {
        let before = self.slots.load_full();
        let mut slots = BTreeMap::new();
        let mut changed = Vec::new();
        for (name, wanted) in wanted(config) {
            match before.get(&name) {
                Some(slot) => {
                    if slot.changing().wanted != wanted {
                        changed.push((slot.clone(), wanted));
                    }
                    slots.insert(name, slot.clone());
                }
                None => {
                    let slot = self.slot(&name, wanted, None, config)?;
                    slots.insert(name, Arc::new(slot));
                }
            }
        }
        self.config.store(Arc::new(config.clone()));
        // Routes of the old configuration decide until those of the new one do: each finds its policies.
        let mut both = (*before).clone();
        both.extend(slots.iter().map(|(name, slot)| (name.clone(), slot.clone())));
        self.slots.store(Arc::new(both));
        let mut refused = Vec::new();
        for (slot, wanted) in changed {
            let old = std::mem::replace(&mut slot.changing().wanted, wanted);
            if let Err(error) = self.swap(&slot.name, &Replacement::Configured, None) {
                // Told of among the events, too; tried again with the next reload.
                slot.changing().wanted = old;
                refused.push(format!("policy {}: {}", slot.name, one_line(&error)));
            }
        }
        let kept = self.kept();
        self.routes.store(Arc::new(self.in_force(config, &kept)));
        self.slots.store(Arc::new(slots));
        self.tell(What::Reloaded, None, None, None, "the configuration was read anew".into());
        Ok(refused)
    }

    /// Says everywhere that a new configuration is wrong, and the old one stays.
    pub fn reload_refused(&self, why: &str) {
        self.tell(What::ReloadRefused, None, None, None, format!("{why}; the configuration before stays in force"));
    }

    /// Looks whether a policy's file has changed, and if so lets it take over through the gate.
    pub fn refresh(&self, name: &str) {
        let Ok(slot) = self.find(name) else { return };
        let (wanted, seen) = {
            let changing = slot.changing();
            (changing.wanted.clone(), changing.seen.clone())
        };
        // A file that is being written, or gone for a moment, will change again.
        let Ok(fetched) = self.sources.fetch(&wanted.source, wanted.grants) else { return };
        if Some(fetched.fingerprint()) != seen {
            // Told of among the events where it is refused.
            let _ = self.swap(name, &Replacement::Configured, None);
        }
    }

    /// Stores a module with its signature and says what the gate says of it, with what the policy that it is for may use. Where signatures
    /// are required, the signature is verified before anything of the module is looked at.
    ///
    /// # Errors
    /// It is not signed, where it has to be; it can't be loaded at all; [`Error::UnknownPolicy`]
    pub fn upload(&self, bytes: Vec<u8>, signature: Option<String>, policy: Option<&str>) -> Result<Checked> {
        let grants = policy.map(|name| Ok::<_, Error>(self.find(name)?.changing().wanted.grants)).transpose()?;
        let digest = crate::module::digest(&bytes);
        let origin = crate::module::called(&digest);
        if let Some(signature) = &signature {
            key_of(&digest, signature)?;
        }
        // What somebody uploads again and again is still what ships, and needs no signature.
        let shipped = shipped_as(&bytes);
        let fetched = Fetched { bytes, origin, shipped, signature, reference: None };
        let policies = self.config.load().policies.clone();
        let verdict = self.sources.check(&fetched, Settings::Given(&[]), grants.unwrap_or_default(), &policies)?;
        Ok(Checked { digest, verdict })
    }

    /// Keeps a signature beside a stored module; whose it is counts when the module is put in force.
    ///
    /// # Errors
    /// No such module; no signature at all.
    pub fn sign(&self, digest: &str, signature: &str) -> Result<()> {
        key_of(digest, signature)?;
        let bytes = self.sources.modules.get(digest)?;
        let policies = self.config.load().policies.clone();
        if policies.require_signed {
            // One that counts is not replaced by one that does not.
            let verified = policies.trusted.verify(&bytes, Some(signature));
            verified.map_err(|refusal| Error::Unsigned { policy: crate::module::called(digest), refusal })?;
        }
        let path = self.sources.modules.path(digest).ok_or_else(|| Error::UnknownModule { digest: digest.into() })?;
        Ok(tilewright_signing::write_signature(&tilewright_signing::signature_path(&path), signature)?)
    }

    /// What the gate says of a replacement for a policy, with its settings and grants.
    ///
    /// # Errors
    /// It can't be had, or not be loaded at all.
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
        let policies = self.config.load().policies.clone();
        let settings = settings_for(replacement, settings, &wanted, &in_force);
        self.sources.check(&fetched, settings, wanted.grants, &policies)
    }
}

/// Refuses what is no signature at all.
fn key_of(digest: &str, signature: &str) -> Result<()> {
    let policy = || digest.chars().take(80).collect();
    tilewright_signing::key_of(signature).map(drop).map_err(|refusal| Error::Unsigned { policy: policy(), refusal })
}

/// What a replacement is configured with: what is given, what is configured where that is asked for, or else what is in force.
fn settings_for<'a>(
    replacement: &Replacement,
    given: Option<&'a [(String, String)]>,
    wanted: &'a Wanted,
    in_force: &'a Revision,
) -> Settings<'a> {
    match (given, replacement) {
        (Some(given), _) => Settings::Given(given),
        (None, Replacement::Configured) => Settings::Given(&wanted.settings),
        (None, _) => Settings::InForce { name: &in_force.identity.name, settings: &in_force.settings },
    }
}
