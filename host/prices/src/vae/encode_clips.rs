//! The cost of a plan for the encode of a clip.

use std::time::Duration;

use tilewright_models::wan_vae::{EncoderConfig, EncoderExtent};
use tilewright_nn::LayerSeconds;
use tilewright_plan::{Cost, Plan, Space, Time};

use super::clips::{ClipCost, ClipPrices};

/// Frames after the first that are asked for at once: a multiple of the temporal scale, which is
/// the host's choice if the plan leaves it.
pub fn chunk(plan: &Plan, temporal: u32, frames: u32) -> u32 {
    let wanted = match plan.time {
        Time::Whole => temporal,
        Time::Carried { frames } | Time::Blended { frames, .. } => frames,
    };
    let chunks = |frames: u32| (frames / temporal.max(1)).max(1) * temporal.max(1);
    chunks(wanted).min(chunks(frames.saturating_sub(1)))
}

impl ClipPrices<EncoderConfig> {
    /// A tile of a plan, and the number of these.
    fn division(&self, plan: &Plan) -> (EncoderExtent, u32) {
        let whole = EncoderExtent { frames: self.frames, height: self.height, width: self.width };
        let Space::Blended(tile) = plan.space else { return (whole, 1) };
        let (tiles, height, width) = self.divided(tile);
        (EncoderExtent { height, width, ..whole }, tiles)
    }
}

impl ClipCost for ClipPrices<EncoderConfig> {
    fn layers(&self, plan: &Plan) -> Vec<LayerSeconds> {
        let (extent, tiles) = self.division(plan);
        self.layers_of(plan, &extent, tiles)
    }

    fn cost(&self, plan: &Plan) -> Result<Cost, String> {
        if let Time::Blended { .. } = plan.time {
            return Err("this model carries its causal state: chunks encoded alone would only lose it".into());
        }
        if let Space::Exact(_) = plan.space {
            return Err("exact tiles can only be decoded, not encoded".into());
        }
        let (extent, tiles) = self.division(plan);
        let area = |height: u32, width: u32| f64::from(height) * f64::from(width);
        let (kept, tile) = (area(self.height, self.width), area(extent.height, extent.width));
        let chunk = match self.frames {
            0 | 1 => 1.0,
            frames => f64::from(chunk(plan, self.temporal, frames)),
        };
        let at_once = chunk.min(f64::from(self.temporal));
        // The frames wait in host memory; those of a tile are cut out, and on a GPU those of the
        // whole are copied.
        let waiting = if self.on_cpu() { 4.0 * self.image_channels * chunk * kept } else { 0.0 };
        let cut = if self.on_cpu() && tiles == 1 { 0.0 } else { 4.0 * self.image_channels * at_once * tile };
        // Latents: of this chunk, and on a CPU those of the clip before and after they are joined.
        let latent = 4.0 * self.latent_channels * kept / f64::from(self.scale * self.scale);
        let latents = latent * if self.on_cpu() { f64::from(self.latent_frames) } else { 0.0 }
            + 2.0 * latent * (chunk / f64::from(self.temporal)).ceil();
        // The states of the other tiles; the tile at work goes back to its own if it fails.
        let cost = self.pass(plan, &extent)?;
        let others = if plan.offload { 0.0 } else { f64::from(tiles - 1) * cost.state_bytes as f64 };
        let peak = cost.peak_bytes as f64 + others + waiting + cut + latents;
        let pixels = f64::from(tiles) * tile;
        let moved = 12.0 * self.image_channels * pixels * f64::from(self.frames) / self.bytes_per_second;
        let rounds = 1 + (f64::from(self.frames.saturating_sub(1)) / chunk).ceil() as u32;
        // At each turn of a tile its state comes, and that of the tile before goes.
        let parked = if plan.offload && tiles > 1 { f64::from(rounds) * cost.state_bytes as f64 } else { 0.0 };
        let seconds = f64::from(tiles) * (cost.seconds + parked / self.transfer_bytes_per_second) + moved;
        Ok(Cost {
            peak_bytes: peak as u64,
            weights_bytes: 0,
            elapsed: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            tiles: tiles.saturating_mul(rounds),
            shapes: 1 + u32::from(self.frames > 1),
            rework: pixels / kept,
        })
    }
}
