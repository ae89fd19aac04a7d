//! `tilewright device …`: facts about this machine's devices, measured now, and their check.

mod check;
pub mod trial;

use std::io::Write;

use serde::Serialize;
use tilewright_engine::{Machine, Probe, announce_probe};
use tilewright_plan::{Backend, Device, Dtype, bytes, words::with_noun};
use tilewright_prices::Described;
use tilewright_torch::{
    attention, backend,
    device::{amd_gpus, system_memory},
    miopen,
};

use crate::{
    args::{DeviceArguments, DeviceCommand, DeviceShow},
    failure::Outcome,
    printer, table,
    tell::tell,
};

/// Widths of the middle attention in published autoencoders: WAN's and the KL ones'.
const ATTENTION_WIDTHS: [i64; 2] = [384, 512];

#[derive(Serialize)]
struct Report {
    device: Device,
    libtorch: String,
    system: System,
    amd: Vec<Amd>,
    bytes_per_second: f64,
    speeds: Vec<Speed>,
    attention: Vec<Attention>,
    /// True if convolutions go through MIOpen; none of a device without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    miopen: Option<bool>,
    /// All that prices of plans are made from beside the facts.
    #[serde(flatten)]
    described: Described,
}

#[derive(Serialize)]
struct System {
    total_bytes: u64,
    available_bytes: u64,
}

#[derive(Serialize)]
struct Amd {
    arch: String,
    vram_total_bytes: u64,
    vram_used_bytes: u64,
    gtt_total_bytes: u64,
    gtt_used_bytes: u64,
}

#[derive(Serialize)]
struct Speed {
    dtype: Dtype,
    layout: tilewright_plan::Layout,
    flops_per_second: f64,
}

#[derive(Serialize)]
struct Attention {
    width: i64,
    dtype: Dtype,
    fused_is_right: bool,
}

/// Explains the wait if a device has not been measured yet.
pub fn say_what_is_measured() {
    announce_probe(|facts, measured| match measured {
        // With MIOpen and without.
        None if facts.backend == Backend::Rocm => tell!("note: measuring {}, for about 6 s", facts.name),
        None => {
            if facts.backend == Backend::Cpu && !tilewright_torch::device::has_avx2() {
                tell!("note: {} has no AVX2, which libtorch's quick kernels need: everything takes longer", facts.name);
            }
            tell!("note: measuring {}, for about 3 s", facts.name);
        }
        Some(measured) if measured.disturbed => {
            tell!(
                "note: other programs used the processor meanwhile, so times may be estimated wrong: it is measured again when it is quiet"
            );
        }
        Some(measured) if measured.hurried => {
            tell!(
                "note: it is slow or was busy, so times may be estimated wrong: 'tilewright device' measures it again"
            );
        }
        Some(_) => {}
    });
}

/// Shows a device, or checks it.
pub fn run(arguments: &DeviceArguments) -> Outcome {
    match &arguments.command {
        None => show(&arguments.show),
        Some(DeviceCommand::Check(check)) => check::run(check),
    }
}

/// Measures and shows a device.
fn show(arguments: &DeviceShow) -> Outcome {
    arguments.on.set_threads();
    let report = report(&Machine::open(arguments.on.device, if arguments.kept { Probe::Kept } else { Probe::Fresh })?)?;
    if arguments.json {
        return printer::json(&report);
    }
    let mut stdout = printer::stdout();
    writeln!(stdout, "{}", table::facts(rows(&report)))?;
    let speeds = report.speeds.iter().map(|speed| {
        vec![
            speed.dtype.to_string(),
            speed.layout.to_string(),
            format!("{}FLOP/s", table::count(speed.flops_per_second)),
        ]
    });
    writeln!(stdout, "\n{}", table::listing(&["type", "layout", "convolution"], &["convolution"], speeds))?;
    let attention = report.attention.iter().map(|tried| {
        let verdict = if tried.fused_is_right { "fused" } else { "in pieces: its fused kernel is missing or wrong" };
        vec![tried.width.to_string(), tried.dtype.to_string(), verdict.to_owned()]
    });
    writeln!(stdout, "\n{}", table::listing(&["width", "type", "attention"], &["width"], attention))?;
    Ok(())
}

fn report(machine: &Machine) -> Outcome<Report> {
    let memory = system_memory()?;
    let measured = &machine.measured;
    let mut dtypes: Vec<Dtype> = measured.speeds.iter().map(|speed| speed.dtype).collect();
    dtypes.dedup();
    let attention = ATTENTION_WIDTHS.iter().flat_map(|&width| {
        dtypes.iter().map(move |&dtype| Attention {
            width,
            dtype,
            fused_is_right: attention::is_fused(machine.device, width, dtype),
        })
    });
    Ok(Report {
        device: machine.facts.clone(),
        libtorch: backend::folder()?.display().to_string(),
        system: System { total_bytes: memory.total, available_bytes: memory.available },
        amd: amd_gpus()
            .into_iter()
            .map(|gpu| Amd {
                arch: gpu.arch,
                vram_total_bytes: gpu.vram_total,
                vram_used_bytes: gpu.vram_used,
                gtt_total_bytes: gpu.gtt_total,
                gtt_used_bytes: gpu.gtt_used,
            })
            .collect(),
        bytes_per_second: measured.bytes_per_second,
        speeds: measured
            .speeds
            .iter()
            .map(|speed| Speed { dtype: speed.dtype, layout: speed.layout, flops_per_second: speed.flops_per_second })
            .collect(),
        attention: attention.collect(),
        miopen: measured.miopen,
        described: machine.basis().described(machine.fingerprint.clone()),
    })
}

fn rows(report: &Report) -> Vec<(&'static str, String)> {
    let device = &report.device;
    let fast: Vec<String> = device.fast_dtypes.iter().map(Dtype::to_string).collect();
    let backend = format!("{:?}", device.backend).to_lowercase();
    let versions = device.hints.iter().filter(|hint| hint.name != miopen::FACT);
    let versions: Vec<String> = versions.map(|hint| format!("{} {}", hint.name, hint.value)).collect();
    let mut rows = vec![
        (
            "device",
            format!("{} ({backend}, {}, {})", device.name, device.arch, with_noun(device.compute_units, "unit")),
        ),
        (
            "memory",
            format!(
                "{} free of {}{}",
                bytes::display(device.free_bytes),
                bytes::display(device.total_bytes),
                if device.unified { ", shared with the host" } else { "" }
            ),
        ),
        (
            "kernel",
            format!(
                "{} available of {}",
                bytes::display(report.system.available_bytes),
                bytes::display(report.system.total_bytes)
            ),
        ),
        ("libtorch", report.libtorch.clone()),
        ("fast types", fast.join(", ")),
        ("bandwidth", format!("{}B/s", table::count(report.bytes_per_second))),
    ];
    if !versions.is_empty() {
        rows.push(("libraries", versions.join(", ")));
    }
    if let Some(is_used) = report.miopen {
        let way = if is_used { "by MIOpen" } else { "without MIOpen, which fails or is slower here" };
        rows.push(("convolutions", way.to_owned()));
    }
    for gpu in &report.amd {
        let used = |used: u64, total: u64| format!("{} of {} used", bytes::display(used), bytes::display(total));
        rows.push((
            "amdgpu",
            format!(
                "{}: VRAM {}, GTT {}",
                gpu.arch,
                used(gpu.vram_used_bytes, gpu.vram_total_bytes),
                used(gpu.gtt_used_bytes, gpu.gtt_total_bytes)
            ),
        ));
    }
    rows
}
