//! Policies compared on one sample: step times, memory and the difference of the latents. With
//! every plan of a list, how near a policy's choice comes to the best of them.

mod judge;
mod plans;

use serde::Serialize;
use tch::Tensor;
use tilewright_engine::{DenoiseJob, Denoiser, Machine, Sampling};
use tilewright_plan::{Denoise, DenoiseCost, DenoisePlan, DenoiseRequest, Device, Objective, Work};
use tilewright_statistics::Summary;
use tilewright_torch::psnr;

use crate::{
    Entry, Planners, Ratio, Result, Rounds, Spelling, StageProfile, Watch,
    race::{Interrupted, Lane, Raced, Stop, race, runners},
};

pub use self::judge::{SampleCase, SampleSweep, SampleSweepReport};

/// Makes the planner of samples that a spelling names.
pub type SamplePlanners<'a> = Planners<'a, Denoise>;

/// Policies that take turns on one sample.
#[derive(Debug)]
pub struct SampleContest<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The transformer.
    pub denoiser: &'a Denoiser,
    /// The input of the sample.
    pub sampling: &'a Sampling,
    /// The policies; ratios are to the first.
    pub entries: Vec<Entry>,
    /// The policy of the latents that others are compared with, run once.
    pub against: Option<Spelling>,
    /// The number of runs.
    pub rounds: Rounds,
}

/// A contest and its results, as one JSON object. Sizes are bytes, times milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct SampleReport {
    /// The host's version.
    pub tilewright: String,
    /// The device.
    pub device: Device,
    /// The request; limit and objective are the first policy's.
    pub request: Option<DenoiseRequest>,
    /// One row per policy, in the order given.
    pub runs: Vec<SampleRow>,
    /// The policy whose latents the others' are compared with; the reason if there are none.
    pub against: Option<std::result::Result<String, String>>,
    /// Runs per policy after the first that are not counted.
    pub warmup: usize,
    /// Runs per policy that are counted.
    pub iterations: usize,
    /// True if interrupted: rows hold the results until then.
    pub interrupted: bool,
}

/// The results of one policy. Figures without counted runs are null.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SampleRow {
    /// As spelled.
    pub policy: String,
    /// The policy's objective.
    pub objective: Objective,
    /// The policy's memory limit, weights included.
    pub memory_limit: u64,
    /// The plan of the last run.
    pub plan: Option<DenoisePlan>,
    /// Changes to the policy's answer.
    pub adjusted: Vec<String>,
    /// Set if the fallback replaced the policy's answer.
    pub fallback: Option<String>,
    /// The very first run's step.
    pub first_ms: Option<f64>,
    /// Mean step of the counted runs.
    pub mean_ms: Option<f64>,
    /// Standard deviation (n − 1).
    pub std_ms: Option<f64>,
    /// The quickest.
    pub min_ms: Option<f64>,
    /// The middle.
    pub median_ms: Option<f64>,
    /// The step of every counted run, in order.
    pub samples_ms: Vec<f64>,
    /// The time to load weights in the last counted run.
    pub load_ms: Option<f64>,
    /// The most held beside the weights in the counted runs.
    pub peak_bytes: Option<u64>,
    /// The weights that were held at once.
    pub weights_bytes: Option<u64>,
    /// Weights that were read again in a run.
    pub moved_bytes: Option<u64>,
    /// Calls that were reused in a run.
    pub reused: u32,
    /// The estimate of the plan's cost.
    pub estimate: Option<DenoiseCost>,
    /// The ratio to the first policy's steps.
    pub ratio: Option<Ratio>,
    /// The PSNR of the latents against the reference's in dB, over the span of its values; infinite
    /// if they are the same, null without a reference.
    pub psnr: Option<f64>,
    /// The run that was profiled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<StageProfile>,
    /// The reason why it was stopped.
    pub error: Option<String>,
}

impl SampleRow {
    /// The most that the plan held, weights included.
    pub fn held_bytes(&self) -> Option<u64> {
        Some(self.peak_bytes?.saturating_add(self.weights_bytes.unwrap_or(0)))
    }
}

impl SampleContest<'_> {
    /// Runs the contest. A failed policy is a row with its error; an interruption leaves rows with
    /// the measurements so far.
    ///
    /// # Errors
    /// Latents that can't be compared: memory is out.
    pub fn run(&self, planners: &SamplePlanners<'_>, watch: &mut dyn Watch) -> Result<SampleReport> {
        let mut reference = None;
        let mut interrupted = false;
        if let Some(spelling) = &self.against {
            watch.say(&format!("reference: {spelling}"));
            match self.reference(spelling, planners, watch) {
                Ok(found) => reference = Some((spelling.to_string(), found)),
                Err(Interrupted) => interrupted = true,
            }
        }
        let job = |entry: &Entry| self.job(entry.memory_limit, entry.objective).map_err(|error| error.to_string());
        let jobs: Vec<_> = self.entries.iter().map(job).collect();
        let mut runners = runners(&self.entries, &jobs, planners, self.against.is_some());
        interrupted = interrupted || race(&mut runners, self.rounds, watch).is_err();
        let rows = self.entries.iter().zip(&runners).map(|(entry, runner)| row(entry, &runner.lane));
        let mut rows: Vec<SampleRow> = rows.collect();
        if let Some((_, Ok(whole))) = &reference {
            for (row, runner) in rows.iter_mut().zip(&runners) {
                let latents = runner.lane.output.as_ref();
                row.psnr = latents.map(|latents| psnr::over_span(latents, whole)).transpose()?;
            }
        }
        let base = rows.first().map(|row| row.samples_ms.clone()).unwrap_or_default();
        for row in &mut rows {
            row.ratio = Ratio::of(&row.samples_ms, &base);
        }
        Ok(SampleReport {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            device: self.machine.facts.clone(),
            request: jobs.iter().flatten().next().map(|job| job.request().clone()),
            runs: rows,
            against: reference.map(|(policy, found)| found.map(|_| policy)),
            warmup: self.rounds.warmup,
            iterations: self.rounds.iterations,
            interrupted,
        })
    }

    fn job(&self, memory_limit: u64, objective: Objective) -> tilewright_engine::Result<DenoiseJob<'_>> {
        DenoiseJob::new(self.machine, self.denoiser, self.sampling, memory_limit, objective)
    }

    /// Latents of one run within all free memory, or why there are none.
    fn reference(
        &self,
        spelling: &Spelling,
        planners: &SamplePlanners<'_>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<std::result::Result<Tensor, String>, Interrupted> {
        let job = self.job(self.machine.facts.free_bytes.max(1), Objective::Fastest);
        let made = job.map_err(|error| error.to_string());
        let made = made.and_then(|job| Ok((job, planners(spelling).map_err(|error| error.to_string())?)));
        let (job, mut planner) = match made {
            Ok(made) => made,
            Err(error) => return Ok(Err(error)),
        };
        match Raced::run(&job, planner.as_mut(), watch, true) {
            Ok(ran) => Ok(ran.output.ok_or_else(|| "no latents".to_owned())),
            Err(Stop::Interrupted) => Err(Interrupted),
            Err(Stop::Failed(error)) => Ok(Err(error)),
        }
    }
}

/// The row of a policy's runs, without comparisons.
fn row(Entry { spelling, memory_limit, objective }: &Entry, lane: &Lane<Denoise>) -> SampleRow {
    let samples_ms = lane.samples_ms();
    let summary = Summary::of(&samples_ms);
    let last = lane.records.last();
    let outcomes = || lane.records.iter().filter_map(|record| record.outcome);
    SampleRow {
        policy: spelling.to_string(),
        objective: *objective,
        memory_limit: *memory_limit,
        plan: last.map(|record| record.plan.clone()),
        adjusted: last.map(|record| record.adjusted.clone()).unwrap_or_default(),
        fallback: lane.fallback(),
        first_ms: lane.first_ms,
        mean_ms: summary.map(|summary| summary.mean),
        std_ms: summary.and_then(|summary| summary.std),
        min_ms: summary.map(|summary| summary.min),
        median_ms: summary.map(|summary| summary.median),
        samples_ms,
        load_ms: outcomes().next_back().map(|outcome| outcome.load.as_secs_f64() * 1e3),
        peak_bytes: outcomes().map(|outcome| outcome.peak_bytes).max(),
        weights_bytes: outcomes().map(|outcome| outcome.weights_bytes).max(),
        moved_bytes: outcomes().map(|outcome| outcome.moved_bytes).max(),
        reused: outcomes().map(|outcome| outcome.reused).max().unwrap_or(0),
        estimate: last.and_then(|record| record.estimate),
        profile: lane.profile.clone(),
        error: lane.error.clone(),
        ..SampleRow::default()
    }
}

/// True if two plans are the same work.
fn is_same(one: &DenoisePlan, other: &DenoisePlan) -> bool {
    Denoise::is_same_work(one, other)
}
