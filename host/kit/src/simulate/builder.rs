//! Builds a table from records and sweeps.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tilewright_plan::{
    Capabilities, Cost, Denoise, DenoiseCapabilities, DenoiseCost, DenoisePlan, DenoiseRequest, Device, Dtype, Failure,
    FieldOf, Objective, Plan, Precision, Record, Request, Stage, Vae, Work as _, each, of_any, of_each,
    records::AnyRecord,
};
use tilewright_statistics::median;

use super::{
    simulated::Simulated,
    table::{Case, Entry, Table, TableError},
};
use crate::replay::Work;

/// The entries of the sources that no table got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SkippedEntries {
    /// Measured on another device than the one chosen.
    pub other_devices: usize,
    /// Decodes without an outcome of the plan's own: they failed, or shared a clip with another run
    /// or plan.
    pub without_outcome: usize,
    /// Records without capabilities.
    pub without_offer: usize,
}

/// Builds a table, source by source.
#[derive(Debug, Default)]
pub struct Builder {
    /// Only devices with this text in their name or arch.
    device: Option<String>,
    /// Adds plans that were only priced.
    priced: bool,
    groups: Groups,
    /// The entries that no table got.
    pub left: SkippedEntries,
}

/// The measurements of one kind of work.
#[derive(Debug)]
struct Group<W: Simulated> {
    work: Work,
    device: Device,
    stage: Stage,
    request: W::Request,
    capabilities: W::Capabilities,
    plans: Vec<PlanMeasurements<W>>,
    places: HashMap<W::Plan, usize>,
}

#[derive(Debug)]
struct PlanMeasurements<W: Simulated> {
    plan: W::Plan,
    estimate: Option<W::Cost>,
    runs: Vec<(f64, u64)>,
    failure: Option<Failure>,
}

type Groups = each!(Vec<Group>);

/// Work whose groups a builder has.
trait Grouped: Simulated + FieldOf<Groups, Field = Vec<Group<Self>>> {}

impl<W: Simulated + FieldOf<Groups, Field = Vec<Group<W>>>> Grouped for W {}

/// The parts of `tilewright bench sweep --json` that a table is made from.
#[derive(Debug, Deserialize)]
struct Sweep {
    device: Device,
    requests: Vec<SweepRequest>,
    plans: Vec<SweepPlan>,
}

/// A size of a sweep. Earlier programs wrote the request alone, with everything else in its hints.
#[derive(Debug, Deserialize)]
struct SweepRequest {
    #[serde(flatten)]
    request: Request,
    stage: Option<Stage>,
    capabilities: Option<Capabilities>,
}

#[derive(Debug, Deserialize)]
struct SweepPlan {
    width: u32,
    height: u32,
    plan: Plan,
    samples_ms: Vec<f64>,
    peak_bytes: Option<u64>,
    estimate: Option<Cost>,
}

/// The parts of `tilewright bench sample --sweep --json` that a table is made from.
#[derive(Debug, Deserialize)]
struct SampleSweep {
    device: Device,
    request: DenoiseRequest,
    capabilities: DenoiseCapabilities,
    plans: Vec<SampleSweepPlan>,
}

#[derive(Debug, Deserialize)]
struct SampleSweepPlan {
    plan: Option<DenoisePlan>,
    samples_ms: Vec<f64>,
    peak_bytes: Option<u64>,
    weights_bytes: Option<u64>,
    estimate: Option<DenoiseCost>,
    error: Option<String>,
}

impl Builder {
    /// A table of one device: the one with this text in its name or arch, or the only one there is.
    pub fn new(device: Option<String>, priced: bool) -> Self {
        Self { device, priced, ..Self::default() }
    }

    /// Adds the plan and outcome of a record; with `priced` also the plans that its policy asked
    /// the price of.
    pub fn record(&mut self, record: &AnyRecord) {
        of_any!(record, record => self.add(record));
    }

    fn add<W: Grouped>(&mut self, record: &Record<W>) {
        if !self.is_wanted(&record.device) {
            self.left.other_devices += 1;
            return;
        }
        let is_sound = |capabilities: &W::Capabilities| W::fault(&record.request, capabilities).is_none();
        let Some(capabilities) = record.capabilities().filter(is_sound) else {
            self.left.without_offer += 1;
            return;
        };
        let priced = self.priced;
        let stage = record.stage();
        let group = self.group::<W>(stage, &record.request, &record.device, capabilities);
        for attempt in &record.attempts {
            // Out of memory is tied to that limit. Values that are not finite are tied to the type,
            // except in f32, where the latent is at fault.
            let is_narrow = W::precision(&attempt.plan) != Precision::Uniform(Dtype::F32);
            if matches!(attempt.failure, Failure::NonFinite { .. }) && is_narrow {
                group.entry(&attempt.plan).failure = Some(attempt.failure);
            }
        }
        for call in record.exchange.iter().flat_map(|exchange| &exchange.calls).filter(|_| priced) {
            for heard in &call.heard.estimates {
                let entry = group.entry(&heard.plan);
                entry.estimate = heard.price.cost().ok().or(entry.estimate);
            }
        }
        let Some(outcome) = record.own_outcome() else {
            self.left.without_outcome += 1;
            return;
        };
        let entry = group.entry(&record.plan);
        entry.estimate = record.estimate.or(entry.estimate);
        entry.runs.push(W::table_figures(outcome));
    }

    /// Adds the JSON of `tilewright bench sample --sweep`.
    ///
    /// # Errors
    /// [`TableError::NotASource`] if it is something else.
    pub fn sample_sweep(&mut self, text: &[u8]) -> Result<(), TableError> {
        let sweep: SampleSweep =
            serde_json::from_slice(text).map_err(|error| TableError::NotASource(error.to_string()))?;
        if !self.is_wanted(&sweep.device) {
            self.left.other_devices += sweep.plans.len();
            return Ok(());
        }
        if Denoise::fault(&sweep.request, &sweep.capabilities).is_some() {
            self.left.without_offer += sweep.plans.len();
            return Ok(());
        }
        for row in &sweep.plans {
            let Some(plan) = row.plan.as_ref().filter(|_| row.error.is_none() && !row.samples_ms.is_empty()) else {
                self.left.without_outcome += 1;
                continue;
            };
            let group =
                self.group::<Denoise>(Stage::Denoise, &sweep.request, &sweep.device, sweep.capabilities.clone());
            let entry = group.entry(plan);
            entry.estimate = row.estimate.or(entry.estimate);
            let held = row.peak_bytes.unwrap_or(0).saturating_add(row.weights_bytes.unwrap_or(0));
            entry.runs.extend(row.samples_ms.iter().map(|sample| (*sample, held)));
        }
        Ok(())
    }

    /// Adds the JSON of `tilewright bench sweep`.
    ///
    /// # Errors
    /// [`TableError::NotASource`] if it is something else.
    pub fn sweep(&mut self, text: &[u8]) -> Result<(), TableError> {
        let sweep: Sweep = serde_json::from_slice(text).map_err(|error| TableError::NotASource(error.to_string()))?;
        if !self.is_wanted(&sweep.device) {
            self.left.other_devices += sweep.plans.len();
            return Ok(());
        }
        for row in &sweep.plans {
            let of_size = |of: &&SweepRequest| (of.request.width, of.request.height) == (row.width, row.height);
            let swept = sweep.requests.iter().find(of_size).and_then(|of| {
                let hints = &of.request.hints;
                let capabilities = of.capabilities.clone().or_else(|| Capabilities::of_hints(hints));
                let capabilities = capabilities.filter(|found| Vae::fault(&of.request, found).is_none())?;
                Some((of.stage.unwrap_or_else(|| Stage::of_hints(hints)), &of.request, capabilities))
            });
            let Some((stage, request, capabilities)) = swept else {
                self.left.without_offer += 1;
                continue;
            };
            if row.samples_ms.is_empty() {
                self.left.without_outcome += 1;
            }
            let entry = self.group::<Vae>(stage, request, &sweep.device, capabilities).entry(&row.plan);
            entry.estimate = row.estimate.or(entry.estimate);
            let peak = row.peak_bytes.unwrap_or(0);
            entry.runs.extend(row.samples_ms.iter().map(|sample| (*sample, peak)));
        }
        Ok(())
    }

    /// The table.
    ///
    /// # Errors
    /// [`TableError::Devices`] and [`TableError::Empty`].
    pub fn finish(self, name: String, about: String) -> Result<Table, TableError> {
        let mut devices: Vec<&Device> = Vec::new();
        let found = of_each!(&self.groups, groups => groups.iter().map(|group| &group.device).collect::<Vec<_>>());
        for device in found.into_iter().flatten() {
            if !devices.iter().any(|known| known.identity() == device.identity()) {
                devices.push(device);
            }
        }
        let device = match devices[..] {
            [] => return Err(TableError::Empty),
            [device] => device.clone(),
            _ => {
                let found = devices.iter().map(|device| device.name.clone()).collect();
                return Err(TableError::Devices { found });
            }
        };
        let table = Table::new(name, about, device, of_each!(self.groups, groups => finished(groups)));
        if table.count() == 0 { Err(TableError::Empty) } else { Ok(table) }
    }

    fn is_wanted(&self, device: &Device) -> bool {
        let text = self.device.as_ref().map(|text| text.to_lowercase());
        text.is_none_or(|text| [&device.name, &device.arch].iter().any(|known| known.to_lowercase().contains(&text)))
    }

    fn group<W: Grouped>(
        &mut self,
        stage: Stage,
        request: &W::Request,
        device: &Device,
        capabilities: W::Capabilities,
    ) -> &mut Group<W> {
        let work = Work::of::<W>(stage, request, device);
        let groups = W::of_mut(&mut self.groups);
        let place = groups.iter().position(|group| group.work == work).unwrap_or_else(|| {
            let request = W::limited(request, W::memory_limit(request), Objective::Balanced);
            let (plans, places) = (Vec::new(), HashMap::new());
            groups.push(Group { work, device: device.clone(), stage, request, capabilities, plans, places });
            groups.len() - 1
        });
        &mut groups[place]
    }
}

/// The cases of groups in which something was measured.
fn finished<W: Simulated>(groups: Vec<Group<W>>) -> Vec<Case<W>> {
    let cases = groups.into_iter().map(Group::finish);
    cases.filter(|case| case.plans.iter().any(|entry| entry.runs > 0)).collect()
}

impl<W: Simulated> Group<W> {
    fn entry(&mut self, plan: &W::Plan) -> &mut PlanMeasurements<W> {
        let plan = W::without_reason(plan);
        let place = *self.places.entry(plan.clone()).or_insert_with(|| {
            self.plans.push(PlanMeasurements { plan, estimate: None, runs: Vec::new(), failure: None });
            self.plans.len() - 1
        });
        &mut self.plans[place]
    }

    fn finish(self) -> Case<W> {
        let plans = self.plans.into_iter().map(|gathered| {
            let times: Vec<f64> = gathered.runs.iter().map(|(time, _)| *time).collect();
            Entry {
                plan: gathered.plan,
                estimate: gathered.estimate,
                // Rounded to the microsecond, below the precision of the measurement.
                elapsed_ms: median(&times).map(|time| (time * 1e3).round() / 1e3),
                peak_bytes: gathered.runs.iter().map(|(_, peak)| *peak).max(),
                runs: u32::try_from(gathered.runs.len()).unwrap_or(u32::MAX),
                // A plan that has also run failed because of its conditions then.
                failure: gathered.failure.filter(|_| gathered.runs.is_empty()),
            }
        });
        Case { stage: Some(self.stage), request: self.request, capabilities: self.capabilities, plans: plans.collect() }
    }
}
