//! Requests from records: the input of each call of a policy, as far as the record has it.

use std::{io::BufReader, path::Path};

use tilewright_gate::golden;
use tilewright_plan::{
    Attempt, Capabilities, Cost, Device, Plan, Question, Record, Request, Stage, Trial, UnderWay,
    exchange::{ExactTrial, RecordedQuestion},
    records,
    records::Damage,
};

use super::{CompareError, facts::RequestPrices};

/// A call of a policy, with the answers that the host gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest {
    /// Its position and description, in a few words.
    pub name: String,
    /// The kind of work.
    pub stage: Stage,
    /// The request.
    pub request: Request,
    /// The device.
    pub device: Device,
    /// The host's capabilities.
    pub capabilities: Capabilities,
    /// The clip that was under way.
    pub under_way: Option<UnderWay>,
    /// The attempts that had failed before.
    pub attempts: Vec<Attempt>,
    /// Prices in the record.
    prices: Vec<(Plan, Result<Cost, String>)>,
    trials: Vec<Trial>,
}

/// Reads the requests of records, one JSON object per line. Empty lines are ignored.
///
/// # Errors
/// [`CompareError::Unreadable`], [`CompareError::Damaged`] with the line, or
/// [`CompareError::NoRecords`].
pub fn read(path: &Path) -> Result<Vec<RecordedRequest>, CompareError> {
    let file = tilewright_files::open(path).map_err(|source| CompareError::Unreadable { path: path.into(), source })?;
    let mut requests = Vec::new();
    for read in records::read(BufReader::new(file)) {
        let (line, record) = read.map_err(|damage| CompareError::Damaged { path: path.into(), damage })?;
        requests.extend(of(&record, line).map_err(|damage| CompareError::Damaged { path: path.into(), damage })?);
    }
    if requests.is_empty() {
        return Err(CompareError::NoRecords { path: path.into() });
    }
    Ok(requests)
}

/// Each call of a full record; of any other the decision, and the recovery if attempts failed.
fn of(record: &Record, line: u64) -> Result<Vec<RecordedRequest>, Damage> {
    let calls = record.exchange.iter().flat_map(|exchange| &exchange.calls);
    let asked = calls.filter(|call| !matches!(call.question, RecordedQuestion::Learn { .. }));
    let asked: Vec<_> = asked.filter_map(|call| Some((call, call.question.offer()?))).collect();
    if asked.is_empty() {
        return of_ordinary(record, line);
    }
    let requests = asked.iter().enumerate().map(|(index, &(call, offer))| {
        let nth = if asked.len() > 1 { format!(", call {}", index + 1) } else { String::new() };
        let prices = call.heard.estimates.iter().map(|estimate| (estimate.plan.clone(), estimate.price.cost()));
        let most = call.heard.trials.iter().max_by_key(|trials| trials.trials.len());
        RecordedRequest {
            name: name(line, &call.request) + &nth,
            stage: call.stage(),
            request: call.request.clone(),
            device: call.device.clone(),
            capabilities: offer.capabilities.clone(),
            under_way: call.under_way(),
            attempts: call.question.attempts().to_vec(),
            prices: prices.collect(),
            trials: most.map_or(Vec::new(), |trials| trials.trials.iter().map(ExactTrial::trial).collect()),
        }
    });
    Ok(requests.collect())
}

fn of_ordinary(record: &Record, line: u64) -> Result<Vec<RecordedRequest>, Damage> {
    let capabilities = golden::capabilities_of(record);
    if let Some(what) = records::sense_of_capabilities(&capabilities) {
        return Err(Damage::Senseless { line, what });
    }
    let first = RecordedRequest {
        name: name(line, &record.request),
        stage: record.stage(),
        request: record.request.clone(),
        device: record.device.clone(),
        capabilities,
        under_way: None,
        attempts: Vec::new(),
        prices: record.estimate.iter().map(|cost| (record.plan.clone(), Ok(*cost))).collect(),
        trials: Vec::new(),
    };
    let failed = record.attempts.iter();
    let attempts: Vec<Attempt> =
        failed.map(|failed| Attempt { plan: failed.plan.clone(), failure: failed.failure }).collect();
    // For a failed clip the frames under way are unknown.
    let again = (!attempts.is_empty() && record.request.frames <= 1).then(|| RecordedRequest {
        name: format!("{}, recovery", first.name),
        attempts,
        ..first.clone()
    });
    Ok([Some(first), again].into_iter().flatten().collect())
}

fn name(line: u64, request: &Request) -> String {
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
    pub(super) fn question(&self) -> Question<'_> {
        Question::new(self.stage, &self.request, &self.device, &self.capabilities)
            .going_on(self.under_way.as_ref())
            .after(&self.attempts)
    }

    pub(super) fn costs(&self) -> RequestPrices {
        let formula = golden::prices(self.stage, &self.request, &self.device, &self.capabilities);
        RequestPrices::from_records(&self.prices, self.trials.clone(), formula)
    }
}
