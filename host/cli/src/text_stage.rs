//! The text stage of commands: decisions about encoders are kept, shown, and explained.

use serde::Serialize;
use tilewright_engine::{Machine, Probe};
use tilewright_pipeline::{self as pipeline, EncoderRun, Trials, UnfinishedRun};
use tilewright_plan::{Text, TextPlan, TextRecord, Work, bytes};
use tilewright_torch::device::Choice;

use crate::{
    args::Recording,
    failure::{Failure, Outcome},
    history,
    report::{OVER, considered, keep, keep_unfinished},
    table,
    tell::tell,
};

/// The processor beside a GPU, for encoders that run there; none if the device is the processor, or
/// if it can't be measured.
pub fn processor(machine: &Machine) -> Option<Machine> {
    if machine.device == tch::Device::Cpu {
        return None;
    }
    match Machine::open(Choice::Cpu, Probe::Kept) {
        Ok(host) => Some(host),
        Err(error) => {
            tell!("warning: text encoders run on the device alone: {error}");
            None
        }
    }
}

/// Keeps the records of runs that were carried out: in the user's file and in the history.
pub fn keep_runs(recording: &Recording, trials: &mut Trials, runs: &mut [EncoderRun]) -> Outcome {
    for run in runs {
        if run.record.outcome.is_some() {
            history::keep(trials, &run.record);
        }
        keep(recording, &run.record, run.exchange.take())?;
    }
    Ok(())
}

/// The failure of a run, after its record is kept.
pub fn fail(recording: &Recording, trials: &mut Trials, error: pipeline::Error) -> Failure {
    let pipeline::Error::Encoder(unfinished) = error else { return error.into() };
    let UnfinishedRun { error, record, exchange } = *unfinished;
    let kept = record.map_or(Ok(()), |record| keep_unfinished((recording, trials), &error, &record, exchange));
    kept.err().unwrap_or_else(|| error.into())
}

/// A run, for --json.
#[derive(Serialize)]
pub struct Row<'a> {
    model: &'a str,
    path: String,
    tokens: usize,
    #[serde(flatten)]
    record: &'a TextRecord,
}

impl<'a> Row<'a> {
    /// The run's row.
    pub fn new(run: &'a EncoderRun) -> Self {
        Self { model: &run.model, path: run.path.display().to_string(), tokens: run.tokens, record: &run.record }
    }
}

/// Every plan that the policy asked the price of, listed once, with a mark at the one carried out.
pub fn explanation(run: &EncoderRun) -> String {
    let EncoderRun { model, record, candidates, .. } = run;
    let heading = ["", "plan", "time", "load", "memory", "weights", "on the host", "note"];
    let policy = format!("{model}: {}", record.policy.name);
    considered(&policy, candidates, (&heading, &heading[2..7]), |candidate, row| {
        row.push(candidate.plan.to_string());
        let mut notes = Vec::new();
        if let Ok(cost) = &candidate.cost {
            row.extend([table::time(cost.elapsed), table::time(cost.load)]);
            row.extend([cost.peak_bytes, cost.weights_bytes, cost.host_bytes].map(bytes::display));
            notes.extend((cost.held_bytes() > record.request.memory_limit).then(|| OVER.to_owned()));
        }
        // The price of a plan is the same, whatever stays afterwards.
        let chosen = TextPlan { kept: candidate.plan.kept, ..Text::without_reason(&record.plan) };
        (Text::without_reason(&candidate.plan) == chosen, notes)
    })
}
