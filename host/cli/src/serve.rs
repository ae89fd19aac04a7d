//! `tilewright serve`: starts a server from a configuration, and prints its address.

use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use tilewright_config::{Address, Config};
use tilewright_policy::CacheDir;
use tilewright_service::{Error, Options, StandardInput, begin_telemetry, serve};

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
    let is_encrypted = config.server.tls.is_some();
    let ready = move |address: Address| {
        // A caller that reads no more has the log.
        let mut stdout = printer::stdout();
        let _ = writeln!(stdout, "listening on {}", address.url(is_encrypted)).and_then(|()| stdout.flush());
    };
    let private = arguments.private.as_deref().map(PrivateFolder::new).transpose()?;
    let owner = private.as_ref().map(|_| StandardInput::watch());
    let options = Options {
        place: config::source().clone(),
        config: config.clone(),
        listen: arguments.listen.clone(),
        cache: CacheDir::User,
        until_input_ends: owner.clone(),
        ready: Box::new(ready),
    };
    let ended = serve(options);
    // The folder of another server, which listens there, is not this one's to remove.
    let is_anothers = matches!(&ended, Err(Error::Listen { source, .. }) if source.kind() == ErrorKind::AddrInUse);
    let ended = ended.map_err(|error| {
        let mut config = config;
        if let Some(listen) = &arguments.listen {
            config.server.listen.clone_from(listen);
        }
        explain(&config, arguments.listen.is_some(), error)
    });
    // After a signal whoever started it may start it again, with all that it had accepted.
    let is_left = owner.is_some_and(|owner| owner.has_ended()) && !is_anothers;
    let removed = private.filter(|_| is_left).map_or(Ok(()), PrivateFolder::remove);
    ended.and(removed)
}

/// A folder that belongs to a server and goes with it.
struct PrivateFolder<'a>(&'a Path);

/// The longest time that a folder takes to be removed while workers write into it, and the time
/// between two tries.
const REMOVAL: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

impl<'a> PrivateFolder<'a> {
    /// Takes a folder that only its owner, the user, has access to: no other is ever removed.
    fn new(path: &'a Path) -> Outcome<Self> {
        let wrong = |reason: &str| Failure::input(format!("--private {}: {reason}", path.display()));
        let facts = fs::symlink_metadata(path).map_err(|error| wrong(&error.to_string()))?;
        let is_own = facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw();
        match is_own && facts.permissions().mode() & 0o777 == 0o700 {
            true => Ok(Self(path)),
            false => Err(wrong("expected a folder of your own with mode 0700")),
        }
    }

    /// Removes the folder. Workers at a job are not waited for: a file that one of them writes
    /// meanwhile goes, too.
    fn remove(self) -> Outcome {
        let until = Instant::now() + REMOVAL;
        loop {
            match fs::remove_dir_all(self.0) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(_) if Instant::now() < until => thread::sleep(PAUSE),
                ended => return ended.map_err(|error| Failure::work(format!("{}: {error}", self.0.display()))),
            }
        }
    }
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
