//! The command line, declared. Other modules interpret the arguments.

mod bench;
mod bench_sample;
mod captures;
mod embed;
mod encode;
mod estimates;
mod generate;
mod models;
mod options;
mod policy;
mod recording;
mod replay;
mod sample;
mod serve;
mod signing;
mod writing;

use std::{path::PathBuf, time::SystemTime};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tilewright_media::Rate;
use tilewright_plan::{Loss, Objective};
use tilewright_torch::device::Choice;

use crate::failure::{Failure, Outcome};

pub use bench::{Bench, BenchCommand, Common, GenerateLatent, GenerateWeights, Suite, Sweep};
pub use bench_sample::BenchSample;
pub use captures::{ReplayCapture, Report};
pub use embed::Embed;
pub use encode::Encode;
pub use estimates::Estimates;
pub use generate::Generate;
pub use models::{ModelFolders, Models};
pub use options::{
    DeviceOptions, JSON_OF_SEVERAL, PolicyOptions, ReportOptions, RunOptions, ScalingOptions, VaeRunOptions,
};
pub use policy::{BenchPolicy, Check, Diff, LoadOptions, Policy, PolicyGrants, WasiArgument};
pub use recording::Recording;
pub use replay::{Replay, Simulate, Table};
pub use sample::{Sample, Seed, Sigmas};
pub use serve::{Rollback, Serve, ServerArguments, Swap};
pub use signing::{ConfigCommand, Connection, Keygen, Password, Pull, Push, Sign, Verify};
pub use writing::{Writing, output_path};

/// The position in help of options of every command: after the command's own, of which there are
/// fewer.
const LAST: usize = 1000;

/// The end of --help.
const BEGINNING: &str = "\
To begin with:
  tilewright generate 'a red circle on a blue square' -o out.png
  tilewright models
  tilewright help generate

With files of your own:
  tilewright generate 'a cat on a roof' --model FLUX.1-dev -o cat.png
  tilewright decode ComfyUI_00001_.latent --vae ae.safetensors -o out.png
  tilewright inspect ae.safetensors";

/// The help of -o. clap reads a plain `{n}` as the end of a line: the escape sequence inside, which
/// resets nothing, keeps it whole, and is dropped unless the output is a terminal. The name is not
/// broken across lines either, if it begins one.
const OUTPUT: &str = "\
Where to write: .png, .jpg, .webp (a batch becomes numbered files); for clips .mp4, .webm, .mkv, .gif, .webp, or a folder of \
PNGs (a name that ends in /); .safetensors for the raw output; - for standard output.
{\u{1b}[0mn} in the name becomes the next free number, {name} the latent's name; for pictures, and for several latents, a \
folder serves, too. A link is followed; an input, a write-protected file or another user's is never replaced [default: the \
latent's name with .png or .mp4, in the current folder]";

/// Generates, decodes and encodes pictures and clips of diffusion models; how each stage is run is
/// decided by a sandboxed WebAssembly policy
#[derive(Debug, Parser)]
#[command(name = "tilewright", version, propagate_version = true, max_term_width = 110, after_help = BEGINNING)]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
}

/// Options of every command.
#[derive(Args, Debug)]
pub struct Global {
    /// Say more on standard error: -v what is done, -vv how, -vvv everything [env: TILEWRIGHT_LOG,
    /// as in TILEWRIGHT_LOG=debug]
    #[arg(short, long, action = clap::ArgAction::Count, global = true, display_order = LAST)]
    pub verbose: u8,
    /// Say only errors, warnings and what was asked for: no notes, no progress, no summary
    #[arg(short, long, conflicts_with = "verbose", global = true, display_order = LAST)]
    pub quiet: bool,
    /// The libtorch 2.11 to run with: its folder, or an installed PyTorch's (site-packages/torch)
    #[arg(long, value_name = "DIR", env = "TILEWRIGHT_LIBTORCH", hide_env_values = true, global = true, display_order = LAST)]
    pub libtorch: Option<PathBuf>,
    /// The configuration [default: ~/.config/tilewright/config.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "TILEWRIGHT_CONFIG", hide_env_values = true, global = true, display_order = LAST)]
    pub config: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate a picture or a clip from a prompt: Flux.1 or WAN
    Generate(Box<Generate>),
    /// Encode a prompt into the conditioning that a transformer samples by
    Embed(Box<Embed>),
    /// Sample a latent with a transformer: Flux.1 or WAN
    Sample(Box<Sample>),
    /// Decode a latent into a picture or a clip
    Decode(Box<Decode>),
    /// Encode a picture or a clip into a latent
    Encode(Box<Encode>),
    /// Measure policies against each other
    Bench(Box<Bench>),
    /// Run the stages of a capture again, here or by another plan or policy, and compare
    Replay(Box<ReplayCapture>),
    /// Pack a capture for a bug report: one file, without prompts, file names and secrets
    Report(Box<Report>),
    /// Say what files are: family, layout, types, what is missing, what was decided
    Inspect(Inspect),
    /// List the models in ComfyUI's and Hugging Face's folders: what goes together, what is missing
    Models(Models),
    /// Show what the host knows of this machine's devices, measured now, or check one
    Device(DeviceArguments),
    /// List policies, write, check, measure, compare, replay, sign and share them
    #[command(subcommand)]
    Policy(Policy),
    /// List, export or clear what earlier decodes took; policies learn from it
    History(History),
    /// Check the configuration, or print where it is
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run a server that takes jobs over HTTP, keeps models loaded and swaps policies at work
    Serve(Serve),
    /// Make pictures and clips with the small models that come along, each with its command
    Demo(Demo),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write a page for each command
    Man {
        /// Write tilewright.1, tilewright-decode.1 and so on into this folder
        #[arg(value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
}

/// `tilewright demo`
#[derive(Args, Debug)]
pub struct Demo {
    /// The folder to write into
    #[arg(short, long, value_name = "FOLDER", default_value = "tilewright-demo")]
    pub output: PathBuf,
    /// The folder of what is shown, if it is in no place that the program knows
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub examples: Option<PathBuf>,
}

/// `tilewright decode`
#[derive(Args, Debug)]
#[command(mut_arg("json", |arg| arg.help(JSON_OF_SEVERAL)))]
pub struct Decode {
    /// A ComfyUI .latent, or a .safetensors with one tensor: [N, C, H, W], or [N, C, T, H, W] for
    /// video; several, or folders of them, share the loaded weights, and one that fails does not
    /// stop the others; - is standard input
    #[arg(value_name = "LATENT", required = true)]
    pub latents: Vec<PathBuf>,
    /// The VAE's weights: diffusers, LDM/BFL (ae.safetensors), a whole SD checkpoint, or WAN's
    /// (Wan2.1_VAE.safetensors); or a folder as diffusers saves it, of the VAE or of all its parts
    #[arg(long, value_name = "FILE|FOLDER")]
    pub vae: PathBuf,
    /// The path of the output.
    #[arg(short, long, value_name = "OUT", help = OUTPUT, value_parser = output_path())]
    pub output: Option<PathBuf>,
    /// Options of the output's format.
    #[command(flatten)]
    pub writing: Writing,
    /// Options of clips.
    #[command(flatten)]
    pub clip: ClipArguments,
    /// Policy, device, limit, aim and what is allowed.
    #[command(flatten)]
    pub run: VaeRunOptions,
    /// The tensor to decode, where the file holds several
    #[arg(long, value_name = "NAME")]
    pub tensor: Option<String>,
    /// The scaling of the latents.
    #[command(flatten)]
    pub scaling: ScalingOptions,
    /// Options of the report, and of a dry run.
    #[command(flatten)]
    pub report: ReportOptions,
    /// Draw the tiles and their overlaps over the picture, into this .png, .jpg or .webp
    #[arg(long, value_name = "FILE")]
    pub explain_image: Option<PathBuf>,
}

/// Options of clips.
#[derive(Args, Debug)]
pub struct ClipArguments {
    /// Frames per second of a clip, as 24, 23.976 or 30000/1001 [default: 16 for WAN 2.1, 24 for
    /// WAN 2.2]
    #[arg(long, value_name = "RATE")]
    pub fps: Option<Rate>,
    /// Put a clip's first frame into this .png as soon as it is decoded
    #[arg(long, value_name = "FILE")]
    pub preview: Option<PathBuf>,
    /// Keep a clip's finished frames in OUT.partial until all are there, and go on from those that
    /// an interrupted decode left
    #[arg(long)]
    pub resume: bool,
}

impl ClipArguments {
    /// Refuses options that have no meaning for pictures.
    pub fn refuse_for_pictures(&self) -> Outcome {
        let given = [("--fps", self.fps.is_some()), ("--preview", self.preview.is_some()), ("--resume", self.resume)];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => {
                Err(Failure::input(format!("{name} is for clips, and this VAE decodes pictures: leave it out")))
            }
            None => Ok(()),
        }
    }
}

/// `tilewright inspect`
#[derive(Args, Debug)]
pub struct Inspect {
    /// Models, latents, pictures, clips, records
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tilewright device …`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct DeviceArguments {
    /// The work on it; without a word it is shown
    #[command(subcommand)]
    pub command: Option<DeviceCommand>,
    /// Options of the report.
    #[command(flatten)]
    pub show: DeviceShow,
}

/// `tilewright device …`
#[derive(Subcommand, Debug)]
pub enum DeviceCommand {
    /// Check that a device computes right, keeps to its limits and fails well
    Check(DeviceCheck),
}

/// `tilewright device check`
#[derive(Args, Debug)]
#[command(after_help = "\
Each part runs in a process of its own, so that a hang or a crash costs one part. The report
holds no folders: paste it into a bug report. The weights are generated: those of
autoencoders once, into the cache folder, and those of transformers, up to 1.1 GB, into TMPDIR
for the time of a part. A slow device leaves runs out, and the report says how many. The exit
status is 1 if a part fails.")]
pub struct DeviceCheck {
    /// The device.
    #[command(flatten)]
    pub on: DeviceOptions,
    /// Check the sizes that show most faults, in a few minutes
    #[arg(long)]
    pub quick: bool,
    /// Check only these parts; several are separated by commas
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The longest time of a part in seconds [default: one to ten minutes, by the part]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub patience: Option<u64>,
    /// Write the report with all figures into this JSON file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print the report as JSON in place of the table
    #[arg(long)]
    pub json: bool,
    /// Run one part in this process, and print its finding
    #[arg(long, value_name = "PART", hide = true)]
    pub part: Option<String>,
}

/// `tilewright device`
#[derive(Args, Debug)]
pub struct DeviceShow {
    /// The device.
    #[command(flatten)]
    pub on: DeviceOptions,
    /// Show what was measured before, and measure only if nothing was
    #[arg(long)]
    pub kept: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tilewright history …`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "TILEWRIGHT_HISTORY=FILE keeps the history elsewhere, TILEWRIGHT_HISTORY=off keeps none.")]
pub struct History {
    /// The work on it; without a word it is listed
    #[command(subcommand)]
    pub command: Option<HistoryCommand>,
    /// Options of the list.
    #[command(flatten)]
    pub list: HistoryList,
}

/// The work on the history.
#[derive(Debug, Subcommand)]
pub enum HistoryCommand {
    /// List what was run, newest first, what was expected beside what was measured
    List(HistoryList),
    /// Write the records as JSON lines or as a table, oldest first
    Export {
        /// The file to write: Parquet if it ends in .parquet, else JSON lines; - is standard output
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
        /// The records.
        #[command(flatten)]
        filters: HistoryFilters,
    },
    /// Add the records of other machines' histories that are not there yet
    Merge {
        /// Their files; 'tilewright history path' shows where each machine's is
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Remove records for good
    Clear {
        /// The records.
        #[command(flatten)]
        filters: HistoryFilters,
        /// Don't ask
        #[arg(long)]
        yes: bool,
    },
    /// Print where the history is kept
    Path,
}

/// `tilewright history list`
#[derive(Args, Debug)]
pub struct HistoryList {
    /// The records.
    #[command(flatten)]
    pub filters: HistoryFilters,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Print the records as JSON lines
    #[arg(long)]
    pub json: bool,
}

/// A choice of records; all conditions hold together.
#[derive(Args, Debug)]
pub struct HistoryFilters {
    /// Decided by this policy
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
    /// Records of this model family: sd, sdxl, sd3, flux
    #[arg(long, value_name = "FAMILY")]
    pub family: Option<String>,
    /// On a device with this text in its description
    #[arg(long, value_name = "TEXT")]
    pub device: Option<String>,
    /// Not older than this: a duration, as in 90min or 7d, or a date in UTC, as in 2026-11-21
    #[arg(long, value_name = "DURATION|DATE", value_parser = since)]
    pub since: Option<SystemTime>,
    /// Only those that ended without a picture
    #[arg(long)]
    pub failed: bool,
}

/// Losses of decodes and encodes that are allowed.
#[derive(Args, Debug)]
pub struct AllowBlended {
    /// Allow what is not quite the output that was asked for: blended, tiles and chunks that run
    /// alone and are cross-faded, where the whole or exact bands fit, too. Otherwise they are the
    /// last resort; a setting that names them, as space=blended of fixed, allows them as well
    #[arg(long = "allow", value_name = "blended", value_parser = blended)]
    allow: Vec<Loss>,
}

impl AllowBlended {
    /// True if blended tiles and chunks are allowed where an exact plan fits.
    pub const fn blended(&self) -> bool {
        !self.allow.is_empty()
    }
}

fn reuse(text: &str) -> Result<Loss, String> {
    text.parse().ok().filter(|loss| matches!(loss, Loss::Reuse(_))).ok_or_else(|| "expected reuse=0.2".to_owned())
}

fn blended(text: &str) -> Result<Loss, String> {
    text.parse().ok().filter(|loss| *loss == Loss::Blended(None)).ok_or_else(|| "expected blended".to_owned())
}

/// The objective.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ObjectiveArgument {
    /// The shortest time within the memory limit
    Fastest,
    /// Memory is worth some time
    Balanced,
    /// The least memory
    Leanest,
}

impl From<ObjectiveArgument> for Objective {
    fn from(argument: ObjectiveArgument) -> Self {
        match argument {
            ObjectiveArgument::Fastest => Objective::Fastest,
            ObjectiveArgument::Balanced => Objective::Balanced,
            ObjectiveArgument::Leanest => Objective::Leanest,
        }
    }
}

fn device(text: &str) -> Result<Choice, String> {
    text.parse().map_err(|_: String| "expected auto, cpu, cuda or cuda:N".to_owned())
}

fn since(text: &str) -> Result<SystemTime, tilewright_history::NotATime> {
    tilewright_history::since(text, SystemTime::now())
}

fn finite(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| "expected a number".to_owned())
}

fn factor(text: &str) -> Result<f64, String> {
    let number = finite(text)?;
    if number.is_normal() { Ok(number) } else { Err("expected a number other than zero".to_owned()) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn placeholders_are_whole_in_the_help_and_in_the_manual_pages() {
        let mut command = Arguments::command();
        for name in ["decode", "encode"] {
            let below = command.find_subcommand_mut(name).unwrap();
            let mut page = Vec::new();
            clap_mangen::Man::new(below.clone()).render(&mut page).unwrap();
            for text in [below.render_long_help().to_string(), String::from_utf8(page).unwrap()] {
                assert!(text.contains("{n} in the name") && text.contains("{name}"), "{text}");
            }
        }
    }
}
