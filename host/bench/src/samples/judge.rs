//! A sweep: every plan of a list is measured, and a policy's choices under several limits are
//! compared with the best of them.

use serde::Serialize;
use tch::Device as Place;
use tilewright_engine::{DenoiseJob, Denoiser, Machine, Sampling};
use tilewright_pipeline::default_limit;
use tilewright_plan::{DenoiseCapabilities, DenoisePlan, DenoiseRequest, Device, Objective};
use tilewright_statistics::{quantile, sorted};

use super::{SampleContest, SamplePlanners, SampleReport, SampleRow, is_same, plans};
use crate::{Entry, Result, Rounds, Spelling, Watch, sweep::Limit};

/// The most that a choice may be worse than the best.
const WITHIN: f64 = 1.05;

/// Runs of a case's choice and of its best plan after the sweep, side by side: the least of many
/// noisy measurements is too low.
const FINALS: usize = 10;

/// A sweep over the plans of one sample.
#[derive(Debug)]
pub struct SampleSweep<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The transformer.
    pub denoiser: &'a Denoiser,
    /// The input of the sample.
    pub sampling: &'a Sampling,
    /// Limits of the cases.
    pub limits: Vec<Limit>,
    /// Objectives of the cases.
    pub objectives: Vec<Objective>,
    /// Runs of each plan.
    pub iterations: usize,
    /// The policy whose choices are judged.
    pub policy: Spelling,
    /// The most plans; the list starts with what matters most.
    pub plans: Option<usize>,
    /// Narrow types count on a CPU too, where the default policy never trades accuracy.
    pub any_precision: bool,
}

/// The results of a sweep, as one JSON object. Sizes are bytes, times milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct SampleSweepReport {
    /// The host's version.
    pub tilewright: String,
    /// The device.
    pub device: Device,
    /// The policy whose choices were judged.
    pub policy: String,
    /// Runs of each plan.
    pub iterations: usize,
    /// The request; limits and objectives are the cases'.
    pub request: Option<DenoiseRequest>,
    /// The plans that can be carried out.
    pub capabilities: DenoiseCapabilities,
    /// Every plan.
    pub plans: Vec<SampleRow>,
    /// The choices and the best plans of cases where they differ, measured again side by side.
    pub finals: Vec<SampleRow>,
    /// Every case.
    pub cases: Vec<SampleCase>,
    /// The 90th percentiles of |estimated / measured − 1|: of step times, and of bytes held.
    pub errors: [Option<f64>; 2],
    /// Ended from outside: what was measured until then.
    pub interrupted: bool,
}

/// A limit and an objective, and the policy's choice under them.
#[derive(Clone, Debug, Serialize)]
pub struct SampleCase {
    /// The limit as it was asked for, and in bytes.
    pub limit: String,
    /// See `limit`.
    pub memory_limit: u64,
    /// The objective.
    pub objective: Objective,
    /// The best plan of the list that fits.
    pub best: Option<DenoisePlan>,
    /// The policy's choice.
    pub chosen: Option<DenoisePlan>,
    /// The cost of the choice over that of the best; if they differ, by the finals.
    pub ratio: Option<f64>,
    /// The choice is within 5 % of the best, and within the limit.
    pub met: bool,
    /// The reason why there is no ratio.
    pub note: String,
}

impl SampleSweep<'_> {
    /// Measures. What was measured stays in the report when interrupted.
    ///
    /// # Errors
    /// A request that can't be made. Never because a plan failed.
    pub fn run(&self, planners: &SamplePlanners<'_>, watch: &mut dyn Watch) -> Result<SampleSweepReport> {
        let ample = default_limit(self.machine);
        let job = self.job(ample, Objective::Fastest)?;
        let any_precision = self.any_precision || self.machine.device != Place::Cpu;
        let mut all = plans::list(job.request(), job.capabilities(), any_precision);
        all.truncate(self.plans.unwrap_or(usize::MAX));
        // The choices are measured among the plans, in turns with them, so that none profits from
        // the machine's drift.
        let mut cases = self.cases(&job, &all, ample);
        for case in &mut cases {
            match self.choose(case, planners) {
                Ok(plan) => {
                    if !all.iter().any(|known| is_same(known, &plan)) {
                        all.push(plan.clone());
                    }
                    case.chosen = Some(plan);
                }
                Err(why) => case.note = why,
            }
        }
        let measured = self.measure(&all, self.iterations, ample, planners, watch)?;
        cases.iter_mut().for_each(|case| settle(case, &measured.runs));
        let rivals = rivals(&cases);
        let mut finals = Vec::new();
        let mut interrupted = measured.interrupted;
        if !(rivals.is_empty() || interrupted) {
            watch.say("choices and best plans that differ are measured again, side by side");
            let again = self.measure(&rivals, FINALS.max(self.iterations), ample, planners, watch)?;
            interrupted = again.interrupted;
            if !interrupted {
                cases.iter_mut().for_each(|case| settle_again(case, &again.runs));
            }
            finals = again.runs;
        }
        Ok(SampleSweepReport {
            tilewright: measured.tilewright,
            device: measured.device,
            policy: self.policy.to_string(),
            iterations: self.iterations,
            request: measured.request,
            capabilities: job.capabilities().clone(),
            errors: errors(&measured.runs),
            plans: measured.runs,
            finals,
            cases,
            interrupted,
        })
    }

    /// Runs plans in turns. A plan that ran as another has an error.
    fn measure(
        &self,
        plans: &[DenoisePlan],
        iterations: usize,
        memory_limit: u64,
        planners: &SamplePlanners<'_>,
        watch: &mut dyn Watch,
    ) -> Result<SampleReport> {
        let entry = |plan: &DenoisePlan| Entry {
            spelling: Spelling::fixed_sample(plan),
            memory_limit,
            objective: Objective::Fastest,
        };
        let contest = SampleContest {
            machine: self.machine,
            denoiser: self.denoiser,
            sampling: self.sampling,
            entries: plans.iter().map(entry).collect(),
            against: None,
            rounds: Rounds { first_apart: false, warmup: 1, iterations, profiled: false },
        };
        let mut report = contest.run(planners, watch)?;
        for (row, plan) in report.runs.iter_mut().zip(plans) {
            if let Some(instead) = row.plan.as_ref().filter(|found| !is_same(found, plan)) {
                row.error = Some(format!("ran as {instead} instead"));
            }
        }
        Ok(report)
    }

    fn job(&self, memory_limit: u64, objective: Objective) -> tilewright_engine::Result<DenoiseJob<'_>> {
        DenoiseJob::new(self.machine, self.denoiser, self.sampling, memory_limit, objective)
    }

    fn cases(&self, job: &DenoiseJob<'_>, all: &[DenoisePlan], ample: u64) -> Vec<SampleCase> {
        let held = |plan: &DenoisePlan| job.estimate(plan).ok().map(|cost| cost.held_bytes());
        let plain = held(&DenoisePlan::plain()).unwrap_or(ample);
        let least = all.iter().filter_map(held).min().unwrap_or(0);
        let limits = self.limits.iter().flat_map(|limit| {
            let bytes = match limit {
                Limit::Ample => ample,
                // A third of the way from the leanest plan to the plain one: less than that may fit
                // no plan at all, since weights count.
                Limit::Third => least + plain.saturating_sub(least) / 3,
                Limit::Bytes(bytes) => *bytes,
            };
            self.objectives.iter().map(move |objective| SampleCase {
                limit: limit.to_string(),
                memory_limit: bytes,
                objective: *objective,
                best: None,
                chosen: None,
                ratio: None,
                met: false,
                note: String::new(),
            })
        });
        limits.collect()
    }

    /// The policy's plan for a case.
    fn choose(&self, case: &SampleCase, planners: &SamplePlanners<'_>) -> std::result::Result<DenoisePlan, String> {
        let job = self.job(case.memory_limit, case.objective).map_err(|error| error.to_string())?;
        let mut planner = planners(&self.policy).map_err(|error| error.to_string())?;
        Ok(job.decide(planner.as_mut()).0.plan)
    }
}

/// A plan's measurements: milliseconds of a step, and bytes held.
fn measured(row: &SampleRow) -> Option<(f64, u64)> {
    if row.error.is_some() {
        return None;
    }
    row.median_ms.zip(row.held_bytes())
}

/// Compares a case's choice with the best plan that fits.
fn settle(case: &mut SampleCase, rows: &[SampleRow]) {
    let fitting: Vec<(&SampleRow, f64, u64)> = rows
        .iter()
        .filter_map(|row| measured(row).map(|(ms, held)| (row, ms, held)))
        .filter(|(_, _, held)| *held <= case.memory_limit)
        .collect();
    let quickest = fitting.iter().map(|(_, ms, _)| *ms).fold(f64::INFINITY, f64::min);
    let (objective, limit) = (case.objective, case.memory_limit);
    let cost = |ms: f64, held: u64| objective.cost(ms, held, limit);
    let in_time = |ms: f64| objective.allows(ms, quickest);
    let best = fitting.iter().filter(|(_, ms, _)| in_time(*ms));
    let best = best.min_by(|(_, a, b), (_, c, d)| cost(*a, *b).total_cmp(&cost(*c, *d)));
    let Some((best, best_ms, best_held)) = best else {
        case.note = "no plan of the list fits".into();
        return;
    };
    case.best = best.plan.clone();
    let Some(chosen) = &case.chosen else { return };
    let own = fitting.iter().find(|(row, ..)| row.plan.as_ref().is_some_and(|plan| is_same(plan, chosen)));
    match own {
        Some((_, ms, _)) if !in_time(*ms) => case.note = format!("{chosen} takes too long for its objective"),
        Some((_, ms, held)) => {
            let ratio = cost(*ms, *held) / cost(*best_ms, *best_held);
            case.ratio = Some(ratio);
            case.met = ratio <= WITHIN;
        }
        None => case.note = format!("{chosen} was not measured, or does not fit"),
    }
}

/// The choices and the best plans of cases where they differ, each once.
fn rivals(cases: &[SampleCase]) -> Vec<DenoisePlan> {
    let mut rivals: Vec<DenoisePlan> = Vec::new();
    for case in cases.iter().filter(|case| case.ratio.is_some_and(|ratio| ratio > 1.0)) {
        for plan in case.chosen.iter().chain(&case.best) {
            if !rivals.iter().any(|known| is_same(known, plan)) {
                rivals.push(plan.clone());
            }
        }
    }
    rivals
}

/// Compares a case's choice with its best plan by measurements of these two alone.
fn settle_again(case: &mut SampleCase, finals: &[SampleRow]) {
    let of = |plan: &Option<DenoisePlan>| {
        let plan = plan.as_ref()?;
        finals.iter().find(|row| row.plan.as_ref().is_some_and(|ran| is_same(ran, plan))).and_then(measured)
    };
    let (Some((ms, held)), Some((best_ms, best_held))) = (of(&case.chosen), of(&case.best)) else { return };
    let cost = |ms: f64, held: u64| case.objective.cost(ms, held, case.memory_limit);
    let ratio = cost(ms, held) / cost(best_ms, best_held);
    case.ratio = Some(ratio);
    case.met = ratio <= WITHIN && held <= case.memory_limit;
}

/// The 90th percentiles of the errors of step times and of bytes held.
fn errors(rows: &[SampleRow]) -> [Option<f64>; 2] {
    let pairs = rows.iter().filter_map(|row| Some((row.estimate?, measured(row)?)));
    let errors = pairs.map(|(cost, (ms, held))| {
        let time = cost.step.as_secs_f64() * 1e3 / ms.max(f64::MIN_POSITIVE);
        let bytes = cost.held_bytes() as f64 / held.max(1) as f64;
        [time, bytes].map(|ratio| (ratio - 1.0).abs())
    });
    let errors: Vec<[f64; 2]> = errors.collect();
    [0, 1].map(|which| {
        let sizes: Vec<f64> = errors.iter().map(|error| error[which]).collect();
        (!sizes.is_empty()).then(|| quantile(&sorted(&sizes), 0.9))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(feed_forward: u32, ms: f64, mib: u64) -> SampleRow {
        let plan = DenoisePlan { feed_forward, ..DenoisePlan::plain() };
        SampleRow {
            plan: Some(plan),
            median_ms: Some(ms),
            peak_bytes: Some(mib << 20),
            weights_bytes: Some(1 << 20),
            ..SampleRow::default()
        }
    }

    fn settled(objective: Objective, mib: u64, chosen: u32) -> SampleCase {
        let rows = [row(1, 100.0, 99), row(4, 110.0, 49), row(16, 500.0, 9)];
        let mut case = SampleCase {
            limit: String::new(),
            memory_limit: mib << 20,
            objective,
            best: None,
            chosen: Some(DenoisePlan { feed_forward: chosen, ..DenoisePlan::plain() }),
            ratio: None,
            met: false,
            note: String::new(),
        };
        settle(&mut case, &rows);
        case
    }

    #[test]
    fn a_choice_is_held_against_the_best_that_fits() {
        let best = |case: &SampleCase| case.best.as_ref().map(|plan| plan.feed_forward);
        let case = settled(Objective::Fastest, 1000, 1);
        assert_eq!((best(&case), case.ratio, case.met), (Some(1), Some(1.0), true));
        let case = settled(Objective::Fastest, 1000, 4);
        assert!((case.ratio.unwrap() - 1.1).abs() < 1e-9 && !case.met);
        let case = settled(Objective::Fastest, 60, 4);
        assert_eq!((best(&case), case.met), (Some(4), true));
        let case = settled(Objective::Fastest, 60, 1);
        assert!(!case.met && case.note.contains("does not fit"), "{}", case.note);
        // The leanest takes five times as long as the quickest.
        assert_eq!(best(&settled(Objective::Leanest, 1000, 4)), Some(4));
        let case = settled(Objective::Leanest, 1000, 16);
        assert!(!case.met && case.ratio.is_none() && case.note.contains("too long"), "{}", case.note);
        assert!(settled(Objective::Fastest, 5, 1).note.contains("no plan of the list fits"));
    }

    #[test]
    fn a_choice_and_the_best_that_differ_are_settled_by_measurements_of_both() {
        let mut case = settled(Objective::Fastest, 1000, 4);
        let parts = |plans: Vec<DenoisePlan>| plans.iter().map(|plan| plan.feed_forward).collect::<Vec<_>>();
        assert_eq!(parts(rivals(std::slice::from_ref(&case))), [4, 1]);
        assert!(rivals(&[settled(Objective::Fastest, 1000, 1)]).is_empty());
        settle_again(&mut case, &[row(4, 100.0, 49), row(1, 98.0, 99)]);
        assert!(case.met && (case.ratio.unwrap() - 100.0 / 98.0).abs() < 1e-9);
        settle_again(&mut case, &[row(4, 100.0, 1001), row(1, 98.0, 99)]);
        assert!(!case.met, "more than the limit");
    }
}
