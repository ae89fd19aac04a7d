//! Contests: policies compared on one latent.

use tch::Tensor;
use tilewright_engine::Machine;
use tilewright_pipeline::{Decode, Model};
use tilewright_plan::{Objective, Request, Space};

use crate::{
    Against, Difference, Planners, Ratio, Report, Result, Rounds, Row, Spelling, Watch,
    race::{Interrupted, Raced, Ran, Runner, Stop, elapsed_ms, race, runners},
};

/// One policy with its limit and objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The policy.
    pub spelling: Spelling,
    /// The limit in bytes, without weights.
    pub memory_limit: u64,
    /// The policy's objective.
    pub objective: Objective,
}

/// Policies that take turns on one latent.
#[derive(Debug)]
pub struct Contest<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The model.
    pub model: &'a Model,
    /// The model's latents, in its own space, f32.
    pub latents: &'a Tensor,
    /// The policies; ratios are to the first.
    pub entries: Vec<Entry>,
    /// The policy of the reference pictures, decoded once without its limit.
    pub against: Option<Spelling>,
    /// The number of runs.
    pub rounds: Rounds,
    /// The user allows blended tiles and chunks where an exact plan fits.
    pub allows_blended: bool,
}

/// A contest's report, and the pictures behind it.
pub(crate) struct ContestResult {
    pub report: Report,
    /// The last pictures of each entry, as in [`Ran`]; none without a reference.
    pub pictures: Vec<Option<Tensor>>,
}

impl Contest<'_> {
    /// Runs the contest. A failed policy is a row with its error; an interruption leaves rows with
    /// the measurements so far.
    ///
    /// # Errors
    /// Pictures that can't be compared or a request that can't be made. Never a policy's failure.
    pub fn run(&self, planners: &Planners<'_>, watch: &mut dyn Watch) -> Result<Report> {
        Ok(self.run_keeping_pictures(planners, watch)?.report)
    }

    /// [`Self::run`], with the pictures.
    pub(crate) fn run_keeping_pictures(&self, planners: &Planners<'_>, watch: &mut dyn Watch) -> Result<ContestResult> {
        let mut interrupted = false;
        let mut reference = None;
        if let Some(spelling) = &self.against {
            match self.reference(spelling, planners, watch) {
                Ok(found) => reference = Some(found),
                Err(Interrupted) => interrupted = true,
            }
        }
        let jobs: Vec<_> = self.entries.iter().map(|entry| self.job(entry.memory_limit, entry.objective)).collect();
        let request: Option<Request> = jobs.iter().flatten().next().map(|job| job.request().clone());
        // Frames are kept only if they are compared: long clips are large.
        let keeps = reference.as_ref().is_some_and(|(_, pictures)| pictures.is_some());
        let mut runners = runners(&self.entries, &jobs, planners, keeps);
        interrupted = interrupted || race(&mut runners, self.rounds, watch).is_err();
        let mut rows = Vec::new();
        for (Entry { spelling, memory_limit, objective }, Runner { lane, .. }) in self.entries.iter().zip(&runners) {
            let mut row = Row::new(spelling, *objective, *memory_limit, lane);
            let whole = reference.as_ref().and_then(|(_, pictures)| pictures.as_ref());
            if let (Some(found), Some(whole)) = (&lane.output, whole) {
                let space = row.plan.as_ref().map_or(Space::Whole, |plan| plan.space);
                row.difference = Some(Difference::between(found, whole, &space)?);
            }
            rows.push(row);
        }
        let pictures = runners.into_iter().map(|runner| runner.lane.output).collect();
        let base = rows.first().map(|row| row.samples_ms.clone()).unwrap_or_default();
        for row in &mut rows {
            row.ratio = Ratio::of(&row.samples_ms, &base);
        }
        let report = Report {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            runs: rows,
            device: self.machine.facts.clone(),
            request,
            against: reference.map(|(against, _)| against),
            warmup: self.rounds.warmup,
            iterations: self.rounds.iterations,
            interrupted,
        };
        Ok(ContestResult { report, pictures })
    }

    fn job(&self, memory_limit: u64, objective: Objective) -> std::result::Result<Decode<'_>, String> {
        let job = Decode::new(self.machine, self.model, self.latents, memory_limit, objective);
        job.map(|job| job.allowing_blended(self.allows_blended)).map_err(|error| error.to_string())
    }

    /// Decodes the reference once, within all free memory.
    fn reference(
        &self,
        spelling: &Spelling,
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(Against, Option<Tensor>), Interrupted> {
        let mut against =
            Against { policy: spelling.to_string(), plan: None, elapsed_ms: None, peak_bytes: None, error: None };
        let made = planners(spelling).map_err(|error| error.to_string());
        // Limited all the same: a reference that is too large must not bring on the kernel's OOM
        // killer.
        let job = self.job(self.machine.facts.free_bytes.max(1), Objective::Fastest);
        let (job, mut planner) = match job.and_then(|job| Ok((job, made?))) {
            Ok(made) => made,
            Err(error) => return Ok((Against { error: Some(error), ..against }, None)),
        };
        if !watch.goes_on() {
            return Err(Interrupted);
        }
        watch.say(&format!("reference: {spelling}"));
        let Ran { record, output, .. } = match Raced::run(&job, planner.as_mut(), watch, true) {
            Ok(ran) => ran,
            Err(Stop::Interrupted) => return Err(Interrupted),
            Err(Stop::Failed(error)) => {
                let error = format!("no differences: the reference can't be decoded: {error}");
                watch.say(&error);
                return Ok((Against { error: Some(error), ..against }, None));
            }
        };
        against.plan = Some(record.plan.clone());
        against.elapsed_ms = elapsed_ms(&record);
        against.peak_bytes = record.outcome.map(|outcome| outcome.peak_bytes);
        if *spelling == Spelling::whole() && record.plan.space != Space::Whole {
            let error = format!("no differences: the reference was run as {} instead of whole", record.plan.space);
            watch.say(&error);
            return Ok((Against { error: Some(error), ..against }, None));
        }
        Ok((against, output))
    }
}
