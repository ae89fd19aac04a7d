//! What layers hold: a list of moments, each a straight line in the pixels decoded at once; which of them is the peak depends on the
//! size. The moments follow `layers.rs` and `bands.rs`: change both.

use tilewright_plan::Layout;
use tilewright_torch::{
    CPU_PIECE,
    probe::{Scratch, convolution_bytes},
    reordered::{block, padded},
    winograd,
};

use super::layer::{Layer, LayerKind};

/// What is held at one moment of a decode, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Per output pixel.
    pub per_pixel: f64,
    /// Per output pixel of a band, and per output pixel of a row.
    pub per_band_pixel: f64,
    pub per_row_pixel: f64,
    /// However many pixels there are.
    pub constant: f64,
    /// The moment only comes where no more pixels are decoded.
    pub most_pixels: Option<f64>,
}

impl Moment {
    /// Never holds more than another that comes whenever it does.
    pub fn is_covered_by(&self, other: &Self) -> bool {
        other.per_pixel >= self.per_pixel
            && other.per_band_pixel >= self.per_band_pixel
            && other.per_row_pixel >= self.per_row_pixel
            && other.constant >= self.constant
            && (other.most_pixels == self.most_pixels || other.most_pixels.is_none())
    }
}

/// What values and convolutions take, in bytes.
pub struct Bytes {
    /// Of one value in a convolution.
    pub convolution: f64,
    /// Of one value between layers.
    pub rest: f64,
    /// Values are converted before and after each convolution.
    pub converts: bool,
    pub layout: Layout,
    pub scratch: Scratch,
    /// 3×3 convolutions run by Winograd's filtering.
    pub winograd: bool,
    /// Of the attention, whatever the size.
    pub attention: f64,
}

impl Bytes {
    /// The moments of `Plain::forward` in layers.rs: `held` bytes per pixel besides what the convolution itself handles.
    fn convolution(&self, held: f64, into: f64, out: f64, taps: f64) -> Vec<Moment> {
        let mut moments = Vec::new();
        let mut moment = |per_pixel, constant, most_pixels| {
            moments.push(Moment { per_pixel, constant, most_pixels, ..Moment::default() });
        };
        if self.converts {
            moment(held + into * (self.rest + self.convolution), 0.0, None);
            moment(held + out * (self.rest + self.convolution), 0.0, None);
        }
        let (input, output) = (into * self.convolution, out * self.convolution);
        let both = held + input + output;
        if taps == 1.0 && self.layout == Layout::ChannelsFirst {
            // A matrix product.
            moment(both, 0.0, None);
            return moments;
        }
        let weights = self.scratch.weights * taps * padded(into) * padded(out) * self.convolution;
        let constant = weights + convolution_bytes();
        let inputs = self.scratch.inputs;
        if inputs > 1.0 {
            // Laid out tap by tap.
            let inputs = if taps > 1.0 { inputs } else { 0.0 };
            moment(both + inputs * input, constant, None);
        } else {
            // Input and output are reordered, the output when the input's copy is gone.
            let (input, output) = (inputs * padded(into) * self.convolution, inputs * padded(out) * self.convolution);
            moment(both + input + output - inputs * out * self.convolution, constant, None);
            moment(both + output, convolution_bytes(), None);
        }
        if self.scratch.small > 0 && taps > 1.0 {
            moment(both + taps * input, 0.0, Some(self.scratch.small as f64 / into));
        }
        moments
    }

    /// What `Plain::rows` in layers.rs holds at most per pixel of a band, its output included.
    fn rows(&self, into: f64, out: f64) -> f64 {
        let wide = if self.rest < 4.0 { 8.0 } else { 4.0 };
        // Input and output with their copies in another order, or tap by tap.
        let copies = self.scratch.inputs;
        let convolved = self.convolution * (into * (1.0 + copies) + out * (1.0 + copies.min(1.0)));
        let moments = [
            // Normed in f32, then in the convolution's type, then with the rows beyond the edge.
            into * wide,
            into * if self.convolution < 4.0 { 4.0 + self.convolution } else { 0.0 },
            into * 2.0 * self.convolution,
            convolved,
            out * (self.convolution + if self.converts { self.rest } else { 0.0 }),
        ];
        // oneDNN's own copies are of more channels than there are, the more so the wider its blocks.
        let padding = if block() > 8.0 { 1.15 } else { 1.05 };
        padding * moments.into_iter().fold(0.0, f64::max)
    }
}

impl Layer {
    /// What is held at each moment that may be the peak.
    pub fn moments(&self, bytes: &Bytes, banded: bool) -> Vec<Moment> {
        let moments = match self.kind {
            LayerKind::Attention => self.attention_moments(bytes),
            LayerKind::Downsample => self.downsample_moments(bytes),
            _ if bytes.winograd || banded => self.banded_moments(bytes, banded),
            _ => self.whole_moments(bytes),
        };
        let pixels = self.pixels;
        let scaled = |moment: Moment| Moment {
            per_pixel: moment.per_pixel * pixels,
            per_band_pixel: moment.per_band_pixel * pixels,
            per_row_pixel: moment.per_row_pixel * pixels.sqrt(),
            most_pixels: moment.most_pixels.map(|most| most / pixels),
            ..moment
        };
        moments.into_iter().map(scaled).collect()
    }

    fn attention_moments(&self, bytes: &Bytes) -> Vec<Moment> {
        let into = self.into * bytes.rest;
        let converted = self.into * bytes.convolution;
        let moment = |per_pixel, constant| Moment { per_pixel, constant, ..Moment::default() };
        vec![
            moment(2.0 * into + if bytes.converts { converted } else { 0.0 }, 0.0),
            // Query, key, value and their mix.
            moment(into + 4.0 * converted, bytes.attention),
            moment(2.0 * into + converted, 0.0),
        ]
    }

    /// `Downsample::forward` in layers.rs, per pixel of its output, which four of its input stand behind.
    fn downsample_moments(&self, bytes: &Bytes) -> Vec<Moment> {
        let moment = |per_pixel, constant| Moment { per_pixel, constant, ..Moment::default() };
        let (into, out) = (4.0 * self.into, self.out);
        let weights = bytes.scratch.weights * 9.0 * padded(self.into) * padded(out) * bytes.convolution;
        let constant = weights + convolution_bytes();
        let inputs = bytes.scratch.inputs;
        // Laid out tap by tap, for the output's pixels; or input and output reordered.
        let scratch = match inputs > 1.0 {
            true => inputs * self.into,
            false => inputs * (4.0 * padded(self.into) + padded(out)),
        };
        let mut moments = vec![
            moment((into + out + scratch) * bytes.convolution, constant),
            // The rows that are asked for, copied.
            moment(2.0 * out * bytes.convolution, 0.0),
        ];
        if bytes.converts {
            moments.push(moment(into * (bytes.rest + bytes.convolution), 0.0));
        }
        moments
    }

    /// In the order of layers.rs.
    fn whole_moments(&self, bytes: &Bytes) -> Vec<Moment> {
        let (into, out) = (self.into * bytes.rest, self.out * bytes.rest);
        let simple = |per_pixel| vec![Moment { per_pixel, ..Moment::default() }];
        let groups = match self.kind {
            LayerKind::ConvIn => vec![bytes.convolution(0.0, self.into, self.out, 9.0)],
            LayerKind::Resnet => vec![
                simple(2.0 * into),
                bytes.convolution(into, self.into, self.out, 9.0),
                simple(into + 2.0 * out),
                bytes.convolution(into, self.out, self.out, 9.0),
                if self.into == self.out { Vec::new() } else { bytes.convolution(out, self.into, self.out, 1.0) },
            ],
            LayerKind::Upsample => {
                let before = if bytes.converts { (into + self.into * bytes.convolution) / 4.0 } else { 0.0 };
                // The input is already in the convolution's type.
                let same = Bytes { rest: bytes.convolution, converts: false, ..*bytes };
                vec![
                    simple(before.max(1.25 * self.into * bytes.convolution)),
                    same.convolution(0.0, self.into, self.out, 9.0),
                    simple(self.out * bytes.convolution + if bytes.converts { out } else { 0.0 }),
                ]
            }
            LayerKind::Out => {
                vec![simple(2.0 * into), bytes.convolution(0.0, self.into, self.out, 9.0), simple(out + 4.0 * self.out)]
            }
            LayerKind::Attention | LayerKind::Downsample => Vec::new(),
        };
        groups.concat()
    }

    /// In the order of bands.rs.
    fn banded_moments(&self, bytes: &Bytes, banded: bool) -> Vec<Moment> {
        let (into, out) = (self.into * bytes.rest, self.out * bytes.rest);
        let scratch = |into: f64, upsample| match bytes.winograd {
            true => winograd::scratch_bytes(into as i64, upsample) as f64,
            false => {
                // A band is more often small than a picture is.
                let small = 9.0 * bytes.scratch.small as f64 * bytes.convolution;
                // Sums are taken of values less their mean, and of the squares of these, in pieces.
                let sums = 2.0 * 4.0 * CPU_PIECE as f64;
                convolution_bytes()
                    + sums
                    + small
                    + bytes.scratch.weights * 9.0 * padded(into) * padded(self.out) * bytes.convolution
            }
        };
        let band = |into: f64, out: f64| if bytes.winograd { 0.0 } else { bytes.rows(into, out) };
        let moment =
            |per_pixel, per_band_pixel, constant| Moment { per_pixel, per_band_pixel, constant, ..Moment::default() };
        // The input: held, or a quarter of it and the rows that are computed for the moment.
        let low = self.from_low.filter(|_| banded);
        let input = low.map_or(into, |low| low * bytes.rest / 4.0);
        let computed = if low.is_some() { into } else { 0.0 };
        let neighbours = 2.0 * computed;
        let with_rows = |moment: Moment| Moment { per_row_pixel: neighbours, ..moment };
        match self.kind {
            LayerKind::ConvIn | LayerKind::Out => vec![with_rows(moment(
                input + out.max(4.0 * self.out * f64::from(u8::from(self.kind == LayerKind::Out))),
                computed + band(self.into, self.out),
                scratch(self.into, false),
            ))],
            LayerKind::Upsample => {
                let kept = if banded && self.passing { 0.0 } else { out };
                vec![moment(into / 4.0 + kept, band(self.into, self.out), scratch(self.into, true))]
            }
            LayerKind::Resnet => {
                let apart = self.into != self.out;
                let beside = if apart || low.is_some() { out } else { 0.0 };
                // Where the input's rows are computed for the moment, so are the shortcut's.
                let shortcut = if apart && low.is_some() { out } else { 0.0 };
                let mut moments = vec![
                    with_rows(moment(
                        input + out + beside * f64::from(u8::from(low.is_some())),
                        computed + band(self.into, self.out).max(shortcut),
                        scratch(self.into, false),
                    )),
                    moment(
                        out + beside.max(into * f64::from(u8::from(!apart))),
                        band(self.out, self.out),
                        scratch(self.out, false),
                    ),
                ];
                if apart {
                    let constant = convolution_bytes()
                        + bytes.scratch.weights * padded(self.into) * padded(self.out) * bytes.convolution;
                    moments.push(with_rows(moment(input + out + beside, computed + shortcut, constant)));
                }
                moments
            }
            LayerKind::Attention | LayerKind::Downsample => Vec::new(),
        }
    }
}
