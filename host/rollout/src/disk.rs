//! The one way in which state reaches the disk: whole files under their own names, there after a power cut once a write has returned. It
//! knows of every write that failed, and tests let any of its steps fail.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tempfile::NamedTempFile;

/// What names of unfinished files begin with: what a killed server leaves is found by it.
const PART: &str = ".tilewright-";

/// Bytes that a probe writes: as much as a decision of a job and the state of many policies take.
const PROBE: usize = 64 << 10;

/// The environment variable by which tests let steps fail: `7`, the seventh alone; `7..`, it and all that follow. Builds for users don't
/// look at it.
pub const FAULT: &str = "TILEWRIGHT_DISK_FAULT";

/// What such a step says.
const TOLD: &str = "no space left on device (a test's)";

/// Why state can't be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// There is no room, rather than something else wrong with the disk.
    pub is_full: bool,
    /// One line.
    pub line: String,
}

/// Where state is written to. Copies share what is known of failed writes.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    trouble: Mutex<Option<Trouble>>,
    /// Steps so far, from 1.
    steps: AtomicU64,
    fault: Option<Fault>,
}

/// Steps that fail.
#[derive(Clone, Copy, Debug)]
struct Fault {
    first: u64,
    and_all_after: bool,
}

impl Disk {
    /// The disk as it is; in debug builds with the fault that the environment asks for.
    pub fn new() -> Self {
        let asked = cfg!(debug_assertions).then(|| std::env::var(FAULT).ok()).flatten();
        let fault = asked.and_then(|text| {
            let first = text.trim_end_matches("..").parse().ok()?;
            Some(Fault { first, and_all_after: text.ends_with("..") })
        });
        Self(Arc::new(Inner { fault, ..Inner::default() }))
    }

    /// One whose step of this number fails for want of room, counted from 1, with all that follow or alone.
    #[cfg(test)]
    pub(crate) fn failing(first: u64, and_all_after: bool) -> Self {
        Self(Arc::new(Inner { fault: Some(Fault { first, and_all_after }), ..Inner::default() }))
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed)
    }

    /// Stands before everything that changes the disk: counts it, and fails where a test asks for that.
    ///
    /// # Errors
    /// The disk is full, as a test has it.
    pub fn step(&self) -> io::Result<()> {
        let step = self.0.steps.fetch_add(1, Ordering::Relaxed) + 1;
        let fails = |fault: Fault| step == fault.first || fault.and_all_after && step > fault.first;
        if self.0.fault.is_some_and(fails) {
            tracing::warn!(step, "{TOLD}");
            return Err(io::Error::new(io::ErrorKind::StorageFull, TOLD));
        }
        Ok(())
    }

    /// Puts a whole file under a name, in place of what stands there. It is there after a power cut, too, and nothing has changed where it
    /// fails before its last step, the folder's own.
    ///
    /// # Errors
    /// The disk does not take it: [`Disk::trouble`] knows from then on.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let replace = || -> io::Result<()> {
            self.step()?;
            let mut file = NamedTempFile::with_prefix_in(PART, folder)?;
            self.step()?;
            file.write_all(bytes)?;
            self.step()?;
            file.as_file().sync_all()?;
            self.step()?;
            file.persist(path)?;
            Ok(())
        };
        self.noted(path, replace())?;
        self.sync_folder(folder)
    }

    /// Makes the names in a folder last.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let sync = || {
            self.step()?;
            File::open(folder)?.sync_all()
        };
        self.noted(folder, sync())
    }

    /// Passes on what came of a write, and remembers that it failed.
    ///
    /// # Errors
    /// The one that is passed on.
    pub fn noted<T>(&self, path: &Path, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|error| self.note(is_full(error), format!("{}: {error}", path.display())))
    }

    /// Remembers a write that failed.
    pub fn note(&self, is_full: bool, line: String) {
        let mut trouble = self.lock();
        if trouble.is_none() {
            tracing::error!(is_full, "state can't be written: {line}");
        }
        *trouble = Some(Trouble { is_full, line });
    }

    /// What was wrong with the last write that failed, until a probe succeeds.
    pub fn trouble(&self) -> Option<Trouble> {
        self.lock().clone()
    }

    /// Writes a file as large as state may be, and removes it: whether there is room again.
    ///
    /// # Errors
    /// There is not.
    pub fn probe(&self, folder: &Path) -> io::Result<()> {
        let probe = || -> io::Result<()> {
            self.step()?;
            let mut file = NamedTempFile::with_prefix_in(PART, folder)?;
            file.write_all(&[0; PROBE])?;
            file.as_file().sync_all()
        };
        self.noted(folder, probe())
    }

    /// Writes succeed again.
    pub fn mended(&self) {
        if self.lock().take().is_some() {
            tracing::info!("state can be written again");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Trouble>> {
        self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a write failed for want of room: on the disk, in a quota, or below a limit on sizes of files.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Removes files that a server left unfinished when it was killed. Only for folders that nobody else works in.
pub fn remove_unfinished(folder: &Path) {
    let is_unfinished =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PART.as_bytes()));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(is_unfinished) {
        // What can't be removed costs room, not rightness.
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
            // Only the folder is synced after the file stands there.
            let expected = if step == steps { b"new" } else { b"old" };
            assert_eq!(std::fs::read(&path).unwrap(), expected, "{step}");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{step}");
            assert!(disk.trouble().is_some_and(|trouble| trouble.is_full));
            disk.probe(folder.path()).unwrap();
            disk.mended();
            assert_eq!(disk.trouble(), None);
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
