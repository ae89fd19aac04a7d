//! Text encoders: the contract's types for them, and the questions that a policy may ask while it
//! decides a run. See [`Policy::decide_text`](crate::Policy::decide_text).

pub use crate::bindings::tilewright::policy::text::{
    Attempt, Capabilities, Cost, Model, Outcome, Place, Plan, Request, Trial,
};
use crate::{Description, Dtype, Failure, Precision, Settings, WeightForm};

/// The expected costs of plans for the current request, in the order of the list. There is a
/// current request during [`decide_text`](crate::Policy::decide_text) only.
///
/// # Errors
/// The host's message in place of a cost, if the plan makes no sense or can't be run.
pub fn estimate(plans: &[Plan]) -> Vec<Result<Cost, String>> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::tilewright::policy::text_host::estimate(plans);
    #[cfg(not(target_family = "wasm"))]
    return stub::with(|stub| plans.iter().map(|plan| (stub.estimate)(plan)).collect());
}

/// [`estimate`] for one plan.
///
/// # Errors
/// The host's message, if the plan makes no sense or can't be run.
pub fn estimate_one(plan: &Plan) -> Result<Cost, String> {
    estimate(std::slice::from_ref(plan)).pop().unwrap_or_else(|| Err("the host gave no price".into()))
}

/// The measurements on this device, of this encoder, for about as many tokens, newest first, at
/// most `most`.
pub fn trials(most: u32) -> Vec<Trial> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::tilewright::policy::text_host::trials(most);
    #[cfg(not(target_family = "wasm"))]
    return stub::with(|stub| stub.trials.iter().take(most as usize).cloned().collect());
}

impl Plan {
    /// Weights as they are stored, and nothing kept afterwards. A start to change from.
    pub const fn plain(precision: Precision, place: Place) -> Self {
        Self { precision, place, weights: WeightForm::Packed, kept: false, options: Vec::new(), reason: String::new() }
    }

    /// The same plan with a reason, for the person who reads the decision.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ..self }
    }

    /// True if both are carried out alike: the reason, and what stays afterwards, make no
    /// difference.
    pub fn is_like(&self, other: &Plan) -> bool {
        self.precision == other.precision
            && self.place == other.place
            && self.weights == other.weights
            && self.options == other.options
    }

    /// True if the host takes the plan for one that has failed: after an overflow any of the same
    /// type, after out of memory one that holds the same.
    pub fn repeats(&self, attempt: &Attempt) -> bool {
        match attempt.failure {
            Failure::NonFinite(_) => self.precision == attempt.plan.precision,
            Failure::OutOfMemory(_) | Failure::OverLimit(_) => self.is_like(&attempt.plan),
        }
    }
}

impl Cost {
    /// Bytes that are held at once, wherever they are.
    pub const fn all(&self) -> u64 {
        self.held().saturating_add(self.host_bytes)
    }
}

impl Request {
    /// True if the host can run products in this type; f32 always.
    pub fn offers(&self, dtype: Dtype) -> bool {
        dtype == Dtype::F32 || self.capabilities.dtypes.contains(&dtype)
    }

    /// True if the type was measured to be no slower than f32 on the device, and is available.
    pub fn is_fast(&self, dtype: Dtype) -> bool {
        self.device.fast_dtypes.contains(&dtype) && self.offers(dtype)
    }

    /// The place that a plan without wishes runs in: the device, where there is one.
    pub fn usual_place(&self) -> Place {
        if self.capabilities.places.contains(&Place::Device) { Place::Device } else { Place::Host }
    }

    /// The type that most of the weights are stored in, as files name it.
    pub fn stored(&self) -> &str {
        self.model.weights.stored()
    }

    /// Tokens of all texts.
    pub fn all_tokens(&self) -> u64 {
        self.tokens.iter().copied().map(u64::from).sum()
    }
}

impl Attempt {
    /// True if values were not finite: a wider type may mend that.
    pub const fn overflowed(&self) -> bool {
        matches!(self.failure, Failure::NonFinite(_))
    }
}

/// The parts of a plan that the user chose, for policies whose users may choose some of them; none
/// of a part that is left to the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The place.
    pub place: Option<Place>,
    /// The encoder stays loaded where it can.
    pub kept: Option<bool>,
    /// The form of the weights.
    pub weights: Option<WeightForm>,
}

impl Choice {
    /// Declares the settings, each of them `auto` by default. That of the weights is
    /// [`denoise::Choice`](crate::denoise::Choice)'s, which has to be declared, too.
    #[must_use]
    pub fn declare(description: Description) -> Description {
        description.setting("place", "Text: encoders run on the device, on the host, or auto.", "auto").setting(
            "kept",
            "Text: encoders stay loaded where they can: true, false or auto.",
            "auto",
        )
    }

    /// Reads the settings.
    ///
    /// # Errors
    /// One line that names the setting and the allowed values.
    pub fn read(settings: &Settings) -> Result<Self, String> {
        Ok(Self {
            place: settings
                .word("place", &[("auto", None), ("device", Some(Place::Device)), ("host", Some(Place::Host))])?,
            kept: settings.word("kept", &[("auto", None), ("true", Some(true)), ("false", Some(false))])?,
            weights: settings.word(
                "weights",
                &[("auto", None), ("packed", Some(WeightForm::Packed)), ("expanded", Some(WeightForm::Expanded))],
            )?,
        })
    }

    /// The plan with the parts that the user chose.
    #[must_use]
    pub fn apply(&self, plan: Plan) -> Plan {
        Plan {
            place: self.place.unwrap_or(plan.place),
            kept: self.kept.unwrap_or(plan.kept),
            weights: self.weights.unwrap_or(plan.weights),
            ..plan
        }
    }
}

#[cfg(not(target_family = "wasm"))]
pub use stub::{Estimate, Stub};

/// A host for unit tests, which run natively.
#[cfg(not(target_family = "wasm"))]
mod stub {
    use std::cell::RefCell;

    use super::{Cost, Plan, Trial};

    /// A stub's answer to a question for a price.
    pub type Estimate = Box<dyn FnMut(&Plan) -> Result<Cost, String>>;

    /// A stand-in for the host in unit tests.
    pub struct Stub {
        /// Answers [`super::estimate`], plan by plan.
        pub estimate: Estimate,
        /// Answers [`super::trials`].
        pub trials: Vec<Trial>,
    }

    thread_local! {
        static STUB: RefCell<Stub> =
            RefCell::new(Stub { estimate: Box::new(|_| Err("no host".into())), trials: Vec::new() });
    }

    impl Stub {
        /// Replaces the host from now on, on this thread.
        pub fn install(self) {
            STUB.set(self);
        }
    }

    pub fn with<R>(ask: impl FnOnce(&mut Stub) -> R) -> R {
        STUB.with_borrow_mut(ask)
    }
}
