//! The picture that a job from a prompt begins with: the vae encodes it, as the policy of its route
//! decides, and the latent is kept for the sample.

use std::sync::Arc;

use tilewright_engine::Finished;
use tilewright_pipeline::{Encode, EncodeInput, EncodeSource, LatentKind, LatentOutput, Trials};
use tilewright_plan::{Record, Stage, Vae};
use tilewright_rollout::{Assignment, Decider, EndedJob};
use tilewright_service_api::{JobState, StageAtWork};

use super::{JobEnd, JobEnded, begin, failed};
use crate::{
    accept::IMAGE,
    device::Worker,
    error::{decode_line, one_line},
    job_traces::{AnyJobTrace, JobTrace},
    jobs::{StoredJob, inputs::Input, live::JobHandle},
    state::ServerState,
    work::{
        executed::Execution,
        give_back, memory_limit,
        observer::{JobObserver, StopSignal},
        wait_for_room,
    },
};

/// Encodes the picture of a job; adds the record of it. None if the job begins anew after the next
/// start.
pub fn carry_out(
    server: &ServerState,
    worker: &Worker,
    history: &mut Trials,
    stored: &mut StoredJob,
    handle: &Arc<JobHandle>,
    records: &mut Vec<String>,
) -> Option<JobEnded> {
    begin(server, stored, handle, StageAtWork::Encode, records);
    let assignment = match server.rollout.revive_assignment(stored.pinned_of(Stage::Encode)) {
        Ok(assignment) => assignment,
        Err(error) => return Some(failed(error.for_callers())),
    };
    let stop = StopSignal::new(handle.clone(), stored.deadline_ms);
    let made = loop {
        let stage = ImageStage { execution: Execution { server, worker, stored }, assignment: &assignment };
        let made = tracing::info_span!("encode").in_scope(|| stage.encode(history, handle, &stop, records));
        let Err(JobEnd::Unwritten(line)) = made else { break made };
        tracing::error!(error = line, "there is no room for a picture's latent: it is encoded again once there is");
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
        Err(end) => end.state("encode"),
    };
    Some(JobEnded { state, error, record: None }.after(records))
}

/// The encode of a job's picture, and the revision that decides on it.
struct ImageStage<'a> {
    execution: Execution<'a>,
    assignment: &'a Assignment,
}

impl ImageStage<'_> {
    fn encode(
        &self,
        history: &mut Trials,
        handle: &Arc<JobHandle>,
        stop: &StopSignal,
        records: &mut Vec<String>,
    ) -> Result<(), JobEnd> {
        let Execution { server, worker, stored } = self.execution;
        let id = &stored.job.id;
        let model = server.models.of_job(&stored.job).map_err(JobEnd::Failed)?;
        let (_, _, vae) = model.for_prompts().map_err(JobEnd::Failed)?;
        let refused = |error: tilewright_pipeline::Error| {
            let path = server.jobs.files.input(id, Input::Image).display().to_string();
            JobEnd::Failed(one_line(&error).replace(&path, IMAGE))
        };
        let mut source = EncodeSource::open(&server.jobs.files.input(id, Input::Image), Some(1)).map_err(refused)?;
        let input = EncodeInput::of(&vae.model, &mut source, IMAGE, &mut |_| {}).map_err(refused)?;
        let (limit, objective) =
            (memory_limit(worker, stored, self.assignment), self.execution.objective(self.assignment));
        let machine = &worker.device.machine;
        let job = Encode::new(machine, &vae.model, &input, limit, objective).map_err(refused)?;
        let before = history.before(job.stage(), job.request());
        let job = job.with_history(&before);
        let mut decider = Decider::<Vae>::new(server.rollout.clone(), self.assignment.clone());
        let mut observer = JobObserver::<Vae>::new(
            server,
            &worker.device,
            self.assignment,
            handle.clone(),
            stop.clone(),
            decider.successor(),
            decider.current(),
        );
        observer.request = Some(job.request().clone());
        let encoded = job.run(&mut decider, &mut observer, &mut source);
        let trace = JobTrace { candidates: observer.candidates, log: observer.log, incumbent: None };
        let exchange = decider.exchange();
        let learn = |record: &Record, is_lost: bool| {
            let record = Record { exchange: exchange.clone(), ..record.clone() };
            let ended = EndedJob { record, is_mixed: decider.is_mixed(), is_lost, psnr: None };
            server.rollout.record_result(self.assignment, ended);
        };
        let Finished { output, record, .. } = match encoded {
            Ok(finished) => finished,
            Err(unfinished) => {
                let end = match unfinished.error {
                    tilewright_engine::Error::Interrupted => stop.end(),
                    error if error.is_lost_device() => JobEnd::LostDevice(one_line(&error)),
                    error => JobEnd::Failed(decode_line(&error)),
                };
                if let Some(record) = unfinished.record.filter(|_| !matches!(end, JobEnd::Cancelled)) {
                    records.extend(serde_json::to_string(&record).ok());
                    learn(&record, true);
                }
                return Err(end);
            }
        };
        let unwritten = |error: tilewright_pipeline::Error| self.execution.classify_write_error(&error);
        let place = LatentOutput::new(&server.jobs.files.start(id), Some(LatentKind::Safetensors), false, false);
        let written = place.and_then(|place| place.write_with(&output.latents, &[], &Vec::new(), &record));
        let path = written.map_err(unwritten)?;
        server.jobs.files.sync_results(id, &[path]).map_err(|error| self.execution.classify_write_error(&error))?;
        if let Some(outcome) = &record.outcome {
            let seconds = outcome.elapsed.as_secs_f64();
            server.traces.record_work_time(Stage::Encode, &self.assignment.route, seconds);
        }
        history.keep(&record);
        learn(&record, false);
        server.traces.insert(id, AnyJobTrace::Vae(Box::new(trace)));
        records.extend(serde_json::to_string(&record).ok());
        Ok(())
    }
}
