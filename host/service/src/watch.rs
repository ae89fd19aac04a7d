//! The watcher of files. Changed policies take over through the gate, and a changed configuration
//! is read again.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tilewright_config::{ConfigSource, Server};

use crate::{
    audit::AuditEntry, auth::AccessControl, config_state::Fault, descriptors, error::one_line, listen::Certificates,
    state::ServerState,
};

/// The time without changes after which files are read, since editors and builds write in several
/// steps.
const SETTLE: Duration = Duration::from_millis(150);

/// The longest wait for such a time.
const MOST_SETTLE: Duration = Duration::from_secs(2);

/// The time after which files are checked without a notification.
const POLL: Duration = Duration::from_secs(5);

/// The longest configuration that is compared, in bytes; a longer one is refused when it is read.
const LARGEST: u64 = 2 << 20;

/// A message to the watcher.
pub enum WatchEvent {
    /// A file or its folder has changed.
    Changed,
    /// A signal asks for the configuration to be read again.
    Reload,
    /// The server ends.
    End,
}

/// Tokens and certificates, which are read again when their files change.
pub struct Credentials {
    pub auth: Arc<AccessControl>,
    pub certificates: Option<Arc<Certificates>>,
}

impl Credentials {
    /// The files of the tokens and certificates that are in use.
    fn paths(&self, server: &Server) -> Vec<PathBuf> {
        let tokens = server.tokens.iter().map(|token| &token.file).chain(&server.token_file).cloned();
        tokens.chain(self.certificates.iter().flat_map(|certificates| certificates.paths())).collect()
    }

    /// Puts the files' present contents in force. Certificates that can't be used change nothing;
    /// the token of a file that holds none ends.
    fn refresh(&self, server: &ServerState) {
        match self.certificates.as_ref().map_or(Ok(false), |certificates| certificates.refresh()) {
            Ok(true) => tracing::info!("certificates were read anew: the next connections are encrypted with them"),
            Ok(false) => {}
            Err(error) => {
                let line = format!("new certificates don't serve: {}; those before stay in force", one_line(&error));
                tracing::error!("{line}");
                server.rollout.report_refused_reload(&line);
            }
        }
        // None if nothing has changed.
        let Some(read) = self.auth.callers.reload(&server.config.in_force().server) else { return };
        if read.is_changed {
            tracing::info!("tokens were read anew: those that are gone are good for nothing any more");
        }
        for fault in &read.faults {
            tracing::error!("{fault}");
            server.rollout.report_refused_reload(fault);
            self.auth.audit.write(&AuditEntry::of_refused_reload(&server.config.source, fault));
        }
        server.config.set_credentials_fault((!read.faults.is_empty()).then(|| read.faults.join("; ").into()));
    }
}

/// Starts the watcher. Returns its inbox and its thread; no thread if it can't be started.
pub fn spawn_watcher(
    server: Arc<ServerState>,
    credentials: Credentials,
) -> (mpsc::Sender<WatchEvent>, Option<thread::JoinHandle<()>>) {
    let (sender, receiver) = mpsc::channel();
    let events = sender.clone();
    let watching = thread::Builder::new()
        .name("watch".into())
        .spawn(move || watch_loop(&server, &credentials, &events, &receiver));
    let watching = watching.inspect_err(|error| tracing::error!(%error, "files can't be watched")).ok();
    (sender, watching)
}

fn watch_loop(
    server: &ServerState,
    credentials: &Credentials,
    events: &mpsc::Sender<WatchEvent>,
    received: &mpsc::Receiver<WatchEvent>,
) {
    let events = events.clone();
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !matches!(event.kind, EventKind::Access(_))) {
            let _ = events.send(WatchEvent::Changed);
        }
    });
    let mut watcher =
        watcher.inspect_err(|error| tracing::warn!(%error, "looking at files every few seconds instead")).ok();
    let mut folders = BTreeSet::new();
    // The file may have changed since it was read at the start.
    let mut text = None;
    let mut asked = false;
    let mut patience = Duration::ZERO;
    loop {
        watch_folders(server, credentials, watcher.as_mut(), &mut folders);
        match received.recv_timeout(std::mem::replace(&mut patience, POLL)) {
            Ok(WatchEvent::End) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Ok(WatchEvent::Reload) => asked = true,
            Ok(WatchEvent::Changed) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        let until = Instant::now() + MOST_SETTLE;
        loop {
            match received.recv_timeout(SETTLE) {
                // A log beside the configuration may be written all the time, so the wait is
                // bounded.
                Ok(WatchEvent::Changed) if Instant::now() >= until => break,
                Ok(WatchEvent::Changed) => {}
                Ok(WatchEvent::Reload) => asked = true,
                Ok(WatchEvent::End) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => break,
            }
        }
        let now = match read_config_text(&server.config.source) {
            Ok(now) => now,
            Err(error) => {
                tracing::debug!(%error, "files can't be looked at: they are later");
                continue;
            }
        };
        let asked = std::mem::take(&mut asked);
        if asked || now != text {
            text = now;
            match asked || !server.config.is_taken_over() {
                true => reload(server, credentials),
                // A wrong configuration has been undone.
                false => server.config.set_fault(server.config.restart_notice()),
            }
        }
        credentials.refresh(server);
        for (_, policy) in server.rollout.watched_files() {
            server.rollout.refresh(&policy);
        }
        server.jobs.live.notify_change();
    }
}

/// The text of the configuration; none if there is none that can be read.
///
/// # Errors
/// No file can be opened at present.
fn read_config_text(place: &ConfigSource) -> io::Result<Option<Vec<u8>>> {
    let Some(path) = place.path() else { return Ok(None) };
    match tilewright_files::read(&path, LARGEST) {
        Err(error) if descriptors::are_exhausted(&error) => Err(error),
        read => Ok(read.ok()),
    }
}

/// Watches the folders of all files, since a file may be replaced by another under the same name.
fn watch_folders(
    server: &ServerState,
    credentials: &Credentials,
    watcher: Option<&mut RecommendedWatcher>,
    folders: &mut BTreeSet<PathBuf>,
) {
    let Some(watcher) = watcher else { return };
    let credentials = credentials.paths(&server.config.in_force().server);
    let files = server
        .rollout
        .watched_files()
        .into_iter()
        .map(|(path, _)| path)
        .chain(server.config.source.path())
        .chain(credentials);
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

/// Reads the configuration again. A wrong one changes nothing, and is reported until it is mended.
fn reload(server: &ServerState, credentials: &Credentials) {
    let fault = match apply_config(server) {
        Ok(refused) if refused.is_empty() => server.config.restart_notice(),
        Ok(refused) => Some(refused.join("; ").into()),
        Err(fault) => {
            tracing::error!(error = fault.full, "the new configuration is wrong: the one before stays in force");
            let line = format!("{}; the configuration before stays in force", fault.for_all());
            server.rollout.report_refused_reload(&line);
            credentials.auth.audit.write(&AuditEntry::of_refused_reload(&server.config.source, fault.for_all()));
            Some(fault)
        }
    };
    if let Some(fault) = &fault {
        tracing::warn!(fault = fault.full, "the configuration is not in force as it is written");
    }
    server.config.set_fault(fault);
    server.jobs.live.notify_change();
}

/// Applies the configuration's file. Returns the parts that were refused.
fn apply_config(server: &ServerState) -> Result<Vec<String>, Fault> {
    let shipped: Vec<&str> = tilewright_policy::shipped_names().collect();
    let written = server.config.read()?;
    // As it would be after a restart, and as it is without one.
    written.check(&shipped)?;
    written.check_presence()?;
    let config = server.config.in_force().reloaded(&written, &shipped)?;
    let models = server.models.reopen(&config).map_err(|error| one_line(&error))?;
    let refused = server.rollout.reload(&config).map_err(|error| one_line(&error))?;
    server.models.replace(models);
    server.config.replace(written, config);
    Ok(refused)
}
