//! The history of trials: every decode, encode and sample that ended, kept in one SQLite file that
//! all processes of the user share. Policies read earlier measurements from it
//! ([`History::trials`]); people list, export, merge and clear it. Beside the record of a run that
//! was profiled stands a summary of where its time went.
//!
//! ```
//! use tilewright_history::{Filter, History};
//!
//! let folder = tempfile::tempdir()?;
//! let history = History::open(&folder.path().join("history.sqlite"))?;
//! assert!(history.newest(&Filter::default(), 20)?.entries.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod file;
mod fingerprint;
mod kept;
mod merge;
mod quarantine;
mod query;
mod schema;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod trials;

pub use error::{Error, Result};
pub use file::user_path;
pub use fingerprint::model_fingerprint;
pub use kept::{Columns, Kept};
pub use merge::Merged;
pub use query::{Entry, Exported, Filter, Listing, NotATime, json_line, since};
pub use store::{History, MOST_RECORD_BYTES, MOST_ROWS};
pub use tilewright_profile::ProfileSummary;
pub use trials::Query;
