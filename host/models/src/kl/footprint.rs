//! What a pass costs by the architecture alone: how long its layers take on a device that was measured, and the most held at once.

mod held;
mod layer;
mod time;

use tilewright_plan::{Layout, Precision};
use tilewright_torch::{
    attention,
    probe::{Measured, Rate},
    winograd,
};

use super::{Config, EncoderConfig, bands::LEAST_ROWS};
use held::{Bytes, Moment};
use layer::Layer;
use time::Timed;

/// What is decoded or encoded at once, in the pixels of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Samples or tiles.
    pub batch: u32,
    /// Pixels.
    pub height: u32,
    /// Pixels.
    pub width: u32,
    /// Rows of a band, where the picture goes through the network in bands.
    pub band: Option<u32>,
}

/// What passes cost in one precision and memory order on one device.
#[derive(Clone, Debug)]
pub struct Footprint {
    layers: Vec<Timed>,
    whole: Vec<Moment>,
    banded: Vec<Moment>,
    /// Seconds per pair of latent pixels of one sample.
    attention: f64,
    scale: f64,
    threads: f64,
    winograd: bool,
}

impl Footprint {
    /// The most bytes held at once, output included.
    pub fn peak_bytes(&self, extent: &Extent) -> f64 {
        let batch = f64::from(extent.batch);
        let row = batch * f64::from(extent.width);
        let pixels = row * f64::from(extent.height);
        let band = extent.band.unwrap_or(extent.height).min(extent.height);
        let band = row * f64::from(band);
        let moments = if extent.band.is_some() { &self.banded } else { &self.whole };
        let held = |moment: &Moment| {
            moment.constant + moment.per_pixel * pixels + moment.per_band_pixel * band + moment.per_row_pixel * row
        };
        moments
            .iter()
            .filter(|moment| moment.most_pixels.is_none_or(|most| pixels <= most))
            .map(held)
            .fold(0.0, f64::max)
    }

    /// How long a pass takes.
    pub fn seconds(&self, extent: &Extent) -> f64 {
        let (height, width, batch) = (f64::from(extent.height), f64::from(extent.width), f64::from(extent.batch));
        let mut seconds = 0.0;
        for layer in &self.layers {
            let (down, across) = (height * layer.side, width * layer.side);
            let mut pixels = down * across * batch;
            if layer.blocks && self.winograd {
                // Whole blocks, and as many threads as there are blocks for.
                let block = f64::from(winograd::BLOCK);
                let blocks = ((down / block).ceil() * (across / block).ceil() * batch).max(1.0);
                let turns = (blocks / self.threads).ceil();
                pixels = pixels.max(turns * self.threads.min(blocks) * block * block);
                if blocks < self.threads {
                    pixels *= self.threads / blocks;
                }
            }
            let more = match extent.band {
                Some(band) if band < extent.height => {
                    layer.again + layer.per_row / (f64::from(band) * layer.side).max(LEAST_ROWS as f64)
                }
                _ => 0.0,
            };
            seconds += pixels * layer.seconds * (1.0 + more);
        }
        let tokens = height * width / (self.scale * self.scale);
        seconds + batch * tokens * tokens * self.attention
    }
}

/// A network as its cost depends on it.
struct Network {
    layers: Vec<Layer>,
    /// Channels of the attention, where there is one.
    attention: Option<f64>,
    /// Pixels of the picture per latent pixel.
    scale: f64,
}

impl Config {
    /// The share of a decode's work that each layer is, in the order that they run; adds up to 1.
    pub fn layer_shares(&self) -> Vec<f64> {
        shares(&self.layers())
    }

    /// What decodes cost in a precision and memory order on a device that was measured; none where these can't be run there.
    pub fn footprint(&self, precision: Precision, layout: Layout, measured: &Measured) -> Option<Footprint> {
        let network = Network {
            layers: self.layers(),
            attention: self.middle_attention.then_some(self.middle_channels as f64),
            scale: f64::from(self.spatial_scale()),
        };
        network.footprint(precision, layout, measured)
    }
}

impl EncoderConfig {
    /// The share of an encode's work that each layer is, in the order that they run; adds up to 1.
    pub fn layer_shares(&self) -> Vec<f64> {
        shares(&self.layers())
    }

    /// What encodes cost in a precision and memory order on a device that was measured; none where these can't be run there.
    pub fn footprint(&self, precision: Precision, layout: Layout, measured: &Measured) -> Option<Footprint> {
        let network = Network {
            layers: self.layers(),
            attention: self.middle_attention.then_some(self.middle_channels as f64),
            scale: f64::from(self.spatial_scale()),
        };
        network.footprint(precision, layout, measured)
    }
}

fn shares(layers: &[Layer]) -> Vec<f64> {
    let rate = Rate { per_product: 1.0, per_value: 0.0 };
    let flops: Vec<f64> = layers.iter().map(|layer| layer.pixels * layer.convolutions(&rate, &rate, false)).collect();
    let all: f64 = flops.iter().sum();
    flops.into_iter().map(|flops| flops / all.max(1e-9)).collect()
}

impl Network {
    fn footprint(&self, precision: Precision, layout: Layout, measured: &Measured) -> Option<Footprint> {
        let speed = measured.speeds.iter().find(|speed| speed.dtype == precision.dtype() && speed.layout == layout)?;
        let convolution = f64::from(precision.dtype().bits()) / 8.0;
        let rest = match precision {
            Precision::Uniform(_) => convolution,
            Precision::Mixed(_) => 4.0,
        };
        // Mixed f32 is uniform f32 by another name: see `ComputeFormat::winograd`.
        let rate = speed.winograd;
        let bytes = Bytes {
            convolution,
            rest,
            converts: convolution != rest,
            layout,
            scratch: speed.scratch,
            winograd: rate.is_some(),
            attention: self.attention.map_or(0.0, |width| attention::fused_bytes(width, speed.dtype)),
        };
        let layers = &self.layers;
        let moments = |banded: bool| {
            let mut moments: Vec<Moment> = Vec::new();
            for moment in layers.iter().flat_map(|layer| layer.moments(&bytes, banded)) {
                if !moments.iter().any(|other| moment.is_covered_by(other)) {
                    moments.retain(|other| !other.is_covered_by(&moment));
                    moments.push(moment);
                }
            }
            moments
        };
        let timed = |layer: &Layer| layer.timed(&bytes, speed, measured.bytes_per_second);
        Some(Footprint {
            layers: layers.iter().map(timed).collect(),
            whole: moments(false),
            banded: moments(true),
            attention: self.attention.map_or(0.0, |width| 4.0 * width / speed.attention_flops_per_second),
            scale: self.scale,
            threads: f64::from(tch::get_num_threads().max(1)),
            winograd: rate.is_some(),
        })
    }
}
