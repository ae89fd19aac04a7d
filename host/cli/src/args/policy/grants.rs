//! Grants: rights of policies beyond the usual ones.

use clap::{Args, ValueEnum};
use tilewright_plan::bytes;
use tilewright_policy::{Limits, Wasi};

/// Grants of a policy beyond every policy's limits. The same for every command that loads one.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct PolicyGrants {
    /// Give a policy that imports WASI an inert one: no files, environment or network, a clock that
    /// stands still, seeded randomness
    #[arg(long, value_enum, value_name = "inert", hide_possible_values = true)]
    pub wasi: Option<WasiArgument>,
    /// The memory that a policy may use; one that brings a language's runtime, as from Python or
    /// JavaScript, needs more [default: 16MiB]
    #[arg(long, value_name = "SIZE", value_parser = policy_memory)]
    pub policy_memory: Option<usize>,
}

/// The form of the report on policies that are loaded, and their grants.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Grants of the policies.
    #[command(flatten)]
    pub grants: PolicyGrants,
}

/// The WASI that a policy may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WasiArgument {
    /// One that gives nothing
    Inert,
}

impl PolicyGrants {
    /// The limits of every policy with these grants.
    pub fn limits(self) -> Limits {
        Limits::default().granting(self.wasi(), self.policy_memory)
    }

    /// The part of WASI that is granted.
    pub fn wasi(self) -> Wasi {
        self.wasi.map_or(Wasi::None, |WasiArgument::Inert| Wasi::Inert)
    }
}

/// The size of a memory of 32-bit WebAssembly: a page to 4 GiB.
fn policy_memory(text: &str) -> Result<usize, String> {
    match bytes::parse(text).map_err(|error| error.to_string())? {
        bytes @ 0x1_0000..=0x1_0000_0000 => Ok(bytes as usize),
        _ => Err("allowed is 64KiB to 4GiB".into()),
    }
}
