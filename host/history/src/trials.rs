//! Trials for policies: measurements on this device, for this model, at about this size.

use std::{collections::HashMap, ops::RangeInclusive};

use rusqlite::params;
use tilewright_plan::{Record, Stage, Vae};

use crate::{Error, History, Result, kept::Kept};

/// "About this size": at most this many times the output, and at least one in this many.
const ABOUT: u128 = 4;

/// The number of newest measurements of one plan that are returned; of older ones the 16th, the
/// 32nd and so on are. Several, so that an outlier shows, and old ones, so that a machine that is
/// busy for a while is not taken for a slow one.
const NEWEST_OF_PLAN: u32 = 8;

/// Measurements of about this size that are examined for plans not found yet. This bounds the time
/// if the same few plans were run thousands of times.
const LOOKED_AT: u32 = 4096;

/// Uses the index alone: the records of rows that are skipped are never read. The number of rows is
/// limited, which bounds the time if a file has more.
pub(crate) const NEWEST: &str = "
    SELECT id, size, plan FROM trial INDEXED BY trial_of_policies
    WHERE stage = ?1 AND device = ?2 AND model = ?3 AND failed = 0 ORDER BY time DESC, id DESC LIMIT ?4";

/// A search for trials to compare with.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a, W: Kept = Vae> {
    /// The device's fingerprint: everything that changes its speed. Matched exactly.
    pub device: &'a str,
    /// The kind of work.
    pub stage: Stage,
    /// For the model, which is matched exactly, and the size.
    pub request: &'a W::Request,
}

impl History {
    /// Records of successful runs of this model on this device, at a quarter to four times this
    /// size (batch · frames · height · width) that were not profiled, newest first, the later-added
    /// first at the same time. Of each plan, whatever its reason, the newest eight and few older
    /// ones; of the newest 4096 that match. A damaged file is quarantined, as in [`History::open`].
    ///
    /// # Errors
    /// SQLite can't read.
    pub fn trials<W: Kept>(&mut self, query: &Query<'_, W>, most: u32) -> Result<Vec<Record<W>>> {
        self.retry_on_damage(|history| history.trials_now(query, most))
    }

    fn trials_now<W: Kept>(&self, query: &Query<'_, W>, most: u32) -> Result<Vec<Record<W>>> {
        let sqlite = |cause| Error::sqlite(&self.path, cause);
        let (about, model) = (about(W::extents(query.request)), W::model(query.request));
        let mut newest = self.connection.prepare(NEWEST).map_err(sqlite)?;
        let mut record = self.connection.prepare("SELECT record, profile FROM trial WHERE id = ?1").map_err(sqlite)?;
        let mut rows =
            newest.query(params![query.stage.name(), query.device, model, self.most_rows]).map_err(sqlite)?;
        let mut seen: HashMap<i64, u32> = HashMap::new();
        let mut trials: Vec<Record<W>> = Vec::new();
        let mut looked_at = 0;
        while trials.len() < most as usize && looked_at < LOOKED_AT {
            let Some(row) = rows.next().map_err(sqlite)? else { break };
            let [id, size, plan] = columns(row).map_err(sqlite)?;
            if !about.contains(&size) {
                continue;
            }
            looked_at += 1;
            let of_plan = seen.entry(plan).or_default();
            *of_plan += 1;
            if *of_plan > NEWEST_OF_PLAN && !of_plan.is_power_of_two() {
                continue;
            }
            // Time of the profiler is not the plan's.
            let text: String = match record.query_row([id], |row| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?))) {
                Ok((_, Some(_))) => continue,
                Ok((text, None)) => text,
                // Removed by another process meanwhile.
                Err(rusqlite::Error::QueryReturnedNoRows) => continue,
                Err(cause) => return Err(sqlite(cause)),
            };
            trials.extend(serde_json::from_str(&text).ok().filter(|record: &Record<W>| record.outcome.is_some()));
        }
        Ok(trials)
    }
}

fn columns(row: &rusqlite::Row<'_>) -> rusqlite::Result<[i64; 3]> {
    Ok([row.get(0)?, row.get(1)?, row.get(2)?])
}

/// The sizes that a request is compared with.
fn about(extents: [u32; 4]) -> RangeInclusive<i64> {
    let size = exact_size(extents);
    saturate(size.div_ceil(ABOUT))..=saturate(size.saturating_mul(ABOUT))
}

/// Output pixels over samples and frames.
pub(crate) fn size(extents: [u32; 4]) -> i64 {
    saturate(exact_size(extents))
}

fn exact_size(extents: [u32; 4]) -> u128 {
    extents.into_iter().map(u128::from).product()
}

fn saturate(size: u128) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// A key of everything in a plan but the reason: a 64-bit FNV-1a of its JSON, the same in every
/// build.
pub(crate) fn plan_key<W: Kept>(plan: &W::Plan) -> Result<i64> {
    let text = serde_json::to_vec(&W::without_reason(plan)).map_err(Error::Record)?;
    Ok(tilewright_files::digest::fnv1a(&text).cast_signed())
}
