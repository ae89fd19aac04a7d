//! What `tilewright policy` is told: one variant per verb.

mod bench;
mod check;
mod diff;

use clap::Subcommand;

pub use bench::BenchPolicy;
pub use check::Check;
pub use diff::Diff;

use super::{Keygen, Pull, Push, Replay, Sign, Simulate, Table, Verify};

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
    /// Measure what a policy costs: time and fuel of each of its functions, the first time and warm, and memory
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
}
