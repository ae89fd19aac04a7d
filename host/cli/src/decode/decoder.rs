//! The decode of one latent, of pictures or of a clip.

use tilewright_media::{Format, Kind, Options, Output, Pixels, Preview};
use tilewright_models::Latent;
use tilewright_pipeline::{self as pipeline, Decode, Delivery, Model, Session, Writing};
use tilewright_plan::{Planner, Recorder, Stage};

use super::{CLIP, PICTURE, output, writable};
use crate::{
    args,
    batch::{Batch, Work},
    failure::{Failure, Outcome},
    history,
    inputs::Input,
    model, overlay,
    progress::Progress,
    report::{fail, keep, report},
    tell::{note, tell},
};

/// Decodes latents with one VAE, whose weights stay loaded.
pub struct Decoder<'a> {
    arguments: &'a args::Decode,
    batch: &'a Batch,
    writing: Writing,
    progress: Progress,
    planner: Recorder,
    drawing: Option<Output>,
    model: Model,
    session: Session,
}

impl<'a> Decoder<'a> {
    /// Checks all arguments before any step that takes time.
    pub fn open(arguments: &'a args::Decode, batch: &'a Batch, inputs: &[Input], is_clip: bool) -> Outcome<Self> {
        let writing = Writing::default();
        let progress = Progress::abandoning({
            let writing = writing.clone();
            move || writing.abandon(&mut note)
        });
        let planner = arguments.run.governed.configure(Stage::Decode, &arguments.report.record)?;
        if !is_clip {
            arguments.clip.refuse_for_pictures()?;
            inputs.iter().try_for_each(|input| output(arguments, batch, input, Kind::Picture, PICTURE).map(drop))?;
        }
        let drawing = drawing(arguments, batch)?;
        let model = model::open(&arguments.vae, arguments.scaling.overrides())?;
        let session = arguments.run.on.session(arguments.report.dry_run)?;
        Ok(Self { arguments, batch, writing, progress, planner, drawing, model, session })
    }
}

impl Work for Decoder<'_> {
    fn work(&mut self, input: &Input) -> Outcome {
        let Self { arguments, batch, writing, progress, planner, drawing, model, session } = self;
        progress.resume();
        let file = model.open_latent(&input.path, arguments.tensor.as_deref())?;
        model.check_weights()?;
        let (machine, trials) = session.ready()?;
        let limit = arguments.run.limit(machine);
        // Refused before its values are read.
        Decode::check(machine, model, &model.latents_shape(&file), limit)?;
        let mut latent = file.read()?;
        warn_of_doubt(&input.shown, &latent, model, arguments.scaling.scaled)?;
        if arguments.scaling.scaled {
            model.unscale(&mut latent, &arguments.vae)?;
        }
        let shape = model.shape(&latent);
        let ending = if shape.frames == 1 { PICTURE } else { CLIP };
        let output = output(arguments, batch, input, model.kind(), ending)?;
        if arguments.clip.resume && (output.is_standard() || output.is_numbered()) {
            let path = output.path().display();
            return Err(Failure::input(format!(
                "{path}: --resume finds an earlier decode by its output's name: give one without {{n}}"
            )));
        }
        let preview = arguments.clip.preview.as_deref().map(Preview::new).transpose()?;
        output.check(&shape)?;
        let names = if output.is_standard() { Vec::new() } else { output.files(&shape) };
        batch.check(&names)?;
        let latents = model.tensor(&latent)?;
        let job = Decode::new(machine, model, &latents, limit, arguments.run.on.objective())?;
        let job = job.allowing_blended(arguments.run.allow.blended());
        let job = job.with_trials(trials);
        if arguments.report.dry_run {
            let (record, candidates) = job.decide(planner);
            batch.keep(&names);
            keep(&arguments.report.record, &record, planner.take())?;
            return report(batch.shown, &record, &candidates, &[]);
        }

        let rate = model::rate(arguments.clip.fps, model)?;
        let mut delivery = Delivery::new(&output, shape, rate, pipeline::texts(&latent))
            .shared_with(writing)
            .with_preview(preview)
            .with_first(drawing.is_some());
        if arguments.clip.resume {
            let fingerprint = pipeline::fingerprint(&latents, &arguments.vae, planner.identity(), job.request())?;
            delivery = delivery.with_journal(&fingerprint)?;
        }
        delivery.begin(&mut note).map_err(|error| describe_left_over(&mut delivery, error.into()))?;
        let done = delivery.done().to_vec();
        let finished = match delivery.keep_plan(planner)? {
            Some(mut kept) => job.run(&mut kept, progress, &mut delivery, &done),
            None => job.run(planner, progress, &mut delivery, &done),
        };
        progress.finish();
        let finished = finished.map_err(|unfinished| {
            let failure = fail(&arguments.report.record, batch.shown, trials, planner, unfinished);
            describe_left_over(&mut delivery, failure)
        })?;
        // A resumed decode takes less time than its whole clip, so the history leaves it out.
        if finished.record.resumed_frames == 0 {
            history::keep(trials, &finished.record);
        }
        let files = delivery.finish(&finished.record, &mut note);
        let mut files = files.map_err(|error| describe_left_over(&mut delivery, error.into()))?;
        batch.keep(&names);
        delivery.remove_journal()?;
        if let (Some(drawing), Some(first)) = (drawing, delivery.first()) {
            let mut pixels = Pixels::from(first);
            overlay::draw(&mut pixels, &finished.record.plan.space);
            drawing.write_pixels(&pixels)?;
            files.push(drawing.path().to_owned());
        }
        files.extend(arguments.clip.preview.clone());
        keep(&arguments.report.record, &finished.record, planner.take())?;
        report(batch.shown, &finished.record, &finished.candidates, &files)
    }
}

/// The failure of a decode, with what stays of its output.
fn describe_left_over(delivery: &mut Delivery, failure: Failure) -> Failure {
    match delivery.leave() {
        Ok(None) => failure,
        Ok(Some(kept)) => failure.and(kept),
        Err(error) => failure.and(Failure::from(error)),
    }
}

/// Warns of a latent, under the user's name for it, with values that are implausible for the model.
fn warn_of_doubt(shown: &str, latent: &Latent, model: &Model, scaled: bool) -> Outcome {
    if let Some(doubt) = latent.doubt(model.families(), model.scaling().as_ref(), scaled)? {
        tell!("warning: {shown}: {doubt}");
    }
    Ok(())
}

/// The picture that the tiles are drawn into, if the user asks for it.
fn drawing(arguments: &args::Decode, batch: &Batch) -> Outcome<Option<Output>> {
    let path = arguments.explain_image.as_deref();
    let drawing = path.map(|path| writable(batch, path, Kind::Picture, Options::default())).transpose()?;
    if drawing.as_ref().is_some_and(|drawing| drawing.format == Format::Safetensors) {
        return Err(Failure::input("--explain-image: a picture is drawn: expected .png, .jpg or .webp"));
    }
    Ok(drawing)
}
