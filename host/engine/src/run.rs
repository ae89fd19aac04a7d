//! The way from a request to a result that all work takes: ask a planner, carry its plan out,
//! measure, ask again after a failure, write the record.

use std::time::Duration;

use tilewright_plan::{Attempt, CostModel, Decision, Dtype, FailedAttempt, Failure, Outcome, Planner};
use tilewright_torch::{Error::Torch, Pace};

use crate::{
    Error, Finished, Job, Observer, Unfinished,
    task::{AttemptContext, AttemptError, Task, of_sound_files},
};

/// The most plans of the planner that are tried. A policy gives advice, so the attempts after them
/// are the host's own.
pub(crate) const ASKED: usize = 3;

/// The most plans that are tried without a fallback of the host's own.
const MOST_ATTEMPTS: usize = 4;

/// The most with one: its next plans mend what its first one shows.
pub(crate) const MOST_WITH_OWN: usize = 6;

/// True if the library that computes failed, rather than a file, a sink or the user.
pub(crate) fn is_torch(error: &Error) -> bool {
    matches!(error, Error::Torch(Torch(_)) | Error::Model(tilewright_models::Error::Torch(Torch(_))))
}

pub(crate) fn one_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().chars().take(300).collect()
}

/// Decides and carries out; asks again after each failure. The fourth to sixth attempts are the
/// host's own plans.
pub(crate) fn run<I, T: Task>(
    job: &Job<'_, I>,
    task: &mut T,
    planner: &mut dyn Planner,
    observer: &mut dyn Observer,
) -> Result<Finished<T::Output>, Unfinished> {
    let mut decision = planner.decide(&job.question(), job.costs.clone());
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut failed: Vec<FailedAttempt> = Vec::new();
    let mut load = Duration::ZERO;
    let mut has_broken = false;
    loop {
        observer.decided(&decision);
        if let Ok(cost) = job.costs.estimate_one(&decision.plan) {
            observer.expected(&cost);
        }
        let mut learn = |outcome: &Outcome| {
            planner.learn(&job.question(), &decision.plan, outcome);
        };
        let pace = Pace::new(job.machine.device);
        let mut context = AttemptContext { observer, pace, load: &mut load, learn: &mut learn };
        let ended = task.attempt(&decision.plan, &mut context);
        let failure = match of_sound_files(ended, || task.check_files()) {
            Ok((output, outcome)) => {
                let cold = job.machine.note_run(&decision.plan);
                let outcome = Outcome { attempts: attempts.len() as u32 + 1, load, cold, ..outcome };
                if !cold {
                    planner.learn(&job.question(), &decision.plan, &outcome);
                }
                let record = job.record(planner, &decision, failed, Some(outcome));
                return Ok(Finished { output, record, candidates: decision.candidates });
            }
            Err(AttemptError::Failed(failure)) => failure,
            // The plan alone may be at fault, and another one need not fail: a policy's is not the
            // last word.
            Err(AttemptError::Broken(error)) if is_torch(&error) && decision.answer.is_some() && !has_broken => {
                has_broken = true;
                tracing::warn!(%error, space = %decision.plan.space, precision = %decision.plan.precision, "the plan can't be carried out");
                let Some(own) = replace(job, task, planner, &decision, &attempts, &error) else {
                    let record = job.record(planner, &decision, failed, None);
                    return Err(Unfinished { error, record: Some(Box::new(record)) });
                };
                decision = own;
                continue;
            }
            Err(AttemptError::Broken(error)) => {
                // A record without an outcome says that the plan failed.
                let record = error.is_of_the_plan().then(|| job.record(planner, &decision, failed, None));
                return Err(Unfinished { error, record: record.map(Box::new) });
            }
            Err(AttemptError::Cancelled) => {
                // The record tells how far it came; the history leaves it out.
                let record = job.record(planner, &decision, failed, None);
                return Err(Unfinished { error: Error::Interrupted, record: Some(Box::new(record)) });
            }
            // The host's own plan is the last resort: no policy changes it.
            Err(AttemptError::AskAgain) if attempts.len() >= ASKED => continue,
            Err(AttemptError::AskAgain) => {
                // A policy that takes over knows nothing of another's failures, so its question has
                // none.
                let under_way = task.under_way();
                decision = planner.decide(&job.question().going_on(under_way.as_ref()), job.costs.clone());
                continue;
            }
        };
        tracing::info!(%failure, space = %decision.plan.space, precision = %decision.plan.precision, "the attempt failed");
        attempts.push(Attempt { plan: decision.plan.clone(), failure });
        let attempt = FailedAttempt::new(decision.clone(), failure);
        observer.failed(&attempt);
        failed.push(attempt);
        // No other tiles mend what is not finite even in f32.
        let hopeless = matches!(failure, Failure::NonFinite { .. })
            && matches!(decision.plan.precision.dtype(), Dtype::F32 | Dtype::Tf32);
        let next = if hopeless { None } else { decide_again(job, task, planner, &attempts) };
        let Some(next) = next else {
            let advice = job.advice(failure, hopeless);
            let error = Error::Exhausted { attempts: attempts.len(), last: failure, advice };
            let record = job.record(planner, &decision, failed, None);
            return Err(Unfinished { error, record: Some(Box::new(record)) });
        };
        decision = next;
    }
}

/// The decision to try after these attempts; none if it is time to give up.
fn decide_again<I, T: Task>(
    job: &Job<'_, I>,
    task: &T,
    planner: &mut dyn Planner,
    attempts: &[Attempt],
) -> Option<Decision> {
    let under_way = task.under_way();
    let question = job.question().going_on(under_way.as_ref()).after(attempts);
    let mut own = None;
    if (ASKED..MOST_WITH_OWN).contains(&attempts.len()) {
        own = planner.fallback(&question, &*job.costs);
    }
    let asks = own.is_none() && attempts.len() < MOST_ATTEMPTS;
    own.or_else(|| asks.then(|| planner.decide(&question, job.costs.clone())))
}

/// The host's own plan in the place of a policy's that libtorch refused; none if it is the same.
fn replace<I, T: Task>(
    job: &Job<'_, I>,
    task: &T,
    planner: &mut dyn Planner,
    refused: &Decision,
    attempts: &[Attempt],
    error: &Error,
) -> Option<Decision> {
    let under_way = task.under_way();
    let question = job.question().going_on(under_way.as_ref()).after(attempts);
    let mut own = planner.fallback(&question, &*job.costs).filter(|own| own.plan != refused.plan)?;
    if let Some(fallback) = &mut own.fallback {
        fallback.detail = format!("the policy's plan can't be carried out: {}", one_line(error));
    }
    Some(own)
}
