//! The picture that a job from a prompt begins with: the vae encodes it, as the policy of its route
//! decides, and the latent is kept for the sample.

use std::sync::Arc;

use tilewright_engine::Finished;
use tilewright_pipeline::{Encode, EncodeInput, EncodeSource, LatentKind, LatentOutput, Trials};
use tilewright_plan::{Record, Stage, Vae};
use tilewright_rollout::{Assignment, Decider, EndedJob};
use tilewright_service_api::StageAtWork;

use super::{JobEnd, JobEnded, Preparation};
use crate::{
    accept::IMAGE,
    device::Worker,
    error::{decode_line, one_line},
    job_traces::{AnyJobTrace, JobTrace},
    jobs::{StoredJob, inputs::Input, live::JobHandle},
    models::OpenModel,
    state::ServerState,
    work::{
        executed::Execution,
        memory_limit,
        observer::{JobObserver, StopSignal},
    },
};

const PICTURE: Preparation = Preparation {
    stage: Stage::Encode,
    at_work: StageAtWork::Encode,
    name: "encode",
    no_room: "there is no room for a picture's latent: it is encoded again once there is",
};

/// Encodes the picture of a job; adds the record of it. None if the job begins again after the
/// next start.
pub fn carry_out(
    server: &ServerState,
    worker: &Worker,
    history: &mut Trials,
    stored: &mut StoredJob,
    model: &OpenModel,
    handle: &Arc<JobHandle>,
    records: &mut Vec<String>,
) -> Option<JobEnded> {
    PICTURE.carry_out(server, worker, stored, handle, records, |execution, assignment, stop, records| {
        let stage = ImageStage { execution, model, assignment };
        tracing::info_span!("encode").in_scope(|| stage.encode(history, handle, stop, records))
    })
}

/// The encode of a job's picture, its model, and the revision that decides on it.
struct ImageStage<'a> {
    execution: Execution<'a>,
    model: &'a OpenModel,
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
        let (_, _, vae) = self.model.for_prompts().map_err(JobEnd::Failed)?;
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
