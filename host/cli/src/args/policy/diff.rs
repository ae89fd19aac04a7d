//! `tilewright policy diff`, declared.

use std::path::PathBuf;

use clap::Args;

/// `tilewright policy diff`
#[derive(Args, Debug)]
#[command(after_help = "\
Every request is decided by a fresh instance of each. Ratios are B over A: below 1, B takes less. Prices are the recorded ones where the \
records have them (--record full), else a formula's, scaled to what the record expected of its own plan where it says so.

Exit status: 0 compared, whether or not they differ; 2 a policy, a setting or a record can't be read.")]
pub struct Diff {
    /// A shipped policy's name, or a .wasm file
    #[arg(value_name = "A")]
    pub a: String,
    /// Another, or the same with other settings
    #[arg(value_name = "B")]
    pub b: String,
    /// Compare on the requests of these records, as --record and 'history export' write them,
    /// instead of the golden set
    #[arg(long, value_name = "FILE.jsonl")]
    pub records: Option<PathBuf>,
    /// A setting of A, repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set_a: Vec<(String, String)>,
    /// A setting of B, repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set_b: Vec<(String, String)>,
    /// The form of the report, and grants.
    #[command(flatten)]
    pub loaded: super::LoadOptions,
}
