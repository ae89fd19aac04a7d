//! The published settings for Strix Halo (gfx1151), and its neighbours' tile limits: f32 for small pictures, mixed for medium, bf16 for
//! large; tiles of 768 to 1024 with an overlap of 96; 512 and no batching for quantized models; video in chunks of 4 to 16 frames with
//! an overlap of 2 to 8; nothing above 80 % of memory.
//!
//! Sources: rocm-ninodes' node defaults and per-architecture table, and its users' reports: bf16 where it takes f16, since f16 bands and
//! overflows there. Channels-last hurts on gfx11. A 1664×928 decode took 54.8 s whole and 4.8 s tiled, both in bf16, so that anything
//! beyond one tile is tiled.

use tilewright_sdk::{
    Attempt, Backend, Description, Dtype, Failure, Overlapped, Plan, Policy, Precision, Release, Request, Settings,
    Space, Tile, Time, host,
};

/// Up to this many pixels a picture is small, up to the next it is medium.
const SMALL: u64 = 512 * 512;
const MEDIUM: u64 = 1024 * 1024;

/// Longest side up to which the smaller of the two tiles is used.
const LONG: u32 = 1536;

const TILES: [u32; 2] = [768, 1024];
const OVERLAP: u32 = 96;
const QUANTIZED_TILE: u32 = 512;

/// Smaller tiles for when memory is short.
const SMALLER: [u32; 5] = [640, 512, 384, 256, 128];

/// The share of memory that is used at most.
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
            .setting("tile", "The side of a tile in pixels; 0 for 768, or 1024 for large pictures.", 0)
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

    fn decide(&mut self, request: &Request) -> Result<Plan, String> {
        let limit = self.limit(request);
        self.largest(request, precision(request), limit).ok_or_else(|| "no tile fits into its share of memory".into())
    }

    fn recover(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let Some(last) = attempts.last() else {
            return self.decide(request);
        };
        match last.failure {
            Failure::NonFinite(_) => {
                let wider = match last.plan.precision {
                    Precision::Uniform(Dtype::F32) => return Err("not finite in f32".into()),
                    Precision::Uniform(_) if request.offers(Dtype::Bf16) => Precision::Mixed(Dtype::Bf16),
                    _ => Precision::Uniform(Dtype::F32),
                };
                let plan = self.largest(request, wider, self.limit(request)).ok_or("no tile fits in a wider type")?;
                Ok(plan.because("values overflowed: a wider type"))
            }
            Failure::OutOfMemory(_) | Failure::OverLimit(_) => {
                let expected = host::estimate(&last.plan).map_or(self.limit(request), |cost| cost.peak_bytes);
                let limit = self.limit(request).min(expected / 10 * 7);
                let plan = self.largest(request, last.plan.precision, limit).ok_or("no smaller tile is left")?;
                Ok(Plan { release: Release::EachStep, ..plan }.because("memory ran out: smaller tiles"))
            }
        }
    }
}

tilewright_sdk::export!(Gfx1151);

impl Gfx1151 {
    fn limit(&self, request: &Request) -> u64 {
        request.memory_limit.min((request.device.total_bytes as f64 * self.share) as u64)
    }

    /// The plan with the largest of the published tiles that fits, in one batch if need be.
    fn largest(&self, request: &Request, precision: Precision, limit: u64) -> Option<Plan> {
        let quantized = request.model.quantized;
        let first = match self.tile {
            Some(side) => side,
            None if quantized => QUANTIZED_TILE,
            None => TILES[usize::from(request.longest() > LONG)],
        };
        let most = BATCHES.iter().find(|(arch, _)| request.device.arch.starts_with(arch)).map_or(4, |(_, most)| *most);
        let batches: &[u32] = if quantized { &[1] } else { &[most, most / 2, 1] };
        let plan = Plan { time: time(request), ..Plan::whole(precision) };
        for side in [first, TILES[0]].into_iter().chain(SMALLER).filter(|side| *side <= first) {
            let space = match request.longest() <= side {
                true => Space::Whole,
                false => Space::Blended(Tile::square(side, OVERLAP.min(side / 8 * 8 / 4))),
            };
            for batch in batches {
                let plan = Plan { space, batch: *batch, ..plan.clone() };
                if host::estimate(&plan).is_ok_and(|cost| cost.peak_bytes <= limit) {
                    let reason = match precision {
                        Precision::Uniform(Dtype::F32) => "published: f32 for small pictures",
                        Precision::Mixed(_) => "published: mixed for medium pictures",
                        Precision::Uniform(_) => "published: half for large pictures",
                    };
                    return Some(plan.because(reason));
                }
            }
        }
        None
    }
}

/// f32 for small, mixed for medium, bf16 for large; f32 where bf16 can't be had, or on a CPU.
fn precision(request: &Request) -> Precision {
    let pixels = u64::from(request.height) * u64::from(request.width);
    let narrow = request.device.backend != Backend::Cpu && request.offers(Dtype::Bf16);
    if !narrow || pixels <= SMALL {
        Precision::Uniform(Dtype::F32)
    } else if pixels <= MEDIUM {
        Precision::Mixed(Dtype::Bf16)
    } else {
        Precision::Uniform(Dtype::Bf16)
    }
}

/// 16 frames at once for small pictures, down to 4 for large ones; half as many shared, which is 2 to 8.
fn time(request: &Request) -> Time {
    let pixels = u64::from(request.height) * u64::from(request.width);
    let frames = if pixels <= SMALL {
        16
    } else if pixels <= MEDIUM {
        8
    } else {
        4
    };
    match request.frames {
        0..=4 => Time::Whole,
        // Chunks of their own break a causal decoder's clip; where the state can be carried across, it is.
        _ if request.hint("offer.carried") == Some("true") => Time::Carried(frames),
        _ => Time::Blended(Overlapped { frames, overlap: frames / 2 }),
    }
}
