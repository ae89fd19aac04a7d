//! A file's identity, as far as the file system shows it.

use std::{fs::Metadata, os::unix::fs::MetadataExt as _, time::SystemTime};

/// The identity of a file's contents: a file that was replaced, or written to since, has another
/// one. A change of its mode, its names or its links leaves it: those are no change of contents. A
/// new time of modification is one, since nothing cheaper than reading all of it could tell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Identity {
    /// The identity of the file that these are the facts of.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        }
    }

    /// The file's length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A file that is nowhere, for tests: a number for each.
    #[doc(hidden)]
    pub fn for_tests(number: u64) -> Self {
        Self { device: 0, inode: number, bytes: 0, modified: None }
    }
}
