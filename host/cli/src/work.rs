//! The kinds of work in the words of the history's rows and of progress.

use std::time::Duration;

use tilewright_engine::Failed;
use tilewright_plan::{Denoise, DenoiseCost, DenoiseRequest, Plan, Text, TextRequest, Vae, Work, words::with_noun};

/// A kind of work that people follow and look up.
pub trait Reported: Work {
    /// A policy that does not answer, so that the host's default is used, is worth a note.
    const NOTES_UNANSWERED: bool = true;

    /// The size of the work.
    fn size(request: &Self::Request) -> String {
        samples(Self::extents(request))
    }

    /// A plan, as the history has it.
    fn short_plan(plan: &Self::Plan) -> String {
        plan.to_string()
    }

    /// The steps of a sample.
    fn steps(_request: &Self::Request) -> u32 {
        1
    }

    /// The expected time of the work; of a sample that of this number of steps.
    fn expected_time(cost: &Self::Cost, _steps: u32) -> Duration {
        Self::time(cost)
    }

    /// The line for a plan that failed.
    fn failure(failed: &Failed<'_, Self>) -> String {
        format!("{} failed: {}", failed.attempt.plan, failed.attempt.failure)
    }
}

impl Reported for Vae {
    fn short_plan(plan: &Plan) -> String {
        let together = if plan.batch == 1 { String::new() } else { format!(", batch {}", plan.batch) };
        format!("{}, {}, {}{together}", plan.space, plan.precision, plan.layout)
    }
}

impl Reported for Denoise {
    fn size(request: &DenoiseRequest) -> String {
        format!("{} latent, {}", samples(Self::extents(request)), with_noun(request.steps, "step"))
    }

    fn steps(request: &DenoiseRequest) -> u32 {
        request.steps
    }

    fn expected_time(cost: &DenoiseCost, steps: u32) -> Duration {
        cost.step.saturating_mul(steps)
    }

    fn failure(Failed { attempt, next }: &Failed<'_, Self>) -> String {
        let step = attempt.step.unwrap_or(0) + 1;
        let next = next.map_or_else(String::new, |next| format!("; it is tried again: {next}"));
        format!("step {step}: {}{next}", attempt.failure)
    }
}

impl Reported for Text {
    // A policy need not know encoders.
    const NOTES_UNANSWERED: bool = false;

    fn size(request: &TextRequest) -> String {
        with_noun(request.all_tokens(), "token")
    }

    fn failure(Failed { attempt, next }: &Failed<'_, Self>) -> String {
        let next = next.map_or_else(String::new, |next| format!("; the encoder runs again: {next}"));
        format!("{} failed: {}{next}", attempt.plan, attempt.failure)
    }
}

/// Samples, their size, and frames.
fn samples([samples, frames, height, width]: [u32; 4]) -> String {
    let samples = if samples == 1 { String::new() } else { format!("{samples} × ") };
    let frames = if frames == 1 { String::new() } else { format!(" × {frames} frames") };
    format!("{samples}{width}×{height}{frames}")
}
