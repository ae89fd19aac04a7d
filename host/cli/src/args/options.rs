//! Options that commands share: each is declared here, once.

use std::path::Path;

use clap::Args;
use tilewright_engine::{Machine, MemoryLimit, Overrides};
use tilewright_media::STANDARD;
use tilewright_models::Family;
use tilewright_outputs::Roles;
use tilewright_pipeline::{Session, default_limit};
use tilewright_plan::{Objective, Planner, Recorder, Stage, Work, bytes};
use tilewright_policy::Policy;
use tilewright_torch::device::Choice;

use super::{AllowBlended, ObjectiveArgument, PolicyGrants, Recording, device, factor, finite};
use crate::{
    capture::CaptureOptions,
    failure::{Failure, Outcome},
    history, policy,
    profile::ProfileOption,
    report::Shown,
};

/// The help of --memory-limit where weights are left aside unless --count-weights is given.
const LIMIT_ASIDE: &str = "\
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

/// The decision on a VAE's stage of one input or several, and its surroundings.
#[derive(Args, Debug)]
#[command(mut_arg("memory_limit", |arg| arg.help(LIMIT_ASIDE)))]
pub struct VaeRunOptions {
    /// The policy that decides.
    #[command(flatten)]
    pub governed: PolicyOptions,
    /// Device, limit, aim and history.
    #[command(flatten)]
    pub on: RunOptions,
    /// The memory limit counts the weights, too; estimates and measured peaks then do as well
    #[arg(long)]
    pub count_weights: bool,
    /// Losses that are allowed.
    #[command(flatten)]
    pub allow: AllowBlended,
}

impl VaeRunOptions {
    /// The memory limit, as [`RunOptions::limit`].
    pub fn limit(&self, machine: &Machine) -> MemoryLimit {
        MemoryLimit { bytes: self.on.limit(machine), counts_weights: self.count_weights }
    }
}

/// The scaling of an image VAE's latents.
#[derive(Args, Debug)]
pub struct ScalingOptions {
    /// The latent carries the model's scaling, as diffusers saves it: undo it
    #[arg(long)]
    pub scaled: bool,
    /// The model's family, where the file can't tell: sd, sdxl, sd3, flux
    #[arg(long, value_name = "FAMILY")]
    pub family: Option<Family>,
    /// The scaling factor that --scaled undoes, instead of the family's
    #[arg(long, value_name = "X", value_parser = factor)]
    pub scaling_factor: Option<f64>,
    /// The shift that --scaled undoes, instead of the family's
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub shift_factor: Option<f64>,
}

impl ScalingOptions {
    /// The settings that go before the facts of the VAE's file.
    pub fn overrides(&self) -> Overrides {
        Overrides { family: self.family, scaling: self.scaling_factor, shift: self.shift_factor }
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
    /// The profile of the work.
    #[command(flatten)]
    pub profile: ProfileOption,
    /// The capture of the work.
    #[command(flatten)]
    pub capture: CaptureOptions,
}

impl ReportOptions {
    /// The form of the report; nothing else goes to standard output if the output does.
    pub fn shown(&self, several: bool, aside: bool) -> Shown {
        Shown { json: self.json, explain: self.explain, several, aside }
    }

    /// Begins the profile and the capture, if they are wanted, and adds the profile's file to what
    /// the command writes.
    ///
    /// # Errors
    /// Nothing runs, or a file or a folder can't be written.
    pub fn begin(&self, roles: Roles) -> Outcome<Roles> {
        let roles = self.profile.begin(roles, self.dry_run)?;
        self.capture.begin(self.dry_run, self.profile.file().is_some())?;
        Ok(roles)
    }

    /// True if the output, such as a picture, goes to standard output.
    ///
    /// # Errors
    /// The record would go there, too.
    pub fn goes_aside(&self, output: Option<&Path>, what: &str) -> Outcome<bool> {
        let aside = output.is_some_and(|path| path.as_os_str() == STANDARD);
        match aside && self.json {
            true => Err(Failure::input(format!(
                "-o - and --json: standard output is the {what} or the record: write one into a file"
            ))),
            false => Ok(aside),
        }
    }
}
