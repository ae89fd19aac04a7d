//! The table: its format, and the best plan of a case.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::to_string as json;
use thiserror::Error;
use tilewright_plan::{
    Backend, Capabilities, Cost, Device, Dtype, Failure, Objective, Plan, Precision, Request, Space, Stage, Vae,
    records,
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

/// The most time, relative to the fastest, that the best plan may take under `leanest`.
const LEANEST_TIME: f64 = 4.0;

/// The smallest side of a blended tile that counts as best while anything else fits: smaller ones
/// show seams.
const LEAST_TILE: u32 = 256;

/// The reason why a table can't be made or read. Each is one line.
#[derive(Debug, Error)]
pub enum TableError {
    /// Not JSON of a table.
    #[error("not a device's table: {0}; 'tilewright policy table' makes one from records and sweeps")]
    NotATable(String),
    /// Not a source for a table.
    #[error("neither records nor what 'tilewright bench sweep --json' prints: {0}")]
    NotASource(String),
    /// Larger than any table is.
    #[error("{bytes} bytes, of {MOST_TABLE_BYTES} that a table may have")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Of another format.
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
    /// Its name.
    pub name: String,
    /// Its source: the person, method and time of the measurements.
    pub about: String,
    /// The device.
    pub device: Device,
    /// The measurements, by kind of work.
    pub cases: Vec<Case>,
}

/// Plans for one kind of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// The stage; tables of earlier programs name it in the request's hints only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// The request; limit and objective come from a workload.
    pub request: Request,
    /// The plans that could be carried out.
    #[serde(rename = "offer")]
    pub capabilities: Capabilities,
    /// Each plan once.
    pub plans: Vec<Entry>,
}

/// A plan with its price and measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The plan.
    pub plan: Plan,
    /// The price by the device's host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Cost>,
    /// Median time; none if it was only priced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<f64>,
    /// The highest memory use of any run, in bytes.
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
    pub plan: Plan,
    /// Median time.
    pub elapsed_ms: f64,
    /// The highest memory use, in bytes.
    pub peak_bytes: u64,
}

impl Entry {
    /// The measurement, if there is one.
    pub fn measured(&self) -> Option<Choice> {
        Some(Choice { plan: self.plan.clone(), elapsed_ms: self.elapsed_ms?, peak_bytes: self.peak_bytes? })
    }
}

impl Choice {
    /// The cost by an objective, as in `tilewright bench sweep`.
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
    /// The stage.
    pub fn stage(&self) -> Stage {
        self.stage.unwrap_or_else(|| Stage::of_hints(&self.request.hints))
    }

    /// The best measured plan within a limit, by the rules of `tilewright bench sweep`:
    ///
    /// - blended tiles below 256 pixels and, on a CPU, narrow types count only if nothing else
    ///   fits;
    /// - under `leanest` a plan may take at most four times as long as the fastest.
    pub fn best(&self, device: &Device, objective: Objective, memory_limit: u64) -> Option<Choice> {
        let measured = self.plans.iter().filter(|entry| entry.failure.is_none()).filter_map(Entry::measured);
        // A policy's answer is checked against the capabilities and the device: an impossible plan
        // is no better choice.
        let most = memory_limit.min(device.total_bytes);
        let is_offered = |plan: &Plan| oracle::find_breaches(plan, &self.request, &self.capabilities, None).is_empty();
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

    /// The least memory of a whole plan in f32, measured or priced, or else the most of any plan.
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
        /// The part that tells another format from damage.
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
                .or_else(|| (!case.plans.iter().all(number)).then(|| "an invalid time".to_owned()));
            if let Some(what) = what {
                return Err(TableError::Senseless { case: index + 1, what });
            }
        }
        Ok(table)
    }

    /// The table as JSON, a plan per line, so that a text diff can compare two tables.
    ///
    /// # Errors
    /// The table has a number that JSON lacks; no table that was read or built has one.
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
            // Writing to a text can't fail.
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

    /// The case of a request's kind, on any device.
    pub(crate) fn case_of(&self, stage: Stage, request: &Request) -> Option<usize> {
        let work = Work::of::<Vae>(stage, request, &self.device);
        self.cases.iter().position(|case| Work::of::<Vae>(case.stage(), &case.request, &self.device) == work)
    }
}
