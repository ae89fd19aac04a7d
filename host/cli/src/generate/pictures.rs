//! The decode stage: latents become pictures or clips.

use std::path::PathBuf;

use tch::Tensor;
use tilewright_engine::{Finished, Machine, MemoryLimit};
use tilewright_media::{Output, Rate, Texts};
use tilewright_pipeline::{Decode, Delivery, Model, Trials, Writing, published_rate};
use tilewright_plan::{Candidate, Loss, Plan, Record, Recorder, Stage};

use super::extents;
use crate::{
    args::Generate,
    failure::{Failure, Outcome},
    progress::Progress,
    report::{Shown, fail, keep},
    tell::note,
};

/// A wish of the decode.
pub struct Wish<'a> {
    pub arguments: &'a Generate,
    pub machine: &'a Machine,
    pub vae: &'a Model,
    /// In the VAE's own space.
    pub latents: &'a Tensor,
    pub memory_limit: u64,
    pub output: &'a Output,
    pub rate: Option<Rate>,
    pub texts: Texts,
}

/// Pictures or clips that are written.
pub struct Decoded {
    pub record: Record,
    pub candidates: Vec<Candidate>,
    pub files: Vec<PathBuf>,
}

/// The frame rate of a clip; none for pictures.
pub fn rate(arguments: &Generate, vae: &Model) -> Outcome<Option<Rate>> {
    if !vae.is_video() {
        return match arguments.fps {
            Some(_) => Err(Failure::input("--fps is for clips, and this model makes pictures: leave it out")),
            None => Ok(None),
        };
    }
    let rate = arguments.fps.or_else(|| Rate::new(published_rate(&vae.facts().family), 1));
    rate.ok_or_else(|| Failure::work("no frame rate")).map(Some)
}

/// A decode's plan in words.
pub fn in_words(plan: &Plan) -> String {
    format!("{}, {}", plan.space, plan.precision)
}

/// The limit of a decode, which counts the weights as every stage's does.
pub fn limit(bytes: u64) -> MemoryLimit {
    MemoryLimit { bytes, counts_weights: true }
}

/// Decodes and writes.
pub fn decode(wish: Wish<'_>, trials: &mut Trials, planner: &mut Recorder) -> Outcome<Decoded> {
    let Wish { arguments, machine, vae, latents, memory_limit, output, rate, texts } = wish;
    let job = Decode::new(machine, vae, latents, limit(memory_limit), arguments.run.objective())?;
    let job = job.allowing_blended(Loss::allows_blended(&arguments.allow, Stage::Decode));
    let before = trials.before(job.stage(), job.request());
    let job = job.with_history(&before);
    let writing = Writing::default();
    let mut progress = Progress::abandoning({
        let writing = writing.clone();
        move || writing.abandon(&mut note)
    });
    let shape = vae.shape_of(extents(&latents.size()));
    let mut delivery = Delivery::new(output, shape, rate, texts).shared_with(&writing);
    let done = vec![0; shape.samples];
    let mut work = || -> Outcome<Decoded> {
        delivery.begin(&mut note)?;
        let finished = job.run(planner, &mut progress, &mut delivery, &done);
        progress.finish();
        let shown = Shown { json: false, explain: false, several: false, aside: false };
        let Finished { record, candidates, .. } =
            finished.map_err(|unfinished| fail(&arguments.report.record, shown, trials, planner, unfinished))?;
        let files = delivery.finish(&record, &mut note)?;
        Ok(Decoded { record, candidates, files })
    };
    let decoded = work();
    if decoded.is_err() {
        delivery.leave()?;
    }
    let decoded = decoded?;
    trials.keep(&decoded.record);
    keep(&arguments.report.record, &decoded.record, planner.take())?;
    Ok(decoded)
}
