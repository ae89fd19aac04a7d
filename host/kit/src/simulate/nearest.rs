//! The measurement that stands in for a plan.

use super::{Case, Entry, simulated::Simulated};

impl<W: Simulated> Case<W> {
    /// The entry of this plan, whatever its reason.
    pub fn exactly(&self, plan: &W::Plan) -> Option<&Entry<W>> {
        let plan = W::without_reason(plan);
        self.plans.iter().find(|entry| entry.plan == plan)
    }

    /// The measured plan that stands in for one that was not measured. Of a decode it has:
    ///
    /// - the same division of space and time, precision, memory order and batch;
    /// - a tile whose sides are within a quarter, and whose overlap is within an eighth of the
    ///   side.
    ///
    /// Among several, the nearest in area counts, then in overlap. Release, offload and prefetch
    /// may differ. Of a sample nothing but the release may differ.
    pub fn nearest(&self, plan: &W::Plan) -> Option<&Entry<W>> {
        let measured = self.plans.iter().filter(|entry| entry.measured().is_some() || entry.failure.is_some());
        let near = measured.filter_map(|entry| Some((W::distance(&entry.plan, plan)?, entry)));
        near.min_by_key(|(distance, _)| *distance).map(|(_, entry)| entry)
    }

    /// The host's price of a plan. The time of release does not affect it.
    pub fn estimate(&self, plan: &W::Plan) -> Option<W::Cost> {
        let same = |entry: &&Entry<W>| W::is_priced_alike(&entry.plan, plan);
        self.plans.iter().filter(same).find_map(|entry| entry.estimate)
    }
}
