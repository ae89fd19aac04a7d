//! The kinds of work whose decisions are compared.

use std::time::Duration;

use tilewright_gate::work::Judged;
use tilewright_plan::{VariantOf, Work};
use tilewright_policy::Governed;

use super::{AnyCost, Field};
use crate::replay::Replayed;

/// A kind of work whose decisions are compared.
pub trait Compared: Judged + Replayed + Governed + VariantOf<AnyCost, Variant = <Self as Work>::Cost> {
    /// The parts of two plans that differ; the reason is none.
    fn fields(a: &Self::Plan, b: &Self::Plan) -> Vec<Field>;

    /// A request in a few words.
    fn name(request: &Self::Request) -> String;

    /// The time of a price, of a text encoder with loading.
    fn time_with_loading(cost: &Self::Cost) -> Duration {
        Self::time(cost)
    }
}

/// The options of two plans, if they differ.
pub fn options<W: Work>(a: &W::Plan, b: &W::Plan) -> Option<Field> {
    let (a, b) = (W::options(a), W::options(b));
    (a != b).then(|| Field { name: "options", a: a.in_words(), b: b.in_words() })
}
