//! Is a policy's choice the best there is? Every plan of a list is measured by hand, then the
//! policy chooses, case by case. The same measurements say how honest the host's estimates are.

mod judge;
mod plans;
mod rows;

use std::{fmt, str::FromStr};

use tch::{Device as Place, Tensor};
use tilewright_engine::Machine;
use tilewright_pipeline::{Decode, Model, default_limit};
use tilewright_plan::{Objective, Plan, Vae, Work, bytes, words::with_noun};
use tilewright_statistics::median;

use crate::{
    Latents, Planners, Result, Rounds, Spelling, Watch,
    race::{Interrupted, Lane, Raced, Ran, Runner, Stop, race},
};

pub use judge::{Accuracy, Honesty};
pub use rows::{CaseRow, Choice, PlanRow, SweepReport, SweptRequest};

/// The most that a choice may be worse than the best.
const WITHIN: f64 = 1.10;

/// A limit of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// 80 % of what is free.
    Ample,
    /// A third of the least that a whole decode in f32 was measured to hold, or is estimated to.
    Third,
    /// Bytes.
    Bytes(u64),
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "ample" => Ok(Limit::Ample),
            "third" => Ok(Limit::Third),
            size => bytes::parse(size).map(Limit::Bytes).map_err(|error| format!("{error}; or ample, or third")),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Ample => f.write_str("ample"),
            Limit::Third => f.write_str("third"),
            Limit::Bytes(size) => f.write_str(&bytes::display(*size)),
        }
    }
}

/// A sweep over plans.
#[derive(Debug)]
pub struct Sweep<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The weights.
    pub model: &'a Model,
    /// Sides of square pictures in pixels.
    pub sizes: Vec<u32>,
    /// Limits of the cases.
    pub limits: Vec<Limit>,
    /// Objectives of the cases.
    pub objectives: Vec<Objective>,
    /// Runs of each plan.
    pub iterations: usize,
    /// The policy whose choices are judged.
    pub policy: Spelling,
    /// The most plans per size; the list starts with what matters most.
    pub plans: Option<usize>,
    /// Narrow types count on a CPU too, where the default policy never trades accuracy.
    pub any_precision: bool,
    /// The user allows blended tiles where an exact plan fits.
    pub allows_blended: bool,
    /// The seed of the latents.
    pub seed: u64,
}

impl Sweep<'_> {
    /// Measures. What was measured stays in the report when interrupted.
    ///
    /// # Errors
    /// Latents that can't be made, or a request that can't. Never because a plan failed.
    pub fn run(&self, planners: &Planners<'_>, watch: &mut dyn Watch) -> Result<SweepReport> {
        let mut report = SweepReport {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            device: self.machine.facts.clone(),
            policy: self.policy.to_string(),
            iterations: self.iterations,
            requests: Vec::new(),
            plans: Vec::new(),
            cases: Vec::new(),
            honesty: Honesty::default(),
            interrupted: false,
        };
        for side in &self.sizes {
            let latents = Latents::of(self.model, [*side, *side], 1, None, self.seed).tensor()?;
            if let Err(Interrupted) = self.sweep_size(&latents, planners, watch, &mut report)? {
                report.interrupted = true;
                break;
            }
        }
        report.honesty = Honesty::of(&report.plans);
        Ok(report)
    }

    fn ample(&self) -> u64 {
        default_limit(self.machine)
    }

    fn sweep_size(
        &self,
        latents: &Tensor,
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
        report: &mut SweepReport,
    ) -> Result<std::result::Result<(), Interrupted>> {
        let job = Decode::new(self.machine, self.model, latents, self.ample(), Objective::Fastest)?;
        report.requests.push(SweptRequest {
            request: job.request().clone(),
            stage: job.stage(),
            capabilities: job.capabilities().clone(),
        });
        let mut plans = plans::list(job.request(), job.capabilities());
        plans.truncate(self.plans.unwrap_or(usize::MAX));
        watch.say(&format!("{}×{}: {}", job.request().width, job.request().height, with_noun(plans.len(), "plan")));
        let (mut rows, ended) = self.measure(&job, &plans, planners, watch);
        let ended = ended.and_then(|()| self.choose(latents, &job, &mut rows, planners, watch, report));
        report.plans.append(&mut rows);
        Ok(ended)
    }

    /// Measures plans in turns.
    fn measure(
        &self,
        job: &Decode<'_>,
        plans: &[Plan],
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
    ) -> (Vec<PlanRow>, std::result::Result<(), Interrupted>) {
        let request = job.request();
        let row = |plan: &Plan| PlanRow {
            width: request.width,
            height: request.height,
            policy: Spelling::fixed(plan).to_string(),
            plan: plan.clone(),
            elapsed_ms: None,
            samples_ms: Vec::new(),
            peak_bytes: None,
            estimate: job.estimate(plan).ok(),
            error: None,
        };
        let runner = |plan: &Plan| {
            Runner::new(Ok(job), planners(&Spelling::fixed(plan)), crate::spelling::in_words(plan), false)
        };
        let mut rows: Vec<PlanRow> = plans.iter().map(row).collect();
        let mut runners: Vec<_> = plans.iter().map(runner).collect();
        // A plan that the host would adjust runs as another one: that is no measurement of it, so
        // it need not run.
        for (row, runner) in rows.iter().zip(&mut runners) {
            let Some((_, planner)) = &mut runner.made else { continue };
            let (record, _) = job.decide(planner.as_mut());
            if !Vae::is_same_work(&record.plan, &row.plan) {
                let instead = crate::spelling::in_words(&record.plan);
                runner.lane.error = Some(format!("would be run as {instead} instead"));
            }
        }
        let rounds = |iterations| Rounds { first_apart: false, warmup: 0, iterations, profiled: false };
        // The first decode of a size compiles kernels and touches memory for all that follow: it
        // counts for none.
        let mut ended = Ok(());
        let mut warm = Vec::new();
        for (row, runner) in rows.iter().zip(&mut runners) {
            let numeric = (row.plan.precision, row.plan.layout);
            if runner.lane.error.is_none() && ended.is_ok() && !warm.contains(&numeric) {
                warm.push(numeric);
                ended = race(std::slice::from_mut(runner), rounds(1), watch);
                runner.lane = Lane::default();
            }
        }
        if ended.is_ok() {
            ended = race(&mut runners, rounds(self.iterations), watch);
        }
        for (row, runner) in rows.iter_mut().zip(runners) {
            // A run that ended in another plan, after a failure, is not a run of this one.
            let own = |record: &&tilewright_plan::Record| Vae::is_same_work(&record.plan, &row.plan);
            let (own, other): (Vec<_>, Vec<_>) = runner.lane.records.iter().partition(own);
            row.samples_ms = own.iter().filter_map(|record| crate::race::elapsed_ms(record)).collect();
            row.elapsed_ms = median(&row.samples_ms);
            row.peak_bytes = own.iter().filter_map(|record| record.outcome.map(|outcome| outcome.peak_bytes)).max();
            let attempts = other.first().and_then(|record| record.attempts.first());
            row.error = runner.lane.error.or(attempts.map(|attempt| attempt.failure.to_string()));
        }
        (rows, ended)
    }

    /// Lets the policy choose, case by case.
    fn choose(
        &self,
        latents: &Tensor,
        ample: &Decode<'_>,
        rows: &mut Vec<PlanRow>,
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
        report: &mut SweepReport,
    ) -> std::result::Result<(), Interrupted> {
        let third = judge::third_of_whole(rows);
        for limit in &self.limits {
            let memory_limit = match limit {
                Limit::Ample => self.ample(),
                Limit::Third => third.unwrap_or_else(|| self.ample() / 3),
                Limit::Bytes(limit) => *limit,
            };
            for objective in &self.objectives {
                let request = ample.request();
                let mut case = CaseRow {
                    width: request.width,
                    height: request.height,
                    limit: limit.to_string(),
                    memory_limit,
                    objective: *objective,
                    best: None,
                    chosen: None,
                    run_peak_bytes: None,
                    ratio: None,
                    met: false,
                    note: String::new(),
                };
                watch.say(
                    &format!("{}×{} {limit} {objective:?}: the policy chooses", case.width, case.height).to_lowercase(),
                );
                let chosen = self.find_choice(latents, &mut case, planners, watch)?;
                if let Some(plan) = chosen {
                    self.settle(&mut case, &plan, ample, rows, planners, watch)?;
                } else {
                    case.best = self.judge(&case).best(rows);
                }
                report.cases.push(case);
            }
        }
        Ok(())
    }

    fn judge(&self, case: &CaseRow) -> judge::Judge {
        let on_cpu = self.machine.device == Place::Cpu;
        judge::Judge {
            objective: case.objective,
            memory_limit: case.memory_limit,
            wide_only: on_cpu && !self.any_precision,
            allows_blended: self.allows_blended,
        }
    }

    /// The plan that the policy's own run ended with, under the case's limit.
    fn find_choice(
        &self,
        latents: &Tensor,
        case: &mut CaseRow,
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Option<Plan>, Interrupted> {
        let made = Decode::new(self.machine, self.model, latents, case.memory_limit, case.objective);
        let planner = planners(&self.policy).map_err(|error| error.to_string());
        let made = made.map(|job| job.allowing_blended(self.allows_blended)).map_err(|error| error.to_string());
        let (job, mut planner) = match made.and_then(|job| Ok((job, planner?))) {
            Ok(made) => made,
            Err(error) => {
                case.note = error;
                return Ok(None);
            }
        };
        match Raced::run(&job, planner.as_mut(), watch, false) {
            Ok(Ran { record, .. }) => {
                case.run_peak_bytes = record.outcome.map(|outcome| outcome.peak_bytes);
                if !record.attempts.is_empty() {
                    case.note = format!("after {} that failed", with_noun(record.attempts.len(), "attempt"));
                }
                Ok(Some(record.plan))
            }
            Err(Stop::Interrupted) => Err(Interrupted),
            Err(Stop::Failed(error)) => {
                case.note = error;
                Ok(None)
            }
        }
    }

    /// Compares the policy's plan with the best one. A plan that is not on the list is measured
    /// now, in turns with the best one, so that neither profits from the machine's drift.
    fn settle(
        &self,
        case: &mut CaseRow,
        plan: &Plan,
        ample: &Decode<'_>,
        rows: &mut Vec<PlanRow>,
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<(), Interrupted> {
        let judge = self.judge(case);
        let known =
            |rows: &[PlanRow]| rows.iter().find(|row| Vae::is_same_work(&row.plan, plan)).and_then(judge::choice);
        case.best = judge.best(rows);
        case.chosen = known(rows);
        if case.chosen.is_none() {
            let pair: Vec<Plan> =
                [plan].into_iter().chain(case.best.as_ref().map(|best| &best.plan)).cloned().collect();
            let (measured, ended) = self.measure(ample, &pair, planners, watch);
            case.chosen = measured.first().and_then(judge::choice);
            case.best = measured.get(1).and_then(judge::choice).or(case.best.take());
            rows.extend(measured.into_iter().take(1));
            ended?;
        }
        let Some(chosen) = &case.chosen else {
            case.note = format!("{} was not measured alone", crate::spelling::in_words(plan));
            return Ok(());
        };
        let Some(best) = &case.best else {
            case.met = case.run_peak_bytes.is_some_and(|peak| peak <= case.memory_limit);
            case.note = "no plan of the list fits: the policy's is alone".into();
            return Ok(());
        };
        let ratio = judge.cost(chosen) / judge.cost(best);
        case.ratio = Some(ratio);
        let kept = case.run_peak_bytes.unwrap_or(chosen.peak_bytes) <= case.memory_limit;
        let in_time = judge.is_in_time(chosen, rows);
        case.met = ratio <= WITHIN && kept && in_time;
        let faults = [(!kept, "over the limit"), (!in_time, "takes over four times the quickest")];
        let faults: Vec<&str> = faults.iter().filter(|(fault, _)| *fault).map(|(_, words)| *words).collect();
        if !faults.is_empty() {
            case.note = faults.join(", ");
        }
        Ok(())
    }
}
