//! What a policy is asked while it is measured.

use std::{sync::Arc, time::Duration};

use tilewright_plan::{
    Backend, Cost, Decision, Device, Dtype, Facts, Hint, Model, Objective, Offer, Plan, Planner, Request, Trial,
};
use tilewright_policy::Policy;

/// A request with all that a decision needs.
#[derive(Clone)]
pub struct Asked {
    /// What is asked for.
    pub request: Request,
    /// What it runs on.
    pub device: Device,
    /// What can be carried out.
    pub offer: Offer,
    /// What prices plans.
    pub facts: Arc<dyn Facts>,
}

impl Asked {
    pub(super) fn decide(&self, policy: &mut Policy) -> Decision {
        policy.decide(&self.request, &self.device, &self.offer, self.facts.clone())
    }
}

/// The requests that `policy bench` asks in turn: pictures and clips on two graphics cards and a processor, with the hints that a decode
/// gives.
pub fn requests() -> Vec<Asked> {
    let devices = [
        device(Backend::Rocm, "AMD Radeon 8060S", "gfx1151", 96, &[Dtype::F16, Dtype::Bf16]),
        device(Backend::Cuda, "NVIDIA H100", "sm_90", 80, &[Dtype::Bf16, Dtype::F16]),
        device(Backend::Cpu, "16 cores", "x86-64-v4", 64, &[]),
    ];
    let extents = [(1, 512, 512), (1, 1024, 1024), (1, 2048, 2048), (81, 480, 832)];
    let limits = [2 << 30, 16 << 30];
    let mut requests = Vec::new();
    for device in &devices {
        for (frames, height, width) in extents {
            for memory_limit in limits {
                requests.push(asked(device, frames, height, width, memory_limit));
            }
        }
    }
    requests
}

fn asked(device: &Device, frames: u32, height: u32, width: u32, memory_limit: u64) -> Asked {
    let is_clip = frames > 1;
    let offer = Offer {
        dtypes: vec![Dtype::F32, Dtype::Bf16, Dtype::F16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: if is_clip { 1 } else { 16 },
        exact: true,
        carried: is_clip,
        offload: is_clip && device.backend != Backend::Cpu,
        prefetch_most: 0,
        running: None,
    };
    let mut hints = offer.hints();
    hints.push(Hint { name: "sample-size".into(), value: "1024".into() });
    hints.push(Hint { name: "stage".into(), value: "decode".into() });
    let request = Request {
        model: Model {
            family: if is_clip { "wan-2.1" } else { "flux" }.into(),
            stored: Dtype::Bf16,
            quantized: false,
            parameter_bytes: 100 << 20,
            spatial_scale: 8,
            temporal_scale: if is_clip { 4 } else { 1 },
        },
        batch: 1,
        frames,
        height,
        width,
        memory_limit,
        objective: Objective::Balanced,
        hints,
    };
    let facts = Arc::new(Prices { frames, height, width });
    Asked { request, device: device.clone(), offer, facts }
}

fn device(backend: Backend, name: &str, arch: &str, gibibytes: u64, fast_dtypes: &[Dtype]) -> Device {
    Device {
        backend,
        name: name.into(),
        arch: arch.into(),
        compute_units: 40,
        total_bytes: gibibytes << 30,
        free_bytes: (gibibytes - 4) << 30,
        unified: false,
        fast_dtypes: fast_dtypes.to_vec(),
    }
}

/// Prices of the right size, at once: memory for the tile and the frames held, time for all of them with what overlaps counted twice.
struct Prices {
    frames: u32,
    height: u32,
    width: u32,
}

impl Facts for Prices {
    fn estimate(&self, plan: &Plan) -> Result<Cost, String> {
        let tile = plan.space.tile();
        let (height, width, overlap) =
            tile.map_or((self.height, self.width, 0), |tile| (tile.height, tile.width, tile.overlap));
        let along = |extent: u32, side: u32| match side >= extent {
            true => 1,
            false => 1 + (extent - side).div_ceil((side - overlap.min(side - 1)).max(1)),
        };
        let tiles = along(self.height, height) * along(self.width, width);
        let pixels = u64::from(height) * u64::from(width);
        let frames = match plan.time {
            tilewright_plan::Time::Whole => self.frames,
            tilewright_plan::Time::Carried { frames } | tilewright_plan::Time::Blended { frames, .. } => frames,
        };
        let bytes = u64::from(plan.precision.dtype().bits() / 8);
        let computed = pixels * u64::from(tiles) * u64::from(self.frames);
        let kept = u64::from(self.height) * u64::from(self.width) * u64::from(self.frames);
        Ok(Cost {
            peak_bytes: pixels * u64::from(plan.batch) * 600 * bytes + pixels * u64::from(frames) * 40,
            elapsed: Duration::from_nanos(computed * bytes),
            tiles,
            shapes: 1,
            rework: computed as f64 / kept as f64,
        })
    }

    fn trials(&self, _most: u32) -> Vec<Trial> {
        Vec::new()
    }
}
