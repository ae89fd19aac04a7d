//! Checks a plan against what the engine offers: a table of rules, applied in order. Each either leaves the plan alone or brings one
//! part of it into range and says so. What no range could mend is nonsense.
//!
//! Where frames of a clip have left already, the causal state that their plan left behind goes on under the next one: in one piece or in
//! bands as it was begun, in tiles as they were cut, and in no narrower type.

use std::fmt;

use tilewright_plan::{Dtype, Layout, Offer, Plan, Precision, Request, Space, Tile, Time};

/// What is said of an answer that has failed before.
pub(crate) const REPEATED: &str = "a plan that has failed before";

/// What a plan has to fit into: the offer and the extents of the request.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub batch: u32,
    pub frames: u32,
    pub height: u32,
    pub width: u32,
    /// Output frames per latent frame.
    pub scale: u32,
    pub offer: Offer,
}

impl Bounds {
    pub fn new(request: &Request, offer: &Offer) -> Self {
        let &Request { batch, frames, height, width, .. } = request;
        Self { batch, frames, height, width, scale: request.model.temporal_scale, offer: offer.clone() }
    }

    fn is_clip(&self) -> bool {
        self.frames > 1
    }

    /// Whether the request is a clip whose causal state is carried from chunk to chunk.
    pub fn is_carried(&self) -> bool {
        self.is_clip() && self.offer.carried
    }

    /// A chunk as it can be run: whole latent frames, or a power of two of one's output frames, or the clip.
    fn chunk(&self, frames: u32) -> u32 {
        let scale = self.scale.max(1);
        if frames >= self.frames {
            self.frames
        } else if frames >= scale {
            frames - frames % scale
        } else {
            1 << frames.max(1).ilog2()
        }
    }

    fn unit(&self) -> u32 {
        self.offer.tile_unit.max(1)
    }

    /// The least side of a tile along an axis of this extent.
    fn least(&self, extent: u32) -> u32 {
        self.offer.tile_least.max(1).next_multiple_of(self.unit()).min(extent)
    }

    /// How many samples or tiles there are to run together.
    fn work(&self, space: &Space) -> u32 {
        let tiles = space.tile().map_or(1, |tile| {
            let along = |extent: u32, side: u32| match side >= extent {
                true => 1,
                false => (extent - side).div_ceil(side.saturating_sub(tile.overlap).max(1)).saturating_add(1),
            };
            along(self.height, tile.height).saturating_mul(along(self.width, tile.width))
        });
        self.batch.saturating_mul(tiles).max(1)
    }
}

/// A part of a plan as a note shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    Number(u32),
    Flag(bool),
    Space(Space),
    Precision(Precision),
    Layout(Layout),
    Time(Time),
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shown::Number(number) => number.fmt(f),
            Shown::Flag(flag) => flag.fmt(f),
            Shown::Space(space) => space.fmt(f),
            Shown::Precision(precision) => precision.fmt(f),
            Shown::Layout(layout) => layout.fmt(f),
            Shown::Time(time) => time.fmt(f),
        }
    }
}

/// What a rule changed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Change {
    from: Shown,
    to: Shown,
}

/// One row of the table: what it looks at, what it does, and what it says. `{unit}`, `{least}`, `{batch}`, `{prefetch}` and `{scale}`
/// stand for the offer's and the model's.
struct Rule {
    subject: &'static str,
    because: &'static str,
    fit: fn(&mut Plan, &Bounds) -> Option<Change>,
}

/// A change that was made to a plan, and why.
pub(crate) struct Note<'a> {
    rule: &'static Rule,
    change: Change,
    bounds: &'a Bounds,
}

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let offer = &self.bounds.offer;
        let because = (self.rule.because)
            .replace("{unit}", &self.bounds.unit().to_string())
            .replace("{least}", &offer.tile_least.to_string())
            .replace("{batch}", &offer.batch_most.to_string())
            .replace("{prefetch}", &offer.prefetch_most.to_string())
            .replace("{scale}", &self.bounds.scale.to_string());
        match self.rule.subject {
            "" => f.write_str(&because),
            subject => write!(f, "{subject} {} → {}: {because}", self.change.from, self.change.to),
        }
    }
}

/// Whether a plan makes no sense in one respect.
type MakesNone = fn(&Plan) -> bool;

/// Answers that mean nothing: no range says what was meant.
const NONSENSE: &[(MakesNone, &str)] = &[
    (|plan| plan.space.tile().is_some_and(|tile| tile.height == 0 || tile.width == 0), "a tile of no extent"),
    (|plan| plan.batch == 0, "a batch of nothing"),
    (|plan| matches!(plan.time, Time::Carried { frames: 0 } | Time::Blended { frames: 0, .. }), "a chunk of no frames"),
];

/// Every range, in the order in which they are applied: a later one may rely on the earlier ones.
static RULES: &[Rule] = &[
    Rule {
        subject: "",
        because: "exact is not offered yet: blended instead",
        fit: |plan, bounds| match plan.space {
            Space::Exact(tile) if !bounds.offer.exact => space(plan, Space::Blended(tile)),
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
        fit: |plan, bounds| number(&mut tile(plan)?.height, |side| rounded(side, bounds.height, bounds)),
    },
    Rule {
        subject: "tile width",
        because: "a multiple of {unit}",
        fit: |plan, bounds| number(&mut tile(plan)?.width, |side| rounded(side, bounds.width, bounds)),
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
        fit: |plan, bounds| match bounds.offer.running.as_ref()?.space {
            begun @ Space::Blended(_) if plan.space != begun => space(plan, begun),
            _ => None,
        },
    },
    Rule {
        subject: "space",
        because: "the clip is under way in one piece, and only bands go on with that",
        fit: |plan, bounds| match (bounds.offer.running.as_ref()?.space, plan.space) {
            (Space::Whole | Space::Exact(_), Space::Blended(tile)) => space(plan, bands(tile, bounds)),
            _ => None,
        },
    },
    Rule {
        subject: "",
        because: "carried is not offered yet: whole in time instead",
        fit: |plan, bounds| match plan.time {
            Time::Carried { .. } if !bounds.offer.carried && bounds.is_clip() => time(plan, Time::Whole),
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
            // A clip that is carried keeps a chunk of its length, which is run as it would be whole.
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
        fit: |plan, bounds| match (bounds.offer.running.as_ref()?.time, plan.time) {
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
        fit: |plan, bounds| number(&mut plan.batch, |batch| batch.min(bounds.offer.batch_most.max(1))),
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
            dtype if bounds.offer.dtypes.contains(&dtype) => None,
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
        because: "no narrower than what the clip is under way in",
        fit: |plan, bounds| {
            let begun = bounds.offer.running.as_ref()?.precision;
            if kept(plan.precision) < kept(begun) { precision(plan, begun) } else { None }
        },
    },
    Rule {
        subject: "layout",
        because: "the clip is under way in it",
        fit: |plan, bounds| {
            let begun = bounds.offer.running.as_ref()?.layout;
            let asked = std::mem::replace(&mut plan.layout, begun);
            (asked != begun).then_some(Change { from: Shown::Layout(asked), to: Shown::Layout(begun) })
        },
    },
    Rule {
        subject: "offload",
        because: "not offered",
        fit: |plan, bounds| {
            (plan.offload && !bounds.offer.offload).then(|| {
                plan.offload = false;
                Change { from: Shown::Flag(true), to: Shown::Flag(false) }
            })
        },
    },
    Rule {
        subject: "prefetch",
        because: "no more than {prefetch} ahead",
        fit: |plan, bounds| number(&mut plan.prefetch, |prefetch| prefetch.min(bounds.offer.prefetch_most)),
    },
];

/// Asked twice: before the sides are clamped, so that one note says it all, and after they are brought up to the least.
const COVERED: Rule = Rule {
    subject: "space",
    because: "the tile covers the picture",
    fit: |plan, bounds| match plan.space.tile() {
        Some(tile) if tile.height >= bounds.height && tile.width >= bounds.width => space(plan, Space::Whole),
        _ => None,
    },
};

/// Brings a plan into the bounds and hands a note of each change to `notes`. Nothing is allocated where nothing is changed.
///
/// # Errors
/// What makes no sense about the plan, which is then left as it was.
pub(crate) fn fit(plan: &mut Plan, bounds: &Bounds, notes: &mut dyn FnMut(Note<'_>)) -> Result<(), &'static str> {
    if let Some((_, nonsense)) = NONSENSE.iter().find(|(makes_none, _)| makes_none(plan)) {
        return Err(nonsense);
    }
    for rule in RULES {
        if let Some(change) = (rule.fit)(plan, bounds) {
            notes(Note { rule, change, bounds });
        }
    }
    Ok(())
}

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

/// Frames of a chunk whose causal state is carried on.
fn chunk(plan: &mut Plan) -> Option<&mut u32> {
    match &mut plan.time {
        Time::Carried { frames } => Some(frames),
        Time::Whole | Time::Blended { .. } => None,
    }
}

/// What comes nearest to a tile where there can be none: bands of its height, or of its width where it is as high as the picture.
fn bands(tile: Tile, bounds: &Bounds) -> Space {
    let height = [tile.height, tile.width].into_iter().find(|side| *side < bounds.height);
    match height {
        Some(height) if bounds.offer.exact => Space::Exact(Tile { height, width: bounds.width, overlap: 0 }),
        _ => Space::Whole,
    }
}

/// How much of a value a precision keeps, for comparing: range first, since what overflows is lost.
pub(crate) fn kept(precision: Precision) -> u32 {
    match precision {
        Precision::Uniform(Dtype::F32) | Precision::Mixed(Dtype::F32) => 5,
        Precision::Mixed(Dtype::Bf16) => 4,
        Precision::Mixed(Dtype::F16) => 3,
        Precision::Uniform(Dtype::Bf16) => 2,
        Precision::Uniform(Dtype::F16) => 1,
        Precision::Mixed(_) | Precision::Uniform(_) => 0,
    }
}

/// A side that ends on a unit, or on the picture's own end.
fn rounded(side: u32, extent: u32, bounds: &Bounds) -> u32 {
    if side >= extent { side } else { side - side % bounds.unit() }
}

fn number(place: &mut u32, fitted: impl FnOnce(u32) -> u32) -> Option<Change> {
    let from = *place;
    *place = fitted(from);
    (*place != from).then_some(Change { from: Shown::Number(from), to: Shown::Number(*place) })
}

fn space(plan: &mut Plan, to: Space) -> Option<Change> {
    let from = std::mem::replace(&mut plan.space, to);
    Some(Change { from: Shown::Space(from), to: Shown::Space(to) })
}

fn time(plan: &mut Plan, to: Time) -> Option<Change> {
    let from = std::mem::replace(&mut plan.time, to);
    Some(Change { from: Shown::Time(from), to: Shown::Time(to) })
}

fn precision(plan: &mut Plan, to: Precision) -> Option<Change> {
    let from = std::mem::replace(&mut plan.precision, to);
    Some(Change { from: Shown::Precision(from), to: Shown::Precision(to) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tilewright_plan::{Layout, Release};

    use super::*;
    use crate::oracle;

    fn bounds() -> Bounds {
        let offer = Offer {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            tile_unit: 8,
            tile_least: 64,
            batch_most: 16,
            exact: false,
            carried: false,
            offload: false,
            prefetch_most: 2,
            running: None,
        };
        Bounds { batch: 2, frames: 1, height: 1024, width: 2048, scale: 4, offer }
    }

    /// 81 frames of a model that carries its state, with this plan under way.
    fn clip(running: Option<Plan>) -> Bounds {
        let offer = Offer { exact: true, carried: true, offload: true, running, ..bounds().offer };
        Bounds { frames: 81, height: 480, width: 832, offer, ..bounds() }
    }

    fn carried(frames: u32, space: Space) -> Plan {
        Plan { time: Time::Carried { frames }, ..plan(space) }
    }

    fn plan(space: Space) -> Plan {
        Plan {
            space,
            time: Time::Whole,
            batch: 1,
            precision: Precision::Uniform(Dtype::F32),
            layout: Layout::ChannelsFirst,
            release: Release::Keep,
            offload: false,
            prefetch: 0,
            reason: String::new(),
        }
    }

    fn blended(height: u32, width: u32, overlap: u32) -> Plan {
        plan(Space::Blended(Tile { height, width, overlap }))
    }

    fn notes(plan: &mut Plan, bounds: &Bounds) -> Vec<String> {
        let mut notes = Vec::new();
        fit(plan, bounds, &mut |note| notes.push(note.to_string())).unwrap();
        notes
    }

    #[test]
    fn every_range_has_its_message() {
        let cases: Vec<(Plan, &[&str])> = vec![
            (blended(768, 768, 300), &["overlap 300 → 192: at most a quarter of the tile"]),
            (
                blended(770, 771, 96),
                &["tile height 770 → 768: a multiple of 8", "tile width 771 → 768: a multiple of 8"],
            ),
            (blended(512, 512, 99), &["overlap 99 → 96: a multiple of 8"]),
            (blended(16, 512, 0), &["tile height 16 → 64: at least 64"]),
            (blended(4096, 512, 64), &["tile height 4096 → 1024: no larger than the picture"]),
            (blended(4096, 4096, 64), &["space blended 4096×4096/64 → whole: the tile covers the picture"]),
            (
                plan(Space::Exact(Tile { height: 512, width: 512, overlap: 0 })),
                &["exact is not offered yet: blended instead"],
            ),
            (Plan { batch: 40, ..blended(512, 512, 64) }, &["batch 40 → 16: no more than 16 together"]),
            (Plan { batch: 9, ..plan(Space::Whole) }, &["batch 9 → 2: no more than there are"]),
            (
                Plan { precision: Precision::Uniform(Dtype::F16), ..plan(Space::Whole) },
                &["precision f16 → f32: not offered on this device"],
            ),
            (
                Plan { precision: Precision::Mixed(Dtype::F32), ..plan(Space::Whole) },
                &["precision mixed f32 → f32: nothing to mix"],
            ),
            (Plan { offload: true, ..plan(Space::Whole) }, &["offload true → false: not offered"]),
            (Plan { prefetch: 7, ..plan(Space::Whole) }, &["prefetch 7 → 2: no more than 2 ahead"]),
            (
                Plan { time: Time::Carried { frames: 4 }, ..plan(Space::Whole) },
                &["time carried 4 → whole: the chunk covers all frames"],
            ),
            (blended(512, 512, 64), &[]),
            (plan(Space::Whole), &[]),
        ];
        for (mut plan, expected) in cases {
            let asked = plan.clone();
            assert_eq!(notes(&mut plan, &bounds()), expected, "{asked:?}");
        }
    }

    #[test]
    fn exact_tiles_are_bands() {
        let offer = Offer { exact: true, ..bounds().offer };
        let bounds = Bounds { offer, ..bounds() };
        let mut banded = plan(Space::Exact(Tile { height: 256, width: 256, overlap: 64 }));
        let said = ["tile width 256 → 2048: exact tiles span the picture", "overlap 64 → 0: exact tiles need none"];
        assert_eq!(notes(&mut banded, &bounds), said);
        assert_eq!(banded.space, Space::Exact(Tile { height: 256, width: 2048, overlap: 0 }));
        let mut covering = plan(Space::Exact(Tile { height: 1024, width: 2048, overlap: 0 }));
        assert_eq!(notes(&mut covering, &bounds).len(), 1);
        assert_eq!(covering.space, Space::Whole);
    }

    #[test]
    fn video_has_ranges_too() {
        let mut bounds = Bounds { frames: 33, ..bounds() };
        let mut plan = Plan { time: Time::Blended { frames: 8, overlap: 6 }, ..plan(Space::Whole) };
        assert_eq!(notes(&mut plan, &bounds), ["overlap in time 6 → 4: at most half of the chunk"]);
        plan.time = Time::Carried { frames: 8 };
        assert_eq!(notes(&mut plan.clone(), &bounds), ["carried is not offered yet: whole in time instead"]);
        bounds.offer.carried = true;
        assert_eq!(notes(&mut plan, &bounds), [""; 0]);
    }

    #[test]
    fn a_causal_clip_is_carried_in_chunks() {
        let timed = |time| Plan { time, ..plan(Space::Whole) };
        let carried = |frames| Time::Carried { frames };
        let cases: [(Time, Time, &[&str]); 12] = [
            (Time::Whole, Time::Whole, &[]),
            (carried(1), carried(1), &[]),
            (carried(2), carried(2), &[]),
            (carried(3), carried(2), &["chunk 3 → 2: a power of two below 4, or a multiple of 4"]),
            (carried(4), carried(4), &[]),
            (carried(10), carried(8), &["chunk 10 → 8: a power of two below 4, or a multiple of 4"]),
            (carried(16), carried(16), &[]),
            (carried(80), carried(80), &[]),
            (carried(81), carried(81), &[]),
            (carried(84), carried(81), &["chunk 84 → 81: no more frames than there are"]),
            (
                Time::Blended { frames: 16, overlap: 2 },
                carried(16),
                &["time blended 16/2 → carried 16: this model carries its causal state, which needs no overlap"],
            ),
            (
                Time::Blended { frames: 200, overlap: 150 },
                carried(81),
                &[
                    "time blended 200/150 → carried 200: this model carries its causal state, which needs no overlap",
                    "chunk 200 → 81: no more frames than there are",
                ],
            ),
        ];
        for (asked, expected, said) in cases {
            let mut plan = timed(asked);
            assert_eq!(notes(&mut plan, &clip(None)), said, "{asked:?}");
            assert_eq!(plan.time, expected);
        }
        // A picture has one frame, whatever the model.
        let picture = Bounds { frames: 1, ..clip(None) };
        for asked in [carried(1), carried(8), Time::Blended { frames: 8, overlap: 2 }] {
            let mut plan = timed(asked);
            assert_eq!(notes(&mut plan, &picture).len(), 1);
            assert_eq!(plan.time, Time::Whole);
        }
    }

    #[test]
    fn a_clip_runs_one_after_the_other() {
        let mut tiled = Plan { batch: 4, offload: true, ..blended(256, 256, 64) };
        assert_eq!(notes(&mut tiled, &clip(None)), ["batch 4 → 1: a clip's samples and tiles run one after the other"]);
        assert!(tiled.offload);
        let mut none = Plan { offload: true, ..carried(4, Space::Whole) };
        let cpu = Bounds { offer: Offer { offload: false, ..clip(None).offer }, ..clip(None) };
        assert_eq!(notes(&mut none, &cpu), ["offload true → false: not offered"]);
    }

    #[test]
    fn what_is_under_way_goes_on() {
        let bands = |height| Space::Exact(Tile { height, width: 832, overlap: 0 });
        let tiles = |side| Space::Blended(Tile { height: side, width: side, overlap: side / 8 });
        let whole = carried(8, Space::Whole);
        let cut = carried(8, tiles(256));
        let half = Plan { precision: Precision::Uniform(Dtype::Bf16), ..whole.clone() };
        let last = Plan { layout: Layout::ChannelsLast, ..whole.clone() };
        let at_once = plan(Space::Whole);
        let in_bands = carried(8, bands(128));
        let one_piece = "the clip is under way in one piece, and only bands go on with that";
        let cases: Vec<(&Plan, Plan, Plan, Vec<String>)> = vec![
            // In one piece: bands and whole go on, tiles don't.
            (&whole, carried(4, Space::Whole), carried(4, Space::Whole), vec![]),
            (&whole, carried(8, bands(128)), carried(8, bands(128)), vec![]),
            (&in_bands, carried(8, Space::Whole), carried(8, Space::Whole), vec![]),
            (&in_bands, carried(2, bands(64)), carried(2, bands(64)), vec![]),
            (
                &whole,
                carried(8, tiles(256)),
                carried(8, bands(256)),
                vec![format!("space blended 256×256/32 → exact 832×256/0: {one_piece}")],
            ),
            // A tile as high as the picture.
            (
                &in_bands,
                carried(8, Space::Blended(Tile { height: 480, width: 256, overlap: 32 })),
                carried(8, bands(256)),
                vec![format!("space blended 256×480/32 → exact 832×256/0: {one_piece}")],
            ),
            // In tiles: only those.
            (&cut, carried(4, tiles(256)), carried(4, tiles(256)), vec![]),
            (
                &cut,
                carried(8, tiles(128)),
                cut.clone(),
                vec!["space blended 128×128/16 → blended 256×256/32: the clip is under way in these tiles".into()],
            ),
            (
                &cut,
                carried(8, bands(64)),
                cut.clone(),
                vec!["space exact 832×64/0 → blended 256×256/32: the clip is under way in these tiles".into()],
            ),
            // Time stays as it was begun.
            (
                &whole,
                plan(Space::Whole),
                whole.clone(),
                vec!["time whole → carried 8: the clip is under way like that".into()],
            ),
            (
                &at_once,
                carried(4, Space::Whole),
                at_once.clone(),
                vec!["time carried 4 → whole: the clip is under way like that".into()],
            ),
            // Types only get wider, and the memory order stays.
            (&half, whole.clone(), whole.clone(), vec![]),
            (
                &whole,
                half.clone(),
                whole.clone(),
                vec!["precision bf16 → f32: no narrower than what the clip is under way in".into()],
            ),
            (
                &last,
                whole.clone(),
                last.clone(),
                vec!["layout channels-first → channels-last: the clip is under way in it".into()],
            ),
        ];
        for (running, mut asked, expected, said) in cases {
            let what = asked.clone();
            assert_eq!(notes(&mut asked, &clip(Some(running.clone()))), said, "{what:?} after {running:?}");
            assert_eq!(asked, expected, "{what:?} after {running:?}");
        }
    }

    #[test]
    fn nonsense_is_told_from_out_of_range() {
        let refused = |mut plan: Plan| fit(&mut plan, &bounds(), &mut |_| {}).unwrap_err();
        assert_eq!(refused(blended(0, 512, 0)), "a tile of no extent");
        assert_eq!(refused(Plan { batch: 0, ..plan(Space::Whole) }), "a batch of nothing");
        assert_eq!(refused(Plan { time: Time::Carried { frames: 0 }, ..plan(Space::Whole) }), "a chunk of no frames");
    }

    prop_compose! {
        fn any_bounds()(
            batch in 1u32..9, frames in 1u32..40, scale in 0u32..9, height in 1u32..400, width in 1u32..400,
            unit in 0u32..20, least in 0u32..200, batch_most in 0u32..20, flags in any::<[bool; 3]>(),
            dtypes in proptest::sample::subsequence(vec![Dtype::F32, Dtype::Bf16, Dtype::F16], 0..=3),
            running in proptest::option::of(any_plan()),
        ) -> Bounds {
            let [exact, carried, offload] = flags;
            let offer = Offer {
                dtypes, tile_unit: unit, tile_least: least, batch_most, exact, carried, offload, prefetch_most: 3, running: None,
            };
            let mut bounds = Bounds { batch, frames, height: height * 8, width: width * 8, scale, offer };
            // What runs was checked, and only a clip is left in the middle.
            bounds.offer.running = running.filter(|_| frames > 1).and_then(|mut plan| {
                fit(&mut plan, &bounds, &mut |_| {}).ok().map(|()| plan)
            });
            bounds
        }
    }

    prop_compose! {
        fn any_plan()(
            kind in 0..3, height in side(), width in side(), overlap in side(), time in 0..3, frames in side(), shared in side(),
            batch in side(), dtype in 0..7usize, mixed in any::<bool>(), offload in any::<bool>(), prefetch in side(),
        ) -> Plan {
            let tile = Tile { height, width, overlap };
            let dtype = Dtype::NAMES[dtype].0;
            Plan {
                space: match kind { 0 => Space::Whole, 1 => Space::Blended(tile), _ => Space::Exact(tile) },
                time: match time { 0 => Time::Whole, 1 => Time::Carried { frames }, _ => Time::Blended { frames, overlap: shared } },
                batch,
                precision: if mixed { Precision::Mixed(dtype) } else { Precision::Uniform(dtype) },
                offload,
                prefetch,
                ..plan(Space::Whole)
            }
        }
    }

    fn side() -> impl Strategy<Value = u32> {
        prop_oneof![0u32..64, 0u32..5000, any::<u32>()]
    }

    proptest! {
        #[test]
        fn clamping_is_idempotent(mut plan in any_plan(), bounds in any_bounds()) {
            if fit(&mut plan, &bounds, &mut |_| {}).is_ok() {
                let once = plan.clone();
                let again = notes(&mut plan, &bounds);
                prop_assert_eq!(again, Vec::<String>::new());
                prop_assert_eq!(plan, once);
            }
        }

        #[test]
        fn a_clamped_plan_is_legal(mut plan in any_plan(), bounds in any_bounds()) {
            if fit(&mut plan, &bounds, &mut |_| {}).is_ok() {
                prop_assert_eq!(oracle::breaches(&plan, &bounds), Vec::<&str>::new());
            }
        }
    }
}
