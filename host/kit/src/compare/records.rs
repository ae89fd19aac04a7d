//! Requests from records: the input of each call of a policy, as far as the record has it.

use std::{io::BufReader, path::Path};

use tilewright_plan::{
    Attempt, Device, FailedAttempt, FieldOf, Question, Record, Stage, Trial, UnderWay, Vae, each,
    exchange::{ExactTrial, RecordedQuestion},
    of_any, of_each,
    records::{self, Damage},
};

use super::{
    CompareError,
    compared::Compared,
    facts::{Priced, RequestPrices},
};

/// A call of a policy, with the answers that the host gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest<W: Compared = Vae> {
    /// The call's position and description, in a few words.
    pub name: String,
    /// The kind of work.
    pub stage: Stage,
    /// The request.
    pub request: W::Request,
    /// The device.
    pub device: Device,
    /// The host's capabilities.
    pub capabilities: W::Capabilities,
    /// The clip or sample that was under way.
    pub under_way: Option<UnderWay<W>>,
    /// The attempts that had failed before.
    pub attempts: Vec<Attempt<W>>,
    /// Prices in the record.
    prices: Vec<Priced<W>>,
    trials: Vec<Trial<W>>,
}

/// The requests of a file of records.
pub type RecordedRequests = each!(Vec<RecordedRequest>);

/// Reads the requests of records, one JSON object per line. Empty lines are ignored.
///
/// # Errors
/// [`CompareError::Unreadable`], [`CompareError::Damaged`] with the line, or
/// [`CompareError::NoRecords`].
pub fn read(path: &Path) -> Result<RecordedRequests, CompareError> {
    let file = tilewright_files::open(path).map_err(|source| CompareError::Unreadable { path: path.into(), source })?;
    let mut requests = RecordedRequests::default();
    let damaged = |damage| CompareError::Damaged { path: path.into(), damage };
    for read in records::read_any(BufReader::new(file)) {
        let (line, record) = read.map_err(damaged)?;
        of_any!(record, record: W => W::of_mut(&mut requests).extend(of(&record, line).map_err(damaged)?));
    }
    if of_each!(&requests, requests => requests.is_empty()).into_iter().all(|is_empty| is_empty) {
        return Err(CompareError::NoRecords { path: path.into() });
    }
    Ok(requests)
}

/// Each call of a full record; of any other the decision, and the recovery if attempts failed.
fn of<W: Compared>(record: &Record<W>, line: u64) -> Result<Vec<RecordedRequest<W>>, Damage> {
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
            name: name::<W>(line, &call.request) + &nth,
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

fn of_ordinary<W: Compared>(record: &Record<W>, line: u64) -> Result<Vec<RecordedRequest<W>>, Damage> {
    let capabilities = W::capabilities_of(record);
    if let Some(what) = W::fault_of_capabilities(&capabilities) {
        return Err(Damage::Senseless { line, what });
    }
    let first = RecordedRequest {
        name: name::<W>(line, &record.request),
        stage: record.stage(),
        request: record.request.clone(),
        device: record.device.clone(),
        capabilities,
        under_way: None,
        attempts: Vec::new(),
        prices: record.estimate.iter().map(|cost| (record.plan.clone(), Ok(*cost))).collect(),
        trials: Vec::new(),
    };
    let attempts: Vec<Attempt<W>> = record.attempts.iter().map(FailedAttempt::attempt).collect();
    // For a failed clip or sample, what was under way is unknown.
    let again = (!attempts.is_empty() && !W::is_continued(&record.request)).then(|| RecordedRequest {
        name: format!("{}, recovery", first.name),
        attempts,
        ..first.clone()
    });
    Ok([Some(first), again].into_iter().flatten().collect())
}

fn name<W: Compared>(line: u64, request: &W::Request) -> String {
    format!("line {line}: {}", W::name(request))
}

impl<W: Compared> RecordedRequest<W> {
    pub(super) fn question(&self) -> Question<'_, W> {
        Question::first(self.stage, &self.request, &self.device, &self.capabilities)
            .going_on(self.under_way.as_ref())
            .after(&self.attempts)
    }

    pub(super) fn costs(&self) -> RequestPrices<W> {
        let formula = W::formula(self.stage, &self.request, &self.device, &self.capabilities);
        RequestPrices::from_records(&self.prices, self.trials.clone(), formula)
    }
}
