//! `tilewright bench …`, declared.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, Subcommand};
use tilewright_bench::{Entry, Network, Rounds, Spelling, suite::CaseName, sweep::Limit};
use tilewright_engine::Machine;
use tilewright_pipeline::default_limit;
use tilewright_plan::bytes;

use crate::profile::ProfileOption;

use super::{AllowBlended, BenchSample, DeviceOptions, Estimates, ObjectiveArgument, PolicyGrants, ScalingOptions};

/// `tilewright bench`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Bench {
    /// Further measurements, and generators
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// A ComfyUI .latent, or a .safetensors with one tensor [N, C, H, W] or [N, C, T, H, W]
    #[arg(required = true)]
    pub latent: Option<PathBuf>,
    /// The VAE's weights, as for decode
    #[arg(long, value_name = "FILE", required = true)]
    pub vae: Option<PathBuf>,
    /// The policies, their runs and limits.
    #[command(flatten)]
    pub contest: ContestOptions,
    /// Losses that are allowed.
    #[command(flatten)]
    pub allow: AllowBlended,
    /// The tensor to decode, where the file holds several
    #[arg(long, value_name = "NAME")]
    pub tensor: Option<String>,
    /// The scaling of the latents.
    #[command(flatten)]
    pub scaling: ScalingOptions,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
}

/// Policies that are measured in turns.
#[derive(Args, Debug)]
pub struct ContestOptions {
    /// A policy that takes part, repeatable: NAME, FILE.wasm, or either with settings as in
    /// fixed:space=blended,tile=512 or fixed:time=carried,chunk=4
    #[arg(long = "policy", value_name = "P", default_value = "adaptive")]
    pub policies: Vec<Spelling>,
    /// Runs of each policy that are not counted, after its first, which is listed apart
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub warmup: usize,
    /// Runs of each policy that are counted
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = iterations)]
    pub iterations: usize,
    /// The reference of the pictures, decoded once without the memory limit: whole, a policy, or
    /// none
    #[arg(long, value_name = "whole|P|none", default_value = "whole")]
    pub against: Against,
    /// The most to hold at once, weights aside, as in 8GiB or 512MiB [default: 80 % of what is
    /// free]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub memory_limit: Option<u64>,
    /// The objective: what counts most
    #[arg(long, value_enum, default_value_t = ObjectiveArgument::Balanced)]
    pub objective: ObjectiveArgument,
    /// The profile of a further run of each policy.
    #[command(flatten)]
    pub profile: ProfileOption,
}

impl ContestOptions {
    /// The policies with their limit and objective.
    pub fn entries(&self, machine: &Machine) -> Vec<Entry> {
        let memory_limit = self.memory_limit.unwrap_or_else(|| default_limit(machine));
        let objective = self.objective.into();
        let entry = |spelling: &Spelling| Entry { spelling: spelling.clone(), memory_limit, objective };
        self.policies.iter().map(entry).collect()
    }

    /// The runs of each.
    pub fn rounds(&self) -> Rounds {
        Rounds {
            first_apart: true,
            warmup: self.warmup,
            iterations: self.iterations,
            profiled: self.profile.file().is_some(),
        }
    }

    /// The policy that makes the reference, if there is one.
    pub fn against(&self) -> Option<Spelling> {
        match &self.against {
            Against::None => None,
            Against::Policy(spelling) => Some(spelling.clone()),
        }
    }
}

/// Options of everything that is measured.
#[derive(Args, Debug)]
pub struct Common {
    /// The device.
    #[command(flatten)]
    pub on: DeviceOptions,
    /// Grants of the policies.
    #[command(flatten)]
    pub grants: PolicyGrants,
    /// Print JSON on standard output
    #[arg(long)]
    pub json: bool,
    /// Write a report with charts, too: .svg or .html
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Measurements without a latent of one's own, and generators.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure every case that the project's ancestors published, beside what they published
    Suite(Suite),
    /// Measure every plan of a long list, and compare the best with what a policy chooses
    Sweep(Sweep),
    /// Measure policies on a sample, or every plan of a long list for it
    Sample(Box<BenchSample>),
    /// Compare the estimate of each layer with the time that it takes
    Estimates(Box<Estimates>),
    /// Generate a decoder's weights of the published size from a seed
    Weights(GenerateWeights),
    /// Generate a smooth latent from a seed
    Latent(GenerateLatent),
}

/// `tilewright bench suite`
#[derive(Args, Debug)]
pub struct Suite {
    /// Quarter sides, shorter clips, few runs: minutes instead of hours
    #[arg(long)]
    pub quick: bool,
    /// One case alone, repeatable; every case is named, with about how long it takes, before
    /// anything is measured
    #[arg(long, value_name = "CASE")]
    pub only: Vec<CaseName>,
    /// The network whose generated weights decode pictures: flux, sdxl, sd3, sd
    #[arg(long, value_name = "NETWORK", default_value = "flux", value_parser = picture_network)]
    pub network: Network,
    /// Weights to use for pictures instead of generated ones
    #[arg(long, value_name = "FILE")]
    pub vae: Option<PathBuf>,
    /// Weights to use for clips instead of generated ones of WAN 2.1's size
    #[arg(long, value_name = "FILE")]
    pub video_vae: Option<PathBuf>,
    /// A transformer of Flux.1: its workflow of 1024x1024 is measured, too, from loading to the
    /// picture
    #[arg(long, value_name = "FILE|FOLDER")]
    pub transformer: Option<PathBuf>,
    /// A transformer of WAN 2.1: its workflow of 17 frames of 320x320 is measured, too
    #[arg(long, value_name = "FILE|FOLDER")]
    pub video_transformer: Option<PathBuf>,
    /// A policy that is measured against plain decodes, repeatable
    #[arg(long = "policy", value_name = "P", default_value = "adaptive")]
    pub policies: Vec<Spelling>,
    /// Counted runs [default: 10, or 3 where a decode takes over a minute; with --quick 2]
    #[arg(long, value_name = "N", value_parser = iterations)]
    pub iterations: Option<usize>,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
}

/// `tilewright bench sweep`
#[derive(Args, Debug)]
pub struct Sweep {
    /// Weights to use instead of generated ones of Flux's size
    #[arg(long, value_name = "FILE")]
    pub vae: Option<PathBuf>,
    /// Sides of square pictures, in pixels
    #[arg(long, value_name = "SIDES", value_delimiter = ',', default_value = "256,512,768", value_parser = side)]
    pub sizes: Vec<u32>,
    /// Memory limits: ample (80 % of what is free), third (of what a whole decode holds), or sizes
    #[arg(long, value_name = "LIMITS", value_delimiter = ',', default_value = "ample,third")]
    pub limits: Vec<Limit>,
    /// Objectives
    #[arg(long, value_name = "OBJECTIVES", value_enum, value_delimiter = ',', default_value = "fastest,leanest")]
    pub objectives: Vec<ObjectiveArgument>,
    /// Losses that are allowed.
    #[command(flatten)]
    pub allow: AllowBlended,
    /// Runs of each plan
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = iterations)]
    pub iterations: usize,
    /// The policy whose choices are compared with the best
    #[arg(long, value_name = "P", default_value = "adaptive")]
    pub policy: Spelling,
    /// The most plans per size; the list starts with what matters most [default: all]
    #[arg(long, value_name = "N")]
    pub plans: Option<usize>,
    /// Let plans in narrow types count on a CPU, too
    #[arg(long)]
    pub any_precision: bool,
    /// The latents' seed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
}

/// `tilewright bench weights`
#[derive(Args, Debug)]
pub struct GenerateWeights {
    /// The network: flux, sdxl, sd3, sd, wan-2.1, wan-2.2
    pub network: Network,
    /// The file to write: about 100 MB, 147 MB for WAN 2.1, 1.1 GB for WAN 2.2
    #[arg(short, long, value_name = "FILE.safetensors")]
    pub output: PathBuf,
    /// The same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// `tilewright bench latent`
#[derive(Args, Debug)]
pub struct GenerateLatent {
    /// The size in pixels, multiples of 8; of 16 for WAN 2.2
    #[arg(long, value_name = "WxH", value_parser = extent)]
    pub size: (u32, u32),
    /// The network: sets the channels and the scale
    #[arg(long, value_name = "NETWORK", conflicts_with = "channels")]
    pub network: Option<Network>,
    /// Channels: 16 for Flux, SD3 and WAN 2.1, 4 for SD and SDXL
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub channels: u16,
    /// Output frames of a clip: 1 + 4k of them, or the next such number [default: a picture, or 17
    /// of a video network]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub frames: Option<u32>,
    /// Samples
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch: u16,
    /// The same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// The file to write
    #[arg(short, long, value_name = "FILE.safetensors")]
    pub output: PathBuf,
}

/// The reference of the pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// Nothing.
    None,
    /// A policy's; `whole` is the plain whole decode in f32.
    Policy(Spelling),
}

impl FromStr for Against {
    type Err = tilewright_bench::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "none" => Against::None,
            "whole" => Against::Policy(Spelling::whole()),
            policy => Against::Policy(policy.parse()?),
        })
    }
}

fn picture_network(text: &str) -> Result<Network, String> {
    let network: Network = text.parse().map_err(|error: tilewright_bench::Error| error.to_string())?;
    if network.is_video() {
        Err("this network decodes clips: expected flux, sdxl, sd3 or sd".into())
    } else {
        Ok(network)
    }
}

fn iterations(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=100_000).contains(number));
    number.ok_or_else(|| "expected a number from 1 to 100000".to_owned())
}

fn side(text: &str) -> Result<u32, String> {
    let side = text.parse().ok().filter(|side: &u32| (64..=16_384).contains(side) && side.is_multiple_of(8));
    side.ok_or_else(|| "expected a multiple of 8 from 64 to 16384".to_owned())
}

fn extent(text: &str) -> Result<(u32, u32), String> {
    let number =
        |text: &str| text.parse().ok().filter(|side: &u32| (8..=16_384).contains(side) && side.is_multiple_of(8));
    let both = text.split_once(['x', '×']).and_then(|(width, height)| Some((number(width)?, number(height)?)));
    both.ok_or_else(|| "expected WIDTHxHEIGHT, each a multiple of 8 from 8 to 16384".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_or_refused() {
        assert_eq!(extent("640x512"), Ok((640, 512)));
        for text in ["640", "641x512", "0x8", "8x", "x", "99999x8"] {
            assert!(extent(text).is_err(), "{text}");
        }
        assert!(side("256").is_ok() && side("100").is_err() && side("56").is_err());
        assert!(picture_network("sdxl").is_ok() && picture_network("wan-2.1").is_err());
        assert!(iterations("0").is_err() && iterations("x").is_err());
    }

    #[test]
    fn whole_and_none_are_words_of_their_own() {
        assert_eq!("none".parse::<Against>().unwrap(), Against::None);
        assert_eq!("whole".parse::<Against>().unwrap(), Against::Policy(Spelling::whole()));
        assert!("fixed:".parse::<Against>().is_err());
    }
}
