//! Methods of the contract's records and variants.

use crate::{Backend, Dtype, Failure, Precision, Release, WeightForm, bindings::tilewright::policy};

/// Methods that the records of every stage have.
macro_rules! alike {
    ($($stage:ident: $interface:ident, $decide:ident, $learn:ident;)+) => {$(
        impl policy::$stage::Plan {
            /// The same plan with a reason, for the person who reads the decision.
            #[must_use]
            pub fn because(self, reason: impl Into<String>) -> Self {
                Self { reason: reason.into(), ..self }
            }
        }

        impl policy::$stage::Request {
            /// True if the host can compute in this type; f32 always.
            pub fn offers(&self, dtype: Dtype) -> bool {
                dtype == Dtype::F32 || self.capabilities.dtypes.contains(&dtype)
            }

            /// True if the type was measured to be no slower than f32 on this device, and is
            /// available.
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
        }

        impl policy::$stage::Attempt {
            /// True if values were not finite: a wider type may mend that.
            pub const fn overflowed(&self) -> bool {
                matches!(self.failure, Failure::NonFinite(_))
            }

            /// True if values were not finite even in f32: no plan mends that.
            pub fn is_hopeless(&self) -> bool {
                self.overflowed() && self.plan.precision.dtype() == Dtype::F32
            }
        }

        alike!(@held policy::$stage::Cost);
        alike!(@held policy::$stage::Outcome);
    )+};
    (@held $record:ty) => {
        impl $record {
            /// Bytes of the device's memory that are held at once, which the limit is compared
            /// with.
            pub const fn held(&self) -> u64 {
                self.memory.peak_bytes.saturating_add(self.memory.weights_bytes)
            }
        }
    };
}

crate::kinds!([alike!]);

impl Dtype {
    /// Bytes of one element; i4 counts as one.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F32 | Dtype::Tf32 => 4,
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::I8 | Dtype::I4 => 1,
        }
    }
}

impl Release {
    /// The words for releases in settings.
    pub const WORDS: [(&'static str, Release); 3] =
        [("keep", Release::Keep), ("at-end", Release::AtEnd), ("each-step", Release::EachStep)];
}

impl WeightForm {
    /// The words for forms of weights in settings.
    pub const WORDS: [(&'static str, WeightForm); 2] =
        [("packed", WeightForm::Packed), ("expanded", WeightForm::Expanded)];
}

impl Precision {
    /// The words for precisions in settings.
    pub const WORDS: [(&'static str, Precision); 6] = [
        ("f32", Precision::Uniform(Dtype::F32)),
        ("tf32", Precision::Mixed(Dtype::Tf32)),
        ("bf16", Precision::Uniform(Dtype::Bf16)),
        ("f16", Precision::Uniform(Dtype::F16)),
        ("mixed-bf16", Precision::Mixed(Dtype::Bf16)),
        ("mixed-f16", Precision::Mixed(Dtype::F16)),
    ];

    /// The type that convolutions run in.
    pub const fn dtype(self) -> Dtype {
        match self {
            Precision::Uniform(dtype) | Precision::Mixed(dtype) => dtype,
        }
    }

    /// The precision's word, or that of the nearest one.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, known)| *known == self).map_or("f32", |(word, _)| word)
    }
}
