//! The only writer of state to the disk: whole files under their own names, which survive a power
//! cut after the write has returned. Every failed write is remembered, and tests can make any step
//! fail.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tempfile::NamedTempFile;

use crate::rollout::lock;

/// The prefix of unfinished files' names, by which those of a killed server are found.
pub(crate) const PART: &str = ".tilewright-";

/// Bytes that a probe writes: the size of one job's decision and the state of many policies.
const PROBE: usize = 64 << 10;

/// The environment variable by which tests make steps fail: `7` for the seventh alone, `7..` for it
/// and all that follow. Builds for users ignore it.
pub const FAULT: &str = "TILEWRIGHT_DISK_FAULT";

/// The message of a failure that a test asked for.
const TEST_FAILURE: &str = "no space left on device (a test's)";

/// The reason why state can't be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteFailure {
    /// True if there is no room, false if something else is wrong with the disk.
    pub is_full: bool,
    /// The reason in one line.
    pub line: String,
}

/// The disk that state is written to. Clones know of the same failed writes.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    trouble: Mutex<Option<WriteFailure>>,
    /// Steps so far; the first one is step 1.
    steps: AtomicU64,
    fault: Option<Fault>,
}

/// The steps that fail.
#[derive(Clone, Copy, Debug)]
struct Fault {
    first: u64,
    and_all_after: bool,
}

impl Disk {
    /// The real disk; in debug builds with the failing steps that `TILEWRIGHT_DISK_FAULT` names.
    pub fn new() -> Self {
        let asked = cfg!(debug_assertions).then(|| std::env::var(FAULT).ok()).flatten();
        let fault = asked.and_then(|text| {
            let first = text.trim_end_matches("..").parse().ok()?;
            Some(Fault { first, and_all_after: text.ends_with("..") })
        });
        Self(Arc::new(Inner { fault, ..Inner::default() }))
    }

    /// A disk whose step of this number, counted from 1, fails for lack of room: alone, or with all
    /// that follow.
    #[cfg(test)]
    pub(crate) fn failing(first: u64, and_all_after: bool) -> Self {
        Self(Arc::new(Inner { fault: Some(Fault { first, and_all_after }), ..Inner::default() }))
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed)
    }

    /// Counts a step, and fails if a test asks for that. Called before every change to the disk.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], if a test asks for it.
    pub fn step(&self) -> io::Result<()> {
        let step = self.0.steps.fetch_add(1, Ordering::Relaxed) + 1;
        let fails = |fault: Fault| step == fault.first || fault.and_all_after && step > fault.first;
        if self.0.fault.is_some_and(fails) {
            tracing::warn!(step, "{TEST_FAILURE}");
            return Err(io::Error::new(io::ErrorKind::StorageFull, TEST_FAILURE));
        }
        Ok(())
    }

    /// Writes a whole file under a name, in place of any file there. It outlasts a power cut. If
    /// any step before the last one, the folder's sync, fails, nothing has changed.
    ///
    /// # Errors
    /// The file can't be written, or its folder not synced; [`Disk::trouble`] says so from then on.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let replace = || -> io::Result<()> {
            self.step()?;
            let mut file = NamedTempFile::with_prefix_in(PART, folder)?;
            self.step()?;
            file.as_file_mut().write_all(bytes)?;
            self.step()?;
            file.as_file().sync_all()?;
            self.step()?;
            file.persist(path)?;
            Ok(())
        };
        self.track(path, replace())?;
        self.sync_folder(folder)
    }

    /// Makes the names in a folder outlast a power cut.
    ///
    /// # Errors
    /// The folder can't be synced.
    pub fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let sync = || {
            self.step()?;
            File::open(folder)?.sync_all()
        };
        self.track(folder, sync())
    }

    /// Passes on the result of a write, and remembers a failure.
    ///
    /// # Errors
    /// The error of `outcome`.
    pub fn track<T>(&self, path: &Path, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|error| self.note(is_full(error), format!("{}: {error}", path.display())))
    }

    /// Remembers a write that failed.
    pub fn note(&self, is_full: bool, line: String) {
        let mut trouble = self.lock();
        if trouble.is_none() {
            tracing::error!(is_full, "state can't be written: {line}");
        }
        *trouble = Some(WriteFailure { is_full, line });
    }

    /// The reason why the last failed write failed, until [`Disk::clear_trouble`] is called.
    pub fn trouble(&self) -> Option<WriteFailure> {
        self.lock().clone()
    }

    /// Tests if there is room: writes a file as large as state may be, and removes it.
    ///
    /// # Errors
    /// The file can't be written: there is no room yet.
    pub fn probe(&self, folder: &Path) -> io::Result<()> {
        let probe = || -> io::Result<()> {
            self.step()?;
            let mut file = NamedTempFile::with_prefix_in(PART, folder)?;
            file.as_file_mut().write_all(&[0; PROBE])?;
            file.as_file().sync_all()
        };
        self.track(folder, probe())
    }

    /// Forgets the failed writes, since writes succeed again.
    pub fn clear_trouble(&self) {
        if self.lock().take().is_some() {
            tracing::info!("state can be written again");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<WriteFailure>> {
        lock(&self.0.trouble)
    }
}

/// True if a write failed for lack of room on the disk or in a quota, and so may succeed later. A
/// file that is larger than files may be is not waited for: it never gets smaller.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Removes files that a server left unfinished when it was killed. Only for folders that nobody
/// else works in.
pub fn remove_unfinished(folder: &Path) {
    let is_unfinished =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PART.as_bytes()));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(is_unfinished) {
        // A file that can't be removed costs room and does no other harm.
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_that_fails_leaves_the_old_file_or_the_new_one_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let whole = Disk::default();
        whole.replace(&path, b"old").unwrap();
        let steps = whole.steps();
        for step in 1..=steps {
            whole.replace(&path, b"old").unwrap();
            let disk = Disk::failing(step, false);
            assert!(is_full(&disk.replace(&path, b"new").unwrap_err()));
            // The only step after the file is in place is the folder's sync.
            let expected = if step == steps { b"new" } else { b"old" };
            assert_eq!(std::fs::read(&path).unwrap(), expected, "{step}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{step}");
            assert!(disk.trouble().is_some_and(|trouble| trouble.is_full));
            disk.probe(folder.path()).unwrap();
            disk.clear_trouble();
            assert_eq!(disk.trouble(), None);
        }
    }

    #[test]
    fn only_the_lack_of_room_is_waited_for() {
        use io::ErrorKind::{FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        for (kind, expected) in [
            (StorageFull, true),
            (QuotaExceeded, true),
            (FileTooLarge, false),
            (ReadOnlyFilesystem, false),
            (PermissionDenied, false),
        ] {
            assert_eq!(is_full(&io::Error::from(kind)), expected, "{kind}");
        }
    }

    #[test]
    fn what_a_killed_server_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let left = NamedTempFile::with_prefix_in(PART, folder.path()).unwrap().keep().unwrap().1;
        std::fs::write(folder.path().join("state"), "").unwrap();
        remove_unfinished(folder.path());
        assert!(!left.exists() && folder.path().join("state").exists());
    }
}
