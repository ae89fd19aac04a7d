//! Frames as networks return them, pixels as files hold them, and shapes and rates of clips.

use std::{fmt, path::Path, str::FromStr};

use image::ExtendedColorType;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// One picture as networks return it: planes of f32 [C, H, W], −1…1.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// 1, 3 or 4.
    pub channels: usize,
    /// `channels * height * width` values, plane by plane, row by row.
    pub values: Vec<f32>,
}

impl Frame {
    /// Values in one plane.
    pub(crate) fn area(&self) -> usize {
        self.width as usize * self.height as usize
    }

    /// −1…1 as 0…65535, rounded, row by row, channels interleaved, each with its more significant
    /// byte first.
    pub(crate) fn deep(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.values.len() * 2];
        for (channel, plane) in self.values.chunks_exact(self.area().max(1)).enumerate() {
            for (pixel, value) in bytes.chunks_exact_mut(self.channels * 2).zip(plane) {
                // In f64: half of 65,535 times a value has more digits than f32 holds.
                let scaled = f64::from(*value) * 32_767.5 + 32_767.5;
                let deep = scaled.round_ties_even().clamp(0.0, 65_535.0) as u16;
                pixel[channel * 2..][..2].copy_from_slice(&deep.to_be_bytes());
            }
        }
        bytes
    }

    /// True if the number of values matches its sides.
    pub fn is_whole(&self) -> bool {
        [1, 3, 4].contains(&self.channels) && self.area() > 0 && self.values.len() == self.channels * self.area()
    }
}

/// A picture of 8-bit values, row by row, channels interleaved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// 1, 3 or 4.
    pub channels: usize,
    /// `width * height * channels` values.
    pub values: Vec<u8>,
}

impl From<&Frame> for Pixels {
    /// −1…1 becomes 0…255, rounded, as in diffusers' `VaeImageProcessor`.
    fn from(frame: &Frame) -> Self {
        let mut values = vec![0; frame.values.len()];
        for (channel, plane) in frame.values.chunks_exact(frame.area().max(1)).enumerate() {
            for (pixel, value) in values.chunks_exact_mut(frame.channels).zip(plane) {
                pixel[channel] = byte(*value);
            }
        }
        Self { width: frame.width, height: frame.height, channels: frame.channels, values }
    }
}

/// −1…1 as 0…255, rounded, as in diffusers' `VaeImageProcessor`.
pub(crate) fn byte(value: f32) -> u8 {
    (value * 127.5 + 127.5).round_ties_even().clamp(0.0, 255.0) as u8
}

/// 0…255 as −1…1.
pub(crate) fn value(byte: u8) -> f32 {
    f32::from(byte) / 127.5 - 1.0
}

impl Pixels {
    /// The type of the values, as codecs call it.
    pub(crate) fn color(&self) -> ExtendedColorType {
        match self.channels {
            1 => ExtendedColorType::L8,
            4 => ExtendedColorType::Rgba8,
            _ => ExtendedColorType::Rgb8,
        }
    }

    /// 0…255 becomes −1…1.
    pub fn frame(&self) -> Frame {
        let (area, channels) = (self.width as usize * self.height as usize, self.channels);
        let mut values = vec![0.0; self.values.len()];
        for (channel, plane) in values.chunks_exact_mut(area.max(1)).enumerate() {
            for (value, pixel) in plane.iter_mut().zip(self.values.chunks_exact(channels)) {
                *value = self::value(pixel[channel]);
            }
        }
        Frame { width: self.width, height: self.height, channels, values }
    }

    /// The same in red, green and blue; transparency is dropped.
    pub(crate) fn rgb(self) -> Self {
        let values = match self.channels {
            1 => self.values.iter().flat_map(|&value| [value; 3]).collect(),
            4 => self.values.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
            _ => return self,
        };
        Self { channels: 3, values, ..self }
    }

    /// The same with sides of even length: the last column and row are doubled if necessary.
    pub(crate) fn even(self) -> Self {
        let (width, height) = (self.width.next_multiple_of(2), self.height.next_multiple_of(2));
        if (width, height) == (self.width, self.height) {
            return self;
        }
        let mut values = Vec::with_capacity(width as usize * height as usize * self.channels);
        for y in 0..height.min(self.height + 1) {
            let row = self.width as usize * self.channels;
            let row = &self.values[y.min(self.height - 1) as usize * row..][..row];
            values.extend_from_slice(row);
            if width > self.width {
                values.extend_from_slice(&row[row.len() - self.channels..]);
            }
        }
        Self { width, height, values, ..self }
    }
}

/// The number of frames and their size: the tensor [N, C, T, H, W].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Clips, or pictures.
    pub samples: usize,
    /// In each clip.
    pub frames: usize,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// 1, 3 or 4.
    pub channels: usize,
}

impl Shape {
    /// Checks a frame that is given as frame `index` of a sample, of each of which `done` frames
    /// were given before; `path` is for the error.
    pub(crate) fn check(
        &self,
        path: &Path,
        done: &[usize],
        sample: usize,
        index: usize,
        frame: &Frame,
    ) -> Result<(), Error> {
        let objection = self.objection(done, sample, index, frame);
        objection.map_or(Ok(()), |reason| Err(Error::Frame { path: path.to_owned(), sample, index, reason }))
    }

    fn objection(&self, done: &[usize], sample: usize, index: usize, frame: &Frame) -> Option<String> {
        let Self { samples, frames, width, height, channels } = *self;
        if sample >= samples || index >= frames {
            return Some(format!("there are {samples} samples of {frames} frames"));
        }
        let next = done.get(sample).copied().unwrap_or(frames);
        if next != index {
            return Some(format!("frame {next} is due"));
        }
        let found = (frame.channels, frame.height, frame.width);
        if found != (channels, height, width) || !frame.is_whole() {
            let (c, h, w) = found;
            let count = frame.values.len();
            return Some(format!("{c}×{h}×{w} with {count} values, {channels}×{height}×{width} expected"));
        }
        None
    }
}

/// Frames per second, as a fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Rate {
    numerator: u32,
    denominator: u32,
}

/// Rounded spellings of the rates of television.
const BROADCAST: [(&str, u32); 5] = [("23.98", 24), ("23.976", 24), ("29.97", 30), ("59.94", 60), ("119.88", 120)];

const FASTEST: u32 = 1000;

impl Rate {
    /// A rate as a fraction; none if it is zero, not finite, or above 1000.
    pub fn new(numerator: u32, denominator: u32) -> Option<Self> {
        let (mut a, mut b) = (numerator, denominator);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        let sound = numerator > 0 && denominator > 0 && numerator.div_ceil(denominator) <= FASTEST;
        sound.then(|| Self { numerator: numerator / a, denominator: denominator / a })
    }

    /// Frames per second.
    pub fn per_second(self) -> f64 {
        f64::from(self.numerator) / f64::from(self.denominator)
    }

    /// The moment when a frame is due, in units of 1/`parts` seconds, rounded.
    pub(crate) fn moment(self, index: usize, parts: u64) -> u64 {
        let (numerator, denominator) = (u128::from(self.numerator), u128::from(self.denominator));
        let doubled = index as u128 * denominator * u128::from(parts) * 2 + numerator;
        u64::try_from(doubled / (numerator * 2)).unwrap_or(u64::MAX)
    }

    /// Seconds of one frame, as a fraction; ffmpeg's time base.
    pub(crate) fn interval(self) -> String {
        format!("{}/{}", self.denominator, self.numerator)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(formatter, "{}", self.numerator),
            _ => write!(formatter, "{}/{}", self.numerator, self.denominator),
        }
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = match (BROADCAST.iter().find(|(known, _)| *known == text), text.split_once('/')) {
            (Some((_, whole)), _) => Rate::new(whole * 1000, 1001),
            (None, Some((numerator, denominator))) => {
                numerator.parse().ok().zip(denominator.parse().ok()).and_then(|(n, d)| Rate::new(n, d))
            }
            (None, None) => {
                let (whole, part) = text.split_once('.').unwrap_or((text, ""));
                let digits = format!("{whole}{part}");
                let plain = part.len() <= 6 && digits.bytes().all(|digit| digit.is_ascii_digit());
                let numerator = digits.parse().ok().filter(|_| plain);
                numerator.and_then(|numerator| Rate::new(numerator, 10_u32.pow(part.len() as u32)))
            }
        };
        parsed.ok_or_else(|| Error::Rate { text: text.to_owned() })
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

impl TryFrom<String> for Rate {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_bytes_as_in_diffusers() {
        let values = vec![-1.5, -1.0, 0.0, 0.999, 1.0, f32::NAN];
        let frame = Frame { width: 3, height: 2, channels: 1, values };
        assert_eq!(Pixels::from(&frame).values, [0, 0, 128, 255, 255, 0]);
    }

    #[test]
    fn every_byte_survives_the_way_to_a_frame_and_back() {
        let pixels = Pixels { width: 64, height: 1, channels: 4, values: (0..=255).collect() };
        let frame = pixels.frame();
        assert_eq!(frame.values[..2], [-1.0, 4.0 / 127.5 - 1.0], "plane by plane");
        assert_eq!(Pixels::from(&frame), pixels);
    }

    #[test]
    fn odd_sides_grow_by_their_last_pixel() {
        let pixels = Pixels { width: 3, height: 1, channels: 1, values: vec![1, 2, 3] };
        assert_eq!(pixels.even(), Pixels { width: 4, height: 2, channels: 1, values: vec![1, 2, 3, 3, 1, 2, 3, 3] });
    }

    #[test]
    fn rates_are_exact_fractions() {
        for (text, shown) in [("24", "24"), ("23.976", "24000/1001"), ("12.5", "25/2"), ("60000/2000", "30")] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), shown);
        }
        for text in ["", "0", "-3", "1/0", "1e3", "2000", "a", ".", "+1", "4294967296"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        let rate = Rate::new(24, 1).unwrap();
        let moments: Vec<_> = (0..5).map(|index| rate.moment(index, 100)).collect();
        assert_eq!(moments, [0, 4, 8, 13, 17]);
    }
}
