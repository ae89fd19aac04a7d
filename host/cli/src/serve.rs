//! `tilewright serve`: starts a server from a configuration, and prints its address.

use std::io::{ErrorKind, Write};

use tilewright_config::Config;
use tilewright_policy::CacheDir;
use tilewright_service::{Error, Options, begin_telemetry, serve};

use crate::{
    args::Serve,
    config,
    failure::{Failure, Outcome},
    printer,
    tell::tell,
};

/// Serves until a signal ends it.
pub fn run(arguments: &Serve, verbose: u8) -> Outcome {
    let config = config::load()?;
    let level = ["info", "debug", "trace"][usize::from(verbose.min(2))];
    let telemetry = begin_telemetry(&config.server.telemetry, level);
    let _telemetry = telemetry.map_err(|error| explain(&config, false, error))?;
    if config.models.is_empty() {
        tell!(
            "note: no model is configured: every job will be refused until {} names one under [models]",
            config::shown_path()
        );
    }
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let ready = move |address: std::net::SocketAddr| {
        // A caller that reads no more has the log.
        let mut stdout = printer::stdout();
        let _ = writeln!(stdout, "listening on {scheme}://{address}").and_then(|()| stdout.flush());
    };
    let options = Options {
        place: config::source().clone(),
        config: config.clone(),
        listen: arguments.listen,
        cache: CacheDir::User,
        ready: Box::new(ready),
    };
    serve(options).map_err(|error| {
        let mut config = config;
        config.server.listen = arguments.listen.unwrap_or(config.server.listen);
        explain(&config, arguments.listen.is_some(), error)
    })
}

/// The failure of a service that did not start, with the configuration's line if that is the cause.
/// The cause is looked for only now: a configured policy's file may be missing, and a policy that
/// was in force before goes on without its file.
fn explain(config: &Config, is_listening_elsewhere: bool, error: Error) -> Failure {
    let is_folder =
        matches!(&error, Error::File { verb: "made", source, .. } if source.kind() != ErrorKind::StorageFull);
    match error {
        Error::Listen { .. } if !is_listening_elsewhere => {
            Failure::work(config.error_at("server/listen", Failure::from(error).to_string()))
        }
        // This error has its line already.
        Error::Config(_) => error.into(),
        error if error.is_input() || is_folder => config::start::check(config).err().unwrap_or_else(|| error.into()),
        error => error.into(),
    }
}
