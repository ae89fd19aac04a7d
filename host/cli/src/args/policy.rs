//! What `tilewright policy` is told: one variant per verb.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tilewright_kit::project::Language;
use tilewright_plan::bytes;
use tilewright_policy::{Limits, Wasi};

/// What a policy may use beyond what every policy may. The same for every command that loads one.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct PolicyGrants {
    /// Give a policy that imports WASI an inert one: no files, environment or network, a clock that stands still, seeded randomness
    #[arg(long, value_enum, value_name = "inert", hide_possible_values = true)]
    pub wasi: Option<WasiArgument>,
    /// The memory that a policy may use; one that brings a language's runtime, as from Python or JavaScript, needs more [default: 16MiB]
    #[arg(long, value_name = "SIZE", value_parser = policy_memory)]
    pub policy_memory: Option<usize>,
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

    /// What is granted of WASI.
    pub fn wasi(self) -> Wasi {
        self.wasi.map_or(Wasi::None, |WasiArgument::Inert| Wasi::Inert)
    }
}

/// What a memory of 32-bit WebAssembly can be: a page to 4 GiB.
fn policy_memory(text: &str) -> Result<usize, String> {
    match bytes::parse(text).map_err(|error| error.to_string())? {
        bytes @ 0x1_0000..=0x1_0000_0000 => Ok(bytes as usize),
        _ => Err("allowed is 64KiB to 4GiB".into()),
    }
}

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
        /// What it may use.
        #[command(flatten)]
        grants: PolicyGrants,
    },
    /// Begin a policy of your own: a project that builds as it stands, with a README and a test
    New {
        /// The policy's name: letters, digits and -; also the folder's
        name: String,
        /// What to write it in: rust, c, python, js
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
        /// Where to write [default: into the project, under its folder's name]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// With --wasi inert, what Python or JavaScript prints reaches the policy's log.
        #[command(flatten)]
        grants: PolicyGrants,
    },
}
