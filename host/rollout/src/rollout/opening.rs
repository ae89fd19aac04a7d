//! How everything comes in force: at the start, with the routes of a configuration, and for jobs that were accepted before.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use arc_swap::ArcSwap;
use tilewright_config::{Canary as CanaryRoute, Config, Policies, Route, Source};
use tilewright_policy::CacheDir;

use super::{InForce, Listener, Rollout, configured, now};
use crate::{
    Assignment, Modules, Pinned, Result, Revision,
    canary::Canary,
    shadow::Shadows,
    slot::{Changing, Forces, Slot},
    source::{Settings, Sources, Wanted},
    state::{Kept, KeptPolicy, KeptRevision, State},
};

impl Rollout {
    /// Puts everything in force that the configuration names, or that was in force when the server ended; the listener hears of every event.
    ///
    /// # Errors
    /// A policy can't be put in force: its [`crate::Error`]; the folder can't be written.
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
    pub(super) fn slot(&self, name: &str, wanted: Wanted, kept: Option<&KeptPolicy>, config: &Config) -> Result<Slot> {
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

    /// A route's canary at the beginning: one whose trial has ended does not begin again.
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
}

/// Every policy that the configuration names: those declared, and those that ship and a route names.
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
