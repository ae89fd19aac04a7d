//! {{name}}: decodes whole where that fits into memory, and in tiles where it doesn't.
//!
//! The host asks `decide` once per decode, and `recover` after each plan that failed. What it answers is checked and clamped: a policy
//! advises, and can't break anything. `sdk/wit/policy.wit` says what each field means.

use tilewright_sdk::{
    Attempt, Cost, Description, Dtype, Failure, Objective, Outcome, Plan, Policy, Precision, Request, Settings, Tile,
    host,
};

/// The smallest tile that `recover` goes down to, in pixels of the decoded picture.
const LEAST: u32 = 128;

/// One value lives as long as the policy is at work: what `learn` should remember goes in here.
pub struct Tiles {
    /// The side of a tile, as set by the user.
    side: u32,
}

impl Policy for Tiles {
    // What `tilewright policy inspect` shows. A setting's default says its type: flag, integer, number or text.
    fn describe() -> Description {
        Description::new("{{name}}", env!("CARGO_PKG_VERSION"), "Whole where it fits, tiles where it doesn't.")
            .setting("tile", "The side of a tile in pixels, where tiles are needed: 256 to 4096.", 512)
    }

    // Every declared setting comes along. An error keeps the policy from being put to work: name the setting, say what is allowed.
    fn configure(settings: &Settings) -> Result<Self, String> {
        Ok(Self { side: settings.count("tile", 256, 4096)? })
    }

    fn decide(&mut self, request: &Request) -> Result<Plan, String> {
        // The device: half the bytes where a probe found bf16 no slower. `request.device.arch` ("gfx1151") is for rules about one chip.
        let dtype = if request.is_fast(Dtype::Bf16) { Dtype::Bf16 } else { Dtype::F32 };
        // The memory: what the user allows, and no more than is free now.
        let budget = request.memory_limit.min(request.device.free_bytes);

        // The host says what each plan would cost; one that it can't run is an error, and left out.
        let whole = Plan::whole(Precision::Uniform(dtype));
        let plans = [whole.clone(), tiles(&whole, request, self.side), tiles(&whole, request, self.side / 2)];
        let priced = plans.iter().filter_map(|plan| Some((plan, host::estimate(plan).ok()?)));
        let fitting: Vec<(&Plan, Cost)> = priced.filter(|(_, cost)| cost.peak_bytes <= budget).collect();

        // The objective: what the user cares about.
        let best = match request.objective {
            Objective::Fastest => fitting.iter().min_by_key(|(_, cost)| cost.elapsed_ns),
            Objective::Leanest => fitting.iter().min_by_key(|(_, cost)| cost.peak_bytes),
            // The first that fits: the fewer tiles, the nearer to the whole picture's output.
            Objective::Balanced => fitting.first(),
        };
        Ok(match best {
            Some((plan, cost)) => (*plan).clone().because(format!("the best that fits, {} tiles", cost.tiles)),
            None => plans[2].clone().because("nothing is expected to fit: the smallest tiles"),
        })
    }

    fn recover(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let Some(Attempt { plan, failure }) = attempts.last() else { return self.decide(request) };
        match failure {
            // NaN or infinity: a type with a wider range.
            Failure::NonFinite(_) if plan.precision == Precision::Uniform(Dtype::F32) => Err("not finite in f32".into()),
            Failure::NonFinite(_) => {
                Ok(Plan { precision: Precision::Uniform(Dtype::F32), ..plan.clone() }.because("overflowed: f32"))
            }
            // Too much memory: tiles of half the side.
            Failure::OutOfMemory(_) | Failure::OverLimit(_) => {
                let side = plan.tile().map_or(self.side, |tile| tile.height / 2);
                // An error is an honest answer: the host goes on with its own default.
                if side < LEAST {
                    return Err(format!("no tiles below {LEAST} pixels"));
                }
                Ok(tiles(plan, request, side).because(format!("memory ran out: tiles of {side}")))
            }
        }
    }

    // Called with what was measured. `host::trials` gives the same later, so that most policies need nothing here.
    fn learn(&mut self, _request: &Request, _plan: &Plan, _outcome: &Outcome) {}
}

tilewright_sdk::export!(Tiles);

/// The same plan in tiles that fade into each other over an eighth of their side.
fn tiles(plan: &Plan, request: &Request, side: u32) -> Plan {
    plan.clone().blended(request, Tile::square(side, side / 8))
}

#[cfg(test)]
mod tests;
