//! `tilewright replay` and `tilewright report`, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_plan::bytes;

use super::{DeviceOptions, PolicyGrants, finite};

/// `tilewright replay`
#[derive(Args, Debug)]
#[command(after_help = "\
Exit status: 0 where every output has the captured bits, or differs by no more than --within; 1 where one differs, or a stage fails; 2 where the capture \
or the arguments are wrong.")]
pub struct ReplayCapture {
    /// The folder of a capture
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// Run this stage alone, by its number in the capture; several are separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub stage: Vec<u32>,
    /// A VAE in place of the captured one
    #[arg(long, value_name = "FILE")]
    pub vae: Option<PathBuf>,
    /// A transformer in place of the captured one, or two experts
    #[arg(long, value_name = "FILE|FOLDER", num_args = 1)]
    pub transformer: Vec<PathBuf>,
    /// A text encoder in place of the captured one of its kind, repeatable
    #[arg(long, value_name = "FILE", num_args = 1)]
    pub text_encoder: Vec<PathBuf>,
    /// Have a policy decide in place of the captured plan
    #[arg(long, value_name = "NAME|FILE.wasm")]
    pub policy: Option<String>,
    /// A setting of that policy, repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = tilewright_policy::key_value, requires = "policy")]
    pub set: Vec<(String, String)>,
    /// Grants of the policy.
    #[command(flatten)]
    pub grants: PolicyGrants,
    /// The device.
    #[command(flatten)]
    pub on: DeviceOptions,
    /// Another memory limit than the captured one
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub memory_limit: Option<u64>,
    /// The largest difference of an output, over its largest value, that is no failure
    #[arg(long, value_name = "X", value_parser = finite, default_value = "0")]
    pub within: f64,
    /// The largest difference of a layer's tensor, over its largest value, up to which it counts as
    /// the same
    #[arg(long, value_name = "X", value_parser = finite, default_value = "0")]
    pub bound: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tilewright report`
#[derive(Args, Debug)]
pub struct Report {
    /// The folder of a capture
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE.tar", default_value = "tilewright-report.tar")]
    pub output: PathBuf,
    /// Put prompts in, as far as they were captured
    #[arg(long)]
    pub with_prompts: bool,
    /// Put the names of files and models in
    #[arg(long)]
    pub with_names: bool,
    /// The device whose facts go in.
    #[command(flatten)]
    pub on: DeviceOptions,
    /// Print what is in it as JSON
    #[arg(long)]
    pub json: bool,
}
