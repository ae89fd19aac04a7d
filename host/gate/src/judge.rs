//! Judges an answer: does it make sense, does it keep to the limits, is it an improvement on the
//! failed attempts.

use tilewright_plan::{Candidate, Decision, Failure, FallbackReason, bytes};
use tilewright_policy::check::{self, REPEATED};

use crate::{
    finding::{Call, Finding, Problem, Severity, Step},
    golden::{CallResult, GoldenRequest},
    work::Judged,
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
struct Judge<'a, W: Judged> {
    golden: &'a GoldenRequest<W>,
    result: &'a CallResult<W>,
    findings: Vec<Finding>,
}

/// The findings about an answer by itself.
pub(crate) fn judge<W: Judged>(golden: &GoldenRequest<W>, result: &CallResult<W>) -> Vec<Finding> {
    let mut judge = Judge { golden, result, findings: Vec::new() };
    if let Some(decision) = &result.decision {
        judge.decision(decision);
    }
    judge.findings
}

impl<W: Judged> Judge<'_, W> {
    fn find(&mut self, severity: Severity, problem: Problem, found: String) {
        let found = Finding::new(severity, Step::Golden, problem, found);
        self.findings.push(found.at(self.golden, self.result.call));
    }

    fn decision(&mut self, decision: &Decision<W>) {
        let Some(fallback) = &decision.fallback else {
            return self.answer(decision);
        };
        if let Some(problem) = failure(fallback.reason) {
            return self.find(Severity::Error, problem, fallback.detail.clone());
        }
        match fallback.reason {
            FallbackReason::Nonsense if fallback.detail == REPEATED => {
                let tried = decision.answer.as_ref().map_or(String::new(), |plan| format!(": {}", W::show(plan)));
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
    fn judge_error(&mut self, decision: &Decision<W>, words: &str) {
        let limit = W::memory_limit(&self.golden.request);
        let cost = self.golden.costs().estimate_one(&decision.plan).ok().map(|cost| W::held_bytes(&cost));
        let fits = cost
            .filter(|held| *held <= limit)
            .map(|held| format!(" where {} would fit, at {}", W::show(&decision.plan), bytes::display(held)));
        let severity = match (&fits, self.result.call) {
            (Some(_), Call::Decide) => Severity::Warning,
            _ => Severity::Note,
        };
        self.find(severity, Problem::Declines, format!("answers '{words}'{}", fits.unwrap_or_default()));
    }

    fn answer(&mut self, decision: &Decision<W>) {
        for adjusted in &decision.adjusted {
            self.find(Severity::Note, Problem::Adjusted, adjusted.clone());
        }
        if let Some(answer) = decision.answer.as_ref().filter(|answer| W::is_replaced(answer, self.golden, self.result))
        {
            let found = format!("{} where {} fits", W::show(answer), W::show(&decision.plan));
            self.find(Severity::Warning, Problem::Blends, found);
        }
        let (facts, plan) = (self.golden.costs(), &decision.plan);
        let limit = W::memory_limit(&self.golden.request);
        match facts.estimate_one(plan) {
            Err(why) => self.find(Severity::Warning, Problem::Unpriced, format!("{}: {why}", W::show(plan))),
            Ok(cost) if W::held_bytes(&cost) > limit => self.over_limit(decision, W::held_bytes(&cost)),
            Ok(_) => {}
        }
        if self.result.call == Call::Recover {
            self.progress(plan);
        }
    }

    /// An error for a policy that asked for the plan's price and so knew it; a warning for a rule
    /// that never asks.
    fn over_limit(&mut self, decision: &Decision<W>, peak: u64) {
        let limit = W::memory_limit(&self.golden.request);
        let Some((least, leanest)) = self.leanest().filter(|(least, _)| *least <= limit) else { return };
        let is_same = |plan: &W::Plan, candidate: &Candidate<W>| W::is_same_work(plan, &candidate.plan);
        let answered = decision.answer.iter().chain([&decision.plan]);
        let asked = answered.into_iter().any(|plan| decision.candidates.iter().any(|known| is_same(plan, known)));
        let severity = if asked { Severity::Error } else { Severity::Warning };
        let how = if asked { "" } else { " without asking for its price" };
        let found = format!(
            "{}{how}: {} of {} allowed, where {} takes {}",
            W::show(&decision.plan),
            bytes::display(peak),
            bytes::display(limit),
            W::show(&leanest),
            bytes::display(least),
        );
        self.find(severity, Problem::OverLimit, found);
    }

    /// The plan with the lowest memory use of all that can be run here.
    fn leanest(&self) -> Option<(u64, W::Plan)> {
        let (golden, under_way) = (self.golden, self.result.under_way.as_ref());
        let facts = golden.costs();
        let legal = |plan: W::Plan| W::legal(plan, golden, under_way);
        let priced = |plan: W::Plan| Some((W::held_bytes(&facts.estimate_one(&plan).ok()?), plan));
        W::leanest(golden).into_iter().filter_map(legal).filter_map(priced).min_by_key(|(held, _)| *held)
    }

    /// A plan after a failure has to change something for the better.
    fn progress(&mut self, plan: &W::Plan) {
        let Some(last) = self.result.attempts.last() else { return };
        let facts = self.golden.costs();
        match last.failure {
            Failure::NonFinite { .. } => {
                let [next, failed] = [plan, &last.plan].map(W::precision);
                if check::rank_precision(next) <= check::rank_precision(failed) {
                    let found = format!("{next} after {failed} overflowed");
                    self.find(Severity::Warning, Problem::NotWider, found);
                }
            }
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                let peak = |plan: &W::Plan| facts.estimate_one(plan).ok().map(|cost| W::held_bytes(&cost));
                if let (Some(next), Some(failed)) = (peak(plan), peak(&last.plan))
                    && next >= failed
                {
                    let found = format!(
                        "{} at {} after {} at {} failed for memory",
                        W::show(plan),
                        bytes::display(next),
                        W::show(&last.plan),
                        bytes::display(failed)
                    );
                    self.find(Severity::Warning, Problem::NotLeaner, found);
                }
            }
        }
    }
}

/// The difference between two answers to the same question, in one line; `None` if they are equal.
pub(crate) fn difference<W: Judged>(one: &CallResult<W>, other: &CallResult<W>) -> Option<String> {
    let (Some(first), Some(second)) = (&one.decision, &other.decision) else { return None };
    let said = |decision: &Decision<W>| match (&decision.fallback, &decision.answer) {
        (Some(fallback), _) => format!("{} ({})", fallback.reason, fallback.detail),
        (None, Some(answer)) => format!("{} ({})", W::show(answer), W::reason(answer)),
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
    pub(crate) fn at<W: Judged>(self, golden: &GoldenRequest<W>, call: Call) -> Self {
        Self { request: Some(golden.name.clone()), call: Some(call), ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tilewright_plan::{CostModel, LearnReport, Outcome, Plan, Planner, PolicyIdentity, Question, Space, Vae};

    use super::*;

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
        let golden = Vae::golden().into_iter().find(|golden| golden.name.starts_with(name)).unwrap();
        let mut calls = Vec::new();
        golden.play(policy, |_, turn| calls.push(turn));
        (golden, calls)
    }

    fn whole() -> Plan {
        Vae::leanest(&Vae::golden()[0]).remove(0)
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
        let judge = Judge::<Vae> { golden: &golden, result: &result[0], findings: Vec::new() };
        let (least, plan) = judge.leanest().unwrap();
        assert!(least < golden.request.memory_limit && matches!(plan.space, Space::Blended(_)), "{plan:?}");
        assert_eq!(super::judge(&golden, &result[0])[0].problem, Problem::OverLimit);
        let (golden, result) = super::tests::play(&mut Always(whole(), 1), "x86_v4 flux-f32 1024×1024 hopeless");
        assert_eq!(super::judge(&golden, &result[0]), [], "nothing fits, so nothing is wrong");
    }
}
