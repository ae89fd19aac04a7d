//! A job from a prompt: text encoders read it, the transformer samples a latent, the vae decodes
//! it. What a stage has made is kept in the job's folder, so that the job goes on from there after
//! an end of the server.

mod image;
mod text;

use tilewright_pipeline::Trials;
use tilewright_plan::{Denoise, Stage, Vae, of_any, records::AnyRecord};
use tilewright_rollout::Assignment;
use tilewright_service_api::JobState;

use self::image::ImageEncode;
use super::{
    JobEnded,
    executed::{Executed, Turn},
    stages::{join_stages, split_stages},
};
use crate::{
    error::one_line,
    jobs::{StoredJob, inputs::Input, live::JobUpdate},
};

/// Carries a job out, stage by stage; none if it begins again after the next start.
pub fn carry_out(
    turn: Turn<'_>,
    history: &mut Trials,
    stored: &mut StoredJob,
    assignment: &Assignment,
) -> Option<JobEnded> {
    let id = &stored.job.id;
    let before = turn.server.retry_until_written("a job's records", || turn.server.jobs.store.record(id));
    // The records of stages that were done before the server ended are kept, too.
    let records = match before {
        Ok(before) => before.as_deref().map(split_stages).unwrap_or_default().into_iter().map(str::to_owned).collect(),
        Err(error) => return Some(JobEnded::failed(one_line(&error))),
    };
    Prompted { turn, history, stored, records }.carry_out(assignment).unwrap_or_else(|early| early)
}

/// A job from a prompt at work, and the records of the stages that are done.
struct Prompted<'a> {
    turn: Turn<'a>,
    history: &'a mut Trials,
    stored: &'a mut StoredJob,
    records: Vec<String>,
}

/// The end of a job in a stage that is not its last; none if it begins again after the next start.
type Early = Option<JobEnded>;

impl Prompted<'_> {
    fn carry_out(mut self, sampled: &Assignment) -> Result<Option<JobEnded>, Early> {
        let (files, id) = (&self.turn.server.jobs.files, self.stored.job.id.clone());
        let is_there = |input: Input| files.input(&id, input).is_file();
        if !is_there(Input::Latent) {
            if !is_there(Input::Conditioning) {
                self.records.clear();
                let assignment = self.begin(Stage::Text)?;
                go_on(self.encode_prompts(&assignment))?;
            }
            if is_there(Input::Image) && !files.start(&id).is_file() {
                self.keep_records(&[Stage::Text]);
                let assignment = self.begin(Stage::Encode)?;
                go_on(self.work::<ImageEncode>(&assignment))?;
            }
            self.keep_records(&[Stage::Text, Stage::Encode]);
            self.show(Stage::Denoise);
            go_on(self.work::<Denoise>(sampled))?;
        }
        let assignment = self.begin(Stage::Decode)?;
        let decoded = self.work::<Vae>(&assignment);
        self.stored.job.at = None;
        Ok(decoded)
    }

    /// Keeps the records of these stages alone.
    fn keep_records(&mut self, stages: &[Stage]) {
        self.records.retain(|record| {
            let record = AnyRecord::from_json(record);
            record.is_some_and(|record| of_any!(record, record => stages.contains(&record.stage())))
        });
    }

    /// Begins a stage, on which the revision decides that is given.
    fn begin(&mut self, stage: Stage) -> Result<Assignment, Early> {
        self.show(stage);
        let assignment = self.turn.server.rollout.revive_assignment(self.stored.pinned_of(stage));
        assignment.map_err(|error| Some(JobEnded::failed(error.for_callers())))
    }

    /// Shows followers the stage that begins, and keeps the records of those before.
    fn show(&mut self, stage: Stage) {
        let Turn { server, handle, .. } = self.turn;
        self.stored.job.at = Some(stage);
        let record = (!self.records.is_empty()).then(|| join_stages(&self.records));
        let update = || server.jobs.store.update(self.stored, record.as_deref(), None);
        if let Err(error) = server.retry_until_written("a job's stage", update) {
            tracing::error!(error = one_line(&error), "the stage of a job can't be written");
        }
        handle.send(JobUpdate::Job(Box::new(self.stored.job.clone())));
    }

    fn work<W: Executed>(&mut self, assignment: &Assignment) -> Option<JobEnded> {
        let ended = super::carry_out::<W>(self.turn, self.history, self.stored, assignment)?;
        Some(self.end(ended))
    }

    /// The end of a job whose last stage this was; its record comes after those before.
    fn end(&mut self, ended: JobEnded) -> JobEnded {
        self.records.extend(ended.record);
        JobEnded { record: Some(join_stages(&self.records)), ..ended }
    }
}

/// Goes on with the next stage if one is done.
fn go_on(ended: Option<JobEnded>) -> Result<(), Early> {
    match ended {
        Some(JobEnded { state: JobState::Done, .. }) => Ok(()),
        early => Err(early),
    }
}
