//! The text stage of a job from a prompt.

use std::{fs, io, path::Path};

use tilewright_pipeline::{
    Conditioning, ConditioningOutput, EncoderRun, Error, KeptConditionings, PlacedConditioning, TextPlanning,
    TextRequest, TextStage, Trials, UnfinishedRun,
};
use tilewright_plan::{Text, VariantOf};
use tilewright_rollout::{Assignment, Decider};
use tilewright_service_api::JobState;

use super::{JobEnded, Prompted};
use crate::{
    accept,
    error::one_line,
    job_traces::JobTrace,
    jobs::inputs::Input,
    work::{
        JobEnd,
        executed::{Execution, Turn},
        observer::{JobObserver, StopSignal},
        profiling::StageProfiles,
    },
};

/// The line of the log if there is no room for what this stage makes.
const NO_ROOM: &str = "there is no room for a conditioning: prompts are encoded again once there is";

/// The inputs of the sample that this stage makes.
const CONDITIONINGS: [Input; 2] = [Input::Conditioning, Input::Negative];

impl Prompted<'_> {
    /// Makes the conditionings of a job's prompts, or takes those that an earlier job has left;
    /// adds the records of encoders that ran. None if the job begins again after the next start.
    pub fn encode_prompts(&mut self, assignment: &Assignment) -> Option<JobEnded> {
        let Self { turn, history, stored, records } = self;
        let (turn, stop) = (*turn, StopSignal::new(turn.handle.clone(), stored));
        let (made, end) = turn.insist(stored, &stop, NO_ROOM, |stored| {
            let execution = Execution { turn, stored, assignment, stop: &stop };
            let mut records = Vec::new();
            let end = tracing::info_span!("text").in_scope(|| execution.encode_prompts(history, &mut records));
            (records, end)
        })?;
        records.extend(made);
        let (state, error) = end.map_or_else(|end| end.state("text stage"), |()| (JobState::Done, None));
        Some(self.end(JobEnded { state, error, record: None }))
    }
}

impl Execution<'_> {
    fn encode_prompts(&self, history: &mut Trials, records: &mut Vec<String>) -> Result<(), JobEnd> {
        let Execution { turn: Turn { server, device, model, .. }, stored, assignment, .. } = *self;
        let (text, transformer, _) = model.for_prompts().map_err(JobEnd::Failed)?;
        let fields = accept::fields_of(&stored.request, stored.job.request.as_deref(), transformer);
        let fields = fields.map_err(JobEnd::Failed)?;
        let prompts = accept::prompts_of(&stored.request, &fields);
        let convention = fields.convention.as_deref().map(str::parse).transpose();
        let convention = convention.map_err(JobEnd::Failed)?.unwrap_or_default();
        let failed = |error: Error| match error {
            Error::Engine(error) => self.end_of(error),
            error => JobEnd::Failed(one_line(&error)),
        };
        let kept = KeptConditionings::open().ok().flatten();
        let request = TextRequest {
            prompts: &prompts,
            convention,
            tokens: stored.request.text_tokens.or(text.tokens),
            embeddings: None,
            memory_limit: self.memory_limit().bytes,
            objective: self.objective(),
        };
        let identity = &assignment.revision.identity;
        let mut stage = TextStage::find(kept.as_ref(), &text.paths, request, identity).map_err(failed)?;
        if !stage.is_kept() {
            let mut decider = Decider::<Text>::new(server.rollout.clone(), assignment.clone());
            let mut observer = JobObserver::new(*self, &decider);
            let mut planning = TextPlanning { planner: &mut decider, trials: history };
            let encoders = text.open().map_err(failed)?;
            let runs = match stage.encode(&encoders, (&device.machine, None), &mut planning, &mut observer) {
                Ok(runs) => runs,
                Err(Error::Encoder(unfinished)) => {
                    let UnfinishedRun { error, record, exchange } = *unfinished;
                    let end = self.end_of(error);
                    if let Some(record) = record.filter(|_| !matches!(end, JobEnd::Cancelled)) {
                        records.extend(serde_json::to_string(&record).ok());
                        self.learn(*record, exchange, false, None);
                    }
                    return Err(end);
                }
                Err(error) => return Err(failed(error)),
            };
            let mut profiles = observer.profiles.map(StageProfiles::into_summaries).unwrap_or_default().into_iter();
            for EncoderRun { record, exchange, log, candidates, .. } in runs {
                let profile = profiles.next().flatten();
                records.extend(serde_json::to_string(&record).ok());
                self.count(history, &record, false, profile.as_ref());
                let trace = JobTrace { candidates, log, incumbent: None };
                server.traces.insert(&stored.job.id, Text::any(Box::new(trace)));
                self.learn(record, exchange, false, None);
            }
        }
        let placed =
            stage.complete(&mut |error| tracing::warn!(error = one_line(&error), "a conditioning is not kept"));
        if placed.len() != prompts.len() {
            return Err(JobEnd::Failed("no conditioning".into()));
        }
        // The first one comes last: it says that all are there.
        for (input, placed) in CONDITIONINGS.into_iter().zip(placed).rev() {
            let place = server.jobs.files.input(&stored.job.id, input);
            let written = place.with_extension("safetensors");
            match placed {
                PlacedConditioning::Kept(path) => fs::copy(&path, &written).map(drop),
                PlacedConditioning::Made(conditioning) => write(&conditioning, &written).map_err(failed)?,
            }
            .and_then(|()| fs::File::open(&written)?.sync_all())
            .and_then(|()| fs::rename(&written, &place))
            .map_err(|error| self.classify_write_error(&error))?;
        }
        Ok(())
    }
}

fn write(conditioning: &Conditioning, place: &Path) -> Result<io::Result<()>, Error> {
    let output = ConditioningOutput::new(place, false)?;
    Ok(output.write(conditioning).map(drop).map_err(io::Error::other))
}
