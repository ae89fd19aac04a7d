//! The tables, and their migration from earlier formats.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, config::DbConfig, limits::Limit};

use crate::{Error, Result, file, store::MOST_RECORD_BYTES};

/// The application id in the file's header, `TLWR`, which distinguishes it from other programs'
/// databases.
const APPLICATION: i64 = 0x544c_5752;

/// The timeout for another process's write.
pub(crate) const BUSY: Duration = Duration::from_secs(5);

/// The migrations from each format to the next; a file's `user_version` counts those applied.
/// Entries are only added, never edited.
pub(crate) const MIGRATIONS: [&str; 2] = [
    "
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
",
    // The summary of a profiled run, as JSON.
    "ALTER TABLE trial ADD COLUMN profile TEXT",
];

/// The longest value that is read, in bytes: a record and its columns. tilewright writes no longer
/// one.
const MOST_VALUE: i32 = 4 * MOST_RECORD_BYTES as i32;

/// The limit on the work of opening, in thousands of SQLite's steps; it takes a few. A file made to
/// be slow, such as one with a million tables, is given up.
const MOST_STEPS: u32 = 1000;

/// Settings that keep a file from making SQLite do more than this program needs.
const SETTINGS: [(DbConfig, bool); 4] = [
    (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
    (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
    (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
];

/// The format that this program writes.
const FORMAT: i64 = MIGRATIONS.len() as i64;

/// Opens an existing file and migrates it to this format, while [`crate::file::lock_folder`] keeps
/// it from being renamed. Nothing is written before the file is known to be a history.
///
/// # Errors
/// [`Error::Corrupt`] only for a file that may be a history; [`Error::NoHistory`] for every other
/// file that is not a database.
pub(crate) fn connect(path: &Path) -> Result<Connection> {
    open_and_migrate(path).map_err(|error| match error {
        Error::Corrupt { path } if !file::may_be_history(&path) => Error::NoHistory { path },
        error => error,
    })
}

fn open_and_migrate(path: &Path) -> Result<Connection> {
    let sqlite = |cause| Error::sqlite(path, cause);
    file::check_plain(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    guard(&mut connection).map_err(sqlite)?;
    // One transaction: another process may be making the tables just now.
    let moment = connection.transaction().map_err(sqlite)?;
    let found = format(&moment, path)?;
    if found > 0 {
        check_tables(&moment, found, path)?;
    }
    drop(moment);
    if found < FORMAT {
        migrate(&mut connection, path)?;
    }
    connection.progress_handler(0, None::<fn() -> bool>).map_err(sqlite)?;
    write_ahead(&connection).map_err(sqlite)?;
    // A write-ahead log makes this safe against a crash of the program, and no append waits for the
    // disk.
    connection.execute_batch("PRAGMA synchronous = NORMAL").map_err(sqlite)?;
    Ok(connection)
}

/// Limits the work that a file can cause in SQLite, before a byte of it is read.
fn guard(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    for (setting, on) in SETTINGS {
        connection.set_db_config(setting, on)?;
    }
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MOST_VALUE)?;
    connection.execute_batch("PRAGMA cell_size_check = ON")?;
    let mut steps = 0;
    connection.progress_handler(
        1000,
        Some(move || {
            steps += 1;
            steps > MOST_STEPS
        }),
    )
}

/// Checks that the tables are exactly those that this program makes, or made at an earlier format:
/// a view in a table's place could run for ever.
fn check_tables(connection: &Connection, format: i64, path: &Path) -> Result<()> {
    let sqlite = |cause| Error::sqlite(path, cause);
    let own = Connection::open_in_memory().map_err(sqlite)?;
    for step in MIGRATIONS.iter().take(usize::try_from(format).unwrap_or_default()) {
        own.execute_batch(step).map_err(sqlite)?;
    }
    match objects(connection).map_err(sqlite)? == objects(&own).map_err(sqlite)? {
        true => Ok(()),
        false => Err(Error::Foreign { path: path.to_owned() }),
    }
}

/// The type, name, table and SQL of each object of a database, except SQLite's own.
type Objects = Vec<(String, String, String, Option<String>)>;

/// The first 16 objects of a database, by name: more than this program makes.
fn objects(connection: &Connection) -> rusqlite::Result<Objects> {
    let query = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name LIMIT 16";
    let mut statement = connection.prepare(query)?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    rows.collect()
}

/// Turns on the write-ahead log. Two processes that create a file at once meet a lock that SQLite
/// doesn't wait for.
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

/// The first damaged page, if any.
pub(crate) fn damage(connection: &Connection, path: &Path) -> Result<Option<String>> {
    let verdict: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|cause| Error::sqlite(path, cause))?;
    Ok((verdict != "ok").then_some(verdict))
}

/// The file's format; 0 if it is empty. Call it in a transaction.
fn format(connection: &Connection, path: &Path) -> Result<i64> {
    let number = |query| connection.query_row(query, [], |row| row.get(0)).map_err(|cause| Error::sqlite(path, cause));
    // PRAGMA statements, not the functions of the same names: a table could have a function's name.
    let found: i64 = number("PRAGMA user_version")?;
    let application: i64 = number("PRAGMA application_id")?;
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
