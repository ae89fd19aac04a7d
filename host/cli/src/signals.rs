//! SIGINT and SIGTERM, in every command but `serve`. The work ends at its next step, or the program
//! at once if no work would notice; no half-written file stays, one line says so, and the exit
//! status is 130 or 143, as in shells. SIGXFSZ ends nothing, in any command.

use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI32, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
    low_level,
};

use crate::{printer, tell::tell};

/// The time that a layer, or the work before the first one, may take after a signal.
const PATIENCE: Duration = Duration::from_millis(500);

/// The prefix of unfinished files' names, in all crates of this project.
const UNFINISHED: &[u8] = b".tilewright-";

/// The first signal that came; 0 before.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// Advice about what is kept of the work, for the line that says that it was interrupted.
static ADVICE: Mutex<Option<String>> = Mutex::new(None);

/// The present effect of a signal. The thread that ends the program holds the lock until the end.
static STATE: Mutex<State> = Mutex::new(State { manner: StopMode::AtOnce, abandon: None });

/// The way a signal ends the program during a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// At once, in the middle of the work.
    AtOnce,
    /// By the work itself, which checks [`is_received`]; at once if that takes too long, or at a
    /// second signal.
    Soon,
    /// By the work itself, however long it takes; at once at a second signal.
    Patiently,
    /// Not at all: the rest of the work is short and must be completed.
    Finishing,
}

struct State {
    manner: StopMode,
    /// Cleans up after unfinished work.
    abandon: Option<Box<dyn FnOnce() + Send>>,
}

/// Makes a write beyond the system's limit on file sizes fail like any other write. Without a
/// handler, the system would end the program; programs that this one starts have none.
pub fn outlive_large_files() {
    // The signal has to be handled, and nothing reads the flag. A failure before the log begins
    // can't be reported.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Handles the two signals from now on. Until then the system ends the program, with the same
/// statuses in shells.
pub fn listen() {
    let (sender, signals) = mpsc::channel();
    match Signals::new([SIGINT, SIGTERM]) {
        Ok(mut coming) => {
            thread::spawn(move || coming.forever().try_for_each(|signal| sender.send(signal)));
            thread::spawn(move || end_at(&signals));
        }
        Err(error) => tracing::debug!(%error, "signals end the program as the system does"),
    }
}

/// The exit status of the signal that came; none before.
pub fn status() -> Option<u8> {
    let signal = RECEIVED.load(Ordering::Relaxed);
    (signal != 0).then_some(128_u8.saturating_add(signal as u8))
}

/// True if a signal has come: the work is to end.
pub fn is_received() -> bool {
    status().is_some()
}

/// Sets the way the program may be ended from now on.
pub fn manner(manner: StopMode) {
    state().manner = manner;
}

/// Sets the cleanup after unfinished work, except for open files, which are found without it.
pub fn on_abandon(abandon: impl FnOnce() + Send + 'static) {
    state().abandon = Some(Box::new(abandon));
}

/// Says from now on, if a signal ends the work, what is kept of it and how to go on.
pub fn advise(advice: String) {
    *ADVICE.lock().unwrap_or_else(PoisonError::into_inner) = Some(advice);
}

/// Says nothing of what is kept from now on.
pub fn advise_nothing() {
    ADVICE.lock().unwrap_or_else(PoisonError::into_inner).take();
}

/// The advice, if there is any.
pub fn advice() -> Option<String> {
    ADVICE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end_at(signals: &Receiver<i32>) {
    let Ok(first) = signals.recv() else { return };
    RECEIVED.store(first, Ordering::Relaxed);
    let manner = state().manner;
    match manner {
        StopMode::AtOnce => {}
        StopMode::Patiently => drop(signals.recv()),
        // Until a second one, or the time is up.
        StopMode::Soon | StopMode::Finishing => drop(signals.recv_timeout(PATIENCE)),
    }
    let mut state = state();
    if state.manner == StopMode::Finishing {
        return;
    }
    if let Some(abandon) = state.abandon.take() {
        abandon();
    }
    remove_unfinished(Path::new("/"));
    // Other threads that would print after this line wait until the program has ended.
    let _alone = printer::alone();
    match advice() {
        Some(advice) => tell!("error: interrupted; {advice}"),
        None => tell!("error: interrupted"),
    }
    // Not `process::exit`: it would run libtorch's destructors while the main thread still
    // computes. Nothing is left to flush: standard output has each line already, and standard error
    // has no buffer.
    low_level::exit(i32::from(status().unwrap_or(1)));
}

/// Removes the files below a folder that this process is writing under a temporary name. They are
/// found among its open files, since the crates that opened them are not notified of the end.
fn remove_unfinished(folder: &Path) {
    for entry in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let Ok(path) = fs::read_link(entry.path()) else { continue };
        let is_passing = path.file_name().is_some_and(|name| name.as_bytes().starts_with(UNFINISHED));
        if is_passing
            && path.starts_with(folder)
            && is_writable(Path::new("/proc/self/fdinfo").join(entry.file_name()).as_path())
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// True if a file is open for writing, by the flags in its `fdinfo`: octal, the two lowest bits
/// (proc(5), open(2)).
fn is_writable(info: &Path) -> bool {
    let text = fs::read_to_string(info).unwrap_or_default();
    let flags = text.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 0o3 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_files_under_way_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at(".tilewright-read"), "an input with such a name").unwrap();
        let input = File::open(at(".tilewright-read")).unwrap();
        let kept = File::create(at("kept")).unwrap();
        let unfinished = tempfile::Builder::new().prefix(".tilewright-").tempfile_in(folder.path()).unwrap();
        // Limited to this folder: other tests write files, too.
        remove_unfinished(folder.path());
        assert!(at(".tilewright-read").exists() && at("kept").exists());
        assert!(!unfinished.path().exists());
        drop((input, kept));
    }
}
