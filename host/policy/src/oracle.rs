//! Invariants of every checked answer, for property tests, fuzzing, and plans that no policy
//! answered.

use std::mem::discriminant;

use tilewright_plan::{
    Attention, DenoisePlan, Dtype, GuidanceOrder, Place, Plan, Precision, Products, Question, Space, TextCapabilities,
    TextPlan, Time, WeightForm,
};

pub use crate::exact::in_place_of as exact_in_place_of;
use crate::{
    Governed,
    check::{self, Bounds, DenoiseBounds, rank_precision},
};

/// Checks an answer as a decision does: returns the changes.
///
/// # Errors
/// The part of the plan that makes no sense.
pub fn check_answer<W: Governed>(plan: &mut W::Plan, question: &Question<'_, W>) -> Result<Vec<String>, &'static str> {
    let mut notes = Vec::new();
    check::fit::<W>(plan, &W::bounds(question), &mut |note| notes.push(note.to_string()))?;
    Ok(notes)
}

/// The illegal parts of a plan that was checked; empty if the checker is right.
pub fn find_breaches<W: Governed>(plan: &W::Plan, question: &Question<'_, W>) -> Vec<&'static str> {
    W::breaches(plan, &W::bounds(question))
}

pub(crate) fn breaches(plan: &Plan, bounds: &Bounds) -> Vec<&'static str> {
    let capabilities = &bounds.capabilities;
    let mut breaches = Vec::new();
    let mut holds = |what: &'static str, does: bool| {
        if !does {
            breaches.push(what);
        }
    };
    if let Some(tile) = plan.space.tile() {
        for (side, extent) in [(tile.height, bounds.height), (tile.width, bounds.width)] {
            holds("a tile lies within the picture", side > 0 && side <= extent);
            holds("a tile ends on a unit", side == extent || side % capabilities.tile_unit.max(1) == 0);
            holds("a tile is not too small", side >= capabilities.tile_least.min(extent));
            holds("tiles overlap by a quarter at most", tile.overlap <= side / 4);
        }
        holds("tiles don't cover the picture", tile.height < bounds.height || tile.width < bounds.width);
        holds("exact tiles are offered", capabilities.exact || matches!(plan.space, Space::Blended(_)));
    }
    holds("a batch is within the offer", (1..=capabilities.batch_most.max(1)).contains(&plan.batch));
    let dtype = plan.precision.dtype();
    holds("the type is offered", dtype == Dtype::F32 || capabilities.dtypes.contains(&dtype));
    holds("there is something to mix", plan.precision != Precision::Mixed(Dtype::F32));
    holds("no tensor has the type tf32", plan.precision != Precision::Uniform(Dtype::Tf32));
    holds("waiting in host memory is offered", capabilities.offload || !plan.offload);
    holds("no more is copied ahead than offered", plan.prefetch <= capabilities.prefetch_most);
    match plan.time {
        Time::Whole => {}
        Time::Carried { frames } => {
            let scale = bounds.scale.max(1);
            let is_natural = if frames < scale { frames.is_power_of_two() } else { frames.is_multiple_of(scale) };
            holds("a state is carried where there is one", bounds.is_carried() && frames > 0);
            holds("a chunk can be run", frames == bounds.frames || (frames < bounds.frames && is_natural));
        }
        Time::Blended { frames, overlap } => {
            let is_within = !capabilities.carried && frames < bounds.frames && overlap <= frames / 2;
            holds("chunks that fade are within the clip", is_within);
        }
    }
    let is_offered = |name: &str| capabilities.options.iter().any(|option| option.name == name);
    let has_begun = bounds.running.is_some();
    holds("options are offered", has_begun || plan.options.iter().all(|(name, _)| is_offered(name)));
    holds("a clip runs one after the other", bounds.frames <= 1 || plan.batch == 1);
    if let Some(running) = &bounds.running {
        let is_tiled = |plan: &Plan| matches!(plan.space, Space::Blended(_));
        holds("tiles stay tiles", is_tiled(running) == is_tiled(plan));
        holds("tiles stay as they were cut", !is_tiled(running) || running.space == plan.space);
        holds("time stays as it was begun", discriminant(&running.time) == discriminant(&plan.time));
        holds("types get no narrower", rank_precision(plan.precision) >= rank_precision(running.precision));
        holds("the memory order stays", running.layout == plan.layout);
        holds("options stay", running.options == plan.options);
    }
    breaches
}

fn unheld(invariants: &[(&'static str, bool)]) -> Vec<&'static str> {
    invariants.iter().filter(|(_, holds)| !holds).map(|(what, _)| *what).collect()
}

pub(crate) fn sample_breaches(plan: &DenoisePlan, bounds: &DenoiseBounds) -> Vec<&'static str> {
    let capabilities = &bounds.capabilities;
    let dtype = plan.precision.dtype();
    let is_narrow = matches!(dtype, Dtype::Bf16 | Dtype::F16);
    let is_resident = plan.weights == WeightForm::Packed && plan.ahead.is_none();
    let queries = match plan.attention {
        Attention::Fused => None,
        Attention::Pieces { queries } => Some(queries),
    };
    let threshold = plan.reuse.threshold();
    unheld(&[
        ("the type is offered", dtype == Dtype::F32 || capabilities.dtypes.contains(&dtype)),
        ("there is something to mix", plan.precision != Precision::Mixed(Dtype::F32)),
        (
            "products in FP8 or INT8 are offered and possible",
            match plan.products {
                Products::Precision => true,
                Products::Fp8 => capabilities.fp8_products && is_narrow && is_resident,
                Products::Int8 => {
                    capabilities.int8_products && plan.weights == WeightForm::Packed && dtype != Dtype::F16
                }
            },
        ),
        ("expanded weights stay", plan.weights == WeightForm::Packed || plan.ahead.is_none()),
        ("no more blocks are read ahead than offered", plan.ahead.is_none_or(|ahead| ahead <= capabilities.ahead_most)),
        ("enough queries at once", queries.is_none_or(|queries| queries >= capabilities.queries_least)),
        ("one pass runs alone", bounds.passes > 1 || plan.guidance == GuidanceOrder::InTurn),
        ("samples at once are fewer than all", plan.samples.is_none_or(|samples| (1..bounds.batch).contains(&samples))),
        ("parts are within the offer", (1..=capabilities.parts_most.max(1)).contains(&plan.feed_forward)),
        ("no more is reused than allowed", threshold.is_finite() && threshold <= capabilities.reuse_most),
    ])
}

pub(crate) fn text_breaches(plan: &TextPlan, capabilities: &TextCapabilities) -> Vec<&'static str> {
    let dtype = plan.precision.dtype();
    unheld(&[
        ("the type is offered", dtype == Dtype::F32 || capabilities.dtypes.contains(&dtype)),
        ("there is something to mix", plan.precision != Precision::Mixed(Dtype::F32)),
        ("the place is offered", capabilities.places.contains(&plan.place) || plan.place == Place::Host),
        (
            "the form of weights is offered",
            plan.weights == WeightForm::Packed || capabilities.weights.contains(&plan.weights),
        ),
        ("it is kept where it can be", capabilities.kept || !plan.kept),
    ])
}
