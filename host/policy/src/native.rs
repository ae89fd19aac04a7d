//! The host's own default, for when no policy's answer can be used: whole where that fits, else the largest tiles that do, in a type
//! that loses nothing unless the device is known to be fast in bf16.

use tilewright_plan::{
    Attempt, Backend, Device, Dtype, Facts, Failure, Layout, Offer, Plan, Precision, Release, Request, Space, Tile,
    Time,
};

use crate::check::{self, Bounds};

/// Sides of tiles to try, in output pixels, largest first.
const SIDES: [u32; 11] = [2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64];

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

/// The plan as it is if it fits into `most` bytes, else with the largest tiles that do, else with the least memory that is to be had.
fn fitting(plan: Plan, request: &Request, offer: &Offer, facts: &dyn Facts, most: u64, reason: &str) -> Plan {
    let bounds = Bounds::new(request, offer);
    let tile =
        |side: u32| Space::Blended(Tile { height: side, width: side, overlap: (side / 8).max(32).min(side / 4) });
    let spaces = std::iter::once(Space::Whole).chain(SIDES.iter().map(|side| tile(*side)));
    let plans =
        spaces.filter_map(|space| legal(Plan { space, batch: 1, reason: reason.into(), ..plan.clone() }, &bounds));
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
