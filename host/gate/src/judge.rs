//! Judges an answer: does it make sense, does it keep to the limits, is it an improvement on the
//! failed attempts.

use tilewright_plan::{Decision, Failure, FallbackReason, Layout, Plan, Precision, Space, Tile, Time, bytes};

use tilewright_policy::{
    check::{self, REPEATED},
    oracle,
};

use crate::{
    finding::{Call, Finding, Problem, Severity, Step},
    golden::{CallResult, GoldenRequest},
};

/// The problem for each reason of a fallback. An honest error is judged by the plans that would
/// have fitted.
const FAILURES: [(FallbackReason, Problem); 4] = [
    (FallbackReason::Trap, Problem::Trap),
    (FallbackReason::OutOfFuel, Problem::OutOfFuel),
    (FallbackReason::Timeout, Problem::Timeout),
    (FallbackReason::OutOfMemory, Problem::OutOfMemory),
];

/// The problem of a guest's failure.
pub(crate) fn failure(reason: FallbackReason) -> Option<Problem> {
    FAILURES.iter().find(|(known, _)| *known == reason).map(|(_, problem)| *problem)
}

/// Collects findings about one call.
struct Judge<'a> {
    golden: &'a GoldenRequest,
    result: &'a CallResult,
    findings: Vec<Finding>,
}

/// The findings about an answer by itself.
pub(crate) fn judge(golden: &GoldenRequest, result: &CallResult) -> Vec<Finding> {
    let mut judge = Judge { golden, result, findings: Vec::new() };
    if let Some(decision) = &result.decision {
        judge.decision(decision);
    }
    judge.findings
}

impl Judge<'_> {
    fn find(&mut self, severity: Severity, problem: Problem, found: String) {
        let found = Finding::new(severity, Step::Golden, problem, found);
        self.findings.push(found.at(self.golden, self.result.call));
    }

    fn decision(&mut self, decision: &Decision) {
        let Some(fallback) = &decision.fallback else {
            return self.answer(decision);
        };
        if let Some(problem) = failure(fallback.reason) {
            return self.find(Severity::Error, problem, fallback.detail.clone());
        }
        match fallback.reason {
            FallbackReason::Nonsense if fallback.detail == REPEATED => {
                let tried = decision.answer.as_ref().map_or(String::new(), |plan| format!(": {}", show_plan(plan)));
                self.find(Severity::Error, Problem::Repeats, format!("{}{tried}", fallback.detail));
            }
            // Each of its earlier failures has a finding already.
            FallbackReason::OutOfService => {}
            FallbackReason::Nonsense => self.find(Severity::Error, Problem::Nonsense, fallback.detail.clone()),
            _ => self.judge_error(decision, &fallback.detail),
        }
    }

    /// An error is an answer; if the host has a plan that fits, the policy could have given a
    /// better one.
    fn judge_error(&mut self, decision: &Decision, words: &str) {
        let limit = self.golden.request.memory_limit;
        let fits =
            self.golden.costs().estimate_one(&decision.plan).ok().filter(|cost| cost.peak_bytes <= limit).map(|cost| {
                format!(" where {} would fit, at {}", show_plan(&decision.plan), bytes::display(cost.peak_bytes))
            });
        let severity = match (&fits, self.result.call) {
            (Some(_), Call::Decide) => Severity::Warning,
            _ => Severity::Note,
        };
        self.find(severity, Problem::Declines, format!("answers '{words}'{}", fits.unwrap_or_default()));
    }

    fn answer(&mut self, decision: &Decision) {
        for adjusted in &decision.adjusted {
            self.find(Severity::Note, Problem::Adjusted, adjusted.clone());
        }
        let (facts, plan) = (self.golden.costs(), &decision.plan);
        let limit = self.golden.request.memory_limit;
        match facts.estimate_one(plan) {
            Err(why) => self.find(Severity::Warning, Problem::Unpriced, format!("{}: {why}", show_plan(plan))),
            Ok(cost) if cost.peak_bytes > limit => self.over_limit(decision, cost.peak_bytes),
            Ok(_) => {}
        }
        if self.result.call == Call::Recover {
            self.progress(plan);
        }
    }

    /// An error for a policy that asked for the price and so knew it; a warning for a rule that
    /// never asks.
    fn over_limit(&mut self, decision: &Decision, peak: u64) {
        let limit = self.golden.request.memory_limit;
        let Some((least, leanest)) = self.leanest().filter(|(least, _)| *least <= limit) else { return };
        let asked = !decision.candidates.is_empty();
        let severity = if asked { Severity::Error } else { Severity::Warning };
        let how = if asked { "" } else { " without asking for its price" };
        let found = format!(
            "{}{how}: {} of {} allowed, where {} takes {}",
            show_plan(&decision.plan),
            bytes::display(peak),
            bytes::display(limit),
            show_plan(&leanest),
            bytes::display(least),
        );
        self.find(severity, Problem::OverLimit, found);
    }

    /// The plan with the lowest memory use of all that can be run here.
    fn leanest(&self) -> Option<(u64, Plan)> {
        let (golden, result) = (self.golden, self.result);
        let facts = golden.costs();
        let (capabilities, under_way) = (&golden.capabilities, result.under_way.as_ref());
        let legal = |mut plan: Plan| {
            oracle::check_answer(&mut plan, &golden.request, capabilities, under_way).ok().map(|_| plan)
        };
        let priced = |plan: Plan| Some((facts.estimate_one(&plan).ok()?.peak_bytes, plan));
        candidates(golden).filter_map(legal).filter_map(priced).min_by_key(|(peak, _)| *peak)
    }

    /// A plan after a failure has to change something for the better.
    fn progress(&mut self, plan: &Plan) {
        let Some(last) = self.result.attempts.last() else { return };
        let facts = self.golden.costs();
        match last.failure {
            Failure::NonFinite { .. } => {
                if check::rank_precision(plan.precision) <= check::rank_precision(last.plan.precision) {
                    let found = format!("{} after {} overflowed", plan.precision, last.plan.precision);
                    self.find(Severity::Warning, Problem::NotWider, found);
                }
            }
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                let peak = |plan: &Plan| facts.estimate_one(plan).ok().map(|cost| cost.peak_bytes);
                if let (Some(next), Some(failed)) = (peak(plan), peak(&last.plan))
                    && next >= failed
                {
                    let found = format!(
                        "{} at {} after {} at {} failed for memory",
                        show_plan(plan),
                        bytes::display(next),
                        show_plan(&last.plan),
                        bytes::display(failed)
                    );
                    self.find(Severity::Warning, Problem::NotLeaner, found);
                }
            }
        }
    }
}

/// The leanest plans of every kind; the request decides which of them is the leanest.
fn candidates(golden: &GoldenRequest) -> impl Iterator<Item = Plan> + '_ {
    let request = &golden.request;
    let least = golden.capabilities.tile_least;
    let side = |side: u32| Space::Blended(Tile { height: side, width: side, overlap: 0 });
    let spaces = [Space::Whole, Space::Exact(Tile { height: least, width: request.width, overlap: 0 }), side(least)];
    let times = [Time::Whole, Time::Carried { frames: 1 }];
    let precisions = golden.capabilities.dtypes.iter().map(|dtype| Precision::Uniform(*dtype));
    precisions.flat_map(move |precision| {
        spaces.into_iter().flat_map(move |space| {
            times.into_iter().map(move |time| Plan {
                space,
                time,
                batch: 1,
                precision,
                layout: Layout::ChannelsFirst,
                release: tilewright_plan::Release::EachStep,
                offload: golden.capabilities.offload,
                prefetch: 0,
                reason: String::new(),
            })
        })
    })
}

/// A plan in a few words: `blended 512×512/64, carried 4, bf16`.
pub(crate) fn show_plan(plan: &Plan) -> String {
    let time = if plan.time == Time::Whole { String::new() } else { format!(", {}", plan.time) };
    let batch = if plan.batch > 1 { format!(", {} together", plan.batch) } else { String::new() };
    format!("{}{time}, {}{batch}", plan.space, plan.precision)
}

/// The difference between two answers to the same question, in one line; `None` if they are equal.
pub(crate) fn difference(one: &CallResult, other: &CallResult) -> Option<String> {
    let (Some(first), Some(second)) = (&one.decision, &other.decision) else { return None };
    let said = |decision: &Decision| match (&decision.fallback, &decision.answer) {
        (Some(fallback), _) => format!("{} ({})", fallback.reason, fallback.detail),
        (None, Some(answer)) => format!("{} ({})", show_plan(answer), answer.reason),
        (None, None) => "nothing".into(),
    };
    if said(first) != said(second) || first.plan != second.plan || first.answer != second.answer {
        let (first, second) = (said(first), said(second));
        return Some(match first == second {
            true => format!("{first} in two ways"),
            false => format!("{first}, then {second}"),
        });
    }
    if first.candidates != second.candidates {
        return Some(format!("asks for {} prices, then {}", first.candidates.len(), second.candidates.len()));
    }
    (first.fuel != second.fuel).then(|| format!("{} units of fuel, then {}", first.fuel, second.fuel))
}

impl Finding {
    /// The same finding, for this request and call.
    pub(crate) fn at(self, golden: &GoldenRequest, call: Call) -> Self {
        Self { request: Some(golden.name.clone()), call: Some(call), ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tilewright_plan::{CostModel, LearnReport, Outcome, Planner, PolicyIdentity, Question};

    use super::*;
    use crate::golden;

    /// Always the same answer, and what the host would make of it.
    struct Always(Plan, u64);

    impl Planner for Always {
        fn identity(&self) -> &PolicyIdentity {
            unreachable!("nobody asks")
        }

        fn decide(&mut self, _: &Question<'_>, _: Arc<dyn CostModel>) -> Decision {
            Decision {
                answer: Some(self.0.clone()),
                plan: self.0.clone(),
                adjusted: Vec::new(),
                fallback: None,
                elapsed: Duration::from_nanos(self.1),
                fuel: self.1,
                candidates: Vec::new(),
                log: Vec::new(),
            }
        }

        fn learn(&mut self, _: &Question<'_>, _: &Plan, _: &Outcome) -> LearnReport {
            LearnReport::default()
        }
    }

    fn play(policy: &mut Always, name: &str) -> (GoldenRequest, Vec<CallResult>) {
        let golden = golden::set().into_iter().find(|golden| golden.name.starts_with(name)).unwrap();
        let mut calls = Vec::new();
        golden.play(policy, |_, turn| calls.push(turn));
        (golden, calls)
    }

    fn whole() -> Plan {
        candidates(&golden::set()[0]).next().unwrap()
    }

    #[test]
    fn differences_are_of_the_plan_its_words_and_its_fuel() {
        let said = |plan: Plan, fuel| play(&mut Always(plan, fuel), "gfx1030 sd-f16").1.remove(0);
        let one = said(whole(), 10);
        assert_eq!(difference(&one, &said(whole(), 10)), None, "the clock does not count");
        assert_eq!(difference(&one, &said(whole(), 11)).unwrap(), "10 units of fuel, then 11");
        let other = Plan { batch: 2, ..whole() };
        assert_eq!(difference(&one, &said(other, 10)).unwrap(), "whole, f32 (), then whole, f32, 2 together ()");
        let because = Plan { reason: "why".into(), ..whole() };
        assert_eq!(difference(&one, &said(because, 10)).unwrap(), "whole, f32 (), then whole, f32 (why)");
        let quiet = Plan { prefetch: 3, ..whole() };
        assert_eq!(difference(&one, &said(quiet, 10)).unwrap(), "whole, f32 () in two ways");
    }

    #[test]
    fn the_leanest_of_all_is_what_limits_are_held_against() {
        let (golden, result) = play(&mut Always(whole(), 1), "x86_v4 flux-f32 1664×928 30%");
        let judge = Judge { golden: &golden, result: &result[0], findings: Vec::new() };
        let (least, plan) = judge.leanest().unwrap();
        assert!(least < golden.request.memory_limit && matches!(plan.space, Space::Blended(_)), "{plan:?}");
        assert_eq!(super::judge(&golden, &result[0])[0].problem, Problem::OverLimit);
        let (golden, result) = super::tests::play(&mut Always(whole(), 1), "x86_v4 flux-f32 1024×1024 hopeless");
        assert_eq!(super::judge(&golden, &result[0]), [], "nothing fits, so nothing is wrong");
    }
}
