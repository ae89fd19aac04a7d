//! What ComfyUI does: its formula for a decode's memory, whole while that fits, and tiles when memory runs out.
//!
//! Sources: `comfy/sd.py` of ComfyUI (`VAE.__init__`'s `memory_used_decode`, `decode`, `decode_tiled_`, `decode_tiled_3d`) and
//! `nodes.py` (`VAEDecodeTiled`). With latent height and width h, w and e bytes per element: KL 2178 · h · w · 64 · e; WAN 2.1
//! (2200 up to 4 latent frames, else 7000) · h · w · 64 · e; WAN 2.2 8000 · h · w · 256 · e; batch = max(1, free / used). Out of memory,
//! it decodes tiles of 64 latent pixels with an overlap of 16, for video 256 pixels with a quarter. The factor 2.73 that ComfyUI once
//! put on AMD is now thought obsolete and is left out. Its three averaged passes over differently shaped tiles have no counterpart here.

use tilewright_sdk::{
    Attempt, Backend, Description, Dtype, Failure, Plan, Policy, Precision, Request, Settings, Space, Tile,
};

/// Bytes per output pixel and byte of an element, from `memory_used_decode`.
const KL: u64 = 2178;
const WAN_FEW_FRAMES: u64 = 2200;
const WAN: u64 = 7000;
const WAN_2_2: u64 = 8000;

/// Up to this many latent frames WAN's lower figure holds.
const FEW_FRAMES: u32 = 4;

/// What ComfyUI falls back to: 64 latent pixels and an overlap of 16; for video 256 pixels and a quarter.
const FALLBACK: Tile = Tile::square(512, 128);
const FALLBACK_VIDEO: Tile = Tile::square(256, 64);

/// ComfyUI's rules, with `VAEDecodeTiled`'s inputs as settings.
pub struct ComfyUi {
    tile: Tile,
    always: bool,
}

impl Policy for ComfyUi {
    fn describe() -> Description {
        Description::new(
            "comfyui",
            env!("CARGO_PKG_VERSION"),
            "Decodes as ComfyUI does: whole, or tiled when memory is short.",
        )
        .setting("tile", "The side of a tile in pixels, as in VAEDecodeTiled.", 512)
        .setting("overlap", "Pixels that tiles share, as in VAEDecodeTiled.", 64)
        .setting("tiled", "Tile even when memory is enough, as VAEDecodeTiled does.", false)
    }

    fn configure(settings: &Settings) -> Result<Self, String> {
        let side = settings.count("tile", 64, 4096)?;
        let overlap = settings.count("overlap", 0, side / 2)?;
        Ok(Self { tile: Tile::square(side, overlap), always: settings.flag("tiled")? })
    }

    fn decide(&mut self, request: &Request) -> Result<Plan, String> {
        let plan = Plan::whole(precision(request));
        let used = memory_used(request, plan.precision.dtype()).max(1);
        let free = request.device.free_bytes.min(request.memory_limit);
        if self.always {
            return Ok(Plan { space: Space::Blended(self.tile), ..plan }.because("tiled, as set"));
        }
        if used > free {
            return Ok(Plan { space: Space::Blended(self.tile), ..plan }
                .because("its formula says that whole needs more than is free"));
        }
        let batch = u32::try_from(free / used).unwrap_or(u32::MAX).clamp(1, request.batch.max(1));
        Ok(Plan { batch, ..plan }.because("whole, by its memory formula"))
    }

    fn recover(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let Some(last) = attempts.last() else {
            return self.decide(request);
        };
        match last.failure {
            // ComfyUI never looks; falling back to f32 is what its --fp32-vae is for.
            Failure::NonFinite(_) if last.plan.precision.dtype() == Dtype::F32 => Err("not finite in f32".into()),
            Failure::NonFinite(_) => {
                Ok(Plan { precision: Precision::Uniform(Dtype::F32), ..last.plan.clone() }
                    .because("as with --fp32-vae"))
            }
            Failure::OutOfMemory(_) | Failure::OverLimit(_) => {
                let fallback = if request.frames > 1 { FALLBACK_VIDEO } else { FALLBACK };
                if last.plan.tile().is_some_and(|tile| tile.height.min(tile.width) <= fallback.height) {
                    return Err("ComfyUI has no smaller tiles to fall back to".into());
                }
                let plan = Plan { space: Space::Blended(fallback), batch: 1, ..last.plan.clone() };
                Ok(plan.because("out of memory, retrying with tiled decoding"))
            }
        }
    }
}

tilewright_sdk::export!(ComfyUi);

/// `vae_dtype` without flags: bf16 where the device is good at it, never f16 for these models, f32 on a CPU.
fn precision(request: &Request) -> Precision {
    let narrow = request.device.backend != Backend::Cpu && request.is_fast(Dtype::Bf16);
    Precision::Uniform(if narrow { Dtype::Bf16 } else { Dtype::F32 })
}

/// What ComfyUI expects one sample to take.
fn memory_used(request: &Request, dtype: Dtype) -> u64 {
    // Latent extents times the square of the scale are output extents.
    let pixels = u64::from(request.height) * u64::from(request.width);
    let latent_frames = (request.frames - request.frames.min(1)).div_ceil(request.model.temporal_scale.max(1)) + 1;
    let per_pixel = match request.model.family.as_str() {
        "wan-2.1" if latent_frames <= FEW_FRAMES => WAN_FEW_FRAMES,
        "wan-2.1" => WAN,
        "wan-2.2" => WAN_2_2,
        _ => KL,
    };
    pixels.saturating_mul(per_pixel * dtype.bytes())
}

#[cfg(test)]
mod tests {
    use tilewright_sdk::{Device, Hint, Model, Objective};

    use super::*;

    fn request(side: u32, free_bytes: u64) -> Request {
        Request {
            model: Model {
                family: "sdxl".into(),
                stored: Dtype::F16,
                quantized: false,
                parameter_bytes: 1 << 27,
                spatial_scale: 8,
                temporal_scale: 1,
            },
            device: Device {
                backend: Backend::Cuda,
                name: String::new(),
                arch: String::new(),
                compute_units: 1,
                total_bytes: 1 << 40,
                free_bytes,
                unified: false,
                fast_dtypes: vec![Dtype::F16, Dtype::Bf16],
            },
            batch: 4,
            frames: 1,
            height: side,
            width: side,
            memory_limit: 1 << 40,
            objective: Objective::Fastest,
            hints: vec![Hint { name: "offer.dtypes".into(), value: "f32,bf16,f16".into() }],
        }
    }

    #[test]
    fn its_formula_decides() {
        let mut policy = ComfyUi::configure(&ComfyUi::describe().defaults()).unwrap();
        // 2178 · 128 · 128 · 64 · 2 bytes for 1024².
        let used = 2178 * 128 * 128 * 64 * 2;
        assert_eq!(memory_used(&request(1024, 0), Dtype::Bf16), used);
        let plan = policy.decide(&request(1024, 3 * used)).unwrap();
        assert_eq!((plan.space, plan.batch, plan.precision), (Space::Whole, 3, Precision::Uniform(Dtype::Bf16)));
        let plan = policy.decide(&request(1024, used - 1)).unwrap();
        assert_eq!(plan.space, Space::Blended(Tile::square(512, 64)));
    }

    #[test]
    fn memory_ends_in_tiles_once() {
        let mut policy = ComfyUi::configure(&ComfyUi::describe().defaults()).unwrap();
        let whole = Attempt { plan: Plan::whole(Precision::Uniform(Dtype::Bf16)), failure: Failure::OutOfMemory(1) };
        let plan = policy.recover(&request(1024, 0), &[whole]).unwrap();
        assert_eq!(plan.space, Space::Blended(FALLBACK));
        let tiled = Attempt { plan, failure: Failure::OutOfMemory(1) };
        assert!(policy.recover(&request(1024, 0), &[tiled]).is_err());
    }
}
