//! A shadow: a policy that is asked beside the incumbent and only compared. It runs on a thread of
//! its own, so that no job waits for it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use serde::Serialize;
use tilewright_plan::{CostModel, Device, Planner, Question, Stage, UnderWay};

use crate::{
    Error, Result,
    revision::Revision,
    rollout::{lock, now},
    served::Served,
    tally::push_bounded,
};

/// Questions that wait for the shadows; further ones are counted and skipped.
const WAITING: usize = 64;

/// Points that are kept of a shadow's regret.
const KEPT: usize = 256;

/// One decision's mean regrets: the predicted time of each plan over that of the better one, less
/// one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Regret {
    /// The time of the decision, RFC 3339 in UTC.
    pub time: String,
    /// Mean of the incumbent's regrets so far.
    pub incumbent: f64,
    /// Mean of the shadow's regrets so far.
    pub shadow: f64,
}

/// The comparison of a shadow on a route.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ShadowFacts {
    /// The policy.
    pub policy: String,
    /// The revision that is compared; a new one starts the counts again. None before the first
    /// question.
    pub revision: Option<u64>,
    /// Decisions that it was asked for.
    pub asked: u64,
    /// Decisions in which it had the same plan.
    pub agreed: u64,
    /// Decisions in which it failed, or its plan can't be priced.
    pub failed: u64,
    /// Decisions that it was not asked for because it was busy.
    pub left_out: u64,
    /// Mean of the predicted time of the incumbent's plan over its own; above 1 if it is predicted
    /// to be faster. None before the first.
    pub predicted_gain: Option<f64>,
    /// Regrets of the last decisions.
    pub regrets: VecDeque<Regret>,
    #[serde(skip)]
    sums: Sums,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    compared: u64,
    gain: f64,
    incumbent: f64,
    shadow: f64,
}

/// The shadow of a route.
#[derive(Debug, Default)]
pub(crate) struct Shadow(Mutex<ShadowFacts>);

/// A question, and the incumbent's answer.
pub(crate) struct ShadowQuestion<W: Served> {
    pub shadow: Arc<Shadow>,
    pub revision: Arc<Revision>,
    pub stage: Stage,
    pub request: W::Request,
    pub device: Device,
    pub capabilities: W::Capabilities,
    pub under_way: Option<UnderWay<W>>,
    pub costs: Arc<dyn CostModel<W>>,
    pub plan: W::Plan,
}

/// A question of any kind of work, as a call that asks it.
type Asking = Box<dyn FnOnce() + Send>;

impl Shadow {
    /// The comparison of a shadow; `policy` is its name, known before the first question.
    pub fn facts_of(&self, policy: &str) -> ShadowFacts {
        ShadowFacts { policy: policy.into(), ..self.lock().clone() }
    }

    fn lock(&self) -> MutexGuard<'_, ShadowFacts> {
        lock(&self.0)
    }

    /// The counts, started again if the revision is another one.
    fn of(&self, revision: &Revision) -> MutexGuard<'_, ShadowFacts> {
        let mut facts = self.lock();
        let (policy, number) = (&revision.policy, Some(revision.number));
        if (&facts.policy, facts.revision) != (policy, number) {
            *facts = ShadowFacts { policy: policy.clone(), revision: number, ..ShadowFacts::default() };
        }
        facts
    }
}

/// The queue of questions to the shadows.
#[derive(Debug)]
pub(crate) struct ShadowQueue(SyncSender<Asking>);

impl ShadowQueue {
    /// Starts the thread; it ends when this is dropped.
    pub fn start() -> Result<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        let started = thread::Builder::new().name("shadows".into()).spawn(move || think(&receiver));
        started.map_err(|source| Error::Storage { path: "shadows".into(), verb: "started", source })?;
        Ok(Self(sender))
    }

    /// Queues a question without waiting.
    pub fn ask<W: Served>(&self, asked: ShadowQuestion<W>) {
        let (shadow, revision) = (asked.shadow.clone(), asked.revision.clone());
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.0.try_send(Box::new(|| asked.think()))
        {
            shadow.of(&revision).left_out += 1;
        }
    }
}

fn think(questions: &Receiver<Asking>) {
    for ask in questions {
        ask();
    }
}

impl<W: Served> ShadowQuestion<W> {
    /// Asks the shadow, and compares its plan with the incumbent's.
    fn think(self) {
        let Self { shadow, revision, stage, request, device, capabilities, under_way, costs, plan } = self;
        let question = Question::first(stage, &request, &device, &capabilities).going_on(under_way.as_ref());
        let decision = revision.instance::<W>().planner().decide(&question, costs.clone());
        let seconds = |plan: &W::Plan| costs.estimate_one(plan).ok().map(|cost| W::priced(&cost)[0]);
        let mut known = shadow.of(&revision);
        known.asked += 1;
        if decision.fallback.is_some() {
            known.failed += 1;
            return;
        }
        known.agreed += u64::from(W::is_same_work(&decision.plan, &plan));
        let (Some(incumbents), Some(own)) = (seconds(&plan), seconds(&decision.plan)) else {
            known.failed += 1;
            return;
        };
        let best = incumbents.min(own);
        if best > 0.0 {
            let sums = &mut known.sums;
            sums.compared += 1;
            sums.gain += incumbents / own;
            sums.incumbent += incumbents / best - 1.0;
            sums.shadow += own / best - 1.0;
            let Sums { compared, gain, incumbent, shadow } = *sums;
            let count = compared as f64;
            known.predicted_gain = Some(gain / count);
            let regret = Regret { time: now(), incumbent: incumbent / count, shadow: shadow / count };
            push_bounded(&mut known.regrets, regret, KEPT);
        }
    }
}
