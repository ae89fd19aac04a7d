//! A policy and the watchdog over it.

use tilewright_service_api::PolicyBody;

use super::Standing;

/// A policy and its part on the routes.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyView {
    /// The policy as the API gives it.
    pub policy: PolicyBody,
    /// The routes on which it decides, shadows or is a canary.
    pub routes: Vec<String>,
}

/// The watchdog, which rolls a harmful revision back.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchdogView {
    /// The rule in words: "Rolls back if more than 3 of the last 20 decisions failed."
    pub rule: String,
    /// The standing of the revision in force.
    pub standing: Standing,
    /// The reason for it, in one line; may be empty.
    pub why: String,
    /// The share of its decisions that failed or were invalid, from 0 to 1.
    pub failed: f64,
}
