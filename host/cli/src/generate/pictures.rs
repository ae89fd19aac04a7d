//! The decode stage: latents become pictures or clips.

use std::path::PathBuf;

use tch::Tensor;
use tilewright_engine::Finished;
use tilewright_media::{Output, Rate, Texts};
use tilewright_pipeline::{Delivery, Model, Trials, Writing};
use tilewright_plan::Recorder;

use super::studio::{Decided, Studio};
use crate::{
    args::Generate,
    failure::{Failure, Outcome},
    history, model,
    progress::Progress,
    report::{Shown, fail, keep},
    tell::note,
};

/// The frame rate of a clip; none for pictures.
pub fn rate(arguments: &Generate, vae: &Model) -> Outcome<Option<Rate>> {
    if !vae.is_video() && arguments.fps.is_some() {
        return Err(Failure::input("--fps is for clips, and this model makes pictures: leave it out"));
    }
    model::rate(arguments.fps, vae)
}

impl Studio<'_> {
    /// Decodes latents in the VAE's own space, and writes the pictures or clips.
    pub fn write_decoded(
        &self,
        latents: &Tensor,
        (output, rate, texts): (&Output, Option<Rate>, Texts),
        trials: &mut Trials,
        planner: &mut Recorder,
    ) -> Outcome<(Decided, Vec<PathBuf>)> {
        let job = self.decode(latents)?;
        let job = job.with_trials(trials);
        let writing = Writing::default();
        let mut progress = Progress::abandoning({
            let writing = writing.clone();
            move || writing.abandon(&mut note)
        });
        let shape = self.vae.shape_of_latents(&latents.size());
        let mut delivery = Delivery::new(output, shape, rate, texts).shared_with(&writing);
        let recording = &self.arguments.report.record;
        let mut work = || -> Outcome<(Decided, Vec<PathBuf>)> {
            delivery.begin(&mut note)?;
            let finished = job.run(planner, &mut progress, &mut delivery, &vec![0; shape.samples]);
            progress.finish();
            let Finished { record, candidates, .. } =
                finished.map_err(|unfinished| fail(recording, Shown::default(), trials, planner, unfinished))?;
            let files = delivery.finish(&record, &mut note)?;
            Ok(((record, candidates), files))
        };
        let decoded = work();
        if decoded.is_err() {
            delivery.leave()?;
        }
        let (decided, files) = decoded?;
        history::keep(trials, &decided.0);
        keep(recording, &decided.0, planner.take())?;
        Ok((decided, files))
    }
}
