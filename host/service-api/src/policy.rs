//! Policies in service and their revisions.

use std::collections::BTreeMap;

use serde::Serialize;
use tilewright_plan::{Stage, Value};
use utoipa::ToSchema;

/// A version of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct RevisionBody {
    /// Counted from 1, restarts included.
    pub number: u64,
    /// As the module describes itself.
    pub name: String,
    /// As the module describes itself.
    pub version: String,
    /// The module's digest, `sha256:…`.
    pub digest: String,
    /// The settings that it was configured with, defaults included.
    #[schema(value_type = Object)]
    pub settings: BTreeMap<String, Value>,
    /// The module's origin, in words.
    pub origin: String,
    /// The stages that it answers: text, denoise, decode, encode. The native default decides on the
    /// others.
    #[schema(value_type = Vec<String>)]
    pub stages: Vec<Stage>,
    /// The time when it took over first.
    pub since: String,
    /// Jobs that ended under it.
    pub jobs: u64,
    /// Decisions, those after failed attempts included.
    pub decisions: u64,
    /// Decisions that the native default had to stand in for.
    pub failures: u64,
}

/// A module that was not let in, or was taken back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RefusedBody {
    /// The time of the refusal.
    pub time: String,
    /// The module's origin, in words.
    pub origin: String,
    /// In a line.
    pub why: String,
}

/// A policy in service.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct PolicyBody {
    /// The policy's name in the configuration.
    pub name: String,
    /// The policy's source, as the configuration names it.
    pub source: String,
    /// Not asked: the native default decides.
    pub paused: bool,
    /// The revision that decides.
    pub in_force: RevisionBody,
    /// The one before, which a rollback puts in force again.
    pub previous: Option<RevisionBody>,
    /// Older ones that jobs still hold.
    pub draining: Vec<RevisionBody>,
    /// Newest first.
    pub refused: Vec<RefusedBody>,
    /// Lines about what the revision in force does not do where routes name it, as stages of their
    /// jobs that it does not answer.
    pub warnings: Vec<String>,
}
