//! Results of jobs as answers' bodies, made piece by piece as the client takes them.

use tilewright_models::Checkpoint;

use super::{Element, Scaling};

/// Values of a piece.
const PIECE: usize = 1 << 18;

/// The arrangement of a result's values in the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrangement {
    /// As they are.
    AsMade,
    /// Latents with a scaling.
    Scaled(Scaling),
    /// Pictures [N, H, W, 3] in 0…255, of clips their frames one after another.
    Pixels,
    /// Pictures [N, 3, H, W], or the frames of the first clip [T, 3, H, W], in 0…1.
    Shares,
}

/// A tensor of a file as bytes.
pub struct Values {
    file: Checkpoint,
    name: String,
    arrangement: Arrangement,
    element: Element,
    /// [N, C, T, H, W].
    extents: [usize; 5],
    has_frames: bool,
    /// Rows of a plane that are through, or values if the order stays.
    done: usize,
}

impl Values {
    /// A tensor [N, C, H, W] or [N, C, T, H, W] of a job's result in f32; none if there is no such
    /// tensor in it.
    pub fn new(file: Checkpoint, name: &str, arrangement: Arrangement, element: Element) -> Option<Self> {
        let (extents, has_frames) = match *file.shape(name)? {
            [samples, channels, height, width] => ([samples, channels, 1, height, width], false),
            [samples, channels, frames, height, width] => ([samples, channels, frames, height, width], true),
            _ => return None,
        };
        let values: usize = extents.iter().product();
        let is_whole = file.bytes(name)?.len() == 4 * values;
        let name = name.to_owned();
        is_whole.then_some(Self { file, name, arrangement, element, extents, has_frames, done: 0 })
    }

    /// The extents of the answer.
    pub fn shape(&self) -> Vec<usize> {
        let [samples, channels, frames, height, width] = self.extents;
        match self.arrangement {
            Arrangement::Pixels => vec![samples * frames, height, width, channels],
            Arrangement::Shares => vec![if self.has_frames { frames } else { samples }, channels, height, width],
            Arrangement::AsMade | Arrangement::Scaled(_) if self.has_frames => self.extents.to_vec(),
            Arrangement::AsMade | Arrangement::Scaled(_) => vec![samples, channels, height, width],
        }
    }

    /// The type of the answer's values.
    pub fn element(&self) -> Element {
        self.element
    }

    /// Bytes of the answer.
    pub fn bytes(&self) -> usize {
        self.shape().iter().product::<usize>() * self.element.bytes()
    }

    /// True if a value is beyond what the answer's type has, though the file's is not.
    pub fn overflows(&self) -> bool {
        let Arrangement::Scaled(scaling) = self.arrangement else { return false };
        let values: usize = self.extents.iter().product();
        (0..values).step_by(PIECE).any(|first| {
            let piece = self.values(first, PIECE);
            let written = self.element.write(piece.iter().map(|value| scaling.apply(*value)));
            self.element.read(&written).iter().zip(&piece).any(|(found, own)| !found.is_finite() && own.is_finite())
        })
    }

    /// Values of the file from one on, at most `count` of them.
    fn values(&self, first: usize, count: usize) -> Vec<f32> {
        let bytes = self.file.bytes(&self.name).unwrap_or_default();
        let end = bytes.len().min(4 * (first + count));
        Element::Float32.read(bytes.get(4 * first..end).unwrap_or_default())
    }

    /// The first value of a row: of a sample, a channel, a frame.
    fn row(&self, [sample, channel, frame, row]: [usize; 4]) -> usize {
        let [_, channels, frames, height, width] = self.extents;
        (((sample * channels + channel) * frames + frame) * height + row) * width
    }

    /// The next piece.
    fn advance(&mut self) -> Option<Vec<u8>> {
        let [samples, channels, frames, height, width] = self.extents;
        let first = self.done;
        match self.arrangement {
            Arrangement::AsMade | Arrangement::Scaled(_) => {
                let values = self.values(first, PIECE);
                self.done += values.len();
                let scaling = match self.arrangement {
                    Arrangement::Scaled(scaling) => scaling,
                    _ => Scaling::default(),
                };
                let bytes = self.element.write(values.into_iter().map(|value| scaling.apply(value)));
                (!bytes.is_empty()).then_some(bytes)
            }
            Arrangement::Pixels => {
                // Rows of all frames, one after another.
                let last = samples * frames * height;
                let rows = first..last.min(first + (PIECE / (width * channels).max(1)).max(1));
                self.done = rows.end;
                let mut pixels = Vec::with_capacity(rows.len() * width * channels);
                for line in rows.clone() {
                    let (picture, row) = (line / height, line % height);
                    let (sample, frame) = (picture / frames, picture % frames);
                    let planes: Vec<Vec<f32>> = (0..channels)
                        .map(|channel| self.values(self.row([sample, channel, frame, row]), width))
                        .collect();
                    let columns = 0..width;
                    pixels.extend(
                        columns.flat_map(|column| planes.iter().map(move |plane| share(plane[column]) * 255.0)),
                    );
                }
                (!rows.is_empty()).then(|| self.element.write(pixels.into_iter()))
            }
            Arrangement::Shares => {
                // Planes, by pictures or by the frames of the first clip.
                let last = self.shape()[0] * channels * height;
                let rows = first..last.min(first + (PIECE / width.max(1)).max(1));
                self.done = rows.end;
                let lines = rows.clone().flat_map(|line| {
                    let (plane, row) = (line / height, line % height);
                    let (picture, channel) = (plane / channels, plane % channels);
                    let (sample, frame) = if self.has_frames { (0, picture) } else { (picture, 0) };
                    self.values(self.row([sample, channel, frame, row]), width)
                });
                (!rows.is_empty()).then(|| self.element.write(lines.map(share)))
            }
        }
    }
}

/// A value in −1…1 as a share: `VaeImageProcessor.denormalize`.
fn share(value: f32) -> f32 {
    (value * 0.5 + 0.5).clamp(0.0, 1.0)
}

impl Iterator for Values {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.advance()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use crate::remote_vae::Input;

    /// A result with these values.
    fn result(shape: &[i64], values: &[f32]) -> (tempfile::TempDir, Checkpoint) {
        let folder = tempfile::tempdir().unwrap();
        let [raw, path] = ["raw", "result.safetensors"].map(|name| folder.path().join(name));
        fs::write(&raw, Element::Float32.write(values.iter().copied())).unwrap();
        let input = Input { path: &raw, shape, element: Element::Float32 };
        input.write(&mut File::create(&path).unwrap(), "sample", Scaling::default(), None).unwrap();
        let file = Checkpoint::open(&path).unwrap();
        (folder, file)
    }

    fn answer(shape: &[i64], arrangement: Arrangement, element: Element) -> (Vec<usize>, Vec<f32>) {
        let values: Vec<f32> = (0..shape.iter().product()).map(|value| value as f32 / 16.0 - 1.0).collect();
        let (_folder, file) = result(shape, &values);
        let answer = Values::new(file, "sample", arrangement, element).unwrap();
        let (shape, bytes) = (answer.shape(), answer.bytes());
        let body: Vec<u8> = answer.flatten().collect();
        assert_eq!(body.len(), bytes);
        (shape, element.read(&body))
    }

    #[test]
    fn values_are_arranged_as_clients_read_them() {
        let (shape, values) = answer(&[1, 2, 2, 2], Arrangement::AsMade, Element::Float16);
        assert_eq!((shape, values[1]), (vec![1, 2, 2, 2], 1.0 / 16.0 - 1.0));
        let scaling = Scaling { factor: Some(2.0), shift: Some(-1.0) };
        let (_, values) = answer(&[1, 1, 1, 4], Arrangement::Scaled(scaling), Element::Float32);
        assert_eq!(values, [0.0, 0.125, 0.25, 0.375]);
        // Two frames of two rows and two columns, three channels.
        let (shape, values) = answer(&[1, 3, 2, 2, 2], Arrangement::Pixels, Element::UInt8);
        assert_eq!(shape, [2, 2, 2, 3]);
        let pixel = |value: usize| ((value as f32 / 32.0).clamp(0.0, 1.0) * 255.0).round_ties_even();
        let expected: Vec<f32> = (0..2)
            .flat_map(|frame| (0..4).flat_map(move |at| (0..3).map(move |channel| pixel(channel * 8 + frame * 4 + at))))
            .collect();
        assert_eq!(values, expected);
        let (shape, values) = answer(&[2, 3, 2, 1, 2], Arrangement::Shares, Element::Float32);
        assert_eq!(shape, [2, 3, 1, 2]);
        let expected: Vec<f32> = [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11].map(|value| value as f32 / 32.0).to_vec();
        assert_eq!(values, expected);
        let (shape, values) = answer(&[2, 3, 1, 2], Arrangement::Shares, Element::Float32);
        let expected: Vec<f32> = (0..12).map(|value| value as f32 / 32.0).collect();
        assert_eq!((shape, values), (vec![2, 3, 1, 2], expected));
    }

    #[test]
    fn large_answers_come_in_pieces() {
        let (_folder, file) = result(&[1, 3, 600, 700], &vec![0.25; 3 * 600 * 700]);
        let pieces: Vec<usize> = Values::new(file, "sample", Arrangement::Pixels, Element::UInt8)
            .unwrap()
            .map(|piece| piece.len())
            .collect();
        assert!(pieces.len() > 3 && pieces.iter().all(|bytes| *bytes <= PIECE), "{pieces:?}");
        assert_eq!(pieces.iter().sum::<usize>(), 3 * 600 * 700);
    }
}
