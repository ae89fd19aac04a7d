//! {{name}}: decodes and encodes whole if that fits into memory, in exact bands if it doesn't, and
//! in tiles if nothing else fits. Samples are in `sample.rs`.
//!
//! The host asks `decide` for a plan, and again after each plan that failed. It checks and clamps
//! the answer: a policy advises, and can't break anything. `sdk/wit/policy.wit` explains every
//! field.

use std::iter::{once, successors};

use tilewright_sdk::{
    Attempt, Cost, Description, Dtype, Failure, Layout, Objective, Outcome, Plan, Policy, Precision, Request, Settings,
    Stage, Tile, Time, denoise, host,
};

mod sample;

/// The smallest tile, in pixels of the decoded picture.
const LEAST: u32 = 64;

/// One value lives as long as the policy is in use; a field here is what `learn` can remember.
pub struct Tiles {
    /// The side of a tile, as set by the user.
    side: u32,
}

impl Policy for Tiles {
    // Shown by `tilewright policy inspect`. A setting's default has its type: flag, integer,
    // number or text. The host decides a stage that is not listed.
    fn describe() -> Description {
        Description::new("{{name}}", env!("CARGO_PKG_VERSION"), "Whole if it fits, tiles if it doesn't.")
            .stages(&[Stage::Decode, Stage::Encode, Stage::Denoise])
            .setting("tile", "The side of a tile in pixels, if tiles are needed: 256 to 4096.", 512)
    }

    // Gets every declared setting. After an error the policy is not put to work: name the setting
    // and the allowed values.
    fn configure(settings: &Settings) -> Result<Self, String> {
        Ok(Self { side: settings.count("tile", 256, 4096)? })
    }

    // `request.direction` is decode or encode; the host's prices are for that request.
    fn decide(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        // The device: half the bytes if a probe found bf16 no slower. `request.device.arch`
        // ("gfx1151") is for rules about one chip.
        let is_fast = request.is_fast(Dtype::Bf16);
        let mut dtypes: &[Dtype] = if is_fast { &[Dtype::Bf16, Dtype::F32] } else { &[Dtype::F32] };
        // The user's limit, which goes by what is free if none was given.
        let mut budget = request.limit_bytes;
        for Attempt { plan, failure } in attempts {
            match failure {
                // NaN or infinity: a type with a wider range.
                Failure::NonFinite(_) if plan.precision == Precision::Uniform(Dtype::F32) => {
                    return Err("not finite in f32".into());
                }
                Failure::NonFinite(_) => dtypes = &[Dtype::F32],
                // Too much memory, and more than expected: the next plan has to be expected well
                // below.
                Failure::OutOfMemory(_) | Failure::OverLimit(_) => {
                    let expected = host::estimate_one(plan).map_or(0, |cost| cost.held());
                    budget = budget.min(expected / 10 * 7);
                }
            }
        }
        // An error is an honest answer: the host then uses its own plan.
        if !attempts.is_empty() && request.under_way.is_some() {
            return Err("what a clip under way may change is best known to the host".into());
        }
        let plans = self.candidates(request, &whole(request, dtypes));
        match best(request, &plans, budget) {
            Some(plan) => Ok(plan),
            None if attempts.is_empty() => {
                Ok(plans[plans.len() - 1].clone().because("nothing is expected to fit: the smallest tiles"))
            }
            None => Err("nothing smaller is expected to fit".into()),
        }
    }

    // Called with the outcome of a plan. `host::trials` gives the same later, so most policies need
    // nothing here.
    fn learn(&mut self, _request: &Request, _plan: &Plan, _outcome: &Outcome) {}

    // The same for samples.
    fn decide_denoise(
        &mut self,
        request: &denoise::Request,
        attempts: &[denoise::Attempt],
    ) -> Result<denoise::Plan, String> {
        sample::decide(request, attempts)
    }
}

impl Tiles {
    /// Plans with the types and memory order of the whole picture, the largest parts first.
    fn candidates(&self, request: &Request, whole: &Plan) -> Vec<Plan> {
        let sides: Vec<u32> = successors(self.smaller(request.longest()), |side| self.smaller(*side)).collect();
        // Bands give the whole picture's output, where the host can run them.
        let bands = sides
            .iter()
            .filter(|side| request.capabilities.exact && **side < request.height)
            .map(|side| whole.clone().exact(request, *side));
        let exact: Vec<Plan> = once(whole.clone()).chain(bands).collect();
        // A clip also gets plans with as many frames as the model takes at once, and with fewer in
        // the smallest bands.
        let frames = |plan: &Plan, frames| Plan { time: Time::Carried(frames), ..plan.clone() };
        let scale = request.temporal_scale;
        let least = |plan: &Plan| if request.frames > 1 { frames(plan, scale) } else { plan.clone() };
        let mut plans: Vec<Plan> = Vec::new();
        for plan in &exact {
            plans.push(plan.clone());
            plans.extend((request.frames > 1).then(|| least(plan)));
        }
        if request.frames > 1 {
            plans.extend([2, 1].into_iter().filter(|few| *few < scale).map(|few| frames(&exact[exact.len() - 1], few)));
        }
        plans.extend(sides.iter().map(|side| tiles(&least(whole), request, *side)));
        plans
    }

    /// The next smaller tile than this many pixels: the user's side, half of it, a quarter,
    /// and so on.
    fn smaller(&self, than: u32) -> Option<u32> {
        successors(Some(self.side), |side| Some(side / 2)).find(|side| *side < than).filter(|side| *side >= LEAST)
    }
}

tilewright_sdk::export!(Tiles);

/// The best plan by the user's objective, of those that are expected to fit into memory.
fn best(request: &Request, plans: &[Plan], budget: u64) -> Option<Plan> {
    // A plan that the host can't run has an error instead of a cost, and is left out.
    let costs = host::estimate(plans);
    let priced = plans.iter().zip(costs).filter_map(|(plan, cost)| Some((plan, cost.ok()?)));
    let mut fitting: Vec<(&Plan, Cost)> = priced.filter(|(_, cost)| cost.held() <= budget).collect();
    // Tiles are cross-faded: unless the user allows that, they are the last resort.
    if !request.allows_blended && fitting.iter().any(|(plan, _)| !plan.is_blended()) {
        fitting.retain(|(plan, _)| !plan.is_blended());
    }
    let best = match request.objective {
        Objective::Fastest => fitting.iter().min_by_key(|(_, cost)| cost.elapsed_ns),
        Objective::Leanest => fitting.iter().min_by_key(|(_, cost)| cost.held()),
        // The first that fits: larger parts are computed faster.
        Objective::Balanced => fitting.first(),
    };
    best.map(|(plan, cost)| (*plan).clone().because(format!("the best that fits, {} tiles", cost.tiles)))
}

/// The fastest of these types and both memory orders, by the host's prices: the fastest for the
/// whole picture is the fastest in tiles, too.
fn whole(request: &Request, dtypes: &[Dtype]) -> Plan {
    let plan = |dtype, layout| {
        let mut plan = Plan { layout, ..Plan::whole(Precision::Uniform(dtype)) };
        if request.frames > 1 {
            // A clip: a few frames at once, with the causal cache carried.
            plan.time = Time::Carried(4 * request.temporal_scale);
        }
        plan
    };
    let layouts = [Layout::ChannelsFirst, Layout::ChannelsLast];
    let plans: Vec<Plan> = dtypes.iter().flat_map(|dtype| layouts.map(|layout| plan(*dtype, layout))).collect();
    let elapsed = host::estimate(&plans).into_iter().map(|cost| cost.map_or(u64::MAX, |cost| cost.elapsed_ns));
    let quickest = plans.into_iter().zip(elapsed).min_by_key(|(_, elapsed)| *elapsed);
    quickest.map_or_else(|| plan(Dtype::F32, Layout::ChannelsFirst), |(plan, _)| plan)
}

/// The same plan in tiles that are cross-faded over an eighth of their side.
fn tiles(plan: &Plan, request: &Request, side: u32) -> Plan {
    plan.clone().blended(request, Tile::square(side, side / 8))
}

#[cfg(test)]
mod tests;
