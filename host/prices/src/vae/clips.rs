//! The cost of a plan for a clip: of an encode too as far as it is alike.

use std::time::Duration;

use tilewright_kernels::Kernels;
use tilewright_models::{
    HalfConfig, Metered, Pass, PlanFormat,
    wan_vae::{Config, Extent, Tiled},
};
use tilewright_nn::LayerSeconds;
use tilewright_plan::{Cost, Dtype, Plan, Request, Space, Tile, Time};

use super::costs::{PlanCost, times};
use crate::{Basis, grid::Axis};

/// Prices of plans for the decodes or the encode of clips on one device.
#[derive(Debug)]
pub(crate) struct ClipPrices<C: HalfConfig> {
    pub batch: u32,
    pub latent_frames: u32,
    pub frames: u32,
    pub height: u32,
    pub width: u32,
    pub scale: u32,
    pub temporal: u32,
    pub latent_channels: f64,
    pub image_channels: f64,
    pub bytes_per_second: f64,
    /// Between the device and the host, while a state goes and another comes.
    pub transfer_bytes_per_second: f64,
    kernels: Kernels,
    prices: Metered<C>,
}

/// The division of a clip into a plan's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Latent frames after which frames leave; all of them if tiles are decoded one after the
    /// other over the whole clip.
    pub latent_frames: u32,
    /// Latent frames that are pushed at once.
    pub pushed: u32,
    /// Output frames that run through the last layers at once.
    pub frames: u32,
}

impl Chunks {
    /// The division by a plan of a clip of `all` latent frames.
    pub fn of(plan: &Plan, temporal: u32, all: u32) -> Self {
        // The host's choice if the plan leaves it: one latent frame at a time, as diffusers
        // does.
        let frames = match plan.time {
            Time::Whole => temporal,
            Time::Carried { frames } | Time::Blended { frames, .. } => frames,
        };
        let pushed = (frames / temporal.max(1)).clamp(1, all.max(1));
        let tiled = matches!(plan.space, Space::Blended(_));
        let latent_frames = if plan.time == Time::Whole && tiled { all.max(1) } else { pushed };
        Self { latent_frames, pushed, frames }
    }
}

impl<C: HalfConfig> ClipPrices<C> {
    /// Works out the prices of every precision and memory order that the device was measured in.
    /// `channels` are those of latents and of pictures.
    pub fn new(config: &C, channels: [usize; 2], request: &Request, basis: &Basis) -> Self {
        let [scale, temporal] = config.scales();
        let Basis { measured, kernels, .. } = basis;
        let [latent_channels, image_channels] = channels.map(|channels| channels as f64);
        Self {
            batch: request.batch,
            latent_frames: 1 + request.frames.saturating_sub(1) / temporal.max(1),
            frames: request.frames,
            height: request.height,
            width: request.width,
            scale,
            temporal,
            latent_channels,
            image_channels,
            bytes_per_second: measured.bytes_per_second,
            transfer_bytes_per_second: measured.transfer_bytes_per_second.unwrap_or(f64::INFINITY),
            kernels: *kernels,
            prices: Metered::new(config, measured, kernels),
        }
    }

    pub fn on_cpu(&self) -> bool {
        self.kernels.on_cpu
    }

    /// The tiles of a division, and the height and the width of each.
    pub fn divided(&self, tile: Tile) -> (u32, u32, u32) {
        let rows = Axis::count(self.height, tile.height, tile.overlap);
        let columns = Axis::count(self.width, tile.width, tile.overlap);
        (rows.saturating_mul(columns), tile.height.min(self.height), tile.width.min(self.width))
    }

    /// The time of each layer of all passes in a plan's format.
    pub fn layers_of(&self, plan: &Plan, extent: &C::Extent, passes: u32) -> Vec<LayerSeconds> {
        let layers = self.prices.layers(PlanFormat::of(plan, &self.kernels), extent);
        layers.map_or_else(|_| Vec::new(), |layers| times(layers, f64::from(passes)))
    }

    /// The price of a pass in a plan's format.
    pub fn pass(&self, plan: &Plan, extent: &C::Extent) -> Result<Pass, String> {
        self.prices.pass(PlanFormat::of(plan, &self.kernels), extent)
    }
}

/// The price of one way through a network of clips.
pub(crate) trait ClipCost {
    /// As [`PlanCost::cost`].
    fn cost(&self, plan: &Plan) -> Result<Cost, String>;

    /// As [`PlanCost::layers`].
    fn layers(&self, plan: &Plan) -> Vec<LayerSeconds>;
}

impl<C: HalfConfig> PlanCost for ClipPrices<C>
where
    Self: ClipCost,
{
    fn cost(&self, plan: &Plan) -> Result<Cost, String> {
        ClipCost::cost(self, plan)
    }

    fn layers(&self, plan: &Plan) -> Vec<LayerSeconds> {
        ClipCost::layers(self, plan)
    }

    fn weight_bytes(&self, plan: &Plan) -> u64 {
        self.prices.weight_bytes(PlanFormat::of(plan, &self.kernels)).unwrap_or(0)
    }

    fn dtypes(&self) -> Vec<Dtype> {
        self.prices.dtypes()
    }
}

impl ClipPrices<Config> {
    /// The chunks of a plan, a tile of it, and the number of these.
    fn division(&self, plan: &Plan) -> (Chunks, Extent, u32) {
        let chunks = Chunks::of(plan, self.temporal, self.latent_frames);
        let mut extent = Extent {
            latent_frames: self.latent_frames,
            pushed: chunks.pushed,
            frames: chunks.frames,
            height: self.height,
            width: self.width,
            band: None,
            tiled: None,
        };
        let mut tiles = 1;
        match plan.space {
            Space::Whole => {}
            Space::Exact(tile) => extent.band = Some(tile.height),
            Space::Blended(tile) => {
                (tiles, extent.height, extent.width) = self.divided(tile);
                let parked = plan.offload && tiles > 1;
                let (height, width, chunk) = (self.height, self.width, chunks.latent_frames);
                extent.tiled = Some(Tiled { tiles, parked, height, width, chunk });
            }
        }
        (chunks, extent, tiles)
    }
}

impl ClipCost for ClipPrices<Config> {
    fn layers(&self, plan: &Plan) -> Vec<LayerSeconds> {
        let (_, extent, tiles) = self.division(plan);
        self.layers_of(plan, &extent, tiles.saturating_mul(self.batch))
    }

    fn cost(&self, plan: &Plan) -> Result<Cost, String> {
        if let Time::Blended { .. } = plan.time {
            return Err("this model carries its causal state: chunks decoded alone would only lose it".into());
        }
        let (chunks, extent, tiles) = self.division(plan);
        let cost = self.pass(plan, &extent)?;
        let mut peak = cost.peak_bytes as f64;
        if !self.on_cpu() {
            // On a CPU the latents are where they were.
            let latents = self.latent_channels * f64::from(self.height) * f64::from(self.width);
            peak += 4.0 * f64::from(chunks.pushed) * latents / f64::from(self.scale * self.scale);
        }
        let kept = f64::from(self.height) * f64::from(self.width);
        let pixels = f64::from(tiles) * f64::from(extent.height) * f64::from(extent.width);
        let gathering = if tiles > 1 { 28.0 } else { 8.0 };
        let output = gathering * self.image_channels * pixels * f64::from(self.frames) / self.bytes_per_second;
        // At each turn of a tile its state comes, and that of the tile before goes.
        let turns = self.latent_frames.div_ceil(chunks.latent_frames);
        let is_moved = extent.tiled.is_some_and(|tiled| tiled.parked) && turns > 1;
        let moved = if is_moved { f64::from(turns) * cost.state_bytes as f64 } else { 0.0 };
        let per_tile = cost.seconds + moved / self.transfer_bytes_per_second;
        let seconds = f64::from(self.batch) * (f64::from(tiles) * per_tile + output);
        // The first frame, those after it, and what is left over at the end.
        let ragged = self.latent_frames > 1 && !(self.latent_frames - 1).is_multiple_of(chunks.pushed);
        Ok(Cost {
            peak_bytes: peak as u64,
            weights_bytes: 0,
            elapsed: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            tiles: tiles.saturating_mul(turns).saturating_mul(self.batch),
            shapes: 1 + u32::from(self.latent_frames > 1) + u32::from(ragged),
            rework: pixels / kept,
        })
    }
}
