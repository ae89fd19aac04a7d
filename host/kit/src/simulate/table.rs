//! The table: its format, and the best plan of a case.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::to_string as json;
use thiserror::Error;
use tilewright_plan::{
    Backend, Capabilities, Cost, Device, Dtype, Failure, Objective, Plan, Precision, Request, Space, Stage, records,
};

use tilewright_policy::oracle;

use crate::replay::Work;

/// The format that this program writes and reads.
pub(super) const FORMAT: u32 = 1;

/// The most bytes of a table that is read.
pub const MOST_TABLE_BYTES: usize = 64 << 20;

/// The most cases, and plans of one.
const MOST_CASES: usize = 1000;
const MOST_PLANS: usize = 10_000;

/// Under `leanest`, how much longer than the quickest a plan may take to be called best.
const LEANEST_TIME: f64 = 4.0;

/// The least side of a blended tile that is called best while anything else fits: smaller ones show seams.
const LEAST_TILE: u32 = 256;

/// Why a table can't be made or read. Each is one line.
#[derive(Debug, Error)]
pub enum TableError {
    /// Not JSON of a table.
    #[error("not a device's table: {0}; 'tilewright policy table' makes one from records and sweeps")]
    NotATable(String),
    /// Nothing that a table can be made from.
    #[error("neither records nor what 'tilewright bench sweep --json' prints: {0}")]
    NotASource(String),
    /// Larger than any table is.
    #[error("{bytes} bytes, of {MOST_TABLE_BYTES} that a table may have")]
    TooLarge {
        /// What it has.
        bytes: usize,
    },
    /// Of another format.
    #[error("a table of format {found}, and this program reads {FORMAT}")]
    Format {
        /// What it says.
        found: u32,
    },
    /// Something in it makes no sense.
    #[error("case {case}: {what}: the table is damaged")]
    Senseless {
        /// Counted from 1.
        case: usize,
        /// What makes none.
        what: String,
    },
    /// Measurements of several devices.
    #[error("measurements of {} devices, and a table is of one: choose with --device, as in --device '{}'", .found.len(), .found[0])]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The format, 1.
    pub tilewright_table: u32,
    /// What it is called.
    pub name: String,
    /// Where it comes from: who measured what, how and when.
    pub about: String,
    /// The device.
    pub device: Device,
    /// What was measured, by kind of work.
    pub cases: Vec<Case>,
}

/// Plans for one kind of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The kind of work; tables of earlier programs name it in the request's hints only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// What was asked for; limit and objective are a workload's to say.
    pub request: Request,
    /// What could be carried out.
    #[serde(rename = "offer")]
    pub capabilities: Capabilities,
    /// Each plan once.
    pub plans: Vec<Entry>,
}

/// A plan, what it was priced and what it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// How.
    pub plan: Plan,
    /// What the device's host expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Cost>,
    /// Median time; none where it was only priced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<f64>,
    /// The most held in any run, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Runs behind it.
    #[serde(default)]
    pub runs: u32,
    /// How it fails whatever the limit, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

/// A plan that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// How.
    pub plan: Plan,
    /// Median time.
    pub elapsed_ms: f64,
    /// The most held, in bytes.
    pub peak_bytes: u64,
}

impl Entry {
    /// The measurement, where there is one.
    pub fn measured(&self) -> Option<Choice> {
        Some(Choice { plan: self.plan.clone(), elapsed_ms: self.elapsed_ms?, peak_bytes: self.peak_bytes? })
    }
}

impl Choice {
    /// What an objective counts, as `tilewright bench sweep` has it.
    pub fn cost(&self, objective: Objective, memory_limit: u64) -> f64 {
        let peak = self.peak_bytes as f64;
        match objective {
            Objective::Fastest => self.elapsed_ms,
            Objective::Balanced => self.elapsed_ms * (1.0 + peak / memory_limit.max(1) as f64 / 2.0),
            Objective::Leanest => peak.max(1.0),
        }
    }
}

impl Case {
    /// The kind of work.
    pub fn stage(&self) -> Stage {
        self.stage.unwrap_or_else(|| Stage::of_hints(&self.request.hints))
    }

    /// The best measured plan within a limit, by the rules of `tilewright bench sweep`: blended tiles below 256 pixels and, on a CPU, narrow types count
    /// only where nothing else fits; under `leanest` a plan may take at most four times as long as the quickest.
    pub fn best(&self, device: &Device, objective: Objective, memory_limit: u64) -> Option<Choice> {
        let measured = self.plans.iter().filter(|entry| entry.failure.is_none()).filter_map(Entry::measured);
        // A policy's answer is held to the offer and the device: what could not be had is no better choice.
        let most = memory_limit.min(device.total_bytes);
        let is_offered = |plan: &Plan| oracle::illegal(plan, &self.request, &self.capabilities, None).is_empty();
        let mut fitting: Vec<Choice> =
            measured.filter(|choice| choice.peak_bytes <= most && is_offered(&choice.plan)).collect();
        let is_sound = |choice: &Choice| match choice.plan.space {
            Space::Blended(tile) => tile.height.min(tile.width) >= LEAST_TILE,
            Space::Whole | Space::Exact(_) => true,
        };
        let is_wide = |choice: &Choice| choice.plan.precision == Precision::Uniform(Dtype::F32);
        if fitting.iter().any(is_sound) {
            fitting.retain(is_sound);
        }
        if device.backend == Backend::Cpu && fitting.iter().any(is_wide) {
            fitting.retain(is_wide);
        }
        let quickest = fitting.iter().map(|choice| choice.elapsed_ms).min_by(f64::total_cmp)?;
        fitting.retain(|choice| objective != Objective::Leanest || choice.elapsed_ms <= LEANEST_TIME * quickest);
        let cost = |choice: &Choice| choice.cost(objective, memory_limit);
        fitting.into_iter().min_by(|one, other| cost(one).total_cmp(&cost(other)))
    }

    /// The least that a whole plan in f32 was measured to hold or is priced at, or else the most of any plan.
    pub fn whole_bytes(&self) -> Option<u64> {
        let held = |entry: &Entry| entry.peak_bytes.or(entry.estimate.map(|cost| cost.peak_bytes));
        let is_whole =
            |entry: &&Entry| entry.plan.space == Space::Whole && entry.plan.precision == Precision::Uniform(Dtype::F32);
        let whole = self.plans.iter().filter(is_whole).filter_map(held).min();
        whole.or_else(|| self.plans.iter().filter_map(held).max())
    }

    /// The kind of work in a few words.
    pub fn words(&self) -> String {
        let Request { batch, frames, height, width, model, .. } = &self.request;
        let samples = if *batch == 1 { String::new() } else { format!("{batch} × ") };
        let frames = if *frames == 1 { String::new() } else { format!(" × {frames} frames") };
        format!("{samples}{width}×{height}{frames} {}", model.family)
    }
}

impl Table {
    /// Reads a table, which may come from anywhere.
    ///
    /// # Errors
    /// Any [`TableError`] of a table that can't be used.
    pub fn read(text: &[u8]) -> Result<Self, TableError> {
        if text.len() > MOST_TABLE_BYTES {
            return Err(TableError::TooLarge { bytes: text.len() });
        }
        /// What tells another format from damage.
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
        if table.cases.is_empty() || table.cases.len() > MOST_CASES {
            return Err(TableError::NotATable(format!("{} cases, of 1 to {MOST_CASES}", table.cases.len())));
        }
        for (index, case) in table.cases.iter().enumerate() {
            let number =
                |entry: &Entry| entry.elapsed_ms.is_none_or(|time| time.is_finite() && (0.0..1e12).contains(&time));
            let what = records::sense_of_request(&case.request)
                .or_else(|| records::sense_of_capabilities(&case.capabilities))
                .or_else(|| (case.plans.len() > MOST_PLANS).then(|| format!("{} plans", case.plans.len())))
                .or_else(|| (!case.plans.iter().all(number)).then(|| "a time that is none".to_owned()));
            if let Some(what) = what {
                return Err(TableError::Senseless { case: index + 1, what });
            }
        }
        Ok(table)
    }

    /// The table as JSON, a plan a line, so that two tables can be compared by eye.
    ///
    /// # Errors
    /// It has a number that JSON has not; none that was read or built has.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let mut text = format!(
            "{{\"tilewright_table\":{},\n\"name\":{},\n\"about\":{},\n\"device\":{},\n\"cases\":[",
            self.tilewright_table,
            json(&self.name)?,
            json(&self.about)?,
            json(&self.device)?
        );
        for (index, case) in self.cases.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let stage = case.stage.map_or(Ok(String::new()), |stage| Ok(format!("\"stage\":{},\n", json(&stage)?)))?;
            // Into a text, which takes everything.
            let _ = write!(
                text,
                "{comma}\n{{{stage}\"request\":{},\n\"offer\":{},\n\"plans\":[",
                json(&case.request)?,
                json(&case.capabilities)?
            );
            for (index, entry) in case.plans.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let _ = write!(text, "{comma}\n{}", json(entry)?);
            }
            text.push_str("]}");
        }
        text.push_str("]}\n");
        Ok(text)
    }

    /// The case of a request's kind, whatever device it ran on.
    pub(crate) fn case_of(&self, stage: Stage, request: &Request) -> Option<usize> {
        let work = Work::of(stage, request, &self.device);
        self.cases.iter().position(|case| Work::of(case.stage(), &case.request, &self.device) == work)
    }
}
