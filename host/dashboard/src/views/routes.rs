//! Devices and routes.

use tilewright_config::Conditions;
use tilewright_service_api::DeviceBody;

/// A device and its memory.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceView {
    /// The device as the API gives it.
    pub device: DeviceBody,
    /// Memory in use by any program, in bytes.
    pub used_bytes: u64,
}

/// A route: the policy that decides for some jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteView {
    /// The route's name in the configuration.
    pub name: String,
    /// The conditions of the jobs that it takes.
    pub conditions: Conditions,
    /// The policy that decides.
    pub policy: String,
    /// The revision in force; none if the policy can't be asked.
    pub revision: Option<u64>,
    /// The policy is paused: the native default decides.
    pub paused: bool,
    /// A clip takes a new revision at its next chunk, not only the next job.
    pub at_chunks: bool,
    /// Jobs that the revision in force has decided.
    pub jobs: u64,
    /// The policy that is asked as well, if there is one.
    pub shadow: Option<ShadowView>,
    /// The policy that takes a share, if there is one.
    pub canary: Option<CanaryView>,
}

/// A policy that is asked and only compared.
#[derive(Clone, Debug, PartialEq)]
pub struct ShadowView {
    /// The policy.
    pub policy: String,
    /// The number of its revision in force.
    pub revision: Option<u64>,
    /// Decisions compared.
    pub decisions: u64,
    /// Decisions in which it answered as the incumbent did.
    pub same: u64,
    /// Decisions in which it failed to answer.
    pub failures: u64,
    /// The mean of its predicted regret: 0 is as good as the best plan compared, 0.5 half as long
    /// again.
    pub regret: Option<f64>,
    /// The standing of its trial.
    pub standing: Standing,
    /// The reason for that, in one line; may be empty.
    pub why: String,
}

/// A policy that takes a share of a route's jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct CanaryView {
    /// The policy.
    pub policy: String,
    /// The number of its revision in force.
    pub revision: Option<u64>,
    /// The policy's share of the route's jobs, from 0 to 1.
    pub share: f64,
    /// Jobs that it decided so far.
    pub jobs: u64,
    /// Jobs that were decoded twice and compared.
    pub compared: u64,
    /// The policy's failures so far.
    pub failures: u64,
    /// The least PSNR seen in comparisons, in dB; infinite if outputs are the same.
    pub psnr: Option<f64>,
    /// The least PSNR allowed, in dB.
    pub psnr_least: Option<f64>,
    /// The standing of its trial.
    pub standing: Standing,
    /// The reason for that, in one line; may be empty.
    pub why: String,
}

/// The standing of a policy on trial or under watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Too little was measured to say.
    Gathering,
    /// As good as the policy it is compared with, or better.
    Good,
    /// Worse; nothing follows from it yet.
    Poor,
    /// Taken out because of its results.
    Stopped,
    /// Promoted: it decides for all jobs.
    Promoted,
}

impl Standing {
    /// True if the trial goes on.
    pub const fn is_live(self) -> bool {
        matches!(self, Standing::Gathering | Standing::Good | Standing::Poor)
    }
}
