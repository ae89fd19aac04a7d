//! The measurement that stands in for a plan.

use tilewright_plan::{Plan, Space};

use super::{Case, Entry};

/// The most that a tile's side may differ: a quarter of the measured one's.
const WITHIN: u32 = 4;

impl Case {
    /// The entry of this plan, whatever its reason.
    pub fn exactly(&self, plan: &Plan) -> Option<&Entry> {
        let plan = plan.without_reason();
        self.plans.iter().find(|entry| entry.plan == plan)
    }

    /// The measured plan that stands in for one that was not measured. It has:
    ///
    /// - the same division of space and time, precision, memory order and batch;
    /// - a tile whose sides are within a quarter, and whose overlap is within an eighth of the
    ///   side.
    ///
    /// Of several, the nearest in area counts, then in overlap. Release, offload and prefetch may
    /// differ.
    pub fn nearest(&self, plan: &Plan) -> Option<&Entry> {
        let measured = self.plans.iter().filter(|entry| entry.measured().is_some() || entry.failure.is_some());
        let near = measured.filter_map(|entry| Some((distance(&entry.plan, plan)?, entry)));
        near.min_by_key(|(distance, _)| *distance).map(|(_, entry)| entry)
    }

    /// The host's price of a plan. The time of release does not affect it.
    pub fn estimate(&self, plan: &Plan) -> Option<tilewright_plan::Cost> {
        let plan = plan.without_reason();
        let same = |entry: &&Entry| Plan { release: plan.release, ..entry.plan.clone() } == plan;
        self.plans.iter().filter(same).find_map(|entry| entry.estimate)
    }
}

/// The distance between a plan and a measured one; `None` if they are of different kinds.
fn distance(measured: &Plan, plan: &Plan) -> Option<(u64, u32, bool)> {
    let kind = |plan: &Plan| (plan.time, plan.precision, plan.layout, plan.batch);
    if kind(measured) != kind(plan) {
        return None;
    }
    let rest = (measured.release, measured.offload, measured.prefetch) != (plan.release, plan.offload, plan.prefetch);
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
