//! The picture that a job from a prompt begins with: the vae encodes it, as the policy of its route
//! decides, and the latent is kept for the sample.

use std::{convert::Infallible, sync::Arc};

use tilewright_engine::Finished;
use tilewright_pipeline::{EncodeInput, StartStage, Trials};
use tilewright_plan::{Record, Vae};
use tilewright_rollout::{Decider, Revision};

use crate::{
    accept::{IMAGE, of_image},
    jobs::{StoredJob, inputs::Input},
    work::{
        JobEnd,
        executed::{Executed, Execution, JobOutcome, Turn},
        observer::JobObserver,
    },
};

/// The encode of a job's picture.
pub struct ImageEncode;

impl Executed for ImageEncode {
    type Work = Vae;
    type Input = ();
    /// No latents are compared.
    type Output = Infallible;

    const NAME: &'static str = "encode";
    const NO_ROOM: &'static str = "there is no room for a picture's latent: it is encoded again once there is";

    fn read(_: Turn<'_>, _: &StoredJob) -> Result<(), String> {
        Ok(())
    }

    fn execute<'a>(
        execution: Execution<'a>,
        history: &mut Trials,
        (): &'a (),
        decider: &mut Decider,
        observer: &mut JobObserver<'a, Vae>,
    ) -> Result<JobOutcome<Self>, JobOutcome<Self>> {
        let Execution { turn: Turn { server, model, .. }, stored, .. } = execution;
        let id = &stored.job.id;
        let (_, _, vae) = model.for_prompts().map_err(JobEnd::Failed)?;
        let image = server.jobs.files.input(id, Input::Image);
        let refused = |error: tilewright_pipeline::Error| JobEnd::Failed(of_image(&error, &image));
        let picture = StartStage::of_picture(&image);
        let mut source = picture.source().map_err(refused)?;
        let input = EncodeInput::of(&vae.model, &mut source, IMAGE, &mut |_| {}).map_err(refused)?;
        let job = execution.encode_job(vae, &input).map_err(JobEnd::Failed)?.with_trials(history);
        observer.request = Some(job.request().clone());
        let encoded = tracing::info_span!("encode").in_scope(|| job.run(decider, observer, &mut source));
        let encoded = encoded.map_err(|unfinished| execution.describe_unfinished::<Self>(unfinished));
        let Finished { output, record, .. } = encoded?;
        let written = picture.write(&output.latents, &record, &server.jobs.files.start(id));
        let end = written.map_err(|error| execution.classify_write_error(&error)).and_then(|file| {
            let synced = server.jobs.files.sync_results(id, &[file.path]);
            synced.map(|()| Vec::new()).map_err(|error| execution.classify_write_error(&error))
        });
        Ok(JobOutcome { record: Some(Box::new(record)), output: None, end })
    }

    fn compare(_: Execution<'_>, (): &(), _: &Arc<Revision>, canarys: &Infallible) -> Result<(Record, f64), String> {
        match *canarys {}
    }
}
