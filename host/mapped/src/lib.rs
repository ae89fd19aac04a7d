//! Files mapped into memory. A file that is cut short or written over while it is mapped neither
//! ends the process nor passes for sound: pages that are gone read as zeros, and
//! [`MappedFile::check`] says that the file has changed.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("weights");
//! std::fs::write(&path, vec![7; 100_000])?;
//! let map = tilewright_mapped::MappedFile::new(&path, std::fs::File::open(&path)?)?;
//! assert_eq!(map[99_999], 7);
//! map.check()?;
//! std::fs::write(&path, "short")?;
//! assert_eq!(map[99_999], 0);
//! assert!(map.check().is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_op_in_unsafe_fn)]

mod faults;
mod file;
mod identity;
pub mod meeting;

pub use file::{Fault, MappedFile};
pub use identity::Identity;
