//! The kinds of work that a device's table can hold.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tilewright_gate::work::Judged;
use tilewright_plan::{
    Denoise, DenoiseOutcome, DenoisePlan, DenoiseRequest, Dtype, Outcome, Plan, Precision, Question, Request, Space,
    Text, TextOutcome, TextPlan, TextRequest, Vae, WeightForm, Work, records::Sensible,
};
use tilewright_policy::oracle;

use super::{Case, Table};
use crate::replay::Replayed;

/// The smallest side of a blended tile that counts as best while anything else fits: smaller ones
/// show seams.
const LEAST_TILE: u32 = 256;

/// The most that a tile's side may differ from a measured one's: a quarter of it.
const WITHIN: u32 = 4;

/// The distance of a plan from a measured one that stands in for it: in area, in overlap, and
/// whether the rest differs.
pub type Distance = (u64, u32, bool);

/// A kind of work that a device's table can hold.
pub trait Simulated: Judged + Replayed + Sensible + DeserializeOwned {
    /// A table's cases of this kind.
    fn cases(table: &Table) -> &[Case<Self>];

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
    fn size(request: &Self::Request) -> ([u32; 4], &str);

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

fn milliseconds(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or(Duration::MAX)
}

fn in_words([width, height, frames, batch]: [u32; 4], family: &str) -> String {
    let samples = if batch == 1 { String::new() } else { format!("{batch} × ") };
    let frames = if frames == 1 { String::new() } else { format!(" × {frames} frames") };
    format!("{samples}{width}×{height}{frames} {family}")
}

impl Simulated for Vae {
    fn cases(table: &Table) -> &[Case] {
        &table.cases
    }

    fn allowing_blended(request: Request, allows: bool) -> Request {
        Request { allows_blended: allows, ..request }
    }

    fn is_exact(plan: &Plan) -> bool {
        !plan.is_blended()
    }

    fn is_sound(plan: &Plan) -> bool {
        match plan.space {
            Space::Blended(tile) => tile.height.min(tile.width) >= LEAST_TILE,
            Space::Whole | Space::Exact(_) => true,
        }
    }

    fn is_whole(plan: &Plan) -> bool {
        plan.space == Space::Whole && plan.precision == Precision::Uniform(Dtype::F32)
    }

    fn distance(measured: &Plan, plan: &Plan) -> Option<Distance> {
        let kind = |plan: &Plan| (plan.time, plan.precision, plan.layout, plan.batch);
        if kind(measured) != kind(plan) || measured.options != plan.options {
            return None;
        }
        let rest =
            (measured.release, measured.offload, measured.prefetch) != (plan.release, plan.offload, plan.prefetch);
        let (one, other) = match (measured.space, plan.space) {
            (Space::Whole, Space::Whole) => return Some((0, 0, rest)),
            (Space::Blended(one), Space::Blended(other)) | (Space::Exact(one), Space::Exact(other)) => (one, other),
            _ => return None,
        };
        let near = |one: u32, other: u32, share: u32| one.abs_diff(other) <= one / share;
        let side = one.height.min(one.width);
        let is_near = near(one.height, other.height, WITHIN)
            && near(one.width, other.width, WITHIN)
            && one.overlap.abs_diff(other.overlap) <= side / 8;
        let area = |height: u32, width: u32| u64::from(height) * u64::from(width);
        let areas = area(one.height, one.width).abs_diff(area(other.height, other.width));
        is_near.then_some((areas, one.overlap.abs_diff(other.overlap), rest))
    }

    fn is_priced_alike(one: &Plan, other: &Plan) -> bool {
        Plan { release: other.release, ..one.without_reason() } == other.without_reason()
    }

    fn words(request: &Request) -> String {
        let (extents, family) = Self::size(request);
        in_words(extents, family)
    }

    fn size(request: &Request) -> ([u32; 4], &str) {
        ([request.width, request.height, request.frames, request.batch], &request.model.family)
    }

    fn table_figures(outcome: &Outcome) -> (f64, u64) {
        (outcome.elapsed.as_secs_f64() * 1e3, outcome.peak_bytes)
    }

    fn table_outcome(_: &Request, _: Option<Self::Cost>, elapsed_ms: f64, held_bytes: u64, attempts: u32) -> Outcome {
        Outcome { elapsed: milliseconds(elapsed_ms), peak_bytes: held_bytes, attempts, ..Outcome::default() }
    }
}

impl Simulated for Denoise {
    fn cases(table: &Table) -> &[Case<Self>] {
        &table.samples
    }

    fn is_whole(plan: &DenoisePlan) -> bool {
        Self::is_same_work(plan, &DenoisePlan::plain())
    }

    fn is_priced_alike(one: &DenoisePlan, other: &DenoisePlan) -> bool {
        DenoisePlan { release: other.release, ..one.without_reason() } == other.without_reason()
    }

    fn words(request: &DenoiseRequest) -> String {
        let (extents, family) = Self::size(request);
        let passes = if request.passes == 2 { ", guided" } else { "" };
        format!("latent {}{passes}", in_words(extents, family))
    }

    fn size(request: &DenoiseRequest) -> ([u32; 4], &str) {
        ([request.width, request.height, request.frames, request.batch], &request.model.family)
    }

    fn table_figures(outcome: &DenoiseOutcome) -> (f64, u64) {
        (outcome.step.as_secs_f64() * 1e3, outcome.held_bytes())
    }

    fn table_outcome(
        request: &DenoiseRequest,
        cost: Option<Self::Cost>,
        elapsed_ms: f64,
        held_bytes: u64,
        attempts: u32,
    ) -> DenoiseOutcome {
        let step = milliseconds(elapsed_ms);
        let weights_bytes = cost.map_or(0, |cost| cost.weights_bytes).min(held_bytes);
        DenoiseOutcome {
            elapsed: step.saturating_mul(request.steps),
            step,
            peak_bytes: held_bytes - weights_bytes,
            weights_bytes,
            moved_bytes: cost.map_or(0, |cost| cost.moved_bytes.saturating_mul(u64::from(request.steps))),
            attempts,
            ..DenoiseOutcome::default()
        }
    }
}

/// A text encoder's request in a few words.
pub(crate) fn text_in_words(request: &TextRequest) -> String {
    let tokens = request.all_tokens();
    let texts = if request.tokens.len() > 1 { format!(" in {} texts", request.tokens.len()) } else { String::new() };
    format!("{} {tokens} tokens{texts}", request.model.kind)
}

impl Simulated for Text {
    fn cases(table: &Table) -> &[Case<Self>] {
        &table.texts
    }

    fn is_whole(plan: &TextPlan) -> bool {
        (plan.precision, plan.weights) == (Precision::Uniform(Dtype::F32), WeightForm::Packed)
    }

    fn is_priced_alike(one: &TextPlan, other: &TextPlan) -> bool {
        TextPlan { kept: other.kept, ..one.without_reason() } == other.without_reason()
    }

    fn words(request: &TextRequest) -> String {
        text_in_words(request)
    }

    fn size(request: &TextRequest) -> ([u32; 4], &str) {
        let tokens = u32::try_from(request.all_tokens()).unwrap_or(u32::MAX);
        ([tokens, 1, 1, request.tokens.len() as u32], &request.model.kind)
    }

    fn table_figures(outcome: &TextOutcome) -> (f64, u64) {
        ((outcome.elapsed + outcome.load).as_secs_f64() * 1e3, outcome.held_bytes())
    }

    fn table_outcome(
        _: &TextRequest,
        cost: Option<Self::Cost>,
        elapsed_ms: f64,
        held_bytes: u64,
        attempts: u32,
    ) -> TextOutcome {
        let all = milliseconds(elapsed_ms);
        let load = cost.map_or(Duration::ZERO, |cost| cost.load).min(all);
        let weights_bytes = cost.map_or(0, |cost| cost.weights_bytes).min(held_bytes);
        TextOutcome {
            elapsed: all - load,
            load,
            peak_bytes: held_bytes - weights_bytes,
            weights_bytes,
            host_bytes: cost.map_or(0, |cost| cost.host_bytes),
            attempts,
            ..TextOutcome::default()
        }
    }
}
