//! What is encoded, as it is read: pictures and frames from files, cropped to what the VAE takes.

use std::path::{Path, PathBuf};

use tch::Tensor;
use thiserror::Error;
use tilewright_media::ClipReader;

use crate::failure::{Failure, Outcome};

use crate::tell::tell;

/// Frames that can't be had.
#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    Media(#[from] tilewright_media::Error),
    #[error(transparent)]
    Torch(#[from] tilewright_torch::Error),
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        Error::Torch(error.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Media(error) => error.into(),
            Error::Torch(error) => error.into(),
        }
    }
}

/// The frames of a file or folder.
pub struct Source {
    path: PathBuf,
    reader: ClipReader,
    frames: u32,
    /// Rows and columns that are taken, first and count.
    crop: [(u32, u32); 2],
}

impl Source {
    /// Looks into a file or folder of which at most so many frames are taken.
    pub fn open(path: &Path, most: Option<u32>) -> Outcome<Self> {
        let reader = ClipReader::open(path)?;
        let shape = reader.shape();
        let frames = u32::try_from(shape.frames).unwrap_or(u32::MAX).min(most.unwrap_or(u32::MAX));
        Ok(Self { path: path.to_owned(), reader, frames, crop: [(0, shape.height), (0, shape.width)] })
    }

    /// Pictures or clips.
    pub fn samples(&self) -> usize {
        self.reader.shape().samples
    }

    /// Frames of each that are taken.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    pub fn channels(&self) -> usize {
        self.reader.shape().channels
    }

    /// Height and width of what is taken.
    pub fn size(&self) -> (u32, u32) {
        (self.crop[0].1, self.crop[1].1)
    }

    /// Takes the middle whose sides are multiples of `scale`, with a note where that is not all. The same pixels as ComfyUI takes
    /// (comfyanonymous/ComfyUI, comfy/sd.py, `vae_encode_crop_pixels`).
    pub fn crop(&mut self, scale: u32) -> Outcome {
        let shape = self.reader.shape();
        let (height, width) = (shape.height, shape.width);
        let (tall, wide) = (height - height % scale, width - width % scale);
        if tall == 0 || wide == 0 {
            return Err(Failure::input(format!(
                "{}: {width}×{height} pixels are less than the {scale}×{scale} that one latent pixel stands for",
                self.path.display()
            )));
        }
        if (tall, wide) != (height, width) {
            tell!(
                "note: {width}×{height} is cropped to {wide}×{tall}: the sides of what is encoded are multiples of {scale}"
            );
        }
        self.crop = [((height % scale) / 2, tall), ((width % scale) / 2, wide)];
        Ok(())
    }

    /// The next frames, or as many as there are: [T, C, H, W] in −1…1.
    pub fn next(&mut self, count: u32) -> Result<Tensor, Error> {
        let [(top, tall), (left, wide)] = self.crop.map(|(first, count)| (i64::from(first), i64::from(count)));
        let channels = self.channels() as i64;
        let mut frames = Vec::new();
        while frames.len() < count as usize {
            let Some(frame) = self.reader.next_frame()? else { break };
            let (height, width) = (i64::from(frame.height), i64::from(frame.width));
            let whole = Tensor::f_from_slice(&frame.values)?.f_reshape([channels, height, width])?;
            // Frees the reader's copy at once: a picture may be large.
            drop(frame);
            if count == 1 && (height, width) == (tall, wide) {
                return Ok(whole.f_unsqueeze(0)?);
            }
            frames.push(whole.f_narrow(1, top, tall)?.f_narrow(2, left, wide)?);
        }
        if frames.is_empty() {
            let options = (tch::Kind::Float, tch::Device::Cpu);
            return Ok(Tensor::f_zeros([0, channels, tall, wide], options)?);
        }
        Ok(Tensor::f_stack(&frames, 0)?)
    }

    /// Says what was dropped or amiss while reading.
    pub fn say_notes(&self) {
        self.reader.notes().iter().for_each(|note| tell!("note: {note}"));
    }
}

#[cfg(test)]
mod tests {
    use tilewright_media::{ClipWriter, Frame, Kind, Output, Rate, Shape};

    use super::*;

    /// Frames whose values are their places, counted on from frame to frame.
    fn written(folder: &Path, frames: usize, height: u32, width: u32) -> PathBuf {
        let path = folder.join("x.safetensors");
        let shape = Shape { samples: 1, frames, width, height, channels: 1 };
        let output = Output::new(&path, Kind::Clip).unwrap();
        let rate = Rate::new(16, 1).unwrap();
        let mut writer = ClipWriter::begin(&output, shape, rate, &Vec::new()).unwrap();
        let count = height * width;
        for index in 0..frames {
            let values = (0..count).map(|place| (index as u32 * count + place) as f32).collect();
            writer.frame(0, index, &Frame { width, height, channels: 1, values }).unwrap();
        }
        writer.finish().unwrap();
        path
    }

    #[test]
    fn crops_keep_the_middle_of_every_frame() {
        let folder = tempfile::tempdir().unwrap();
        for (height, width, size, starts) in [
            (16, 24, (16, 24), (0, 0)),
            (17, 31, (16, 24), (0, 3)),
            (23, 25, (16, 24), (3, 0)),
            (8, 15, (8, 8), (0, 3)),
        ] {
            let mut source = Source::open(&written(folder.path(), 3, height, width), None).unwrap();
            source.crop(8).unwrap();
            assert_eq!(source.size(), size);
            let found = [source.next(2).unwrap(), source.next(5).unwrap()];
            assert_eq!(found.each_ref().map(|frames| frames.size()[0]), [2, 1]);
            let first = f64::from(starts.0 * width + starts.1);
            assert_eq!(found[0].double_value(&[0, 0, 0, 0]), first, "{height}×{width}");
            assert_eq!(found[1].double_value(&[0, 0, 0, 0]), first + f64::from(2 * height * width));
            assert_eq!(source.next(4).unwrap().size(), [0, 1, i64::from(size.0), i64::from(size.1)]);
        }
        let mut small = Source::open(&written(folder.path(), 1, 7, 64), None).unwrap();
        assert!(matches!(small.crop(8), Err(Failure::Input(_))));
        assert_eq!(Source::open(&written(folder.path(), 9, 8, 8), Some(5)).unwrap().frames(), 5);
    }
}
