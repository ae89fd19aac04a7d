//! The table of rules.

use tilewright_plan::{Dtype, Plan, Precision, Space, Tile, Time, Vae};

use super::Bounds;
use crate::check::{Nonsense, Rule, change, change_if, fitted, offered, rank_precision, unmixed};

/// Answers without a meaning: no range says what was meant.
pub(super) const NONSENSE: &[Nonsense<Vae>] = &[
    // The height alone matters of an exact tile, which spans the picture.
    (|plan| matches!(plan.space, Space::Exact(Tile { height: 0, .. })), "a tile of no extent"),
    (
        |plan| matches!(plan.space, Space::Blended(Tile { height, width, .. }) if height == 0 || width == 0),
        "a tile of no extent",
    ),
    (|plan| plan.batch == 0, "a batch of nothing"),
    (|plan| matches!(plan.time, Time::Carried { frames: 0 } | Time::Blended { frames: 0, .. }), "a chunk of no frames"),
];

/// Every range, in the order of application: a later one may rely on the earlier ones.
pub(super) const RULES: &[Rule<Vae>] = &[
    ("", "exact is not offered yet: blended instead", |plan, bounds| match plan.space {
        Space::Exact(tile) if !bounds.capabilities.exact => change(&mut plan.space, Space::Blended(tile)),
        _ => None,
    }),
    ("tile width", "exact tiles span the picture", |plan, bounds| fitted(&mut exact(plan)?.width, |_| bounds.width)),
    ("overlap", "exact tiles need none", |plan, _| fitted(&mut exact(plan)?.overlap, |_| 0)),
    COVERED,
    ("tile height", "no larger than the picture", |plan, bounds| {
        fitted(&mut tile(plan)?.height, |side| side.min(bounds.height))
    }),
    ("tile width", "no larger than the picture", |plan, bounds| {
        fitted(&mut tile(plan)?.width, |side| side.min(bounds.width))
    }),
    ("tile height", "a multiple of {unit}", |plan, bounds| {
        fitted(&mut tile(plan)?.height, |side| round_side(side, bounds.height, bounds))
    }),
    ("tile width", "a multiple of {unit}", |plan, bounds| {
        fitted(&mut tile(plan)?.width, |side| round_side(side, bounds.width, bounds))
    }),
    ("tile height", "at least {least}", |plan, bounds| {
        fitted(&mut tile(plan)?.height, |side| side.max(bounds.least(bounds.height)))
    }),
    ("tile width", "at least {least}", |plan, bounds| {
        fitted(&mut tile(plan)?.width, |side| side.max(bounds.least(bounds.width)))
    }),
    COVERED,
    ("overlap", "at most a quarter of the tile", |plan, _| {
        let tile = tile(plan)?;
        let most = tile.height.min(tile.width) / 4;
        fitted(&mut tile.overlap, |overlap| overlap.min(most))
    }),
    ("overlap", "a multiple of {unit}", |plan, bounds| {
        fitted(&mut tile(plan)?.overlap, |overlap| overlap - overlap % bounds.unit())
    }),
    ("space", "the clip is under way in these tiles", |plan, bounds| match bounds.running.as_ref()?.space {
        begun @ Space::Blended(_) if plan.space != begun => change(&mut plan.space, begun),
        _ => None,
    }),
    ("space", "the clip is under way in one piece, and only bands go on with that", |plan, bounds| {
        match (bounds.running.as_ref()?.space, plan.space) {
            (Space::Whole | Space::Exact(_), Space::Blended(tile)) => change(&mut plan.space, bands(tile, bounds)),
            _ => None,
        }
    }),
    ("", "carried is not offered yet: whole in time instead", |plan, bounds| match plan.time {
        Time::Carried { .. } if !bounds.capabilities.carried && bounds.is_clip() => change(&mut plan.time, Time::Whole),
        _ => None,
    }),
    ("time", "this model carries its causal state, which needs no overlap", |plan, bounds| match plan.time {
        Time::Blended { frames, .. } if bounds.is_carried() => change(&mut plan.time, Time::Carried { frames }),
        _ => None,
    }),
    ("time", "the chunk covers all frames", |plan, bounds| match plan.time {
        // A carried clip keeps a chunk of its length, which runs as a whole clip would.
        Time::Carried { frames } | Time::Blended { frames, .. } if frames >= bounds.frames && !bounds.is_carried() => {
            change(&mut plan.time, Time::Whole)
        }
        _ => None,
    }),
    ("chunk", "no more frames than there are", |plan, bounds| fitted(chunk(plan)?, |frames| frames.min(bounds.frames))),
    ("chunk", "a power of two below {scale}, or a multiple of {scale}", |plan, bounds| {
        fitted(chunk(plan)?, |frames| bounds.chunk(frames))
    }),
    ("overlap in time", "at most half of the chunk", |plan, _| match &mut plan.time {
        Time::Blended { frames, overlap } => {
            let most = *frames / 2;
            fitted(overlap, |overlap| overlap.min(most))
        }
        _ => None,
    }),
    ("time", "the clip is under way like that", |plan, bounds| match (bounds.running.as_ref()?.time, plan.time) {
        (Time::Carried { .. }, Time::Carried { .. }) => None,
        (begun, asked) if begun != asked => change(&mut plan.time, begun),
        _ => None,
    }),
    ("batch", "a clip's samples and tiles run one after the other", |plan, bounds| {
        fitted(&mut plan.batch, |batch| if bounds.is_clip() { 1 } else { batch })
    }),
    ("batch", "no more than {batch} together", |plan, bounds| {
        fitted(&mut plan.batch, |batch| batch.min(bounds.capabilities.batch_most.max(1)))
    }),
    ("batch", "no more than there are", |plan, bounds| {
        let work = bounds.work(&plan.space);
        fitted(&mut plan.batch, |batch| batch.min(work))
    }),
    ("precision", "not offered on this device", |plan, bounds| {
        offered(&mut plan.precision, &bounds.capabilities.dtypes)
    }),
    ("precision", "nothing to mix", |plan, _| unmixed(&mut plan.precision)),
    ("precision", "only convolutions round to tf32", |plan, _| {
        let is_uniform = plan.precision == Precision::Uniform(Dtype::Tf32);
        change_if(is_uniform, &mut plan.precision, Precision::Mixed(Dtype::Tf32))
    }),
    ("precision", "no narrower than what the clip is under way in", |plan, bounds| {
        let begun = bounds.running.as_ref()?.precision;
        change_if(rank_precision(plan.precision) < rank_precision(begun), &mut plan.precision, begun)
    }),
    ("layout", "the clip is under way in it", |plan, bounds| change(&mut plan.layout, bounds.running.as_ref()?.layout)),
    ("offload", "not offered", |plan, bounds| change_if(!bounds.capabilities.offload, &mut plan.offload, false)),
    ("prefetch", "no more than {prefetch} ahead", |plan, bounds| {
        fitted(&mut plan.prefetch, |prefetch| prefetch.min(bounds.capabilities.prefetch_most))
    }),
];

/// Applied twice: before the sides are clamped, so that one note is enough, and after they are
/// raised to the least.
const COVERED: Rule<Vae> = ("space", "the tile covers the picture", |plan, bounds| match plan.space.tile() {
    Some(tile) if tile.height >= bounds.height && tile.width >= bounds.width => change(&mut plan.space, Space::Whole),
    _ => None,
});

fn tile(plan: &mut Plan) -> Option<&mut Tile> {
    match &mut plan.space {
        Space::Whole => None,
        Space::Blended(tile) | Space::Exact(tile) => Some(tile),
    }
}

fn exact(plan: &mut Plan) -> Option<&mut Tile> {
    match &mut plan.space {
        Space::Exact(tile) => Some(tile),
        Space::Whole | Space::Blended(_) => None,
    }
}

/// Frames of a chunk that carries the causal cache.
fn chunk(plan: &mut Plan) -> Option<&mut u32> {
    match &mut plan.time {
        Time::Carried { frames } => Some(frames),
        Time::Whole | Time::Blended { .. } => None,
    }
}

/// The nearest to a tile if tiles are not possible: bands of its height, or of its width if it is
/// as high as the picture.
fn bands(tile: Tile, bounds: &Bounds) -> Space {
    let height = [tile.height, tile.width].into_iter().find(|side| *side < bounds.height);
    match height {
        Some(height) if bounds.capabilities.exact => Space::Exact(Tile { height, width: bounds.width, overlap: 0 }),
        _ => Space::Whole,
    }
}

/// A side that ends on a unit, or on the picture's own end.
fn round_side(side: u32, extent: u32, bounds: &Bounds) -> u32 {
    if side >= extent { side } else { side - side % bounds.unit() }
}

#[cfg(test)]
mod tests;
