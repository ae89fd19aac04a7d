//! The calls of a policy in full: the inputs of each, the host's answers to its questions, and its
//! reply. `--record full` adds them to a record, so that the decisions can be made again from the
//! record alone. Sizes are bytes, times whole nanoseconds: nothing is rounded.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Attempt, Device, Fallback, Question, Stage, Trial, UnderWay, Vae, Work};

/// The calls of one policy's session that belong to one record.
///
/// A policy remembers from call to call. So a replay makes all calls of a session in one instance,
/// in the order of their numbers, over all records that they are spread over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "Exchange")]
pub struct Exchange<W: Work = Vae> {
    /// Identifies one policy in use by one process.
    pub session: String,
    /// In order.
    pub calls: Vec<Call<W>>,
}

/// One call of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "Call")]
pub struct Call<W: Work = Vae> {
    /// Counted over the session, from 0.
    pub sequence: u64,
    /// The stage; records of earlier programs name it in the request's hints only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// The request as the host put it. A guest of contract 0.1 also gets the offer's hints that the
    /// request lacks.
    pub request: W::Request,
    /// The device that the work runs on.
    pub device: Device,
    /// The function that was called, with its other inputs.
    pub question: RecordedQuestion<W>,
    /// The host's answers to the policy's questions during the call.
    #[serde(default, skip_serializing_if = "HostAnswers::is_empty")]
    pub heard: HostAnswers<W>,
    /// The result of the call.
    pub reply: Reply<W>,
}

/// The function that a policy is called for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[serde(bound = "")]
#[schemars(rename = "Question")]
pub enum RecordedQuestion<W: Work = Vae> {
    /// A plan for the request.
    Decide {
        /// The plans that can be carried out.
        offer: Offer<W>,
    },
    /// A plan for the request after failures.
    Recover {
        /// The plans that can be carried out.
        offer: Offer<W>,
        /// The failed attempts, the latest last.
        attempts: Vec<Attempt<W>>,
    },
    /// The outcome of a plan: nothing is answered.
    Learn {
        /// The plans that could be carried out; records of earlier programs lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offer: Option<Offer<W>>,
        /// The plan that was carried out.
        plan: W::Plan,
        /// The measured outcome.
        measured: W::Measured,
    },
}

/// The plans that can be carried out, and the clip under way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "Offer")]
pub struct Offer<W: Work = Vae> {
    /// The limits of plans.
    #[serde(flatten)]
    pub capabilities: W::Capabilities,
    /// The plan of work of which a part is done; null before that, and for pictures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<W::Plan>,
    /// Delivered frames of a clip, or finished steps of a sample; records of 0.2 have
    /// `frames_done`, and earlier ones have the number in the request's hints.
    #[serde(default, alias = "frames_done", skip_serializing_if = "Option::is_none")]
    pub done: Option<u32>,
}

impl<W: Work> Offer<W> {
    /// The part of a question that is recorded this way.
    pub fn new(question: &Question<'_, W>) -> Self {
        Self {
            capabilities: question.capabilities.clone(),
            running: question.under_way.map(|under_way| under_way.plan.clone()),
            done: question.under_way.map(|under_way| under_way.done),
        }
    }
}

/// The host's answers to a policy's questions. An answer does not change within a call, so each is
/// recorded once, in the order of first asking.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "HostAnswers")]
pub struct HostAnswers<W: Work = Vae> {
    /// Prices of plans. The plans are as they were priced: after checking, and without those that
    /// make no sense.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub estimates: Vec<Estimate<W>>,
    /// Earlier measurements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<Trials<W>>,
}

impl<W: Work> HostAnswers<W> {
    /// True if nothing was asked.
    pub const fn is_empty(&self) -> bool {
        self.estimates.is_empty() && self.trials.is_empty()
    }
}

/// A plan and its price.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "Estimate")]
pub struct Estimate<W: Work = Vae> {
    /// The plan as it was priced.
    pub plan: W::Plan,
    /// The price, or the reason why there is none.
    #[serde(flatten)]
    pub price: Price<W>,
}

/// A price, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[serde(bound = "")]
#[schemars(rename = "Price")]
pub enum Price<W: Work = Vae> {
    /// The expected cost.
    Cost(W::ExactCost),
    /// The reason why the plan can't be carried out, for the policy.
    Error(String),
}

/// An answer to a question for earlier measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "Trials")]
pub struct Trials<W: Work = Vae> {
    /// The most trials asked for.
    pub most: u32,
    /// Newest first.
    pub trials: Vec<ExactTrial<W>>,
}

/// The part of a [`Trial`] that policies get.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "ExactTrial")]
pub struct ExactTrial<W: Work = Vae> {
    /// The plan that was carried out.
    pub plan: W::Plan,
    /// The measured outcome.
    #[serde(flatten)]
    pub measured: W::Measured,
}

/// The result of a call. A call of `learn` has only the fuel and the reason of a failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "Reply")]
pub struct Reply<W: Work = Vae> {
    /// The policy's answer; null if it gave none.
    pub answer: Option<W::Plan>,
    /// The plan after checking; null for `learn`.
    pub plan: Option<W::Plan>,
    /// The changes made to the answer.
    pub adjusted: Vec<String>,
    /// The reason why there is no usable answer, or why the policy did not learn.
    pub fallback: Option<Fallback>,
    /// Fuel that the guest used.
    pub fuel: u64,
}

/// The hint that held the number of delivered frames before it had a field. Contract 0.1 still has
/// it.
const FRAMES_DONE: &str = "clip.done";

/// Nanoseconds as the contract has them: they saturate after 584 years.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes the conversions between a type and its exact form, in which times are nanoseconds. Fields
/// that the exact form lacks are those of `$rest`.
macro_rules! mirrored {
    (
        $exact:ident from $plain:ty, $back:ident from $mirror:ty:
        $($field:ident),+; $($exact_time:ident = $time:ident),+ $(; $rest:expr)?
    ) => {
        impl From<$plain> for $exact {
            fn from(plain: $plain) -> Self {
                Self { $($field: plain.$field,)+ $($exact_time: $crate::exchange::nanoseconds(plain.$time),)+ }
            }
        }

        impl From<$mirror> for $back {
            fn from(exact: $mirror) -> Self {
                Self {
                    $($field: exact.$field,)+
                    $($time: Duration::from_nanos(exact.$exact_time),)+
                    $(..$rest)?
                }
            }
        }
    };
}

pub(crate) use mirrored;

impl<W: Work> Price<W> {
    /// As a cost model gave it.
    pub fn new(cost: Result<W::Cost, String>) -> Self {
        match cost {
            Ok(cost) => Self::Cost(cost.into()),
            Err(reason) => Self::Error(reason),
        }
    }

    /// As a cost model would give it.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn cost(&self) -> Result<W::Cost, String> {
        match self {
            Price::Cost(cost) => Ok(cost.into()),
            Price::Error(reason) => Err(reason.clone()),
        }
    }
}

impl<W: Work> ExactTrial<W> {
    /// The part of a trial that policies get.
    pub fn new(trial: &Trial<W>) -> Self {
        Self { plan: trial.plan.clone(), measured: (&trial.outcome).into() }
    }

    /// As a cost model would give it.
    pub fn trial(&self) -> Trial<W> {
        Trial { plan: self.plan.clone(), outcome: self.measured.into() }
    }
}

impl<W: Work> Call<W> {
    /// The stage of the call.
    pub fn stage(&self) -> Stage {
        self.stage.unwrap_or_else(|| Stage::of_request::<W>(&self.request))
    }

    /// The clip or sample that was under way.
    pub fn under_way(&self) -> Option<UnderWay<W>> {
        let offer = self.question.offer()?;
        let told = || W::hints(&self.request).iter().find(|hint| hint.name == FRAMES_DONE)?.value.parse().ok();
        let done = offer.done.or_else(told).unwrap_or(0);
        offer.running.clone().map(|plan| UnderWay { done, plan })
    }
}

impl<W: Work> RecordedQuestion<W> {
    /// The name of the function that was called.
    pub const fn name(&self) -> &'static str {
        match self {
            RecordedQuestion::Decide { .. } => "decide",
            RecordedQuestion::Recover { .. } => "recover",
            RecordedQuestion::Learn { .. } => "learn",
        }
    }

    /// The plans that could be carried out. A call of `learn` may lack this: it has no plan to
    /// check.
    pub const fn offer(&self) -> Option<&Offer<W>> {
        match self {
            RecordedQuestion::Decide { offer } | RecordedQuestion::Recover { offer, .. } => Some(offer),
            RecordedQuestion::Learn { offer, .. } => offer.as_ref(),
        }
    }

    /// The attempts that had failed.
    pub fn attempts(&self) -> &[Attempt<W>] {
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
    fn a_price_is_a_cost_or_an_error() {
        let text = r#"{"error":"no"}"#;
        assert_eq!(serde_json::from_str::<Price>(text).unwrap(), Price::Error("no".into()));
        assert_eq!(serde_json::to_string(&Price::<Vae>::Error("no".into())).unwrap(), text);
        assert!(serde_json::from_str::<Price>("{}").is_err());
    }
}
