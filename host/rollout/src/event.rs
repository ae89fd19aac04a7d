//! What happened to policies, for people, logs and metrics.

use serde::Serialize;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A revision took over because somebody asked, or its source changed.
    Swapped,
    /// The previous revision took over again because somebody asked.
    RolledBack,
    /// The previous revision took over again because the watchdog said so.
    WatchdogRolledBack,
    /// A policy is no longer asked.
    Paused,
    /// It is again.
    Resumed,
    /// A module was not let in; what was in force stays in force.
    Refused,
    /// A canary took over.
    Promoted,
    /// A canary gets no more jobs.
    CanaryStopped,
    /// The configuration was read anew.
    Reloaded,
    /// A new configuration, certificate or token does not serve; the old one stays.
    ReloadRefused,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// RFC 3339, UTC.
    pub time: String,
    /// What.
    pub what: What,
    /// The policy that it happened to, where there is one.
    pub policy: Option<String>,
    /// The route, where there is one.
    pub route: Option<String>,
    /// The revision that is in force since, or was refused, where there is one.
    pub revision: Option<u64>,
    /// One line for people.
    pub detail: String,
}
