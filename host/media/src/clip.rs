//! Clips into files, a frame at a time. All files of a clip get their final names together, at the
//! end. A writer that is dropped before removes its files and ends its ffmpeg.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use tempfile::{NamedTempFile, TempDir};
use tilewright_outputs::{destination, folder_of, temporary_folder};

use crate::{
    animation::Gif,
    error::{Cause, Error, Result},
    ffmpeg::{self, Encoder},
    format::Format,
    frame::{Frame, Pixels, Rate, Shape},
    output::{Output, frame_name},
    picture::Texts,
    raw,
    webp::Animation,
};

/// Writes clips [N, C, T, H, W] as their frames arrive.
pub struct ClipWriter {
    output: Output,
    shape: Shape,
    rate: Rate,
    texts: Texts,
    names: Vec<PathBuf>,
    notes: Vec<String>,
    /// The frames of each sample so far.
    done: Vec<usize>,
    form: Form,
}

enum Form {
    /// All samples in one file.
    Raw(raw::Writer),
    /// A file or folder for each sample, from its first frame on.
    Tracks(Vec<Option<Track>>),
}

/// One clip that is being written.
enum Track {
    Picture(NamedTempFile),
    Folder { frames: TempDir, fresh: bool },
    Gif { gif: Option<Gif>, file: NamedTempFile },
    WebP { animation: Option<Animation>, file: NamedTempFile },
    Video { encoder: Encoder, even: bool },
}

impl ClipWriter {
    /// Begins clips of this shape. Texts go into the tags of a video, the EXIF of a WebP, the
    /// metadata of a safetensors file and the first PNG of a folder; a note names those that have
    /// no place.
    ///
    /// # Errors
    /// As [`Output::check`]; [`Error::Write`] if the disk is already too full.
    pub fn begin(output: &Output, shape: Shape, rate: Rate, texts: &Texts) -> Result<Self> {
        output.check(&shape)?;
        let names = output.names(shape.samples);
        let mut notes = output.notes(texts);
        let form = if output.format == Format::Safetensors {
            let failed = |error| Error::write(output.path(), error);
            let file = output.temporary(&names[0], ".tmp").map_err(failed)?;
            Form::Raw(raw::Writer::begin(file, shape, texts).map_err(failed)?)
        } else {
            Form::Tracks((0..shape.samples).map(|_| None).collect())
        };
        let Shape { width, height, .. } = shape;
        if ffmpeg::recipe(output.format).is_some_and(|recipe| recipe.even) && (width % 2, height % 2) != (0, 0) {
            let (even_width, even_height) = (width.next_multiple_of(2), height.next_multiple_of(2));
            notes.push(format!(
                "{}: H.264 holds even sizes only: {width}×{height} becomes {even_width}×{even_height}, with the edge doubled",
                output.path().display()
            ));
        }
        if output.format == Format::Gif && shape.frames > 1 {
            notes.extend(Gif::note(rate).map(|note| format!("{}: {note}", output.path().display())));
        }
        let done = vec![0; shape.samples];
        Ok(Self { output: output.clone(), shape, rate, texts: texts.clone(), names, notes, done, form })
    }

    /// The changes that the format made to the clip, for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Adds a frame. The frames of one sample come in order; samples may come one after the other
    /// or interleaved. May wait for ffmpeg.
    ///
    /// # Errors
    /// [`Error::Frame`] for a frame of another shape or out of order, [`Error::Write`] or
    /// [`Error::Ffmpeg`] if writing fails. The writer is of no further use after an error.
    pub fn frame(&mut self, sample: usize, index: usize, frame: &Frame) -> Result<()> {
        self.shape.check(self.output.path(), &self.done, sample, index, frame)?;
        match &mut self.form {
            Form::Raw(writer) => {
                writer.frame(sample, index, frame).map_err(|error| Error::write(self.output.path(), error))?;
            }
            Form::Tracks(tracks) => {
                let name = &self.names[sample];
                let track = match &mut tracks[sample] {
                    Some(track) => track,
                    vacant => vacant.insert(Track::begin(name, &self.output, &self.shape, self.rate, &self.texts)?),
                };
                let texts = if index == 0 { &self.texts } else { &Texts::new() };
                track.frame(name, &self.output, index, frame, texts)?;
                if index + 1 == self.shape.frames {
                    track.end(name)?;
                }
            }
        }
        self.done[sample] += 1;
        Ok(())
    }

    /// Returns all files and folders their final names, and returns those.
    ///
    /// # Errors
    /// [`Error::Frame`] if frames are missing, else [`Error::Write`]; files without a final name
    /// are removed.
    pub fn finish(self) -> Result<Vec<PathBuf>> {
        if let Some(sample) = self.done.iter().position(|&done| done < self.shape.frames) {
            let reason = "it never came".to_owned();
            return Err(Error::Frame { path: self.names[0].clone(), sample, index: self.done[sample], reason });
        }
        match self.form {
            Form::Raw(writer) => Ok(vec![self.output.place(writer.into_file(), &self.names[0])?]),
            Form::Tracks(tracks) => {
                let whole = tracks.into_iter().flatten().zip(&self.names);
                whole.map(|(track, name)| track.place(name, &self.output)).collect()
            }
        }
    }
}

impl Track {
    fn begin(name: &Path, output: &Output, shape: &Shape, rate: Rate, texts: &Texts) -> Result<Self> {
        let format = output.format;
        if let Some(recipe) = ffmpeg::recipe(format) {
            let (width, height) = (shape.width, shape.height);
            let size =
                if recipe.even { (width.next_multiple_of(2), height.next_multiple_of(2)) } else { (width, height) };
            return Ok(Track::Video {
                encoder: Encoder::begin(recipe, name, output, size, rate, texts)?,
                even: recipe.even,
            });
        }
        if format == Format::Folder {
            // An existing folder may be on another disk than its parent.
            let fresh = !name.is_dir();
            let frames = temporary_folder(if fresh { folder_of(name) } else { name });
            let frames = frames.map_err(|error| Error::write(name, error))?;
            return Ok(Track::Folder { frames, fresh });
        }
        let file = output.temporary(name, ".tmp").map_err(|error| Error::write(name, error))?;
        let twin = || file.as_file().try_clone().map_err(|error| Error::write(name, error));
        match format {
            Format::Gif => {
                let gif = Gif::begin(twin()?, shape, rate).map_err(|cause| Error::write(name, cause))?;
                Ok(Track::Gif { gif: Some(gif), file })
            }
            Format::WebP if shape.frames > 1 => {
                let animation = Animation::begin(twin()?, shape, rate, texts);
                let animation = animation.map_err(|error| Error::write(name, error))?;
                Ok(Track::WebP { animation: Some(animation), file })
            }
            _ => Ok(Track::Picture(file)),
        }
    }

    fn frame(&mut self, name: &Path, output: &Output, index: usize, frame: &Frame, texts: &Texts) -> Result<()> {
        let pixels = || Pixels::from(frame);
        let written = match self {
            Track::Picture(file) => output.still().write(frame, file.as_file(), texts),
            Track::Folder { frames, .. } => {
                File::create(frames.path().join(frame_name(index))).map_err(Cause::from).and_then(|file| {
                    output.still().write(frame, &file, texts)?;
                    Ok(file.sync_data()?)
                })
            }
            Track::Gif { gif: Some(gif), .. } => gif.frame(index, pixels()),
            Track::WebP { animation: Some(animation), .. } => animation.frame(index, &pixels()),
            Track::Gif { gif: None, .. } | Track::WebP { animation: None, .. } => Err("the clip has ended".into()),
            Track::Video { encoder, even } => {
                let pixels = pixels().rgb();
                return encoder.frame(&if *even { pixels.even() } else { pixels });
            }
        };
        written.map_err(|cause| Error::write(name, cause))
    }

    /// Ends the file after its last frame.
    fn end(&mut self, name: &Path) -> Result<()> {
        let ended = match self {
            Track::Picture(_) | Track::Folder { .. } => Ok(()),
            Track::Gif { gif, .. } => gif.take().map_or(Ok(()), Gif::end),
            Track::WebP { animation, .. } => animation.take().map_or(Ok(()), |animation| Ok(animation.end()?)),
            Track::Video { encoder, .. } => return encoder.end(),
        };
        ended.map_err(|cause| Error::write(name, cause))
    }

    fn place(self, name: &Path, output: &Output) -> Result<PathBuf> {
        let failed = |error| Error::write(name, error);
        match self {
            Track::Picture(file) | Track::Gif { file, .. } | Track::WebP { file, .. } => output.place(file, name),
            Track::Video { encoder, .. } => output.place(encoder.into_file(), name),
            Track::Folder { frames, fresh: true } => output.place_folder(frames, name),
            Track::Folder { frames, fresh: false } => {
                for entry in fs::read_dir(frames.path()).map_err(failed)? {
                    let entry = entry.map_err(failed)?;
                    let place = destination(&name.join(entry.file_name()))?;
                    fs::rename(entry.path(), place).map_err(failed)?;
                }
                Ok(name.to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests;
