//! A job from a prompt: text encoders read it, the transformer samples a latent, the vae decodes
//! it. What a stage has made is kept in the job's folder, so that the job goes on from there after
//! an end of the server.

mod image;
mod text;

use std::sync::Arc;

use tilewright_pipeline::Trials;
use tilewright_plan::{Denoise, Stage, Vae, of_any, records::AnyRecord};
use tilewright_rollout::Assignment;
use tilewright_service_api::{JobState, StageAtWork};

use super::{
    JobEnd, JobEnded,
    executed::Execution,
    give_back,
    observer::StopSignal,
    stages::{join_stages, split_stages},
    wait_for_room,
};
use crate::{
    device::Worker,
    error::one_line,
    jobs::{
        StoredJob,
        inputs::Input,
        live::{JobHandle, JobUpdate},
    },
    models::OpenModel,
    state::ServerState,
};

/// Carries a job out, stage by stage; none if it begins again after the next start.
pub fn carry_out(
    server: &Arc<ServerState>,
    worker: &Worker,
    history: &mut Trials,
    stored: &mut StoredJob,
    model: &Arc<OpenModel>,
    assignment: &Assignment,
    handle: &Arc<JobHandle>,
) -> Option<JobEnded> {
    let id = stored.job.id.clone();
    let input = |input: Input| server.jobs.files.input(&id, input);
    // The records of stages that were done before the server ended are kept, too.
    let mut records: Vec<String> = match server.retry_until_written("a job's records", || server.jobs.store.record(&id))
    {
        Ok(before) => before.as_deref().map(split_stages).unwrap_or_default().into_iter().map(str::to_owned).collect(),
        Err(error) => return Some(failed(one_line(&error))),
    };
    if !input(Input::Latent).is_file() {
        if !input(Input::Conditioning).is_file() {
            records.clear();
            let ended = text::carry_out(server, worker, history, stored, model, handle, &mut records)?;
            if ended.state != JobState::Done {
                return Some(ended);
            }
        }
        if input(Input::Image).is_file() && !server.jobs.files.start(&id).is_file() {
            records.retain(|record| is_of(record, Stage::Text));
            let ended = image::carry_out(server, worker, history, stored, model, handle, &mut records)?;
            if ended.state != JobState::Done {
                return Some(ended);
            }
        }
        records.retain(|record| is_of(record, Stage::Text) || is_of(record, Stage::Encode));
        begin(server, stored, handle, StageAtWork::Denoise, &records);
        let ended = super::carry_out::<Denoise>(server, worker, history, stored, model, assignment, handle)?;
        let ended = ended.after(&mut records);
        if ended.state != JobState::Done {
            return Some(ended);
        }
    }
    begin(server, stored, handle, StageAtWork::Decode, &records);
    let decode = match server.rollout.revive_assignment(stored.pinned_of(Stage::Decode)) {
        Ok(decode) => decode,
        Err(error) => return Some(failed(error.for_callers())),
    };
    let ended = super::carry_out::<Vae>(server, worker, history, stored, model, &decode, handle)?;
    stored.job.at = None;
    Some(ended.after(&mut records))
}

/// A stage before the sample, whose outcome is kept in the job's folder.
struct Preparation {
    stage: Stage,
    at_work: StageAtWork,
    /// The stage's name in the job's error.
    name: &'static str,
    /// The line of the log if there is no room for what the stage makes.
    no_room: &'static str,
}

impl Preparation {
    /// Carries the stage out, again each time that there was no room for what it makes; adds its
    /// records. None if the job begins again after the next start.
    fn carry_out(
        &self,
        server: &ServerState,
        worker: &Worker,
        stored: &mut StoredJob,
        handle: &Arc<JobHandle>,
        records: &mut Vec<String>,
        mut make: impl FnMut(Execution<'_>, &Assignment, &StopSignal, &mut Vec<String>) -> Result<(), JobEnd>,
    ) -> Option<JobEnded> {
        begin(server, stored, handle, self.at_work, records);
        let assignment = match server.rollout.revive_assignment(stored.pinned_of(self.stage)) {
            Ok(assignment) => assignment,
            Err(error) => return Some(failed(error.for_callers())),
        };
        let stop = StopSignal::new(handle.clone(), stored);
        let before = records.len();
        let made = loop {
            records.truncate(before);
            let made = make(Execution { server, worker, stored }, &assignment, &stop, records);
            let Err(JobEnd::Unwritten(line)) = made else { break made };
            tracing::error!(error = line, "{}", self.no_room);
            match wait_for_room(server, &stop) {
                Ok(true) => {}
                // The job begins anew after the next start.
                Ok(false) => return None,
                Err(end) => break Err(end),
            }
        };
        let (state, error) = match made {
            Ok(()) => (JobState::Done, None),
            Err(JobEnd::LostDevice(reason)) => {
                give_back(server, worker, stored, &reason);
                return None;
            }
            Err(end) => end.state(self.name),
        };
        Some(JobEnded { state, error, record: None }.after(records))
    }
}

fn failed(line: String) -> JobEnded {
    JobEnded { state: JobState::Failed, error: Some(line), record: None }
}

fn is_of(record: &str, stage: Stage) -> bool {
    AnyRecord::from_json(record).is_some_and(|record| of_any!(record, record => record.stage() == stage))
}

impl JobEnded {
    /// The end of a job whose last stage this was; its record comes after those before.
    fn after(self, records: &mut Vec<String>) -> Self {
        records.extend(self.record);
        Self { record: Some(join_stages(records)), ..self }
    }
}

/// Tells followers of the stage that begins, and keeps the records of those before.
fn begin(server: &ServerState, stored: &mut StoredJob, handle: &JobHandle, stage: StageAtWork, records: &[String]) {
    stored.job.at = Some(stage);
    let record = (!records.is_empty()).then(|| join_stages(records));
    let update = || server.jobs.store.update(stored, record.as_deref(), None);
    let kept = server.retry_until_written("a job's stage", update);
    if let Err(error) = kept {
        tracing::error!(error = one_line(&error), "the stage of a job can't be written");
    }
    handle.send(JobUpdate::Job(Box::new(stored.job.clone())));
}
