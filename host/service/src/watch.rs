//! Files that change: policies take over through the gate, and the configuration is read anew.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tilewright_config::{Config, ConfigSource, Server};
use tilewright_rollout::without_error_numbers;

use crate::{descriptors, door::Door, error::one_line, house::House, listen::Certificates, models};

/// Editors and builds write in several steps: what has changed is looked at once nothing has for so long.
const QUIET: Duration = Duration::from_millis(150);

/// The longest that is waited for that.
const LONGEST: Duration = Duration::from_secs(2);

/// Where there is no word from the system, files are looked at this often.
const ANYWAY: Duration = Duration::from_secs(5);

/// The longest configuration that is compared, in bytes; a longer one is refused when it is read.
const LARGEST: u64 = 2 << 20;

/// What the watcher is told.
pub enum Told {
    /// A file or its folder has changed.
    Changed,
    /// Somebody asked for the configuration to be read anew.
    Reload,
    /// The server ends.
    End,
}

/// Tokens and certificates, which are read anew when their files change.
pub struct Credentials {
    pub door: Arc<Door>,
    pub certificates: Option<Arc<Certificates>>,
}

impl Credentials {
    /// The files of the tokens and certificates that are in use.
    fn paths(&self, server: &Server) -> Vec<PathBuf> {
        let tokens = server.tokens.iter().map(|token| &token.file).chain(&server.token_file).cloned();
        tokens.chain(self.certificates.iter().flat_map(|certificates| certificates.paths())).collect()
    }

    /// Takes over the files' present contents. Unusable contents change nothing.
    fn refresh(&self, house: &House) {
        let read = [
            (
                self.certificates.as_ref().map_or(Ok(false), |certificates| certificates.refresh()),
                "certificates were read anew: the next connections are encrypted with them",
                "new certificates don't serve",
            ),
            (
                self.door.callers.reload(&house.config.load().server),
                "tokens were read anew: those that are gone are good for nothing any more",
                "new tokens don't serve",
            ),
        ];
        for (read, done, failed) in read {
            match read {
                Ok(true) => tracing::info!("{done}"),
                Ok(false) => {}
                Err(error) => {
                    let line = format!("{failed}: {}; those before stay in force", one_line(&error));
                    tracing::error!("{line}");
                    house.rollout.report_refused_reload(&line);
                }
            }
        }
    }
}

/// Watches until it is told to end.
pub fn begin(house: Arc<House>, credentials: Credentials) -> (mpsc::Sender<Told>, Option<thread::JoinHandle<()>>) {
    let (sender, receiver) = mpsc::channel();
    let telling = sender.clone();
    let watching =
        thread::Builder::new().name("watch".into()).spawn(move || watch(&house, &credentials, &telling, &receiver));
    let watching = watching.inspect_err(|error| tracing::error!(%error, "files can't be watched")).ok();
    (sender, watching)
}

fn watch(house: &House, credentials: &Credentials, telling: &mpsc::Sender<Told>, told: &mpsc::Receiver<Told>) {
    let telling = telling.clone();
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !matches!(event.kind, EventKind::Access(_))) {
            let _ = telling.send(Told::Changed);
        }
    });
    let mut watcher =
        watcher.inspect_err(|error| tracing::warn!(%error, "looking at files every few seconds instead")).ok();
    let mut folders = BTreeSet::new();
    // The file may have changed since it was read for the start.
    let mut text = None;
    let mut asked = false;
    let mut patience = Duration::ZERO;
    loop {
        follow(house, credentials, watcher.as_mut(), &mut folders);
        match told.recv_timeout(std::mem::replace(&mut patience, ANYWAY)) {
            Ok(Told::End) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Ok(Told::Reload) => asked = true,
            Ok(Told::Changed) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        let until = Instant::now() + LONGEST;
        loop {
            match told.recv_timeout(QUIET) {
                // Where something is written all the time, as a log beside the configuration may be, it never gets quiet.
                Ok(Told::Changed) if Instant::now() >= until => break,
                Ok(Told::Changed) => {}
                Ok(Told::Reload) => asked = true,
                Ok(Told::End) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => break,
            }
        }
        let now = match configured(&house.place) {
            Ok(now) => now,
            Err(error) => {
                tracing::debug!(%error, "files can't be looked at: they are later");
                continue;
            }
        };
        let asked = std::mem::take(&mut asked);
        if asked || now != text {
            text = now;
            match asked || !is_in_force(house) {
                true => reload(house),
                // What was wrong is as it was again.
                false => *house.config_fault() = restart(house),
            }
        }
        credentials.refresh(house);
        for (_, policy) in house.rollout.watched_files() {
            house.rollout.refresh(&policy);
        }
        house.live.touch();
    }
}

/// What the configuration says; none if there is none that can be read.
///
/// # Errors
/// No file can be opened at present.
fn configured(place: &ConfigSource) -> io::Result<Option<Vec<u8>>> {
    let Some(path) = place.path() else { return Ok(None) };
    match tilewright_files::read(&path, LARGEST) {
        Err(error) if descriptors::are_used_up(&error) => Err(error),
        read => Ok(read.ok()),
    }
}

/// Whether the file says what is in force; where to listen may have been said on the command line.
fn is_in_force(house: &House) -> bool {
    let in_force = house.config.load();
    let said = Config::load(&house.place).map(|mut said| {
        if house.is_listening_elsewhere {
            said.server.listen = in_force.server.listen;
        }
        said == **in_force
    });
    said.unwrap_or(false)
}

/// Watches the folders of all files: a file that is replaced is another one, under the same name.
fn follow(
    house: &House,
    credentials: &Credentials,
    watcher: Option<&mut RecommendedWatcher>,
    folders: &mut BTreeSet<PathBuf>,
) {
    let Some(watcher) = watcher else { return };
    let credentials = credentials.paths(&house.config.load().server);
    let files =
        house.rollout.watched_files().into_iter().map(|(path, _)| path).chain(house.place.path()).chain(credentials);
    let folder = |path: PathBuf| {
        Some(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned())
    };
    let wanted: BTreeSet<PathBuf> = files.filter_map(folder).collect();
    for gone in folders.difference(&wanted) {
        let _ = watcher.unwatch(gone);
    }
    let mut followed: BTreeSet<PathBuf> = folders.intersection(&wanted).cloned().collect();
    for new in wanted.difference(folders) {
        match watcher.watch(new, RecursiveMode::NonRecursive) {
            Ok(()) => drop(followed.insert(new.clone())),
            Err(error) => tracing::debug!(%error, folder = %new.display(), "can't be watched"),
        }
    }
    *folders = followed;
}

/// Reads the configuration anew. A wrong one changes nothing, and is said to be wrong everywhere until it is mended.
pub fn reload(house: &House) {
    let fault = match read(house) {
        Ok(refused) if refused.is_empty() => restart(house),
        Ok(refused) => Some(refused.join("; ")),
        Err(line) => {
            tracing::error!(error = line, "the new configuration is wrong: the one before stays in force");
            house.rollout.report_refused_reload(&format!("{line}; the configuration before stays in force"));
            Some(without_error_numbers(&line))
        }
    };
    if let Some(fault) = &fault {
        tracing::warn!(fault, "the configuration is not in force as it is written");
    }
    *house.config_fault() = fault;
    house.live.touch();
}

/// What has changed since the start that takes a restart.
fn restart(house: &House) -> Option<String> {
    let changed = house.config_at_start.changed_at_restart_only(&house.config.load());
    (!changed.is_empty()).then(|| format!("{} changed: that takes a restart", changed.join(", ")))
}

/// Goes by the file; gives what was refused of it.
fn read(house: &House) -> Result<Vec<String>, String> {
    let mut config = Config::load(&house.place).map_err(|error| one_line(&error))?;
    let shipped: Vec<&str> = tilewright_policy::shipped_names().collect();
    config.check(&shipped).map_err(|error| one_line(&error))?;
    config.check_presence().map_err(|error| one_line(&error))?;
    let models = models::open(&config, &house.models.load()).map_err(|error| one_line(&error))?;
    let refused = house.rollout.reload(&config).map_err(|error| one_line(&error))?;
    if house.is_listening_elsewhere {
        config.server.listen = house.config_at_start.server.listen;
    }
    house.models.store(Arc::new(models));
    house.config.store(Arc::new(config));
    Ok(refused)
}
