//! Published workflows: from conditioning and noise to a picture or clip, each stage with its time.

use serde::Serialize;
use tilewright_engine::{DenoiseJob, Machine, MemoryLimit, Sampling};
use tilewright_pipeline::{Decode, Model, SampleModel, default_limit};
use tilewright_plan::{Objective, words::with_noun};
use tilewright_statistics::median;

use super::{ClaimRow, Verdict};
use crate::{
    Planners, Spelling, Watch,
    race::{Raced, Ran, Stop, in_turns},
    samples::SamplePlanners,
};

/// The workflow of clips, whose time was published.
const CLIP: &str = "wan-320-17";

/// Seconds that the clip was published to take at most.
const CLIP_SECONDS: f64 = 100.0;

/// A workflow of a transformer and a VAE.
#[derive(Debug)]
pub struct Workflow<'a> {
    /// The workflow's short name: `flux-1024` or `wan-320-17`.
    pub id: &'static str,
    /// The workflow's description for people.
    pub what: &'static str,
    /// The transformer.
    pub transformer: &'a SampleModel,
    /// The input of its sample.
    pub sampling: Sampling,
    /// The VAE.
    pub vae: &'a Model,
}

/// A measured workflow.
#[derive(Clone, Debug, Serialize)]
pub struct WorkflowReport {
    /// The workflow's short name.
    pub id: &'static str,
    /// The workflow's description for people.
    pub what: &'static str,
    /// Steps of the sample.
    pub steps: u32,
    /// One row per policy.
    pub rows: Vec<WorkflowRow>,
}

/// The stages of a workflow by one policy: medians of its runs in milliseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WorkflowRow {
    /// As spelled.
    pub policy: String,
    /// Loading the transformer.
    pub load_ms: Option<f64>,
    /// Sampling, loading aside.
    pub sample_ms: Option<f64>,
    /// A step of it.
    pub step_ms: Option<f64>,
    /// Decoding, loading the VAE included.
    pub decode_ms: Option<f64>,
    /// All of it.
    pub total_ms: Option<f64>,
    /// The most that a stage held, weights included.
    pub peak_bytes: Option<u64>,
    /// The reason why there are no figures.
    pub error: Option<String>,
}

/// The run of a workflow.
#[derive(Clone, Copy, Default)]
struct Run {
    load_ms: f64,
    sample_ms: f64,
    step_ms: f64,
    decode_ms: f64,
    peak_bytes: u64,
}

impl Workflow<'_> {
    /// Runs the workflow under each policy in turn, `iterations` times. True beside the report if
    /// it was interrupted.
    pub(super) fn run(
        &self,
        machine: &Machine,
        policies: &[Spelling],
        iterations: usize,
        (planners, samplers): (&Planners<'_>, &SamplePlanners<'_>),
        watch: &mut dyn Watch,
    ) -> (WorkflowReport, bool) {
        let mut runs: Vec<Vec<Run>> = policies.iter().map(|_| Vec::new()).collect();
        let mut errors: Vec<Option<String>> = policies.iter().map(|_| None).collect();
        let labels: Vec<String> = policies.iter().map(|policy| format!("{}: {policy}", self.id)).collect();
        let ended = in_turns(&labels, &mut errors, iterations, watch, |place, _, watch| {
            runs[place].push(self.once(machine, &policies[place], (planners, samplers), watch)?);
            Ok(())
        });
        let runs = runs.into_iter().zip(errors).map(|(runs, error)| error.map_or(Ok(runs), Err));
        let rows = policies.iter().zip(runs).map(|(policy, runs)| row(policy, runs));
        let steps = self.sampling.sigmas.len() as u32 - 1;
        (WorkflowReport { id: self.id, what: self.what, steps, rows: rows.collect() }, ended.is_err())
    }

    fn once(
        &self,
        machine: &Machine,
        policy: &Spelling,
        (planners, samplers): (&Planners<'_>, &SamplePlanners<'_>),
        watch: &mut dyn Watch,
    ) -> Result<Run, Stop> {
        let limit = MemoryLimit { bytes: default_limit(machine), counts_weights: true };
        let job = DenoiseJob::new(machine, &self.transformer.denoiser, &self.sampling, limit.bytes, Objective::Fastest);
        let job = job.map_err(Stop::failed)?;
        let mut planner = samplers(policy).map_err(Stop::failed)?;
        let Ran { record, output: Some(latents), .. } = Raced::run(&job, planner.as_mut(), watch, true)? else {
            return Err(Stop::failed("no latents"));
        };
        let Some(outcome) = record.outcome else { return Err(Stop::failed("nothing was measured")) };
        let latents = self.transformer.to_vae(&latents).map_err(Stop::failed)?;
        self.transformer.denoiser.release();
        let job = Decode::new(machine, self.vae, &latents, limit, Objective::Fastest).map_err(Stop::failed)?;
        let mut planner = planners(policy).map_err(Stop::failed)?;
        let begun = std::time::Instant::now();
        let decoded = Raced::run(&job, planner.as_mut(), watch, false)?;
        let decode_ms = begun.elapsed().as_secs_f64() * 1e3;
        self.vae.release();
        let decoders = decoded.record.outcome.map_or(0, |outcome| outcome.peak_bytes);
        Ok(Run {
            load_ms: outcome.load.as_secs_f64() * 1e3,
            sample_ms: outcome.elapsed.as_secs_f64() * 1e3,
            step_ms: outcome.step.as_secs_f64() * 1e3,
            decode_ms,
            peak_bytes: outcome.held_bytes().max(decoders),
        })
    }
}

fn row(policy: &Spelling, runs: Result<Vec<Run>, String>) -> WorkflowRow {
    let row = WorkflowRow { policy: policy.to_string(), ..WorkflowRow::default() };
    let runs = match runs {
        Ok(runs) => runs,
        Err(error) => return WorkflowRow { error: Some(error), ..row },
    };
    let of = |of: fn(&Run) -> f64| median(&runs.iter().map(of).collect::<Vec<f64>>());
    WorkflowRow {
        load_ms: of(|run| run.load_ms),
        sample_ms: of(|run| run.sample_ms),
        step_ms: of(|run| run.step_ms),
        decode_ms: of(|run| run.decode_ms),
        total_ms: of(|run| run.load_ms + run.sample_ms + run.decode_ms),
        peak_bytes: runs.iter().map(|run| run.peak_bytes).max(),
        ..row
    }
}

/// The published claim about clips, by the first policy; none if it was not run.
pub(super) fn claim(reports: &[WorkflowReport], quick: bool) -> Option<ClaimRow> {
    let report = reports.iter().find(|report| report.id == CLIP)?;
    let seconds = report.rows.first()?.total_ms? / 1e3;
    let (verdict, why) = match (quick, seconds <= CLIP_SECONDS) {
        (true, _) => (Verdict::NotComparable, "smaller, and with fewer steps".to_owned()),
        (false, true) => (Verdict::Met, format!("with {}", with_noun(report.steps, "step"))),
        (false, false) => (Verdict::NotMet, format!("with {}", with_noun(report.steps, "step"))),
    };
    Some(ClaimRow {
        claim: "WAN 2.1 1.3B: 17 frames of 320×320, loaded, sampled and decoded",
        published: "under 100 s",
        measured: Some(format!("{seconds:.1} s")),
        verdict,
        why,
    })
}
