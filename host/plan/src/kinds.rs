//! The stages of generation and the kinds of work that are done in them: something of [`Each`],
//! or of [`Any`], and the macros that write an expression or a type for all of them.

use std::array;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Denoise, DenoisePlan, Hint, Plan, Text, TextPlan, Vae, Work};

crate::names! {
    /// A stage of generation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Stage {
        /// A text to its embedding.
        Text = "text",
        /// A step of a diffusion model.
        Denoise = "denoise",
        /// Latents to pixels.
        #[default]
        Decode = "decode",
        /// Pixels to latents.
        Encode = "encode",
    }
}

crate::from_name!(Stage, "stage", "one of ");

crate::names! {
    /// A part of a model, as configurations name it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ModelPart {
        /// The autoencoder.
        Vae = "vae",
        /// The transformer, or two experts.
        Transformer = "transformer",
        /// The text encoders.
        TextEncoder = "text-encoder",
    }
}

impl Stage {
    /// The hint that named the stage before records had a field for it. Contract 0.1 still has it.
    pub const HINT: &'static str = "stage";

    /// The kind of work that is done in it.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Decode | Self::Encode => Any::Vae(Vae),
            Self::Denoise => Any::Denoise(Denoise),
            Self::Text => Any::Text(Text),
        }
    }

    /// The stage as titles have it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Text => "Text",
            Self::Denoise => "Sampling",
            Self::Decode => "Decode",
            Self::Encode => "Encode",
        }
    }

    /// The parts of a model whose jobs may have this stage.
    pub const fn parts(self) -> &'static [ModelPart] {
        match self {
            Self::Text => &[ModelPart::TextEncoder],
            Self::Denoise => &[ModelPart::Transformer],
            Self::Decode => &[ModelPart::Vae],
            // A picture that a prompt's picture begins with.
            Self::Encode => &ModelPart::ALL,
        }
    }

    /// The stage that a request's hints name: [`Stage::Decode`] if they name none that is known.
    pub fn of_hints(hints: &[Hint]) -> Self {
        let hint = hints.iter().find(|hint| hint.name == Self::HINT);
        hint.and_then(|hint| hint.value.parse().ok()).unwrap_or_default()
    }

    /// The stage of a request whose program did not write it down.
    pub fn of_request<W: Work>(request: &W::Request) -> Self {
        match W::hints(request) {
            [] => W::STAGES[0],
            hints => Self::of_hints(hints),
        }
    }
}

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

/// A plan of any kind of work.
pub type AnyPlan = Any<Plan, DenoisePlan, TextPlan>;

/// The places of the kinds of work.
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
