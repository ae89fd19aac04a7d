//! The rules that the searches for samples and for text encoders share.

use tilewright_sdk::{Objective, Precision};

/// Trials that are looked at, and runs of a plan after which they say something of it.
pub const TRIALS: u32 = 32;
const KNOWN: usize = 3;

/// `leanest` takes no plan that is this many times slower than the fastest.
const SLOWEST: f64 = 4.0;

/// After memory ran out, a plan is expected to hold at most this share of the failed one.
pub const SMALLER: f64 = 0.9;

/// A plan with what it is expected to take.
pub struct Priced<P, C> {
    pub plan: P,
    pub cost: C,
    /// Seconds, with the factors for rounding, divisions and places.
    pub time: f64,
    /// Bytes that the limit is compared with.
    pub held: f64,
    /// The same with those of the host beside a device.
    pub all: f64,
}

/// The search for one request.
pub struct Search<'a, Q, A, C, T> {
    pub request: &'a Q,
    pub attempts: &'a [A],
    /// The only one to consider.
    pub precision: Option<Precision>,
    pub choice: C,
    pub trials: Vec<T>,
}

/// Corrects the host's prices by the runs of plans: how many, and the least ratio of measured to
/// priced time. Plans without a price are left out.
pub fn correct<P, C>(
    plans: Vec<P>,
    costs: Vec<Result<C, String>>,
    runs: impl Fn(&P, &C) -> (usize, f64),
    priced: impl Fn(P, C, f64) -> Priced<P, C>,
) -> Vec<Priced<P, C>> {
    let costed: Vec<(P, C)> =
        plans.into_iter().zip(costs).filter_map(|(plan, cost)| Some((plan, cost.ok()?))).collect();
    let ran: Vec<(usize, f64)> = costed.iter().map(|(plan, cost)| runs(plan, cost)).collect();
    let mut times: Vec<f64> = ran.iter().filter(|(runs, _)| *runs > 0).map(|(_, time)| *time).collect();
    times.sort_by(f64::total_cmp);
    // The median; of an even number the lower one of the middle two.
    let machine = times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or(1.0);
    let own = |(runs, ratio)| if runs >= KNOWN { ratio / machine } else { 1.0 };
    costed.into_iter().zip(ran).map(|((plan, cost), ran)| priced(plan, cost, own(ran))).collect()
}

/// The best of plans that fit. Of equal ones the first: they begin with the plainest.
pub fn best<P, C>(fitting: Vec<Priced<P, C>>, objective: Objective, limit_bytes: u64) -> Option<Priced<P, C>> {
    let limit = (limit_bytes as f64).max(1.0);
    let fastest = fitting.iter().map(|priced| priced.time).fold(f64::INFINITY, f64::min);
    let score = |priced: &Priced<P, C>| match objective {
        Objective::Fastest => priced.time,
        Objective::Balanced => priced.time * (1.0 + priced.held / limit / 2.0),
        Objective::Leanest if priced.time <= SLOWEST * fastest => priced.all,
        Objective::Leanest => f64::INFINITY,
    };
    fitting.into_iter().reduce(|best, other| if score(&other) < score(&best) { other } else { best })
}

/// The reason for a plan; after a failure, which may have been an overflow, with that.
pub fn reason(overflowed: Option<bool>, objective: Objective, fitting: usize) -> String {
    let why = match overflowed {
        Some(true) => "values were not finite: ",
        Some(false) => "memory ran out: ",
        None => "",
    };
    [why, &chosen(objective, fitting)].concat()
}

/// "best balance of 17 that fit".
pub fn chosen(objective: Objective, fitting: usize) -> String {
    let best = match (fitting, objective) {
        (0, _) => return "the leanest, though none is expected to fit".into(),
        (1, _) => return "the only one that fits".into(),
        (_, Objective::Fastest) => "fastest of ",
        (_, Objective::Balanced) => "best balance of ",
        (_, Objective::Leanest) => "leanest of ",
    };
    [best, &fitting.to_string(), " that fit"].concat()
}
