//! Pictures at another size, as Pillow makes them: two passes of 8-bit values and integer weights,
//! each output bit for bit (github.com/python-pillow/Pillow, src/libImaging/Resample.c).

use std::f64::consts::PI;

use crate::frame::{Frame, byte, value};

/// Binary digits of a weight behind the point.
const DIGITS: u32 = 32 - 8 - 2;

/// The way in which a pixel is made of its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Cubic, with a = −0.5.
    Bicubic,
    /// Lanczos, three lobes.
    Lanczos,
}

impl Filter {
    /// Pixels to each side that count.
    fn support(self) -> f64 {
        match self {
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, at: f64) -> f64 {
        let at = at.abs();
        match self {
            Filter::Bicubic if at < 1.0 => (1.5 * at - 2.5) * at * at + 1.0,
            Filter::Bicubic if at < 2.0 => ((-0.5 * at + 2.5) * at - 4.0) * at + 2.0,
            Filter::Lanczos if at == 0.0 => 1.0,
            Filter::Lanczos if at < 3.0 => sinc(at) * sinc(at / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(at: f64) -> f64 {
    (at * PI).sin() / (at * PI)
}

/// The first input of an output, and the weights of as many as count.
struct Taps {
    first: usize,
    weights: Vec<i64>,
}

fn taps(filter: Filter, from: usize, to: usize) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let support = filter.support() * stretch;
    (0..to)
        .map(|place| {
            let centre = (place as f64 + 0.5) * scale;
            let first = (centre - support + 0.5).max(0.0) as usize;
            let last = ((centre + support + 0.5) as usize).min(from);
            let own: Vec<f64> = (first..last).map(|at| filter.weight((at as f64 - centre + 0.5) / stretch)).collect();
            let sum: f64 = own.iter().sum();
            let fixed = |weight: &f64| {
                let scaled = weight / sum * f64::from(1u32 << DIGITS);
                (scaled + if scaled < 0.0 { -0.5 } else { 0.5 }) as i64
            };
            Taps { first, weights: own.iter().map(fixed).collect() }
        })
        .collect()
}

/// A weighted sum as an 8-bit value.
fn sum(taps: &Taps, value: impl Fn(usize) -> u8) -> u8 {
    let weighted = taps.weights.iter().enumerate();
    let sum: i64 = weighted.map(|(index, weight)| weight * i64::from(value(taps.first + index))).sum();
    ((sum + (1 << (DIGITS - 1))) >> DIGITS).clamp(0, 255) as u8
}

/// A picture at another size, of whose values 8 bits count.
pub fn resize(frame: &Frame, width: u32, height: u32, filter: Filter) -> Frame {
    let ([from_width, from_height], [to_width, to_height]) =
        ([frame.width, frame.height].map(|side| side as usize), [width, height].map(|side| side as usize));
    let (columns, rows) = (taps(filter, from_width, to_width), taps(filter, from_height, to_height));
    let mut values = Vec::with_capacity(frame.channels * to_width * to_height);
    for plane in frame.values.chunks_exact((from_width * from_height).max(1)) {
        let bytes: Vec<u8> = plane.iter().map(|value| byte(*value)).collect();
        let wide: Vec<u8> = match from_width == to_width {
            true => bytes,
            false => bytes
                .chunks_exact(from_width)
                .flat_map(|row| columns.iter().map(|taps| sum(taps, |at| row[at])))
                .collect(),
        };
        if from_height == to_height {
            values.extend(wide.iter().copied().map(value));
            continue;
        }
        for taps in &rows {
            values.extend((0..to_width).map(|column| value(sum(taps, |row| wide[row * to_width + column]))));
        }
    }
    Frame { width, height, channels: frame.channels, values }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of a formula's bytes.
    fn picture(width: u32, height: u32) -> Frame {
        let values = (0..width * height * 3).map(|place| value(((place * place + 7 * place) % 251) as u8)).collect();
        Frame { width, height, channels: 3, values }
    }

    fn bytes(frame: &Frame) -> Vec<u8> {
        frame.values.iter().map(|value| byte(*value)).collect()
    }

    #[test]
    fn sizes_are_pillows() {
        // Pillow 13.0.0: Image.resize of the same bytes, the sum of all bytes and the first five.
        for (filter, size, to, total, first) in CASES {
            let resized = resize(&picture(size[0], size[1]), to[0], to[1], filter);
            assert!(resized.is_whole());
            let bytes = bytes(&resized);
            assert_eq!(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(), total, "{filter:?} {size:?} {to:?}");
            assert_eq!(bytes[..5], first, "{filter:?} {size:?} {to:?}");
        }
    }

    type Case = (Filter, [u32; 2], [u32; 2], u64, [u8; 5]);

    const CASES: [Case; 6] = [
        (Filter::Bicubic, [37, 23], [28, 17], 176965, [37, 44, 43, 84, 71]),
        (Filter::Bicubic, [16, 9], [40, 31], 460137, [0, 0, 0, 0, 0]),
        (Filter::Bicubic, [64, 50], [64, 12], 285653, [83, 145, 101, 115, 75]),
        (Filter::Lanczos, [37, 23], [28, 17], 176985, [34, 45, 40, 90, 70]),
        (Filter::Lanczos, [16, 9], [40, 31], 459723, [0, 0, 0, 0, 0]),
        (Filter::Lanczos, [64, 50], [64, 12], 285607, [81, 142, 98, 114, 77]),
    ];
}
