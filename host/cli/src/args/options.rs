//! Options that commands share: each is declared here, once.

use clap::Args;
use tilewright_engine::Machine;
use tilewright_pipeline::{Session, default_limit};
use tilewright_plan::{Objective, Planner, Recorder, Stage, Work, bytes};
use tilewright_policy::Policy;
use tilewright_torch::device::Choice;

use super::{ObjectiveArgument, PolicyGrants, Recording, device};
use crate::{failure::Outcome, history, policy};

/// The help of --memory-limit where weights are left aside unless --count-weights is given.
pub const LIMIT_ASIDE: &str = "\
The most to hold at once, weights aside unless --count-weights, as in 8GiB or 512MiB [default: 80 % of what is free]";

/// The help of --json where several inputs may be given.
pub const JSON_OF_SEVERAL: &str = "\
Print the decision record as JSON on standard output, with the names of the outputs; for several inputs a line each";

/// The device of a command.
#[derive(Args, Debug)]
pub struct DeviceOptions {
    /// The device to run on; ROCm answers to cuda, as in PyTorch
    #[arg(long, value_name = "auto|cpu|cuda[:N]", default_value = "auto", value_parser = device)]
    pub device: Choice,
    /// Processor threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

impl DeviceOptions {
    /// Makes libtorch use the threads that were asked for. Call it before any work.
    pub fn set_threads(&self) {
        if let Some(threads) = self.threads {
            tilewright_torch::set_threads(threads);
        }
    }
}

/// The surroundings of work on a device: its limit and aim, and what was measured before.
#[derive(Args, Debug)]
pub struct RunOptions {
    /// The device.
    #[command(flatten)]
    pub on: DeviceOptions,
    /// The most to hold at once, weights included, as in 8GiB or 512MiB [default: 80 % of what is
    /// free]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub memory_limit: Option<u64>,
    /// The objective: what counts most
    #[arg(long, value_enum, default_value_t = ObjectiveArgument::Balanced)]
    pub objective: ObjectiveArgument,
    /// Neither tell the policy of earlier runs nor keep this one; for all: TILEWRIGHT_HISTORY=off
    #[arg(long)]
    pub no_history: bool,
}

impl RunOptions {
    /// The device and the history. A dry run does not create the history.
    ///
    /// # Errors
    /// The device is not there.
    pub fn session(&self, dry_run: bool) -> Outcome<Session> {
        self.on.set_threads();
        history::session(self.on.device, self.no_history, dry_run)
    }

    /// The memory limit in bytes: of what is free now, if none is given.
    pub fn limit(&self, machine: &Machine) -> u64 {
        self.memory_limit.unwrap_or_else(|| default_limit(machine))
    }

    /// The objective.
    pub fn objective(&self) -> Objective {
        self.objective.into()
    }
}

/// The policy of a command of one stage.
#[derive(Args, Debug)]
pub struct PolicyOptions {
    /// The policy that decides: a shipped policy's name, or a .wasm file
    #[arg(long, value_name = "NAME|FILE.wasm", default_value = "adaptive")]
    pub policy: String,
    /// A setting of the policy, repeatable; 'tilewright policy inspect NAME' lists them
    #[arg(long, value_name = "KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set: Vec<(String, String)>,
    /// Grants of the policy.
    #[command(flatten)]
    pub grants: PolicyGrants,
}

impl PolicyOptions {
    /// Loads the policy for a stage; the recorder keeps the exchange if a full record is wanted.
    ///
    /// # Errors
    /// There is no such policy, it may not be used, or it refuses its settings.
    pub fn configure<W: Work>(&self, stage: Stage, recording: &Recording) -> Outcome<Recorder<W>>
    where
        Policy: Planner<W>,
    {
        policy::configure(stage, &self.policy, &self.set, self.grants, recording)
    }
}

/// The report of a command that decides.
#[derive(Args, Debug)]
pub struct ReportOptions {
    /// Decide and estimate, and make nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Show every plan that the policy considered, with what was predicted and measured
    #[arg(long)]
    pub explain: bool,
    /// Print the decision record as JSON on standard output, with the names of the outputs
    #[arg(long)]
    pub json: bool,
    /// The record of the decision.
    #[command(flatten)]
    pub record: Recording,
}
