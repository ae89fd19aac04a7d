//! The start: routes of a configuration, revisions in force before, and jobs that were accepted
//! before.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;
use tilewright_config::{Canary as CanaryRoute, Config, Policies, Route};
use tilewright_policy::CacheDir;

use super::{ActiveRoute, Listener, Rollout, lock, now};
use crate::{
    Assignment, CanaryFacts, Disk, Modules, Result, Revision, StoredAssignment,
    canary::Canary,
    counts::Counts,
    disk,
    shadow::ShadowQueue,
    slot::{ActiveRevisions, Changing, PauseState, Slot},
    source::{PolicySpec, Settings, Sources},
    state::{SavedPolicy, SavedRevision, SavedState, State, raise},
};

impl Rollout {
    /// Puts every policy in force that the configuration names, or that was in force when the
    /// server ended; `listener` gets every event. `used`: by policy, the highest number that any
    /// job was given; neither it nor any lower one is used again, even if the state file is lost.
    ///
    /// # Errors
    /// The [`crate::Error`] of a policy that can't be put in force, or of new state that can't be
    /// stored.
    pub fn open(
        folder: &Path,
        disk: Disk,
        used: &BTreeMap<String, u64>,
        config: &Config,
        cache: CacheDir,
        listener: Listener,
    ) -> Result<Arc<Self>> {
        disk::remove_unfinished(folder);
        let modules = Modules::open(&folder.join("modules"), disk.clone())?;
        let state = State::at(folder.join("rollout.json"), disk.clone());
        let saved = state.read()?;
        let written = state.is_current(&saved).then(|| SavedState { version: 0, ..saved.clone() });
        let mut numbers = saved.next_numbers();
        for (name, number) in used {
            raise(&mut numbers, name, number.saturating_add(1));
        }
        let rollout = Self {
            sources: Sources::new(modules, cache),
            state,
            counts: Counts::open(folder.join("rollout-counts.json")),
            disk,
            dumps: folder.join("dumps"),
            config: ArcSwap::from_pointee(config.clone()),
            slots: ArcSwap::default(),
            routes: ArcSwap::default(),
            shadows: ShadowQueue::start()?,
            events: Mutex::default(),
            written: Mutex::new(written),
            numbers: Mutex::new(numbers),
            listener,
        };
        let mut slots = BTreeMap::new();
        for (name, wanted) in policy_specs(config) {
            slots.insert(name.clone(), Arc::new(rollout.slot(&name, wanted, saved.policies.get(&name), config)?));
        }
        rollout.slots.store(Arc::new(slots));
        let routes = rollout.in_force(config, &saved);
        routes.iter().for_each(|active| rollout.restore_trial(active));
        rollout.routes.store(Arc::new(routes));
        if let Err(error) = rollout.settle() {
            let is_known = |(name, policy): (&String, &SavedPolicy)| {
                saved.policies.get(name).is_some_and(|known| known.in_force.is_same(&policy.in_force))
            };
            // A revision that is not in the state file does not serve. One that was in force before
            // does.
            if !rollout.saved_state().policies.iter().all(is_known) {
                return Err(error);
            }
            tracing::error!(%error, "the state in force is unchanged, but can't be stored until there is room");
        }
        rollout.refresh_all();
        rollout.log_unanswered();
        Ok(Arc::new(rollout))
    }

    /// A policy's slot, with the revision that was in force before. A change of its source is
    /// looked for afterwards, so that a broken source does not prevent the start.
    pub(super) fn slot(
        &self,
        name: &str,
        wanted: PolicySpec,
        saved: Option<&SavedPolicy>,
        config: &Config,
    ) -> Result<Slot> {
        if let Some(saved) = saved {
            match self.revive(name, &saved.in_force, &config.policies) {
                Ok(in_force) => {
                    let revive = |saved: &SavedRevision| {
                        let revived = self.revive(name, saved, &config.policies);
                        let say = |error: &crate::Error| tracing::warn!(%error, policy = name, revision = saved.number, "can't be rolled back to any more");
                        revived.inspect_err(say).ok()
                    };
                    let previous = saved.previous.as_ref().and_then(revive).map(Arc::new);
                    let seen = saved.seen.clone().filter(|_| wanted.matches_text(&saved.configured));
                    let forces = ActiveRevisions { in_force: Arc::new(in_force), previous };
                    let next = self.next_number(name);
                    return Ok(Slot::new(name, forces, Changing { next, wanted, seen }, saved.into()));
                }
                Err(error) => {
                    tracing::warn!(%error, policy = name, "the saved revision can't be loaded: beginning from the configuration")
                }
            }
        }
        let next = self.next_number(name);
        let fetched = self.sources.fetch(&wanted.source, wanted.grants, config)?;
        let seen = Some(fetched.fingerprint());
        let settings = Settings::Given(&wanted.settings);
        let (digest, policies) = (wanted.digest.as_deref(), &config.policies);
        let prepared = self.sources.prepare(fetched, digest, settings, wanted.grants, policies)?;
        let in_force = Arc::new(Revision::new(name, next, now(), prepared));
        let paused = saved.map(PauseState::from).unwrap_or_default();
        Ok(Slot::new(
            name,
            ActiveRevisions { in_force, previous: None },
            Changing { next: next + 1, wanted, seen },
            paused,
        ))
    }

    /// The next revision number of a policy that is put in service: above all that it ever had.
    fn next_number(&self, name: &str) -> u64 {
        lock(&self.numbers).get(name).copied().unwrap_or(1)
    }

    fn revive(&self, policy: &str, saved: &SavedRevision, policies: &Policies) -> Result<Revision> {
        let (fetched, settings) = (self.sources.fetch_stored(&saved.digest)?, Settings::Given(&saved.settings));
        let mut prepared = self.sources.prepare(fetched, None, settings, saved.grants, policies)?;
        prepared.origin = saved.origin.clone();
        let revision = Revision::new(policy, saved.number, saved.since.clone(), prepared);
        revision.performance().tally.facts = self.counts.before.revision(policy, saved.number, &saved.digest);
        Ok(revision)
    }

    /// Gives a trial that goes on, or that has ended, the counts that it had.
    fn restore_trial(&self, active: &ActiveRoute) {
        let Some(known) = self.counts.before.trials.get(&active.route.name) else { return };
        let mut canary = lock(&active.canary);
        let CanaryFacts { policy, revision, state, why, .. } = &canary.facts;
        if (policy, *revision, &canary.digest) == (&known.facts.policy, known.facts.revision, &known.digest) {
            canary.facts = CanaryFacts { state: *state, why: why.clone(), ..known.facts.clone() };
        }
    }

    /// The routes; a trial continues if it is the same one.
    pub(super) fn in_force(&self, config: &Config, saved: &SavedState) -> Vec<Arc<ActiveRoute>> {
        let before = self.routes.load_full();
        let routes = config.routes().iter().cloned().map(|route| {
            let old = before.iter().find(|old| old.route.name == route.name);
            let same = |old: &&Arc<ActiveRoute>| {
                old.route.canary.as_ref().map(|c| &c.policy) == route.canary.as_ref().map(|c| &c.policy)
            };
            let canary = old.filter(same).map(|old| old.canary.clone());
            let canary = canary.unwrap_or_else(|| Arc::new(Mutex::new(self.trial(&route, saved))));
            let shadow = old.filter(|old| old.route.shadow == route.shadow).map(|old| old.shadow.clone());
            Arc::new(ActiveRoute { shadow: shadow.unwrap_or_default(), canary, route })
        });
        routes.collect()
    }

    /// A route's canary at the start: a trial that has ended does not begin again.
    pub(super) fn trial(&self, route: &Route, saved: &SavedState) -> Canary {
        let Some(CanaryRoute { policy, .. }) = &route.canary else { return Canary::default() };
        let Some(slot) = self.slots.load().get(policy).cloned() else { return Canary::default() };
        let candidate = slot.forces.load().in_force.clone();
        let mut canary = Canary::begin(policy, candidate.number, &candidate.digest);
        let ended =
            saved.canaries.get(&route.name).filter(|saved| saved.policy == *policy && saved.digest == candidate.digest);
        if let Some(saved) = ended {
            (canary.facts.state, canary.facts.why) = (saved.state, saved.why.clone());
        }
        canary
    }

    /// The assignment of a job that was accepted before the server ended: the same revision, in
    /// force or not. The same number is not enough: module, settings and grants have to be those at
    /// its acceptance.
    ///
    /// # Errors
    /// The revision can't be loaded any more.
    pub fn revive_assignment(&self, pinned: &StoredAssignment) -> Result<Assignment> {
        let slot = self.slots.load().get(&pinned.policy).cloned();
        let revision = match slot.as_ref().and_then(|slot| slot.at_hand(&pinned.revision)) {
            Some(revision) => revision,
            None => {
                let revision = Arc::new(self.revive(&pinned.policy, &pinned.revision, &self.config.load().policies)?);
                revision.performance().is_out = true;
                // The next job of this revision finds it there.
                slot.as_ref().inspect(|slot| slot.drain(&revision));
                revision
            }
        };
        let slot = match slot {
            Some(slot) => slot,
            // The policy is no longer configured: its revision decides for this job and goes.
            None => {
                let forces = ActiveRevisions { in_force: revision.clone(), previous: None };
                let changing = Changing { next: 0, wanted: PolicySpec::for_shipped(&pinned.policy), seen: None };
                Arc::new(Slot::new(&pinned.policy, forces, changing, PauseState::default()))
            }
        };
        let StoredAssignment { canary, objective, allows_blended, memory_limit, takes_over, .. } = *pinned;
        let (route, compare, shadow) = (pinned.route.clone(), None, None);
        Ok(Assignment {
            route,
            revision,
            canary,
            compare,
            objective,
            allows_blended,
            memory_limit,
            takes_over,
            slot,
            shadow,
        })
    }
}

/// Every policy that the configuration names: those declared, and those that ship and a route
/// names.
pub(super) fn policy_specs(config: &Config) -> BTreeMap<String, PolicySpec> {
    let mut all: BTreeMap<String, PolicySpec> =
        config.policies.named.iter().map(|(name, policy)| (name.clone(), PolicySpec::from(policy))).collect();
    for route in config.routes() {
        let named = [Some(&route.policy), route.shadow.as_ref(), route.canary.as_ref().map(|canary| &canary.policy)];
        for name in named.into_iter().flatten() {
            all.entry(name.clone()).or_insert_with(|| PolicySpec::for_shipped(name));
        }
    }
    all
}
