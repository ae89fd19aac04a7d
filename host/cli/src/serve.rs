//! `tilewright serve`: a configuration to a server, and where it listens to standard output.

use std::io::Write;

use tilewright_policy::CacheDir;
use tilewright_service::{Options, begin_telemetry, serve};

use crate::{
    args::Serve,
    config,
    failure::{Failure, Outcome},
    printer,
    tell::tell,
};

impl From<tilewright_service::Error> for Failure {
    fn from(error: tilewright_service::Error) -> Self {
        match error.is_input() {
            true => Failure::Input(error.into()),
            false => Failure::Work(error.into()),
        }
    }
}

/// Serves until it is told to end.
pub fn run(arguments: &Serve, verbose: u8) -> Outcome {
    let config = config::current()?;
    let level = ["info", "debug", "trace"][usize::from(verbose.min(2))];
    let _telemetry = begin_telemetry(&config.server.telemetry, level)?;
    if config.models.is_empty() {
        tell!(
            "note: no model is configured: every job will be refused until {} names one under [models]",
            config::shown_path()
        );
    }
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let ready = move |address: std::net::SocketAddr| {
        // Whoever started it and reads no more has the log.
        let mut stdout = printer::stdout();
        let _ = writeln!(stdout, "listening on {scheme}://{address}").and_then(|()| stdout.flush());
    };
    let place = config::place().clone();
    Ok(serve(Options { place, config, listen: arguments.listen, cache: CacheDir::User, ready: Box::new(ready) })?)
}
