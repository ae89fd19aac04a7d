//! Records the calls between the host and a planner. A planner itself, so that its callers need not
//! know that it records.

use std::{
    collections::HashSet,
    mem, process,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    Cost, CostModel, Decision, Exchange, LearnReport, Outcome, Plan, Planner, PolicyIdentity, Question, Trial,
    exchange::{Call, Estimate, HostAnswers, Offer, RecordedQuestion, Reply, Trials},
};

/// A planner that is listened to.
pub struct Recorder {
    planner: Box<dyn Planner + Send>,
    /// `None` if nothing is recorded.
    session: Option<String>,
    next: u64,
    calls: Vec<Call>,
}

impl Recorder {
    /// Listens to a planner, or only passes everything on.
    pub fn new(planner: Box<dyn Planner + Send>, listens: bool) -> Self {
        Self { planner, session: listens.then(session), next: 0, calls: Vec::new() }
    }

    /// The calls since the last time, for the record that is about to be written. `None` if the
    /// recorder only passes calls on.
    pub fn take(&mut self) -> Option<Exchange> {
        let session = self.session.clone()?;
        Some(Exchange { session, calls: mem::take(&mut self.calls) })
    }

    fn note(&mut self, question: &Question<'_>, recorded: RecordedQuestion, heard: HostAnswers, reply: Reply) {
        let (stage, request, device) = (Some(question.stage), question.request.clone(), question.device.clone());
        self.calls.push(Call { sequence: self.next, stage, request, device, question: recorded, heard, reply });
        self.next += 1;
    }
}

/// Names a session: no two of a machine's are called the same, nor in all likelihood of two
/// machines'.
fn session() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("{:x}-{:x}-{:x}", now.as_nanos(), process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A cost model that notes what was asked.
struct RecordingCostModel {
    costs: Arc<dyn CostModel>,
    heard: Mutex<(HostAnswers, HashSet<Plan>)>,
}

impl RecordingCostModel {
    fn new(costs: Arc<dyn CostModel>) -> Arc<Self> {
        Arc::new(Self { costs, heard: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, (HostAnswers, HashSet<Plan>)> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> HostAnswers {
        mem::take(&mut self.lock().0)
    }
}

impl CostModel for RecordingCostModel {
    fn estimate(&self, plans: &[Plan]) -> Vec<Result<Cost, String>> {
        let costs = self.costs.estimate(plans);
        let (heard, known) = &mut *self.lock();
        for (plan, cost) in plans.iter().zip(&costs) {
            if known.insert(plan.clone()) {
                heard.estimates.push(Estimate { plan: plan.clone(), price: cost.clone().into() });
            }
        }
        costs
    }

    fn trials(&self, most: u32) -> Vec<Trial> {
        let trials = self.costs.trials(most);
        let heard = &mut self.lock().0;
        if heard.trials.iter().all(|known| known.most != most) {
            heard.trials.push(Trials { most, trials: trials.iter().map(Into::into).collect() });
        }
        trials
    }
}

impl From<&Decision> for Reply {
    fn from(decision: &Decision) -> Self {
        let Decision { answer, plan, adjusted, fallback, fuel, .. } = decision.clone();
        Self { answer, plan: Some(plan), adjusted, fallback, fuel }
    }
}

impl From<LearnReport> for Reply {
    fn from(report: LearnReport) -> Self {
        Self { answer: None, plan: None, adjusted: Vec::new(), fallback: report.failure, fuel: report.fuel }
    }
}

impl Planner for Recorder {
    fn identity(&self) -> &PolicyIdentity {
        self.planner.identity()
    }

    fn decide(&mut self, question: &Question<'_>, costs: Arc<dyn CostModel>) -> Decision {
        if self.session.is_none() {
            return self.planner.decide(question, costs);
        }
        let costs = RecordingCostModel::new(costs);
        let decision = self.planner.decide(question, costs.clone());
        let offer = Offer::new(question);
        let recorded = match question.attempts {
            [] => RecordedQuestion::Decide { offer },
            attempts => RecordedQuestion::Recover { offer, attempts: attempts.to_vec() },
        };
        self.note(question, recorded, costs.take(), (&decision).into());
        decision
    }

    fn fallback(&mut self, question: &Question<'_>, costs: &dyn CostModel) -> Option<Decision> {
        // No policy is asked, so there is nothing to replay.
        self.planner.fallback(question, costs)
    }

    fn learn(&mut self, question: &Question<'_>, plan: &Plan, outcome: &Outcome) -> LearnReport {
        let report = self.planner.learn(question, plan, outcome);
        if self.session.is_some() {
            let offer = Some(Offer::new(question));
            let recorded = RecordedQuestion::Learn { offer, plan: plan.clone(), measured: outcome.into() };
            self.note(question, recorded, HostAnswers::default(), report.clone().into());
        }
        report
    }
}
