//! Changes of policies.

use serde::Serialize;
use utoipa::ToSchema;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct EventBody {
    /// RFC 3339 in UTC.
    pub time: String,
    /// One of: swapped, rolled-back, watchdog-rolled-back, paused, resumed, refused, promoted,
    /// canary-stopped, reloaded, reload-refused.
    pub what: String,
    /// The policy that it happened to.
    pub policy: Option<String>,
    /// The route.
    pub route: Option<String>,
    /// The revision that is in force since.
    pub revision: Option<u64>,
    /// A line for people.
    pub detail: String,
}
