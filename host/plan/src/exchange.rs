//! Everything that a policy was told, what it heard when it asked, and what it answered: what `--record full` adds to a record, so that
//! the same decisions can be made again from the record alone. Sizes are bytes, times whole nanoseconds: nothing is rounded.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Attempt, Capabilities, Cost, Device, Fallback, Outcome, Plan, PoolStatistics, Question, Request, Stage, Trial,
    UnderWay, exact,
};

/// The calls of one policy at work that belong to one record.
///
/// A policy remembers from call to call, and so all calls of a session are made again in one instance, in the order of their numbers, over
/// as many records as they are spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Exchange {
    /// Tells one policy at work, of one process, from every other.
    pub session: String,
    /// In order.
    pub calls: Vec<Call>,
}

/// One call of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Call {
    /// Counted over the session, from 0.
    pub sequence: u64,
    /// The kind of work; records of earlier programs name it in the request's hints only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// What was asked for, as the host put it. A guest of contract 0.1 gets the offer's hints as well, where the request lacks them.
    pub request: Request,
    /// What it runs on.
    pub device: Device,
    /// What the policy was called for.
    pub question: RecordedQuestion,
    /// What the host answered while the policy thought.
    #[serde(default, skip_serializing_if = "HostAnswers::is_empty")]
    pub heard: HostAnswers,
    /// What came of it.
    pub reply: Reply,
}

/// What a policy is called for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[schemars(rename = "Question")]
pub enum RecordedQuestion {
    /// How the request is run.
    Decide {
        /// What can be carried out.
        offer: Offer,
    },
    /// The same, after failures.
    Recover {
        /// What can be carried out.
        offer: Offer,
        /// In order, the latest last.
        attempts: Vec<Attempt>,
    },
    /// Nothing: it is told what became of a plan.
    Learn {
        /// What could be carried out; records of earlier programs lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offer: Option<Offer>,
        /// How it was run.
        plan: Plan,
        /// What was measured.
        measured: Measured,
    },
}

/// What can be carried out, and the clip that is under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Offer {
    /// What can be carried out.
    #[serde(flatten)]
    pub capabilities: Capabilities,
    /// What a clip is under way with, some of its frames delivered; none before that, and for pictures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<Plan>,
    /// How many; records of earlier programs have the number in the request's hints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames_done: Option<u32>,
}

impl Offer {
    /// The part of a question that is recorded so.
    pub fn new(question: &Question<'_>) -> Self {
        Self {
            capabilities: question.capabilities.clone(),
            running: question.under_way.map(|under_way| under_way.plan.clone()),
            frames_done: question.under_way.map(|under_way| under_way.frames_done),
        }
    }
}

/// What the host said when it was asked. Answers don't change within a call, so that each stands here once, in the order of first asking.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Heard")]
pub struct HostAnswers {
    /// What plans would cost. The plans are as they were priced: after checking, and without those that make no sense.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub estimates: Vec<Estimate>,
    /// What was measured before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<Trials>,
}

impl HostAnswers {
    /// Nothing was asked.
    pub const fn is_empty(&self) -> bool {
        self.estimates.is_empty() && self.trials.is_empty()
    }
}

/// A plan and its price.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// As it was priced.
    pub plan: Plan,
    /// The price, or why there is none.
    #[serde(flatten)]
    pub price: Price,
}

/// A price, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Price {
    /// What it would cost.
    Cost(ExactCost),
    /// Why it can't be carried out, for the policy.
    Error(String),
}

/// A [`Cost`], to the bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExactCost {
    /// The most held at once, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Time of the work, loading aside, in nanoseconds.
    pub elapsed_ns: u64,
    /// Tiles in all.
    pub tiles: u32,
    /// Distinct tensor shapes.
    pub shapes: u32,
    /// Output computed over output kept, as text: JSON's numbers have no infinity, and not every reader takes the last digit.
    #[serde(with = "exact")]
    #[schemars(with = "String")]
    pub rework: f64,
}

/// An answer about what was measured before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trials {
    /// How many were asked for at most.
    pub most: u32,
    /// Newest first.
    pub trials: Vec<ExactTrial>,
}

/// A [`Trial`], as far as policies are told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExactTrial {
    /// How it was run.
    pub plan: Plan,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
}

/// An [`Outcome`], as far as policies are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Time of the work that succeeded, in nanoseconds.
    pub elapsed_ns: u64,
    /// The most held at once, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
}

/// What a call came to. Of `learn` there is the fuel, and why it failed where it did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reply {
    /// What the policy answered; null where it did not.
    pub answer: Option<Plan>,
    /// What the host made of it; null for `learn`.
    pub plan: Option<Plan>,
    /// What was changed in the answer.
    pub adjusted: Vec<String>,
    /// Why there is no usable answer, or why it did not learn.
    pub fallback: Option<Fallback>,
    /// Fuel that the guest used.
    pub fuel: u64,
}

/// The hint that had the number of delivered frames before it was recorded; contract 0.1 still tells it so.
const FRAMES_DONE: &str = "clip.done";

/// Saturates after 584 years, as the contract does.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl From<Cost> for ExactCost {
    fn from(cost: Cost) -> Self {
        let Cost { peak_bytes, elapsed, tiles, shapes, rework } = cost;
        Self { peak_bytes, elapsed_ns: nanoseconds(elapsed), tiles, shapes, rework }
    }
}

impl From<&ExactCost> for Cost {
    fn from(cost: &ExactCost) -> Self {
        let &ExactCost { peak_bytes, elapsed_ns, tiles, shapes, rework } = cost;
        Self { peak_bytes, elapsed: Duration::from_nanos(elapsed_ns), tiles, shapes, rework }
    }
}

impl From<Result<Cost, String>> for Price {
    fn from(cost: Result<Cost, String>) -> Self {
        match cost {
            Ok(cost) => Self::Cost(cost.into()),
            Err(reason) => Self::Error(reason),
        }
    }
}

impl From<&Price> for Result<Cost, String> {
    fn from(price: &Price) -> Self {
        match price {
            Price::Cost(cost) => Ok(cost.into()),
            Price::Error(reason) => Err(reason.clone()),
        }
    }
}

impl From<&Outcome> for Measured {
    fn from(outcome: &Outcome) -> Self {
        Self { elapsed_ns: nanoseconds(outcome.elapsed), peak_bytes: outcome.peak_bytes, attempts: outcome.attempts }
    }
}

/// What policies are not told of is zero.
impl From<Measured> for Outcome {
    fn from(measured: Measured) -> Self {
        let Measured { elapsed_ns, peak_bytes, attempts } = measured;
        let pool = PoolStatistics::default();
        Self { elapsed: Duration::from_nanos(elapsed_ns), load: Duration::ZERO, peak_bytes, attempts, pool }
    }
}

impl From<&Trial> for ExactTrial {
    fn from(trial: &Trial) -> Self {
        Self { plan: trial.plan.clone(), measured: (&trial.outcome).into() }
    }
}

impl From<&ExactTrial> for Trial {
    fn from(trial: &ExactTrial) -> Self {
        Self { plan: trial.plan.clone(), outcome: trial.measured.into() }
    }
}

impl Call {
    /// The kind of work.
    pub fn stage(&self) -> Stage {
        self.stage.unwrap_or_else(|| Stage::of_hints(&self.request.hints))
    }

    /// The clip that was under way.
    pub fn under_way(&self) -> Option<UnderWay> {
        let offer = self.question.offer()?;
        let told = || self.request.hints.iter().find(|hint| hint.name == FRAMES_DONE)?.value.parse().ok();
        let frames_done = offer.frames_done.or_else(told).unwrap_or(0);
        offer.running.clone().map(|plan| UnderWay { frames_done, plan })
    }
}

impl RecordedQuestion {
    /// The name of the function that was called.
    pub const fn name(&self) -> &'static str {
        match self {
            RecordedQuestion::Decide { .. } => "decide",
            RecordedQuestion::Recover { .. } => "recover",
            RecordedQuestion::Learn { .. } => "learn",
        }
    }

    /// What could be carried out. Nothing is carried out for `learn`, and so calls of it may lack this.
    pub const fn offer(&self) -> Option<&Offer> {
        match self {
            RecordedQuestion::Decide { offer } | RecordedQuestion::Recover { offer, .. } => Some(offer),
            RecordedQuestion::Learn { offer, .. } => offer.as_ref(),
        }
    }

    /// The attempts that had failed.
    pub fn attempts(&self) -> &[Attempt] {
        match self {
            RecordedQuestion::Recover { attempts, .. } => attempts,
            RecordedQuestion::Decide { .. } | RecordedQuestion::Learn { .. } => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_come_back_to_the_bit() {
        for rework in [1.0, 1.0 / 3.0, f64::MAX, 5e-324, f64::INFINITY, 0.1 + 0.2] {
            for nanoseconds in [0, 1, 999_999_999_999_999_999, u64::MAX] {
                let elapsed = Duration::from_nanos(nanoseconds);
                let cost = Cost { peak_bytes: u64::MAX, elapsed, tiles: 3, shapes: 2, rework };
                let text = serde_json::to_string(&Price::from(Ok(cost))).unwrap();
                let price: Price = serde_json::from_str(&text).unwrap();
                let back = Result::<Cost, String>::from(&price).unwrap();
                assert_eq!((back.rework.to_bits(), back.elapsed), (rework.to_bits(), elapsed), "{text}");
            }
        }
        let cost = ExactCost { peak_bytes: 1, elapsed_ns: 1, tiles: 1, shapes: 1, rework: f64::NAN };
        let text = serde_json::to_string(&cost).unwrap();
        assert!(serde_json::from_str::<ExactCost>(&text).unwrap().rework.is_nan());
        assert!(serde_json::from_str::<ExactCost>(&text.replace("NaN", "one")).is_err());
    }

    #[test]
    fn a_price_is_a_cost_or_an_error() {
        let text = r#"{"error":"no"}"#;
        assert_eq!(serde_json::from_str::<Price>(text).unwrap(), Price::Error("no".into()));
        assert_eq!(serde_json::to_string(&Price::Error("no".into())).unwrap(), text);
        assert!(serde_json::from_str::<Price>("{}").is_err());
    }
}
