//! Queries of the user: the newest records, an export as JSON lines, and their removal.

use std::{fmt::Write as _, io::Write, time::SystemTime};

use rusqlite::TransactionBehavior;
use serde::Serialize;
use tilewright_plan::records::AnyRecord;
use tilewright_profile::ProfileSummary;

use crate::{Error, History, Result, store::milliseconds};

/// A filter of records; every condition that is set has to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Decided by the policy of this name.
    pub policy: Option<String>,
    /// The model is of this family.
    pub family: Option<String>,
    /// On a device whose name or fingerprint contains this text; the case of ASCII letters does not
    /// matter.
    pub device: Option<String>,
    /// Decided at this time or later.
    pub since: Option<SystemTime>,
    /// Only those that ended without a picture.
    pub failed: bool,
}

/// The end of every query with a [`Filter`]; [`Filter::values`] fits its parameters.
pub(crate) const MATCHING: &str = "
    FROM trial WHERE (?1 IS NULL OR policy = ?1) AND (?2 IS NULL OR family = ?2)
    AND (?3 IS NULL OR instr(lower(device_name), lower(?3)) > 0 OR instr(lower(device), lower(?3)) > 0)
    AND time >= ?4 AND (?5 = 0 OR failed = 1)";

/// A record and the device that it was made on.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The device's fingerprint.
    pub device: String,
    /// The record.
    pub record: AnyRecord,
    /// The summary of its profile, if it was profiled.
    pub profile: Option<ProfileSummary>,
}

/// An entry as a line of JSON has it: a record, and `profile` beside its fields if there is one.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    record: &'a AnyRecord,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<&'a ProfileSummary>,
}

impl Entry {
    /// The record as a line of [`json_line`], with the summary of its profile as `profile` if there
    /// is one.
    ///
    /// # Errors
    /// [`Error::Record`] if it can't be written as JSON.
    pub fn json_line(&self) -> Result<String> {
        json_line(&Line { record: &self.record, profile: self.profile.as_ref() })
    }
}

/// The newest records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Newest first.
    pub entries: Vec<Entry>,
    /// Rows among them that this version of the program can't read.
    pub unreadable: u64,
}

/// The result of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Lines written.
    pub records: u64,
    /// Rows left out because this version of the program can't read them.
    pub unreadable: u64,
}

impl Filter {
    pub(crate) fn values(&self) -> impl rusqlite::Params + '_ {
        let since = self.since.map_or(i64::MIN, milliseconds);
        (&self.policy, &self.family, &self.device, since, self.failed)
    }
}

impl History {
    /// The newest records, newest first, at most `most`.
    ///
    /// # Errors
    /// SQLite can't read, or the file is damaged.
    pub fn newest(&self, filter: &Filter, most: u32) -> Result<Listing> {
        let mut listing = Listing::default();
        self.each(filter, "DESC", |entry| {
            match entry {
                Some(entry) => listing.entries.push(entry),
                None => listing.unreadable += 1,
            }
            Ok(listing.entries.len() < most as usize)
        })?;
        Ok(listing)
    }

    /// Writes every record as a JSON line, oldest first, as `decode --record` appends them; one of
    /// a profiled run with the summary as `profile`.
    ///
    /// # Errors
    /// SQLite can't read, the file is damaged, or [`Error::Write`].
    pub fn export(&self, filter: &Filter, to: &mut dyn Write) -> Result<Exported> {
        let mut exported = Exported::default();
        self.each(filter, "ASC", |entry| {
            match entry {
                Some(entry) => {
                    writeln!(to, "{}", entry.json_line()?).map_err(Error::Write)?;
                    exported.records += 1;
                }
                None => exported.unreadable += 1,
            }
            Ok(true)
        })?;
        to.flush().map_err(Error::Write)?;
        Ok(exported)
    }

    /// The number of records.
    ///
    /// # Errors
    /// SQLite can't read, or the file is damaged.
    pub fn count(&self, filter: &Filter) -> Result<u64> {
        let query = format!("SELECT count(*) {MATCHING}");
        let count: i64 = self
            .connection
            .query_row(&query, filter.values(), |row| row.get(0))
            .map_err(|cause| Error::sqlite(&self.path, cause))?;
        Ok(count.unsigned_abs())
    }

    /// Removes records for good and returns their number. A file found damaged here is quarantined,
    /// as in [`History::open`].
    ///
    /// # Errors
    /// SQLite can't write.
    pub fn clear(&mut self, filter: &Filter) -> Result<u64> {
        self.retry_on_damage(|history| {
            let sqlite = |cause| Error::sqlite(&history.path, cause);
            let transaction =
                history.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sqlite)?;
            let removed = transaction.execute(&format!("DELETE {MATCHING}"), filter.values()).map_err(sqlite)?;
            transaction.commit().map_err(sqlite)?;
            // Leaves nothing of them in the file either. Another process that is reading may
            // prevent it, which is harmless.
            let _ = history.connection.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);");
            Ok(removed as u64)
        })
    }

    /// Visits records by time until `visit` breaks; unreadable records are skipped.
    fn each(&self, filter: &Filter, order: &str, mut visit: impl FnMut(Option<Entry>) -> Result<bool>) -> Result<()> {
        let sqlite = |cause| Error::sqlite(&self.path, cause);
        let query = format!("SELECT device, record, profile {MATCHING} ORDER BY time {order}, id {order}");
        let mut statement = self.connection.prepare(&query).map_err(sqlite)?;
        let mut rows = statement.query(filter.values()).map_err(sqlite)?;
        while let Some(row) = rows.next().map_err(sqlite)? {
            let (device, text): (String, String) = (row.get(0).map_err(sqlite)?, row.get(1).map_err(sqlite)?);
            let profile: Option<String> = row.get(2).map_err(sqlite)?;
            let profile = profile.and_then(|text| serde_json::from_str(&text).ok());
            if !visit(AnyRecord::from_json(&text).map(|record| Entry { device, record, profile }))? {
                break;
            }
        }
        Ok(())
    }
}

/// A record as one line of JSON that is safe to show on a terminal: control characters and marks of
/// writing direction that JSON leaves as they are get escaped.
///
/// # Errors
/// [`Error::Record`] if it can't be written as JSON.
pub fn json_line(record: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(record).map_err(Error::Record)?;
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        // JSON is ASCII outside its strings, so a character to be escaped is in a string.
        match u32::from(character) {
            code @ (0x7f..=0x9f | 0x61c | 0x200e..=0x200f | 0x2028..=0x202e | 0x2066..=0x2069) => {
                // Writing into a string does not fail.
                let _ = write!(line, "\\u{code:04x}");
            }
            _ => line.push(character),
        }
    }
    Ok(line)
}

/// A text that is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no time: write a duration, as in 90min or 7d, or a date in UTC, as in 2026-11-21 or 2026-11-21T08:30:00Z"
)]
pub struct NotATime(String);

/// Reads a duration before now, or a date. A duration that reaches back before 1970 is 1970.
///
/// # Errors
/// [`NotATime`] for anything else.
pub fn since(text: &str, now: SystemTime) -> std::result::Result<SystemTime, NotATime> {
    let text = text.trim();
    if let Ok(duration) = humantime::parse_duration(text) {
        let after_1970 = |time: &SystemTime| *time >= SystemTime::UNIX_EPOCH;
        return Ok(now.checked_sub(duration).filter(after_1970).unwrap_or(SystemTime::UNIX_EPOCH));
    }
    humantime::parse_rfc3339_weak(text)
        .or_else(|_| humantime::parse_rfc3339_weak(&format!("{text}T00:00:00Z")))
        .map_err(|_| NotATime(text.to_owned()))
}
