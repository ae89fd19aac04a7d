//! Reloaded configurations, and changed files.

use std::{collections::BTreeMap, sync::Arc};

use tilewright_config::{Config, Source};

use super::{Replacement, Rollout, lock, opening::policy_specs};
use crate::{EventKind, Result, slot::Slot, state::raise};

impl Rollout {
    /// Switches to another configuration: changed policies go through the gate and take over, and
    /// all routes change together. A policy that was in service before and can't be replaced stays
    /// as it is; returns a line for each.
    ///
    /// # Errors
    /// A new policy can't be put in force, or the state can't be stored: the old configuration
    /// stays whole.
    pub fn reload(&self, config: &Config) -> Result<Vec<String>> {
        let before = self.slots.load_full();
        let mut slots = BTreeMap::new();
        let mut changed = Vec::new();
        for (name, wanted) in policy_specs(config) {
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
        // The old routes decide until the new ones do, so the policies of both stay until then.
        let mut both = (*before).clone();
        both.extend(slots.iter().map(|(name, slot)| (name.clone(), slot.clone())));
        {
            // Stored before a route leads to them.
            let mut written = lock(&self.written);
            self.slots.store(Arc::new(both));
            if let Err(error) = self.keep(&mut written, self.saved_state()) {
                self.save_numbers(&slots, &before);
                self.slots.store(before);
                return Err(error);
            }
        }
        self.config.store(Arc::new(config.clone()));
        let mut refused = Vec::new();
        for (slot, wanted) in changed {
            // Waits for another swap to end.
            let swapping = lock(&slot.swapping);
            if let Err(error) = self.swap_slot(&slot, swapping, &Replacement::Configured, None, Some(wanted)) {
                // Also among the events; the next reload tries it again.
                refused.push(format!("policy {}: {}", slot.name, error.one_line()));
            }
        }
        {
            let mut written = lock(&self.written);
            self.save_numbers(&before, &slots);
            let saved = self.saved_state();
            self.routes.store(Arc::new(self.in_force(config, &saved)));
            self.slots.store(Arc::new(slots));
            self.settle_or_say(&mut written);
        }
        self.log_unanswered();
        self.emit(EventKind::Reloaded, None, None, None, "the configuration was reloaded".into());
        Ok(refused)
    }

    /// Remembers the next numbers of policies that are among `these` slots but not among `those`.
    fn save_numbers(&self, these: &BTreeMap<String, Arc<Slot>>, those: &BTreeMap<String, Arc<Slot>>) {
        let mut numbers = lock(&self.numbers);
        for (name, slot) in these.iter().filter(|(name, _)| !those.contains_key(*name)) {
            raise(&mut numbers, name, slot.changing().next);
        }
    }

    /// Reports an invalid new configuration, certificate or token.
    pub fn report_refused_reload(&self, why: &str) {
        self.emit(EventKind::ReloadRefused, None, None, None, why.to_owned());
    }

    /// Checks every source that needs no registry, and every source that is new in the
    /// configuration.
    pub fn refresh_all(&self) {
        for name in self.slots.load().keys() {
            let Ok(slot) = self.find(name) else { continue };
            let (source, seen) = {
                let changing = slot.changing();
                (changing.wanted.source.clone(), changing.seen.clone())
            };
            // A registry may be slow, or out of reach.
            if seen.is_none() || !matches!(source, Source::Oci(_)) {
                self.refresh(name);
            }
        }
    }

    /// Checks if a policy's source has changed; if so, it takes over through the gate.
    pub fn refresh(&self, name: &str) {
        let Ok(slot) = self.find(name) else { return };
        let (wanted, seen) = {
            let changing = slot.changing();
            (changing.wanted.clone(), changing.seen.clone())
        };
        // A file that is being written, or gone for a moment, will change again.
        let Ok(fetched) = self.sources.fetch(&wanted.source, wanted.grants, &self.config.load()) else { return };
        if Some(fetched.fingerprint()) != seen {
            // A refusal is among the events.
            let _ = self.swap(name, &Replacement::Configured, None);
        }
    }
}
