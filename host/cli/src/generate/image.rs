//! The picture that a sample begins with: a latent for a picture, the first frame of a clip.

use std::path::Path;

use tch::Tensor;
use tempfile::TempDir;
use tilewright_engine::Finished;
use tilewright_models::Start;
use tilewright_outputs::temporary_folder;
use tilewright_pipeline::{
    EncodeInput, EncodeSource, EncoderRun, Model, SampleModel, Size, StartFile, StartStage, TextPlanning, Trials,
    VisionEncoder,
};
use tilewright_plan::{Recorder, Text};

use super::{
    conditioning::Conditionings,
    studio::{Decided, Studio, tell_run},
};
use crate::{
    args::Generate,
    failure::{Failure, Outcome},
    history,
    progress::Progress,
    report::{Shown, fail, keep},
    tell::note,
    text_stage,
};

/// A picture that is encoded, with its file in a folder that is removed at the end.
pub struct Image {
    pub file: StartFile,
    /// The decision on the encode.
    pub decided: Decided,
    _folder: TempDir,
}

/// The picture to begin with and its place, if there is one, and the size of what is made.
///
/// # Errors
/// The model takes no such picture or makes no such size, or an option has no meaning for it.
pub fn begin<'a>(
    arguments: &'a Generate,
    (model, vae): (&SampleModel, &Model),
    usual: Size,
) -> Outcome<(Option<(Start, &'a Path)>, Size)> {
    let begun = arguments.image.as_deref().map(|path| Ok::<_, Failure>((model.start()?, path))).transpose()?;
    if let Some((Start::Latent, path)) = begun {
        if arguments.size.is_some() {
            return Err(Failure::input("--size: a picture of --image has its size: leave one of them out"));
        }
        return Ok((begun, model.size_of_picture(path, vae.encoded_scale()?, usual.frames)?));
    }
    for (option, is_given) in [("--mask", arguments.mask.is_some()), ("--denoise", arguments.denoise.is_some())] {
        if is_given && begun.is_some() {
            return Err(Failure::input(format!("{option}: a clip begins with the whole picture: leave it out")));
        }
    }
    model.check_size(usual)?;
    Ok((begun, usual))
}

/// Reads a picture to begin with and keeps none of it.
///
/// # Errors
/// It is cut or damaged.
pub fn check(path: &Path) -> Outcome {
    Ok(EncodeSource::open(path, Some(1))?.check()?)
}

impl Studio<'_> {
    /// Encodes the picture to begin with, and adds the run of the encoder that looks at it.
    pub fn encode_start(
        &self,
        (start, path): (Start, &Path),
        (model, size): (&SampleModel, Size),
        Conditionings { positive, runs, .. }: &mut Conditionings,
        trials: &mut Trials,
        (planner, reading): (&mut Recorder, &mut Recorder<Text>),
    ) -> Outcome<Image> {
        let folder = temporary_folder(&self.folder())?;
        let mut picture = match start {
            Start::Latent => StartStage::of_picture(path),
            Start::Condition | Start::FirstFrame => {
                let convention = self.arguments.way.convention.unwrap_or_default();
                StartStage::of_clip(model, (path, size), positive, convention)?
            }
        };
        if start == Start::Condition
            && let Some(encoder) = VisionEncoder::of(model, self.parts)?
        {
            runs.extend(self.look(&encoder, &mut picture, trials, reading)?);
        }
        let (latents, decided) = self.run_encode(path, picture.source()?, trials, planner)?;
        let file = picture.write(&latents, &decided.0, &folder.path().join("image.safetensors"))?;
        Ok(Image { file, decided, _folder: folder })
    }

    fn look(
        &self,
        encoder: &VisionEncoder,
        picture: &mut StartStage<'_>,
        trials: &mut Trials,
        planner: &mut Recorder<Text>,
    ) -> Outcome<Option<EncoderRun>> {
        let mut progress = Progress::new();
        let mut planning = TextPlanning { planner, trials };
        let aim = (self.limit, self.objective());
        let looked = picture.look(encoder, self.machines(), aim, &mut planning, &mut progress);
        progress.finish();
        let recording = &self.arguments.report.record;
        let mut run = looked.map_err(|error| text_stage::fail(recording, trials, error))?;
        text_stage::keep_runs(recording, trials, run.as_mut_slice())?;
        run.iter().for_each(|run| tell_run(run, "saw"));
        Ok(run)
    }

    fn run_encode(
        &self,
        path: &Path,
        mut source: EncodeSource,
        trials: &mut Trials,
        planner: &mut Recorder,
    ) -> Outcome<(Tensor, Decided)> {
        let frames = EncodeInput::of(self.vae, &mut source, &path.display().to_string(), &mut note)?;
        let job = self.encode(&frames)?.with_trials(trials);
        let mut progress = Progress::new();
        let encoded = job.run(planner, &mut progress, &mut source);
        progress.finish();
        let recording = &self.arguments.report.record;
        let Finished { output, record, candidates, .. } =
            encoded.map_err(|unfinished| fail(recording, Shown::default(), trials, planner, unfinished))?;
        history::keep(trials, &record);
        keep(recording, &record, planner.take())?;
        Ok((output.latents, (record, candidates)))
    }
}
