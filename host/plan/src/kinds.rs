//! The list of the kinds of work: something of [`Each`], or of [`Any`], and the macros that write an
//! expression or a type for all of them.

use std::array;

use serde::Serialize;

use crate::{Denoise, DenoisePlan, Plan, Stage, Text, TextPlan, Vae};

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
