//! The engine's steps from a request to an outcome, with a table in the device's place.

use std::sync::Arc;

use tilewright_plan::{
    Attempt, Device, Dtype, Failure, Fallback, FieldOf, Planner, Question, each, of_any, of_each, of_kinds,
};

use super::{
    Case, Choice, Entry, Item, PolicyRow, RequestResult, RequestRow, Simulation, Table,
    facts::{PastRun, TableCostModel},
    simulated::Simulated,
};

/// The most attempts with a policy's plans, and the most in all, without and with the host's own
/// plans after them: the engine's numbers.
const ASKED: usize = 3;
const MOST_ATTEMPTS: usize = 4;
const MOST_WITH_OWN: usize = 6;

/// A policy that takes part.
pub struct Entrant {
    /// The policy's name in the report.
    pub label: String,
    /// The policy for each kind of work, ready to decide and without earlier outcomes.
    pub planners: each!(PlannerOf),
}

/// A planner of a kind of work.
pub type PlannerOf<W> = Box<dyn Planner<W>>;

/// Options of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A measured plan stands in for one near it: [`Case::nearest`].
    pub nearest: bool,
    /// The requests allow blended tiles and chunks where an exact plan fits.
    pub allows_blended: bool,
}

/// Runs every policy through the workload on its own: each learns only from its own choices.
pub fn run(table: &Table, workload: &[Item], entrants: Vec<Entrant>, options: Options) -> Simulation {
    let cases = of_kinds!(W => W::cases(table).iter().cloned().map(Arc::new).collect::<Vec<Arc<Case<W>>>>());
    // Counted one kind after the other, as the report lists them.
    let mut count = 0;
    let begins = of_each!(&cases, cases => {
        count += cases.len();
        count - cases.len()
    });
    let policies = entrants.into_iter().map(|mut entrant| {
        let planners = &mut entrant.planners;
        let mut runs = of_each!(planners, planner => PolicyRun::new(&table.device, planner.as_mut(), options));
        let rows = workload.iter().filter_map(|item| {
            of_any!(item.case, case: W => {
                let found = W::of(&cases).get(case)?;
                Some(W::of_mut(&mut runs).request(item, W::of(&begins) + case, found))
            })
        });
        let rows = rows.collect();
        let fuel = of_each!(&runs, run => run.fuel).into_iter().sum();
        let prices_asked = of_each!(&runs, run => run.asked.0).into_iter().sum();
        let prices_unknown = of_each!(&runs, run => run.asked.1).into_iter().sum();
        let row = PolicyRow::new(entrant.label, entrant.planners.vae.identity().clone(), rows);
        PolicyRow { prices_asked, prices_unknown, fuel, ..row }
    });
    Simulation {
        tilewright: env!("CARGO_PKG_VERSION").into(),
        table: table.name.clone(),
        about: table.about.clone(),
        device: table.device.clone(),
        cases: table.words(),
        requests: workload.len(),
        policies: policies.collect(),
    }
}

/// A policy's run through the workload.
struct PolicyRun<'a, W: Simulated> {
    device: &'a Device,
    planner: &'a mut dyn Planner<W>,
    options: Options,
    /// Oldest first.
    past: Vec<PastRun<W>>,
    asked: (usize, usize),
    fuel: u64,
}

/// The result of an attempt.
enum AttemptResult {
    Done(Choice),
    Failed(Failure, f64),
    NotInTable,
}

impl<'a, W: Simulated> PolicyRun<'a, W> {
    fn new(device: &'a Device, planner: &'a mut dyn Planner<W>, options: Options) -> Self {
        Self { device, planner, options, past: Vec::new(), asked: (0, 0), fuel: 0 }
    }

    /// Runs a request of a case, whose number in the report is `place`.
    fn request(&mut self, item: &Item, place: usize, case: &Arc<Case<W>>) -> RequestRow {
        let allows_blended = self.options.allows_blended;
        let request = W::limited(&case.request, item.memory_limit, item.objective);
        let request = W::allowing_blended(request, allows_blended);
        let costs = TableCostModel::new(case.clone(), &self.past);
        let question = Question::first(case.stage(), &request, self.device, &case.capabilities);
        let best = case.best(self.device, item.objective, item.memory_limit, allows_blended);
        let mut decision = self.planner.decide(&question, costs.clone());
        let mut attempts: Vec<Attempt<W>> = Vec::new();
        let mut lost_ms = 0.0;
        let mut unknown = 0;
        let mut fallback = None;
        let (what, done, stands_in) = loop {
            self.fuel += decision.fuel;
            fallback = fallback.or_else(|| decision.fallback.as_ref().map(Fallback::to_string));
            let unknown_before = std::mem::replace(&mut unknown, costs.count_questions().1);
            if decision.fallback.is_some() && unknown > unknown_before {
                // The fallback is chosen by price: the plan of the real host is unknown.
                break (RequestResult::NotInTable, None, None);
            }
            let entry = self.entry(case, &decision.plan);
            let stands_in = entry.filter(|entry| !W::is_same_work(&entry.plan, &decision.plan));
            let stands_in = stands_in.map(|entry| entry.plan.clone().into());
            match self.attempt(entry, item.memory_limit) {
                AttemptResult::Done(done) => break (RequestResult::Done, Some(done), stands_in),
                AttemptResult::NotInTable => break (RequestResult::NotInTable, None, None),
                AttemptResult::Failed(failure, lost) => {
                    lost_ms += lost;
                    attempts.push(Attempt { plan: decision.plan.clone(), failure });
                    let is_wide = W::precision(&decision.plan).dtype() == Dtype::F32;
                    let hopeless = matches!(failure, Failure::NonFinite { .. }) && is_wide;
                    if hopeless {
                        break (RequestResult::Failed, None, stands_in);
                    }
                }
            }
            // As in the engine: after three attempts come the host's own plans, if there are any
            // for this planner.
            let own = (ASKED..MOST_WITH_OWN)
                .contains(&attempts.len())
                .then(|| self.planner.fallback(&question.after(&attempts), &*costs));
            decision = match own.flatten() {
                Some(own) => own,
                None if attempts.len() >= MOST_ATTEMPTS => break (RequestResult::Failed, None, stands_in),
                None => self.planner.decide(&question.after(&attempts), costs.clone()),
            };
        };
        let (asked, unknown) = costs.count_questions();
        self.asked = (self.asked.0 + asked, self.asked.1 + unknown);
        if let Some(done) = &done {
            self.learn(&request, case, &decision.plan, done, attempts.len());
        }
        let regret = best.as_ref().and_then(|best| match (&what, &done) {
            (RequestResult::Done, Some(done)) => {
                let cost = |choice: &Choice, lost| {
                    Choice { elapsed_ms: choice.elapsed_ms + lost, ..choice.clone() }
                        .cost(item.objective, item.memory_limit)
                };
                Some((cost(done, lost_ms) / cost(best, 0.0) - 1.0).max(0.0))
            }
            // No failure is as good as the best, however fast it was.
            (RequestResult::Failed, _) => Some(1.0 + lost_ms / best.elapsed_ms),
            _ => None,
        });
        RequestRow {
            case: place,
            memory_limit: item.memory_limit,
            objective: item.objective,
            what,
            plan: decision.plan.into(),
            stands_in,
            failed_attempts: attempts.len(),
            lost_ms,
            elapsed_ms: done.as_ref().map(|done| done.elapsed_ms),
            peak_bytes: done.as_ref().map(|done| done.peak_bytes),
            best,
            regret: regret.filter(|regret| regret.is_finite()),
            adjusted: decision.adjusted,
            fallback,
        }
    }

    /// The table's entry for a plan.
    fn entry<'c>(&self, case: &'c Case<W>, plan: &W::Plan) -> Option<&'c Entry<W>> {
        let known = |entry: &&Entry<W>| entry.measured().is_some() || entry.failure.is_some();
        let exactly = case.exactly(plan).filter(known);
        exactly.or_else(|| if self.options.nearest { case.nearest(plan) } else { None })
    }

    fn attempt(&self, entry: Option<&Entry<W>>, memory_limit: u64) -> AttemptResult {
        let Some(entry) = entry else { return AttemptResult::NotInTable };
        let lost = entry.elapsed_ms.unwrap_or(0.0);
        match (entry.failure, entry.measured()) {
            (Some(failure), _) => AttemptResult::Failed(failure, lost),
            (None, Some(done)) if done.peak_bytes > self.device.total_bytes => {
                AttemptResult::Failed(Failure::OutOfMemory { bytes: done.peak_bytes - self.device.total_bytes }, lost)
            }
            (None, Some(done)) if done.peak_bytes > memory_limit => {
                AttemptResult::Failed(Failure::OverLimit { bytes: done.peak_bytes }, lost)
            }
            (None, Some(done)) => AttemptResult::Done(done),
            (None, None) => AttemptResult::NotInTable,
        }
    }

    /// Passes the outcome to the policy, and keeps it for the trials of later requests.
    fn learn(&mut self, request: &W::Request, case: &Case<W>, plan: &W::Plan, done: &Choice, failed: usize) {
        let estimate = case.estimate(plan);
        let outcome = W::table_outcome(request, estimate, done.elapsed_ms, done.peak_bytes, failed as u32 + 1);
        let question = Question::first(case.stage(), request, self.device, &case.capabilities);
        self.planner.learn(&question, plan, &outcome);
        // A plan without a price can't be compared later.
        if let Some(estimate) = estimate {
            self.past.push(PastRun {
                stage: case.stage(),
                request: request.clone(),
                plan: plan.clone(),
                estimate,
                outcome,
            });
        }
    }
}
