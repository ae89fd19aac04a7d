//! `tilewright policy bench`, declared.

use clap::Args;

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
    /// The form of the report, and grants.
    #[command(flatten)]
    pub loaded: super::LoadOptions,
}
