//! The calls of a policy in full: the inputs of each, the host's answers to its questions, and its
//! reply. `--record full` adds them to a record, so that the decisions can be made again from the
//! record alone. Sizes are bytes, times whole nanoseconds: nothing is rounded.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Attempt, Cost, DenoiseCost, DenoiseOutcome, Device, Fallback, Outcome, Question, Stage, TextCost, TextOutcome,
    Trial, UnderWay, Vae, Work, exact,
};

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

/// A [`Cost`], exact to the bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExactCost {
    /// The highest memory use, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Bytes of weights in the peak: 0 if the limit does not count them.
    #[serde(default)]
    pub weights_bytes: u64,
    /// Time of the work without loading, in nanoseconds.
    pub elapsed_ns: u64,
    /// Tiles in all.
    pub tiles: u32,
    /// Distinct tensor shapes.
    pub shapes: u32,
    /// Output computed over output kept, as text: JSON's numbers have no infinity, and some readers
    /// drop the last digit.
    #[serde(with = "exact")]
    #[schemars(with = "String")]
    pub rework: f64,
}

/// A [`DenoiseCost`], exact to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExactDenoiseCost {
    /// The highest memory use beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights that are held at once.
    pub weights_bytes: u64,
    /// Bytes of weights that come to the device again in each step.
    pub moved_bytes: u64,
    /// Time of a step, in nanoseconds.
    pub step_ns: u64,
}

/// A [`TextCost`], exact to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExactTextCost {
    /// Time of all texts without loading, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time of loading, in nanoseconds.
    pub load_ns: u64,
    /// The highest use of the device's memory beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights in the device's memory.
    pub weights_bytes: u64,
    /// The highest use of the host's memory beside a device of its own, in bytes.
    pub host_bytes: u64,
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

/// The part of an [`Outcome`] that policies get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Time of the work that succeeded, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time of loading, in nanoseconds.
    #[serde(default)]
    pub load_ns: u64,
    /// The highest memory use, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Bytes of weights in the peak: 0 if the limit does not count them.
    #[serde(default)]
    pub weights_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
}

/// The part of a [`DenoiseOutcome`] that policies get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DenoiseMeasured {
    /// Time of all steps without loading, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time of loading, in nanoseconds.
    #[serde(default)]
    pub load_ns: u64,
    /// Mean time of a step, in nanoseconds.
    pub step_ns: u64,
    /// The highest memory use beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights that were held at once.
    pub weights_bytes: u64,
    /// Bytes of weights that came to the device again, in all steps.
    pub moved_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
}

/// The part of a [`TextOutcome`] that policies get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TextMeasured {
    /// Time of all texts without loading, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time of loading, in nanoseconds.
    pub load_ns: u64,
    /// The highest use of the device's memory beside the weights, in bytes.
    pub peak_bytes: u64,
    /// Bytes of weights in the device's memory.
    pub weights_bytes: u64,
    /// The highest use of the host's memory beside a device of its own, in bytes.
    pub host_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
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
                Self { $($field: plain.$field,)+ $($exact_time: nanoseconds(plain.$time),)+ }
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

mirrored!(
    ExactCost from Cost, Cost from &ExactCost:
    peak_bytes, weights_bytes, tiles, shapes, rework; elapsed_ns = elapsed
);
mirrored!(
    Measured from &Outcome, Outcome from Measured:
    peak_bytes, weights_bytes, attempts; elapsed_ns = elapsed, load_ns = load; Self::default()
);
mirrored!(
    ExactDenoiseCost from DenoiseCost, DenoiseCost from &ExactDenoiseCost:
    peak_bytes, weights_bytes, moved_bytes; step_ns = step
);
mirrored!(
    DenoiseMeasured from &DenoiseOutcome, DenoiseOutcome from DenoiseMeasured:
    peak_bytes, weights_bytes, moved_bytes, attempts;
    elapsed_ns = elapsed, load_ns = load, step_ns = step; Self::default()
);
mirrored!(
    ExactTextCost from TextCost, TextCost from &ExactTextCost:
    peak_bytes, weights_bytes, host_bytes; elapsed_ns = elapsed, load_ns = load
);
mirrored!(
    TextMeasured from &TextOutcome, TextOutcome from TextMeasured:
    peak_bytes, weights_bytes, host_bytes, attempts; elapsed_ns = elapsed, load_ns = load; Self::default()
);

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
    fn costs_come_back_to_the_bit() {
        for rework in [1.0, 1.0 / 3.0, f64::MAX, 5e-324, f64::INFINITY, 0.1 + 0.2] {
            for nanoseconds in [0, 1, 999_999_999_999_999_999, u64::MAX] {
                let elapsed = Duration::from_nanos(nanoseconds);
                let cost = Cost { peak_bytes: u64::MAX, weights_bytes: 1, elapsed, tiles: 3, shapes: 2, rework };
                let text = serde_json::to_string(&Price::<Vae>::new(Ok(cost))).unwrap();
                let price: Price = serde_json::from_str(&text).unwrap();
                let back = price.cost().unwrap();
                assert_eq!((back.rework.to_bits(), back.elapsed), (rework.to_bits(), elapsed), "{text}");
            }
        }
        let cost = ExactCost { peak_bytes: 1, weights_bytes: 0, elapsed_ns: 1, tiles: 1, shapes: 1, rework: f64::NAN };
        let text = serde_json::to_string(&cost).unwrap();
        assert!(serde_json::from_str::<ExactCost>(&text).unwrap().rework.is_nan());
        assert!(serde_json::from_str::<ExactCost>(&text.replace("NaN", "one")).is_err());
    }

    #[test]
    fn a_price_is_a_cost_or_an_error() {
        let text = r#"{"error":"no"}"#;
        assert_eq!(serde_json::from_str::<Price>(text).unwrap(), Price::Error("no".into()));
        assert_eq!(serde_json::to_string(&Price::<Vae>::Error("no".into())).unwrap(), text);
        assert!(serde_json::from_str::<Price>("{}").is_err());
    }
}
