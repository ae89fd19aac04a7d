//! What a plan would cost, from the network's footprint and the device's measured speeds. Policies ask it a hundred times per
//! decision, so everything that does not depend on the plan is worked out once.

use std::time::Duration;

use tilewright_models::kl::{Config, Footprint};
use tilewright_plan::{Cost, Dtype, Facts, Layout, Plan, Precision, Request, Space, Time, Trial};
use tilewright_torch::probe::Measured;

use crate::grid::Axis;

/// Prices plans for one request on one device.
#[derive(Clone, Debug)]
pub struct Estimator {
    batch: u32,
    height: u32,
    width: u32,
    scale: u32,
    latent_channels: f64,
    image_channels: f64,
    prices: Vec<Price>,
    /// Newest first.
    pub(crate) trials: Vec<Trial>,
}

/// The price of a precision in a memory order.
#[derive(Clone, Debug)]
struct Price {
    precision: Precision,
    layout: Layout,
    footprint: Footprint,
    nanoseconds_per_pixel: f64,
    /// Per pair of latent pixels of a tile.
    attention_nanoseconds: f64,
}

impl Estimator {
    /// Works out the prices of every precision and memory order that the device was measured in.
    pub fn new(config: &Config, request: &Request, measured: &Measured) -> Self {
        let mut prices = Vec::new();
        for speed in &measured.speeds {
            for precision in [Precision::Uniform(speed.dtype), Precision::Mixed(speed.dtype)] {
                let footprint = config.footprint(precision, speed.layout, speed.scratch);
                prices.push(Price::new(
                    precision,
                    speed.layout,
                    footprint,
                    speed.flops_per_second,
                    measured.bytes_per_second,
                ));
            }
        }
        Self {
            batch: request.batch,
            height: request.height,
            width: request.width,
            scale: config.spatial_scale(),
            latent_channels: config.latent_channels as f64,
            image_channels: config.image_channels as f64,
            prices,
            trials: Vec::new(),
        }
    }

    /// The types that convolutions can run in.
    pub fn dtypes(&self) -> Vec<Dtype> {
        let mut dtypes: Vec<Dtype> = self.prices.iter().map(|price| price.precision.dtype()).collect();
        dtypes.dedup();
        dtypes
    }
}

impl Price {
    fn new(
        precision: Precision,
        layout: Layout,
        footprint: Footprint,
        flops_per_second: f64,
        bytes_per_second: f64,
    ) -> Self {
        let per_second = footprint.convolution_flops / flops_per_second + footprint.moved_bytes / bytes_per_second;
        Self {
            precision,
            layout,
            nanoseconds_per_pixel: per_second * 1e9,
            attention_nanoseconds: footprint.attention_flops / flops_per_second * 1e9,
            footprint,
        }
    }
}

impl Facts for Estimator {
    fn estimate(&self, plan: &Plan) -> Result<Cost, String> {
        if plan.time != Time::Whole {
            return Err("a picture has one frame: time can't be divided".into());
        }
        let price = self.prices.iter().find(|price| price.precision == plan.precision && price.layout == plan.layout);
        let price = price.ok_or_else(|| format!("{} {} can't be run on this device", plan.precision, plan.layout))?;
        // Values of the tiles' weights along either axis.
        let mut ramps = 0.0;
        let (tile_height, tile_width, per_sample) = match plan.space {
            Space::Whole => (self.height, self.width, 1),
            Space::Blended(tile) => {
                let rows = Axis::count(self.height, tile.height, tile.overlap);
                let columns = Axis::count(self.width, tile.width, tile.overlap);
                ramps = f64::from(rows) * f64::from(tile.height) + f64::from(columns) * f64::from(tile.width);
                (tile.height.min(self.height), tile.width.min(self.width), rows.saturating_mul(columns))
            }
            Space::Exact(_) => return Err("exact tiles are not offered yet".into()),
        };
        let tiles = per_sample.saturating_mul(self.batch);
        let batch = plan.batch.clamp(1, tiles);
        let pixels = f64::from(tile_height) * f64::from(tile_width);
        let kept = f64::from(self.height) * f64::from(self.width) * f64::from(self.batch);
        let tokens = pixels / f64::from(self.scale * self.scale);
        let nanoseconds =
            f64::from(tiles) * (pixels * price.nanoseconds_per_pixel + tokens * tokens * price.attention_nanoseconds);
        let at_once = f64::from(batch) * pixels;
        let whole = plan.space == Space::Whole;
        // A decode of all samples at once hands its output on; every other one gathers into a picture of its own.
        let gathered = if whole && tiles == batch { 0.0 } else { 4.0 * self.image_channels * kept };
        // Crops of the latent are copies.
        let latents =
            if whole { 0.0 } else { 4.0 * self.latent_channels * at_once / f64::from(self.scale * self.scale) };
        let ragged = !tiles.is_multiple_of(batch);
        Ok(Cost {
            peak_bytes: (price.footprint.peak_bytes(at_once) + gathered + latents + 4.0 * ramps) as u64,
            elapsed: Duration::from_nanos(nanoseconds as u64),
            tiles,
            shapes: 1 + u32::from(ragged),
            rework: f64::from(tiles) * pixels / kept,
        })
    }

    fn trials(&self, most: u32) -> Vec<Trial> {
        self.trials.iter().take(most as usize).cloned().collect()
    }
}
