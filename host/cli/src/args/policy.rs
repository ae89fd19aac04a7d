//! What `tilewright policy` is told: one variant per verb.

use clap::{Args, Subcommand};

/// `tilewright policy …`
#[derive(Debug, Subcommand)]
pub enum Policy {
    /// List the policies that ship with the program
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Describe a policy: version, summary, settings with defaults, digest, size, imports, limits
    Inspect {
        /// A shipped policy's name, or a .wasm file
        #[arg(value_name = "NAME|FILE.wasm")]
        policy: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure what a policy costs: time and fuel of each of its functions, the first time and warm, and memory
    Bench(BenchPolicy),
}

/// `tilewright policy bench`
#[derive(Debug, Args)]
pub struct BenchPolicy {
    /// A shipped policy's name, or a .wasm file
    #[arg(value_name = "NAME|FILE.wasm")]
    pub policy: String,
    /// A setting of the policy, repeatable; 'tilewright policy inspect NAME' lists them
    #[arg(long, value_name = "KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set: Vec<(String, String)>,
    /// Runs of each function [default: as many as two seconds allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub iterations: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
