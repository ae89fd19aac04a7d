//! ComfyUI's rules: its formulas for the memory of a decode and an encode, whole while that fits,
//! and tiles when memory runs out. Tiles are blended: if the user does not allow that, exact bands
//! of the tile's height come in their place as long as they fit.
//!
//! Sources: `comfy/sd.py` of ComfyUI (`VAE.__init__`'s `memory_used_decode` and
//! `memory_used_encode`, `decode`, `encode`, `decode_tiled_`, `encode_tiled_`, `decode_tiled_3d`,
//! `encode_tiled_3d`), `nodes.py` (`VAEDecodeTiled`, `VAEEncodeTiled`) and `comfy/ldm/wan/vae.py`
//! (`WanVAE.decode`, `WanVAE.encode`).
//!
//! Bytes of one sample, with e bytes per element, latent height and width h, w of a decode, and
//! height and width H, W in pixels of an encode:
//!
//! | network | decode | encode |
//! |---|---|---|
//! | KL | 2178 · h · w · 64 · e | 1767 · H · W · e |
//! | WAN 2.1, up to 4 (latent) frames | 2200 · h · w · 64 · e | 1500 · H · W · e |
//! | WAN 2.1, more frames | 7000 · h · w · 64 · e | 6000 · H · W · e |
//! | WAN 2.2 | 8000 · h · w · 256 · e | 3300 · H · W · e |
//!
//! batch = max(1, free / used). Out of memory, a decode goes over tiles of 64 latent pixels with an
//! overlap of 16, and an encode over tiles of 512 pixels with an overlap of 64; video over tiles of
//! 256 pixels with a quarter, each over up to 999 latent frames of a decode or 9999 frames of an
//! encode, with an overlap of one. WAN runs in bf16, f16 or f32 and carries its causal cache from
//! one latent frame to the next, which its formulas were fitted to; the tiled nodes cut it into
//! chunks of 64 frames with an overlap of 8, which the host carries too. The factor 2.73 that
//! ComfyUI once put on AMD is now thought obsolete and is left out. Its three averaged passes over
//! differently shaped tiles have no counterpart here.
//!
//! **Samples** go by `comfy/model_management.py` (`unet_dtype`, `unet_manual_cast`,
//! `load_models_gpu`, `minimum_inference_memory`), `comfy/model_base.py` (`memory_required`) and
//! `comfy/samplers.py` (`calc_cond_batch`):
//!
//! - **Type**: f32 on a CPU; else the first that the device is fast in: bf16, f16 for Flux; f16,
//!   bf16 for WAN; f16 first if the weights are stored so.
//! - **Weights**: as stored, cast layer by layer.
//! - **Bytes of a step**: area of the latents · bytes of an element · 0.01 · factor, in MiB,
//!   with a factor of 3.1 for Flux and width / 2222 for WAN.
//! - **Passes**: together if 1.5 times the bytes of both fit into what is free.
//! - **Residency**: on the device if the weights fit beside a step and 1.2 GiB; else streamed, a
//!   block ahead on a GPU with streams.
//!
//! ComfyUI keeps as many layers on the device as fit and streams the others; plans here stream all
//! blocks or none. A sample that runs out of memory ends there.

use tilewright_sdk::{
    Attempt, Description, Direction, Dtype, Failure, Overlapped, Plan, Policy, Precision, Request, Settings, Space,
    Stage, Tile, Time, denoise, host,
};

mod sample;

/// Bytes per pixel and byte of an element, from `memory_used_decode` and `memory_used_encode`.
struct Formula {
    kl: u64,
    wan_few_frames: u64,
    wan: u64,
    wan_2_2: u64,
}

const DECODE: Formula = Formula { kl: 2178, wan_few_frames: 2200, wan: 7000, wan_2_2: 8000 };
const ENCODE: Formula = Formula { kl: 1767, wan_few_frames: 1500, wan: 6000, wan_2_2: 3300 };

/// The most latent frames of a decode, or frames of an encode, that WAN 2.1's lower figure holds
/// for.
const FEW_FRAMES: u32 = 4;

/// The tiles after memory ran out: of a decode 64 latent pixels with an overlap of 16, of an encode
/// 512 pixels with an overlap of 64, of video 256 pixels with a quarter.
const FALLBACK: Tile = Tile::square(512, 128);
const FALLBACK_ENCODE: Tile = Tile::square(512, 64);
const FALLBACK_VIDEO: Tile = Tile::square(256, 64);

/// Latent frames of `decode_tiled_3d`'s chunk (`tile_t`): longer than almost every clip.
const FALLBACK_LATENT_FRAMES: u32 = 999;

/// Frames of `encode_tiled_3d`'s chunk (`tile_t`), and of its overlap.
const FALLBACK_FRAMES: Overlapped = Overlapped { frames: 9999, overlap: 1 };

/// ComfyUI's rules, with the inputs of its tiled nodes as settings.
pub struct ComfyUi {
    tile: Tile,
    chunk: Overlapped,
    always: bool,
}

impl Policy for ComfyUi {
    fn describe() -> Description {
        Description::new(
            "comfyui",
            env!("CARGO_PKG_VERSION"),
            "Decodes, encodes and samples as ComfyUI does: whole, or tiled or streamed when memory is short.",
        )
        .stages(&[Stage::Decode, Stage::Encode, Stage::Denoise])
        .setting("tile", "The side of a tile in pixels, as in VAEDecodeTiled.", 512)
        .setting("overlap", "Pixels that tiles share, as in VAEDecodeTiled.", 64)
        .setting("temporal-size", "Frames of a chunk of video, as in VAEDecodeTiled.", 64)
        .setting("temporal-overlap", "Frames that chunks share, as in VAEDecodeTiled.", 8)
        .setting("tiled", "Tile even when memory is enough, as VAEDecodeTiled does.", false)
    }

    fn configure(settings: &Settings) -> Result<Self, String> {
        let side = settings.count("tile", 64, 4096)?;
        let overlap = settings.count("overlap", 0, side / 2)?;
        let frames = settings.count("temporal-size", 8, 4096)?;
        let shared = settings.count("temporal-overlap", 4, 4096)?;
        // As in the node: no more than half of the chunk.
        let chunk = Overlapped { frames, overlap: shared.min(frames / 2) };
        Ok(Self { tile: Tile::square(side, overlap), chunk, always: settings.flag("tiled")? })
    }

    fn decide(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let plan = match attempts.last() {
            Some(last) => recover(request, last)?,
            None => self.first(request),
        };
        Ok(host::allowed(plan, request, attempts))
    }

    fn decide_denoise(
        &mut self,
        request: &denoise::Request,
        attempts: &[denoise::Attempt],
    ) -> Result<denoise::Plan, String> {
        sample::decide(request, attempts)
    }
}

tilewright_sdk::export!(ComfyUi);

impl ComfyUi {
    /// The plan before any attempt.
    fn first(&self, request: &Request) -> Plan {
        let plan = Plan::whole(precision(request));
        let used = memory_used(request, plan.precision.dtype()).max(1);
        // A limit that counts the weights leaves less for the rest.
        let weights = || host::estimate_one(&plan).map_or(0, |cost| cost.memory.weights_bytes);
        let weights = if used <= request.limit_bytes { weights() } else { 0 };
        let free = request.device.free_bytes.min(request.limit_bytes.saturating_sub(weights));
        let is_clip = request.frames > 1;
        if self.always {
            let time = if is_clip { Time::Blended(self.chunk) } else { Time::Whole };
            return Plan { space: Space::Blended(self.tile), time, ..plan }.because("tiled, as set");
        }
        if used > free {
            let reason = "its formula says that whole needs more than is free";
            return match is_clip {
                true => video_tiles(request, plan),
                false => Plan { space: Space::Blended(self.tile), ..plan },
            }
            .because(reason);
        }
        if is_clip {
            let latent_frame = Time::Carried(request.temporal_scale.max(1));
            let time = if request.offers_carried() { latent_frame } else { Time::Whole };
            return Plan { time, ..plan }.because("whole by its memory formula, a latent frame at a time");
        }
        let batch = u32::try_from(free / used).unwrap_or(u32::MAX).clamp(1, request.batch.max(1));
        Plan { batch, ..plan }.because("whole, by its memory formula")
    }
}

/// The plan after an attempt failed.
fn recover(request: &Request, last: &Attempt) -> Result<Plan, String> {
    match last.failure {
        // ComfyUI never checks; falling back to f32 corresponds to its --fp32-vae.
        Failure::NonFinite(_) if last.plan.precision.dtype() == Dtype::F32 => Err("not finite in f32".into()),
        Failure::NonFinite(_) => {
            Ok(Plan { precision: Precision::Uniform(Dtype::F32), ..last.plan.clone() }.because("as with --fp32-vae"))
        }
        Failure::OutOfMemory(_) | Failure::OverLimit(_) => {
            let is_clip = request.frames > 1;
            let fallback = match (is_clip, request.direction) {
                (true, _) => FALLBACK_VIDEO,
                (false, Direction::Decode) => FALLBACK,
                (false, Direction::Encode) => FALLBACK_ENCODE,
            };
            // A picture that one tile covers would run as it did. A clip under way in one piece
            // goes on in bands of the tile's height, so that its width gives no smaller parts.
            let untiled = if request.under_way.is_some() { request.height } else { request.longest() };
            let side = last.plan.tile().map_or(untiled, |tile| tile.height.min(tile.width));
            if side <= fallback.height {
                return Err("ComfyUI has no smaller tiles to fall back to".into());
            }
            let plan = match is_clip {
                true => video_tiles(request, last.plan.clone()),
                false => Plan { space: Space::Blended(fallback), batch: 1, ..last.plan.clone() },
            };
            Ok(plan.because(match request.direction {
                Direction::Decode => "out of memory, retrying with tiled decoding",
                Direction::Encode => "out of memory, retrying with tiled encoding",
            }))
        }
    }
}

/// The first of `working_dtypes` that the device is good at: bf16, f16 for WAN only, else f32, as
/// always on a CPU.
fn precision(request: &Request) -> Precision {
    let narrow: &[Dtype] = match request.model.family.starts_with("wan") {
        true => &[Dtype::Bf16, Dtype::F16],
        false => &[Dtype::Bf16],
    };
    let is_good = |dtype: &&Dtype| request.has_gpu() && request.is_fast(**dtype);
    Precision::Uniform(narrow.iter().find(is_good).copied().unwrap_or(Dtype::F32))
}

/// The tiles of video when memory runs out, one after the other over the clip.
fn video_tiles(request: &Request, plan: Plan) -> Plan {
    let latent_frame = request.temporal_scale.max(1);
    let chunk = match request.direction {
        Direction::Decode => Overlapped { frames: FALLBACK_LATENT_FRAMES * latent_frame, overlap: latent_frame },
        Direction::Encode => FALLBACK_FRAMES,
    };
    let is_long = match request.direction {
        Direction::Decode => latent_frames(request) > FALLBACK_LATENT_FRAMES,
        Direction::Encode => request.frames > FALLBACK_FRAMES.frames,
    };
    // A clip under way keeps its division of time.
    let time = match &request.under_way {
        Some(_) => plan.time,
        None if is_long => Time::Blended(chunk),
        None => Time::Whole,
    };
    Plan { space: Space::Blended(FALLBACK_VIDEO), time, batch: 1, ..plan }
}

/// The first latent frame stands for one frame, each later one for as many as the temporal scale.
fn latent_frames(request: &Request) -> u32 {
    (request.frames - request.frames.min(1)).div_ceil(request.temporal_scale.max(1)) + 1
}

/// Bytes that ComfyUI expects one sample to take.
fn memory_used(request: &Request, dtype: Dtype) -> u64 {
    // A decode's latent extents times the square of the scale are its output's extents.
    let pixels = u64::from(request.height) * u64::from(request.width);
    let (formula, frames) = match request.direction {
        Direction::Decode => (DECODE, latent_frames(request)),
        Direction::Encode => (ENCODE, request.frames),
    };
    let per_pixel = match request.model.family.as_str() {
        "wan-2.1" if frames <= FEW_FRAMES => formula.wan_few_frames,
        "wan-2.1" => formula.wan,
        "wan-2.2" => formula.wan_2_2,
        _ => formula.kl,
    };
    pixels.saturating_mul(per_pixel * dtype.bytes())
}

#[cfg(test)]
mod tests {
    use tilewright_sdk::{
        Backend, Capabilities, Cost, Device, HostMemory, Memory, Model, Objective, StoredType, UnderWay, Weights,
        host::Stub,
    };

    use super::*;

    fn request(side: u32, free_bytes: u64) -> Request {
        Request {
            direction: Direction::Decode,
            model: Model {
                family: "sdxl".into(),
                weights: Weights {
                    stored_bytes: 1 << 27,
                    stored_types: vec![StoredType { name: "f16".into(), bytes: 1 << 27 }],
                },
                sample_size: None,
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
            host: HostMemory { total_bytes: 0, free_bytes: 0, transfer_rate: 0 },
            limit_bytes: 1 << 40,
            objective: Objective::Fastest,
            allows_blended: true,
            batch: 4,
            frames: 1,
            height: side,
            width: side,
            spatial_scale: 8,
            temporal_scale: 1,
            capabilities: Capabilities {
                dtypes: vec![Dtype::F32, Dtype::Bf16, Dtype::F16],
                tile_unit: 8,
                tile_least: 64,
                batch_most: 8,
                prefetch_most: 0,
                exact: true,
                carried: true,
                offload: false,
                options: vec![],
            },
            under_way: None,
            hints: vec![],
        }
    }

    #[test]
    fn its_formula_decides() {
        let mut policy = ComfyUi::configure(&ComfyUi::describe().defaults()).unwrap();
        // 2178 · 128 · 128 · 64 · 2 bytes for 1024².
        let used = 2178 * 128 * 128 * 64 * 2;
        assert_eq!(memory_used(&request(1024, 0), Dtype::Bf16), used);
        let plan = policy.decide(&request(1024, 3 * used), &[]).unwrap();
        assert_eq!((plan.space, plan.batch, plan.precision), (Space::Whole, 3, Precision::Uniform(Dtype::Bf16)));
        let plan = policy.decide(&request(1024, used - 1), &[]).unwrap();
        assert_eq!(plan.space, Space::Blended(Tile::square(512, 64)));
    }

    fn clip(frames: u32, free_bytes: u64) -> Request {
        let mut request = Request { batch: 1, frames, height: 480, width: 832, ..request(0, free_bytes) };
        request.model.family = "wan-2.1".into();
        request.temporal_scale = 4;
        request
    }

    #[test]
    fn its_formulas_for_video() {
        // Per latent pixel of 8²: 2200 up to four latent frames, 7000 from five on.
        let latent = 60 * 104 * 64 * 2;
        assert_eq!(memory_used(&clip(1, 0), Dtype::Bf16), 2200 * latent);
        assert_eq!(memory_used(&clip(13, 0), Dtype::Bf16), 2200 * latent);
        assert_eq!(memory_used(&clip(17, 0), Dtype::Bf16), 7000 * latent);
        assert_eq!(memory_used(&clip(81, 0), Dtype::F32), 2 * 7000 * latent);
        // Per latent pixel of 16².
        let mut larger = Request { height: 704, width: 1280, ..clip(81, 0) };
        larger.model.family = "wan-2.2".into();
        assert_eq!(memory_used(&larger, Dtype::Bf16), 8000 * 44 * 80 * 256 * 2);
    }

    #[test]
    fn video_is_whole_where_it_fits_and_tiled_where_not() {
        let mut policy = ComfyUi::configure(&ComfyUi::describe().defaults()).unwrap();
        let used = memory_used(&clip(81, 0), Dtype::Bf16);
        let plan = policy.decide(&clip(81, 3 * used), &[]).unwrap();
        assert_eq!((plan.space, plan.time, plan.batch), (Space::Whole, Time::Carried(4), 1));
        let tiled = policy.decide(&clip(81, used - 1), &[]).unwrap();
        assert_eq!((tiled.space, tiled.time), (Space::Blended(Tile::square(256, 64)), Time::Whole));
        let long = policy.decide(&clip(4001, 0), &[]).unwrap();
        assert_eq!(long.time, Time::Blended(Overlapped { frames: 3996, overlap: 4 }));
        // Out of memory: from the start, or in the middle.
        let failed = |plan: &Plan| [Attempt { plan: plan.clone(), failure: Failure::OutOfMemory(1) }];
        assert_eq!(policy.decide(&clip(81, 0), &failed(&plan)).unwrap().space, tiled.space);
        assert_eq!(policy.decide(&clip(81, 0), &failed(&plan)).unwrap().time, Time::Whole);
        let mut under_way = clip(81, 0);
        under_way.under_way = Some(UnderWay { frames_done: 13, plan: plan.clone() });
        assert_eq!(policy.decide(&under_way, &failed(&plan)).unwrap().time, plan.time);
        let low = Request { height: 80, width: 1296, ..under_way.clone() };
        assert!(policy.decide(&low, &failed(&plan)).is_err(), "bands of a tile's height cover it");
        assert!(policy.decide(&clip(81, 0), &failed(&tiled)).is_err());
        // The node, with its defaults and with an overlap that is more than half of the chunk.
        let node = |settings: tilewright_sdk::Settings| {
            ComfyUi::configure(&settings.with("tiled", true)).unwrap().decide(&clip(81, 0), &[]).unwrap().time
        };
        let defaults = ComfyUi::describe().defaults();
        assert_eq!(node(defaults.clone()), Time::Blended(Overlapped { frames: 64, overlap: 8 }));
        let short = defaults.with("temporal-size", 8).with("temporal-overlap", 8);
        assert_eq!(node(short), Time::Blended(Overlapped { frames: 8, overlap: 4 }));
    }

    #[test]
    fn types_in_their_order() {
        let with = |fast: &[Dtype], backend| {
            let mut request = clip(81, 0);
            (request.device.fast_dtypes, request.device.backend) = (fast.to_vec(), backend);
            let picture =
                Request { model: Model { family: "sdxl".into(), ..request.model.clone() }, ..request.clone() };
            [precision(&request).dtype(), precision(&picture).dtype()]
        };
        assert_eq!(with(&[Dtype::F16, Dtype::Bf16], Backend::Cuda), [Dtype::Bf16; 2]);
        assert_eq!(with(&[Dtype::F16], Backend::Cuda), [Dtype::F16, Dtype::F32]);
        assert_eq!(with(&[], Backend::Cuda), [Dtype::F32; 2]);
        assert_eq!(with(&[Dtype::Bf16], Backend::Cpu), [Dtype::F32; 2]);
    }

    #[test]
    fn memory_ends_in_tiles_once() {
        let mut policy = ComfyUi::configure(&ComfyUi::describe().defaults()).unwrap();
        let whole = Attempt { plan: Plan::whole(Precision::Uniform(Dtype::Bf16)), failure: Failure::OutOfMemory(1) };
        let plan = policy.decide(&request(1024, 0), &[whole]).unwrap();
        assert_eq!(plan.space, Space::Blended(FALLBACK));
        let tiled = Attempt { plan, failure: Failure::OutOfMemory(1) };
        assert!(policy.decide(&request(1024, 0), &[tiled]).is_err());
        let whole = Attempt { plan: Plan::whole(Precision::Uniform(Dtype::Bf16)), failure: Failure::OutOfMemory(1) };
        assert!(policy.decide(&request(512, 0), &[whole]).is_err(), "one tile covers it");
    }

    #[test]
    fn encodes_have_formulas_and_tiles_of_their_own() {
        let mut policy = ComfyUi::configure(&ComfyUi::describe().defaults()).unwrap();
        let encode = |request: Request| Request { direction: Direction::Encode, ..request };
        let picture = |free| encode(request(1024, free));
        let used = 1767 * 1024 * 1024 * 2;
        assert_eq!(memory_used(&picture(0), Dtype::Bf16), used);
        // Frames are the input's, not latent ones.
        let pixels = 480 * 832 * 2;
        assert_eq!(memory_used(&encode(clip(4, 0)), Dtype::Bf16), 1500 * pixels);
        assert_eq!(memory_used(&encode(clip(5, 0)), Dtype::Bf16), 6000 * pixels);
        let mut larger = encode(clip(81, 0));
        larger.model.family = "wan-2.2".into();
        assert_eq!(memory_used(&larger, Dtype::Bf16), 3300 * pixels);
        let whole = policy.decide(&picture(2 * used), &[]).unwrap();
        assert_eq!((whole.space, whole.batch), (Space::Whole, 2));
        let failed = [Attempt { plan: whole, failure: Failure::OutOfMemory(1) }];
        assert_eq!(policy.decide(&picture(0), &failed).unwrap().space, Space::Blended(Tile::square(512, 64)));
        let long = policy.decide(&encode(clip(12_001, 0)), &[]).unwrap();
        assert_eq!((long.space, long.time), (Space::Blended(FALLBACK_VIDEO), Time::Blended(FALLBACK_FRAMES)));
        // A limit that counts the weights leaves less for the rest.
        let mut tight = picture(1 << 40);
        tight.limit_bytes = used + (1 << 27) - 1;
        let counted = Memory { peak_bytes: 1, weights_bytes: 1 << 27 };
        let cost = Cost { memory: counted, elapsed_ns: 1, tiles: 1, shapes: 1, rework: 1.0 };
        Stub { estimate: Box::new(move |_| Ok(cost)), trials: Vec::new() }.install();
        assert_eq!(policy.decide(&tight, &[]).unwrap().kind(), tilewright_sdk::Kind::Blended);
        tight.limit_bytes += 1;
        assert_eq!(policy.decide(&tight, &[]).unwrap().kind(), tilewright_sdk::Kind::Whole);
    }
}
