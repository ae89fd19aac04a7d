//! The table of rules.

use tilewright_plan::{Dtype, Plan, Precision, Space, Tile, Time, Vae};

use super::{Bounds, Change, Part, Predicate, Rule, rank_precision};

/// Answers without a meaning: no range says what was meant.
pub(super) const NONSENSE: &[(Predicate<Plan>, &str)] = &[
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
pub(super) static RULES: &[Rule<Vae>] = &[
    Rule {
        subject: "",
        because: "exact is not offered yet: blended instead",
        fit: |plan, bounds| match plan.space {
            Space::Exact(tile) if !bounds.capabilities.exact => space(plan, Space::Blended(tile)),
            _ => None,
        },
    },
    Rule {
        subject: "tile width",
        because: "exact tiles span the picture",
        fit: |plan, bounds| number(&mut exact(plan)?.width, |_| bounds.width),
    },
    Rule {
        subject: "overlap",
        because: "exact tiles need none",
        fit: |plan, _| number(&mut exact(plan)?.overlap, |_| 0),
    },
    COVERED,
    Rule {
        subject: "tile height",
        because: "no larger than the picture",
        fit: |plan, bounds| number(&mut tile(plan)?.height, |side| side.min(bounds.height)),
    },
    Rule {
        subject: "tile width",
        because: "no larger than the picture",
        fit: |plan, bounds| number(&mut tile(plan)?.width, |side| side.min(bounds.width)),
    },
    Rule {
        subject: "tile height",
        because: "a multiple of {unit}",
        fit: |plan, bounds| number(&mut tile(plan)?.height, |side| round_side(side, bounds.height, bounds)),
    },
    Rule {
        subject: "tile width",
        because: "a multiple of {unit}",
        fit: |plan, bounds| number(&mut tile(plan)?.width, |side| round_side(side, bounds.width, bounds)),
    },
    Rule {
        subject: "tile height",
        because: "at least {least}",
        fit: |plan, bounds| number(&mut tile(plan)?.height, |side| side.max(bounds.least(bounds.height))),
    },
    Rule {
        subject: "tile width",
        because: "at least {least}",
        fit: |plan, bounds| number(&mut tile(plan)?.width, |side| side.max(bounds.least(bounds.width))),
    },
    COVERED,
    Rule {
        subject: "overlap",
        because: "at most a quarter of the tile",
        fit: |plan, _| {
            let tile = tile(plan)?;
            let most = tile.height.min(tile.width) / 4;
            number(&mut tile.overlap, |overlap| overlap.min(most))
        },
    },
    Rule {
        subject: "overlap",
        because: "a multiple of {unit}",
        fit: |plan, bounds| number(&mut tile(plan)?.overlap, |overlap| overlap - overlap % bounds.unit()),
    },
    Rule {
        subject: "space",
        because: "the clip is under way in these tiles",
        fit: |plan, bounds| match bounds.running.as_ref()?.space {
            begun @ Space::Blended(_) if plan.space != begun => space(plan, begun),
            _ => None,
        },
    },
    Rule {
        subject: "space",
        because: "the clip is under way in one piece, and only bands go on with that",
        fit: |plan, bounds| match (bounds.running.as_ref()?.space, plan.space) {
            (Space::Whole | Space::Exact(_), Space::Blended(tile)) => space(plan, bands(tile, bounds)),
            _ => None,
        },
    },
    Rule {
        subject: "",
        because: "carried is not offered yet: whole in time instead",
        fit: |plan, bounds| match plan.time {
            Time::Carried { .. } if !bounds.capabilities.carried && bounds.is_clip() => time(plan, Time::Whole),
            _ => None,
        },
    },
    Rule {
        subject: "time",
        because: "this model carries its causal state, which needs no overlap",
        fit: |plan, bounds| match plan.time {
            Time::Blended { frames, .. } if bounds.is_carried() => time(plan, Time::Carried { frames }),
            _ => None,
        },
    },
    Rule {
        subject: "time",
        because: "the chunk covers all frames",
        fit: |plan, bounds| match plan.time {
            // A carried clip keeps a chunk of its length, which runs as a whole clip would.
            Time::Carried { frames } | Time::Blended { frames, .. }
                if frames >= bounds.frames && !bounds.is_carried() =>
            {
                time(plan, Time::Whole)
            }
            _ => None,
        },
    },
    Rule {
        subject: "chunk",
        because: "no more frames than there are",
        fit: |plan, bounds| number(chunk(plan)?, |frames| frames.min(bounds.frames)),
    },
    Rule {
        subject: "chunk",
        because: "a power of two below {scale}, or a multiple of {scale}",
        fit: |plan, bounds| number(chunk(plan)?, |frames| bounds.chunk(frames)),
    },
    Rule {
        subject: "overlap in time",
        because: "at most half of the chunk",
        fit: |plan, _| match &mut plan.time {
            Time::Blended { frames, overlap } => {
                let most = *frames / 2;
                number(overlap, |overlap| overlap.min(most))
            }
            _ => None,
        },
    },
    Rule {
        subject: "time",
        because: "the clip is under way like that",
        fit: |plan, bounds| match (bounds.running.as_ref()?.time, plan.time) {
            (Time::Carried { .. }, Time::Carried { .. }) => None,
            (begun, asked) if begun != asked => time(plan, begun),
            _ => None,
        },
    },
    Rule {
        subject: "batch",
        because: "a clip's samples and tiles run one after the other",
        fit: |plan, bounds| number(&mut plan.batch, |batch| if bounds.is_clip() { 1 } else { batch }),
    },
    Rule {
        subject: "batch",
        because: "no more than {batch} together",
        fit: |plan, bounds| number(&mut plan.batch, |batch| batch.min(bounds.capabilities.batch_most.max(1))),
    },
    Rule {
        subject: "batch",
        because: "no more than there are",
        fit: |plan, bounds| {
            let work = bounds.work(&plan.space);
            number(&mut plan.batch, |batch| batch.min(work))
        },
    },
    Rule {
        subject: "precision",
        because: "not offered on this device",
        fit: |plan, bounds| match plan.precision.dtype() {
            Dtype::F32 => None,
            dtype if bounds.capabilities.dtypes.contains(&dtype) => None,
            _ => precision(plan, Precision::Uniform(Dtype::F32)),
        },
    },
    Rule {
        subject: "precision",
        because: "nothing to mix",
        fit: |plan, _| match plan.precision {
            Precision::Mixed(Dtype::F32) => precision(plan, Precision::Uniform(Dtype::F32)),
            _ => None,
        },
    },
    Rule {
        subject: "precision",
        because: "only convolutions round to tf32",
        fit: |plan, _| match plan.precision {
            Precision::Uniform(Dtype::Tf32) => precision(plan, Precision::Mixed(Dtype::Tf32)),
            _ => None,
        },
    },
    Rule {
        subject: "precision",
        because: "no narrower than what the clip is under way in",
        fit: |plan, bounds| {
            let begun = bounds.running.as_ref()?.precision;
            if rank_precision(plan.precision) < rank_precision(begun) { precision(plan, begun) } else { None }
        },
    },
    Rule {
        subject: "layout",
        because: "the clip is under way in it",
        fit: |plan, bounds| {
            let begun = bounds.running.as_ref()?.layout;
            let asked = std::mem::replace(&mut plan.layout, begun);
            (asked != begun).then_some(Change { from: Part::Layout(asked), to: Part::Layout(begun) })
        },
    },
    Rule {
        subject: "offload",
        because: "not offered",
        fit: |plan, bounds| {
            (plan.offload && !bounds.capabilities.offload).then(|| {
                plan.offload = false;
                Change { from: Part::Flag(true), to: Part::Flag(false) }
            })
        },
    },
    Rule {
        subject: "prefetch",
        because: "no more than {prefetch} ahead",
        fit: |plan, bounds| number(&mut plan.prefetch, |prefetch| prefetch.min(bounds.capabilities.prefetch_most)),
    },
];

/// Applied twice: before the sides are clamped, so that one note is enough, and after they are
/// raised to the least.
const COVERED: Rule<Vae> = Rule {
    subject: "space",
    because: "the tile covers the picture",
    fit: |plan, bounds| match plan.space.tile() {
        Some(tile) if tile.height >= bounds.height && tile.width >= bounds.width => space(plan, Space::Whole),
        _ => None,
    },
};

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

fn number(place: &mut u32, fitted: impl FnOnce(u32) -> u32) -> Option<Change> {
    let from = *place;
    *place = fitted(from);
    (*place != from).then_some(Change { from: Part::Number(from), to: Part::Number(*place) })
}

fn space(plan: &mut Plan, to: Space) -> Option<Change> {
    let from = std::mem::replace(&mut plan.space, to);
    Some(Change { from: Part::Space(from), to: Part::Space(to) })
}

fn time(plan: &mut Plan, to: Time) -> Option<Change> {
    let from = std::mem::replace(&mut plan.time, to);
    Some(Change { from: Part::Time(from), to: Part::Time(to) })
}

fn precision(plan: &mut Plan, to: Precision) -> Option<Change> {
    let from = std::mem::replace(&mut plan.precision, to);
    Some(Change { from: Part::Precision(from), to: Part::Precision(to) })
}
