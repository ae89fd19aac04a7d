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
    /// The numbers that the rule looks at.
    pub readings: Vec<Reading>,
}

/// A number that is watched.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The number's name: "Failures among the last 20 decisions"
    pub what: String,
    /// The value measured.
    pub value: f64,
    /// The value at which the watchdog acts.
    pub limit: Option<f64>,
    /// "ms", "%", … ; may be empty.
    pub unit: String,
}
