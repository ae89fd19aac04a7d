//! The tables, and how a file of an earlier format becomes one of this.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use crate::{Error, Result};

/// In the file's header: `TLWR`. Told apart from other programs' databases by it.
const APPLICATION: i64 = 0x544c_5752;

/// How long another process's write is waited for.
pub(crate) const BUSY: Duration = Duration::from_secs(5);

/// From each format to the next; a file's `user_version` counts those that it has been through. Never edited, only added to.
const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE trial (
        id INTEGER PRIMARY KEY,
        time INTEGER NOT NULL,
        device TEXT NOT NULL,
        device_name TEXT NOT NULL,
        model TEXT NOT NULL,
        family TEXT NOT NULL,
        stage TEXT NOT NULL,
        height INTEGER NOT NULL,
        width INTEGER NOT NULL,
        frames INTEGER NOT NULL,
        batch INTEGER NOT NULL,
        size INTEGER NOT NULL,
        policy TEXT NOT NULL,
        space TEXT NOT NULL,
        tile_height INTEGER,
        tile_width INTEGER,
        overlap INTEGER,
        precision TEXT NOT NULL,
        layout TEXT NOT NULL,
        plan INTEGER NOT NULL,
        elapsed_ns INTEGER,
        peak_bytes INTEGER,
        failed INTEGER NOT NULL CHECK (failed IN (0, 1)),
        record TEXT NOT NULL
    ) STRICT;
    CREATE INDEX trial_of_policies ON trial (stage, device, model, failed, time DESC, id DESC, size, plan);
    CREATE INDEX trial_by_time ON trial (time DESC, id DESC);
"];

/// The format that this program writes.
const FORMAT: i64 = MIGRATIONS.len() as i64;

/// Opens a file that is there and brings it to this format, while [`crate::place::hold`] keeps it where it is. Nothing is written before the file is known to be ours.
pub(crate) fn connect(path: &Path) -> Result<Connection> {
    let sqlite = |cause| Error::sqlite(path, cause);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    connection.busy_timeout(BUSY).map_err(sqlite)?;
    // All of it at one moment: another process may be making the tables just now.
    let moment = connection.transaction().map_err(sqlite)?;
    let found = format(&moment, path)?;
    drop(moment);
    if found < FORMAT {
        migrate(&mut connection, path)?;
    }
    write_ahead(&connection).map_err(sqlite)?;
    // With a log that is written ahead this is safe against a crash of the program, and waits for no disk.
    connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA trusted_schema = OFF;").map_err(sqlite)?;
    Ok(connection)
}

/// Lets readers and writers go on side by side. Two processes that begin a file at once meet a lock that SQLite doesn't wait for.
fn write_ahead(connection: &Connection) -> rusqlite::Result<()> {
    let started = Instant::now();
    loop {
        match connection.execute_batch("PRAGMA journal_mode = WAL") {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && started.elapsed() < BUSY => {
                thread::sleep(BUSY / 500);
            }
            done => return done,
        }
    }
}

/// Where pages are damaged, what the first is.
pub(crate) fn damage(connection: &Connection, path: &Path) -> Result<Option<String>> {
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|cause| Error::sqlite(path, cause))?;
    Ok((verdict != "ok").then_some(verdict))
}

/// The file's format; 0 where it is empty. Call it in a transaction.
fn format(connection: &Connection, path: &Path) -> Result<i64> {
    let number = |query| connection.query_row(query, [], |row| row.get(0)).map_err(|cause| Error::sqlite(path, cause));
    let found: i64 = number("SELECT user_version FROM pragma_user_version")?;
    let application: i64 = number("SELECT application_id FROM pragma_application_id")?;
    let tables: i64 = number("SELECT count(*) FROM sqlite_schema")?;
    let path = || path.to_owned();
    match () {
        () if application != APPLICATION && tables > 0 => Err(Error::Foreign { path: path() }),
        () if found > FORMAT => Err(Error::Newer { path: path(), found, known: FORMAT }),
        () => Ok(found.max(0)),
    }
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<()> {
    let sqlite = |cause| Error::sqlite(path, cause);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sqlite)?;
    // Another process may have been first.
    let done = format(&transaction, path)?;
    for step in &MIGRATIONS[done as usize..] {
        transaction.execute_batch(step).map_err(sqlite)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION).map_err(sqlite)?;
    transaction.pragma_update(None, "user_version", FORMAT).map_err(sqlite)?;
    transaction.commit().map_err(sqlite)
}
