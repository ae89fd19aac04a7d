//! Prices by formula, for the golden set and for recorded requests without prices of their own: no
//! libtorch, no probe, the same on every machine.
//!
//! **Memory** is activations, causal cache and gathered output:
//!
//! - activations: `values` per pixel (560 in an image decoder, 1,400 per frame in WAN 2.1's, 1,600
//!   in 2.2's; this project's measurements) × bytes per value (4, 2; 3 if types are mixed) × pixels
//!   held × frames at once × batch. Whole holds the picture and blended tiles hold one tile; exact
//!   bands hold three quarters of a picture and a quarter of their band (of a clip, a tenth and the
//!   band).
//! - causal cache, of clips: 1,000 values per pixel of the picture; of the tile if tiles run over
//!   the whole clip or the others wait in host memory.
//! - output: 12 bytes per pixel and frame if it is gathered before it is delivered.
//!
//! An encoder holds less than its decoder: by the figures that ComfyUI gives of both
//! (`memory_used_encode` and `memory_used_decode` in its `comfy/sd.py`) four fifths of an image
//! decoder's, six sevenths of WAN 2.1's and two fifths of WAN 2.2's. It does about half the work:
//! one block fewer at each size.
//!
//! **Time** is work (9.4 MFLOP per pixel of an image, 8.6 per pixel and frame of a clip; counted) ×
//! pixels computed / speed of the type and memory order + 0.2 ms per tile and chunk on a GPU. Small
//! tiles leave a device idle: the speed is times n / (n + 1,024 per compute unit), with n the
//! pixels computed at once.

use std::time::Duration;

use tilewright_plan::{
    Backend, Capabilities, Cost, CostModel, Device, Dtype, Layout, Outcome, Plan, Precision, Request, Space, Stage,
    Time, Trial,
};

use crate::machines::Machine;

/// Values that a family's decoder or encoder holds, and its operations, per pixel.
struct Network {
    family: &'static str,
    values: f64,
    state: f64,
    work: f64,
}

/// Decoders by the beginning of the family's name; the last is for all others.
const DECODERS: [Network; 3] = [
    Network { family: "wan-2.2", values: 1600.0, state: 1000.0, work: 9.8e6 },
    Network { family: "wan", values: 1400.0, state: 1000.0, work: 8.6e6 },
    Network { family: "", values: 560.0, state: 0.0, work: 9.4e6 },
];

/// Encoders, in the same way.
const ENCODERS: [Network; 3] = [
    Network { family: "wan-2.2", values: 650.0, state: 400.0, work: 4.9e6 },
    Network { family: "wan", values: 1200.0, state: 850.0, work: 4.3e6 },
    Network { family: "", values: 450.0, state: 0.0, work: 4.7e6 },
];

/// Seconds that each tile or chunk takes on a GPU besides its work.
const LAUNCH: f64 = 2e-4;

/// Pixels per compute unit at which a device reaches half of its speed.
const HALF_SPEED: f64 = 1024.0;

/// Bytes of an output pixel: three values in f32.
const OUTPUT: f64 = 12.0;

/// Prices for one request on one device.
pub(crate) struct Prices {
    request: Request,
    machine: &'static Machine,
    network: &'static Network,
    dtypes: Vec<Dtype>,
    offers_exact: bool,
    /// Newest first.
    trials: Vec<Trial>,
}

impl Prices {
    pub fn new(stage: Stage, request: &Request, device: &Device, capabilities: &Capabilities) -> Self {
        let networks = if stage == Stage::Encode { &ENCODERS } else { &DECODERS };
        let network = networks.iter().find(|network| request.model.family.starts_with(network.family));
        Self {
            request: request.clone(),
            machine: Machine::near(device),
            network: network.unwrap_or(&networks[2]),
            dtypes: capabilities.dtypes.clone(),
            offers_exact: capabilities.exact,
            trials: Vec::new(),
        }
    }

    /// Adds measurements: plans with the ratios of their time and memory to their price.
    pub fn with_trials(mut self, tried: &[(Plan, f64, f64)]) -> Self {
        let trial = |(plan, time, memory): &(Plan, f64, f64)| {
            let cost = self.estimate_one(plan).ok()?;
            let outcome = Outcome {
                elapsed: cost.elapsed.mul_f64(*time),
                peak_bytes: (cost.peak_bytes as f64 * memory) as u64,
                attempts: 1,
                ..Outcome::default()
            };
            Some(Trial { plan: plan.clone(), outcome })
        };
        self.trials = tried.iter().filter_map(trial).collect();
        self
    }

    /// The speed of convolutions, relative to f32 channels-first.
    fn speed(&self, precision: Precision, layout: Layout) -> f64 {
        let by_type = match precision.dtype() {
            Dtype::F32 => 1.0,
            // Halfway to 16 bits.
            Dtype::Tf32 => 1.0 + (self.machine.gain - 1.0) / 2.0,
            dtype if self.machine.fast.contains(&dtype) => self.machine.gain,
            _ => 0.5,
        };
        // Norms in f32 cancel a part of the gain.
        let mixed = if matches!(precision, Precision::Mixed(_)) { 0.93 } else { 1.0 };
        let ordered = if layout == Layout::ChannelsLast { 1.0 / self.machine.last } else { 1.0 };
        by_type * mixed * ordered
    }
}

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let request = &self.request;
        let is_clip = request.frames > 1;
        let is_divided = plan.time != Time::Whole;
        if !is_clip && is_divided {
            return Err("a picture has one frame: time can't be divided".into());
        }
        if matches!(plan.time, Time::Blended { .. }) {
            return Err("this model carries its causal state: chunks decoded alone would only lose it".into());
        }
        if matches!(plan.space, Space::Exact(_)) && !self.offers_exact {
            return Err("exact tiles can't be run here".into());
        }
        if !self.dtypes.contains(&plan.precision.dtype()) {
            return Err(format!("{} can't be run on this device", plan.precision));
        }
        let bytes = f64::from(plan.precision.dtype().bits()) / 8.0;
        let bytes = if matches!(plan.precision, Precision::Mixed(_)) { (bytes + 4.0) / 2.0 } else { bytes };
        let area = |height: u32, width: u32| f64::from(height) * f64::from(width);
        let picture = area(request.height, request.width);
        let (height, width) = plan.space.tile().map_or((request.height, request.width), |tile| {
            (tile.height.min(request.height), tile.width.min(request.width))
        });
        let piece = area(height, width);
        let tiles = match plan.space {
            Space::Blended(tile) => {
                let count = |extent: u32, side: u32| match side >= extent {
                    true => 1,
                    false => (extent - side).div_ceil(side.saturating_sub(tile.overlap).max(1)) + 1,
                };
                count(request.height, height).saturating_mul(count(request.width, width))
            }
            Space::Whole | Space::Exact(_) => 1,
        };
        let is_tiled = tiles > 1;
        let latent_frame = request.model.temporal_scale.max(1).min(request.frames.max(1));
        let at_once = match plan.time {
            Time::Carried { frames } if is_clip => frames.clamp(1, request.frames),
            _ if is_clip => latent_frame,
            _ => 1,
        };
        let pieces = tiles.saturating_mul(request.batch.max(1));
        let batch = if is_clip { 1 } else { plan.batch.clamp(1, pieces) };
        let held = match plan.space {
            Space::Whole => picture,
            Space::Blended(_) => piece,
            Space::Exact(_) if is_clip => (0.1 * picture + piece).min(picture),
            Space::Exact(_) => 0.75 * picture + 0.25 * piece,
        };
        let activations = self.network.values * bytes * held * f64::from(at_once) * f64::from(batch);
        let stateful = if is_tiled && (!is_divided || plan.offload) { piece } else { picture };
        let state = if is_clip { self.network.state * bytes * stateful } else { 0.0 };
        let gathered = match () {
            () if is_clip && is_tiled && !is_divided => f64::from(request.frames),
            () if is_clip => f64::from(at_once),
            () if is_tiled || batch < pieces => f64::from(request.batch),
            () => 0.0,
        };
        let computed = f64::from(tiles) * piece.max(if is_tiled { 0.0 } else { picture });
        let work = self.network.work * computed * f64::from(request.batch.max(1)) * f64::from(request.frames.max(1));
        let worked = held * f64::from(at_once) * f64::from(batch);
        let busy = worked / (worked + HALF_SPEED * f64::from(self.machine.units));
        let rate = self.machine.tera * 1e12 * self.speed(plan.precision, plan.layout) * busy;
        let bands = if matches!(plan.space, Space::Exact(_)) { request.height.div_ceil(height.max(1)) } else { 1 };
        let chunks = if is_clip { request.frames.div_ceil(at_once.max(1)) } else { 1 };
        let passes = f64::from(pieces.div_ceil(batch)) * f64::from(bands) * f64::from(chunks);
        let launches = if self.machine.backend == Backend::Cpu { 0.0 } else { passes * LAUNCH };
        let ragged = !is_clip && !pieces.is_multiple_of(batch);
        let last = is_clip && !(request.frames - 1).is_multiple_of(at_once.max(1));
        Ok(Cost {
            peak_bytes: (activations + state + OUTPUT * picture * gathered) as u64,
            elapsed: Duration::try_from_secs_f64(work / rate + launches).unwrap_or(Duration::MAX),
            tiles: pieces.saturating_mul(if is_divided { chunks } else { 1 }),
            shapes: 1 + u32::from(is_clip) + u32::from(ragged || last),
            rework: computed / picture,
            weights_bytes: 0,
        })
    }

    fn trials(&self, most: u32) -> Vec<Trial> {
        self.trials.iter().take(most as usize).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use tilewright_plan::{Tile, Vae};

    use super::*;
    use crate::{golden, work::Judged};

    fn of(name: &str) -> golden::GoldenRequest {
        Vae::golden().into_iter().find(|golden| golden.name.starts_with(name)).unwrap()
    }

    fn whole() -> Plan {
        Plan { release: tilewright_plan::Release::Keep, ..Plan::plain() }
    }

    fn tiles(side: u32) -> Plan {
        Plan { space: Space::Blended(Tile { height: side, width: side, overlap: side / 8 }), ..whole() }
    }

    #[test]
    fn a_picture_costs_what_was_measured() {
        let golden = of("sm_90 flux-bf16 1024×1024");
        let facts = golden.costs();
        // Measured for 1024² in f32: 2,339 MiB whole and 1,828 MiB in bands (README); within a
        // fifth.
        let near = |plan: &Plan, mebibytes: f64| {
            let found = facts.estimate_one(plan).unwrap().peak_bytes as f64 / f64::from(1 << 20);
            assert!((found / mebibytes - 1.0).abs() < 0.2, "{found} MiB");
        };
        near(&whole(), 2339.0);
        near(&Plan { space: Space::Exact(Tile { height: 64, width: 1024, overlap: 0 }), ..whole() }, 1828.0);
        let narrow = Plan { precision: Precision::Uniform(Dtype::Bf16), ..whole() };
        assert!(facts.estimate_one(&narrow).unwrap().elapsed * 2 < facts.estimate_one(&whole()).unwrap().elapsed);
    }

    #[test]
    fn smaller_tiles_hold_less_and_compute_more() {
        let golden = of("gfx1151 flux-bf16 1664×928");
        let costs: Vec<Cost> =
            [512, 256, 128, 64].iter().map(|side| golden.costs().estimate_one(&tiles(*side)).unwrap()).collect();
        assert!(costs.windows(2).all(|pair| pair[1].peak_bytes < pair[0].peak_bytes), "{costs:?}");
        assert!(costs.windows(2).all(|pair| pair[1].elapsed > pair[0].elapsed), "{costs:?}");
        assert!(costs.iter().all(|cost| cost.rework > 1.0 && cost.tiles > 1));
    }

    #[test]
    fn what_a_clip_holds_depends_on_its_chunks() {
        let golden = of("gfx1151 wan-2.1-bf16 832×480 81f");
        let peak = |space, time| golden.costs().estimate_one(&Plan { space, time, ..whole() }).unwrap().peak_bytes;
        let carried = |frames| peak(Space::Whole, Time::Carried { frames });
        assert!(carried(1) < carried(4) && carried(4) < carried(16));
        let tile = Space::Blended(Tile { height: 256, width: 256, overlap: 32 });
        assert!(peak(tile, Time::Whole) < peak(tile, Time::Carried { frames: 4 }));
        let blended = Plan { time: Time::Blended { frames: 16, overlap: 2 }, ..whole() };
        assert!(golden.costs().estimate_one(&blended).is_err());
    }

    #[test]
    fn trials_are_ratios_of_prices() {
        let golden = of("gfx1151 flux-bf16 1024×1024 plenty balanced, measured");
        let trials = golden.costs().trials(256);
        assert!(!trials.is_empty() && golden.costs().trials(1).len() == 1);
        for trial in trials {
            let cost = golden.costs().estimate_one(&trial.plan).unwrap();
            assert!(trial.outcome.peak_bytes >= cost.peak_bytes, "limits are judged by the price alone");
        }
    }
}
