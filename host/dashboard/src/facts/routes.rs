//! Devices, routes, and what happened to them.

use std::time::SystemTime;

/// A device and its memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// As configured.
    pub name: String,
    /// `cpu`, `cuda`, `rocm`, `metal`.
    pub backend: String,
    /// For people: "AMD Radeon 8060S".
    pub about: String,
    /// All memory, in bytes.
    pub total_bytes: u64,
    /// Memory in use by anybody, in bytes.
    pub used_bytes: u64,
    /// Of that, what Tilewright holds, in bytes, where it is known.
    pub held_bytes: Option<u64>,
    /// The most that a job may hold, in bytes.
    pub limit_bytes: u64,
    /// Jobs that run on it.
    pub running: u32,
    /// Jobs that wait for it.
    pub queued: u32,
    /// The most that may wait.
    pub queue_most: u32,
    /// Why it takes no jobs, where it does not.
    pub fault: Option<String>,
}

/// Which jobs a route takes. A list that is empty and a value that is not there hold for every job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// The kinds of work.
    pub stage: Vec<String>,
    /// Families of models.
    pub family: Vec<String>,
    /// Configured models.
    pub model: Vec<String>,
    /// Architectures of devices.
    pub arch: Vec<String>,
    /// Configured devices.
    pub device: Vec<String>,
    /// Callers' tags.
    pub tag: Vec<String>,
    /// Whether the weights are quantized.
    pub quantized: Option<bool>,
    /// Height × width of a frame.
    pub pixels: Span,
    /// Output frames.
    pub frames: Span,
}

/// From one number to another, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The least.
    pub from: Option<u64>,
    /// The most.
    pub to: Option<u64>,
}

/// Which policy decides for which jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// As configured.
    pub name: String,
    /// For which jobs.
    pub conditions: Conditions,
    /// The policy that decides.
    pub policy: String,
    /// Its revision in force; none where the policy can't be asked.
    pub revision: Option<u64>,
    /// The policy is paused: the native default decides.
    pub paused: bool,
    /// A clip takes a new revision at its next chunk, not only the next job.
    pub at_chunks: bool,
    /// Jobs so far.
    pub jobs: u64,
    /// The policy that is asked beside, where there is one.
    pub shadow: Option<Shadow>,
    /// The policy that takes a share, where there is one.
    pub canary: Option<Canary>,
}

/// A policy that is asked and only compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Shadow {
    /// The policy.
    pub policy: String,
    /// Its revision in force.
    pub revision: Option<u64>,
    /// Decisions compared.
    pub decisions: u64,
    /// Of those, the ones where it answered as the incumbent did.
    pub same: u64,
    /// Its failures to answer.
    pub failures: u64,
    /// Mean of its predicted regret: 0 is as good as the best plan compared, 0.5 half as long again.
    pub regret: Option<f64>,
    /// How it stands.
    pub standing: Standing,
    /// Why, in one line; may be empty.
    pub why: String,
}

/// A policy that takes a share of a route's jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Canary {
    /// The policy.
    pub policy: String,
    /// Its revision in force.
    pub revision: Option<u64>,
    /// Of the route's jobs, from 0 to 1.
    pub share: f64,
    /// Jobs that it decided so far.
    pub jobs: u64,
    /// Of those, the ones decoded twice and compared.
    pub compared: u64,
    /// Its failures so far.
    pub failures: u64,
    /// The least PSNR seen in comparisons, in dB; infinite where outputs are the same.
    pub psnr: Option<f64>,
    /// The least PSNR allowed, in dB.
    pub psnr_least: Option<f64>,
    /// How it stands.
    pub standing: Standing,
    /// Why, in one line; may be empty.
    pub why: String,
}

/// How something on trial, or under watch, stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Too little was seen to say.
    Gathering,
    /// As good as what it is measured against, or better.
    Good,
    /// Worse; nothing follows from it yet.
    Poor,
    /// It was taken out for what it did.
    Stopped,
    /// It was promoted.
    Promoted,
}

impl Standing {
    /// Whether it still takes part.
    pub const fn is_live(self) -> bool {
        matches!(self, Standing::Gathering | Standing::Good | Standing::Poor)
    }
}

/// Something that happened to the service.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When.
    pub time: SystemTime,
    /// One or two words: `swapped`, `rolled back`, `refused`, `promoted`, `reloaded`, …
    pub kind: String,
    /// One line.
    pub what: String,
}
