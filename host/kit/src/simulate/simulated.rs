//! The kinds of work that a device's table can hold.

use serde::de::DeserializeOwned;
use tilewright_gate::work::Judged;
use tilewright_plan::{FieldOf, Question};
use tilewright_policy::oracle;

use super::{Case, Cases, Table};
use crate::replay::Replayed;

/// The distance of a plan from a measured one that stands in for it: in area, in overlap, and
/// whether the rest differs.
pub type Distance = (u64, u32, bool);

/// A kind of work that a device's table can hold.
pub trait Simulated: Judged + Replayed + DeserializeOwned + FieldOf<Cases, Field = Vec<Case<Self>>> {
    /// The key of this kind's cases in a table's JSON, and of its measurement beside others.
    const KEY: &'static str;

    /// The heading of its measurement beside others.
    const HEADING: &'static str;

    /// A table's cases of this kind.
    fn cases(table: &Table) -> &[Case<Self>] {
        Self::of(&table.cases)
    }

    /// The same request, with blended plans allowed where exact ones fit, or not.
    fn allowing_blended(request: Self::Request, _allows: bool) -> Self::Request {
        request
    }

    /// True if a plan's output is the one that was asked for, but for its types: others count as
    /// best only if they are allowed, or if nothing exact fits.
    fn is_exact(_plan: &Self::Plan) -> bool {
        true
    }

    /// True if a plan is one that the host could carry out.
    fn is_legal(plan: &Self::Plan, question: &Question<'_, Self>) -> bool {
        oracle::find_breaches(plan, &question.going_on(None)).is_empty()
    }

    /// False of a plan whose output suffers, which counts as best only if nothing else fits.
    fn is_sound(_plan: &Self::Plan) -> bool {
        true
    }

    /// True of the plan in f32 whose memory limits are shares of.
    fn is_whole(plan: &Self::Plan) -> bool;

    /// The distance to a measured plan that may stand in; none if it may not. Nothing may differ
    /// that changes what is computed or held.
    fn distance(measured: &Self::Plan, plan: &Self::Plan) -> Option<Distance> {
        Self::is_priced_alike(measured, plan).then_some((0, 0, !Self::is_same_work(measured, plan)))
    }

    /// True if two plans have the same price.
    fn is_priced_alike(one: &Self::Plan, other: &Self::Plan) -> bool;

    /// A request in a few words.
    fn words(request: &Self::Request) -> String;

    /// Width, height, frames and samples, and the model's family; of texts the tokens of all of
    /// them, 1, 1 and their number, and the encoder's kind.
    fn size(request: &Self::Request) -> ([u32; 4], &str) {
        let [batch, frames, height, width] = Self::extents(request);
        ([width, height, frames, batch], Self::family(request))
    }

    /// Milliseconds and bytes held of an outcome, as a table has them: of a sample those of a step,
    /// and with the weights; of a text encoder with loading, and of the device's memory.
    fn table_figures(outcome: &Self::Outcome) -> (f64, u64);

    /// The outcome of a request that took and held this.
    fn table_outcome(
        request: &Self::Request,
        cost: Option<Self::Cost>,
        elapsed_ms: f64,
        held_bytes: u64,
        attempts: u32,
    ) -> Self::Outcome;
}
