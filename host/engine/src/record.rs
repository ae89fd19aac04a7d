//! The record of a decision, of any kind of work.

use std::time::SystemTime;

use tilewright_plan::{CostModel, Decision, FailedAttempt, Planner, Question, Record, Work};

/// The record of the answer to a question, and of what it led to.
pub(crate) fn record<W: Work>(
    question: &Question<'_, W>,
    costs: &dyn CostModel<W>,
    planner: &dyn Planner<W>,
    decision: &Decision<W>,
    attempts: Vec<FailedAttempt<W>>,
    outcome: Option<W::Outcome>,
) -> Record<W> {
    Record {
        tilewright: env!("CARGO_PKG_VERSION").into(),
        time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        stage: Some(question.stage),
        request: question.request.clone(),
        capabilities: Some(question.capabilities.clone()),
        device: question.device.clone(),
        policy: planner.identity().clone(),
        answer: decision.answer.clone(),
        plan: decision.plan.clone(),
        adjusted: decision.adjusted.clone(),
        fallback: decision.fallback.clone(),
        decision: decision.elapsed,
        fuel: decision.fuel,
        estimate: costs.estimate_one(&decision.plan).ok(),
        expected: tilewright_plan::predict_cost(costs, &decision.plan),
        attempts,
        outcome,
        resumed_frames: 0,
        exchange: None,
    }
}
