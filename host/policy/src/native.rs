//! The host's own default, for when no policy's answer can be used: whole where that fits, else the largest tiles that do, in a type
//! that loses nothing unless the device is known to be fast in bf16. A clip whose causal state is carried leaves a latent frame at a
//! time, whole or in bands, and only where not even its state fits in tiles that run over the whole clip.

use tilewright_plan::{
    Attempt, Backend, Device, Dtype, Facts, Failure, Layout, Offer, Plan, Precision, Release, Request, Space, Tile,
    Time,
};

use crate::check::{self, Bounds};

/// Sides of tiles to try, in output pixels, largest first.
const SIDES: [u32; 11] = [2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64];

/// Heights of a clip's exact bands to try, in output pixels, largest first.
const BANDS: [u32; 3] = [256, 128, 64];

/// Chunks below a latent frame, for when memory is short: frames that run through the largest layers at once.
const SHORT: [u32; 2] = [2, 1];

/// How a request is run when nobody else says.
pub(crate) fn decide(request: &Request, device: &Device, offer: &Offer, facts: &dyn Facts) -> Plan {
    let usable = |dtype: Dtype| offer.dtypes.contains(&dtype) && device.fast_dtypes.contains(&dtype);
    let precision = match device.backend {
        Backend::Cpu => Precision::Uniform(Dtype::F32),
        _ if usable(Dtype::Bf16) => Precision::Uniform(Dtype::Bf16),
        _ => Precision::Uniform(Dtype::F32),
    };
    let plan = Plan { precision, ..plain(device) };
    fitting(plan, request, offer, facts, request.memory_limit, "native default")
}

/// How a request is run after its attempts failed.
pub(crate) fn recover(
    request: &Request,
    device: &Device,
    offer: &Offer,
    facts: &dyn Facts,
    attempts: &[Attempt],
) -> Plan {
    let Some(last) = attempts.last() else {
        return decide(request, device, offer, facts);
    };
    let bounds = Bounds::new(request, offer);
    match last.failure {
        Failure::NonFinite { .. } => {
            let precision = Precision::Uniform(Dtype::F32);
            let wider =
                Plan { precision, reason: "native default: f32 after values overflowed".into(), ..last.plan.clone() };
            match facts.estimate(&wider) {
                Ok(cost) if cost.peak_bytes <= request.memory_limit => {
                    legal(wider, &bounds).unwrap_or(last.plan.clone())
                }
                _ => fitting(
                    wider,
                    request,
                    offer,
                    facts,
                    request.memory_limit,
                    "native default: f32 after values overflowed",
                ),
            }
        }
        Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
            let expected = facts.estimate(&last.plan).map_or(request.memory_limit, |cost| cost.peak_bytes);
            // What was measured ran over what was expected, so the next plan has to be expected well below.
            let most = request.memory_limit.min(expected / 10 * 7);
            let plan = Plan { precision: last.plan.precision, release: Release::EachStep, ..plain(device) };
            fitting(plan, request, offer, facts, most, "native default: smaller after memory ran out")
        }
    }
}

/// The plan as it is if it fits into `most` bytes, else with the largest parts that do, else with the least memory that is to be had.
fn fitting(plan: Plan, request: &Request, offer: &Offer, facts: &dyn Facts, most: u64, reason: &str) -> Plan {
    let bounds = Bounds::new(request, offer);
    let plans = divisions(request, offer).into_iter().filter_map(|(space, time)| {
        legal(Plan { space, time, batch: 1, reason: reason.into(), ..plan.clone() }, &bounds)
    });
    let mut least: Option<(u64, Plan)> = None;
    for plan in plans {
        let Ok(cost) = facts.estimate(&plan) else { continue };
        if cost.peak_bytes <= most {
            return plan;
        }
        if least.as_ref().is_none_or(|(peak, _)| cost.peak_bytes < *peak) {
            least = Some((cost.peak_bytes, plan));
        }
    }
    least.map_or(Plan { space: Space::Whole, batch: 1, reason: reason.into(), ..plan }, |(_, plan)| plan)
}

/// Ways to divide the request, most memory first.
fn divisions(request: &Request, offer: &Offer) -> Vec<(Space, Time)> {
    let tile =
        |side: u32| Space::Blended(Tile { height: side, width: side, overlap: (side / 8).max(32).min(side / 4) });
    let pictures = || std::iter::once(Space::Whole).chain(SIDES.iter().map(|side| tile(*side)));
    if request.frames <= 1 || !offer.carried {
        return pictures().map(|space| (space, Time::Whole)).collect();
    }
    let latent_frame = request.model.temporal_scale.max(1);
    let chunks = std::iter::once(latent_frame).chain(SHORT.into_iter().filter(|frames| *frames < latent_frame));
    let heights = BANDS.iter().filter(|_| offer.exact);
    let bands: Vec<Space> =
        heights.map(|height| Space::Exact(Tile { height: *height, width: request.width, overlap: 0 })).collect();
    let mut divisions: Vec<(Space, Time)> = Vec::new();
    for (index, frames) in chunks.enumerate() {
        // Bands take more off than shorter chunks do: those only come with the smallest.
        let spaces = match (index, bands.last()) {
            (0, _) => [&[Space::Whole], bands.as_slice()].concat(),
            (_, smallest) => vec![smallest.copied().unwrap_or(Space::Whole)],
        };
        divisions.extend(spaces.into_iter().map(|space| (space, Time::Carried { frames })));
    }
    // A clip in tiles can't be taken up in the middle; where one runs in tiles already, checking keeps it in those.
    divisions.extend(SIDES.iter().map(|side| (tile(*side), Time::Whole)));
    divisions
}

fn legal(mut plan: Plan, bounds: &Bounds) -> Option<Plan> {
    check::fit(&mut plan, bounds, &mut |_| {}).ok().map(|()| plan)
}

fn plain(device: &Device) -> Plan {
    // Channels-last is about 15 % faster on AVX-512 CPUs and hurts on gfx11; NVIDIA's fast paths want it for half types.
    let layout = match device.backend {
        Backend::Cpu | Backend::Cuda => Layout::ChannelsLast,
        Backend::Rocm | Backend::Metal => Layout::ChannelsFirst,
    };
    Plan {
        space: Space::Whole,
        time: Time::Whole,
        batch: 1,
        precision: Precision::Uniform(Dtype::F32),
        layout,
        release: Release::Keep,
        offload: false,
        prefetch: 0,
        reason: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tilewright_plan::{Cost, Model, Objective, Trial};

    use super::*;

    /// WAN in f32: 5,600 bytes of activations per pixel and frame at once, of which bands hold their share and a tenth; 4,000 bytes of
    /// state per pixel of what is held of the picture; and the clip itself where it leaves together.
    struct Prices(Request);

    impl Facts for Prices {
        fn estimate(&self, plan: &Plan) -> Result<Cost, String> {
            let request = &self.0;
            let picture = u64::from(request.height) * u64::from(request.width);
            let tile = plan.space.tile().map_or(picture, |tile| u64::from(tile.height) * u64::from(tile.width));
            let (worked, state) = match plan.space {
                Space::Whole => (picture, picture),
                Space::Exact(_) => (tile + picture / 10, picture),
                Space::Blended(_) if plan.time == Time::Whole => (tile, tile),
                Space::Blended(_) => (tile, picture),
            };
            let (frames, kept) = match plan.time {
                Time::Carried { frames } => (frames, 0),
                Time::Whole | Time::Blended { .. } => (4, request.frames),
            };
            let peak_bytes = worked * 5_600 * u64::from(frames) + state * 4_000 + picture * 12 * u64::from(kept);
            Ok(Cost { peak_bytes, elapsed: Duration::ZERO, tiles: 1, shapes: 1, rework: 1.0 })
        }

        fn trials(&self, _most: u32) -> Vec<Trial> {
            Vec::new()
        }
    }

    fn device() -> Device {
        Device {
            backend: Backend::Cpu,
            name: "test".into(),
            arch: "test".into(),
            compute_units: 1,
            total_bytes: 1 << 40,
            free_bytes: 1 << 40,
            unified: false,
            fast_dtypes: vec![],
        }
    }

    fn offer(running: Option<Plan>) -> Offer {
        Offer {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            tile_unit: 8,
            tile_least: 64,
            batch_most: 16,
            exact: true,
            carried: true,
            offload: false,
            prefetch_most: 0,
            running,
        }
    }

    fn clip(memory_limit: u64) -> Request {
        let model = Model {
            family: "wan-2.1".into(),
            stored: Dtype::F32,
            quantized: false,
            parameter_bytes: 1 << 28,
            spatial_scale: 8,
            temporal_scale: 4,
        };
        Request {
            model,
            batch: 1,
            frames: 81,
            height: 480,
            width: 832,
            memory_limit,
            objective: Objective::Balanced,
            hints: Vec::new(),
        }
    }

    #[test]
    fn a_clip_leaves_frame_by_frame_and_in_tiles_last() {
        let at = |limit: u64| {
            let request = clip(limit);
            let plan = decide(&request, &device(), &offer(None), &Prices(request.clone()));
            assert!(Prices(request).estimate(&plan).unwrap().peak_bytes <= limit, "{plan:?}");
            (plan.space, plan.time)
        };
        let bands = |height| Space::Exact(Tile { height, width: 832, overlap: 0 });
        let carried = |frames| Time::Carried { frames };
        assert_eq!(at(12 << 30), (Space::Whole, carried(4)));
        assert_eq!(at(8 << 30), (bands(256), carried(4)));
        assert_eq!(at(4 << 30), (bands(64), carried(4)));
        assert_eq!(at(2_200 << 20), (bands(64), carried(1)));
        let (space, time) = at(1500 << 20);
        assert!(matches!(space, Space::Blended(_)) && time == Time::Whole, "{space:?}");
    }

    #[test]
    fn a_clip_under_way_is_not_cut() {
        let request = clip(2_200 << 20);
        let facts = Prices(request.clone());
        let begun = Plan { time: Time::Carried { frames: 4 }, layout: Layout::ChannelsFirst, ..plain(&device()) };
        let attempts = [Attempt { plan: begun.clone(), failure: Failure::OutOfMemory { bytes: 1 } }];
        let next = recover(&request, &device(), &offer(Some(begun.clone())), &facts, &attempts);
        assert!(matches!((next.space, next.time), (Space::Exact(_), Time::Carried { .. })), "{next:?}");
        assert_eq!(next.layout, begun.layout);
        assert!(facts.estimate(&next).unwrap().peak_bytes <= request.memory_limit);
    }
}
