//! Everything in service: the policies, the routes, and what is done to them.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, atomic::Ordering},
    time::SystemTime,
};

use arc_swap::ArcSwap;
use tilewright_config::{Canary as CanaryRoute, Case, Config, Policies, Route, Source, TakeOver};
use tilewright_policy::{CacheDir, Verdict};

use crate::{
    Assignment, CanaryFacts, CanaryState, Ended, Error, Event, Modules, Pinned, Result, Revision, ShadowFacts,
    SlotFacts, What,
    canary::{Canary, Finding},
    shadow::{Asked, Shadow, Shadows},
    slot::{Changing, Forces, Refused, Slot},
    source::{Fetched, Prepared, Settings, Sources, Wanted},
    state::{Kept, KeptCanary, KeptPolicy, KeptRevision, State},
    tally, watchdog,
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
    /// Puts everything in force that the configuration names, or that was in force when the server ended; the listener hears of every event.
    ///
    /// # Errors
    /// A policy can't be put in force: its [`Error`]; the folder can't be written.
    pub fn open(folder: &Path, config: &Config, cache: CacheDir, listener: Listener) -> Result<Arc<Self>> {
        let modules = Modules::open(&folder.join("modules"))?;
        let state = State::at(folder.join("rollout.json"));
        let kept = state.read()?;
        let rollout = Self {
            sources: Sources::new(modules, cache),
            state,
            dumps: folder.join("dumps"),
            config: ArcSwap::from_pointee(config.clone()),
            slots: ArcSwap::default(),
            routes: ArcSwap::default(),
            shadows: Shadows::start()?,
            events: Mutex::default(),
            writing: Mutex::default(),
            listener,
        };
        let mut slots = BTreeMap::new();
        for (name, wanted) in wanted(config) {
            slots.insert(name.clone(), Arc::new(rollout.slot(&name, wanted, kept.policies.get(&name), config)?));
        }
        rollout.slots.store(Arc::new(slots));
        rollout.routes.store(Arc::new(rollout.in_force(config, &kept)));
        rollout.write()?;
        for name in kept.policies.keys() {
            let Ok(slot) = rollout.find(name) else { continue };
            let (source, seen) = {
                let changing = slot.changing();
                (changing.wanted.source.clone(), changing.seen.clone())
            };
            // A registry is asked where the configuration says something new; it may take long, or be away.
            if seen.is_none() || !matches!(source, Source::Oci(_)) {
                rollout.refresh(name);
            }
        }
        Ok(Arc::new(rollout))
    }

    /// A policy's slot, with what was in force before. Whether its source says something else by now is looked at afterwards: what is broken
    /// then keeps nobody from starting.
    fn slot(&self, name: &str, wanted: Wanted, kept: Option<&KeptPolicy>, config: &Config) -> Result<Slot> {
        if let Some(kept) = kept {
            match self.revive(name, &kept.in_force, &config.policies) {
                Ok(in_force) => {
                    let revive = |kept: &KeptRevision| self.revive(name, kept, &config.policies).ok();
                    let previous = kept.previous.as_ref().and_then(revive).map(Arc::new);
                    let seen = kept.seen.clone().filter(|_| kept.configured == configured(&wanted));
                    let forces = Forces { in_force: Arc::new(in_force), previous };
                    return Ok(Slot::new(name, forces, Changing { next: kept.next, wanted, seen }, kept.paused));
                }
                Err(error) => {
                    tracing::warn!(%error, policy = name, "what was in force can't be put in force again: beginning from the configuration")
                }
            }
        }
        let next = kept.map_or(1, |kept| kept.next);
        let fetched = self.sources.fetch(&wanted.source, wanted.grants)?;
        let seen = Some(fetched.fingerprint());
        let settings = Settings::Given(&wanted.settings);
        let (digest, policies) = (wanted.digest.as_deref(), &config.policies);
        let prepared = self.sources.prepare(fetched, digest, settings, wanted.grants, policies)?;
        let in_force = Arc::new(Revision::new(name, next, now(), prepared));
        let paused = kept.is_some_and(|kept| kept.paused);
        Ok(Slot::new(name, Forces { in_force, previous: None }, Changing { next: next + 1, wanted, seen }, paused))
    }

    fn revive(&self, policy: &str, kept: &KeptRevision, policies: &Policies) -> Result<Revision> {
        let mut prepared = self.sources.prepare(
            self.sources.stored(&kept.digest)?,
            None,
            Settings::Given(&kept.settings),
            kept.grants,
            policies,
        )?;
        prepared.origin = kept.origin.clone();
        Ok(Revision::new(policy, kept.number, kept.since.clone(), prepared))
    }

    /// The routes; what is on trial goes on where it is the same trial.
    fn in_force(&self, config: &Config, kept: &Kept) -> Vec<Arc<InForce>> {
        let before = self.routes.load_full();
        let routes = config.routes().iter().cloned().map(|route| {
            let old = before.iter().find(|old| old.route.name == route.name);
            let same = |old: &&Arc<InForce>| {
                old.route.canary.as_ref().map(|c| &c.policy) == route.canary.as_ref().map(|c| &c.policy)
            };
            let canary = old.filter(same).map(|old| old.canary.clone());
            let canary = canary.unwrap_or_else(|| Arc::new(Mutex::new(self.trial(&route, kept))));
            let shadow = old.filter(|old| old.route.shadow == route.shadow).map(|old| old.shadow.clone());
            Arc::new(InForce { shadow: shadow.unwrap_or_default(), canary, route })
        });
        routes.collect()
    }

    /// A route's canary at the beginning: one whose trial has ended does not begin again.
    fn trial(&self, route: &Route, kept: &Kept) -> Canary {
        let Some(CanaryRoute { policy, .. }) = &route.canary else { return Canary::default() };
        let Some(slot) = self.slots.load().get(policy).cloned() else { return Canary::default() };
        let candidate = slot.forces.load().in_force.clone();
        let mut canary = Canary::begin(policy, candidate.number, &candidate.digest);
        let ended =
            kept.canaries.get(&route.name).filter(|kept| kept.policy == *policy && kept.digest == candidate.digest);
        if let Some(kept) = ended {
            (canary.facts.state, canary.facts.why) = (kept.state, kept.why.clone());
        }
        canary
    }

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

    /// The assignment of a job that was accepted before the server ended: the same revision, in force or not.
    ///
    /// # Errors
    /// The revision can't be had any more.
    pub fn revived(&self, pinned: &Pinned) -> Result<Assignment> {
        let slots = self.slots.load();
        let forces = slots.get(&pinned.policy).map(|slot| (slot.clone(), slot.forces.load_full()));
        let found = forces.as_ref().and_then(|(_, forces)| {
            let candidates = [Some(&forces.in_force), forces.previous.as_ref()];
            candidates
                .into_iter()
                .flatten()
                .find(|revision| revision.number == pinned.number && revision.digest == pinned.digest)
                .cloned()
        });
        let revision = match found {
            Some(revision) => revision,
            None => {
                let Pinned { number, digest, origin, since, settings, grants, .. } = pinned.clone();
                let kept = KeptRevision { number, digest, origin, since, settings, grants };
                let revision = Arc::new(self.revive(&pinned.policy, &kept, &self.config.load().policies)?);
                revision.judged().is_out = true;
                revision
            }
        };
        let slot = match forces {
            Some((slot, _)) => slot,
            // The policy is no longer configured: its revision decides for this job and goes.
            None => {
                let forces = Forces { in_force: revision.clone(), previous: None };
                let changing = Changing { next: 0, wanted: Wanted::shipped(&pinned.policy), seen: None };
                Arc::new(Slot::new(&pinned.policy, forces, changing, false))
            }
        };
        let Pinned { route, canary, objective, memory_limit, takes_over, .. } = pinned.clone();
        Ok(Assignment {
            route,
            revision,
            canary,
            compare: None,
            objective,
            memory_limit,
            takes_over,
            slot,
            shadow: None,
        })
    }

    pub(crate) fn ask_shadow(&self, asked: Asked) {
        self.shadows.ask(asked);
    }

    /// Counts a decision; the watchdog looks at it when the job has ended, and its record is there to be dumped.
    pub(crate) fn decided(&self, revision: &Revision, failed: bool) {
        revision.judged().tally.decided(failed);
    }

    /// Hears what came of a job: counts it, and acts on what that shows.
    pub fn ended(&self, assignment: &Assignment, ended: Ended) {
        let Ended { record, is_mixed, is_lost, psnr } = ended;
        let revision = &assignment.revision;
        let kind = tally::kind(&record.request, &record.device);
        let measured = record.measured().filter(|_| !is_mixed && record.fallback.is_none()).map(tally::Sample::from);
        // What never ends well takes the longest of times.
        let sample = measured.or((is_lost && !is_mixed).then_some(tally::Sample::LOST));
        let Some(slot) = self.slots.load().get(&revision.policy).cloned() else { return };
        // Taken before this revision's own counts are locked: two locks at once could wait for each other.
        let previous = slot.forces.load().previous.clone().filter(|previous| previous.number < revision.number);
        let median = previous.and_then(|previous| previous.judged().tally.median(&kind));
        let mut why = None;
        {
            let mut judged = revision.judged();
            judged.tally.facts.jobs += 1;
            if record.exchange.is_some() && !is_mixed {
                judged.ring.push(record);
            }
            if let Some(sample) = sample {
                judged.tally.ended(&kind, sample);
                if let Some(median) = median.filter(|_| !judged.is_out) {
                    why = watchdog::worse(&mut judged.watch, sample, median);
                }
            }
        }
        if assignment.canary {
            self.canary_ended(assignment, &kind, sample, psnr);
        }
        // A clip may have gone on under the revision that is in force now.
        let in_force = slot.forces.load().in_force.clone();
        for decided in [revision, &in_force] {
            let why = why.take().or_else(|| failing(&slot, decided));
            if let Some(why) = why {
                self.take_back(&slot, decided, &why);
            }
        }
    }

    fn canary_ended(
        &self,
        assignment: &Assignment,
        kind: &tally::Kind,
        sample: Option<tally::Sample>,
        psnr: Option<f64>,
    ) {
        let routes = self.routes.load();
        let Some(taking) = routes.iter().find(|taking| taking.route.name == assignment.route) else { return };
        let Some(trial) = &taking.route.canary else { return };
        let Some(incumbent) =
            self.slots.load().get(&taking.route.policy).map(|slot| slot.forces.load().in_force.clone())
        else {
            return;
        };
        let median = incumbent.judged().tally.median(kind);
        let job = sample.unwrap_or(tally::Sample::LOST);
        let mut canary = lock(&taking.canary);
        if canary.facts.revision != assignment.revision.number || canary.facts.policy != assignment.revision.policy {
            return;
        }
        let finding = canary.ended(job, median, psnr, trial.psnr_db, trial.sample > 0.0);
        drop(canary);
        match finding {
            Some(Finding::Promote(why)) => {
                if let Err(error) = self.promoted(taking, &why) {
                    tracing::error!(%error, route = taking.route.name, "the canary can't be promoted");
                }
            }
            Some(Finding::Stop(why)) => self.stopped(taking, &why),
            None => {}
        }
    }

    /// The watchdog's verdict: the previous revision takes over, or, where there is none, nobody is asked; with a dump either way.
    fn take_back(&self, slot: &Arc<Slot>, revision: &Arc<Revision>, why: &str) {
        let changing = slot.changing();
        let forces = slot.forces.load_full();
        if std::mem::replace(&mut revision.judged().is_out, true) || !Arc::ptr_eq(&forces.in_force, revision) {
            return;
        }
        slot.refuse(Refused { time: now(), origin: revision.origin.clone(), why: why.into() });
        let went_back = slot.go_back();
        if went_back.is_none() {
            slot.paused.store(true, Ordering::Release);
            slot.paused_by_watchdog.store(true, Ordering::Release);
        }
        let in_force = slot.forces.load().in_force.number;
        drop(changing);
        let ring = std::mem::take(&mut revision.judged().ring);
        let dump = match ring.write(&self.dumps, &slot.name, revision.number) {
            Ok(path) => format!("; its last decisions: tilewright policy replay {}", path.display()),
            Err(error) => format!("; its last decisions can't be kept: {error}"),
        };
        let number = revision.number;
        let detail = match went_back {
            Some(_) => format!("revision {number} was taken back ({why}); revision {in_force} is in force again{dump}"),
            None => format!(
                "revision {number} has none before it and is no longer asked ({why}): the native default decides{dump}"
            ),
        };
        // Canaries of this policy end with it.
        for taking in self
            .routes
            .load()
            .iter()
            .filter(|taking| taking.route.canary.as_ref().is_some_and(|canary| canary.policy == slot.name))
        {
            self.stopped(taking, why);
            // What is in force again was not on trial, and is not now.
            lock(&taking.canary).facts.revision = in_force;
        }
        self.tell(What::WatchdogRolledBack, Some(&slot.name), None, Some(in_force), detail);
    }

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
            Replacement::From(source) => self.sources.fetch(source, wanted.grants),
            Replacement::Configured => self.sources.fetch(&wanted.source, wanted.grants),
        }
    }

    fn put_in_force(&self, slot: &Arc<Slot>, prepared: Prepared, what: What, route: Option<&str>) -> Change {
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
        let (new, old) = (revision.number, before.in_force.number);
        let detail = format!(
            "revision {new} took over from {old}: {} {} from {}",
            revision.identity.name, revision.identity.version, revision.origin
        );
        self.tell(what, Some(&slot.name), route, Some(new), detail);
        Change { in_force: revision, changed: true }
    }

    fn refused(&self, slot: &Slot, origin: &str, error: &Error) {
        let in_force = slot.forces.load().in_force.number;
        slot.refuse(Refused { time: now(), origin: origin.into(), why: one_line(error) });
        let detail = format!("{}; revision {in_force} stays in force", one_line(error));
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

    fn promoted(&self, taking: &InForce, why: &str) -> Result<Change> {
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
        let change = self.put_in_force(&slot, prepared, What::Promoted, Some(&taking.route.name));
        tracing::info!(route = taking.route.name, why, "the canary was promoted");
        Ok(change)
    }

    fn stopped(&self, taking: &InForce, why: &str) {
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

    /// Files that are to be watched, with the policies that they are of.
    pub fn watched(&self) -> Vec<(PathBuf, String)> {
        let slots = self.slots.load();
        let of = |slot: &Arc<Slot>| match &slot.changing().wanted {
            Wanted { source: Source::File(path), watch: true, .. } => Some((path.clone(), slot.name.clone())),
            _ => None,
        };
        slots.values().filter_map(of).collect()
    }

    /// Stores a module and says what the gate says of it, with what the policy that it is for may use.
    ///
    /// # Errors
    /// It can't be loaded at all; [`Error::UnknownPolicy`]
    pub fn upload(&self, bytes: Vec<u8>, policy: Option<&str>) -> Result<Checked> {
        let grants = policy.map(|name| Ok::<_, Error>(self.find(name)?.changing().wanted.grants)).transpose()?;
        let digest = crate::module::digest(&bytes);
        let origin = format!("modules/{}.wasm", digest.trim_start_matches("sha256:"));
        let fetched = Fetched { bytes, origin, shipped: None, signature: None };
        let verdict = self.sources.check(&fetched, Settings::Given(&[]), grants.unwrap_or_default())?;
        Ok(Checked { digest, verdict })
    }

    /// Keeps a signature beside a stored module; whose it is counts when the module is put in force.
    ///
    /// # Errors
    /// No such module; no signature at all.
    pub fn sign(&self, digest: &str, signature: &str) -> Result<()> {
        tilewright_signing::key_of(signature)
            .map_err(|refusal| Error::Unsigned { policy: digest.chars().take(80).collect(), refusal })?;
        self.sources.modules.get(digest)?;
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
        self.sources.check(&fetched, settings_for(replacement, settings, &wanted, &in_force), wanted.grants)
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

/// Why a revision fails too often, where it does.
fn failing(slot: &Slot, revision: &Arc<Revision>) -> Option<String> {
    let previous = slot.forces.load().previous.clone().filter(|previous| previous.number < revision.number);
    let before = previous.map(|previous| previous.judged().tally.recent_failures());
    let judged = revision.judged();
    if judged.is_out { None } else { watchdog::fails(&judged.tally, before) }
}

/// Every policy that the configuration names: those declared, and those that ship and a route names.
fn wanted(config: &Config) -> BTreeMap<String, Wanted> {
    let mut all: BTreeMap<String, Wanted> =
        config.policies.named.iter().map(|(name, policy)| (name.clone(), Wanted::from(policy))).collect();
    for route in config.routes() {
        let named = [Some(&route.policy), route.shadow.as_ref(), route.canary.as_ref().map(|canary| &canary.policy)];
        for name in named.into_iter().flatten() {
            all.entry(name.clone()).or_insert_with(|| Wanted::shipped(name));
        }
    }
    all
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
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text.lines().collect::<Vec<_>>().join(", ")
}
