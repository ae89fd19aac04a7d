//! The picture that a sample begins with: a latent for a picture, the first frame of a clip.

use std::path::{Path, PathBuf};

use tch::Tensor;
use tempfile::TempDir;
use tilewright_engine::{Finished, Machine};
use tilewright_models::Start;
use tilewright_outputs::temporary_folder;
use tilewright_pipeline::{
    Conditioning, ConditioningOutput, Encode, EncodeInput, EncodeSource, LatentOutput, MASK, Model, Parts, SampleModel,
    SampleRequest, StartImage, TextPlanning, Trials, VisionEncoder,
};
use tilewright_plan::{Loss, Record, Recorder, Stage, Text};

use super::{
    conditioning::{self, Conditionings},
    folder_beside,
    pictures::limit,
    tokens, told,
};
use crate::{
    args::Generate,
    failure::{Failure, Outcome},
    progress::Progress,
    report::{Shown, fail, keep},
    table,
    tell::note,
    text_stage,
};

/// A picture that is encoded, with its files in a folder that is removed at the end.
pub struct Image {
    /// The latent to begin from, unless the conditioning has it.
    pub latent: Option<PathBuf>,
    /// The part of the latent that is made again, if it is not the user's.
    pub mask: Option<PathBuf>,
    /// The record of the encode.
    pub record: Record,
    _folder: TempDir,
}

/// The stage's surroundings.
pub struct Wish<'a> {
    pub arguments: &'a Generate,
    pub parts: &'a Parts,
    pub machine: &'a Machine,
    pub vae: &'a Model,
    pub model: &'a SampleModel,
    pub memory_limit: u64,
    /// The wish of the text stage, to which a picture's encoder belongs.
    pub text: &'a conditioning::Wish<'a>,
    /// Width, height and frames of what is made.
    pub size: [u32; 3],
}

/// The place of a picture in what a model makes.
///
/// # Errors
/// It makes clips of text alone, or an option of the user's has no meaning for it.
pub fn start_of(model: &SampleModel, arguments: &Generate) -> Outcome<Start> {
    let start = match model.denoiser.config().facts().start {
        Some(Start::Latent) => return Ok(Start::Latent),
        Some(start) => start,
        None => {
            return Err(Failure::input(
                "--image: this transformer makes clips of text alone: give one for image to video, or WAN 2.2 5B",
            ));
        }
    };
    for (option, is_given) in [("--mask", arguments.mask.is_some()), ("--denoise", arguments.denoise.is_some())] {
        if is_given {
            return Err(Failure::input(format!("{option}: a clip begins with the whole picture: leave it out")));
        }
    }
    Ok(start)
}

/// The encoder of pictures for a transformer that takes their states; none for others.
pub fn vision_encoder(model: &SampleModel, parts: &Parts) -> Outcome<Option<VisionEncoder>> {
    let Some(width) = model.image_width() else { return Ok(None) };
    let Some(path) = &parts.vision_encoder else {
        return Err(Failure::input(format!(
            "no vision encoder: the transformer takes a picture's states {width} wide: give --vision-encoder (clip_vision_h.safetensors)"
        )));
    };
    let encoder = VisionEncoder::open(path)?;
    encoder.check(model)?;
    Ok(Some(encoder))
}

/// Reads a picture to begin with and keeps none of it.
///
/// # Errors
/// It is cut or damaged.
pub fn check(path: &Path) -> Outcome {
    Ok(EncodeSource::open(path, Some(1))?.check()?)
}

/// Width and height of what is encoded of a picture, by its header.
pub fn size(path: &Path, vae: &Model) -> Outcome<[u32; 2]> {
    let mut source = EncodeSource::open(path, Some(1))?;
    source.crop(vae.encoded_scale()?, &mut |_| {})?;
    let (height, width) = source.size();
    Ok([width, height])
}

impl Image {
    /// Names its files in a request, and the user's mask of a picture.
    pub fn put_into(&self, request: &mut SampleRequest, mask: Option<&Path>) {
        if let Some(latent) = &self.latent {
            request.latent = Some(latent.clone());
            request.size = None;
            request.mask = self.mask.clone().or(mask.map(Path::to_owned));
        }
    }
}

impl Wish<'_> {
    /// Encodes the picture, and adds it to the conditionings of a model that takes it there.
    pub fn encode(
        &self,
        start: Start,
        path: &Path,
        conditionings: &mut Conditionings,
        trials: &mut Trials,
        (planner, reading): (&mut Recorder, &mut Recorder<Text>),
    ) -> Outcome<Image> {
        let folder = temporary_folder(&folder_beside(self.arguments))?;
        let [width, height, frames] = self.size;
        if start == Start::Latent {
            let (latents, record) = self.run(path, EncodeSource::open(path, Some(1))?, trials, planner)?;
            let latent = write(&folder, &latents, &[], &record)?;
            return Ok(Image { latent: Some(latent), mask: None, record, _folder: folder });
        }
        let image = StartImage::open(path, self.arguments.way.convention.unwrap_or_default())?;
        let seen = if start == Start::Condition { self.look(&image, conditionings, trials, reading)? } else { None };
        let first = image.first_frame([width, height])?;
        let count = if start == Start::Condition { frames } else { 1 };
        let (latents, record) = self.run(path, EncodeSource::still(path, first, count), trials, planner)?;
        if start == Start::FirstFrame {
            let [latents, mask] = self.model.held_first(&latents, frames)?;
            let latent = write(&folder, &latents, &[(MASK, mask)], &record)?;
            return Ok(Image { mask: Some(latent.clone()), latent: Some(latent), record, _folder: folder });
        }
        let text = Conditioning::text_of(&conditionings.positive)?;
        let condition = Some(self.model.condition_of(&latents)?);
        let whole = Conditioning { image: seen, condition, ..text };
        let place = ConditioningOutput::new(&folder.path().join("conditioning.safetensors"), false)?;
        conditionings.positive = place.write(&whole)?;
        Ok(Image { latent: None, mask: None, record, _folder: folder })
    }

    /// The states of the picture, if the transformer takes them.
    fn look(
        &self,
        image: &StartImage,
        conditionings: &mut Conditionings,
        trials: &mut Trials,
        planner: &mut Recorder<Text>,
    ) -> Outcome<Option<Tensor>> {
        let Some(encoder) = vision_encoder(self.model, self.parts)? else { return Ok(None) };
        let mut progress = Progress::new();
        let (machines, objective) = ((self.machine, self.text.host()), self.arguments.run.objective());
        let mut planning = TextPlanning { planner, trials };
        let encoded = encoder.encode(machines, (self.memory_limit, objective), image, &mut planning, &mut progress);
        progress.finish();
        let recording = &self.arguments.report.record;
        let (states, mut run) = encoded.map_err(|error| text_stage::fail(recording, trials, error))?;
        text_stage::keep_runs(recording, trials, std::slice::from_mut(&mut run))?;
        let time = run.outcome().map_or_else(String::new, |outcome| table::time(outcome.elapsed));
        told(Stage::Text, &format!("{} saw {} in {time}", run.model, tokens(run.tokens)));
        conditionings.runs.push(run);
        Ok(Some(states))
    }

    fn run(
        &self,
        path: &Path,
        mut source: EncodeSource,
        trials: &mut Trials,
        planner: &mut Recorder,
    ) -> Outcome<(Tensor, Record)> {
        let Self { arguments, machine, vae, .. } = self;
        let shown = path.display().to_string();
        let frames = EncodeInput::of(vae, &mut source, &shown, &mut note)?;
        let job = Encode::new(machine, vae, &frames, limit(self.memory_limit), arguments.run.objective())?;
        let job = job.allowing_blended(Loss::allows_blended(&arguments.allow, Stage::Encode));
        let before = trials.before(job.stage(), job.request());
        let job = job.with_history(&before);
        let mut progress = Progress::new();
        let encoded = job.run(planner, &mut progress, &mut source);
        progress.finish();
        let quiet = Shown { json: false, explain: false, several: false, aside: false };
        let Finished { output, record, .. } =
            encoded.map_err(|unfinished| fail(&arguments.report.record, quiet, trials, planner, unfinished))?;
        trials.keep(&record);
        keep(&arguments.report.record, &record, planner.take())?;
        Ok((output.latents, record))
    }
}

fn write(folder: &TempDir, latents: &Tensor, further: &[(&str, Tensor)], record: &Record) -> Outcome<PathBuf> {
    let place = LatentOutput::new(&folder.path().join("image.safetensors"), None, false, false)?;
    Ok(place.write_with(latents, further, &Vec::new(), record)?)
}
