//! Files of decision records, and the record that a picture carries.

use std::{collections::BTreeMap, io::BufReader, path::Path};

use serde::Serialize;
use tilewright_plan::{Record, bytes, records, terminal::shorten};

use crate::{failure::Outcome, files, table};

/// A summary of a file of records.
#[derive(Default, Serialize)]
pub struct Recorded {
    records: usize,
    /// Records with the whole exchange, which can be replayed.
    full: usize,
    /// Records without an outcome.
    failed: usize,
    /// The number of records of each policy.
    policies: BTreeMap<String, usize>,
    /// The number of records of each family and size.
    requests: BTreeMap<String, usize>,
    first: Option<String>,
    last: Option<String>,
    /// The fault of the first line that is no record.
    damage: Option<String>,
    /// The last decision.
    #[serde(skip)]
    decision: Option<Box<Record>>,
}

impl Recorded {
    /// Reads a file of JSON; none if its first line is no record.
    pub fn of(path: &Path) -> Outcome<Option<Self>> {
        let file = tilewright_files::open(path).map_err(files::unreadable(path))?;
        let mut found = Self::default();
        for record in records::read(BufReader::new(file)) {
            match record {
                Ok((_, record)) => found.add(record),
                Err(_) if found.records == 0 => return Ok(None),
                Err(damage) => {
                    found.damage.get_or_insert_with(|| damage.to_string());
                }
            }
        }
        Ok((found.records > 0).then_some(found))
    }

    fn add(&mut self, record: Record) {
        /// The most kinds that are counted apart; files that tilewright writes have fewer.
        const MOST: usize = 64;
        self.records += 1;
        self.full += usize::from(record.exchange.is_some());
        self.failed += usize::from(record.outcome.is_none());
        let count = |counts: &mut BTreeMap<String, usize>, name: String| {
            if counts.len() < MOST || counts.contains_key(&name) {
                *counts.entry(name).or_default() += 1;
            }
        };
        count(
            &mut self.policies,
            format!("{} {}", shorten(&record.policy.name, 64), shorten(&record.policy.version, 64)),
        );
        count(&mut self.requests, request(&record));
        self.first.get_or_insert_with(|| record.time.clone());
        self.last = Some(record.time.clone());
        self.decision = Some(Box::new(record));
    }

    /// The summary as rows of a table.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let counted = |counts: &BTreeMap<String, usize>| {
            counts.iter().map(|(name, count)| format!("{name} ({count})")).collect::<Vec<_>>().join(", ")
        };
        let noun = if self.records == 1 { "record" } else { "records" };
        let mut rows = vec![("kind", format!("decision {noun}: 'tilewright policy replay' decides full ones again"))];
        rows.push((
            "records",
            format!("{}, {} of them full, {} without an outcome", self.records, self.full, self.failed),
        ));
        rows.push(("policies", counted(&self.policies)));
        rows.push(("requests", counted(&self.requests)));
        if let (Some(first), Some(last)) = (&self.first, &self.last) {
            rows.push(("time", format!("{} to {}", shorten(first, 64), shorten(last, 64))));
        }
        rows.extend(self.damage.iter().map(|damage| ("damaged", damage.to_owned())));
        if let Some(record) = self.decision.as_deref().filter(|_| self.records == 1) {
            rows.extend(decision(record));
        }
        rows
    }
}

fn request(record: &Record) -> String {
    let request = &record.request;
    let frames = if request.frames > 1 { format!(", {} frames", request.frames) } else { String::new() };
    format!("{} {}×{}{frames}", shorten(&request.model.family, 64), request.width, request.height)
}

/// The decision, the policy that made it, and its outcome.
pub fn decision(record: &Record) -> Vec<(&'static str, String)> {
    let plan = &record.plan;
    let (policy, version) = (shorten(&record.policy.name, 64), shorten(&record.policy.version, 64));
    let mut rows = vec![
        (
            "decided",
            format!("{} by {policy} {version}, in tilewright {}", request(record), shorten(&record.tilewright, 64)),
        ),
        ("plan", format!("{}, {}, {}", plan.space, plan.precision, plan.layout)),
    ];
    if !plan.reason.is_empty() {
        rows.push(("why", shorten(&plan.reason, 400)));
    }
    if let Some(outcome) = &record.outcome {
        let (elapsed, held) = (table::time(outcome.elapsed), bytes::display(outcome.peak_bytes));
        rows.push(("measured", format!("{elapsed}, {held} held, on {}", shorten(&record.device.name, 80))));
    }
    rows
}
