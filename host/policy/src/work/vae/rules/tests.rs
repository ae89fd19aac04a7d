use proptest::prelude::*;
use tilewright_plan::{Attempt, Capabilities, Failure, Layout, Release};

use super::*;
use crate::{check::fit, work::Planned};

fn bounds() -> Bounds {
    let capabilities = Capabilities {
        dtypes: vec![Dtype::F32, Dtype::Tf32, Dtype::Bf16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: false,
        carried: false,
        offload: false,
        prefetch_most: 2,
        options: Vec::new(),
    };
    Bounds { batch: 2, frames: 1, height: 1024, width: 2048, scale: 4, capabilities, running: None }
}

/// 81 frames of a model that carries its state, with this plan under way.
fn clip(running: Option<Plan>) -> Bounds {
    let capabilities = Capabilities { exact: true, carried: true, offload: true, ..bounds().capabilities };
    Bounds { frames: 81, height: 480, width: 832, capabilities, running, ..bounds() }
}

fn carried(frames: u32, space: Space) -> Plan {
    Plan { time: Time::Carried { frames }, ..plan(space) }
}

fn plan(space: Space) -> Plan {
    Plan { space, ..Plan::plain() }
}

fn blended(height: u32, width: u32, overlap: u32) -> Plan {
    plan(Space::Blended(Tile { height, width, overlap }))
}

fn notes(plan: &mut Plan, bounds: &Bounds) -> Vec<String> {
    let mut notes = Vec::new();
    fit::<Vae>(plan, bounds, &mut |note| notes.push(note.to_string())).unwrap();
    notes
}

#[test]
fn every_range_has_its_message() {
    let cases: Vec<(Plan, &[&str])> = vec![
        (blended(768, 768, 300), &["overlap 300 → 192: at most a quarter of the tile"]),
        (blended(770, 771, 96), &["tile height 770 → 768: a multiple of 8", "tile width 771 → 768: a multiple of 8"]),
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
        (
            Plan { precision: Precision::Uniform(Dtype::Tf32), ..plan(Space::Whole) },
            &["precision uniform tf32 → tf32: only convolutions round to tf32"],
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
    let capabilities = Capabilities { exact: true, ..bounds().capabilities };
    let bounds = Bounds { capabilities, ..bounds() };
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
    bounds.capabilities.carried = true;
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
    let cpu = Bounds { capabilities: Capabilities { offload: false, ..clip(None).capabilities }, ..clip(None) };
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
        // The division of time stays.
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
    let refused = |mut plan: Plan| fit::<Vae>(&mut plan, &bounds(), &mut |_| {}).unwrap_err();
    assert_eq!(refused(blended(0, 512, 0)), "a tile of no extent");
    assert_eq!(refused(blended(512, 0, 0)), "a tile of no extent");
    let exact = |height, width| plan(Space::Exact(Tile { height, width, overlap: 0 }));
    assert_eq!(refused(exact(0, 512)), "a tile of no extent");
    let mut high = exact(64, 0);
    fit::<Vae>(&mut high, &bounds(), &mut |_| {}).unwrap();
    assert_ne!(high.space.tile().unwrap().width, 0, "only the height matters");
    assert_eq!(refused(Plan { batch: 0, ..plan(Space::Whole) }), "a batch of nothing");
    assert_eq!(refused(Plan { time: Time::Carried { frames: 0 }, ..plan(Space::Whole) }), "a chunk of no frames");
}

prop_compose! {
    fn any_bounds()(
        batch in 1u32..9, frames in 1u32..40, scale in 0u32..9, height in 1u32..400, width in 1u32..400,
        unit in 0u32..20, least in 0u32..200, batch_most in 0u32..20, flags in any::<[bool; 3]>(),
        dtypes in proptest::sample::subsequence(vec![Dtype::F32, Dtype::Tf32, Dtype::Bf16, Dtype::F16], 0..=4),
        running in proptest::option::of(any_plan()),
    ) -> Bounds {
        let [exact, carried, offload] = flags;
        let capabilities = Capabilities {
            dtypes, tile_unit: unit, tile_least: least, batch_most, exact, carried, offload, prefetch_most: 3, options: Vec::new(),
        };
        let mut bounds = Bounds { batch, frames, height: height * 8, width: width * 8, scale, capabilities, running: None };
        // The running plan was checked, and only a clip is under way.
        bounds.running = running.filter(|_| frames > 1).and_then(|mut plan| {
            fit::<Vae>(&mut plan, &bounds, &mut |_| {}).ok().map(|()| plan)
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
        let dtype = Dtype::ALL[dtype];
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
        if fit::<Vae>(&mut plan, &bounds, &mut |_| {}).is_ok() {
            let once = plan.clone();
            let again = notes(&mut plan, &bounds);
            prop_assert_eq!(again, Vec::<String>::new());
            prop_assert_eq!(plan, once);
        }
    }

    #[test]
    fn a_clamped_plan_is_legal(mut plan in any_plan(), bounds in any_bounds()) {
        if fit::<Vae>(&mut plan, &bounds, &mut |_| {}).is_ok() {
            prop_assert_eq!(Vae::breaches(&plan, &bounds), Vec::<&str>::new());
        }
    }
}

#[test]
fn what_failed_in_other_words_is_the_same_plan() {
    let memory = |plan: Plan| Attempt { plan, failure: Failure::OutOfMemory { bytes: 1 } };
    let tiles = blended(512, 512, 64);
    let tried = memory(tiles.clone());
    let alike = [
        Plan { release: Release::EachStep, ..tiles.clone() },
        Plan { layout: Layout::ChannelsLast, ..tiles.clone() },
        Plan { prefetch: 2, reason: "another".into(), ..tiles.clone() },
        blended(512, 512, 128),
    ];
    assert!(alike.iter().all(|plan| Vae::repeats(plan, &tried)), "{alike:?}");
    let others = [
        blended(512, 448, 64),
        plan(Space::Whole),
        Plan { batch: 2, ..tiles.clone() },
        Plan { offload: true, ..tiles.clone() },
        Plan { precision: Precision::Uniform(Dtype::Bf16), ..tiles.clone() },
        carried(4, tiles.space),
    ];
    assert!(others.iter().all(|plan| !Vae::repeats(plan, &tried)), "{others:?}");
    let overflowed = Attempt { plan: tiles, failure: Failure::NonFinite { values: 1 } };
    assert!(alike.iter().all(|plan| Vae::repeats(plan, &overflowed)), "{alike:?}");
    assert!(others.iter().all(|plan| !Vae::repeats(plan, &overflowed)), "{others:?}");
}
