//! The configuration: the part in force, the part that waits for a restart, and its faults.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};
use tilewright_config::{Config, ConfigSource, Role};
use tilewright_rollout::without_error_numbers;

use crate::error::one_line;

/// A fault in a line for the log and for callers who administer, and in one for other callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The whole fault. It may quote a file that is not what it should be.
    pub full: String,
    /// The fault without quotes of such a file.
    public: String,
}

impl Fault {
    /// The line for callers of a role.
    pub fn for_role(&self, role: Role) -> &str {
        if role >= Role::Operate { &self.full } else { &self.public }
    }

    /// The line for callers of every role.
    pub fn for_all(&self) -> &str {
        &self.public
    }
}

impl From<String> for Fault {
    fn from(line: String) -> Self {
        let public = without_error_numbers(&line);
        Self { full: public.clone(), public }
    }
}

impl From<tilewright_config::Error> for Fault {
    fn from(error: tilewright_config::Error) -> Self {
        let (full, public) = (one_line(&error), error.without_quotes());
        Self { full: without_error_numbers(&full), public: without_error_numbers(&public) }
    }
}

/// The server's configuration. Requests read it while the watcher replaces it.
pub struct ConfigState {
    /// The configuration's file.
    pub source: ConfigSource,
    /// The configuration that the server was started with: some of it takes a restart to change.
    at_start: Config,
    /// True if the command line gave the address to listen on.
    is_listening_elsewhere: bool,
    /// The last configuration that was taken over, as it is written.
    written: ArcSwap<Config>,
    /// The written configuration, with the values at the start of what only a restart changes.
    /// Replaced whole, so that a reader sees one configuration or the other.
    in_force: ArcSwap<Config>,
    /// A std mutex: it is held for one read or write, never across an await.
    faults: Mutex<Faults>,
}

/// The faults that last until they are mended.
#[derive(Debug, Default)]
struct Faults {
    config: Option<Fault>,
    credentials: Option<Fault>,
}

impl ConfigState {
    /// A configuration that is in force.
    pub fn new(source: ConfigSource, config: Config, is_listening_elsewhere: bool) -> Self {
        Self {
            source,
            at_start: config.clone(),
            is_listening_elsewhere,
            written: ArcSwap::from_pointee(config.clone()),
            in_force: ArcSwap::from_pointee(config),
            faults: Mutex::default(),
        }
    }

    /// Reads the file. An address that the command line gave counts instead of the file's.
    ///
    /// # Errors
    /// The file can't be read, or is no configuration.
    pub fn read(&self) -> tilewright_config::Result<Config> {
        let mut config = Config::load(&self.source)?;
        if self.is_listening_elsewhere {
            config.server.listen.clone_from(&self.at_start.server.listen);
        }
        Ok(config)
    }

    /// The configuration in force.
    pub fn in_force(&self) -> Guard<Arc<Config>> {
        self.in_force.load()
    }

    /// True if the file says what was taken over last.
    pub fn is_taken_over(&self) -> bool {
        self.read().is_ok_and(|read| read == **self.written.load())
    }

    /// Puts a configuration in force that [`Config::reloaded`] made of a written one.
    pub fn replace(&self, written: Config, in_force: Config) {
        self.written.store(Arc::new(written));
        self.in_force.store(Arc::new(in_force));
    }

    fn lock_faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The faults of a newer configuration and of tokens' files, in a line; none if the newest is
    /// in force as written and each token's file holds one.
    pub fn fault(&self) -> Option<Fault> {
        let faults = self.lock_faults();
        let both = faults.config.iter().chain(&faults.credentials).cloned();
        both.reduce(|one, other| Fault {
            full: format!("{}; {}", one.full, other.full),
            public: format!("{}; {}", one.public, other.public),
        })
    }

    /// Sets or clears the configuration's fault.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.lock_faults().config = fault;
    }

    /// Sets or clears the fault of tokens' files.
    pub fn set_credentials_fault(&self, fault: Option<Fault>) {
        self.lock_faults().credentials = fault;
    }

    /// A line naming what has changed since the start and takes a restart.
    pub fn restart_notice(&self) -> Option<Fault> {
        let changed = self.at_start.changed_at_restart_only(&self.written.load());
        (!changed.is_empty()).then(|| format!("{} changed: that takes a restart", changed.join(", ")).into())
    }
}
