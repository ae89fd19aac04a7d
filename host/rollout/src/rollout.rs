//! All policies and routes in service, and their state.

mod changes;
mod opening;
mod reload;
#[cfg(test)]
mod tests;
mod verdicts;

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::SystemTime,
};

use arc_swap::ArcSwap;
use tilewright_config::{Case, Config, Route, Source, TakeOver};
use tilewright_gate::Verdict;

use crate::{
    Assignment, CanaryFacts, CanaryState, Disk, Error, Event, EventKind, Result, Revision, ShadowFacts, SlotFacts,
    canary::Canary,
    counts::{Counts, SavedCounts, TrialCounts},
    error::without_error_numbers,
    served::Served,
    shadow::{Shadow, ShadowQuestion, ShadowQueue},
    slot::Slot,
    source::{PolicySpec, Sources},
    state::{SavedCanary, SavedPolicy, SavedState, State},
    tally::push_bounded,
    unanswered::{Unanswered, unanswered},
};

/// Events that are kept.
const EVENTS: usize = 512;

/// The replacement for a policy's revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// A stored module: uploaded, or in force before.
    Stored {
        /// `sha256:…`
        digest: String,
    },
    /// A source that the request names.
    From(Source),
    /// The configured source, as it is now.
    Configured,
}

/// The result of a change.
#[derive(Clone, Debug)]
pub struct Change {
    /// The revision in force now.
    pub in_force: Arc<Revision>,
    /// False if it was in force already, and nothing has changed.
    pub changed: bool,
}

/// The gate's verdict on a module that is stored now.
#[derive(Clone, Debug)]
pub struct CheckResult {
    /// `sha256:…`
    pub digest: String,
    /// All findings.
    pub verdict: Verdict,
}

/// A route and its canary.
struct ActiveRoute {
    route: Route,
    shadow: Arc<Shadow>,
    /// Shared with the same route of the previous configuration.
    canary: Arc<Mutex<Canary>>,
}

type Listener = Box<dyn Fn(&Event) + Send + Sync>;

/// Policies in service.
pub struct Rollout {
    sources: Sources,
    state: State,
    counts: Counts,
    disk: Disk,
    dumps: PathBuf,
    config: ArcSwap<Config>,
    slots: ArcSwap<BTreeMap<String, Arc<Slot>>>,
    routes: ArcSwap<Vec<Arc<ActiveRoute>>>,
    shadows: ShadowQueue,
    events: Mutex<VecDeque<Event>>,
    /// The contents of the state file, if known for certain. Locked during every change of what is
    /// in force, from before it is stored until it takes effect: nothing serves that a restart
    /// would not know, and no two changes cross.
    written: Mutex<Option<SavedState>>,
    /// The next revision numbers of policies that are no longer configured.
    numbers: Mutex<BTreeMap<String, u64>>,
    listener: Listener,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

impl Rollout {
    /// The assignment of a job that is accepted now.
    ///
    /// # Errors
    /// [`Error::NoRoute`]
    pub fn admit(&self, case: &Case<'_>) -> Result<Assignment> {
        loop {
            let (routes, slots) = (self.routes.load_full(), self.slots.load_full());
            let admitted = self.admit_by(&routes, &slots, case);
            // Between the two loads another configuration may have come into force, without these
            // routes' policies.
            let is_late =
                matches!(admitted, Err(Error::UnknownPolicy { .. })) && !Arc::ptr_eq(&routes, &self.routes.load_full());
            if !is_late {
                if admitted.as_ref().is_ok_and(|assignment| assignment.canary) {
                    self.keep_counts();
                }
                return admitted;
            }
        }
    }

    fn admit_by(
        &self,
        routes: &[Arc<ActiveRoute>],
        slots: &BTreeMap<String, Arc<Slot>>,
        case: &Case<'_>,
    ) -> Result<Assignment> {
        let active = routes.iter().find(|active| active.route.conditions.matches(case));
        let active = active.ok_or_else(|| Error::NoRoute { case: words(case) })?;
        let find = |name: &str| slots.get(name).cloned().ok_or_else(|| self.unknown(name));
        let ActiveRoute { route, shadow, canary } = &**active;
        let mut slot = find(&route.policy)?;
        let incumbent = slot.forces.load().in_force.clone();
        let (mut revision, mut on_trial, mut compare) = (incumbent.clone(), false, None);
        if let Some(trial) = &route.canary {
            let candidates = find(&trial.policy)?;
            let candidate = candidates.forces.load().in_force.clone();
            let mut canary = lock(canary);
            canary.is_of(&candidate);
            if !candidates.is_paused() && canary.takes(trial.share) {
                compare = canary.samples(trial.sample).then_some(incumbent);
                (revision, slot, on_trial) = (candidate, candidates, true);
            }
        }
        let shadowing =
            |name: &String| -> Result<_> { Ok((shadow.clone(), find(name)?.forces.load().in_force.clone())) };
        // The incumbent is compared.
        let shadow = route.shadow.as_ref().filter(|_| !on_trial).map(shadowing);
        Ok(Assignment {
            route: route.name.clone(),
            revision,
            canary: on_trial,
            compare,
            objective: route.objective,
            allows_blended: route.allows_blended,
            memory_limit: route.memory_limit_bytes,
            takes_over: route.take_over == TakeOver::NextChunk,
            slot,
            shadow: shadow.transpose()?,
        })
    }

    pub(crate) fn ask_shadow<W: Served>(&self, asked: ShadowQuestion<W>) {
        self.shadows.ask(asked);
    }

    /// Files to be watched, each with its policy.
    pub fn watched_files(&self) -> Vec<(PathBuf, String)> {
        let slots = self.slots.load();
        let of = |slot: &Arc<Slot>| match &slot.changing().wanted {
            PolicySpec { source: Source::File(path), watch: true, .. } => Some((path.clone(), slot.name.clone())),
            _ => None,
        };
        slots.values().filter_map(of).collect()
    }

    fn find(&self, name: &str) -> Result<Arc<Slot>> {
        self.slots.load().get(name).cloned().ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Error {
        Error::UnknownPolicy {
            name: name.chars().take(64).collect(),
            known: self.slots.load().keys().cloned().collect(),
        }
    }

    /// Every policy in service, by name.
    pub fn policies(&self) -> Vec<SlotFacts> {
        self.slots.load().values().map(|slot| slot.facts()).collect()
    }

    /// One policy in service.
    ///
    /// # Errors
    /// [`Error::UnknownPolicy`]
    pub fn policy(&self, name: &str) -> Result<SlotFacts> {
        Ok(self.find(name)?.facts())
    }

    /// Every route in order, with its shadow and its canary if it has them.
    pub fn routes(&self) -> Vec<(Route, Option<ShadowFacts>, Option<CanaryFacts>)> {
        let facts = |active: &Arc<ActiveRoute>| {
            let ActiveRoute { route, shadow, canary } = &**active;
            let shadow = route.shadow.as_ref().map(|name| shadow.facts_of(name));
            (route.clone(), shadow, route.canary.as_ref().map(|_| lock(canary).facts.clone()))
        };
        self.routes.load().iter().map(facts).collect()
    }

    /// The stages of its routes that a policy in force does not answer.
    pub fn unanswered(&self, policy: &SlotFacts) -> Vec<Unanswered> {
        let revision = &policy.in_force;
        unanswered(&self.config.load(), &policy.name, &revision.identity.name, revision.stages())
    }

    /// Logs what the policies in force do not answer.
    fn log_unanswered(&self) {
        for policy in self.policies() {
            for line in self.unanswered(&policy) {
                tracing::warn!(policy = policy.name, "{line}");
            }
        }
    }

    /// Keeps the counts of revisions and trials for the next start.
    fn keep_counts(&self) {
        self.counts.keep(|| {
            let loaded = self.slots.load().values().flat_map(|slot| slot.revisions()).collect::<Vec<_>>();
            let routes = self.routes.load();
            let trials = routes.iter().filter(|active| active.route.canary.is_some()).map(|active| {
                let canary = lock(&active.canary);
                let trial = TrialCounts { digest: canary.digest.clone(), facts: canary.facts.clone() };
                (active.route.name.clone(), trial)
            });
            SavedCounts::of(loaded.iter().map(|revision| &**revision), trials)
        });
    }

    /// The events, newest first.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.events).iter().rev().cloned().collect()
    }

    /// Removes modules that no revision and no unfinished job needs. `needed`: the modules of
    /// unfinished jobs.
    ///
    /// # Errors
    /// The error of `needed`; nothing is removed then.
    pub fn forget_modules<E>(&self, needed: impl FnOnce() -> Result<Vec<String>, E>) -> Result<(), E> {
        let saved = {
            let written = lock(&self.written);
            let saved = self.saved_state();
            if written.as_ref() != Some(&saved) {
                // The next start begins from the file, which may name other revisions.
                return Ok(());
            }
            saved
        };
        let digests = saved.policies.values().flat_map(SavedPolicy::revisions).map(|revision| revision.digest.clone());
        // `needed` is called after the revisions are read: a job that is accepted in between gets
        // one of those, or one whose module is new.
        let digests: Vec<String> = digests.chain(needed()?).collect();
        for removed in self.sources.modules.retain(&digests) {
            self.sources.forget(&removed);
        }
        Ok(())
    }

    fn emit(&self, what: EventKind, policy: Option<&str>, route: Option<&str>, revision: Option<u64>, detail: String) {
        let (policy, route) = (policy.map(str::to_owned), route.map(str::to_owned));
        let event = Event { time: now(), what, policy, route, revision, detail: without_error_numbers(&detail) };
        push_bounded(&mut lock(&self.events), event.clone(), EVENTS);
        (self.listener)(&event);
    }

    /// Stores changes that could not be stored when they came into force, if there are any: the
    /// watchdog can't wait for room.
    ///
    /// # Errors
    /// The state still can't be written.
    pub fn settle(&self) -> Result<()> {
        let mut written = lock(&self.written);
        self.keep(&mut written, self.saved_state())
    }

    /// The same, for a change that is in force even if it can't be stored.
    fn settle_or_say(&self, written: &mut Option<SavedState>) {
        if let Err(error) = self.keep(written, self.saved_state()) {
            tracing::error!(%error, "the state in force can't be stored yet: until it is, a restart begins from the state stored before");
        }
    }

    /// Stores what is to be in force, unless the file says so already.
    fn keep(&self, written: &mut Option<SavedState>, saved: SavedState) -> Result<()> {
        if written.as_ref() == Some(&saved) {
            return Ok(());
        }
        // The file's contents are unknown until the write is done.
        *written = None;
        self.state.write(&saved)?;
        *written = Some(saved);
        Ok(())
    }

    fn saved_state(&self) -> SavedState {
        let (slots, routes) = (self.slots.load(), self.routes.load());
        let policies = slots.iter().map(|(name, slot)| {
            let changing = slot.changing();
            let forces = slot.forces.load_full();
            let saved = SavedPolicy {
                next: changing.next,
                configured: changing.wanted.text(),
                seen: changing.seen.clone(),
                in_force: forces.in_force.saved.clone(),
                previous: forces.previous.as_ref().map(|previous| previous.saved.clone()),
                paused: slot.is_paused(),
                paused_by_watchdog: slot.is_paused() && slot.paused_by_watchdog.load(Ordering::Acquire),
            };
            (name.clone(), saved)
        });
        let policies: BTreeMap<String, SavedPolicy> = policies.collect();
        let canaries = routes.iter().filter_map(|active| {
            let facts = lock(&active.canary).facts.clone();
            let ended = facts.state != CanaryState::Trial;
            policies.get(&facts.policy).filter(|_| ended)?;
            let digest = lock(&active.canary).digest.clone();
            Some((
                active.route.name.clone(),
                SavedCanary { policy: facts.policy, digest, state: facts.state, why: facts.why },
            ))
        });
        let canaries = canaries.collect();
        let mut numbers = lock(&self.numbers).clone();
        numbers.retain(|name, _| !policies.contains_key(name));
        SavedState { policies, canaries, numbers, ..SavedState::default() }
    }
}

fn words(case: &Case<'_>) -> String {
    let Case { stage, family, model, arch, device, tag, quantized, pixels, frames } = case;
    let tag = tag.map_or_else(String::new, |tag| format!(", tag {tag}"));
    let quantized = if *quantized { ", quantized" } else { "" };
    let stage = format!("{stage:?}").to_lowercase();
    format!(
        "{stage}, family {family}, model {model}, device {device} ({arch}), {pixels} pixels, {frames} frames{quantized}{tag}"
    )
}
