//! `tilewright policy …`, declared: one variant per verb.

mod bench;
mod check;
mod diff;
mod grants;

use std::path::PathBuf;

use clap::Subcommand;
use tilewright_kit::project::Language;

pub use bench::BenchPolicy;
pub use check::Check;
pub use diff::Diff;
pub use grants::{LoadOptions, PolicyGrants, WasiArgument};

use super::{Keygen, Pull, Push, Replay, Rollback, Sign, Simulate, Swap, Table, Verify};

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
        /// The form of the report, and grants.
        #[command(flatten)]
        loaded: LoadOptions,
    },
    /// Begin a policy of your own: a project that builds as it stands, with a README and a test
    New {
        /// The policy's name: letters, digits and -; also the folder's
        name: String,
        /// The language to write it in: rust, c, python, js
        #[arg(long, value_name = "LANGUAGE", default_value = "rust")]
        lang: Language,
        /// The folder to put the project's folder into
        #[arg(long, value_name = "DIR", default_value = ".")]
        into: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Build a project into a policy's file, by the language's own tool-chain, and load it once
    Build {
        /// The project's folder
        #[arg(value_name = "DIR", default_value = ".")]
        project: PathBuf,
        /// The file to write [default: into the project, under its folder's name]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// The form of the report, and grants.
        #[command(flatten)]
        loaded: LoadOptions,
    },
    /// Make recorded decisions again, from records alone, or ask another policy the same
    Replay(Replay),
    /// Run policies through a workload on a device that is only a table
    Simulate(Simulate),
    /// Make such a table from what was measured on a device
    Table(Table),
    /// Ask a policy everything that the load gate asks, and say what was found
    Check(Check),
    /// Show where two policies decide differently, and what the estimates say that is worth
    Diff(Diff),
    /// Measure what a policy costs: time and fuel of each of its functions, the first time and
    /// warm, and memory
    Bench(BenchPolicy),
    /// Make a pair of keys to sign policies with, as minisign's
    Keygen(Keygen),
    /// Sign a policy: writes FILE.wasm.minisig
    Sign(Sign),
    /// Say who signed a policy; exit status 1 where it is nobody trusted, or not this policy
    Verify(Verify),
    /// Put a policy, and its signature if there is one, into an OCI registry
    Push(Push),
    /// Get a policy, and its signature if it has one, from an OCI registry
    Pull(Pull),
    /// Put another revision of a policy in force on a server, through its gate, while jobs run
    Swap(Swap),
    /// Put a policy's previous revision in force again on a server
    Rollback(Rollback),
}
