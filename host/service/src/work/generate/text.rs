//! The text stage of a job from a prompt.

use std::{fs, io, path::Path, sync::Arc};

use tilewright_engine::Error as EngineError;
use tilewright_pipeline::{
    Conditioning, ConditioningOutput, EncoderRun, Error, FoundConditionings, KeptConditionings, PlacedConditioning,
    TextPlanning, Trials, UnfinishedRun,
};
use tilewright_plan::{Exchange, Stage, Text, TextRecord};
use tilewright_rollout::{Assignment, Decider, EndedJob};
use tilewright_service_api::StageAtWork;

use super::{JobEnd, JobEnded, Preparation};
use crate::{
    accept,
    device::Worker,
    error::one_line,
    job_traces::{AnyJobTrace, JobTrace},
    jobs::{StoredJob, inputs::Input, live::JobHandle},
    metrics::Labels,
    models::OpenModel,
    state::ServerState,
    work::{
        executed::Execution,
        memory_limit,
        observer::{JobObserver, StopSignal},
    },
};

const PROMPTS: Preparation = Preparation {
    stage: Stage::Text,
    at_work: StageAtWork::Text,
    name: "text stage",
    no_room: "there is no room for a conditioning: prompts are encoded again once there is",
};

/// The inputs of the sample that this stage makes.
const CONDITIONINGS: [Input; 2] = [Input::Conditioning, Input::Negative];

/// Makes the conditionings of a job's prompts, or takes those that an earlier job has left; adds
/// the records of encoders that ran. None if the job begins again after the next start.
pub fn carry_out(
    server: &ServerState,
    worker: &Worker,
    history: &mut Trials,
    stored: &mut StoredJob,
    model: &OpenModel,
    handle: &Arc<JobHandle>,
    records: &mut Vec<String>,
) -> Option<JobEnded> {
    PROMPTS.carry_out(server, worker, stored, handle, records, |execution, assignment, stop, records| {
        let stage = TextStage { execution, model, assignment };
        tracing::info_span!("text").in_scope(|| stage.encode(history, handle, stop, records))
    })
}

/// The text stage of a job, its model, and the revision that decides on it.
struct TextStage<'a> {
    execution: Execution<'a>,
    model: &'a OpenModel,
    assignment: &'a Assignment,
}

impl TextStage<'_> {
    fn encode(
        &self,
        history: &mut Trials,
        handle: &Arc<JobHandle>,
        stop: &StopSignal,
        records: &mut Vec<String>,
    ) -> Result<(), JobEnd> {
        let Execution { server, worker, stored } = self.execution;
        let (text, transformer, _) = self.model.for_prompts().map_err(JobEnd::Failed)?;
        let fields = accept::fields_of(&stored.request, stored.job.request.as_deref(), transformer);
        let fields = fields.map_err(JobEnd::Failed)?;
        let prompts = accept::prompts_of(&stored.request, &fields);
        let convention = fields.convention.as_deref().map(str::parse).transpose();
        let convention = convention.map_err(JobEnd::Failed)?.unwrap_or_default();
        let limit = memory_limit(worker, stored, self.assignment).bytes;
        let objective = self.execution.objective(self.assignment);
        let wish =
            |prompts| accept::text_request((text, stored.request.text_tokens), prompts, convention, limit, objective);
        let failed = |error: Error| self.ended(error, stop);
        let kept = KeptConditionings::open().ok().flatten();
        let identity = &self.assignment.revision.identity;
        let found = FoundConditionings::find(kept.as_ref(), &text.paths, &wish(&prompts), identity).map_err(failed)?;
        let missing = found.missing(&prompts);
        let mut made = Vec::new();
        if !missing.is_empty() {
            let mut decider = Decider::<Text>::new(server.rollout.clone(), self.assignment.clone());
            let mut observer = JobObserver::<Text>::new(
                server,
                &worker.device,
                self.assignment,
                handle.clone(),
                stop.clone(),
                decider.successor(),
                decider.current(),
            );
            let mut planning = TextPlanning { planner: &mut decider, trials: history };
            let encoders = text.open().map_err(failed)?;
            let encoded = encoders.encode_each(&worker.device.machine, &wish(&missing), &mut planning, &mut observer);
            let runs = match encoded {
                Ok((conditionings, runs)) => {
                    made = conditionings;
                    runs
                }
                Err(Error::Encoder(unfinished)) => {
                    let UnfinishedRun { error, record, exchange } = *unfinished;
                    let end = failed(Error::Engine(error));
                    if let Some(record) = record.filter(|_| !matches!(end, JobEnd::Cancelled)) {
                        records.extend(serde_json::to_string(&record).ok());
                        self.learn(*record, exchange, true);
                    }
                    return Err(end);
                }
                Err(error) => return Err(failed(error)),
            };
            for run in runs {
                records.extend(serde_json::to_string(&run.record).ok());
                history.keep(&run.record);
                self.note(run);
            }
        }
        // The first one comes last: it says that all are there.
        let placed = found.complete(made);
        if placed.len() != prompts.len() {
            return Err(JobEnd::Failed("no conditioning".into()));
        }
        for (input, placed) in CONDITIONINGS.into_iter().zip(placed).rev() {
            let place = server.jobs.files.input(&stored.job.id, input);
            let written = place.with_extension("safetensors");
            match placed {
                PlacedConditioning::Kept(path) => copy(&path, &written),
                PlacedConditioning::Made(conditioning, error) => {
                    if let Some(error) = error {
                        tracing::warn!(error = one_line(&error), "a conditioning is not kept");
                    }
                    write(&conditioning, &written).map_err(failed)?
                }
            }
            .and_then(|()| fs::File::open(&written)?.sync_all())
            .and_then(|()| fs::rename(&written, &place))
            .map_err(|error| self.execution.classify_write_error(&error))?;
        }
        Ok(())
    }

    /// The end of a job by an error.
    fn ended(&self, error: Error, stop: &StopSignal) -> JobEnd {
        match error {
            Error::Engine(EngineError::Interrupted) => stop.end(),
            Error::Engine(error) if error.is_lost_device() => JobEnd::LostDevice(one_line(&error)),
            error => JobEnd::Failed(one_line(&error)),
        }
    }

    /// Counts an encoder's run that ended well, and keeps its trace.
    fn note(&self, run: EncoderRun) {
        let Execution { server, stored, .. } = self.execution;
        let Assignment { route, revision, canary, .. } = self.assignment;
        let EncoderRun { record, exchange, log, candidates, .. } = run;
        let labels = Labels { route, policy: &revision.policy, revision: revision.number, canary: *canary };
        server.metrics.record_text(&labels, &stored.job.device, &record);
        if let Some(outcome) = &record.outcome {
            server.traces.record_work_time(Stage::Text, route, outcome.elapsed.as_secs_f64());
        }
        let trace = JobTrace { candidates, log, incumbent: None };
        server.traces.insert(&stored.job.id, AnyJobTrace::Text(Box::new(trace)));
        self.learn(record, exchange, false);
    }

    /// Tells the rollout of a run.
    fn learn(&self, mut record: TextRecord, exchange: Option<Exchange<Text>>, is_lost: bool) {
        record.exchange = exchange;
        let ended = EndedJob { record, is_mixed: false, is_lost, psnr: None };
        self.execution.server.rollout.record_result(self.assignment, ended);
    }
}

fn write(conditioning: &Conditioning, place: &Path) -> Result<io::Result<()>, Error> {
    let output = ConditioningOutput::new(place, false)?;
    Ok(output.write(conditioning).map(drop).map_err(io::Error::other))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to).map(drop)
}
