//! How long layers take.

use tilewright_torch::probe::{Rate, Speed};

use super::{
    held::Bytes,
    layer::{Layer, LayerKind},
};

/// How long a layer takes.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// Pixels along one side per pixel of the picture.
    pub side: f64,
    /// Per pixel of this layer.
    pub seconds: f64,
    /// What the layer takes longer in bands, as a share, and what it takes longer in lower bands: once over the rows of a band.
    pub again: f64,
    pub per_row: f64,
    /// Its convolutions run in blocks of pixels.
    pub blocks: bool,
}

impl Layer {
    /// What the convolutions of a layer take per pixel of its output. With Winograd's filtering 4 products and values stand for 9, 2¼ after an
    /// upsampling.
    pub fn convolutions(&self, square: &Rate, point: &Rate, winograd: bool) -> f64 {
        let (direct, upsampled) = if winograd { (4.0, 2.25) } else { (9.0, 9.0) };
        let conv = |into, out| direct * square.of(into, out);
        match self.kind {
            LayerKind::ConvIn | LayerKind::Out => conv(self.into, self.out),
            LayerKind::Upsample => upsampled * square.of(self.into, self.out),
            // By libtorch, everywhere.
            LayerKind::Downsample => 9.0 * point.of(self.into, self.out),
            LayerKind::Resnet => {
                let shortcut = if self.into == self.out { 0.0 } else { point.of(self.into, self.out) };
                conv(self.into, self.out) + conv(self.out, self.out) + shortcut
            }
            LayerKind::Attention => 4.0 * point.of(self.into, self.out),
        }
    }

    /// How long the layer takes on a device.
    pub fn timed(&self, bytes: &Bytes, speed: &Speed, bytes_per_second: f64) -> Timed {
        let square = speed.winograd.unwrap_or(speed.plain);
        let moved = if bytes.winograd { self.moved_beside_winograd() } else { self.moved(bytes) };
        let seconds = self.convolutions(&square, &speed.plain, bytes.winograd) + moved / bytes_per_second;
        // The upsampling that this layer computes again, with a row of its neighbours on either side.
        let again = self.from_low.map_or(0.0, |low| {
            let upsampled = if bytes.winograd { 2.25 } else { 9.0 };
            upsampled * square.of(low, self.into) / seconds
        });
        Timed {
            side: self.pixels.sqrt(),
            seconds,
            again,
            per_row: 2.0 * again,
            blocks: !matches!(self.kind, LayerKind::Attention | LayerKind::Downsample),
        }
    }

    /// Bytes read and written per pixel by what is no convolution.
    fn moved(&self, bytes: &Bytes) -> f64 {
        // Norm: two reads and a write; SiLU: a read and a write; sum: two reads and a write.
        let normed = |channels: f64| 5.0 * channels * bytes.rest;
        let conversions = if bytes.converts { 2.0 * (bytes.rest + bytes.convolution) } else { 0.0 };
        match self.kind {
            LayerKind::ConvIn => 0.0,
            LayerKind::Resnet => {
                normed(self.into)
                    + normed(self.out)
                    + 3.0 * self.out * bytes.rest
                    + (self.into + 3.0 * self.out) * conversions / 2.0
            }
            LayerKind::Attention => normed(self.into) + 8.0 * self.into * bytes.rest,
            LayerKind::Upsample => 1.25 * self.into * bytes.rest + self.into * conversions,
            LayerKind::Downsample => (4.0 * self.into + 3.0 * self.out) * bytes.rest + 2.0 * self.into * conversions,
            LayerKind::Out => normed(self.into) + self.into * conversions / 2.0,
        }
    }

    /// Norms, activations and sums are in the convolutions' own times.
    fn moved_beside_winograd(&self) -> f64 {
        match self.kind {
            LayerKind::Attention => 4.0 * 16.0 * self.into,
            // The large picture is read, the small one written, copied and added up.
            LayerKind::Downsample => 4.0 * (4.0 * self.into + 5.0 * self.out),
            _ => 0.0,
        }
    }
}
