//! Everything in service: the policies, the routes, and what is known of them.

mod changes;
mod opening;
mod verdicts;

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use arc_swap::ArcSwap;
use tilewright_config::{Case, Config, Route, Source, TakeOver};
use tilewright_policy::Verdict;

use crate::{
    Assignment, CanaryFacts, CanaryState, Error, Event, Result, Revision, ShadowFacts, SlotFacts, What,
    canary::Canary,
    shadow::{Asked, Shadow, Shadows},
    slot::Slot,
    source::{Sources, Wanted},
    state::{Kept, KeptCanary, KeptPolicy, State},
};

/// Events that are kept.
const EVENTS: usize = 512;

/// What a policy is to be replaced by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// A module that was uploaded, or was in force before.
    Stored {
        /// `sha256:…`
        digest: String,
    },
    /// From where it can be had.
    From(Source),
    /// What the configuration says, as it is now.
    Configured,
}

/// What a change came to.
#[derive(Clone, Debug)]
pub struct Change {
    /// In force now.
    pub in_force: Arc<Revision>,
    /// False where it was in force already, and nothing has changed.
    pub changed: bool,
}

/// What the gate says of a module that is stored now.
#[derive(Clone, Debug)]
pub struct Checked {
    /// `sha256:…`
    pub digest: String,
    /// Everything that it found.
    pub verdict: Verdict,
}

/// A route and what is on trial on it.
struct InForce {
    route: Route,
    shadow: Arc<Shadow>,
    /// Shared with the same route of the configuration before.
    canary: Arc<Mutex<Canary>>,
}

type Listener = Box<dyn Fn(&Event) + Send + Sync>;

/// Policies in service.
pub struct Rollout {
    sources: Sources,
    state: State,
    dumps: PathBuf,
    config: ArcSwap<Config>,
    slots: ArcSwap<BTreeMap<String, Arc<Slot>>>,
    routes: ArcSwap<Vec<Arc<InForce>>>,
    shadows: Shadows,
    events: Mutex<VecDeque<Event>>,
    /// Held while what is in force is written down.
    writing: Mutex<()>,
    listener: Listener,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

impl Rollout {
    /// Who decides for a job that is accepted now.
    ///
    /// # Errors
    /// [`Error::NoRoute`]
    pub fn admit(&self, case: &Case<'_>) -> Result<Assignment> {
        let (routes, slots) = (self.routes.load(), self.slots.load());
        let taking = routes.iter().find(|taking| taking.route.conditions.matches(case));
        let taking = taking.ok_or_else(|| Error::NoRoute { case: words(case) })?;
        let find = |name: &str| slots.get(name).cloned().ok_or_else(|| self.unknown(name));
        let InForce { route, shadow, canary } = &**taking;
        let mut slot = find(&route.policy)?;
        let incumbent = slot.forces.load().in_force.clone();
        let (mut revision, mut on_trial, mut compare) = (incumbent.clone(), false, None);
        if let Some(trial) = &route.canary {
            let candidates = find(&trial.policy)?;
            let candidate = candidates.forces.load().in_force.clone();
            let mut canary = lock(canary);
            if (canary.facts.policy.as_str(), canary.facts.revision) != (trial.policy.as_str(), candidate.number) {
                // Another revision begins a trial of its own.
                *canary = Canary::begin(&trial.policy, candidate.number, &candidate.digest);
            }
            if !candidates.is_paused() && canary.takes(trial.share) {
                compare = canary.samples(trial.sample).then_some(incumbent);
                (revision, slot, on_trial) = (candidate, candidates, true);
            }
        }
        let shadowing =
            |name: &String| -> Result<_> { Ok((shadow.clone(), find(name)?.forces.load().in_force.clone())) };
        // What is compared is the incumbent.
        let shadow = route.shadow.as_ref().filter(|_| !on_trial).map(shadowing);
        Ok(Assignment {
            route: route.name.clone(),
            revision,
            canary: on_trial,
            compare,
            objective: route.objective,
            memory_limit: route.memory_limit_bytes,
            takes_over: route.take_over == TakeOver::NextChunk,
            slot,
            shadow: shadow.transpose()?,
        })
    }

    pub(crate) fn ask_shadow(&self, asked: Asked) {
        self.shadows.ask(asked);
    }

    /// Files that are to be watched, with the policies that they are of.
    pub fn watched(&self) -> Vec<(PathBuf, String)> {
        let slots = self.slots.load();
        let of = |slot: &Arc<Slot>| match &slot.changing().wanted {
            Wanted { source: Source::File(path), watch: true, .. } => Some((path.clone(), slot.name.clone())),
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

    /// One of them.
    ///
    /// # Errors
    /// [`Error::UnknownPolicy`]
    pub fn policy(&self, name: &str) -> Result<SlotFacts> {
        Ok(self.find(name)?.facts())
    }

    /// Every route in order, with its shadow and its canary where it has them.
    pub fn routes(&self) -> Vec<(Route, Option<ShadowFacts>, Option<CanaryFacts>)> {
        let facts = |taking: &Arc<InForce>| {
            let InForce { route, shadow, canary } = &**taking;
            let shadow = route.shadow.as_ref().map(|name| shadow.facts_of(name));
            (route.clone(), shadow, route.canary.as_ref().map(|_| lock(canary).facts.clone()))
        };
        self.routes.load().iter().map(facts).collect()
    }

    /// What happened, newest first.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.events).iter().rev().cloned().collect()
    }

    /// Removes modules that neither a revision nor one of these jobs needs.
    pub fn forget_modules(&self, needed: &[String]) {
        let kept = self.kept();
        let digests = kept.policies.values().flat_map(|policy| {
            [Some(&policy.in_force), policy.previous.as_ref()]
                .into_iter()
                .flatten()
                .map(|revision| revision.digest.clone())
        });
        let digests: Vec<String> = digests.chain(needed.iter().cloned()).collect();
        self.sources.modules.retain(&digests);
    }

    fn tell(&self, what: What, policy: Option<&str>, route: Option<&str>, revision: Option<u64>, detail: String) {
        let (policy, route) = (policy.map(str::to_owned), route.map(str::to_owned));
        let event = Event { time: now(), what, policy, route, revision, detail };
        {
            let mut events = lock(&self.events);
            events.push_back(event.clone());
            if events.len() > EVENTS {
                events.pop_front();
            }
        }
        (self.listener)(&event);
        self.write_or_say();
    }

    fn write_or_say(&self) {
        if let Err(error) = self.write() {
            tracing::error!(%error, "what is in force can't be kept: a restart begins from what was kept before");
        }
    }

    fn kept(&self) -> Kept {
        let (slots, routes) = (self.slots.load(), self.routes.load());
        let policies = slots.iter().map(|(name, slot)| {
            let changing = slot.changing();
            let forces = slot.forces.load_full();
            let kept = KeptPolicy {
                next: changing.next,
                configured: configured(&changing.wanted),
                seen: changing.seen.clone(),
                in_force: (&*forces.in_force).into(),
                previous: forces.previous.as_deref().map(Into::into),
                paused: slot.is_paused(),
            };
            (name.clone(), kept)
        });
        let policies: BTreeMap<String, KeptPolicy> = policies.collect();
        let canaries = routes.iter().filter_map(|taking| {
            let facts = lock(&taking.canary).facts.clone();
            let ended = facts.state != CanaryState::Trial;
            let digest = policies.get(&facts.policy).filter(|_| ended)?;
            let digest = if digest.in_force.number == facts.revision {
                digest.in_force.digest.clone()
            } else {
                lock(&taking.canary).digest.clone()
            };
            Some((
                taking.route.name.clone(),
                KeptCanary { policy: facts.policy, digest, state: facts.state, why: facts.why },
            ))
        });
        let canaries = canaries.collect();
        Kept { policies, canaries }
    }

    fn write(&self) -> Result<()> {
        let _writing = lock(&self.writing);
        self.state.write(&self.kept())
    }
}

/// What is configured of a policy, as one text that can be compared.
fn configured(wanted: &Wanted) -> String {
    format!("{wanted:?}")
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

fn one_line(error: &Error) -> String {
    error.one_line()
}
