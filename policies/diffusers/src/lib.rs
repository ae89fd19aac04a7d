//! diffusers' rules with tiling on: tiles at the model's sample size with a quarter overlap,
//! linearly blended. If the user does not allow that, exact bands of the tile's height come in
//! their place as long as they fit.
//!
//! Sources: diffusers' `AutoencoderKL` (`tile_sample_min_size = config.sample_size`,
//! `tile_overlap_factor = 0.25`; `_encode` and `_decode` tile pictures that are larger than one
//! tile) and `AutoencoderKLWan` (`_encode` and `_decode` tile pictures larger than 256 with a
//! stride of 192; a decode runs one latent frame per call and an encode one frame, then four per
//! call, with the causal cache carried). Both directions go by the same sizes in pixels.
//!
//! **Samples** run as after `from_pretrained(torch_dtype=…)` and `to(device)`: the weights in the
//! type that they are stored in on a GPU (f32 on a CPU), the quantized ones packed
//! (`GGUFQuantizationConfig`, layerwise casting), all of them on the device, and the two
//! conditionings of guidance in turn, as `FluxPipeline` and `WanPipeline` call the transformer.
//! With `group-offload` the blocks are streamed, one ahead, as `enable_group_offload` does with
//! `offload_type="block_level"`, `num_blocks_per_group=1` and `use_stream=True`.

use tilewright_sdk::{
    Attempt, Description, Dtype, Plan, Policy, Precision, Request, Settings, Space, Stage, Tile, Time, WeightForm,
    denoise::{self, Residency},
    host,
};

/// `sample_size` of the published configurations.
const SAMPLE_SIZES: [(&str, u32); 4] = [("sd", 512), ("sdxl", 1024), ("sd3", 1024), ("flux", 1024)];

/// `tile_sample_min_height` of `AutoencoderKLWan`; its stride is 192.
const WAN: Tile = Tile::square(256, 64);

/// diffusers' rules.
pub struct Diffusers {
    sample_size: Option<u32>,
    tiled: bool,
    precision: Option<Precision>,
    group_offload: bool,
}

impl Policy for Diffusers {
    fn describe() -> Description {
        Description::new(
            "diffusers",
            env!("CARGO_PKG_VERSION"),
            "Decodes and encodes as diffusers does after enable_tiling(), and samples as its pipelines do.",
        )
        .stages(&[Stage::Decode, Stage::Encode, Stage::Denoise])
        .setting("sample-size", "The tile's side in pixels; 0 for the model's own sample size.", 0)
        .setting("tiling", "Off: always whole, as diffusers does by default.", true)
        .setting(
            "precision",
            "auto for the type that the weights are stored in (f32 on a CPU), or f32, bf16, f16.",
            "auto",
        )
        .setting(
            "group-offload",
            "Samples: blocks of weights are streamed, as enable_group_offload() does.",
            false,
        )
    }

    fn configure(settings: &Settings) -> Result<Self, String> {
        let sample_size = settings.count("sample-size", 0, 1 << 14)?;
        let types = [("f32", Dtype::F32), ("bf16", Dtype::Bf16), ("f16", Dtype::F16)];
        let precision = settings.word_or_auto("precision", &types)?.map(Precision::Uniform);
        let sample_size = Some(sample_size).filter(|size| *size > 0);
        let (tiled, group_offload) = (settings.flag("tiling")?, settings.flag("group-offload")?);
        Ok(Self { sample_size, tiled, precision, group_offload })
    }

    fn decide(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        match attempts.last() {
            None => {}
            // `force_upcast`, which SDXL's configuration sets, does the same beforehand.
            Some(last) if last.overflowed() && !last.is_hopeless() => {
                let precision = Precision::Uniform(Dtype::F32);
                return Ok(Plan { precision, ..last.plan.clone() }.because("upcast, as force_upcast does"));
            }
            Some(_) => return Err("diffusers does not recover".into()),
        }
        let plan = Plan::whole(self.precision.unwrap_or_else(|| loading_precision(request)));
        if request.model.family.starts_with("wan") {
            let time = if request.frames > 1 { Time::Carried(request.temporal_scale.max(1)) } else { Time::Whole };
            let tiled = self.tiled && request.longest() > WAN.height;
            let space = if tiled { Space::Blended(WAN) } else { Space::Whole };
            let reason = if tiled { "as AutoencoderKLWan: tiles of 256" } else { "as AutoencoderKLWan: whole" };
            return Ok(host::allowed(Plan { space, time, ..plan }.because(reason), request, attempts));
        }
        let size = self.sample_size(request);
        if !self.tiled || request.longest() <= size {
            return Ok(plan.because("no larger than the sample size"));
        }
        let tiles = Plan { space: Space::Blended(Tile::square(size, size / 4)), ..plan };
        Ok(host::allowed(tiles.because("tiles of the model's sample size"), request, attempts))
    }

    fn decide_denoise(
        &mut self,
        request: &denoise::Request,
        attempts: &[denoise::Attempt],
    ) -> Result<denoise::Plan, String> {
        if !attempts.is_empty() {
            return Err("diffusers does not recover".into());
        }
        let stored = match request.stored() {
            "f16" => Dtype::F16,
            "f32" => Dtype::F32,
            // Quantized weights are expanded to what pipelines compute in.
            _ => Dtype::Bf16,
        };
        let is_wide = !request.has_gpu() || !request.offers(stored);
        let own = Precision::Uniform(if is_wide { Dtype::F32 } else { stored });
        let precision = self.precision.unwrap_or(own);
        let is_as_stored = request.stored() == precision.word();
        let streams = self.group_offload && request.has_gpu();
        let packed = request.is_quantized() || is_as_stored || streams;
        let plan = denoise::Plan {
            weights: if packed { WeightForm::Packed } else { WeightForm::Expanded },
            residency: if streams { Residency::Streamed(1) } else { Residency::Resident },
            ..denoise::Plan::plain(precision).reusing(request)
        };
        Ok(plan.because(if streams { "as with group offloading" } else { "as a pipeline on its device" }))
    }
}

tilewright_sdk::export!(Diffusers);

impl Diffusers {
    /// The setting; else the model's configuration; else the family's published one.
    fn sample_size(&self, request: &Request) -> u32 {
        let published =
            || SAMPLE_SIZES.iter().find(|(family, _)| *family == request.model.family).map_or(512, |(_, size)| *size);
        let configured = request.model.sample_size.filter(|size| *size > 0);
        self.sample_size.or(configured).unwrap_or_else(published)
    }
}

/// The type that a pipeline would have loaded the weights in.
fn loading_precision(request: &Request) -> Precision {
    let stored = match request.stored() {
        "bf16" => Dtype::Bf16,
        "f16" => Dtype::F16,
        _ => Dtype::F32,
    };
    let upcast = request.model.family == "sdxl" && stored == Dtype::F16;
    let narrow = request.has_gpu() && !upcast && request.offers(stored);
    Precision::Uniform(if narrow { stored } else { Dtype::F32 })
}

#[cfg(test)]
mod tests {
    use tilewright_sdk::{Backend, Capabilities, Device, Direction, HostMemory, Model, Objective, StoredType, Weights};

    use super::*;

    fn request(family: &str, side: u32, frames: u32) -> Request {
        Request {
            direction: Direction::Decode,
            model: Model {
                family: family.into(),
                weights: Weights {
                    stored_bytes: 1 << 27,
                    stored_types: vec![StoredType { name: "bf16".into(), bytes: 1 << 27 }],
                },
                sample_size: None,
            },
            device: Device {
                backend: Backend::Cuda,
                name: String::new(),
                arch: String::new(),
                compute_units: 1,
                total_bytes: 1 << 40,
                free_bytes: 1 << 40,
                unified: false,
                fast_dtypes: vec![],
            },
            host: HostMemory { total_bytes: 0, free_bytes: 0, transfer_rate: 0 },
            limit_bytes: 1 << 40,
            objective: Objective::Fastest,
            allows_blended: true,
            batch: 1,
            frames,
            height: side,
            width: side,
            spatial_scale: 8,
            temporal_scale: 4,
            capabilities: Capabilities {
                dtypes: vec![Dtype::F32, Dtype::Bf16],
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

    fn decide(request: &Request, settings: Settings) -> (Space, Time, Precision) {
        let plan = Diffusers::configure(&settings).unwrap().decide(request, &[]).unwrap();
        (plan.space, plan.time, plan.precision)
    }

    #[test]
    fn wan_goes_by_latent_frames_and_tiles_of_its_own() {
        let defaults = || Diffusers::describe().defaults();
        let bf16 = Precision::Uniform(Dtype::Bf16);
        let tiles = Space::Blended(Tile::square(256, 64));
        assert_eq!(decide(&request("wan-2.1", 480, 81), defaults()), (tiles, Time::Carried(4), bf16));
        assert_eq!(decide(&request("wan-2.2", 256, 81), defaults()), (Space::Whole, Time::Carried(4), bf16));
        assert_eq!(decide(&request("wan-2.1", 480, 1), defaults()), (tiles, Time::Whole, bf16));
        let whole = defaults().with("tiling", false);
        assert_eq!(decide(&request("wan-2.1", 480, 81), whole), (Space::Whole, Time::Carried(4), bf16));
    }

    #[test]
    fn pictures_are_tiled_at_the_sample_size() {
        let (space, time, _) = decide(&request("sd", 1024, 1), Diffusers::describe().defaults());
        assert_eq!((space, time), (Space::Blended(Tile::square(512, 128)), Time::Whole));
        let (space, ..) = decide(&request("flux", 1024, 1), Diffusers::describe().defaults());
        assert_eq!(space, Space::Whole);
    }

    #[test]
    fn an_encode_has_the_tiles_of_a_decode() {
        let encode = |family, side, frames| {
            let request = Request { direction: Direction::Encode, ..request(family, side, frames) };
            decide(&request, Diffusers::describe().defaults())
        };
        assert_eq!(encode("sd", 1024, 1).0, Space::Blended(Tile::square(512, 128)));
        let (space, time, _) = encode("wan-2.1", 480, 81);
        assert_eq!((space, time), (Space::Blended(Tile::square(256, 64)), Time::Carried(4)));
    }

    #[test]
    fn the_models_own_sample_size_comes_before_the_familys() {
        let mut own = request("sd", 1024, 1);
        own.model.sample_size = Some(768);
        assert_eq!(decide(&own, Diffusers::describe().defaults()).0, Space::Blended(Tile::square(768, 192)));
        let set = Diffusers::describe().defaults().with("sample-size", 256);
        assert_eq!(decide(&own, set).0, Space::Blended(Tile::square(256, 64)));
    }
}
