//! Requests out of records: what each call of a policy was told, as far as the record has it.

use std::{fs, path::Path, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use tilewright_plan::{Attempt, Cost, Device, Offer, Outcome, Plan, PoolStatistics, Record, Request, Trial};
use tilewright_policy::gate::golden;

use super::{CompareError, facts::Priced};

/// A question that a policy was asked, with the answers that the host gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest {
    /// Where it stands and what it is, in a few words.
    pub name: String,
    /// What was asked for.
    pub request: Request,
    /// On what.
    pub device: Device,
    /// What could be carried out.
    pub offer: Offer,
    /// The attempts that had failed before.
    pub attempts: Vec<Attempt>,
    /// Prices that the record has.
    prices: Vec<(Plan, Result<Cost, String>)>,
    trials: Vec<Trial>,
}

/// What `--record full` adds, as far as it is needed here.
#[derive(Deserialize)]
struct Exchange {
    calls: Vec<Asked>,
}

#[derive(Deserialize)]
struct Asked {
    request: Request,
    question: Question,
    #[serde(default)]
    heard: Heard,
}

#[derive(Deserialize)]
struct Question {
    kind: String,
    #[serde(default)]
    attempts: Vec<Attempt>,
    #[serde(default)]
    offer: Option<Running>,
}

#[derive(Deserialize)]
struct Running {
    #[serde(default)]
    running: Option<Plan>,
}

#[derive(Default, Deserialize)]
struct Heard {
    #[serde(default)]
    estimates: Vec<Estimate>,
    #[serde(default)]
    trials: Vec<Trials>,
}

#[derive(Deserialize)]
struct Estimate {
    plan: Plan,
    cost: Option<ExactCost>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct ExactCost {
    peak_bytes: u64,
    elapsed_ns: u64,
    tiles: u32,
    shapes: u32,
    /// A number, or a text where every digit counts.
    #[serde(default)]
    rework: Value,
}

#[derive(Deserialize)]
struct Trials {
    trials: Vec<ExactTrial>,
}

#[derive(Deserialize)]
struct ExactTrial {
    plan: Plan,
    elapsed_ns: u64,
    peak_bytes: u64,
    attempts: u32,
}

/// Reads the requests of records, one JSON object per line. Empty lines count for nothing.
///
/// # Errors
/// [`CompareError::Unreadable`], [`CompareError::NotARecord`] with the line, or [`CompareError::NoRecords`].
pub fn read(path: &Path) -> Result<Vec<RecordedRequest>, CompareError> {
    let text = fs::read_to_string(path).map_err(|source| CompareError::Unreadable { path: path.into(), source })?;
    let mut requests = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let not = |error: serde_json::Error| CompareError::NotARecord {
            path: path.into(),
            line: index + 1,
            detail: error.to_string(),
        };
        let value: Value = serde_json::from_str(line).map_err(not)?;
        let exchange = value.get("exchange").and_then(|exchange| Exchange::deserialize(exchange).ok());
        let record: Record = serde_json::from_value(value).map_err(not)?;
        requests.extend(of(&record, exchange, index + 1));
    }
    if requests.is_empty() {
        return Err(CompareError::NoRecords { path: path.into() });
    }
    Ok(requests)
}

/// Each call of a full record; of any other the decision, and the recovery where attempts failed.
fn of(record: &Record, exchange: Option<Exchange>, line: usize) -> Vec<RecordedRequest> {
    let offer = golden::offer_of(record);
    let calls = exchange.map(|exchange| exchange.calls).unwrap_or_default();
    let asked: Vec<_> = calls.into_iter().filter(|asked| asked.question.kind != "learn").collect();
    if asked.is_empty() {
        let prices: Vec<_> = record.estimate.iter().map(|cost| (record.plan.clone(), Ok(*cost))).collect();
        let first = RecordedRequest {
            name: name(line, &record.request),
            request: record.request.clone(),
            device: record.device.clone(),
            offer,
            attempts: Vec::new(),
            prices,
            trials: Vec::new(),
        };
        let failed = record.attempts.iter();
        let attempts: Vec<Attempt> =
            failed.map(|failed| Attempt { plan: failed.plan.clone(), failure: failed.failure }).collect();
        // Of a clip that failed it is not known what was under way.
        let again = (!attempts.is_empty() && record.request.frames <= 1).then(|| RecordedRequest {
            name: format!("{}, recovery", first.name),
            attempts,
            ..first.clone()
        });
        return [Some(first), again].into_iter().flatten().collect();
    }
    let count = asked.len();
    let requests = asked.into_iter().enumerate().map(|(index, asked)| {
        let Asked { request, question, heard } = asked;
        let running = question.offer.and_then(|offer| offer.running);
        let call = if count > 1 { format!(", call {}", index + 1) } else { String::new() };
        RecordedRequest {
            name: name(line, &request) + &call,
            offer: Offer { running, ..offer.clone() },
            request,
            device: record.device.clone(),
            attempts: question.attempts,
            prices: heard.estimates.into_iter().map(|estimate| (estimate.plan.clone(), estimate.price())).collect(),
            trials: heard
                .trials
                .into_iter()
                .max_by_key(|trials| trials.trials.len())
                .map_or(Vec::new(), |trials| trials.trials.into_iter().map(Into::into).collect()),
        }
    });
    requests.collect()
}

fn name(line: usize, request: &Request) -> String {
    let Request { model, batch, frames, height, width, .. } = request;
    let mut name = format!("line {line}: {} {width}×{height}", model.family);
    if *frames > 1 {
        name += &format!(" {frames}f");
    }
    if *batch > 1 {
        name += &format!(" ×{batch}");
    }
    name
}

impl RecordedRequest {
    pub(super) fn facts(&self) -> Priced {
        let formula = golden::prices(&self.request, &self.device, &self.offer);
        Priced::recorded(&self.prices, self.trials.clone(), formula)
    }
}

impl Estimate {
    fn price(self) -> Result<Cost, String> {
        let ExactCost { peak_bytes, elapsed_ns, tiles, shapes, rework } =
            self.cost.ok_or_else(|| self.error.unwrap_or_else(|| "no price".into()))?;
        let rework = rework.as_f64().or_else(|| rework.as_str()?.parse().ok()).unwrap_or(1.0);
        Ok(Cost { peak_bytes, elapsed: Duration::from_nanos(elapsed_ns), tiles, shapes, rework })
    }
}

impl From<ExactTrial> for Trial {
    fn from(trial: ExactTrial) -> Self {
        let ExactTrial { plan, elapsed_ns, peak_bytes, attempts } = trial;
        let (elapsed, pool) = (Duration::from_nanos(elapsed_ns), PoolStatistics::default());
        Self { plan, outcome: Outcome { elapsed, load: Duration::ZERO, peak_bytes, attempts, pool } }
    }
}
