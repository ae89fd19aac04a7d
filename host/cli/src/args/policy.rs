//! What `tilewright policy` is told: one variant per verb.

use clap::Subcommand;

use crate::args::signing::{Keygen, Pull, Push, Sign, Verify};

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
