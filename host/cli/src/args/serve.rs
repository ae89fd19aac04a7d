//! `tilewright serve`, and the options of its clients, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_config::Address;

/// `tilewright serve`
#[derive(Args, Debug)]
#[command(
    after_help = "Without a configuration it listens on http://127.0.0.1:7590 and knows no model: name one under [models]."
)]
pub struct Serve {
    /// Listen here instead of where the configuration says: IP:PORT, as in 127.0.0.1:8000, where
    /// port 0 takes a free one; or unix:PATH, a socket that only you can connect to
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<Address>,
    /// For a program that starts this server as its own: end when standard input ends, then remove
    /// FOLDER, which must be yours with mode 0700
    #[arg(long, value_name = "FOLDER")]
    pub private: Option<PathBuf>,
}

/// The address of a server, and credentials for it.
#[derive(Args, Debug)]
pub struct ServerArguments {
    /// The server [default: where the configuration listens, or http://127.0.0.1:7590]
    #[arg(long, value_name = "URL", env = "TILEWRIGHT_SERVER", hide_env_values = true)]
    pub server: Option<String>,
    /// Read the server's token from this file [default: the configuration's]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Trust this authority's certificates (PEM) beside the system's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Our own certificate and key (PEM, in one file), for a server that asks for one
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tilewright policy swap`
#[derive(Args, Debug)]
pub struct Swap {
    /// The policy, by its name in the server's configuration
    pub name: String,
    /// The module: a .wasm file, which is uploaded, with its signature beside it if there is one; a
    /// shipped policy's name; sha256:… of one that the server has; or oci://REGISTRY/NAME:TAG
    /// [default: what the server's configuration says, as it is now]
    #[arg(value_name = "FILE.wasm|NAME|DIGEST|REFERENCE")]
    pub module: Option<String>,
    /// A setting of the policy, repeatable [default: those in force, for a module of the same name;
    /// for another its own defaults]
    #[arg(long, value_name = "KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set: Vec<(String, String)>,
    /// The server.
    #[command(flatten)]
    pub server: ServerArguments,
}

/// `tilewright policy rollback`
#[derive(Args, Debug)]
pub struct Rollback {
    /// The policy, by its name in the server's configuration
    pub name: String,
    /// The server.
    #[command(flatten)]
    pub server: ServerArguments,
}
