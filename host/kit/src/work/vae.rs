//! Decodes and encodes.

use tilewright_plan::{Dtype, Outcome, Plan, Precision, Request, Space, Time, Vae, Work};

use super::{differing, extents, in_words, milliseconds, release};
use crate::{
    compare::{Compared, Field},
    replay::Replayed,
    simulate::{Distance, Simulated},
};

/// The smallest side of a blended tile that counts as best while anything else fits: smaller ones
/// show seams.
const LEAST_TILE: u32 = 256;

/// The most that a tile's side may differ from a measured one's: a quarter of it.
const WITHIN: u32 = 4;

impl Compared for Vae {
    fn fields(a: &Plan, b: &Plan) -> Vec<Field> {
        differing([
            ("space", a.space.to_string(), b.space.to_string()),
            ("time", a.time.to_string(), b.time.to_string()),
            ("batch", a.batch.to_string(), b.batch.to_string()),
            ("precision", a.precision.to_string(), b.precision.to_string()),
            ("layout", a.layout.to_string(), b.layout.to_string()),
            ("release", release(a.release), release(b.release)),
            ("offload", a.offload.to_string(), b.offload.to_string()),
            ("prefetch", a.prefetch.to_string(), b.prefetch.to_string()),
        ])
    }

    fn name(Request { model, batch, frames, height, width, .. }: &Request) -> String {
        format!("{} {}", model.family, extents([*width, *height, *frames, *batch]))
    }
}

impl Replayed for Vae {
    fn describe(plan: &Plan) -> String {
        let mut words = format!("{} {} {}", plan.space, plan.precision, plan.layout);
        if plan.time != Time::Whole {
            words.push_str(&format!(", time {}", plan.time));
        }
        if plan.batch > 1 {
            words.push_str(&format!(", batch {}", plan.batch));
        }
        words.push_str(&plan.options.to_string());
        words
    }

    fn describe_fully(plan: &Plan) -> String {
        let Plan { batch, release, offload, prefetch, reason, .. } = plan;
        let words = Self::describe(&Plan { batch: 1, ..plan.clone() });
        format!("{words}, batch {batch}, release {release}, offload {offload}, prefetch {prefetch}, \"{reason}\"")
    }

    fn cost_key(Request { model, batch, frames, height, width, .. }: &Request) -> String {
        format!("{model:?} {batch} {frames} {height} {width}")
    }
}

impl Simulated for Vae {
    const KEY: &'static str = "cases";
    const HEADING: &'static str = "decodes and encodes";

    fn allowing_blended(request: Request, allows: bool) -> Request {
        Request { allows_blended: allows, ..request }
    }

    fn is_exact(plan: &Plan) -> bool {
        !plan.is_blended()
    }

    fn is_sound(plan: &Plan) -> bool {
        match plan.space {
            Space::Blended(tile) => tile.height.min(tile.width) >= LEAST_TILE,
            Space::Whole | Space::Exact(_) => true,
        }
    }

    fn is_whole(plan: &Plan) -> bool {
        plan.space == Space::Whole && plan.precision == Precision::Uniform(Dtype::F32)
    }

    fn distance(measured: &Plan, plan: &Plan) -> Option<Distance> {
        let kind = |plan: &Plan| (plan.time, plan.precision, plan.layout, plan.batch);
        if kind(measured) != kind(plan) || measured.options != plan.options {
            return None;
        }
        let rest =
            (measured.release, measured.offload, measured.prefetch) != (plan.release, plan.offload, plan.prefetch);
        let (one, other) = match (measured.space, plan.space) {
            (Space::Whole, Space::Whole) => return Some((0, 0, rest)),
            (Space::Blended(one), Space::Blended(other)) | (Space::Exact(one), Space::Exact(other)) => (one, other),
            _ => return None,
        };
        let near = |one: u32, other: u32, share: u32| one.abs_diff(other) <= one / share;
        let side = one.height.min(one.width);
        let is_near = near(one.height, other.height, WITHIN)
            && near(one.width, other.width, WITHIN)
            && one.overlap.abs_diff(other.overlap) <= side / 8;
        let area = |height: u32, width: u32| u64::from(height) * u64::from(width);
        let areas = area(one.height, one.width).abs_diff(area(other.height, other.width));
        is_near.then_some((areas, one.overlap.abs_diff(other.overlap), rest))
    }

    fn is_priced_alike(one: &Plan, other: &Plan) -> bool {
        Plan { release: other.release, ..Self::without_reason(one) } == Self::without_reason(other)
    }

    fn words(request: &Request) -> String {
        let (extents, family) = Self::size(request);
        in_words(extents, family)
    }

    fn table_figures(outcome: &Outcome) -> (f64, u64) {
        (outcome.elapsed.as_secs_f64() * 1e3, outcome.peak_bytes)
    }

    fn table_outcome(_: &Request, _: Option<Self::Cost>, elapsed_ms: f64, held_bytes: u64, attempts: u32) -> Outcome {
        Outcome { elapsed: milliseconds(elapsed_ms), peak_bytes: held_bytes, attempts, ..Outcome::default() }
    }
}
