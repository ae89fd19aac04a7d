//! The kinds of work that policies decide. Each has types of its own and a pair of the contract's
//! interfaces; everything else is written once for all of them.

use std::{array, fmt, hash::Hash, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    Capabilities, Cost, DenoiseCapabilities, DenoiseCost, DenoiseOutcome, DenoisePlan, DenoiseRequest, Dtype, Hint,
    Objective, Options, Outcome, Plan, PlanOption, Precision, Record, Request, Stage, TextCapabilities, TextCost,
    TextOutcome, TextPlan, TextRequest,
    exchange::{DenoiseMeasured, ExactCost, ExactDenoiseCost, ExactTextCost, Measured, TextMeasured},
    records::{AnyRecord, MOST_EXTENT, MOST_HINTS, MOST_TEXTS},
};

/// Facts that are compared, recorded and sent to other threads.
pub trait Data:
    Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

impl<T> Data for T where
    T: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
}

/// A kind of work.
pub trait Work: Data + Copy + Default + Eq + Hash + VariantOf<AnyRecord, Variant = Box<Record<Self>>> {
    /// The stages that it is done in, the usual one first.
    const STAGES: &'static [Stage];

    /// The work itself.
    type Request: Data;
    /// The plans that can be carried out.
    type Capabilities: Data + Default;
    /// The way in which work will be run.
    type Plan: Data + Eq + Hash + fmt::Display + Into<AnyPlan>;
    /// The expected cost of a plan.
    type Cost: Data + Copy + for<'a> From<&'a Self::ExactCost>;
    /// The measurements of a plan that was carried out.
    type Outcome: Data + Copy + From<Self::Measured>;
    /// A cost, exact to the bit, for replay.
    type ExactCost: Data + From<Self::Cost>;
    /// The part of an outcome that policies get.
    type Measured: Data + Copy + for<'a> From<&'a Self::Outcome>;

    /// The types that a plan computes in.
    fn precision(plan: &Self::Plan) -> Precision;

    /// A plan's reason, for people.
    fn reason(plan: &Self::Plan) -> &str;

    /// The same, to be changed.
    fn reason_mut(plan: &mut Self::Plan) -> &mut String;

    /// The options that a plan sets.
    fn options(plan: &Self::Plan) -> &Options;

    /// The same, to be changed.
    fn options_mut(plan: &mut Self::Plan) -> &mut Options;

    /// The options that are offered.
    fn offered_options(capabilities: &Self::Capabilities) -> &[PlanOption];

    /// The same plan without its reason.
    fn without_reason(plan: &Self::Plan) -> Self::Plan {
        let mut plan = plan.clone();
        Self::reason_mut(&mut plan).clear();
        plan
    }

    /// True if both are carried out in the same way: they differ in their reasons at most.
    fn is_same_work(one: &Self::Plan, other: &Self::Plan) -> bool {
        Self::without_reason(one) == Self::without_reason(other)
    }

    /// True if an attempt goes on where a failed one ended, so that the result is of both plans.
    fn is_continued(request: &Self::Request) -> bool;

    /// The hints of a request, in which earlier programs wrote what has fields now.
    fn hints(_request: &Self::Request) -> &[Hint] {
        &[]
    }

    /// The capabilities in a request's hints, if all of them are there.
    fn capabilities_of_hints(_hints: &[Hint]) -> Option<Self::Capabilities> {
        None
    }

    /// The types that are offered.
    fn dtypes(capabilities: &Self::Capabilities) -> &[Dtype];

    /// True if two requests are of one model.
    fn is_same_model(one: &Self::Request, other: &Self::Request) -> bool;

    /// The model's family.
    fn family(request: &Self::Request) -> &str;

    /// Samples, frames, height and width; of texts their number, 1, 1 and the tokens of the
    /// longest.
    fn extents(request: &Self::Request) -> [u32; 4];

    /// The most bytes to hold at once.
    fn memory_limit(request: &Self::Request) -> u64;

    /// The aim of a decision.
    fn objective(request: &Self::Request) -> Objective;

    /// The same request with another limit and another aim.
    fn limited(request: &Self::Request, memory_limit: u64, objective: Objective) -> Self::Request;

    /// The time of a price that plans are compared by: of a sample that of a step.
    fn time(cost: &Self::Cost) -> Duration;

    /// Bytes of a price that the limit is compared with.
    fn held_bytes(cost: &Self::Cost) -> u64;

    /// Time in seconds and memory in bytes of a price, as far as measurements correct them: the
    /// memory of samples and texts leaves weights out.
    fn priced(cost: &Self::Cost) -> [f64; 2];

    /// The price with the time and memory of [`Self::priced`] times these factors. `None` if that
    /// is no time.
    fn corrected(cost: Self::Cost, factors: [f64; 2]) -> Option<Self::Cost>;

    /// The time of an outcome from the request to the result, without loading weights.
    fn elapsed(outcome: &Self::Outcome) -> Duration;

    /// Bytes of an outcome that the limit is compared with.
    fn measured_bytes(outcome: &Self::Outcome) -> u64;

    /// Time in seconds and memory in bytes of an outcome, as [`Self::priced`].
    fn measured(outcome: &Self::Outcome) -> [f64; 2];

    /// The outcome with other time and memory, as [`Self::priced`]. `None` if that is no time.
    fn remeasured(outcome: Self::Outcome, figures: [f64; 2]) -> Option<Self::Outcome>;

    /// Attempts until an outcome.
    fn attempts(outcome: &Self::Outcome) -> u32;

    /// The part of a request that makes no sense, if any.
    fn fault_of_request(request: &Self::Request) -> Option<String>;

    /// The part of an offer that makes no sense, if any.
    fn fault_of_capabilities(capabilities: &Self::Capabilities) -> Option<String>;

    /// The part of both that makes no sense, if any.
    fn fault(request: &Self::Request, capabilities: &Self::Capabilities) -> Option<String> {
        Self::fault_of_request(request).or_else(|| Self::fault_of_capabilities(capabilities))
    }
}

/// Decodes and encodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Vae;

/// Samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Denoise;

/// Runs of text encoders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Text;

/// Something that there is of every kind of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Each<V, D, T> {
    /// The one of decodes and encodes.
    pub vae: V,
    /// The one of samples.
    pub denoise: D,
    /// The one of text encoders' runs.
    pub text: T,
}

impl<T> Each<T, T, T> {
    /// A single one, of all of them.
    pub fn merged(self, mut merge: impl FnMut(T, T) -> T) -> T {
        let first = merge(self.vae, self.denoise);
        merge(first, self.text)
    }
}

impl<T> IntoIterator for Each<T, T, T> {
    type Item = T;
    type IntoIter = array::IntoIter<T, 3>;

    fn into_iter(self) -> Self::IntoIter {
        [self.vae, self.denoise, self.text].into_iter()
    }
}

/// Something of any kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Any<V, D, T> {
    /// The one of a decode or an encode.
    Vae(V),
    /// The one of a sample.
    Denoise(D),
    /// The one of a text encoder's run.
    Text(T),
}

/// A kind of work that has one field of an [`Each`].
pub trait FieldOf<E> {
    /// The field's type.
    type Field;

    /// The kind's own field.
    fn of(each: &E) -> &Self::Field;

    /// The same, to be changed.
    fn of_mut(each: &mut E) -> &mut Self::Field;
}

/// A kind of work that has one variant of an [`Any`].
pub trait VariantOf<A> {
    /// The variant's type.
    type Variant;

    /// The kind's own variant.
    fn any(variant: Self::Variant) -> A;

    /// The same, if it is of this kind.
    fn of_any(any: &A) -> Option<&Self::Variant>;
}

/// An expression for whatever kind of work something is of: `of_any!(any, one => one.words())`, or
/// with the kind `of_any!(any, one: W => W::words(one))`.
#[macro_export]
macro_rules! of_any {
    ($any:expr, $one:tt: $kind:ident => $words:expr) => {
        match $any {
            $crate::Any::Vae($one) => {
                type $kind = $crate::Vae;
                $words
            }
            $crate::Any::Denoise($one) => {
                type $kind = $crate::Denoise;
                $words
            }
            $crate::Any::Text($one) => {
                type $kind = $crate::Text;
                $words
            }
        }
    };
    ($any:expr, $one:pat => $words:expr) => {
        match $any {
            $crate::Any::Vae($one) => $words,
            $crate::Any::Denoise($one) => $words,
            $crate::Any::Text($one) => $words,
        }
    };
}

/// The [`Each`] of an expression for the one of every kind: `of_each!(each, one => one.len())`.
#[macro_export]
macro_rules! of_each {
    ($each:expr, $one:pat => $words:expr) => {{
        let $crate::Each { vae, denoise, text } = $each;
        $crate::Each {
            vae: {
                let $one = vae;
                $words
            },
            denoise: {
                let $one = denoise;
                $words
            },
            text: {
                let $one = text;
                $words
            },
        }
    }};
}

/// The [`Each`] of an expression for every kind of work: `of_kinds!(W => W::STAGES.len())`.
#[macro_export]
macro_rules! of_kinds {
    ($kind:ident => $words:expr) => {
        $crate::Each {
            vae: {
                type $kind = $crate::Vae;
                $words
            },
            denoise: {
                type $kind = $crate::Denoise;
                $words
            },
            text: {
                type $kind = $crate::Text;
                $words
            },
        }
    };
}

/// The [`Each`] of a type for every kind of work: `each!(Vec<Recorder>)`.
#[macro_export]
macro_rules! each {
    ($($of:tt)+) => { $crate::type_of_kinds!(Each $($of)+) };
}

/// The [`Any`] of a type for every kind of work: `any!(Box<Record>)`.
#[macro_export]
macro_rules! any {
    ($($of:tt)+) => { $crate::type_of_kinds!(Any $($of)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! type_of_kinds {
    ($one:ident $of:ident) => { $crate::$one<$of<$crate::Vae>, $of<$crate::Denoise>, $of<$crate::Text>> };
    ($one:ident $of:ident<$a:lifetime>) => {
        $crate::$one<$of<$a, $crate::Vae>, $of<$a, $crate::Denoise>, $of<$a, $crate::Text>>
    };
    ($one:ident $outer:ident<$of:ident>) => {
        $crate::$one<$outer<$of<$crate::Vae>>, $outer<$of<$crate::Denoise>>, $outer<$of<$crate::Text>>>
    };
}

/// Any kind of work.
pub type Kind = Any<Vae, Denoise, Text>;

impl Stage {
    /// The kind of work that is done in it.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Decode | Self::Encode => Any::Vae(Vae),
            Self::Denoise => Any::Denoise(Denoise),
            Self::Text => Any::Text(Text),
        }
    }
}

/// A plan of any kind of work.
pub type AnyPlan = Any<Plan, DenoisePlan, TextPlan>;

/// The places of the kinds of work, and the parts that their plans have alike.
macro_rules! places {
    ($($work:ident $field:ident $own:ident $plan:ident;)+) => {$(
        impl<V, D, T> FieldOf<Each<V, D, T>> for $work {
            type Field = $own;

            fn of(each: &Each<V, D, T>) -> &$own {
                &each.$field
            }

            fn of_mut(each: &mut Each<V, D, T>) -> &mut $own {
                &mut each.$field
            }
        }

        impl<V, D, T> VariantOf<Any<V, D, T>> for $work {
            type Variant = $own;

            fn any(variant: $own) -> Any<V, D, T> {
                Any::$work(variant)
            }

            fn of_any(any: &Any<V, D, T>) -> Option<&$own> {
                if let Any::$work(variant) = any { Some(variant) } else { None }
            }
        }

        impl $plan {
            /// The same plan without its reason.
            #[must_use]
            pub fn without_reason(&self) -> Self {
                Self { options: self.options.clone(), reason: String::new(), ..*self }
            }

            /// True if both are carried out in the same way: they differ in their reasons at most.
            pub fn is_same_work(&self, other: &Self) -> bool {
                self.without_reason() == other.without_reason()
            }
        }

        impl From<$plan> for AnyPlan {
            fn from(plan: $plan) -> Self {
                Self::$work(plan)
            }
        }
    )+};
}

places! {
    Vae vae V Plan;
    Denoise denoise D DenoisePlan;
    Text text T TextPlan;
}

/// The facts of a kind of work that all types have under the same names. `$time` is the time of
/// costs and outcomes that plans are compared by.
macro_rules! named_alike {
    ($time:ident) => {
        fn precision(plan: &Self::Plan) -> Precision {
            plan.precision
        }

        fn reason(plan: &Self::Plan) -> &str {
            &plan.reason
        }

        fn reason_mut(plan: &mut Self::Plan) -> &mut String {
            &mut plan.reason
        }

        fn options(plan: &Self::Plan) -> &Options {
            &plan.options
        }

        fn options_mut(plan: &mut Self::Plan) -> &mut Options {
            &mut plan.options
        }

        fn offered_options(capabilities: &Self::Capabilities) -> &[PlanOption] {
            &capabilities.options
        }

        fn dtypes(capabilities: &Self::Capabilities) -> &[Dtype] {
            &capabilities.dtypes
        }

        fn is_same_model(one: &Self::Request, other: &Self::Request) -> bool {
            one.model == other.model
        }

        fn memory_limit(request: &Self::Request) -> u64 {
            request.memory_limit
        }

        fn objective(request: &Self::Request) -> Objective {
            request.objective
        }

        fn limited(request: &Self::Request, memory_limit: u64, objective: Objective) -> Self::Request {
            let mut request = request.clone();
            (request.memory_limit, request.objective) = (memory_limit, objective);
            request
        }

        fn time(cost: &Self::Cost) -> Duration {
            cost.$time
        }

        fn priced(cost: &Self::Cost) -> [f64; 2] {
            [cost.$time.as_secs_f64(), cost.peak_bytes as f64]
        }

        fn corrected(mut cost: Self::Cost, [time, memory]: [f64; 2]) -> Option<Self::Cost> {
            cost.$time = Duration::try_from_secs_f64(cost.$time.as_secs_f64() * time).ok()?;
            cost.peak_bytes = (cost.peak_bytes as f64 * memory) as u64;
            Some(cost)
        }

        fn elapsed(outcome: &Self::Outcome) -> Duration {
            outcome.elapsed
        }

        fn measured(outcome: &Self::Outcome) -> [f64; 2] {
            [outcome.$time.as_secs_f64(), outcome.peak_bytes as f64]
        }

        fn remeasured(mut outcome: Self::Outcome, [seconds, bytes]: [f64; 2]) -> Option<Self::Outcome> {
            outcome.$time = Duration::try_from_secs_f64(seconds).ok()?;
            outcome.peak_bytes = bytes as u64;
            Some(outcome)
        }

        fn attempts(outcome: &Self::Outcome) -> u32 {
            outcome.attempts
        }
    };
}

impl Work for Vae {
    const STAGES: &'static [Stage] = &[Stage::Decode, Stage::Encode];

    type Request = Request;
    type Capabilities = Capabilities;
    type Plan = Plan;
    type Cost = Cost;
    type Outcome = Outcome;
    type ExactCost = ExactCost;
    type Measured = Measured;

    named_alike!(elapsed);

    fn is_continued(request: &Request) -> bool {
        request.frames > 1
    }

    fn hints(request: &Request) -> &[Hint] {
        &request.hints
    }

    fn capabilities_of_hints(hints: &[Hint]) -> Option<Capabilities> {
        Capabilities::of_hints(hints)
    }

    fn family(request: &Request) -> &str {
        &request.model.family
    }

    fn extents(request: &Request) -> [u32; 4] {
        [request.batch, request.frames, request.height, request.width]
    }

    fn held_bytes(cost: &Cost) -> u64 {
        cost.peak_bytes
    }

    fn measured_bytes(outcome: &Outcome) -> u64 {
        outcome.peak_bytes
    }

    fn fault_of_request(request: &Request) -> Option<String> {
        let extents = [
            ("samples", request.batch),
            ("frames", request.frames),
            ("rows of pixels", request.height),
            ("columns of pixels", request.width),
            ("pixels per latent pixel", request.model.spatial_scale),
            ("frames per latent frame", request.model.temporal_scale),
        ];
        let odd = extents.into_iter().find(|(_, extent)| !(1..=MOST_EXTENT).contains(extent));
        let hints = request.hints.len();
        odd.map(|(what, extent)| format!("{extent} {what}"))
            .or_else(|| (hints > MOST_HINTS).then(|| format!("{hints} hints")))
    }

    fn fault_of_capabilities(capabilities: &Capabilities) -> Option<String> {
        let extents = [("tile_unit", capabilities.tile_unit), ("tile_least", capabilities.tile_least)];
        let odd = extents.into_iter().find(|(_, extent)| !(1..=MOST_EXTENT).contains(extent));
        odd.map(|(what, extent)| format!("{what} {extent}")).or_else(|| {
            (capabilities.dtypes.len() > MOST_HINTS).then(|| format!("{} types", capabilities.dtypes.len()))
        })
    }
}

impl Work for Denoise {
    const STAGES: &'static [Stage] = &[Stage::Denoise];

    type Request = DenoiseRequest;
    type Capabilities = DenoiseCapabilities;
    type Plan = DenoisePlan;
    type Cost = DenoiseCost;
    type Outcome = DenoiseOutcome;
    type ExactCost = ExactDenoiseCost;
    type Measured = DenoiseMeasured;

    named_alike!(step);

    fn is_continued(_: &DenoiseRequest) -> bool {
        true
    }

    fn family(request: &DenoiseRequest) -> &str {
        &request.model.family
    }

    fn extents(request: &DenoiseRequest) -> [u32; 4] {
        [request.batch, request.frames, request.height, request.width]
    }

    fn held_bytes(cost: &DenoiseCost) -> u64 {
        cost.held_bytes()
    }

    fn measured_bytes(outcome: &DenoiseOutcome) -> u64 {
        outcome.held_bytes()
    }

    fn fault_of_request(request: &DenoiseRequest) -> Option<String> {
        let extents = [
            ("samples", request.batch),
            ("frames", request.frames),
            ("rows of a latent", request.height),
            ("columns of a latent", request.width),
            ("passes", request.passes),
            ("blocks", request.model.blocks),
        ];
        let odd = extents.into_iter().find(|(_, extent)| !(1..=MOST_EXTENT).contains(extent));
        let lists = [("sigmas", request.sigmas.len()), ("types of weights", request.model.stored_types.len())];
        let long = lists.into_iter().find(|(_, length)| *length > MOST_EXTENT as usize);
        let long = long.map(|(what, length)| format!("{length} {what}"));
        odd.map(|(what, extent)| format!("{extent} {what}")).or(long)
    }

    fn fault_of_capabilities(capabilities: &DenoiseCapabilities) -> Option<String> {
        let types = capabilities.dtypes.len();
        (types > MOST_HINTS).then(|| format!("{types} types"))
    }
}

impl Work for Text {
    const STAGES: &'static [Stage] = &[Stage::Text];

    type Request = TextRequest;
    type Capabilities = TextCapabilities;
    type Plan = TextPlan;
    type Cost = TextCost;
    type Outcome = TextOutcome;
    type ExactCost = ExactTextCost;
    type Measured = TextMeasured;

    named_alike!(elapsed);

    fn is_continued(_: &TextRequest) -> bool {
        false
    }

    fn family(request: &TextRequest) -> &str {
        &request.model.kind
    }

    fn extents(request: &TextRequest) -> [u32; 4] {
        [request.tokens.len() as u32, 1, 1, request.tokens.iter().copied().max().unwrap_or(0)]
    }

    fn held_bytes(cost: &TextCost) -> u64 {
        cost.held_bytes()
    }

    fn measured_bytes(outcome: &TextOutcome) -> u64 {
        outcome.held_bytes()
    }

    fn fault_of_request(request: &TextRequest) -> Option<String> {
        let texts = request.tokens.len();
        let odd = request.tokens.iter().find(|tokens| !(1..=MOST_EXTENT).contains(tokens));
        let blocks = request.model.blocks;
        let lists = [("texts", texts), ("types of weights", request.model.stored_types.len())];
        let long = lists.into_iter().find(|(_, length)| *length > MOST_TEXTS);
        odd.map(|tokens| format!("{tokens} tokens"))
            .or_else(|| request.tokens.is_empty().then(|| "0 texts".to_owned()))
            .or_else(|| (!(1..=MOST_EXTENT).contains(&blocks)).then(|| format!("{blocks} blocks")))
            .or_else(|| long.map(|(what, length)| format!("{length} {what}")))
    }

    fn fault_of_capabilities(capabilities: &TextCapabilities) -> Option<String> {
        let TextCapabilities { dtypes, places, weights, .. } = capabilities;
        let lists = [("types", dtypes.len()), ("places", places.len()), ("forms of weights", weights.len())];
        let long = lists.into_iter().find(|(_, length)| *length > MOST_HINTS);
        long.map(|(what, length)| format!("{length} {what}"))
    }
}
