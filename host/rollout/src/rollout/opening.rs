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

use super::{InForce, Listener, Rollout, lock, now};
use crate::{
    Assignment, Disk, Modules, Pinned, Result, Revision,
    canary::Canary,
    disk,
    shadow::Shadows,
    slot::{Changing, Forces, Paused, Slot},
    source::{Settings, Sources, Wanted},
    state::{Kept, KeptPolicy, KeptRevision, State, raise},
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
        let kept = state.read()?;
        let written = state.is_current(&kept).then(|| Kept { version: 0, ..kept.clone() });
        let mut numbers = kept.next_numbers();
        for (name, number) in used {
            raise(&mut numbers, name, number.saturating_add(1));
        }
        let rollout = Self {
            sources: Sources::new(modules, cache),
            state,
            disk,
            dumps: folder.join("dumps"),
            config: ArcSwap::from_pointee(config.clone()),
            slots: ArcSwap::default(),
            routes: ArcSwap::default(),
            shadows: Shadows::start()?,
            events: Mutex::default(),
            written: Mutex::new(written),
            numbers: Mutex::new(numbers),
            listener,
        };
        let mut slots = BTreeMap::new();
        for (name, wanted) in wanted(config) {
            slots.insert(name.clone(), Arc::new(rollout.slot(&name, wanted, kept.policies.get(&name), config)?));
        }
        rollout.slots.store(Arc::new(slots));
        rollout.routes.store(Arc::new(rollout.in_force(config, &kept)));
        if let Err(error) = rollout.settle() {
            let is_known = |(name, policy): (&String, &KeptPolicy)| {
                kept.policies.get(name).is_some_and(|known| known.in_force.is_same(&policy.in_force))
            };
            // A revision that is not in the state file does not serve. One that was in force before
            // does.
            if !rollout.kept().policies.iter().all(is_known) {
                return Err(error);
            }
            tracing::error!(%error, "what is in force is as it was, and can't be written: it is once there is room");
        }
        rollout.refresh_all();
        Ok(Arc::new(rollout))
    }

    /// A policy's slot, with the revision that was in force before. A change of its source is
    /// looked for afterwards, so that a broken source does not prevent the start.
    pub(super) fn slot(&self, name: &str, wanted: Wanted, kept: Option<&KeptPolicy>, config: &Config) -> Result<Slot> {
        if let Some(kept) = kept {
            match self.revive(name, &kept.in_force, &config.policies) {
                Ok(in_force) => {
                    let revive = |kept: &KeptRevision| {
                        let revived = self.revive(name, kept, &config.policies);
                        let say = |error: &crate::Error| tracing::warn!(%error, policy = name, revision = kept.number, "can't be rolled back to any more");
                        revived.inspect_err(say).ok()
                    };
                    let previous = kept.previous.as_ref().and_then(revive).map(Arc::new);
                    let seen = kept.seen.clone().filter(|_| wanted.is_said_by(&kept.configured));
                    let forces = Forces { in_force: Arc::new(in_force), previous };
                    let next = self.next_number(name);
                    return Ok(Slot::new(name, forces, Changing { next, wanted, seen }, kept.into()));
                }
                Err(error) => {
                    tracing::warn!(%error, policy = name, "what was in force can't be put in force again: beginning from the configuration")
                }
            }
        }
        let next = self.next_number(name);
        let fetched = self.sources.fetch(&wanted.source, wanted.grants)?;
        let seen = Some(fetched.fingerprint());
        let settings = Settings::Given(&wanted.settings);
        let (digest, policies) = (wanted.digest.as_deref(), &config.policies);
        let prepared = self.sources.prepare(fetched, digest, settings, wanted.grants, policies)?;
        let in_force = Arc::new(Revision::new(name, next, now(), prepared));
        let paused = kept.map(Paused::from).unwrap_or_default();
        Ok(Slot::new(name, Forces { in_force, previous: None }, Changing { next: next + 1, wanted, seen }, paused))
    }

    /// The next revision number of a policy that is put in service: above all that it ever had.
    fn next_number(&self, name: &str) -> u64 {
        lock(&self.numbers).get(name).copied().unwrap_or(1)
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

    /// The routes; a trial continues if it is the same one.
    pub(super) fn in_force(&self, config: &Config, kept: &Kept) -> Vec<Arc<InForce>> {
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

    /// A route's canary at the start: a trial that has ended does not begin again.
    pub(super) fn trial(&self, route: &Route, kept: &Kept) -> Canary {
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

    /// The assignment of a job that was accepted before the server ended: the same revision, in
    /// force or not. The same number is not enough: module, settings and grants have to be those at
    /// its acceptance.
    ///
    /// # Errors
    /// The revision can't be loaded any more.
    pub fn revived(&self, pinned: &Pinned) -> Result<Assignment> {
        let slot = self.slots.load().get(&pinned.policy).cloned();
        let Pinned { number, digest, origin, since, settings, grants, .. } = pinned.clone();
        let kept = KeptRevision { number, digest, origin, since, settings, grants };
        let revision = match slot.as_ref().and_then(|slot| slot.at_hand(&kept)) {
            Some(revision) => revision,
            None => {
                let revision = Arc::new(self.revive(&pinned.policy, &kept, &self.config.load().policies)?);
                revision.judged().is_out = true;
                // The next job of this revision finds it there.
                slot.as_ref().inspect(|slot| slot.drain(&revision));
                revision
            }
        };
        let slot = match slot {
            Some(slot) => slot,
            // The policy is no longer configured: its revision decides for this job and goes.
            None => {
                let forces = Forces { in_force: revision.clone(), previous: None };
                let changing = Changing { next: 0, wanted: Wanted::shipped(&pinned.policy), seen: None };
                Arc::new(Slot::new(&pinned.policy, forces, changing, Paused::default()))
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
}

/// Every policy that the configuration names: those declared, and those that ship and a route
/// names.
pub(super) fn wanted(config: &Config) -> BTreeMap<String, Wanted> {
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
