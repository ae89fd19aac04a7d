//! What `tilewright policy` is told: one variant per verb.

mod check;
mod diff;

use clap::Subcommand;

pub use check::Check;
pub use diff::Diff;

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
    /// Ask a policy everything that the load gate asks, and say what was found
    Check(Check),
    /// Show where two policies decide differently, and what the estimates say that is worth
    Diff(Diff),
}
