//! The picture that a sample begins with: a latent for a picture, the first frame of a clip.

use std::path::{Path, PathBuf};

use tch::Tensor;
use tempfile::TempDir;
use tilewright_engine::Finished;
use tilewright_models::Start;
use tilewright_outputs::temporary_folder;
use tilewright_pipeline::{
    Conditioning, ConditioningOutput, EncodeInput, EncodeSource, LatentOutput, MASK, Model, Parts, SampleModel,
    SampleRequest, Size, StartImage, TextPlanning, Trials, VisionEncoder,
};
use tilewright_plan::{Record, Recorder, Text};

use super::{
    conditioning::Conditionings,
    studio::{Decided, Studio, tell_run},
};
use crate::{
    args::Generate,
    failure::{Failure, Outcome},
    progress::Progress,
    report::{Shown, fail, keep},
    tell::note,
    text_stage,
};

/// A picture that is encoded, with its files in a folder that is removed at the end.
pub struct Image {
    /// The latent to begin from, unless the conditioning has it.
    pub latent: Option<PathBuf>,
    /// The part of the latent that is made again, if it is not the user's.
    pub mask: Option<PathBuf>,
    /// The decision on the encode.
    pub decided: Decided,
    _folder: TempDir,
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

impl Studio<'_> {
    /// Encodes the picture to begin with, and adds it to the conditionings of a model that takes it
    /// there.
    pub fn encode_start(
        &self,
        (start, path): (Start, &Path),
        (model, Size { width, height, frames }): (&SampleModel, Size),
        conditionings: &mut Conditionings,
        trials: &mut Trials,
        (planner, reading): (&mut Recorder, &mut Recorder<Text>),
    ) -> Outcome<Image> {
        let folder = temporary_folder(&self.folder())?;
        if start == Start::Latent {
            let (latents, decided) = self.run_encode(path, EncodeSource::open(path, Some(1))?, trials, planner)?;
            let latent = write(&folder, &latents, &[], &decided.0)?;
            return Ok(Image { latent: Some(latent), mask: None, decided, _folder: folder });
        }
        let image = StartImage::open(path, self.arguments.way.convention.unwrap_or_default())?;
        let seen =
            if start == Start::Condition { self.look(&image, model, conditionings, trials, reading)? } else { None };
        let first = image.first_frame([width, height])?;
        let count = if start == Start::Condition { frames } else { 1 };
        let (latents, decided) = self.run_encode(path, EncodeSource::still(path, first, count), trials, planner)?;
        if start == Start::FirstFrame {
            let [latents, mask] = model.held_first(&latents, frames)?;
            let latent = write(&folder, &latents, &[(MASK, mask)], &decided.0)?;
            return Ok(Image { mask: Some(latent.clone()), latent: Some(latent), decided, _folder: folder });
        }
        let text = Conditioning::text_of(&conditionings.positive)?;
        let condition = Some(model.condition_of(&latents)?);
        let whole = Conditioning { image: seen, condition, ..text };
        let place = ConditioningOutput::new(&folder.path().join("conditioning.safetensors"), false)?;
        conditionings.positive = place.write(&whole)?;
        Ok(Image { latent: None, mask: None, decided, _folder: folder })
    }

    /// The states of the picture, if the transformer takes them.
    fn look(
        &self,
        image: &StartImage,
        model: &SampleModel,
        conditionings: &mut Conditionings,
        trials: &mut Trials,
        planner: &mut Recorder<Text>,
    ) -> Outcome<Option<Tensor>> {
        let Some(encoder) = vision_encoder(model, self.parts)? else { return Ok(None) };
        let mut progress = Progress::new();
        let mut planning = TextPlanning { planner, trials };
        let aim = (self.limit, self.objective());
        let encoded = encoder.encode(self.machines(), aim, image, &mut planning, &mut progress);
        progress.finish();
        let recording = &self.arguments.report.record;
        let (states, mut run) = encoded.map_err(|error| text_stage::fail(recording, trials, error))?;
        text_stage::keep_runs(recording, trials, std::slice::from_mut(&mut run))?;
        tell_run(&run, "saw");
        conditionings.runs.push(run);
        Ok(Some(states))
    }

    fn run_encode(
        &self,
        path: &Path,
        mut source: EncodeSource,
        trials: &mut Trials,
        planner: &mut Recorder,
    ) -> Outcome<(Tensor, Decided)> {
        let frames = EncodeInput::of(self.vae, &mut source, &path.display().to_string(), &mut note)?;
        let job = self.encode(&frames)?;
        let job = job.with_trials(trials);
        let mut progress = Progress::new();
        let encoded = job.run(planner, &mut progress, &mut source);
        progress.finish();
        let recording = &self.arguments.report.record;
        let Finished { output, record, candidates, .. } =
            encoded.map_err(|unfinished| fail(recording, Shown::default(), trials, planner, unfinished))?;
        trials.keep(&record);
        keep(recording, &record, planner.take())?;
        Ok((output.latents, (record, candidates)))
    }
}

fn write(folder: &TempDir, latents: &Tensor, further: &[(&str, Tensor)], record: &Record) -> Outcome<PathBuf> {
    let place = LatentOutput::new(&folder.path().join("image.safetensors"), None, false, false)?;
    Ok(place.write_with(latents, further, &Vec::new(), record)?)
}
