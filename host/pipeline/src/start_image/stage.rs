//! The stage of the picture that a sample begins with: it is encoded, and then stands where the
//! model takes it.

use std::path::{Path, PathBuf};

use tch::Tensor;
use tilewright_engine::{Machine, Observer};
use tilewright_models::Start;
use tilewright_plan::{Objective, Record};
use tilewright_sampling::Convention;
use tilewright_wording::Setting;

use super::{StartImage, VisionEncoder};
use crate::{
    Conditioning, ConditioningOutput, EncodeInput, EncodeSource, EncoderRun, Error, LatentKind, LatentOutput, MASK,
    Model, PromptRequest, Result, SampleModel, SampleRequest, Size, TextPlanning,
};

/// Channels of a picture to begin with.
const CHANNELS: usize = 3;

/// The picture that a sample begins with.
#[derive(Debug)]
pub struct StartStage<'a> {
    path: &'a Path,
    /// The clip that it is the first frame of, if it is.
    clip: Option<Clip<'a>>,
}

/// A clip that begins with a picture.
#[derive(Debug)]
struct Clip<'a> {
    start: Start,
    model: &'a SampleModel,
    image: StartImage,
    size: Size,
    /// The file of its prompt's conditioning.
    conditioning: &'a Path,
    /// The states of the picture, for a model that takes them.
    seen: Option<Tensor>,
}

/// The file that a sample begins with.
#[derive(Clone, Debug)]
pub struct StartFile {
    /// The file: a latent, perhaps with a mask, or else the conditioning.
    pub path: PathBuf,
    start: Start,
}

impl<'a> StartStage<'a> {
    /// A picture whose latent is noised and sampled again.
    pub fn of_picture(path: &'a Path) -> Self {
        Self { path, clip: None }
    }

    /// The first frame of a clip whose prompt has this conditioning. Its pixels are read.
    ///
    /// # Errors
    /// It is no picture, or the model makes no such clips.
    pub fn of_clip(
        model: &'a SampleModel,
        (path, size): (&'a Path, Size),
        conditioning: &'a Path,
        convention: Convention,
    ) -> Result<Self> {
        let (start, image) = (model.start()?, StartImage::open(path, convention)?);
        Ok(Self { path, clip: Some(Clip { start, model, image, size, conditioning, seen: None }) })
    }

    /// Has a vision encoder look at the picture, for a model that takes its states.
    ///
    /// # Errors
    /// As [`VisionEncoder::encode`].
    pub fn look(
        &mut self,
        encoder: &VisionEncoder,
        machines: (&Machine, Option<&Machine>),
        aim: (u64, Objective),
        planning: &mut TextPlanning<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Option<EncoderRun>> {
        let Some(clip) = &mut self.clip else { return Ok(None) };
        let (states, run) = encoder.encode(machines, aim, &clip.image, planning, observer)?;
        clip.seen = Some(states);
        Ok(Some(run))
    }

    /// The frames to encode.
    ///
    /// # Errors
    /// The picture can't be read, or memory is out.
    pub fn source(&self) -> Result<EncodeSource> {
        let Some(Clip { start, image, size, .. }) = &self.clip else { return EncodeSource::open(self.path, Some(1)) };
        let first = image.first_frame([size.width, size.height])?;
        Ok(EncodeSource::still(self.path, first, frames(*start, *size)))
    }

    /// Writes what the sample begins with, by the latents of [`Self::source`] and the record of
    /// their encode.
    ///
    /// # Errors
    /// Memory is out, or the file can't be written.
    pub fn write(self, latents: &Tensor, record: &Record, place: &Path) -> Result<StartFile> {
        let write = |latents: &Tensor, further: &[(&str, Tensor)]| -> Result<PathBuf> {
            let place = LatentOutput::new(place, Some(LatentKind::Safetensors), false, false)?;
            place.write_with(latents, further, &Vec::new(), record)
        };
        let Some(Clip { start, model, size, conditioning, seen, .. }) = self.clip else {
            return Ok(StartFile { path: write(latents, &[])?, start: Start::Latent });
        };
        let path = match start {
            Start::Latent => write(latents, &[])?,
            Start::FirstFrame => {
                let [latents, mask] = model.held_first(latents, size.frames)?;
                write(&latents, &[(MASK, mask)])?
            }
            Start::Condition => {
                let condition = Some(model.condition_of(latents)?);
                let whole = Conditioning { image: seen, condition, ..Conditioning::text_of(conditioning)? };
                ConditioningOutput::new(place, false)?.write(&whole)?
            }
        };
        Ok(StartFile { path, start })
    }
}

impl StartFile {
    /// Names it in a request, with the user's mask of a picture.
    pub fn put_into(&self, request: &mut SampleRequest, mask: Option<&Path>) {
        let path = || self.path.clone();
        if self.start == Start::Condition {
            request.conditioning = vec![PromptRequest { path: path(), within: None }];
            return;
        }
        request.latent = Some(path());
        request.size = None;
        request.mask = if self.start == Start::FirstFrame { Some(path()) } else { mask.map(Path::to_owned) };
    }
}

impl SampleModel {
    /// The place of a picture to begin with.
    ///
    /// # Errors
    /// The model makes clips of text alone.
    pub fn start(&self) -> Result<Start> {
        let reason = "this transformer makes clips of text alone: give one for image to video, or WAN 2.2 5B";
        self.denoiser.config().facts().start.ok_or_else(|| Error::wrong(Setting::Image, reason))
    }

    /// The size of a sample that begins with the latent of a picture, by the picture's header;
    /// `scale` is pixels per latent pixel of what is encoded.
    ///
    /// # Errors
    /// The picture can't be read, or has a size that the model does not make.
    pub fn size_of_picture(&self, path: &Path, scale: u32, frames: u32) -> Result<Size> {
        let mut source = EncodeSource::open(path, Some(1))?;
        source.crop(scale, &mut |_| {})?;
        let (height, width) = source.size();
        let size = Size { width, height, frames };
        self.check_size(size).map_err(|error| match error {
            Error::Setting { reason, .. } => Error::input(path, reason),
            error => error,
        })?;
        Ok(size)
    }
}

impl EncodeInput {
    /// The input that stands for the picture to begin with until it is read.
    ///
    /// # Errors
    /// Memory is out.
    pub fn of_start(vae: &Model, start: Start, size: Size) -> Result<Self> {
        Self::foreseen(vae, [1, frames(start, size).into(), size.height.into(), size.width.into()], CHANNELS)
    }
}

/// The frames that are encoded for a picture to begin with.
fn frames(start: Start, size: Size) -> u32 {
    if start == Start::Condition { size.frames } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_the_file_where_the_model_takes_it() {
        let size = Size { width: 64, height: 64, frames: 5 };
        let own = PromptRequest { path: "text".into(), within: None };
        let begun = |start, mask| {
            let mut request = SampleRequest::plain(vec![own.clone()], size, 4);
            StartFile { path: "start".into(), start }.put_into(&mut request, mask);
            let SampleRequest { conditioning, latent, mask, size, .. } = request;
            (conditioning[0].path.clone(), latent, mask, size)
        };
        let [text, start, mask] = ["text", "start", "mask"].map(PathBuf::from);
        let from_latent = |mask| (text.clone(), Some(start.clone()), mask, None);
        assert_eq!(begun(Start::Latent, None), from_latent(None));
        assert_eq!(begun(Start::Latent, Some(&mask)), from_latent(Some(mask.clone())));
        assert_eq!(begun(Start::FirstFrame, None), from_latent(Some(start.clone())));
        assert_eq!(begun(Start::Condition, None), (start.clone(), None, None, Some(size)));
    }
}
