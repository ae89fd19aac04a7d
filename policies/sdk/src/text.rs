//! Text encoders: the contract's types for them, and the questions that a policy may ask while it
//! decides a run. See [`Policy::decide_text`](crate::Policy::decide_text).

pub use crate::bindings::tilewright::policy::text::{
    Attempt, Capabilities, Cost, Model, Outcome, Place, Plan, Request, Trial,
};
use crate::{Description, Failure, Precision, Settings, WeightForm};

crate::host::questions!(text_host, during "decide_text");

impl Plan {
    /// Weights as they are stored, and nothing kept afterwards. A start to change from.
    pub const fn plain(precision: Precision, place: Place) -> Self {
        Self { precision, place, weights: WeightForm::Packed, kept: false, options: Vec::new(), reason: String::new() }
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
    /// The place that a plan without wishes runs in: the device, where there is one.
    pub fn usual_place(&self) -> Place {
        if self.capabilities.places.contains(&Place::Device) { Place::Device } else { Place::Host }
    }

    /// Tokens of all texts.
    pub fn all_tokens(&self) -> u64 {
        self.tokens.iter().copied().map(u64::from).sum()
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
            place: settings.word_or_auto("place", &[("device", Place::Device), ("host", Place::Host)])?,
            kept: settings.word_or_auto("kept", &[("true", true), ("false", false)])?,
            weights: settings.word_or_auto("weights", &WeightForm::WORDS)?,
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
