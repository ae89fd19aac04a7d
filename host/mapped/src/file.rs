//! A mapped file, and its check.

use std::{
    fmt,
    fs::File,
    io,
    ops::{Deref, Range},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use memmap2::{Advice, Mmap, MmapOptions, UncheckedAdvice};
use thiserror::Error;

use crate::{Identity, faults::Watch};

/// A reason why what was read of a mapped file does not count.
#[derive(Debug, Error)]
pub enum Fault {
    /// It was written over or cut short.
    #[error(
        "{}: changed while it was in use: try again when it is whole; a new file that is renamed to the name of one in use harms nothing",
        .0.display()
    )]
    Changed(PathBuf),
    /// A page of it could not be read.
    #[error("{}: can't be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// A file mapped into memory, to be read. It stays whole if its name goes to another file; if the
/// file itself is cut short, the rest reads as zeros, and [`Self::check`] fails.
///
/// A file that is written over within the tick of the file system's clock in which it was opened,
/// with as many bytes, is not found to have changed.
pub struct MappedFile {
    path: PathBuf,
    file: File,
    identity: Identity,
    /// The time of the last change of the file or of its facts, in seconds and nanoseconds.
    facts_changed: (i64, i64),
    // Before the map, so that it goes before it.
    watch: Watch,
    map: Mmap,
}

impl MappedFile {
    /// Maps a file that was opened at a path.
    ///
    /// # Errors
    /// The system's.
    pub fn new(path: &Path, file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let bytes = usize::try_from(metadata.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        // SAFETY: the map is only read. Pages that the file loses meanwhile are replaced by zeros,
        // and bytes that change meanwhile are found by `check`, before what was made of them is
        // used: every read has to stand whatever they are.
        let map = unsafe { MmapOptions::new().len(bytes).map(&file)? };
        let watch = Watch::new(map.as_ptr(), map.len())?;
        let facts_changed = (metadata.ctime(), metadata.ctime_nsec());
        Ok(Self { path: path.to_owned(), file, identity: Identity::of(&metadata), facts_changed, watch, map })
    }

    /// The path that it was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of the contents that were mapped.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Checks that all bytes that were read until now are those of the file as it was opened. To be
    /// called after reads, and before what was made of them is used.
    ///
    /// # Errors
    /// The file has changed, or a page of it could not be read.
    pub fn check(&self) -> Result<(), Fault> {
        let unreadable = |source| Fault::Unreadable { path: self.path.clone(), source };
        let now = self.file.metadata().map_err(unreadable)?;
        if Identity::of(&now) != self.identity {
            return Err(Fault::Changed(self.path.clone()));
        }
        match (self.watch.is_damaged(), (now.ctime(), now.ctime_nsec()) == self.facts_changed) {
            (false, _) => Ok(()),
            // It is as it was: the disk or the network failed.
            (true, true) => Err(unreadable(io::Error::from(rustix::io::Errno::IO))),
            // It was cut short, and then written to and dated as before.
            (true, false) => Err(Fault::Changed(self.path.clone())),
        }
    }

    /// True if the path still leads to this file, and the file is as it was. A file whose name is
    /// gone serves for as long as it is open.
    pub fn is_current(&self) -> bool {
        let is_same = match std::fs::metadata(&self.path) {
            Ok(found) => Identity::of(&found) == self.identity,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        is_same && self.check().is_ok()
    }

    /// Asks the system to read a range ahead of its use. It is free to do nothing.
    pub fn read_ahead(&self, range: &Range<usize>) {
        drop(self.map.advise_range(Advice::WillNeed, range.start, range.len()));
    }

    /// Gives the memory of a range back; it is read again when it is used.
    pub fn give_back(&self, range: &Range<usize>) {
        // SAFETY: the map is of a file and is only read, so that its pages come back as the file
        // has them.
        drop(unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) });
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({}, {} bytes)", self.path.display(), self.map.len())
    }
}
