//! The table: its format, and how it is made from records and sweeps.

use std::{collections::HashMap, fmt::Write as _};

use serde::{Deserialize, Serialize};
use serde_json::to_string as json;
use thiserror::Error;
use tilewright_plan::{
    Backend, Cost, Device, Dtype, Failure, Hint, Objective, Offer, Plan, Precision, Record, Request, Space, records,
};

use crate::replay::{Work, bare};

/// The format that this program writes and reads.
const FORMAT: u32 = 1;

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
    #[error("not a device's table: {0}")]
    NotATable(String),
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
    /// What was asked for; limit and objective are a workload's to say.
    pub request: Request,
    /// What could be carried out.
    pub offer: Offer,
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
    /// The best measured plan within a limit, by the rules of `tilewright bench sweep`: blended tiles below 256 pixels and, on a CPU, narrow types count
    /// only where nothing else fits; under `leanest` a plan may take at most four times as long as the quickest.
    pub fn best(&self, device: &Device, objective: Objective, memory_limit: u64) -> Option<Choice> {
        let measured = self.plans.iter().filter(|entry| entry.failure.is_none()).filter_map(Entry::measured);
        let mut fitting: Vec<Choice> = measured.filter(|choice| choice.peak_bytes <= memory_limit).collect();
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
                .or_else(|| records::sense_of_offer(&case.offer))
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
            // Into a text, which takes everything.
            let _ = write!(
                text,
                "{comma}\n{{\"request\":{},\n\"offer\":{},\n\"plans\":[",
                json(&case.request)?,
                json(&case.offer)?
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
    pub(crate) fn case_of(&self, request: &Request) -> Option<usize> {
        let work = Work::of(request, &self.device);
        self.cases.iter().position(|case| Work::of(&case.request, &self.device) == work)
    }
}

/// What of a source went into no table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Measured on another device than the one chosen.
    pub other_devices: usize,
    /// Decodes that ended without an outcome.
    pub without_outcome: usize,
    /// Records that don't say what could be carried out.
    pub without_offer: usize,
}

/// Makes a table, source by source.
#[derive(Debug, Default)]
pub struct Builder {
    /// Only devices with this text in their name or arch.
    device: Option<String>,
    /// Plans that were only priced go in, too.
    priced: bool,
    groups: Vec<Group>,
    /// What went into no table.
    pub left: Left,
}

/// What is known of one kind of work.
#[derive(Debug)]
struct Group {
    work: Work,
    device: Device,
    request: Request,
    offer: Offer,
    plans: Vec<Gathered>,
    places: HashMap<Plan, usize>,
}

#[derive(Debug)]
struct Gathered {
    plan: Plan,
    estimate: Option<Cost>,
    runs: Vec<(f64, u64)>,
    failure: Option<Failure>,
}

/// The parts of `tilewright bench sweep --json` that a table is made from.
#[derive(Debug, Deserialize)]
struct Sweep {
    device: Device,
    requests: Vec<Request>,
    plans: Vec<SweptPlan>,
}

#[derive(Debug, Deserialize)]
struct SweptPlan {
    width: u32,
    height: u32,
    plan: Plan,
    samples_ms: Vec<f64>,
    peak_bytes: Option<u64>,
    estimate: Option<Cost>,
}

impl Builder {
    /// Of one device: the one with this text in its name or arch, or the only one that there is.
    pub fn new(device: Option<String>, priced: bool) -> Self {
        Self { device, priced, ..Self::default() }
    }

    /// Takes a record's plan and outcome, and with `priced` what its policy asked the price of.
    pub fn record(&mut self, record: &Record) {
        if !self.wanted(&record.device) {
            self.left.other_devices += 1;
            return;
        }
        let Some(offer) = offered(&record.request.hints) else {
            self.left.without_offer += 1;
            return;
        };
        let priced = self.priced;
        let group = self.group(&record.request, &record.device, offer);
        for attempt in &record.attempts {
            // Memory that ran out did so under that limit; what is not finite is so under any.
            if matches!(attempt.failure, Failure::NonFinite { .. }) {
                group.entry(&attempt.plan).failure = Some(attempt.failure);
            }
        }
        for call in record.exchange.iter().flat_map(|exchange| &exchange.calls).filter(|_| priced) {
            for heard in &call.heard.estimates {
                let entry = group.entry(&heard.plan);
                entry.estimate = Result::<Cost, String>::from(&heard.price).ok().or(entry.estimate);
            }
        }
        let Some(outcome) = record.outcome else {
            self.left.without_outcome += 1;
            return;
        };
        let entry = group.entry(&record.plan);
        entry.estimate = record.estimate.or(entry.estimate);
        entry.runs.push((outcome.elapsed.as_secs_f64() * 1e3, outcome.peak_bytes));
    }

    /// Takes the JSON of `tilewright bench sweep`.
    ///
    /// # Errors
    /// [`TableError::NotATable`] where it is something else.
    pub fn sweep(&mut self, text: &[u8]) -> Result<(), TableError> {
        let sweep: Sweep =
            serde_json::from_slice(text).map_err(|error| TableError::NotATable(format!("nor a sweep: {error}")))?;
        if !self.wanted(&sweep.device) {
            self.left.other_devices += sweep.plans.len();
            return Ok(());
        }
        for row in &sweep.plans {
            let of_size = |request: &&Request| (request.width, request.height) == (row.width, row.height);
            let Some((request, offer)) =
                sweep.requests.iter().find(of_size).and_then(|request| Some((request, offered(&request.hints)?)))
            else {
                self.left.without_offer += 1;
                continue;
            };
            if row.samples_ms.is_empty() {
                self.left.without_outcome += 1;
            }
            let entry = self.group(request, &sweep.device, offer).entry(&row.plan);
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
        for group in &self.groups {
            let same = |known: &&Device| {
                Device { free_bytes: 0, ..(*known).clone() } == Device { free_bytes: 0, ..group.device.clone() }
            };
            if !devices.iter().any(same) {
                devices.push(&group.device);
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
        let cases: Vec<Case> = self.groups.into_iter().map(Group::finish).collect();
        let cases: Vec<Case> = cases.into_iter().filter(|case| case.plans.iter().any(|entry| entry.runs > 0)).collect();
        if cases.is_empty() {
            return Err(TableError::Empty);
        }
        Ok(Table { tilewright_table: FORMAT, name, about, device, cases })
    }

    fn wanted(&self, device: &Device) -> bool {
        let text = self.device.as_ref().map(|text| text.to_lowercase());
        text.is_none_or(|text| [&device.name, &device.arch].iter().any(|known| known.to_lowercase().contains(&text)))
    }

    fn group(&mut self, request: &Request, device: &Device, offer: Offer) -> &mut Group {
        let work = Work::of(request, device);
        let place = self.groups.iter().position(|group| group.work == work).unwrap_or_else(|| {
            let mut request = request.clone();
            request.objective = Objective::Balanced;
            self.groups.push(Group {
                work,
                device: device.clone(),
                request,
                offer,
                plans: Vec::new(),
                places: HashMap::new(),
            });
            self.groups.len() - 1
        });
        &mut self.groups[place]
    }
}

impl Group {
    fn entry(&mut self, plan: &Plan) -> &mut Gathered {
        let plan = bare(plan);
        let place = *self.places.entry(plan.clone()).or_insert_with(|| {
            self.plans.push(Gathered { plan, estimate: None, runs: Vec::new(), failure: None });
            self.plans.len() - 1
        });
        &mut self.plans[place]
    }

    fn finish(self) -> Case {
        let plans = self.plans.into_iter().map(|gathered| {
            let mut times: Vec<f64> = gathered.runs.iter().map(|(time, _)| *time).collect();
            times.sort_by(f64::total_cmp);
            let median = times.get(times.len() / 2).map(|upper| match times.len().is_multiple_of(2) {
                true => (times[times.len() / 2 - 1] + upper) / 2.0,
                false => *upper,
            });
            Entry {
                plan: gathered.plan,
                estimate: gathered.estimate,
                // To the microsecond, which is more than was measured.
                elapsed_ms: median.map(|time| (time * 1e3).round() / 1e3),
                peak_bytes: gathered.runs.iter().map(|(_, peak)| *peak).max(),
                runs: u32::try_from(times.len()).unwrap_or(u32::MAX),
                failure: gathered.failure,
            }
        });
        Case { request: self.request, offer: self.offer, plans: plans.collect() }
    }
}

/// The offer, as the request's hints have it.
pub(crate) fn offered(hints: &[Hint]) -> Option<Offer> {
    let of = |name: &str| hints.iter().find(|hint| hint.name == name).map(|hint| hint.value.as_str());
    let number = |name: &str| of(name)?.parse::<u32>().ok();
    let flag = |name: &str| of(name)?.parse::<bool>().ok();
    Some(Offer {
        dtypes: of("offer.dtypes")?.split(',').map(|name| name.parse().ok()).collect::<Option<_>>()?,
        tile_unit: number("offer.tile-unit")?,
        tile_least: number("offer.tile-least")?,
        batch_most: number("offer.batch-most")?,
        exact: flag("offer.exact")?,
        carried: flag("offer.carried")?,
        offload: flag("offer.offload")?,
        prefetch_most: number("offer.prefetch-most")?,
        running: None,
    })
}
