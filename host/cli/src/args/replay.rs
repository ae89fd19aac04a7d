//! `tilewright policy replay`, `simulate` and `table`, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_bench::Spelling;

use super::AllowBlended;

/// `tilewright policy replay`
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status: 0 where every decision is the same, 1 where some differ, 2 where the records or arguments are wrong; with another policy, which may well \
decide otherwise, 0. Calls that ran into the limit of time can't be made again; they are counted, and alone are no difference.

Another policy is asked every question as it was recorded: what failed then and what was learnt then is told to it, whatever it would have chosen. Its \
plans are compared with the recorded ones only where both were measured, or both priced, for the same model, size and device in these records.")]
#[command(mut_arg("json", |arg| arg.help("Print JSON: every call, and how many of each")))]
pub struct Replay {
    /// Records that were made with --record FILE --record full, a JSON object a line; - is standard
    /// input
    #[arg(value_name = "RECORDS.jsonl|-")]
    pub records: PathBuf,
    /// Ask this policy instead: what it would have decided, and what the difference is worth
    #[arg(long, value_name = "NAME|FILE.wasm")]
    pub policy: Option<String>,
    /// The file of a policy that decided then and does not ship with the program, repeatable; known
    /// by its digest
    #[arg(long, value_name = "FILE.wasm")]
    pub policy_file: Vec<PathBuf>,
    /// A setting other than the recorded one, repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set: Vec<(String, String)>,
    /// List the calls that are equal, too
    #[arg(long)]
    pub all: bool,
    /// The form of the report, and grants.
    #[command(flatten)]
    pub loaded: super::LoadOptions,
}

/// `tilewright policy simulate`
#[derive(Args, Debug)]
#[command(after_help = "\
A policy sees the prices that the device's host gave, and what came of its own earlier choices. A plan takes the time and memory that were measured of it. \
One that was not measured takes those of the nearest plan of its kind, precision and memory order, its tile's sides within a quarter and its overlap within \
an eighth; where there is none, nothing is known of it. Each is counted.

An attempt fails where the plan's peak is over the limit, and its time counts in full. The best plan is chosen as 'tilewright bench sweep' does: blended \
tiles that are not allowed count only where nothing exact fits; those below 256 pixels and, on a CPU, narrow types only where nothing else does. Regret is the objective's cost over the best plan's, less 1; of a request that failed, the time that it lost over the best plan's, and 1.")]
#[command(mut_arg("json", |arg| arg.help("Print JSON: every request of every policy, and the sums")))]
pub struct Simulate {
    /// The device: a table that 'tilewright policy table' wrote
    #[arg(long, value_name = "TABLE.json")]
    pub device: PathBuf,
    /// The requests: builtin (every case of the table, three limits, three objectives, three
    /// rounds), {"requests": [{"width": 512, "height": 512, "memory_limit": "third", "objective":
    /// "leanest", "times": 9}]}, or records, whose requests are asked again
    #[arg(long, value_name = "FILE|builtin", default_value = "builtin")]
    pub workload: PathBuf,
    /// A policy that takes part, repeatable: NAME, FILE.wasm, or either with settings as in
    /// fixed:space=blended,tile=512 [default: all that decide by themselves: adaptive, gfx1151,
    /// comfyui, diffusers]
    #[arg(long = "policy", value_name = "P")]
    pub policies: Vec<Spelling>,
    /// Losses that are allowed.
    #[command(flatten)]
    pub allow: AllowBlended,
    /// Let no measured plan stand for one that was not measured
    #[arg(long)]
    pub exact_only: bool,
    /// Write a report with charts, too: .svg or .html
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// The form of the report, and grants.
    #[command(flatten)]
    pub loaded: super::LoadOptions,
}

/// `tilewright policy table`
#[derive(Args, Debug)]
pub struct Table {
    /// Files of measurements: records, as --record and 'tilewright history export' write them, or
    /// what 'tilewright bench sweep --json' printed
    #[arg(value_name = "RECORDS.jsonl|SWEEP.json", required = true)]
    pub sources: Vec<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "TABLE.json")]
    pub output: PathBuf,
    /// Take only what was measured on a device with this text in its name or arch
    #[arg(long, value_name = "TEXT")]
    pub device: Option<String>,
    /// The table's name [default: the device's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The origin of the figures: who measured what, how and when
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub about: String,
    /// Keep plans that were priced and never measured, too, which full records hold: policies see
    /// their prices
    #[arg(long)]
    pub priced: bool,
}
