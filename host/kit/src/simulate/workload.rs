//! The requests to a simulated device: every case under every kind of limit, or those of a file, or
//! those of records.

use serde::Deserialize;
use thiserror::Error;
use tilewright_plan::{Objective, Record, Stage, VariantOf, bytes, of_any, of_kinds, records::AnyRecord};

use super::{Table, simulated::Simulated, table::CaseIndex};

/// The most requests of a workload.
const MOST_REQUESTS: usize = 100_000;

/// The share of a device's free memory for an ample limit.
const AMPLE: f64 = 0.8;

/// Rounds of the built-in workload: in later ones a policy has learned from earlier ones.
const ROUNDS: usize = 3;

const OBJECTIVES: [Objective; 3] = [Objective::Fastest, Objective::Balanced, Objective::Leanest];

/// Limits by name, as shares of the memory of a whole decode in f32; none is a share of the free
/// memory.
const LIMITS: [(&str, Option<f64>); 3] = [("ample", None), ("half", Some(0.5)), ("third", Some(1.0 / 3.0))];

/// The reason why a workload can't be used. Each is one line.
#[derive(Debug, Error)]
pub enum WorkloadError {
    /// Not JSON of a workload.
    #[error("not a workload: {0}")]
    NotAWorkload(String),
    /// A request of a size that the table does not have.
    #[error("request {request}: the table has nothing of {wanted}: it has {known}")]
    NoCase {
        /// Counted from 1.
        request: usize,
        /// The size asked for.
        wanted: String,
        /// The sizes of the table.
        known: String,
    },
    /// A limit that is not a size.
    #[error("request {request}: '{given}' is no limit: write ample, half, third, or a size, as in 2GiB")]
    Limit {
        /// Counted from 1.
        request: usize,
        /// The given text.
        given: String,
    },
    /// Too many requests.
    #[error("more than {MOST_REQUESTS} requests")]
    TooLong,
    /// No usable request.
    #[error("no request in it is one that the table has")]
    Empty,
}

/// One request of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The table's case.
    pub case: CaseIndex,
    /// The limit in bytes.
    pub memory_limit: u64,
    /// The objective.
    pub objective: Objective,
}

/// Work that items are of.
trait Workload: Simulated + VariantOf<CaseIndex, Variant = usize> {}

impl<W: Simulated + VariantOf<CaseIndex, Variant = usize>> Workload for W {}

/// A workload's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    requests: Vec<Wanted>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    /// `denoise` for a sample, whose sides are those of the latent; `text` for an encoder, whose
    /// width is the tokens of all texts, height 1 and batch their number.
    stage: Option<Stage>,
    width: u32,
    height: u32,
    #[serde(default = "one")]
    frames: u32,
    #[serde(default = "one")]
    batch: u32,
    /// The model's family, needed if the table has several.
    family: Option<String>,
    #[serde(default = "ample")]
    memory_limit: Limit,
    #[serde(default)]
    objective: Objective,
    #[serde(default = "one")]
    times: u32,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Limit {
    Bytes(u64),
    Text(String),
}

const fn one() -> u32 {
    1
}

fn ample() -> Limit {
    Limit::Text("ample".into())
}

/// Every case under every limit for every objective, three rounds, in an order that is mixed and
/// always the same.
pub fn builtin(table: &Table) -> Vec<Item> {
    let mut items = Vec::new();
    for _ in 0..ROUNDS {
        let begun = items.len();
        of_kinds!(W => items.extend(under_each_limit::<W>(table)));
        mix(&mut items[begun..], begun as u64);
    }
    items
}

fn under_each_limit<W: Workload>(table: &Table) -> impl Iterator<Item = Item> {
    W::cases(table).iter().enumerate().flat_map(|(index, case)| {
        let limits = LIMITS.map(|(_, share)| limit(table, case.whole_bytes(), share));
        let case = W::any(index);
        limits
            .into_iter()
            .flat_map(move |memory_limit| OBJECTIVES.map(|objective| Item { case, memory_limit, objective }))
    })
}

/// Fisher and Yates's shuffle, by Knuth's linear congruential generator: the same on every machine.
fn mix(items: &mut [Item], seed: u64) {
    let mut state = seed;
    for end in (1..items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(end, (state >> 33) as usize % (end + 1));
    }
}

/// A limit in bytes, of a case whose whole plan takes this much.
fn limit(table: &Table, whole_bytes: Option<u64>, share: Option<f64>) -> u64 {
    let free = (table.device.free_bytes as f64 * AMPLE) as u64;
    match (share, whole_bytes) {
        (Some(share), Some(whole)) => (whole as f64 * share) as u64,
        _ => free,
    }
}

/// Reads a workload's file: `{"requests": [{"width": 512, "height": 512, "memory_limit": "third",
/// "objective": "leanest", "times": 10}]}`. `frames`, `batch` and `times` are 1 if they are left
/// out, the limit is `ample`, the objective `balanced`.
///
/// # Errors
/// Any [`WorkloadError`].
pub fn read(table: &Table, text: &[u8]) -> Result<Vec<Item>, WorkloadError> {
    let file: File = serde_json::from_slice(text).map_err(|error| WorkloadError::NotAWorkload(error.to_string()))?;
    let mut items = Vec::new();
    for (index, wanted) in file.requests.into_iter().enumerate() {
        let request = index + 1;
        let extents = [wanted.width, wanted.height, wanted.frames, wanted.batch];
        let family = wanted.family.as_deref();
        let found = of_any!(wanted.stage.unwrap_or_default().kind(), _: W => find::<W>(table, extents, family));
        let (case, whole_bytes) = found.ok_or_else(|| WorkloadError::NoCase {
            request,
            wanted: format!(
                "{} × {}×{}, {} frames{}",
                wanted.batch,
                wanted.width,
                wanted.height,
                wanted.frames,
                wanted.family.as_ref().map(|family| format!(", {family}")).unwrap_or_default()
            ),
            known: table.words().join("; "),
        })?;
        let memory_limit = match &wanted.memory_limit {
            Limit::Bytes(bytes) => *bytes,
            Limit::Text(text) => match LIMITS.iter().find(|(name, _)| name == text) {
                Some((_, share)) => limit(table, whole_bytes, *share),
                None => bytes::parse(text).map_err(|_| WorkloadError::Limit { request, given: text.clone() })?,
            },
        };
        let item = Item { case, memory_limit, objective: wanted.objective };
        if items.len() + wanted.times as usize > MOST_REQUESTS {
            return Err(WorkloadError::TooLong);
        }
        items.extend(std::iter::repeat_n(item, wanted.times as usize));
    }
    if items.is_empty() { Err(WorkloadError::Empty) } else { Ok(items) }
}

/// The case of these extents and family, and the bytes of its whole plan.
fn find<W: Workload>(table: &Table, extents: [u32; 4], family: Option<&str>) -> Option<(CaseIndex, Option<u64>)> {
    let (index, case) = W::cases(table).iter().enumerate().find(|(_, case)| {
        let (known, known_family) = W::size(&case.request);
        known == extents && family.is_none_or(|family| family == known_family)
    })?;
    Some((W::any(index), case.whole_bytes()))
}

/// The requests of records, in order, as far as the table has them; and how many it has not.
///
/// # Errors
/// [`WorkloadError::TooLong`] and [`WorkloadError::Empty`].
pub fn from_records<'a>(
    table: &Table,
    records: impl IntoIterator<Item = &'a AnyRecord>,
) -> Result<(Vec<Item>, usize), WorkloadError> {
    let (mut items, mut left) = (Vec::new(), 0);
    for record in records {
        let item = of_any!(record, record => item(table, record));
        match item {
            Some(item) => items.push(item),
            None => left += 1,
        }
        if items.len() > MOST_REQUESTS {
            return Err(WorkloadError::TooLong);
        }
    }
    if items.is_empty() { Err(WorkloadError::Empty) } else { Ok((items, left)) }
}

fn item<W: Workload>(table: &Table, record: &Record<W>) -> Option<Item> {
    let Record { request, .. } = record;
    let case = W::any(table.case_of::<W>(record.stage(), request)?);
    Some(Item { case, memory_limit: W::memory_limit(request), objective: W::objective(request) })
}
