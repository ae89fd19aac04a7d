//! The device itself: what its runtime, the kernel and libtorch say of it.

use std::{env, fs};

use serde_json::{Value, json};
use tch::Device;
use tilewright_bench::Network;
use tilewright_plan::{Backend, Dtype, Layout, Precision, Space, Stage, bytes};
use tilewright_torch::{
    attention, backend,
    device::{self, Choice},
};

use crate::{
    Context, Finding,
    work::{Subject, cpu, plan, relative_error},
};

/// Widths of the attention in published autoencoders.
const WIDTHS: [i64; 2] = [384, 512];

/// Settings that change how a device works.
const SETTINGS: [&str; 11] = [
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "MIOPEN_FIND_MODE",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_MIOPEN_SUGGEST_NHWC",
    "ROCR_VISIBLE_DEVICES",
    "TORCH_BLAS_PREFER_HIPBLASLT",
    "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL",
];

/// The part by which two tellings of one size may differ.
const LIKE: f64 = 0.1;

/// The device's facts agree with each other and with the kernel's.
pub fn facts(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    let known = &machine.facts;
    let mut faults = Vec::new();
    if known.total_bytes == 0 || known.free_bytes > known.total_bytes {
        let told = [known.free_bytes, known.total_bytes].map(bytes::display);
        faults.push(format!("{} free of {} in all", told[0], told[1]));
    }
    if known.name.is_empty() || known.arch == "unknown" {
        faults.push(format!("the runtime does not tell the architecture of {:?}", known.name));
    }
    if machine.device != Device::Cpu && known.compute_units == 0 {
        faults.push("the runtime does not tell the number of compute units".into());
    }
    let is_f32_exact = backend::is_f32_exact().map_err(|error| error.to_string())?;
    if machine.device != Device::Cpu && !is_f32_exact {
        faults.push("f32 is rounded to TF32 in this process".into());
    }
    let address = device::bus_address(machine.device);
    let card = address
        .as_ref()
        .and_then(|address| device::amd_gpus().into_iter().find(|card| card.pci == address.to_ascii_lowercase()));
    if let Some(card) = card.as_ref().filter(|_| known.backend == Backend::Rocm) {
        if !card.arch.is_empty() && card.arch != known.arch && env::var_os("HSA_OVERRIDE_GFX_VERSION").is_none() {
            faults.push(format!("the runtime says {}, the kernel {}", known.arch, card.arch));
        }
        let differs = (known.total_bytes as f64 / card.vram_total.max(1) as f64 - 1.0).abs() > LIKE;
        if !known.unified && differs {
            let told = [known.total_bytes, card.vram_total].map(bytes::display);
            faults.push(format!("the runtime says {} of memory, the kernel {}", told[0], told[1]));
        }
    }
    // A GPU that fails where nobody asked for it is not to pass for a CPU that works.
    if context.is_automatic() && machine.device == Device::Cpu {
        match backend::load() {
            Err(error) => faults.push(format!("the GPU's libraries can't be loaded: {error}")),
            Ok(Some(backend)) if device::is_gpu_expected(backend) => {
                let reason = device::select(Choice::Gpu(0)).err().map(|error| error.to_string());
                faults.push(reason.unwrap_or_else(|| "the GPU works, and was not taken".into()));
            }
            Ok(_) => {}
        }
    }
    let settings: serde_json::Map<String, Value> =
        SETTINGS.iter().filter_map(|name| Some(((*name).to_owned(), Value::from(env::var(name).ok()?)))).collect();
    let speeds = machine.measured.speeds.iter().map(|speed| {
        json!({
            "dtype": speed.dtype, "layout": speed.layout, "flops_per_second": speed.flops_per_second,
            "attention_flops_per_second": speed.attention_flops_per_second, "fused_attention": speed.fused_attention,
            "norm_bytes_per_second": speed.norm_bytes_per_second,
        })
    });
    let attention = WIDTHS.iter().flat_map(|&width| {
        [Dtype::F32, Dtype::Bf16, Dtype::F16].map(|dtype| {
            json!({ "width": width, "dtype": dtype, "fused": attention::is_fused(machine.device, width, dtype) })
        })
    });
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let data = json!({
        "device": known, "kernel": kernel.trim(), "pci": address, "settings": settings,
        "amdgpu": card.map(|card| json!({
            "arch": card.arch, "vram_total": card.vram_total, "vram_used": card.vram_used,
            "gtt_total": card.gtt_total, "gtt_used": card.gtt_used,
        })),
        "speeds": speeds.collect::<Vec<_>>(), "attention": attention.collect::<Vec<_>>(),
        "bytes_per_second": machine.measured.bytes_per_second,
        "transfer_bytes_per_second": machine.measured.transfer_bytes_per_second,
        "versions": device::versions().map(|[driver, runtime]| json!({ "driver": driver, "runtime": runtime })),
        "has_tf32": device::has_tf32(machine.device), "is_f32_exact": is_f32_exact,
        "miopen": machine.measured.miopen, "fingerprint": machine.fingerprint,
    });
    let detail = format!("{} ({}, {})", known.name, known.arch, bytes::display(known.total_bytes));
    Ok(Finding::of(&faults, detail, data))
}

/// The CPU computes first, and then the device, as in a service that has both: libtorch must still
/// see it.
pub fn order(context: &Context) -> Result<Finding, String> {
    if let Err(error) = backend::load() {
        return Err(error.to_string());
    }
    let subject = Subject::new(Network::FLUX, 64)?;
    let whole = plan(Space::Whole, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst);
    let (expected, _) = subject.run(&cpu()?, &whole, Stage::Decode)?;
    let machine = context.machine()?;
    let (found, _) = subject.run(&machine, &whole, Stage::Decode)?;
    let error = relative_error(&found, &expected)?;
    let data = json!({ "relative_error": error });
    match error < 1e-3 {
        true => Ok(Finding::pass(format!("{} after the CPU", machine.facts.name), data)),
        false => Ok(Finding::fail(format!("the picture differs from the CPU's by {error:.1e}"), data)),
    }
}
