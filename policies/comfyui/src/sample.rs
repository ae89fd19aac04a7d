//! ComfyUI's rules for samples.

use tilewright_sdk::{
    Backend, Dtype, Precision,
    denoise::{Attempt, Attention, Guidance, Plan, Request, Residency},
};

/// Bytes that inference is always given: `minimum_inference_memory`.
const MINIMUM: u64 = (800 << 20) + (400 << 20);

/// The factor on the bytes of a step before conditionings run together: `calc_cond_batch`.
const TOGETHER: f64 = 1.5;

/// `memory_usage_factor` of Flux; that of WAN is its width over this.
const FLUX_FACTOR: f64 = 3.1;
const WAN_WIDTH: f64 = 2222.0;

/// Widths of the published WAN networks, by their blocks and the least number of weights.
const WAN_WIDTHS: [(u32, u64, f64); 3] = [(40, 0, 5120.0), (30, 3_000_000_000, 3072.0), (30, 0, 1536.0)];

/// Queries at once where no fused kernel exists: `attention_sub_quad`'s chunk.
const QUERIES: u32 = 1024;

pub fn decide(request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
    if let Some(last) = attempts.last() {
        if last.overflowed() && !last.is_hopeless() {
            return Ok(last.plan.clone().widened().because("as with --force-fp32"));
        }
        return Err("ComfyUI ends a sample that runs out of memory".into());
    }
    let precision = precision(request);
    let free = request.limit_bytes.min(request.device.free_bytes);
    let step = memory_required(request, precision.dtype(), 1);
    let both = memory_required(request, precision.dtype(), 2);
    let room = free.saturating_sub((step as u64).max(MINIMUM));
    let fits = !request.has_gpu() || request.model.weights.stored_bytes <= room;
    let has_streams = matches!(request.device.backend, Backend::Cuda | Backend::Rocm);
    let left = free.saturating_sub(if fits { request.model.weights.stored_bytes } else { 0 });
    let plan = Plan {
        residency: match (fits, has_streams) {
            (true, _) => Residency::Resident,
            (false, true) => Residency::Streamed(1),
            (false, false) => Residency::Host,
        },
        guidance: if both * TOGETHER < left as f64 { Guidance::Together } else { Guidance::InTurn },
        attention: if request.capabilities.fused_attention { Attention::Fused } else { Attention::Pieces(QUERIES) },
        ..Plan::plain(precision).reusing(request)
    };
    Ok(plan.because(if fits { "all weights on the device" } else { "weights streamed, as with --lowvram" }))
}

/// `unet_dtype` and `unet_manual_cast`.
fn precision(request: &Request) -> Precision {
    if !request.has_gpu() {
        return Precision::Uniform(Dtype::F32);
    }
    let is_wan = request.model.family.starts_with("wan");
    let usual = if is_wan { [Dtype::F16, Dtype::Bf16] } else { [Dtype::Bf16, Dtype::F16] };
    let stored = if request.stored() == "f16" { Some(Dtype::F16) } else { None };
    let mut types = stored.into_iter().chain(usual);
    Precision::Uniform(types.find(|dtype| request.is_fast(*dtype)).unwrap_or(Dtype::F32))
}

/// `memory_required`: bytes of a step with `conditionings` conditionings at once.
fn memory_required(request: &Request, dtype: Dtype, conditionings: u32) -> f64 {
    let area = f64::from(request.height) * f64::from(request.width) * f64::from(request.frames);
    let samples = f64::from(request.batch) * f64::from(conditionings);
    area * samples * dtype.bytes() as f64 * 0.01 * factor(request) * f64::from(1 << 20)
}

fn factor(request: &Request) -> f64 {
    let model = &request.model;
    if !model.family.starts_with("wan") {
        return FLUX_FACTOR;
    }
    let is_like = |(blocks, least, _): &&(u32, u64, f64)| model.blocks == *blocks && model.parameters >= *least;
    WAN_WIDTHS.iter().find(is_like).map_or(2000.0, |(.., width)| *width) / WAN_WIDTH
}
