//! The file itself: opened, appended to, kept within its bounds.

use std::{
    mem,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, named_params};
use tilewright_plan::Record;
use tilewright_profile::ProfileSummary;

use crate::{
    Error, Result, file,
    file::LockMode,
    kept::{Columns, Kept},
    quarantine, schema, trials,
};

/// Records that are kept; the oldest go first.
pub const MOST_ROWS: u32 = 20_000;

/// The largest record that is kept, in bytes of JSON; a decode's has a few thousand.
pub const MOST_RECORD_BYTES: usize = 1 << 20;

/// Appends between two prunings: pruning costs more than appending.
const PRUNE_EVERY: i64 = 64;

/// The time before which no clock is right, in milliseconds since 1970: the beginning of 2026.
const EARLIEST_MS: i64 = 1_767_225_600_000;

/// The number of attempts to create a file that turns out damaged, or disappears after it was
/// found.
const MOST_TRIES: u32 = 8;

const INSERT: &str = "
    INSERT INTO trial (time, device, device_name, model, family, stage, height, width, frames, batch, size, policy, space,
        tile_height, tile_width, overlap, precision, layout, plan, elapsed_ns, peak_bytes, failed, record, profile)
    VALUES (:time, :device, :device_name, :model, :family, :stage, :height, :width, :frames, :batch, :size, :policy, :space,
        :tile_height, :tile_width, :overlap, :precision, :layout, :plan, :elapsed_ns, :peak_bytes, :failed, :record, :profile)";

pub(crate) const PRUNE: &str = "
    DELETE FROM trial WHERE (time, id) <= (SELECT time, id FROM trial ORDER BY time DESC, id DESC LIMIT 1 OFFSET ?1)";

/// The history of one user, open. Any number of processes may have it open at once.
#[derive(Debug)]
pub struct History {
    pub(crate) path: PathBuf,
    pub(crate) connection: Connection,
    quarantined: Vec<PathBuf>,
    pub(crate) most_rows: u32,
}

impl History {
    /// Opens a file, or creates it for the user alone, with missing parent folders. A damaged
    /// history is renamed to `NAME.broken-TIME` and a new one created: see
    /// [`History::take_quarantined`]. So is any file called `history.sqlite`; under another name, a
    /// file that does not begin as a database is left alone.
    ///
    /// # Errors
    /// The file can't be made, read or renamed; it is not a database; a newer version or another
    /// program wrote it; another process keeps it locked for 5 s.
    pub fn open(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path).map_err(|cause| Error::Make { path: path.to_owned(), cause })?;
        let mut quarantined = Vec::new();
        let connection = connect_or_quarantine(&path, &mut quarantined)?;
        Ok(Self { path, connection, quarantined, most_rows: MOST_ROWS })
    }

    /// Opens the user's own, at [`crate::user_path`].
    ///
    /// # Errors
    /// As [`History::open`], and [`Error::NoPlace`].
    pub fn user() -> Result<Self> {
        Self::open(&file::user_path()?)
    }

    /// Opens a file only to read it; none if it is missing. A damaged one stays where it is.
    ///
    /// # Errors
    /// As [`History::open`], and [`Error::Corrupt`].
    pub fn existing(path: &Path) -> Result<Option<Self>> {
        let path = std::path::absolute(path).map_err(|cause| Error::Make { path: path.to_owned(), cause })?;
        if !path.try_exists().map_err(|cause| Error::Make { path: path.clone(), cause })? {
            return Ok(None);
        }
        let connection = connect(&path)?;
        Ok(Some(Self { path, connection, quarantined: Vec::new(), most_rows: MOST_ROWS }))
    }

    /// A history without records, of no file.
    ///
    /// # Errors
    /// SQLite has no memory.
    pub fn empty() -> Result<Self> {
        let path = PathBuf::from("no file");
        let sqlite = |cause| Error::sqlite(&path, cause);
        let connection = Connection::open_in_memory().map_err(sqlite)?;
        schema::MIGRATIONS.iter().try_for_each(|step| connection.execute_batch(step)).map_err(sqlite)?;
        Ok(Self { path, connection, quarantined: Vec::new(), most_rows: MOST_ROWS })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The paths of files quarantined since the last call, for the user.
    pub fn take_quarantined(&mut self) -> Vec<PathBuf> {
        mem::take(&mut self.quarantined)
    }

    /// Adds the record of work that ended, made on the device with this fingerprint; one
    /// without an outcome has failed. Now and then all but the newest [`MOST_ROWS`] are removed. A
    /// file found damaged here is quarantined, as in [`History::open`].
    ///
    /// # Errors
    /// [`Error::TooLarge`], or SQLite can't write.
    pub fn append<W: Kept>(&mut self, device: &str, record: &Record<W>) -> Result<()> {
        self.append_profiled(device, record, None)
    }

    /// The same of work that was profiled: the summary of its profile stands beside the record,
    /// which is as it would be without.
    ///
    /// # Errors
    /// As [`History::append`].
    pub fn append_profiled<W: Kept>(
        &mut self,
        device: &str,
        record: &Record<W>,
        profile: Option<&ProfileSummary>,
    ) -> Result<()> {
        let text = serde_json::to_string(record).map_err(Error::Record)?;
        let profile = profile.map(serde_json::to_string).transpose().map_err(Error::Record)?;
        let bytes = text.len() + device.len() + profile.as_ref().map_or(0, String::len);
        if bytes > MOST_RECORD_BYTES {
            return Err(Error::TooLarge { bytes, most: MOST_RECORD_BYTES });
        }
        self.retry_on_damage(|history| history.insert(device, record, (&text, profile.as_deref())))
    }

    fn insert<W: Kept>(&mut self, device: &str, record: &Record<W>, texts: (&str, Option<&str>)) -> Result<()> {
        let sqlite = |cause| Error::sqlite(&self.path, cause);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sqlite)?;
        // Records of this program have a valid time; any other record counts as made now.
        let time = humantime::parse_rfc3339(&record.time).unwrap_or_else(|_| SystemTime::now());
        let time = place_in_time(&transaction, time, SystemTime::now()).map_err(sqlite)?;
        add_row(&transaction, &self.path, (time, device), record, texts)?;
        if transaction.last_insert_rowid() % PRUNE_EVERY == 0 {
            transaction.execute(PRUNE, [self.most_rows]).map_err(sqlite)?;
        }
        transaction.commit().map_err(sqlite)
    }

    /// Retries once with a new file if this one turns out to be damaged.
    pub(crate) fn retry_on_damage<T>(&mut self, mut work: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        match work(self) {
            Err(Error::Corrupt { .. }) => {
                // Closed before it is renamed.
                self.connection =
                    Connection::open_in_memory().map_err(|cause| Error::Sqlite { path: self.path.clone(), cause })?;
                self.quarantined.extend(quarantine::quarantine(&self.path)?);
                self.connection = connect_or_quarantine(&self.path, &mut self.quarantined)?;
                work(self)
            }
            done => done,
        }
    }
}

/// Adds a record with its texts, as JSON, and that of its profile.
pub(crate) fn add_row<W: Kept>(
    transaction: &Transaction<'_>,
    path: &Path,
    (time, device): (i64, &str),
    record: &Record<W>,
    (text, profile): (&str, Option<&str>),
) -> Result<()> {
    let Record { request, plan, outcome, .. } = record;
    let Columns { space, tile, precision, layout } = W::columns(plan);
    let [batch, frames, height, width] = W::extents(request);
    let values = named_params! {
        ":time": time,
        ":device": device,
        ":device_name": record.device.name,
        ":model": W::model(request),
        ":family": W::family(request),
        ":stage": record.stage().name(),
        ":height": height,
        ":width": width,
        ":frames": frames,
        ":batch": batch,
        ":size": trials::size([batch, frames, height, width]),
        ":policy": record.policy.name,
        ":space": space,
        ":tile_height": tile.map(|tile| tile.height),
        ":tile_width": tile.map(|tile| tile.width),
        ":overlap": tile.map(|tile| tile.overlap),
        ":precision": precision,
        ":layout": layout,
        ":plan": trials::plan_key::<W>(plan)?,
        ":elapsed_ns": outcome.as_ref().map(|outcome| i64::try_from(W::elapsed(outcome).as_nanos()).unwrap_or(i64::MAX)),
        ":peak_bytes": outcome.as_ref().map(|outcome| i64::try_from(W::all_measured(outcome)).unwrap_or(i64::MAX)),
        ":failed": outcome.is_none(),
        ":record": text,
        ":profile": profile,
    };
    transaction.execute(INSERT, values).map(drop).map_err(|cause| Error::sqlite(path, cause))
}

/// The time to keep a record under that was made at `time`, in milliseconds since 1970. Records
/// from the future were made while the clock was ahead: they are brought to the present, so that
/// those made after them count as newer. A clock that stands before this program was written is
/// wrong: the record comes after the newest one then.
pub(crate) fn place_in_time(connection: &Connection, time: SystemTime, now: SystemTime) -> rusqlite::Result<i64> {
    let (time, now) = (milliseconds(time), milliseconds(now));
    if now < EARLIEST_MS {
        let newest: Option<i64> = connection.query_row("SELECT max(time) FROM trial", [], |row| row.get(0))?;
        return Ok(time.max(newest.unwrap_or(time)));
    }
    connection.execute("UPDATE trial SET time = ?1 WHERE time > ?1", [now])?;
    Ok(time.min(now))
}

fn connect(path: &Path) -> Result<Connection> {
    let _held = file::lock_folder(path, LockMode::Shared)?;
    schema::connect(path)
}

/// Connects to a file, created if it is missing, with damaged ones quarantined.
fn connect_or_quarantine(path: &Path, quarantined: &mut Vec<PathBuf>) -> Result<Connection> {
    let mut tries = 0;
    loop {
        file::create_empty(path)?;
        tries += 1;
        match connect(path) {
            Err(Error::Corrupt { .. }) if tries < MOST_TRIES => quarantined.extend(quarantine::quarantine(path)?),
            // Another process is quarantining it.
            Err(Error::Sqlite { cause, .. })
                if tries < MOST_TRIES && cause.sqlite_error_code() == Some(ErrorCode::CannotOpen) => {}
            done => return done,
        }
    }
}

/// Since 1970, negative before.
pub(crate) fn milliseconds(time: SystemTime) -> i64 {
    let number = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => number(after),
        Err(before) => -number(before.duration()),
    }
}
