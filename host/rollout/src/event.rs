//! Events of policies, for people, logs and metrics.

use serde::Serialize;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A revision took over because of a request, or because its source changed.
    Swapped,
    /// The previous revision took over again because of a request.
    RolledBack,
    /// The previous revision took over again because of the watchdog.
    WatchdogRolledBack,
    /// A policy is no longer asked.
    Paused,
    /// A policy is asked again.
    Resumed,
    /// A module was refused; the revision in force stays.
    Refused,
    /// A canary took over.
    Promoted,
    /// A canary was stopped.
    CanaryStopped,
    /// The configuration was reloaded.
    Reloaded,
    /// A new configuration, certificate or token is invalid; the old one stays.
    ReloadRefused,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// RFC 3339, UTC.
    pub time: String,
    /// The event's kind.
    pub what: EventKind,
    /// The policy, if there is one.
    pub policy: Option<String>,
    /// The route, if there is one.
    pub route: Option<String>,
    /// The revision that is in force since, or was refused, if there is one.
    pub revision: Option<u64>,
    /// One line for people.
    pub detail: String,
}
