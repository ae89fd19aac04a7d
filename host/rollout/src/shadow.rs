//! A shadow: a policy that is asked beside the incumbent and only compared. It runs on a thread of
//! its own, so that no job waits for it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::SystemTime,
};

use serde::Serialize;
use tilewright_plan::{Capabilities, CostModel, Device, Plan, Planner, Question, Request, Stage, UnderWay};

use crate::{Error, Result, revision::Revision};

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
    /// Mean of the incumbent's regrets so far.
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
pub(crate) struct ShadowQuestion {
    pub shadow: Arc<Shadow>,
    pub revision: Arc<Revision>,
    pub stage: Stage,
    pub request: Request,
    pub device: Device,
    pub capabilities: Capabilities,
    pub under_way: Option<UnderWay>,
    pub costs: Arc<dyn CostModel>,
    pub plan: Plan,
}

impl Shadow {
    /// The comparison of a shadow; `policy` is its name, known before the first question.
    pub fn facts_of(&self, policy: &str) -> ShadowFacts {
        ShadowFacts { policy: policy.into(), ..self.lock().clone() }
    }

    fn lock(&self) -> MutexGuard<'_, ShadowFacts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
pub(crate) struct ShadowQueue(SyncSender<ShadowQuestion>);

impl ShadowQueue {
    /// Starts the thread; it ends when this is dropped.
    pub fn start() -> Result<Self> {
        let (sender, receiver) = sync_channel(WAITING);
        let started = thread::Builder::new().name("shadows".into()).spawn(move || think(&receiver));
        started.map_err(|source| Error::Storage { path: "shadows".into(), verb: "started", source })?;
        Ok(Self(sender))
    }

    /// Queues a question without waiting.
    pub fn ask(&self, asked: ShadowQuestion) {
        if let Err(TrySendError::Full(asked) | TrySendError::Disconnected(asked)) = self.0.try_send(asked) {
            asked.shadow.of(&asked.revision).left_out += 1;
        }
    }
}

fn think(questions: &Receiver<ShadowQuestion>) {
    for ShadowQuestion { shadow, revision, stage, request, device, capabilities, under_way, costs, plan } in questions {
        let question = Question::new(stage, &request, &device, &capabilities).going_on(under_way.as_ref());
        let decision = revision.instance().planner().decide(&question, costs.clone());
        let seconds = |plan: &Plan| costs.estimate_one(plan).ok().map(|cost| cost.elapsed.as_secs_f64());
        let mut known = shadow.of(&revision);
        known.asked += 1;
        if decision.fallback.is_some() {
            known.failed += 1;
            continue;
        }
        known.agreed += u64::from(decision.plan.is_same_work(&plan));
        let (Some(incumbents), Some(own)) = (seconds(&plan), seconds(&decision.plan)) else {
            known.failed += 1;
            continue;
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
            let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
            known.regrets.push_back(Regret { time, incumbent: incumbent / count, shadow: shadow / count });
            if known.regrets.len() > KEPT {
                known.regrets.pop_front();
            }
        }
    }
}
