//! Frames to encode, cropped to what the autoencoder takes.

use std::path::{Path, PathBuf};

use tch::Tensor;
use tilewright_media::{ClipReader, Shape};

use crate::{Error, Result};

/// The place that frames come from.
enum Frames {
    /// A file or folder.
    File(ClipReader),
    /// A first frame [C, H, W], with grey ones behind it, and the number of those that were taken.
    Still(Tensor, u32),
}

/// The frames of a file or folder, or of a still picture.
pub struct EncodeSource {
    path: PathBuf,
    reader: Frames,
    shape: Shape,
    frames: u32,
    /// The rows and the columns that are taken: the first, and their count.
    crop: [(u32, u32); 2],
}

impl EncodeSource {
    /// Opens a file or folder, of which at most `most` frames are taken. Of pictures, the first
    /// one's header is read.
    ///
    /// # Errors
    /// It can't be read, or holds no frames.
    pub fn open(path: &Path, most: Option<u32>) -> Result<Self> {
        let reader = ClipReader::open(path)?;
        let shape = reader.shape();
        let frames = u32::try_from(shape.frames).unwrap_or(u32::MAX).min(most.unwrap_or(u32::MAX));
        let crop = [(0, shape.height), (0, shape.width)];
        Ok(Self { path: path.to_owned(), reader: Frames::File(reader), shape, frames, crop })
    }

    /// A first frame [C, H, W] in −1…1 with grey frames behind it, `frames` together. `path` is its
    /// picture's, for errors.
    pub fn still(path: &Path, first: Tensor, frames: u32) -> Self {
        let side = |axis: usize| u32::try_from(first.size()[axis]).unwrap_or(u32::MAX);
        let (channels, height, width) = (side(0) as usize, side(1), side(2));
        Self {
            path: path.to_owned(),
            shape: Shape { samples: 1, frames: frames as usize, width, height, channels },
            reader: Frames::Still(first, 0),
            frames,
            crop: [(0, height), (0, width)],
        }
    }

    /// Reads the pixels of the pictures that are taken and keeps none, so that a damaged one is
    /// found before other work begins.
    ///
    /// # Errors
    /// One is cut or damaged behind its header, or of another size than the first.
    pub fn check(&self) -> Result<()> {
        match &self.reader {
            Frames::File(reader) => Ok(reader.check(self.frames as usize)?),
            Frames::Still(..) => Ok(()),
        }
    }

    /// Pictures or clips.
    pub fn samples(&self) -> usize {
        self.shape.samples
    }

    /// Frames of each that are taken.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Channels of each frame.
    pub fn channels(&self) -> usize {
        self.shape.channels
    }

    /// Height and width of what is taken.
    pub fn size(&self) -> (u32, u32) {
        (self.crop[0].1, self.crop[1].1)
    }

    /// Takes the middle whose sides are multiples of `scale`, with a note if that is not all. These
    /// are the pixels that ComfyUI takes (comfyanonymous/ComfyUI, comfy/sd.py,
    /// `vae_encode_crop_pixels`).
    ///
    /// # Errors
    /// Nothing is left.
    pub fn crop(&mut self, scale: u32, note: &mut dyn FnMut(&str)) -> Result<()> {
        let Shape { height, width, .. } = self.shape;
        let (tall, wide) = (height - height % scale, width - width % scale);
        if tall == 0 || wide == 0 {
            let reason =
                format!("{width}×{height} pixels are less than the {scale}×{scale} that one latent pixel stands for");
            return Err(Error::input(&self.path, reason));
        }
        if (tall, wide) != (height, width) {
            note(&format!(
                "{width}×{height} is cropped to {wide}×{tall}: the sides of what is encoded are multiples of {scale}"
            ));
        }
        self.crop = [((height % scale) / 2, tall), ((width % scale) / 2, wide)];
        Ok(())
    }

    /// The next frames, or as many as there are: [T, C, H, W] in −1…1, f32.
    ///
    /// # Errors
    /// A frame can't be read.
    pub fn next(&mut self, count: u32) -> Result<Tensor> {
        let [(top, tall), (left, wide)] = self.crop.map(|(first, count)| (i64::from(first), i64::from(count)));
        let channels = self.channels() as i64;
        let mut frames = Vec::new();
        while frames.len() < count as usize {
            let reader = match &mut self.reader {
                Frames::File(reader) => reader,
                Frames::Still(_, taken) if *taken == self.frames => break,
                Frames::Still(first, taken) => {
                    *taken += 1;
                    let own = first.f_narrow(1, top, tall)?.f_narrow(2, left, wide)?;
                    frames.push(if *taken == 1 { own } else { own.f_zeros_like()? });
                    continue;
                }
            };
            let Some(frame) = reader.next_frame()? else { break };
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

    /// Notes on what was dropped or amiss while reading.
    pub fn notes(&self) -> &[String] {
        match &self.reader {
            Frames::File(reader) => reader.notes(),
            Frames::Still(..) => &[],
        }
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
    fn a_still_is_followed_by_grey_frames() {
        let first = Tensor::from_slice(&[0.5_f32; 3 * 8 * 16]).reshape([3, 8, 16]);
        let mut source = EncodeSource::still(Path::new("x.png"), first, 5);
        assert_eq!((source.frames(), source.channels(), source.size()), (5, 3, (8, 16)));
        source.crop(8, &mut |_| {}).unwrap();
        let found = [source.next(2).unwrap(), source.next(4).unwrap(), source.next(1).unwrap()];
        assert_eq!(found.each_ref().map(|frames| frames.size()[0]), [2, 3, 0]);
        assert_eq!([0, 1].map(|frame| found[0].double_value(&[frame, 2, 7, 15])), [0.5, 0.0]);
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
            let mut source = EncodeSource::open(&written(folder.path(), 3, height, width), None).unwrap();
            source.crop(8, &mut |_| {}).unwrap();
            assert_eq!(source.size(), size);
            let found = [source.next(2).unwrap(), source.next(5).unwrap()];
            assert_eq!(found.each_ref().map(|frames| frames.size()[0]), [2, 1]);
            let first = f64::from(starts.0 * width + starts.1);
            assert_eq!(found[0].double_value(&[0, 0, 0, 0]), first, "{height}×{width}");
            assert_eq!(found[1].double_value(&[0, 0, 0, 0]), first + f64::from(2 * height * width));
            assert_eq!(source.next(4).unwrap().size(), [0, 1, i64::from(size.0), i64::from(size.1)]);
        }
        let mut small = EncodeSource::open(&written(folder.path(), 1, 7, 64), None).unwrap();
        assert!(small.crop(8, &mut |_| {}).unwrap_err().is_input());
        assert_eq!(EncodeSource::open(&written(folder.path(), 9, 8, 8), Some(5)).unwrap().frames(), 5);
    }
}
