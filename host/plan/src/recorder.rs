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
    CostModel, Decision, Exchange, LearnReport, Planner, PolicyIdentity, Question, Trial, Vae, Work,
    exchange::{Call, Estimate, ExactTrial, HostAnswers, Offer, Price, RecordedQuestion, Reply, Trials},
};

/// A planner that is listened to.
pub struct Recorder<W: Work = Vae> {
    planner: Box<dyn Planner<W> + Send>,
    /// `None` if nothing is recorded.
    session: Option<String>,
    next: u64,
    calls: Vec<Call<W>>,
}

/// A planner whose calls are recorded.
pub trait Recorded<W: Work = Vae>: Planner<W> {
    /// The calls since the last time, as [`Recorder::take`].
    fn take(&mut self) -> Option<Exchange<W>>;
}

impl<W: Work> Recorded<W> for Recorder<W> {
    fn take(&mut self) -> Option<Exchange<W>> {
        Self::take(self)
    }
}

impl<W: Work> Recorder<W> {
    /// Listens to a planner, or only passes everything on.
    pub fn new(planner: Box<dyn Planner<W> + Send>, listens: bool) -> Self {
        Self { planner, session: listens.then(session), next: 0, calls: Vec::new() }
    }

    /// The calls since the last time, for the record that is about to be written. `None` if the
    /// recorder only passes calls on.
    pub fn take(&mut self) -> Option<Exchange<W>> {
        let session = self.session.clone()?;
        Some(Exchange { session, calls: mem::take(&mut self.calls) })
    }

    fn note(
        &mut self,
        question: &Question<'_, W>,
        recorded: RecordedQuestion<W>,
        heard: HostAnswers<W>,
        reply: Reply<W>,
    ) {
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
struct RecordingCostModel<W: Work> {
    costs: Arc<dyn CostModel<W>>,
    heard: Mutex<Heard<W>>,
}

/// The answers, and the plans that are priced among them.
type Heard<W> = (HostAnswers<W>, HashSet<<W as Work>::Plan>);

impl<W: Work> RecordingCostModel<W> {
    fn new(costs: Arc<dyn CostModel<W>>) -> Arc<Self> {
        Arc::new(Self { costs, heard: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Heard<W>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> HostAnswers<W> {
        mem::take(&mut self.lock().0)
    }
}

impl<W: Work> CostModel<W> for RecordingCostModel<W> {
    fn estimate_one(&self, plan: &W::Plan) -> Result<W::Cost, String> {
        let cost = self.costs.estimate_one(plan);
        let (heard, known) = &mut *self.lock();
        if known.insert(plan.clone()) {
            heard.estimates.push(Estimate { plan: plan.clone(), price: Price::new(cost.clone()) });
        }
        cost
    }

    fn trials(&self, most: u32) -> Vec<Trial<W>> {
        let trials = self.costs.trials(most);
        let heard = &mut self.lock().0;
        if heard.trials.iter().all(|known| known.most != most) {
            heard.trials.push(Trials { most, trials: trials.iter().map(ExactTrial::new).collect() });
        }
        trials
    }
}

impl<W: Work> From<&Decision<W>> for Reply<W> {
    fn from(decision: &Decision<W>) -> Self {
        let Decision { answer, plan, adjusted, fallback, fuel, .. } = decision.clone();
        Self { answer, plan: Some(plan), adjusted, fallback, fuel }
    }
}

impl<W: Work> From<LearnReport> for Reply<W> {
    fn from(report: LearnReport) -> Self {
        Self { answer: None, plan: None, adjusted: Vec::new(), fallback: report.failure, fuel: report.fuel }
    }
}

impl<W: Work> Planner<W> for Recorder<W> {
    fn identity(&self) -> &PolicyIdentity {
        self.planner.identity()
    }

    fn decide(&mut self, question: &Question<'_, W>, costs: Arc<dyn CostModel<W>>) -> Decision<W> {
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

    fn fallback(&mut self, question: &Question<'_, W>, costs: &dyn CostModel<W>) -> Option<Decision<W>> {
        // No policy is asked, so there is nothing to replay.
        self.planner.fallback(question, costs)
    }

    fn learn(&mut self, question: &Question<'_, W>, plan: &W::Plan, outcome: &W::Outcome) -> LearnReport {
        let report = self.planner.learn(question, plan, outcome);
        if self.session.is_some() {
            let offer = Some(Offer::new(question));
            let recorded = RecordedQuestion::Learn { offer, plan: plan.clone(), measured: outcome.into() };
            self.note(question, recorded, HostAnswers::default(), report.clone().into());
        }
        report
    }
}
