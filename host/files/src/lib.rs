//! Files that others wrote. [`open`] opens a plain file without waiting and refuses everything
//! else; [`Format`] identifies a file's kind by its first bytes; [`header`] checks a safetensors
//! header before anything is sized by it. [`UserFolder`] is one of the user's own folders,
//! [`digest`] has the hashes that name contents, and [`Quote`] keeps a file's words apart from the
//! errors about it.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("notes.txt");
//! std::fs::write(&path, "short")?;
//! assert_eq!(tilewright_files::read(&path, 1 << 20)?, b"short");
//! assert!(tilewright_files::open("/dev/zero".as_ref()).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod digest;
mod format;
pub mod header;
mod link;
mod open;
mod quote;
mod user_folder;

pub use format::{Format, LOOKED_AT};
pub use link::{facts, is_broken, is_there};
pub use open::{append, open, read, read_text, regular};
pub use quote::{Quote, json_fault};
pub use user_folder::UserFolder;
