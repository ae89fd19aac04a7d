//! Commands on configuration, signatures and registries, declared.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tilewright_registry::Reference;

/// `tilewright config …`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Read the configuration and show what it says
    Check,
    /// Print where the configuration is, or would be
    Path,
}

/// `tilewright policy keygen`
#[derive(Args, Debug)]
pub struct Keygen {
    /// Writes NAME.key, which is yours alone, and NAME.pub, which is for all
    pub name: PathBuf,
    /// Leave the secret key without a password: whoever reads the file can sign
    #[arg(long, conflicts_with = "password_file")]
    pub no_password: bool,
    /// The password.
    #[command(flatten)]
    pub password: Password,
    /// Replace keys that stand there
    #[arg(long)]
    pub force: bool,
}

/// `tilewright policy sign`
#[derive(Args, Debug)]
#[command(after_help = "minisign -S and minisign -V make and take the same signatures.")]
pub struct Sign {
    /// The policy
    #[arg(value_name = "FILE.wasm")]
    pub file: PathBuf,
    /// The secret key that 'tilewright policy keygen' or minisign made
    #[arg(short, long, value_name = "SECRET.key")]
    pub key: PathBuf,
    /// A further remark, signed with the policy
    #[arg(long, value_name = "TEXT")]
    pub comment: Option<String>,
    /// The name that it is going to be published under: under another name or tag it is refused
    /// then
    #[arg(long, value_name = "REGISTRY/NAME[:TAG]")]
    pub reference: Option<Reference>,
    /// The password.
    #[command(flatten)]
    pub password: Password,
    /// The form of the report, and grants.
    #[command(flatten)]
    pub loaded: super::LoadOptions,
}

/// The source of the password.
#[derive(Args, Debug)]
pub struct Password {
    /// Read the key's password from this file's first line [default: TILEWRIGHT_KEY_PASSWORD, or it
    /// is asked for]
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// `tilewright policy verify`
#[derive(Args, Debug)]
pub struct Verify {
    /// The policy; its signature stands in FILE.wasm.minisig
    #[arg(value_name = "FILE.wasm")]
    pub file: PathBuf,
    /// A public key or a .pub file to trust instead of the configuration's, repeatable
    #[arg(short, long, value_name = "PUBLIC")]
    pub key: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tilewright policy push`
#[derive(Args, Debug)]
#[command(after_help = LOGIN)]
pub struct Push {
    /// The policy; its signature in FILE.wasm.minisig goes with it
    #[arg(value_name = "FILE.wasm")]
    pub file: PathBuf,
    /// The place in the registry, as in ghcr.io/ada/wide:1.0.0
    #[arg(value_name = "REGISTRY/NAME:TAG")]
    pub reference: Reference,
    /// Options of the connection.
    #[command(flatten)]
    pub connection: Connection,
}

/// `tilewright policy pull`
#[derive(Args, Debug)]
#[command(after_help = LOGIN)]
pub struct Pull {
    /// The policy to get, as in ghcr.io/ada/wide:1.0.0; with @sha256:… it is that one or none
    #[arg(value_name = "REGISTRY/NAME[:TAG][@DIGEST]")]
    pub reference: Reference,
    /// The file to write [default: NAME.wasm in the current folder]; its signature goes into
    /// OUT.minisig
    #[arg(short, long, value_name = "OUT.wasm")]
    pub output: Option<PathBuf>,
    /// Options of the connection.
    #[command(flatten)]
    pub connection: Connection,
}

/// The connection to a registry, and the form of the output.
#[derive(Args, Debug)]
pub struct Connection {
    /// Ask without TLS, as registries on this machine are: everybody on the way can read along and
    /// change what comes
    #[arg(long)]
    pub plain_http: bool,
    /// The form of the report, and grants.
    #[command(flatten)]
    pub loaded: super::LoadOptions,
}

/// The help on credentials for a registry.
const LOGIN: &str = "Where a registry asks who you are, the one that TILEWRIGHT_REGISTRY names is told TILEWRIGHT_REGISTRY_USER and TILEWRIGHT_REGISTRY_PASSWORD, and any other what 'docker login' keeps.";
