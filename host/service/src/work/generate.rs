//! A job from a prompt: text encoders read it, the transformer samples a latent, the vae decodes
//! it. What a stage has made is kept in the job's folder, so that the job goes on from there after
//! an end of the server.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use tilewright_pipeline::{ConditioningOutput, KeptConditionings, TextPlanning, Trials};
use tilewright_plan::{Denoise, PolicyIdentity, Recorder, Vae};
use tilewright_policy::FallbackPlanner;
use tilewright_rollout::Assignment;
use tilewright_service_api::{JobState, StageAtWork};

use super::{
    JobEnd, JobEnded,
    executed::Execution,
    memory_limit,
    observer::{CancelOnly, StopSignal},
    stages::join_stages,
};
use crate::{
    accept,
    device::Worker,
    error::one_line,
    jobs::{
        StoredJob,
        inputs::Input,
        live::{JobHandle, JobUpdate},
    },
    state::ServerState,
};

/// The inputs that the text stage makes.
const CONDITIONINGS: [Input; 2] = [Input::Conditioning, Input::Negative];

/// Carries a job out, stage by stage; none if it begins anew after the next start.
pub fn carry_out(
    server: &Arc<ServerState>,
    worker: &Worker,
    history: &mut Trials,
    stored: &mut StoredJob,
    assignment: &Assignment,
    handle: &Arc<JobHandle>,
) -> Option<JobEnded> {
    let id = stored.job.id.clone();
    let input = |input: Input| server.jobs.files.input(&id, input);
    let mut records = Vec::new();
    let mut note = |ended: &mut JobEnded| {
        records.extend(ended.record.take());
        ended.record = Some(join_stages(&records));
        ended.state == JobState::Done
    };
    if !input(Input::Latent).is_file() {
        if !input(Input::Conditioning).is_file() {
            begin(server, stored, handle, StageAtWork::Text);
            let stop = StopSignal::new(handle.clone(), stored.deadline_ms);
            let execution = Execution { server, worker, stored };
            let encoded = tracing::info_span!("text").in_scope(|| execution.encode(history, assignment, &stop));
            if let Err(end) = encoded {
                let (state, error) = end.state("text stage");
                return Some(JobEnded { state, error, record: None });
            }
        }
        begin(server, stored, handle, StageAtWork::Denoise);
        let mut ended = super::carry_out::<Denoise>(server, worker, history, stored, assignment, handle)?;
        if !note(&mut ended) {
            return Some(ended);
        }
    }
    begin(server, stored, handle, StageAtWork::Decode);
    let decode = stored.pinned_decode.as_ref().map(|pinned| server.rollout.revive_assignment(pinned));
    let decode = match decode {
        Some(Ok(decode)) => decode,
        Some(Err(error)) => {
            return Some(JobEnded { state: JobState::Failed, error: Some(error.for_callers()), record: None });
        }
        None => assignment.clone(),
    };
    let mut ended = super::carry_out::<Vae>(server, worker, history, stored, &decode, handle)?;
    note(&mut ended);
    stored.job.at = None;
    Some(ended)
}

/// Tells followers of the stage that begins.
fn begin(server: &ServerState, stored: &mut StoredJob, handle: &JobHandle, stage: StageAtWork) {
    stored.job.at = Some(stage);
    let kept = server.retry_until_written("a job's stage", || server.jobs.store.update(stored, None, None));
    if let Err(error) = kept {
        tracing::error!(error = one_line(&error), "the stage of a job can't be written");
    }
    handle.send(JobUpdate::Job(Box::new(stored.job.clone())));
}

impl Execution<'_> {
    /// Makes the conditionings of the job's prompts, or takes those that an earlier job has left.
    fn encode(&self, history: &mut Trials, assignment: &Assignment, stop: &StopSignal) -> Result<(), JobEnd> {
        let Self { server, worker, stored } = *self;
        let failed = |error: tilewright_pipeline::Error| match error {
            tilewright_pipeline::Error::Engine(tilewright_engine::Error::Interrupted) => stop.end(),
            tilewright_pipeline::Error::Engine(error) if error.is_lost_device() => JobEnd::LostDevice(one_line(&error)),
            error => JobEnd::Failed(one_line(&error)),
        };
        let model = server.models.of_job(&stored.job).map_err(JobEnd::Failed)?;
        let (text, transformer, _) = model.for_prompts().map_err(JobEnd::Failed)?;
        let fields = accept::fields_of(&stored.request, transformer);
        let prompts = accept::prompts_of(&stored.request, &fields);
        let convention = fields.convention.as_deref().map(str::parse).transpose();
        let convention = convention.map_err(JobEnd::Failed)?.unwrap_or_default();
        let limit = memory_limit(worker, stored, assignment).bytes;
        let kept = KeptConditionings::open().ok().flatten();
        // No route is of the text stage: the host's own plan is carried out.
        let nobody = PolicyIdentity {
            name: "host".into(),
            version: String::new(),
            digest: String::new(),
            settings: BTreeMap::new(),
        };
        let wish = |prompts| accept::text_request(text, prompts, convention, limit);
        let mut found = Vec::new();
        for prompt in &prompts {
            let one = wish(std::slice::from_ref(prompt));
            found.push(kept.as_ref().map(|kept| kept.find(&text.paths, &one, &nobody)).transpose().map_err(failed)?);
        }
        let is_missing = |found: &Option<(String, Option<std::path::PathBuf>)>| {
            found.as_ref().is_none_or(|(_, path)| path.is_none())
        };
        let missing: Vec<usize> = (0..found.len()).filter(|index| is_missing(&found[*index])).collect();
        let wanted: Vec<String> = missing.iter().map(|index| prompts[*index].clone()).collect();
        let mut made = Vec::new();
        if !wanted.is_empty() {
            let machine = &worker.device.machine;
            let planner = FallbackPlanner::new(nobody.clone(), "text is encoded without a policy");
            let mut planner = Recorder::new(Box::new(planner), false);
            let mut planning = TextPlanning { planner: &mut planner, trials: history };
            let encoders = text.open().map_err(failed)?;
            let encoded = encoders.encode_each(machine, &wish(&wanted), &mut planning, &mut CancelOnly(stop));
            made = encoded.map_err(failed)?.0;
        }
        // The first one comes last: it says that all are there.
        for (index, input) in CONDITIONINGS.into_iter().enumerate().take(prompts.len()).rev() {
            let place = server.jobs.files.input(&stored.job.id, input);
            let written = place.with_extension("safetensors");
            match found[index].as_ref().and_then(|(_, path)| path.as_ref()) {
                Some(path) => copy(path, &written),
                None => {
                    let conditioning = made.pop().ok_or_else(|| JobEnd::Failed("no conditioning".into()))?;
                    if let (Some(kept), Some((key, _))) = (&kept, &found[index])
                        && let Err(error) = kept.keep(key, &conditioning)
                    {
                        tracing::warn!(error = one_line(&error), "a conditioning is not kept");
                    }
                    let output = ConditioningOutput::new(&written, false).map_err(failed)?;
                    output.write(&conditioning).map(drop).map_err(std::io::Error::other)
                }
            }
            .and_then(|()| fs::File::open(&written)?.sync_all())
            .and_then(|()| fs::rename(&written, &place))
            .map_err(|error| self.classify_write_error(&error))?;
        }
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::copy(from, to).map(drop)
}
