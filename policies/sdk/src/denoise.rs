//! Samples: the contract's types for them, and the questions that a policy may ask while it decides
//! one. See [`Policy::decide_denoise`](crate::Policy::decide_denoise).

mod settings;

pub use settings::{Choice, precision};

pub use crate::bindings::tilewright::policy::denoise::{
    Attempt, Attention, Capabilities, Cost, Guidance, Model, Outcome, Plan, Products, Request, Residency, Reuse, Trial,
    UnderWay,
};
use crate::{Backend, Dtype, Failure, Precision, Release, WeightForm};

/// The expected costs of plans for the current request, in the order of the list. There is a
/// current request during [`decide_denoise`](crate::Policy::decide_denoise) only.
///
/// # Errors
/// The host's message in place of a cost, if the plan makes no sense or can't be run.
pub fn estimate(plans: &[Plan]) -> Vec<Result<Cost, String>> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::tilewright::policy::denoise_host::estimate(plans);
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

/// The measurements on this device for this model at about this size, newest first, at most
/// `most`.
pub fn trials(most: u32) -> Vec<Trial> {
    #[cfg(target_family = "wasm")]
    return crate::bindings::tilewright::policy::denoise_host::trials(most);
    #[cfg(not(target_family = "wasm"))]
    return stub::with(|stub| stub.trials.iter().take(most as usize).cloned().collect());
}

impl Plan {
    /// Everything kept as it is and at once, but for the passes of guidance, which run in turn. A
    /// start to change from.
    pub const fn plain(precision: Precision) -> Self {
        Self {
            precision,
            products: Products::Precision,
            weights: WeightForm::Packed,
            residency: Residency::Resident,
            attention: Attention::Fused,
            guidance: Guidance::InTurn,
            samples: None,
            feed_forward: 1,
            reuse: Reuse::Off,
            release: Release::Keep,
            options: Vec::new(),
            reason: String::new(),
        }
    }

    /// The same plan with a reason.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ..self }
    }

    /// The same plan with outputs reused as far as the user allows: not at all by default.
    #[must_use]
    pub fn reusing(self, request: &Request) -> Self {
        self.reusing_by(Reuse::Output(0.0), request)
    }

    /// The same plan with reuse of this kind, as far as the user allows it.
    #[must_use]
    pub fn reusing_by(self, kind: Reuse, request: &Request) -> Self {
        let most = request.capabilities.reuse_most;
        let reuse = match kind {
            Reuse::Output(_) if most > 0.0 => Reuse::Output(most),
            Reuse::FirstBlock(_) if most > 0.0 => Reuse::FirstBlock(most),
            _ => Reuse::Off,
        };
        Self { reuse, ..self }
    }

    /// The same plan in f32: what mends values that are not finite.
    #[must_use]
    pub fn widened(self) -> Self {
        Self { precision: Precision::Uniform(Dtype::F32), products: Products::Precision, ..self }
    }

    /// True if both are carried out alike: reason and release make no difference.
    pub fn is_like(&self, other: &Plan) -> bool {
        let bare = |plan: &Plan| Self { release: Release::Keep, reason: String::new(), ..plan.clone() };
        bare(self) == bare(other)
    }

    /// True if the host takes the plan for one that has failed: of the same types, with weights
    /// held alike and as much work at once. Release and reuse make no difference.
    pub fn repeats(&self, attempt: &Attempt) -> bool {
        let tried = &attempt.plan;
        self.precision == tried.precision
            && self.products == tried.products
            && self.weights == tried.weights
            && self.residency == tried.residency
            && self.attention == tried.attention
            && self.guidance == tried.guidance
            && self.samples == tried.samples
            && self.feed_forward == tried.feed_forward
            && self.options == tried.options
    }
}

impl Request {
    /// True if the host can run products in this type; f32 always.
    pub fn offers(&self, dtype: Dtype) -> bool {
        dtype == Dtype::F32 || self.capabilities.dtypes.contains(&dtype)
    }

    /// True if the type was measured to be no slower than f32 on this device, and is available.
    pub fn is_fast(&self, dtype: Dtype) -> bool {
        self.device.fast_dtypes.contains(&dtype) && self.offers(dtype)
    }

    /// True if the work runs on a device of its own, with weights to be copied there.
    pub fn has_gpu(&self) -> bool {
        self.device.backend != Backend::Cpu
    }

    /// The type that most of the weights are stored in, as files name it.
    pub fn stored(&self) -> &str {
        self.model.weights.stored()
    }

    /// True if weights are stored in fewer than 16 bits.
    pub fn is_quantized(&self) -> bool {
        self.model.weights.is_quantized()
    }

    /// Bytes of the weights in a type of products.
    pub const fn expanded_bytes(&self, dtype: Dtype) -> u64 {
        self.model.parameters.saturating_mul(dtype.bytes())
    }
}

impl Attempt {
    /// True if values were not finite: a wider type may mend that.
    pub const fn overflowed(&self) -> bool {
        matches!(self.failure, Failure::NonFinite(_))
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
