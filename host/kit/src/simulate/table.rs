//! The table, and the best plan of a case.

mod format;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tilewright_plan::{
    Any, AnyPlan, Backend, Device, Dtype, Failure, Objective, Precision, Question, Stage, Vae, each, of_kinds,
};

use super::simulated::Simulated;
use crate::replay::Work;

/// The format that this program writes and reads.
const FORMAT: u32 = 1;

/// The most bytes of a table that is read.
pub const MOST_TABLE_BYTES: usize = 64 << 20;

/// The most cases, and plans of one.
const MOST_CASES: usize = 1000;
const MOST_PLANS: usize = 10_000;

/// The reason why a table can't be made or read. Each is one line.
#[derive(Debug, Error)]
pub enum TableError {
    /// Not JSON of a table.
    #[error("not a device's table: {0}; 'tilewright policy table' makes one from records and sweeps")]
    NotATable(String),
    /// Not a source for a table.
    #[error("neither records nor the JSON of a sweep: {0}")]
    NotASource(String),
    /// Larger than any table is.
    #[error("{bytes} bytes, of {MOST_TABLE_BYTES} that a table may have")]
    TooLarge {
        /// The table's size.
        bytes: usize,
    },
    /// A table of another format.
    #[error("a table of format {found}, and this program reads {FORMAT}")]
    Format {
        /// The format it claims.
        found: u32,
    },
    /// A part of it makes no sense.
    #[error("case {case}: {what}: the table is damaged")]
    Senseless {
        /// Counted from 1.
        case: usize,
        /// The part that makes no sense.
        what: String,
    },
    /// Measurements of several devices.
    #[error("measurements of {} devices, and a table is of one: choose one of them, such as '{}'", .found.len(), .found[0])]
    Devices {
        /// Their names.
        found: Vec<String>,
    },
    /// Nothing measured.
    #[error(
        "nothing was measured here that a table could hold: give records of decodes, or the JSON of 'tilewright bench sweep'"
    )]
    Empty,
}

/// A device as a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The format, 1.
    pub tilewright_table: u32,
    /// The table's name.
    pub name: String,
    /// The table's source: the person, method and time of the measurements.
    pub about: String,
    /// The device.
    pub device: Device,
    /// The measurements.
    pub cases: Cases,
}

/// The cases of every kind of work.
pub type Cases = each!(Vec<Case>);

/// Plans for one kind of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Case<W: Simulated = Vae> {
    /// The stage; tables of earlier programs name it in the request's hints only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// The request; limit and objective come from a workload.
    pub request: W::Request,
    /// The plans that could be carried out.
    #[serde(rename = "offer")]
    pub capabilities: W::Capabilities,
    /// Each plan once.
    pub plans: Vec<Entry<W>>,
}

/// A plan with its price and measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Entry<W: Simulated = Vae> {
    /// The plan.
    pub plan: W::Plan,
    /// The price by the device's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<W::Cost>,
    /// Median time, of a sample that of a step and of a text encoder with loading; none if it was
    /// only priced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<f64>,
    /// The highest memory use of any run in bytes, of a sample with the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// The number of runs.
    #[serde(default)]
    pub runs: u32,
    /// The failure, if it fails under any limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// A plan that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The plan.
    pub plan: AnyPlan,
    /// Median time.
    pub elapsed_ms: f64,
    /// The highest memory use, in bytes.
    pub peak_bytes: u64,
}

impl<W: Simulated> Entry<W> {
    /// The measurement, if there is one. Others publish times without memory: the memory is the
    /// estimate's then.
    pub fn measured(&self) -> Option<Choice> {
        let elapsed_ms = self.elapsed_ms?;
        let peak_bytes = self.peak_bytes.or_else(|| self.estimate.as_ref().map(W::held_bytes))?;
        Some(Choice { plan: self.plan.clone().into(), elapsed_ms, peak_bytes })
    }
}

impl Choice {
    /// The cost by an objective, as in `tilewright bench sweep`.
    pub fn cost(&self, objective: Objective, memory_limit: u64) -> f64 {
        objective.cost(self.elapsed_ms, self.peak_bytes, memory_limit)
    }
}

impl<W: Simulated> Case<W> {
    /// The stage.
    pub fn stage(&self) -> Stage {
        self.stage.unwrap_or_else(|| Stage::of_request::<W>(&self.request))
    }

    /// The best measured plan within a limit, by the rules of `tilewright bench sweep`:
    ///
    /// - blended tiles and chunks count if they are allowed; otherwise only if nothing exact fits;
    /// - blended tiles below 256 pixels and, on a CPU, narrow types count only if nothing else
    ///   fits;
    /// - under `leanest` a plan may take at most four times as long as the fastest.
    pub fn best(
        &self,
        device: &Device,
        objective: Objective,
        memory_limit: u64,
        allows_blended: bool,
    ) -> Option<Choice> {
        let most = memory_limit.min(device.total_bytes);
        let question = Question::first(self.stage(), &self.request, device, &self.capabilities);
        // A policy's answer is checked against the capabilities and the device: an impossible plan
        // is no better choice.
        let counts = |entry: &&Entry<W>| entry.failure.is_none() && W::is_legal(&entry.plan, &question);
        let measured = self.plans.iter().filter(counts).filter_map(|entry| Some((entry, entry.measured()?)));
        let mut fitting: Vec<_> = measured.filter(|(_, choice)| choice.peak_bytes <= most).collect();
        let is_sound = |(entry, _): &(&Entry<W>, Choice)| W::is_sound(&entry.plan);
        let is_wide = |(entry, _): &(&Entry<W>, Choice)| W::precision(&entry.plan) == Precision::Uniform(Dtype::F32);
        let is_exact = |(entry, _): &(&Entry<W>, Choice)| W::is_exact(&entry.plan);
        if !allows_blended && fitting.iter().any(is_exact) {
            fitting.retain(is_exact);
        }
        if fitting.iter().any(is_sound) {
            fitting.retain(is_sound);
        }
        if device.backend == Backend::Cpu && fitting.iter().any(is_wide) {
            fitting.retain(is_wide);
        }
        let mut fitting: Vec<Choice> = fitting.into_iter().map(|(_, choice)| choice).collect();
        let quickest = fitting.iter().map(|choice| choice.elapsed_ms).min_by(f64::total_cmp)?;
        fitting.retain(|choice| objective.allows(choice.elapsed_ms, quickest));
        let cost = |choice: &Choice| choice.cost(objective, memory_limit);
        fitting.into_iter().min_by(|one, other| cost(one).total_cmp(&cost(other)))
    }

    /// The least memory of a whole plan in f32, measured or priced, or else the most of any plan.
    pub fn whole_bytes(&self) -> Option<u64> {
        let held = |entry: &Entry<W>| entry.peak_bytes.or(entry.estimate.as_ref().map(W::held_bytes));
        let whole = self.plans.iter().filter(|entry| W::is_whole(&entry.plan)).filter_map(held).min();
        whole.or_else(|| self.plans.iter().filter_map(held).max())
    }

    /// The kind of work in a few words.
    pub fn words(&self) -> String {
        W::words(&self.request)
    }

    /// The part of it that makes no sense, if any.
    fn fault(&self) -> Option<String> {
        let number =
            |entry: &Entry<W>| entry.elapsed_ms.is_none_or(|time| time.is_finite() && (0.0..1e12).contains(&time));
        W::fault(&self.request, &self.capabilities)
            .or_else(|| (self.plans.len() > MOST_PLANS).then(|| format!("{} plans", self.plans.len())))
            .or_else(|| (!self.plans.iter().all(number)).then(|| "an invalid time".to_owned()))
    }
}

/// The place of a case in a table, among those of its kind of work.
pub type CaseIndex = Any<usize, usize, usize>;

impl Table {
    /// A table of these cases.
    pub(crate) fn new(name: String, about: String, device: Device, cases: Cases) -> Self {
        Self { tilewright_table: FORMAT, name, about, device, cases }
    }

    /// The number of cases.
    pub fn count(&self) -> usize {
        of_kinds!(W => W::cases(self).len()).into_iter().sum()
    }

    /// Reads a table, which may come from anywhere.
    ///
    /// # Errors
    /// Any [`TableError`] of a table that can't be used.
    pub fn read(text: &[u8]) -> Result<Self, TableError> {
        if text.len() > MOST_TABLE_BYTES {
            return Err(TableError::TooLarge { bytes: text.len() });
        }
        /// The part that distinguishes another format from damage.
        #[derive(Deserialize)]
        struct Head {
            tilewright_table: u32,
        }
        let not = |error: serde_json::Error| TableError::NotATable(error.to_string());
        let Head { tilewright_table: found } = serde_json::from_slice(text).map_err(not)?;
        if found != FORMAT {
            return Err(TableError::Format { found });
        }
        let table: Self = serde_json::from_slice(text).map_err(not)?;
        let cases = table.count();
        if cases == 0 || cases > MOST_CASES {
            return Err(TableError::NotATable(format!("{cases} cases, of 1 to {MOST_CASES}")));
        }
        let faults = of_kinds!(W => W::cases(&table).iter().map(Case::fault).collect::<Vec<_>>());
        for (index, what) in faults.into_iter().flatten().enumerate() {
            if let Some(what) = what {
                return Err(TableError::Senseless { case: index + 1, what });
            }
        }
        Ok(table)
    }

    /// The kinds of work in a few words each: those of samples behind the others, and those of text
    /// encoders last.
    pub fn words(&self) -> Vec<String> {
        let words = of_kinds!(W => W::cases(self).iter().map(Case::words).collect::<Vec<_>>());
        words.into_iter().flatten().collect()
    }

    /// The case of a request's kind, on any device.
    pub(crate) fn case_of<W: Simulated>(&self, stage: Stage, request: &W::Request) -> Option<usize> {
        let work = Work::of::<W>(stage, request, &self.device);
        W::cases(self).iter().position(|case| Work::of::<W>(case.stage(), &case.request, &self.device) == work)
    }
}
