//! Jobs in SQLite: accepted ones are there after any end of the server, and each ends once.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension, ffi, params, params_from_iter, types::Value};
use tilewright_rollout::Disk;

use super::{Kept, State};
use crate::{Error, Result};

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS job (
        id TEXT PRIMARY KEY,
        state TEXT NOT NULL,
        idempotency TEXT UNIQUE,
        tag TEXT,
        route TEXT NOT NULL,
        policy TEXT NOT NULL,
        ended_ms INTEGER,
        kept TEXT NOT NULL,
        record TEXT
    ) STRICT;
    CREATE INDEX IF NOT EXISTS job_by_state ON job (state, id);
    CREATE INDEX IF NOT EXISTS job_by_end ON job (ended_ms) WHERE ended_ms IS NOT NULL;
";

/// Version 2 has the number of a job's revision, and whether a job's end was asked for while it was at work.
const SECOND: &str = "
    ALTER TABLE job ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE job ADD COLUMN is_cancelled INTEGER NOT NULL DEFAULT 0;
    UPDATE job SET revision = coalesce(json_extract(kept, '$.job.revision'), 0);
";

/// The version of the schema that this program writes.
const VERSION: i64 = 2;

/// Rows that a search reads at once and, at most, in all.
const ROWS: u32 = 200;
const MOST_ROWS: usize = 4000;

/// Jobs.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    connection: Mutex<Connection>,
    disk: Disk,
}

/// Which jobs are listed; newest first.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub state: Option<State>,
    pub tag: Option<String>,
    pub policy: Option<String>,
    pub route: Option<String>,
    /// Only those that have a record.
    pub decided: bool,
    /// Only those before this one.
    pub before: Option<String>,
    pub limit: u32,
}

/// Search terms that the database has no columns for.
#[derive(Clone, Debug, Default)]
pub struct Search {
    pub model: Option<String>,
    pub device: Option<String>,
    /// A text in the id, model, device, tag, route, policy, format or error; upper and lower case are the same.
    pub text: Option<String>,
}

impl Search {
    fn is_everything(&self) -> bool {
        self.model.is_none() && self.device.is_none() && self.text.is_none()
    }

    fn matches(&self, kept: &Kept) -> bool {
        let job = &kept.job;
        let is_same = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|wanted| wanted == has);
        let has_text = |text: &String| {
            let text = text.to_lowercase();
            let texts = [&job.id, &job.model, &job.device, &job.route, &job.policy];
            let further = [job.tag.as_deref(), job.error.as_deref(), Some(job.format.ending())];
            texts
                .into_iter()
                .map(String::as_str)
                .chain(further.into_iter().flatten())
                .any(|own| own.to_lowercase().contains(&text))
        };
        is_same(&self.model, &job.model)
            && is_same(&self.device, &job.device)
            && self.text.as_ref().is_none_or(has_text)
    }
}

/// A job that is accepted.
#[derive(Debug)]
pub enum Accepted {
    /// It is new.
    New,
    /// The same key was used before: that job.
    Before(Box<Kept>),
}

impl Store {
    /// Opens the database, made where there is none.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::InUse`] where another server has it open.
    pub fn open(path: &Path, disk: Disk) -> Result<Self> {
        let failed = |source| Error::Store { path: path.to_owned(), source };
        let mut connection = Connection::open(path).map_err(failed)?;
        connection.busy_timeout(Duration::from_millis(200)).map_err(failed)?;
        let mut set_up = || -> rusqlite::Result<i64> {
            // What was accepted has to outlast the machine's power, too.
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            if version < VERSION {
                disk.step().map_err(|_| full())?;
                // All of it or nothing, even if the server ends in between.
                let transaction = connection.transaction()?;
                transaction.execute_batch(SCHEMA)?;
                transaction.execute_batch(SECOND)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
                transaction.commit()?;
            }
            Ok(version)
        };
        let version = set_up().map_err(|source| match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                Error::InUse(path.to_owned())
            }
            _ => failed(source),
        })?;
        if version > VERSION {
            return Err(Error::Credential {
                path: path.to_owned(),
                reason: format!(
                    "was written by a newer Tilewright (version {version} of its tables, {VERSION} is known): update this one, or give [server] another data folder"
                ),
            });
        }
        Ok(Self { path: path.to_owned(), connection: Mutex::new(connection), disk })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T> {
        work(&mut self.lock()).map_err(|source| Error::Store { path: self.path.clone(), source })
    }

    /// As `with`, for a change: a failed write is reported to the disk.
    fn write<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T> {
        let written = self.with(|connection| {
            self.disk.step().map_err(|_| full())?;
            work(connection)
        });
        written.inspect_err(|error| {
            if let Some(is_full) = error.unwritten() {
                self.disk.note(is_full, crate::error::one_line(error));
            }
        })
    }

    /// Checks by a write that the database can be written again.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn probe(&self) -> Result<()> {
        self.write(|connection| connection.pragma_update(None, "user_version", VERSION))
    }

    /// Marks a job to be ended; the mark survives a restart.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn cancel(&self, id: &str) -> Result<()> {
        let update = "UPDATE job SET is_cancelled = 1 WHERE id = ?1 AND ended_ms IS NULL";
        self.write(|connection| connection.prepare_cached(update)?.execute([id])).map(drop)
    }

    /// The highest revision number of any job, by policy.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn revisions(&self) -> Result<BTreeMap<String, u64>> {
        self.with(|connection| {
            let mut statement = connection.prepare("SELECT policy, max(revision) FROM job GROUP BY policy")?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.max(0) as u64)))?;
            rows.collect()
        })
    }

    /// Accepts a job: from now on it outlives the server.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn accept(&self, kept: &Kept, key: Option<&str>) -> Result<Accepted> {
        let text = text_of(kept);
        let id = &kept.job.id;
        let before = self.write(|connection| {
            let transaction = connection.transaction()?;
            let revision = kept.job.revision as i64;
            let values =
                params![id, kept.job.state.name(), key, kept.job.tag, kept.job.route, kept.job.policy, text, revision];
            let insert = "INSERT INTO job (id, state, idempotency, tag, route, policy, kept, revision) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (idempotency) DO NOTHING";
            let before = match transaction.execute(insert, values)? {
                0 => transaction.query_row("SELECT kept FROM job WHERE idempotency = ?1", [key], |row| row.get::<_, String>(0)).optional()?,
                _ => None,
            };
            transaction.commit()?;
            Ok(before)
        })?;
        Ok(before.as_deref().and_then(kept_of).map_or(Accepted::New, |kept| Accepted::Before(Box::new(kept))))
    }

    /// The job that was accepted with a key.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn with_key(&self, key: &str) -> Result<Option<Kept>> {
        let select = "SELECT kept FROM job WHERE idempotency = ?1";
        let found = self.with(|connection| {
            connection.prepare_cached(select)?.query_row([key], |row| row.get::<_, String>(0)).optional()
        })?;
        Ok(found.as_deref().and_then(kept_of))
    }

    /// Writes how far a job is; nothing where it has ended before. Whether it was written.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn update(&self, kept: &Kept, record: Option<&str>, ended_ms: Option<u64>) -> Result<bool> {
        let text = text_of(kept);
        let update = "UPDATE job SET state = ?2, kept = ?3, record = coalesce(?4, record), ended_ms = ?5 WHERE id = ?1 AND ended_ms IS NULL";
        let ended_ms = ended_ms.map(|ms| ms as i64);
        let values = params![kept.job.id, kept.job.state.name(), text, record, ended_ms];
        Ok(self.write(|connection| connection.prepare_cached(update)?.execute(values))? > 0)
    }

    /// One job.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn get(&self, id: &str) -> Result<Option<Kept>> {
        let select = "SELECT kept FROM job WHERE id = ?1";
        let found = self.with(|connection| {
            connection.prepare_cached(select)?.query_row([id], |row| row.get::<_, String>(0)).optional()
        })?;
        Ok(found.as_deref().and_then(kept_of))
    }

    /// A job's record, as JSON.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn record(&self, id: &str) -> Result<Option<String>> {
        let select = "SELECT record FROM job WHERE id = ?1";
        let found = self.with(|connection| {
            connection.prepare_cached(select)?.query_row([id], |row| row.get::<_, Option<String>>(0)).optional()
        })?;
        Ok(found.flatten())
    }

    /// Jobs, newest first, with their records where those are asked for.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn list(&self, filter: &Filter) -> Result<Vec<(Kept, Option<String>)>> {
        let columns = if filter.decided { "kept, record" } else { "kept, NULL" };
        let mut query = format!("SELECT {columns} FROM job WHERE 1");
        let mut values: Vec<Value> = Vec::new();
        let conditions = [
            ("state = ?", filter.state.map(|state| state.name().to_owned())),
            ("tag = ?", filter.tag.clone()),
            ("policy = ?", filter.policy.clone()),
            ("route = ?", filter.route.clone()),
            ("id < ?", filter.before.clone()),
        ];
        for (condition, value) in conditions {
            if let Some(value) = value {
                query = format!("{query} AND {condition}");
                values.push(value.into());
            }
        }
        if filter.decided {
            query.push_str(" AND record IS NOT NULL");
        }
        query.push_str(" ORDER BY id DESC LIMIT ?");
        values.push(i64::from(filter.limit).into());
        let rows = self.with(|connection| {
            let mut statement = connection.prepare_cached(&query)?;
            let rows = statement.query_map(params_from_iter(values), |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?))
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        Ok(rows.into_iter().filter_map(|(kept, record)| Some((kept_of(&kept)?, record))).collect())
    }

    /// The jobs of a search, newest first, and the id to go on from; none at the end. Rows are read by the hundred, so
    /// that nobody else waits for the database, and only so many: a page may have fewer jobs than were asked for, and
    /// others follow.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn search(&self, filter: &Filter, search: &Search) -> Result<(Vec<Kept>, Option<String>)> {
        let wanted = filter.limit as usize;
        let (mut found, mut before, mut looked) = (Vec::new(), filter.before.clone(), 0);
        loop {
            let limit = if search.is_everything() { filter.limit.saturating_add(1) } else { ROWS };
            let rows = self.list(&Filter { before: before.clone(), limit, decided: false, ..filter.clone() })?;
            let is_last = rows.len() < limit as usize;
            looked += rows.len();
            for (kept, _) in rows {
                if found.len() == wanted {
                    return Ok((found, before));
                }
                before = Some(kept.job.id.clone());
                if search.matches(&kept) {
                    found.push(kept);
                }
            }
            if is_last {
                return Ok((found, None));
            }
            if looked >= MOST_ROWS {
                return Ok((found, before));
            }
        }
    }

    /// Jobs that have not ended, oldest first; each with true if its end was asked for.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn unfinished(&self) -> Result<Vec<(Kept, bool)>> {
        let rows = self.with(|connection| {
            let mut statement =
                connection.prepare("SELECT kept, is_cancelled FROM job WHERE ended_ms IS NULL ORDER BY id")?;
            let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?)))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        Ok(rows.iter().filter_map(|(text, is_cancelled)| Some((kept_of(text)?, *is_cancelled))).collect())
    }

    /// Jobs that ended before a time, some hundred at once.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn ended_before(&self, ended_ms: u64) -> Result<Vec<String>> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached("SELECT id FROM job WHERE ended_ms < ?1 LIMIT 500")?;
            let rows = statement.query_map([ended_ms as i64], |row| row.get::<_, String>(0))?;
            rows.collect()
        })
    }

    /// Forgets jobs.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn forget(&self, ids: &[String]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.write(|connection| {
            let transaction = connection.transaction()?;
            for id in ids {
                transaction.prepare_cached("DELETE FROM job WHERE id = ?1")?.execute([id])?;
            }
            transaction.commit()
        })
    }

    /// Every job's id, to tell which files are nobody's.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn ids(&self) -> Result<Vec<String>> {
        self.with(|connection| {
            let mut statement = connection.prepare("SELECT id FROM job")?;
            let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
            rows.collect()
        })
    }
}

/// SQLite's error for a full disk.
fn full() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None)
}

fn text_of(kept: &Kept) -> String {
    // Plain data with text keys: there is nothing that JSON can't hold.
    serde_json::to_string(kept).unwrap_or_default()
}

fn kept_of(text: &str) -> Option<Kept> {
    serde_json::from_str(text).inspect_err(|error| tracing::error!(%error, "a job can't be read back")).ok()
}
