//! Writes down what passes between the host and a planner. A planner itself, so that nobody else has to know that it listens.

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
    Attempt, Cost, Decision, Device, Exchange, Facts, Learnt, Offer, Outcome, Plan, Planner, PolicyIdentity, Request,
    Trial,
    exchange::{Call, Estimate, Heard, Question, Reply, Trials},
};

/// A planner that is listened to.
pub struct Recorder {
    planner: Box<dyn Planner + Send>,
    /// None where nothing is written down.
    session: Option<String>,
    next: u64,
    calls: Vec<Call>,
}

impl Recorder {
    /// Listens to a planner, or only passes everything on.
    pub fn new(planner: Box<dyn Planner + Send>, listens: bool) -> Self {
        Self { planner, session: listens.then(session), next: 0, calls: Vec::new() }
    }

    /// What was said since this was last asked: for the record that is about to be written. None where nobody listened.
    pub fn take(&mut self) -> Option<Exchange> {
        let session = self.session.clone()?;
        Some(Exchange { session, calls: mem::take(&mut self.calls) })
    }

    fn note(&mut self, request: &Request, device: &Device, question: Question, heard: Heard, reply: Reply) {
        let (request, device) = (request.clone(), device.clone());
        self.calls.push(Call { sequence: self.next, request, device, question, heard, reply });
        self.next += 1;
    }
}

/// Names a session: no two of a machine's are called the same, nor in all likelihood of two machines'.
fn session() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("{:x}-{:x}-{:x}", now.as_nanos(), process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Facts that note what was asked.
struct Overheard {
    facts: Arc<dyn Facts>,
    heard: Mutex<(Heard, HashSet<Plan>)>,
}

impl Overheard {
    fn new(facts: Arc<dyn Facts>) -> Arc<Self> {
        Arc::new(Self { facts, heard: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, (Heard, HashSet<Plan>)> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Heard {
        mem::take(&mut self.lock().0)
    }
}

impl Facts for Overheard {
    fn estimate(&self, plan: &Plan) -> Result<Cost, String> {
        let cost = self.facts.estimate(plan);
        let (heard, known) = &mut *self.lock();
        if known.insert(plan.clone()) {
            heard.estimates.push(Estimate { plan: plan.clone(), price: cost.clone().into() });
        }
        cost
    }

    fn trials(&self, most: u32) -> Vec<Trial> {
        let trials = self.facts.trials(most);
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

impl From<Learnt> for Reply {
    fn from(learnt: Learnt) -> Self {
        Self { answer: None, plan: None, adjusted: Vec::new(), fallback: learnt.failure, fuel: learnt.fuel }
    }
}

impl Planner for Recorder {
    fn identity(&self) -> &PolicyIdentity {
        self.planner.identity()
    }

    fn decide(&mut self, request: &Request, device: &Device, offer: &Offer, facts: Arc<dyn Facts>) -> Decision {
        if self.session.is_none() {
            return self.planner.decide(request, device, offer, facts);
        }
        let facts = Overheard::new(facts);
        let decision = self.planner.decide(request, device, offer, facts.clone());
        self.note(request, device, Question::Decide { offer: offer.clone() }, facts.take(), (&decision).into());
        decision
    }

    fn recover(
        &mut self,
        request: &Request,
        device: &Device,
        offer: &Offer,
        facts: Arc<dyn Facts>,
        attempts: &[Attempt],
    ) -> Decision {
        if self.session.is_none() {
            return self.planner.recover(request, device, offer, facts, attempts);
        }
        let facts = Overheard::new(facts);
        let decision = self.planner.recover(request, device, offer, facts.clone(), attempts);
        let question = Question::Recover { offer: offer.clone(), attempts: attempts.to_vec() };
        self.note(request, device, question, facts.take(), (&decision).into());
        decision
    }

    fn stand_in(
        &mut self,
        request: &Request,
        device: &Device,
        offer: &Offer,
        facts: Arc<dyn Facts>,
        attempts: &[Attempt],
    ) -> Option<Decision> {
        // No policy is asked, so there is nothing to replay.
        self.planner.stand_in(request, device, offer, facts, attempts)
    }

    fn learn(&mut self, request: &Request, device: &Device, plan: &Plan, outcome: &Outcome) {
        self.planner.learn(request, device, plan, outcome);
        if self.session.is_some() {
            let question = Question::Learn { plan: plan.clone(), measured: outcome.into() };
            let learnt = self.planner.learnt();
            self.note(request, device, question, Heard::default(), learnt.into());
        }
    }

    fn learnt(&self) -> Learnt {
        self.planner.learnt()
    }
}
