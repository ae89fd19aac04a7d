//! The cost of a plan, from the network's passes on a meter and the device's measured speeds.
//! Policies ask for it a hundred times per decision, so equal passes are metered once.

use std::time::Duration;

use tilewright_kernels::Kernels;
use tilewright_models::{
    HalfConfig, Metered, PlanFormat,
    kl::{Config, EncoderConfig, Extent},
};
use tilewright_nn::LayerSeconds;
use tilewright_plan::{Cost, Dtype, Plan, Request, Space, Time};

use super::costs::{PlanCost, times};
use crate::{Basis, grid::Axis};

/// Prices plans for one request on one device.
#[derive(Debug)]
pub(crate) struct Estimator<C: HalfConfig> {
    batch: u32,
    height: u32,
    width: u32,
    values: Values,
    bytes_per_second: f64,
    kernels: Kernels,
    metered: Metered<C>,
}

/// The input and the output of a network, in values per pixel of the picture.
#[derive(Clone, Copy, Debug)]
struct Values {
    input: f64,
    output: f64,
    /// Along one side: of the weights that tiles of the output fade by.
    ramp: f64,
    /// The network can be run in bands.
    exact: bool,
}

impl Estimator<Config> {
    /// Prices decodes in every precision and memory order that the device was measured in.
    pub fn new(config: &Config, request: &Request, basis: &Basis) -> Self {
        let scale = f64::from(config.spatial_scale());
        let latent = config.latent_channels as f64 / (scale * scale);
        let values = Values { input: latent, output: config.image_channels as f64, ramp: 1.0, exact: true };
        Self::with_values(values, request, basis, config)
    }
}

impl Estimator<EncoderConfig> {
    /// The same of encodes.
    pub fn encoding(config: &EncoderConfig, request: &Request, basis: &Basis) -> Self {
        let scale = f64::from(config.spatial_scale());
        let latent = config.latent_channels as f64 / (scale * scale);
        let values = Values { input: config.image_channels as f64, output: latent, ramp: 1.0 / scale, exact: false };
        Self::with_values(values, request, basis, config)
    }
}

/// The passes of a plan.
struct Division {
    /// Tiles of all samples.
    tiles: u32,
    /// A full pass.
    extent: Extent,
    /// Values of the tiles' weights along either axis.
    ramps: f64,
}

impl<C: HalfConfig> Estimator<C> {
    fn division(&self, plan: &Plan) -> Division {
        let mut ramps = 0.0;
        let (height, width, per_sample) = match plan.space {
            Space::Whole | Space::Exact(_) => (self.height, self.width, 1),
            Space::Blended(tile) => {
                let rows = Axis::count(self.height, tile.height, tile.overlap);
                let columns = Axis::count(self.width, tile.width, tile.overlap);
                ramps = f64::from(rows) * f64::from(tile.height) + f64::from(columns) * f64::from(tile.width);
                (tile.height.min(self.height), tile.width.min(self.width), rows.saturating_mul(columns))
            }
        };
        let band = if let Space::Exact(tile) = plan.space { Some(tile.height) } else { None };
        let tiles = per_sample.saturating_mul(self.batch);
        let batch = plan.batch.clamp(1, tiles);
        Division { tiles, extent: Extent { batch, height, width, band }, ramps }
    }

    fn with_values(values: Values, request: &Request, basis: &Basis, config: &C) -> Self {
        let Basis { measured, kernels, .. } = basis;
        Self {
            batch: request.batch,
            height: request.height,
            width: request.width,
            values,
            bytes_per_second: measured.bytes_per_second,
            kernels: *kernels,
            metered: Metered::new(config, measured, kernels),
        }
    }
}

impl<C: HalfConfig<Extent = Extent>> PlanCost for Estimator<C> {
    fn cost(&self, plan: &Plan) -> Result<Cost, String> {
        if plan.time != Time::Whole {
            return Err("a picture has one frame: time can't be divided".into());
        }
        if matches!(plan.space, Space::Exact(_)) && !self.values.exact {
            return Err("exact tiles can only be decoded, not encoded".into());
        }
        let Division { tiles, extent, ramps } = self.division(plan);
        let Extent { batch, height: tile_height, width: tile_width, .. } = extent;
        let whole = !matches!(plan.space, Space::Blended(_));
        let format = PlanFormat::of(plan, &self.kernels);
        let pass = |batch| self.metered.pass(format, &Extent { batch, ..extent });
        let largest = pass(batch)?;
        let pixels = f64::from(tile_height) * f64::from(tile_width);
        let kept = f64::from(self.height) * f64::from(self.width) * f64::from(self.batch);
        let at_once = f64::from(batch) * pixels;
        let ragged = tiles % batch;
        let mut seconds = f64::from(tiles / batch) * largest.seconds;
        if ragged > 0 {
            seconds += pass(ragged)?.seconds;
        }
        // The output is looked through for NaN, and gathered with its weights if it is a tile.
        let gathering = if whole { 4.0 } else { 28.0 };
        seconds += gathering * self.values.output * f64::from(tiles) * pixels / self.bytes_per_second;
        // A pass of all samples at once hands its output on; every other one gathers into a tensor
        // of its own.
        let gathered = if whole && tiles == batch { 0.0 } else { 4.0 * self.values.output * kept };
        // Crops of the input are copies.
        let crops = if whole { 0.0 } else { 4.0 * self.values.input * at_once };
        let ramps = 4.0 * ramps * self.values.ramp;
        Ok(Cost {
            peak_bytes: (largest.peak_bytes as f64 + gathered + crops + ramps) as u64,
            weights_bytes: 0,
            elapsed: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            tiles,
            shapes: 1 + u32::from(ragged > 0),
            rework: f64::from(tiles) * pixels / kept,
        })
    }

    fn layers(&self, plan: &Plan) -> Vec<LayerSeconds> {
        let Division { tiles, extent, .. } = self.division(plan);
        let format = PlanFormat::of(plan, &self.kernels);
        // The last pass, of fewer tiles, is as its share of a full one.
        let passes = f64::from(tiles) / f64::from(extent.batch.max(1));
        self.metered.layers(format, &extent).map_or_else(|_| Vec::new(), |layers| times(layers, passes))
    }

    fn weight_bytes(&self, plan: &Plan) -> u64 {
        self.metered.weight_bytes(PlanFormat::of(plan, &self.kernels)).unwrap_or(0)
    }

    fn dtypes(&self) -> Vec<Dtype> {
        self.metered.dtypes()
    }
}
