//! Jobs in SQLite. An accepted job survives any end of the server, and each job ends once.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension, Params, Row, ffi, params, params_from_iter, types::Value};
use rustix::process::{FlockType, Pid, fcntl_getlk};
use tilewright_rollout::Disk;
use tilewright_service_api::{JobStage, JobState};

use super::{StoredJob, idempotency::IdempotencyKey};
use crate::{
    Error, Result,
    clock::{self, KeptClock},
};

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

/// Version 2 adds the number of a job's revision, and a mark for a job whose end was asked for
/// while it was at work.
const MIGRATION_2: &str = "
    ALTER TABLE job ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE job ADD COLUMN is_cancelled INTEGER NOT NULL DEFAULT 0;
    UPDATE job SET revision = coalesce(json_extract(kept, '$.job.revision'), 0);
";

/// Version 3 adds the time by the machine's clock and by the steady one, at the last look at both.
const MIGRATION_3: &str = "
    CREATE TABLE clock (one INTEGER PRIMARY KEY CHECK (one = 1), wall_ms INTEGER NOT NULL, steady_ms INTEGER NOT NULL) STRICT;
";

/// The statements that lead to each version from the one before.
const MIGRATIONS: [(i64, &str); 3] = [(1, SCHEMA), (2, MIGRATION_2), (3, MIGRATION_3)];

/// The version of the schema that this program writes.
const VERSION: i64 = 3;

/// The last time that a kept one is taken for: the end of the year 9999.
const LATEST_MS: u64 = 253_402_300_799_000;

/// Rows that a search reads at once and, at most, in all.
const ROWS: u32 = 200;
const MOST_ROWS: usize = 4000;

/// The database of jobs. Its mutex is held for one statement or transaction.
#[derive(Debug)]
pub struct JobStore {
    path: PathBuf,
    connection: Mutex<Connection>,
    disk: Disk,
}

/// A selection of jobs, listed newest first.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    pub state: Option<JobState>,
    pub tag: Option<String>,
    pub policy: Option<String>,
    pub route: Option<String>,
    /// Jobs that have a record alone; their records are read with them.
    pub with_record: bool,
    /// Jobs accepted before this one.
    pub before: Option<String>,
    pub limit: u32,
    // The terms of a search that the database has no columns for.
    pub stage: Option<JobStage>,
    pub model: Option<String>,
    pub device: Option<String>,
    /// A text in the id, model, device, tag, route, policy, format, prompt or error; upper and
    /// lower case are the same.
    pub text: Option<String>,
}

impl JobFilter {
    fn is_everything(&self) -> bool {
        self.stage.is_none() && self.model.is_none() && self.device.is_none() && self.text.is_none()
    }

    fn matches(&self, stored: &StoredJob) -> bool {
        let job = &stored.job;
        let is_same = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|wanted| wanted == has);
        let has_text = |text: &String| {
            let text = text.to_lowercase();
            let texts = [&job.id, &job.model, &job.device, &job.route, &job.policy];
            let prompt = stored.request.prompt.as_deref();
            let further = [job.tag.as_deref(), job.error.as_deref(), Some(job.format.ending()), prompt];
            texts
                .into_iter()
                .map(String::as_str)
                .chain(further.into_iter().flatten())
                .any(|own| own.to_lowercase().contains(&text))
        };
        self.stage.is_none_or(|stage| stage == job.stage)
            && is_same(&self.model, &job.model)
            && is_same(&self.device, &job.device)
            && self.text.as_ref().is_none_or(has_text)
    }
}

/// The result of an insertion.
#[derive(Debug)]
pub enum Insertion {
    /// The job is new.
    New,
    /// The key was used before, for this job.
    Existing(Box<StoredJob>),
}

/// The process that has a database open for itself; none if it is in another container, or has
/// ended.
fn holder(path: &Path) -> Option<i32> {
    let held = fcntl_getlk(File::open(path).ok()?, &FlockType::WriteLock.into()).ok()??;
    held.pid.map(Pid::as_raw_pid)
}

impl JobStore {
    /// Opens the database, and makes it if it is missing.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::InUse`] if another server has it open; [`Error::NewerStore`].
    pub fn open(path: &Path, disk: Disk) -> Result<Self> {
        let failed = |source| Error::Store { path: path.to_owned(), source };
        let mut connection = Connection::open(path).map_err(failed)?;
        connection.busy_timeout(Duration::from_millis(200)).map_err(failed)?;
        let mut set_up = || -> rusqlite::Result<i64> {
            // Accepted jobs have to survive a power failure, too.
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            if version < VERSION {
                disk.step().map_err(|_| disk_full())?;
                // One transaction, so that an end of the server leaves all of it or nothing.
                let transaction = connection.transaction()?;
                for (_, statements) in MIGRATIONS.iter().filter(|(to, _)| version < *to) {
                    transaction.execute_batch(statements)?;
                }
                transaction.pragma_update(None, "user_version", VERSION)?;
                transaction.commit()?;
            }
            Ok(version)
        };
        let version = set_up().map_err(|source| match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                Error::InUse { folder: path.parent().unwrap_or(path).to_owned(), process: holder(path) }
            }
            _ => failed(source),
        })?;
        if version > VERSION {
            return Err(Error::NewerStore { path: path.to_owned(), found: version, known: VERSION });
        }
        Ok(Self { path: path.to_owned(), connection: Mutex::new(connection), disk })
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T> {
        work(&mut self.lock()).map_err(|source| Error::Store { path: self.path.clone(), source })
    }

    /// The rows of a query.
    fn rows<T>(&self, query: &str, values: impl Params) -> Result<Vec<T>>
    where
        T: for<'row> TryFrom<&'row Row<'row>, Error = rusqlite::Error>,
    {
        self.with(|connection| connection.prepare_cached(query)?.query_map(values, |row| T::try_from(row))?.collect())
    }

    /// The texts of a query for one column.
    fn texts(&self, query: &str, values: impl Params) -> Result<Vec<String>> {
        let rows: Vec<(String,)> = self.rows(query, values)?;
        Ok(rows.into_iter().map(|(text,)| text).collect())
    }

    /// Like `with`, for a change: a failed write is reported to the disk.
    fn write<T>(&self, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T> {
        let written = self.with(|connection| {
            self.disk.step().map_err(|_| disk_full())?;
            work(connection)
        });
        written.inspect_err(|error| {
            if let Some(is_full) = error.write_fault() {
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
    pub fn mark_cancelled(&self, id: &str) -> Result<()> {
        let update = "UPDATE job SET is_cancelled = 1 WHERE id = ?1 AND ended_ms IS NULL";
        self.write(|connection| connection.prepare_cached(update)?.execute([id])).map(drop)
    }

    /// The highest revision number of any job, by policy.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn revisions(&self) -> Result<BTreeMap<String, u64>> {
        let rows: Vec<(String, i64)> = self.rows("SELECT policy, max(revision) FROM job GROUP BY policy", [])?;
        Ok(rows.into_iter().map(|(policy, revision)| (policy, revision.max(0) as u64)).collect())
    }

    /// Stores an accepted job: from now on it outlives the server.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn insert(&self, stored: &StoredJob, key: Option<&IdempotencyKey>) -> Result<Insertion> {
        let key = key.map(IdempotencyKey::as_str);
        let text = to_json(stored);
        let id = &stored.job.id;
        let before = self.write(|connection| {
            let transaction = connection.transaction()?;
            let revision = stored.job.revision as i64;
            let values =
                params![id, stored.job.state.name(), key, stored.job.tag, stored.job.route, stored.job.policy, text, revision];
            let insert = "INSERT INTO job (id, state, idempotency, tag, route, policy, kept, revision) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (idempotency) DO NOTHING";
            let before = match transaction.execute(insert, values)? {
                0 => transaction.query_row("SELECT kept FROM job WHERE idempotency = ?1", [key], |row| row.get::<_, String>(0)).optional()?,
                _ => None,
            };
            transaction.commit()?;
            Ok(before)
        })?;
        Ok(before.as_deref().and_then(from_json).map_or(Insertion::New, |stored| Insertion::Existing(Box::new(stored))))
    }

    /// The job that was accepted with a key.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn find_by_key(&self, key: &IdempotencyKey) -> Result<Option<StoredJob>> {
        let found = self.texts("SELECT kept FROM job WHERE idempotency = ?1", [key.as_str()])?;
        Ok(found.first().and_then(|kept| from_json(kept)))
    }

    /// Writes the state of a job that has not ended before. Returns true if it was written.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn update(&self, stored: &StoredJob, record: Option<&str>, ended_ms: Option<u64>) -> Result<bool> {
        let text = to_json(stored);
        let update = "UPDATE job SET state = ?2, kept = ?3, record = coalesce(?4, record), ended_ms = ?5 WHERE id = ?1 AND ended_ms IS NULL";
        let ended_ms = ended_ms.map(|ms| ms as i64);
        let values = params![stored.job.id, stored.job.state.name(), text, record, ended_ms];
        Ok(self.write(|connection| connection.prepare_cached(update)?.execute(values))? > 0)
    }

    /// One job.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn get(&self, id: &str) -> Result<Option<StoredJob>> {
        let found = self.texts("SELECT kept FROM job WHERE id = ?1", [id])?;
        Ok(found.first().and_then(|kept| from_json(kept)))
    }

    /// A job's record, as JSON.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn record(&self, id: &str) -> Result<Option<String>> {
        Ok(self.texts("SELECT record FROM job WHERE id = ?1 AND record IS NOT NULL", [id])?.pop())
    }

    /// The selected jobs, newest first, with their records if those are asked for.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn list(&self, filter: &JobFilter) -> Result<Vec<(StoredJob, Option<String>)>> {
        let columns = if filter.with_record { "kept, record" } else { "kept, NULL" };
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
        if filter.with_record {
            query.push_str(" AND record IS NOT NULL");
        }
        query.push_str(" ORDER BY id DESC LIMIT ?");
        values.push(i64::from(filter.limit).into());
        let rows: Vec<(String, Option<String>)> = self.rows(&query, params_from_iter(values))?;
        Ok(rows.into_iter().filter_map(|(stored, record)| Some((from_json(&stored)?, record))).collect())
    }

    /// The jobs of a search, newest first, and the id to go on from; none at the end. Rows are read
    /// in batches, so that others need not wait long for the database, and up to a limit: a page
    /// may have fewer jobs than were asked for, and others follow.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn search(&self, filter: &JobFilter) -> Result<(Vec<StoredJob>, Option<String>)> {
        let wanted = filter.limit as usize;
        let (mut found, mut before, mut looked) = (Vec::new(), filter.before.clone(), 0);
        loop {
            let limit = if filter.is_everything() { filter.limit.saturating_add(1) } else { ROWS };
            let rows = self.list(&JobFilter { before: before.clone(), limit, with_record: false, ..filter.clone() })?;
            let is_last = rows.len() < limit as usize;
            looked += rows.len();
            for (stored, _) in rows {
                if found.len() == wanted {
                    return Ok((found, before));
                }
                before = Some(stored.job.id.clone());
                if filter.matches(&stored) {
                    found.push(stored);
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
    pub fn unfinished_jobs(&self) -> Result<Vec<(StoredJob, bool)>> {
        let select = "SELECT kept, is_cancelled FROM job WHERE ended_ms IS NULL ORDER BY id";
        let rows: Vec<(String, bool)> = self.rows(select, [])?;
        Ok(rows.iter().filter_map(|(text, is_cancelled)| Some((from_json(text)?, *is_cancelled))).collect())
    }

    /// The latest time of the jobs, accepted or ended, by the steady clock in milliseconds since
    /// 1970; 0 if there are none.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn last_ms(&self) -> Result<u64> {
        let last: Option<(Option<String>, Option<i64>)> =
            self.rows("SELECT max(id), max(ended_ms) FROM job", [])?.pop();
        let (id, ended) = last.unwrap_or_default();
        let accepted = id.and_then(|id| clock::accepted_ms(&id)).unwrap_or(0);
        Ok(accepted.max(ended.map_or(0, |ended| u64::try_from(ended).unwrap_or(0))).min(LATEST_MS))
    }

    /// The time by the machine's clock and by the steady one when both were last kept, in
    /// milliseconds since 1970; none if they were not.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn kept_clock(&self) -> Result<Option<KeptClock>> {
        let found: Option<(i64, i64)> = self.rows("SELECT wall_ms, steady_ms FROM clock", [])?.pop();
        let ms = |ms: i64| u64::try_from(ms).unwrap_or(0).min(LATEST_MS);
        Ok(found.map(|(wall, steady)| KeptClock { wall_ms: ms(wall), steady_ms: ms(steady) }))
    }

    /// Keeps the present by both clocks, from which the next server goes on.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn keep_clock(&self) -> Result<()> {
        let keep = "INSERT INTO clock VALUES (1, ?1, ?2) ON CONFLICT (one) DO UPDATE SET wall_ms = ?1, steady_ms = ?2";
        let now = params![clock::now_ms() as i64, clock::steady_ms() as i64];
        self.with(|connection| connection.prepare_cached(keep)?.execute(now)).map(drop)
    }

    /// Jobs that ended before a time by the steady clock, some hundred at once.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn ended_before(&self, ended_ms: u64) -> Result<Vec<String>> {
        self.texts("SELECT id FROM job WHERE ended_ms < ?1 LIMIT 500", [ended_ms as i64])
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

    /// The ids of all jobs, to find files that belong to none.
    ///
    /// # Errors
    /// [`Error::Store`]
    pub fn ids(&self) -> Result<Vec<String>> {
        self.texts("SELECT id FROM job", [])
    }
}

/// SQLite's error for a disk_full disk.
fn disk_full() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None)
}

fn to_json(stored: &StoredJob) -> String {
    // Plain data with text keys: JSON can hold all of it.
    serde_json::to_string(stored).unwrap_or_default()
}

fn from_json(text: &str) -> Option<StoredJob> {
    serde_json::from_str(text).inspect_err(|error| tracing::error!(%error, "a job can't be read back")).ok()
}
