//! The path from a request to a result that all work takes: ask a planner, carry its plan out,
//! measure, ask again after a failure, write the record.

use std::time::Duration;

use tilewright_plan::{Attempt, Decision, Dtype, FailedAttempt, Failure, Planner, Record, Work, predict_cost};
use tilewright_torch::{Error::Torch, Pace, cancel::Scope, pieces::Rates};

use crate::{
    Decided, Error, Failed, Finished, Job, Observer, Unfinished,
    capturing::{StageCapture, Values},
    pause::divides_operations,
    profiling::{Profiling, WHOLE},
    task::{AttemptContext, AttemptError, Attempted, Task, unless_files_changed},
    work::{Attempts, Runnable},
};

/// Answers of the planner that are tried before fallback plans take over.
const PLANNER_ATTEMPTS: usize = 3;

/// Answers that are tried if there is no new fallback plan after them.
const PLANNER_ATTEMPTS_ALONE: usize = 4;

/// Attempts in all. Each fallback plan answers the failure of the one before.
const MOST_ATTEMPTS: usize = 6;

/// True if the library that computes failed, rather than a file, a sink or the user.
fn is_torch(error: &Error) -> bool {
    matches!(error, Error::Torch(Torch(_)) | Error::Model(tilewright_models::Error::Torch(Torch(_))))
}

fn one_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().chars().take(300).collect()
}

/// True if no other plan mends a failure: values are not finite in a type with the range of f32.
pub(crate) fn is_hopeless<W: Work>(plan: &W::Plan, failure: Failure) -> bool {
    matches!(failure, Failure::NonFinite { .. }) && matches!(W::precision(plan).dtype(), Dtype::F32 | Dtype::Tf32)
}

/// A job at work: its attempts so far, and the decision that is carried out.
struct Run<'r, 'a, W: Runnable, I> {
    job: &'r Job<'a, W, I>,
    planner: &'r mut dyn Planner<W>,
    decision: Decision<W>,
    attempts: Vec<Attempt<W>>,
    failed: Vec<FailedAttempt<W>>,
    /// The time that loading weights took.
    load: Duration,
    /// A policy's plan was replaced by the fallback plan.
    was_replaced: bool,
    /// A part of the result was made by another plan.
    has_other_plans: bool,
    profiling: Profiling,
    /// The attempt is profiled.
    is_profiled: bool,
}

/// The loop of all jobs: a decision, an attempt, and another decision after each failure. The
/// planner learns from the outcome unless another plan made a part of it, or it was a GPU's first.
pub(crate) fn run<W: Runnable, I, T: Task<W>>(
    job: &Job<'_, W, I>,
    task: &mut T,
    planner: &mut dyn Planner<W>,
    observer: &mut dyn Observer,
) -> Result<Finished<T::Output, W>, Unfinished<W>> {
    let Some(capturing) = observer.capturing() else { return carry_out(job, task, planner, observer, None) };
    task.keep_for_capture();
    let mut stage = StageCapture::begin(capturing, job.stage());
    let ended = carry_out(job, task, planner, observer, Some(&mut stage));
    match &ended {
        Ok(finished) => stage.end(task.inputs(), task.outputs(&finished.output), Some(&finished.record)),
        Err(unfinished) => stage.end(task.inputs(), Ok(Values::default()), unfinished.record.as_deref()),
    }
    ended
}

fn carry_out<W: Runnable, I, T: Task<W>>(
    job: &Job<'_, W, I>,
    task: &mut T,
    planner: &mut dyn Planner<W>,
    observer: &mut dyn Observer,
    mut capture: Option<&mut StageCapture>,
) -> Result<Finished<T::Output, W>, Unfinished<W>> {
    let machine = job.machine;
    let check = observer.stop_check().filter(|_| divides_operations());
    let _cancellable = check.map(|check| Scope::enter(check, Rates::of(machine.device, &machine.measured)));
    let mut run = Run::begin(job, task, planner);
    let mut is_announced = false;
    let mut last: Option<W::Plan> = None;
    loop {
        if !std::mem::take(&mut is_announced) {
            run.announce(task, observer);
        }
        if let Some(capture) = &mut capture {
            let plan = &run.decision.plan;
            match &last {
                Some(last) if task.goes_on() && !W::is_same_work(last, plan) => capture.go_on(),
                _ if task.goes_on() => {}
                _ => capture.begin_anew(),
            }
            last = Some(plan.clone());
        }
        match run.attempt(task, observer) {
            Ok((output, outcome)) => {
                let profiling = std::mem::take(&mut run.profiling);
                let finished = run.finish(task, output, outcome);
                if let Some(profiled) = profiling.finish(machine, &finished.record, |plan| job.layers(plan)) {
                    observer.profiled(profiled);
                }
                return Ok(finished);
            }
            Err(AttemptError::Failed(failure)) => {
                if let Err(error) = run.answer(task, failure, observer) {
                    return Err(run.end(task, error));
                }
            }
            Err(AttemptError::Broken(error)) => {
                if !run.replace(task, &error) {
                    return Err(run.end(task, error));
                }
            }
            Err(AttemptError::Cancelled) => return Err(run.end(task, Error::Interrupted)),
            Err(AttemptError::AskAgain) => {
                // After these the plan stays: another answer could bring back one that failed.
                is_announced = run.attempts.len() >= PLANNER_ATTEMPTS;
                if !is_announced {
                    run.renew(task);
                }
            }
        }
    }
}

impl<'r, 'a, W: Runnable, I> Run<'r, 'a, W, I> {
    /// A job with its first decision.
    fn begin<T: Task<W>>(job: &'r Job<'a, W, I>, task: &T, planner: &'r mut dyn Planner<W>) -> Self {
        let under_way = task.under_way(None);
        let mut decision = planner.decide(&job.question().going_on(under_way.as_ref()), job.costs());
        task.bind(&mut decision);
        let has_other_plans = task.resumed() > 0;
        let (attempts, failed, load) = (Vec::new(), Vec::new(), Duration::ZERO);
        let profiling = Profiling::default();
        Self {
            job,
            planner,
            decision,
            attempts,
            failed,
            load,
            was_replaced: false,
            has_other_plans,
            profiling,
            is_profiled: false,
        }
    }

    /// Carries the decision out.
    fn attempt<T: Task<W>>(&mut self, task: &mut T, observer: &mut dyn Observer) -> Attempted<(T::Output, W::Outcome)> {
        let Self { job, planner, decision, load, profiling, is_profiled, .. } = self;
        *profiling = Profiling::new(observer.wants_profile());
        *is_profiled = profiling.is_wanted;
        let is_profiled = *is_profiled;
        let mut learn = |outcome: &W::Outcome| {
            if !is_profiled {
                planner.learn(&job.question(), &decision.plan, outcome);
            }
        };
        let pace = Pace::new(job.machine.device);
        let mut context = AttemptContext { observer, pace, load, learn: &mut learn, profiling, span: WHOLE };
        let ended = task.attempt(&decision.plan, &mut context);
        unless_files_changed(ended, || task.check_files())
    }

    /// Answers a failure with another decision.
    ///
    /// # Errors
    /// [`Error::Exhausted`] if there is none.
    fn answer<T: Task<W>>(&mut self, task: &T, failure: Failure, observer: &mut dyn Observer) -> crate::Result<()> {
        tracing::info!(%failure, plan = %self.decision.plan, "the attempt failed");
        self.attempts.push(Attempt { plan: self.decision.plan.clone(), failure });
        let next = self.decide_again(task, failure);
        let attempt = FailedAttempt { step: task.steps_done(), ..FailedAttempt::new(self.decision.clone(), failure) };
        observer.failed(W::any(Failed { attempt: &attempt, next: next.as_ref().map(|next| &next.plan) }));
        self.failed.push(attempt);
        let Some(next) = next else {
            let advice = task.advice(&self.decision.plan, failure);
            return Err(Error::Exhausted { attempts: self.attempts.len(), last: failure, advice });
        };
        self.decision = next;
        self.has_other_plans |= W::is_continued(self.job.request());
        Ok(())
    }

    /// Tells the observer what is about to be carried out, and at what expected cost.
    fn announce<T: Task<W>>(&self, task: &T, observer: &mut dyn Observer) {
        let Self { job, decision, .. } = self;
        let expected = predict_cost(&*job.costs(), &decision.plan).or_else(|| job.estimate(&decision.plan).ok());
        let steps_done = task.steps_done().unwrap_or(0);
        observer.decided(W::any(Decided { decision, expected: expected.as_ref(), steps_done }));
    }

    /// The result, and the record with its outcome.
    fn finish<T: Task<W>>(self, task: &T, output: T::Output, outcome: W::Outcome) -> Finished<T::Output, W> {
        let cold = self.job.note_run(&self.decision.plan);
        // Time of the profiler is not the plan's.
        let attempts = Attempts { count: self.attempts.len() as u32 + 1, load: self.load, cold };
        let outcome = W::with_attempts(outcome, attempts);
        if !cold && !self.has_other_plans && !self.is_profiled {
            self.planner.learn(&self.job.question(), &self.decision.plan, &outcome);
        }
        let record = self.job.record(self.planner, &self.decision, self.failed, Some(outcome));
        let Decision { candidates, log, .. } = self.decision;
        let record = Record { resumed_frames: task.resumed(), ..record };
        Finished { output, record, candidates, log }
    }

    /// The end without a result. A record without an outcome counts as a failure of the plan, so an
    /// error that the plan did not cause leaves no record.
    fn end<T: Task<W>>(self, task: &T, error: Error) -> Unfinished<W> {
        let record = error.leaves_record().then(|| {
            let record = self.job.record(self.planner, &self.decision, self.failed, None);
            Box::new(Record { resumed_frames: task.resumed(), ..record })
        });
        Unfinished { error, record }
    }

    /// Asks another planner, which has taken over. It knows nothing of another's failures, so that
    /// its question has none.
    fn renew<T: Task<W>>(&mut self, task: &T) {
        let under_way = task.under_way(Some(&self.decision.plan));
        let question = self.job.question().going_on(under_way.as_ref());
        self.decision = self.planner.decide(&question, self.job.costs());
        self.has_other_plans |= W::is_continued(self.job.request());
    }

    /// Puts the fallback plan in the place of a policy's that libtorch refused: the plan alone may
    /// be at fault, and another one need not fail. False if it is the same, or was replaced before.
    fn replace<T: Task<W>>(&mut self, task: &T, error: &Error) -> bool {
        if !is_torch(error) || self.decision.answer.is_none() || self.was_replaced {
            return false;
        }
        self.was_replaced = true;
        tracing::warn!(%error, plan = %self.decision.plan, "the plan can't be carried out");
        let under_way = task.under_way(Some(&self.decision.plan));
        let question = self.job.question().going_on(under_way.as_ref()).after(&self.attempts);
        let own = self.planner.fallback(&question, &*self.job.costs());
        let Some(mut own) = own.filter(|own| !task.is_alike(&own.plan, &self.decision.plan)) else { return false };
        if let Some(fallback) = &mut own.fallback {
            fallback.detail = format!("the policy's plan can't be carried out: {}", one_line(error));
        }
        self.decision = own;
        self.has_other_plans |= W::is_continued(self.job.request());
        true
    }

    /// The decision to try after the last failure; `None` if it is time to give up. No plan that
    /// failed is tried again: the fallback plan stands in for a planner that repeats one.
    fn decide_again<T: Task<W>>(&mut self, task: &T, last: Failure) -> Option<Decision<W>> {
        let (job, attempts) = (self.job, self.attempts.len());
        if is_hopeless::<W>(&self.decision.plan, last) || attempts >= MOST_ATTEMPTS {
            return None;
        }
        let under_way = task.under_way(Some(&self.decision.plan));
        let question = job.question().going_on(under_way.as_ref()).after(&self.attempts);
        let is_new = |next: &Decision<W>| self.attempts.iter().all(|attempt| !task.is_alike(&attempt.plan, &next.plan));
        if attempts < PLANNER_ATTEMPTS {
            let next = self.planner.decide(&question, job.costs());
            if is_new(&next) {
                return Some(next);
            }
        }
        let own = self.planner.fallback(&question, &*job.costs()).filter(is_new);
        if own.is_some() || !(PLANNER_ATTEMPTS..PLANNER_ATTEMPTS_ALONE).contains(&attempts) {
            return own;
        }
        Some(self.planner.decide(&question, job.costs())).filter(is_new)
    }
}

#[cfg(test)]
mod tests {
    use tilewright_plan::{Denoise, DenoisePlan, Place, Precision, Text, TextPlan};

    use super::*;

    #[test]
    fn no_plan_mends_values_beyond_the_range_of_f32_in_any_stage() {
        let not_finite = Failure::NonFinite { values: 3 };
        for (dtype, expected) in [(Dtype::F32, true), (Dtype::Tf32, true), (Dtype::Bf16, false), (Dtype::F16, false)] {
            for precision in [Precision::Uniform(dtype), Precision::Mixed(dtype)] {
                let sample = DenoisePlan { precision, ..DenoisePlan::plain() };
                let text = TextPlan { precision, ..TextPlan::plain(Place::Host) };
                let found = [is_hopeless::<Denoise>(&sample, not_finite), is_hopeless::<Text>(&text, not_finite)];
                assert_eq!(found, [expected; 2], "{precision}");
                assert!(!is_hopeless::<Text>(&text, Failure::OutOfMemory { bytes: 1 }));
            }
        }
    }
}
