//! A policy and its revisions.

use std::time::SystemTime;

use super::Standing;

/// A policy: a name whose revisions take turns.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// As in the configuration.
    pub name: String,
    /// Where it comes from: what ships, a file, or `oci://…`.
    pub source: String,
    /// It is not asked; the native default decides.
    pub paused: bool,
    /// The one in force first, then the previous one, then those that drain, newest first.
    pub revisions: Vec<Revision>,
    /// What the gate turned away, newest first.
    pub refused: Vec<Refused>,
    /// The routes that it decides on, shadows or is a canary of.
    pub routes: Vec<String>,
}

impl Policy {
    /// The revision at a place; the first, where several are there.
    pub fn at(&self, place: Place) -> Option<&Revision> {
        self.revisions.iter().find(|revision| revision.place == place)
    }
}

/// A revision's part in its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Decides.
    InForce,
    /// Was in force before, and stays at hand for a rollback.
    Previous,
    /// Is held by jobs, and goes when they end.
    Draining,
}

/// One version of a policy's module and settings, as it was put to work.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    /// From 1, in the order in which they took over.
    pub number: u64,
    /// As the module describes itself.
    pub name: String,
    /// As the module describes itself.
    pub version: String,
    /// `sha256:…` of the module.
    pub digest: String,
    /// Names and values.
    pub settings: Vec<(String, String)>,
    /// Where the module came from.
    pub origin: String,
    /// Its part.
    pub place: Place,
    /// Since when it has that part.
    pub since: SystemTime,
    /// Jobs that it decided.
    pub jobs: u64,
    /// Decisions that it made.
    pub decisions: u64,
    /// Decisions in which it failed and the native default stood in.
    pub failures: u64,
    /// Jobs that hold it now.
    pub held: u32,
}

/// A module that the gate turned away.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// When.
    pub time: SystemTime,
    /// Where it came from.
    pub origin: String,
    /// `sha256:…`, where it could be read.
    pub digest: Option<String>,
    /// One line or several.
    pub why: String,
}

/// What takes a revision back that does harm.
#[derive(Clone, Debug, PartialEq)]
pub struct Watchdog {
    /// Its rule in words: "Rolls back where more than 3 of the last 20 decisions failed."
    pub rule: String,
    /// How the revision in force stands.
    pub standing: Standing,
    /// Why, in one line; may be empty.
    pub why: String,
    /// What the rule is measured by.
    pub readings: Vec<Reading>,
}

/// A number that is watched.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// "Failures among the last 20 decisions"
    pub what: String,
    /// As measured.
    pub value: f64,
    /// Where the watchdog acts.
    pub limit: Option<f64>,
    /// "ms", "%", … ; may be empty.
    pub unit: String,
}
