//! The records of other machines, added to a history.

use std::time::SystemTime;

use rusqlite::{TransactionBehavior, params};
use tilewright_plan::{of_any, records::AnyRecord};
use tilewright_profile::ProfileSummary;

use crate::{
    Error, History, MOST_RECORD_BYTES, Result,
    store::{PRUNE, add_row, milliseconds, place_in_time},
};

const ROWS: &str = "SELECT device, record, profile FROM trial ORDER BY time, id";

const KNOWN: &str = "SELECT EXISTS (SELECT 1 FROM trial WHERE time = ?1 AND device = ?2 AND record = ?3)";

/// The result of a merge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Records that were added.
    pub added: u64,
    /// Records that were there already.
    pub known: u64,
    /// Rows left out because this version of the program can't read them.
    pub unreadable: u64,
    /// The oldest records, removed because there are more than [`crate::MOST_ROWS`].
    pub removed: u64,
}

impl History {
    /// Adds the records of another history that are not there yet, as they were made: with their
    /// times and their devices. Policies on a device learn from those of the same fingerprint.
    /// Nothing of the other history is believed but records that can be read: the columns by which
    /// they are found are computed again. All are added, or none.
    ///
    /// # Errors
    /// SQLite can't read the one file, or write the other.
    pub fn merge(&mut self, other: &History) -> Result<Merged> {
        let sqlite = |cause| Error::sqlite(&self.path, cause);
        let read = |cause| Error::sqlite(&other.path, cause);
        let mut statement = other.connection.prepare(ROWS).map_err(read)?;
        let mut rows = statement.query([]).map_err(read)?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sqlite)?;
        let mut merged = Merged::default();
        while let Some(row) = rows.next().map_err(read)? {
            let texts = (row.get(0), row.get(1), row.get(2));
            let (device, text, profile): (String, String, Option<String>) =
                (texts.0.map_err(read)?, texts.1.map_err(read)?, texts.2.map_err(read)?);
            let is_too_large = device.len() + text.len() + profile.as_ref().map_or(0, String::len) > MOST_RECORD_BYTES;
            let profile = profile.filter(|text| serde_json::from_str::<ProfileSummary>(text).is_ok());
            let Some(record) = AnyRecord::from_json(&text).filter(|_| !is_too_large) else {
                merged.unreadable += 1;
                continue;
            };
            let made = of_any!(&record, record => humantime::parse_rfc3339(&record.time));
            let Ok(made) = made else {
                merged.unreadable += 1;
                continue;
            };
            let time = place_in_time(&transaction, made, SystemTime::now()).map_err(sqlite)?;
            // One from a clock that is ahead was brought to the present when it was added first.
            let is_there = |time: i64| transaction.query_row(KNOWN, params![time, device, text], |row| row.get(0));
            if is_there(time).map_err(sqlite)? || is_there(milliseconds(made)).map_err(sqlite)? {
                merged.known += 1;
                continue;
            }
            let texts = (text.as_str(), profile.as_deref());
            of_any!(&record, record: W => add_row::<W>(&transaction, &self.path, (time, &device), record, texts))?;
            merged.added += 1;
        }
        merged.removed = transaction.execute(PRUNE, [self.most_rows]).map_err(sqlite)? as u64;
        transaction.commit().map_err(sqlite)?;
        Ok(merged)
    }
}
