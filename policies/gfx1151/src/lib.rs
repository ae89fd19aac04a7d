//! The published settings for Strix Halo (gfx1151), and its neighbours' tile limits: f32 for small
//! pictures, mixed for medium, bf16 for large; tiles of 768 to 1024 with an overlap of 96; 512 and
//! no batching for quantized models; video in chunks of 4 to 16 frames, fewer for large pictures
//! and when memory is short; nothing above 80 % of memory.
//!
//! The published overlap of 2 to 8 frames only serves models without a causal cache. Chunks that
//! carry it give the whole clip's output, and blending would bring the clip out of step (1393
//! frames instead of 1201, as one of its users found).
//!
//! After a failure for memory a clip gets shorter chunks, then exact bands, then smaller tiles; one
//! that is under way no tiles.
//!
//! Sources: rocm-ninodes' node defaults and per-architecture table, and its users' reports: bf16 in
//! place of f16, since f16 overflows there. Channels-last is slower on gfx11. A 1664×928 decode
//! took 54.8 s whole and 4.8 s tiled, both in bf16, so every picture beyond one tile is tiled. All
//! of them are about decodes: rocm-ninodes has no node that encodes, so encodes are left to the
//! host's fallback.
//!
//! Tiles are blended: if the user does not allow that, exact bands of the tile's height come in
//! their place as long as they fit.
//!
//! **Recent ROCm**: those reports are of older releases. With ROCm 10.1 (release candidate 3, HIP
//! 7.16, MIOpen in use) whole decodes in bf16 take 0.39 to 1.25 s at 1024×1024, and Flux.1's 4.26 s
//! at 2048×2048 (TheNoise, docs/CONTINUE.md at 92dd575c): tiles are for memory there. From that
//! release on, pictures beyond the small ones are decoded whole in bf16 on gfx115x while they fit
//! into the share of memory, then in exact bands, then in the published tiles. Clips and quantized
//! models keep the published settings: nobody has measured them. Releases between the reports count
//! as older, and so does one that is not known.
//!
//! **Samples** go by the options of its sampler nodes:
//!
//! - **Type**: f32, for stability; bf16 if f32 does not fit, since f16 accumulation made bands and
//!   crashes on gfx1151.
//! - **Quantized weights**: compatibility mode. They stay as they are stored, no type is forced on
//!   them, and nothing runs together.
//! - **Attention**: fused, if the device has it. In products, its bytes count 1.5 times.
//! - **Passes**: together while they fit, but not of quantized weights.
//! - **Weights**: on the device while they fit into the share of memory, else streamed.

use tilewright_sdk::{
    Attempt, Description, Dtype, Failure, Overlapped, Plan, Policy, Precision, Release, Request, Settings, Space,
    Stage, Tile, Time, denoise, host,
};

mod sample;

/// Up to this many pixels a picture is small, up to the next it is medium.
const SMALL: u64 = 512 * 512;
const MEDIUM: u64 = 1024 * 1024;

/// Longest side up to which the smaller of the two tiles is used.
const LONG: u32 = 1536;

const TILES: [u32; 2] = [768, 1024];
const OVERLAP: u32 = 96;
const QUANTIZED_TILE: u32 = 512;

/// The first release with fast whole decodes, by ROCm's version, else by HIP's. The host has the
/// same (`host/torch/src/miopen.rs`).
const FAST_WHOLE: [(&str, [u32; 2]); 2] = [("rocm", [10, 1]), ("hip", [7, 16])];

/// The chips that these decodes count for: a Radeon 8060S, gfx1151, was measured.
const FAST_CHIPS: &str = "gfx115";

/// Heights of bands of pictures that don't fit whole with such a release.
const WIDE_BANDS: [u32; 3] = [1024, 768, 512];

/// Smaller tiles if memory is short.
const SMALLER: [u32; 5] = [640, 512, 384, 256, 128];

/// Frames of a chunk: for small, medium and large pictures, and if memory is short.
const CHUNKS: [u32; 3] = [16, 8, 4];

/// Chunks and bands that are not published, for a clip that fails for memory all the same.
const SHORTER: [u32; 4] = [8, 4, 2, 1];
const BANDS: [u32; 3] = [256, 128, 64];

/// The most memory to use, as a share.
const SHARE: f64 = 0.8;

/// Most tiles that run together, by the architecture's name; others run 4.
const BATCHES: [(&str, u32); 5] = [("gfx115", 8), ("gfx110", 16), ("gfx103", 8), ("gfx90a", 32), ("gfx942", 32)];

/// Strix Halo's rules.
pub struct Gfx1151 {
    tile: Option<u32>,
    share: f64,
}

impl Policy for Gfx1151 {
    fn describe() -> Description {
        Description::new("gfx1151", env!("CARGO_PKG_VERSION"), "The published settings for AMD's Strix Halo.")
            .stages(&[Stage::Decode, Stage::Denoise])
            .setting("tile", "The side of a tile in pixels; 0 for 768, or 1024 for large pictures, and none while recent ROCm has memory for the whole.", 0)
            .setting("memory-share", "The share of the device's memory to use at most.", SHARE)
    }

    fn configure(settings: &Settings) -> Result<Self, String> {
        let tile = settings.count("tile", 0, 2048)?;
        let share = settings.number("memory-share")?;
        if !(share > 0.0 && share <= 1.0) {
            return Err("memory-share: has to be above 0, and 1 at most".into());
        }
        Ok(Self { tile: Some(tile).filter(|tile| *tile > 0), share })
    }

    fn decide(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        Ok(host::allowed(self.published(request, attempts)?, request, attempts))
    }

    fn decide_denoise(
        &mut self,
        request: &denoise::Request,
        attempts: &[denoise::Attempt],
    ) -> Result<denoise::Plan, String> {
        sample::decide(request, attempts, self.share)
    }
}

tilewright_sdk::export!(Gfx1151);

impl Gfx1151 {
    /// The published plan.
    fn published(&self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let Some(last) = attempts.last() else {
            let plan = self.largest(request, precision(request), self.limit(request), &[]);
            return plan.ok_or_else(|| "no tile fits into its share of memory".into());
        };
        match last.failure {
            Failure::NonFinite(_) => {
                let wider = match last.plan.precision {
                    Precision::Uniform(Dtype::F32) => return Err("not finite in f32".into()),
                    Precision::Uniform(_) if request.offers(Dtype::Bf16) => Precision::Mixed(Dtype::Bf16),
                    _ => Precision::Uniform(Dtype::F32),
                };
                let limit = self.limit(request);
                let kept = request.under_way.is_some().then(|| {
                    let plan = Plan { precision: wider, ..last.plan.clone() };
                    first(std::iter::once(plan.clone()).chain(leaner(request, &plan)), limit, attempts)
                });
                let plan = kept.unwrap_or_else(|| self.largest(request, wider, limit, attempts));
                Ok(plan.ok_or("no tile fits in a wider type")?.because("values overflowed: a wider type"))
            }
            Failure::OutOfMemory(_) | Failure::OverLimit(_) => {
                let expected = host::estimate_one(&last.plan).map_or(self.limit(request), |cost| cost.held());
                let limit = self.limit(request).min(expected / 10 * 7);
                let steps = first(leaner(request, &last.plan).into_iter(), limit, attempts)
                    .map(|plan| plan.because("memory ran out: fewer frames or rows at once"));
                let tiles = || {
                    let is_free = request.under_way.is_none();
                    let plan = is_free.then(|| self.largest(request, last.plan.precision, limit, attempts)).flatten();
                    plan.map(|plan| plan.because("memory ran out: less of the picture at once"))
                };
                let plan = steps.or_else(tiles).ok_or("nothing smaller is left")?;
                Ok(Plan { release: Release::EachStep, ..plan })
            }
        }
    }

    fn limit(&self, request: &Request) -> u64 {
        request.limit_bytes.min((request.device.total_bytes as f64 * self.share) as u64)
    }

    /// The plan with the largest published tiles that fit, with the longest published chunks, in a
    /// single batch if necessary.
    fn largest(&self, request: &Request, precision: Precision, limit: u64, tried: &[Attempt]) -> Option<Plan> {
        let quantized = request.is_quantized();
        let side = match self.tile {
            Some(side) => side,
            None if quantized => QUANTIZED_TILE,
            None => TILES[usize::from(request.longest() > LONG)],
        };
        let most = BATCHES.iter().find(|(arch, _)| request.device.arch.starts_with(arch)).map_or(4, |(_, most)| *most);
        let batches: &[u32] = if quantized || request.frames > 1 { &[1] } else { &[most, most / 2, 1] };
        let times = times(request);
        // Tiles as the host would round them, so that failed plans are recognised.
        let least = request.tile_least();
        let sides = || [side, TILES[0]].into_iter().chain(SMALLER).filter(|smaller| *smaller <= side);
        let sides = || sides().map(|side| side.max(least));
        let divided = |side: u32, time: Time| {
            let (height, width) = (side.min(request.height), side.min(request.width));
            let tile = Tile { height, width, overlap: OVERLAP.min(height.min(width) / 8 * 8 / 4) };
            Plan { time, ..Plan::whole(precision) }.blended(request, tile)
        };
        let plans = sides().flat_map(|side| times.iter().map(move |time| divided(side, *time)));
        let plans = plans.flat_map(|plan| batches.iter().map(move |batch| Plan { batch: *batch, ..plan.clone() }));
        let undivided = is_fast_whole(request).then(|| {
            let heights = std::iter::once(request.height).chain(WIDE_BANDS);
            heights.map(|height| Plan::whole(precision).exact(request, height))
        });
        // Tiles over the whole clip hold one tile's causal cache: for pictures whose own takes too
        // much.
        let is_clip = request.offers_carried();
        let over_all =
            sides().filter(|side| is_clip && *side < request.longest()).map(|side| divided(side, Time::Whole));
        let undivided = undivided.into_iter().flatten().filter(|plan| {
            self.tile.is_none() && (request.capabilities.exact || !matches!(plan.space, Space::Exact(_)))
        });
        if let Some(plan) = first(undivided, limit, tried) {
            let reason = if plan.space == Space::Whole { "this ROCm needs no tiles" } else { "bands for memory alone" };
            return Some(plan.because(reason));
        }
        let reason = match precision {
            Precision::Uniform(Dtype::F32) => "published: f32 for small pictures",
            Precision::Mixed(_) => "published: mixed for medium pictures",
            Precision::Uniform(_) => "published: half for large pictures",
        };
        first(plans.chain(over_all), limit, tried).map(|plan| plan.because(reason))
    }
}

/// The first plan that is expected to fit and has not failed.
fn first(mut plans: impl Iterator<Item = Plan>, limit: u64, tried: &[Attempt]) -> Option<Plan> {
    plans.find(|plan| {
        let is_new = !tried.iter().any(|attempt| plan.repeats(attempt));
        is_new && host::estimate_one(plan).is_ok_and(|cost| cost.held() <= limit)
    })
}

/// A carried clip's plans with fewer frames at once than the one that failed, then in bands, most
/// memory first; none for anything else.
fn leaner(request: &Request, failed: &Plan) -> Vec<Plan> {
    let Time::Carried(frames) = failed.time else { return Vec::new() };
    let chunk = |frames: &u32| Plan { time: Time::Carried(*frames), ..failed.clone() };
    let is_tiled = matches!(failed.space, Space::Blended(_));
    if is_tiled || !request.capabilities.exact {
        return SHORTER.iter().filter(|shorter| **shorter < frames).map(chunk).collect();
    }
    let most = failed.tile().map_or(request.height, |band| band.height);
    let few = frames.min(CHUNKS[2]);
    let published = SHORTER.iter().filter(|shorter| (few..frames).contains(shorter)).map(chunk);
    let bands = BANDS.into_iter().filter(|height| *height < most);
    let banded = |height: u32, frames: u32| chunk(&frames).exact(request, height);
    let last = SHORTER.into_iter().filter(|shorter| *shorter < few).map(|shorter| banded(BANDS[2].min(most), shorter));
    published.chain(bands.map(|height| banded(height, few))).chain(last).collect()
}

/// True for a picture whose whole decode is fast: on such a chip, by libraries of such a release
/// with MIOpen in use, and with weights as they were measured.
fn is_fast_whole(request: &Request) -> bool {
    if !request.device.arch.starts_with(FAST_CHIPS) || request.frames > 1 || request.is_quantized() {
        return false;
    }
    let known = FAST_WHOLE.iter().find_map(|(name, least)| Some((version(request.hint(name)?)?, least)));
    known.is_some_and(|(found, least)| found >= *least) && request.hint("miopen-used") != Some("false")
}

/// The first two numbers of a version, "10.1.0".
fn version(text: &str) -> Option<[u32; 2]> {
    let mut numbers = text.split('.').map_while(|number| number.parse().ok());
    Some([numbers.next()?, numbers.next()?])
}

/// f32 for small, mixed for medium, bf16 for large; f32 if bf16 is not available, or on a CPU. With
/// a release whose whole decodes are fast in it, bf16 for medium ones, too.
fn precision(request: &Request) -> Precision {
    let pixels = u64::from(request.height) * u64::from(request.width);
    let narrow = request.has_gpu() && request.offers(Dtype::Bf16);
    if !narrow || pixels <= SMALL {
        Precision::Uniform(Dtype::F32)
    } else if pixels <= MEDIUM && !is_fast_whole(request) {
        Precision::Mixed(Dtype::Bf16)
    } else {
        Precision::Uniform(Dtype::Bf16)
    }
}

/// 16 frames at once for small pictures, 8 for medium and 4 for large ones, and fewer if those take
/// too much memory.
fn times(request: &Request) -> Vec<Time> {
    let pixels = u64::from(request.height) * u64::from(request.width);
    let longest = usize::from(pixels > SMALL) + usize::from(pixels > MEDIUM);
    if request.frames <= CHUNKS[2] {
        return vec![Time::Whole];
    }
    let chunk = |frames: u32| match request.offers_carried() {
        true => Time::Carried(frames.min(request.frames)),
        // Half of the chunk is shared, which is 2 to 8 frames.
        false => Time::Blended(Overlapped { frames, overlap: frames / 2 }),
    };
    CHUNKS[longest..].iter().map(|frames| chunk(*frames)).collect()
}

#[cfg(test)]
mod tests;
