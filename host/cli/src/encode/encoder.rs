//! The encode of one picture or clip.

use tilewright_media::read_texts;
use tilewright_models::Scaling;
use tilewright_pipeline::{
    self as pipeline, Encode, EncodeInput, EncodeSource, LatentKind, LatentOutput, Model, Session, check_scaling,
};
use tilewright_plan::{Recorder, Stage};

use super::output;
use crate::{
    args,
    batch::{Batch, Work},
    failure::{Failure, Outcome},
    history,
    inputs::Input,
    model,
    progress::Progress,
    report::{fail, keep, report},
    tell::{note, tell},
};

/// Encodes pictures or clips with one VAE, whose weights stay loaded.
pub struct Encoder<'a> {
    arguments: &'a args::Encode,
    batch: &'a Batch,
    progress: Option<Progress>,
    planner: Recorder,
    model: Model,
    session: Session,
}

impl<'a> Encoder<'a> {
    /// Checks all arguments before any step that takes time.
    pub fn open(arguments: &'a args::Encode, batch: &'a Batch, inputs: &[Input]) -> Outcome<Self> {
        let planner = arguments.run.governed.configure(Stage::Encode, &arguments.report.record)?;
        inputs.iter().try_for_each(|input| output(arguments, batch, input).map(drop))?;
        let model = model::open(&arguments.vae, arguments.scaling.overrides())?;
        let session = arguments.run.on.session(arguments.report.dry_run)?;
        Ok(Self { arguments, batch, progress: None, planner, model, session })
    }

    /// The scaling to apply, if it is asked for.
    fn scaling(&self, output: &LatentOutput) -> Outcome<Option<Scaling>> {
        if !self.arguments.scaling.scaled {
            return Ok(None);
        }
        if output.kind == LatentKind::ComfyUi {
            return Err(Failure::input(format!(
                "{}: a ComfyUI latent carries no scaling: leave --scaled out, or write .safetensors",
                output.path().display()
            )));
        }
        Ok(Some(check_scaling(self.model.scaling(), self.model.is_video(), &self.arguments.vae)?))
    }
}

impl Work for Encoder<'_> {
    fn work(&mut self, input: &Input) -> Outcome {
        let output = output(self.arguments, self.batch, input)?;
        let scaling = self.scaling(&output)?;
        let Self { arguments, batch, progress, planner, model, session } = self;
        let mut source = EncodeSource::open(&input.path, arguments.frames)?;
        let frames = EncodeInput::outline(model, &mut source, &input.shown, &mut note)?;
        let (machine, trials) = session.ready()?;
        let limit = arguments.run.limit(machine);
        // Refused before its pixels are read.
        Encode::check(machine, model, &frames, limit)?;
        let frames = frames.read(&mut source)?;
        let job = Encode::new(machine, model, &frames, limit, arguments.run.on.objective())?;
        let job = job.allowing_blended(arguments.run.allow.blended());
        let job = job.with_trials(trials);
        if arguments.report.dry_run {
            let (record, candidates) = job.decide(planner);
            source.notes().iter().for_each(|line| note(line));
            keep(&arguments.report.record, &record, planner.take())?;
            return report(batch.shown, &record, &candidates, &[]);
        }
        let progress = progress.get_or_insert_with(Progress::new);
        progress.resume();
        let encoded = job.run(planner, progress, &mut source);
        progress.finish();
        source.notes().iter().for_each(|line| note(line));
        let encoded =
            encoded.map_err(|unfinished| fail(&arguments.report.record, batch.shown, trials, planner, unfinished))?;
        if encoded.output.frames < frames.frames() {
            tell!("note: the clip ended early: {} of {} frames were encoded", encoded.output.frames, frames.frames());
        } else {
            history::keep(trials, &encoded.record);
        }
        let latents = match scaling {
            Some(scaling) => scaling.apply(&encoded.output.latents)?,
            None => encoded.output.latents,
        };
        let texts = pipeline::without_file_texts(read_texts(&input.path));
        let path = output.write(&latents, &texts, &encoded.record)?;
        batch.keep(std::slice::from_ref(&path));
        keep(&arguments.report.record, &encoded.record, planner.take())?;
        report(batch.shown, &encoded.record, &encoded.candidates, &[path])
    }
}
