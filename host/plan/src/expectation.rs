//! The likely cost of a plan, from its price and from earlier measurements on the same device.

use crate::{CostModel, Work};

/// The most trials taken into account, newest first, and the most of the plan itself.
const LOOKED_AT: u32 = 64;
const OF_PLAN: usize = 5;

/// A plan's price, corrected by earlier measurements; `None` if there are none, or if the plan has
/// no price.
///
/// The time is multiplied by the median of measured over priced time, from the newest runs of the
/// same plan. For a plan that never ran, the median is over all runs, which have the machine in
/// common. The memory is multiplied by the highest such ratio of the same plan, if it ran.
pub fn predict_cost<W: Work>(costs: &dyn CostModel<W>, plan: &W::Plan) -> Option<W::Cost> {
    let cost = costs.estimate_one(plan).ok()?;
    let (mut own, mut all, mut memory) = (Vec::new(), Vec::new(), None::<f64>);
    for trial in costs.trials(LOOKED_AT) {
        let Ok(price) = costs.estimate_one(&trial.plan) else { continue };
        let ([took, held], [price, room]) = (W::measured(&trial.outcome), W::priced(&price));
        let time = ratio(took, price);
        all.extend(time);
        if W::is_same_work(&trial.plan, plan) {
            own.extend(time.filter(|_| own.len() < OF_PLAN));
            memory = memory.into_iter().chain(ratio(held, room)).reduce(f64::max);
        }
    }
    let time = middle(own).or_else(|| middle(all))?;
    W::corrected(cost, [time, memory.unwrap_or(1.0)])
}

fn ratio(measured: f64, priced: f64) -> Option<f64> {
    (measured > 0.0 && priced > 0.0).then(|| measured / priced)
}

/// The median; of an even number, the lower one of the middle two.
fn middle(mut ratios: Vec<f64>) -> Option<f64> {
    let middle = ratios.len().checked_sub(1)? / 2;
    Some(*ratios.select_nth_unstable_by(middle, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Cost, Layout, Outcome, Plan, PoolStatistics, Trial};

    /// Prices are 1 s and 1000 bytes for channels-first plans, 2 s and 1000 bytes for others.
    struct History(Vec<(Layout, f64, f64)>);

    fn plan(layout: Layout) -> Plan {
        Plan { layout, reason: "why".into(), ..Plan::plain() }
    }

    impl CostModel for History {
        fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
            let seconds = if plan.layout == Layout::ChannelsFirst { 1 } else { 2 };
            let elapsed = Duration::from_secs(seconds);
            Ok(Cost { peak_bytes: 1000, elapsed, tiles: 1, shapes: 1, rework: 1.0, weights_bytes: 0 })
        }

        fn trials(&self, most: u32) -> Vec<Trial> {
            let trial = |(layout, seconds, bytes): &(Layout, f64, f64)| Trial {
                plan: Plan { reason: String::new(), ..plan(*layout) },
                outcome: Outcome {
                    elapsed: Duration::from_secs_f64(*seconds),
                    load: Duration::ZERO,
                    peak_bytes: *bytes as u64,
                    attempts: 1,
                    pool: PoolStatistics::default(),
                    cold: false,
                    weights_bytes: 0,
                },
            };
            self.0.iter().take(most as usize).map(trial).collect()
        }
    }

    #[test]
    fn a_plan_that_ran_is_expected_to_take_what_it_took_and_another_what_the_machine_takes() {
        let first = |seconds, bytes| (Layout::ChannelsFirst, seconds, bytes);
        let history = History(vec![first(4.0, 900.0), first(1.5, 1200.0), first(1.4, 1000.0)]);
        let ran = predict_cost(&history, &plan(Layout::ChannelsFirst)).unwrap();
        assert_eq!((ran.elapsed, ran.peak_bytes), (Duration::from_secs_f64(1.5), 1200), "one slow run says little");
        let other = predict_cost(&history, &plan(Layout::ChannelsLast)).unwrap();
        assert_eq!((other.elapsed, other.peak_bytes), (Duration::from_secs(3), 1000));
        assert_eq!(predict_cost(&History(Vec::new()), &plan(Layout::ChannelsFirst)), None);
    }
}
