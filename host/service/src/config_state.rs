//! The configuration: the part in force, the part that waits for a restart, and its faults.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use tilewright_config::{Config, ConfigSource};

/// The server's configuration. Requests read it while the watcher replaces it.
pub struct ConfigState {
    /// The configuration's file.
    pub source: ConfigSource,
    /// The configuration that the server was started with: some of it takes a restart to change.
    pub at_start: Config,
    /// True if the command line gave the address to listen on.
    pub is_listening_elsewhere: bool,
    /// Replaced whole, so that a reader sees one configuration or the other.
    in_force: ArcSwap<Config>,
    /// A std mutex: it is held for one read or write, never across an await.
    fault: Mutex<Option<String>>,
}

impl ConfigState {
    /// A configuration that is in force.
    pub fn new(source: ConfigSource, config: Config, is_listening_elsewhere: bool) -> Self {
        Self {
            source,
            at_start: config.clone(),
            is_listening_elsewhere,
            in_force: ArcSwap::from_pointee(config),
            fault: Mutex::default(),
        }
    }

    /// The configuration in force.
    pub fn in_force(&self) -> Guard<Arc<Config>> {
        self.in_force.load()
    }

    /// Puts a configuration in force.
    pub fn replace(&self, config: Config) {
        self.in_force.store(Arc::new(config));
    }

    fn lock_fault(&self) -> MutexGuard<'_, Option<String>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault of a newer configuration, in a line; none if the newest is in force as written.
    pub fn fault(&self) -> Option<String> {
        self.lock_fault().clone()
    }

    /// Sets or clears the fault.
    pub fn set_fault(&self, fault: Option<String>) {
        *self.lock_fault() = fault;
    }

    /// A line naming what has changed since the start and takes a restart.
    pub fn restart_notice(&self) -> Option<String> {
        let changed = self.at_start.changed_at_restart_only(&self.in_force());
        (!changed.is_empty()).then(|| format!("{} changed: that takes a restart", changed.join(", ")))
    }
}
