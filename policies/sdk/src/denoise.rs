//! Samples: the contract's types for them, and the questions that a policy may ask while it decides
//! one. See [`Policy::decide_denoise`](crate::Policy::decide_denoise).

mod settings;

pub use settings::{Choice, precision};

pub use crate::bindings::tilewright::policy::denoise::{
    Attempt, Attention, Capabilities, Cost, Guidance, Model, Outcome, Plan, Products, Request, Residency, Reuse, Trial,
    UnderWay,
};
use crate::{Dtype, Precision, Release, WeightForm};

crate::host::questions!(denoise_host, during "decide_denoise");

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
        self.is_like(&Self { reuse: self.reuse, ..attempt.plan.clone() })
    }
}

impl Request {
    /// Bytes of the weights in a type of products.
    pub const fn expanded_bytes(&self, dtype: Dtype) -> u64 {
        self.model.parameters.saturating_mul(dtype.bytes())
    }
}
