//! Memory: estimates, the limit, what happens when it runs out, and whether it comes back.

use std::time::Duration;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use tilewright_bench::Network;
use tilewright_engine::{Error as EngineError, Machine};
use tilewright_plan::{Dtype, Failure, Layout, Plan, Precision, Space, Stage, Tile, Time, bytes};
use tilewright_torch::{Error, memory, scalar, transfer};

use crate::{
    Context, Finding,
    work::{Quiet, Subject, Turns, plan, precision},
};

/// The peak over its estimate that passes, at least and at most.
const HONEST: (f64, f64) = (0.5, 1.06);

/// The sides of pictures that are decoded, and of clips: those of a slow device are smaller. Below
/// the first ones, the workspaces of a GPU's libraries count.
const PICTURES: [u32; 4] = [512, 256, 128, 64];
const CLIPS: [u32; 3] = [256, 128, 64];

/// The time after which no estimate is compared with another run.
const ESTIMATES: Duration = Duration::from_secs(100);

const MIB: u64 = 1 << 20;

/// The peaks of decoders and encoders in every format, over their estimates.
pub fn estimates(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    let (mut faults, mut rows, mut highest) = (Vec::new(), Vec::new(), 0.0_f64);
    let networks = [(Network::FLUX, &PICTURES[..]), (Network::WAN_21, &CLIPS[..])];
    let mut turns = Turns::until(ESTIMATES);
    let formats = context.formats_by_speed(&machine);
    for (formats, (network, sides)) in formats.iter().flat_map(|formats| networks.map(|of| (formats, of))) {
        let subject = Subject::soon(network, sides, &machine)?;
        let stages = [Stage::Decode, Stage::Encode];
        for (dtype, layout, stage) in
            formats.iter().flat_map(|&(dtype, layout)| stages.map(|stage| (dtype, layout, stage)))
        {
            if !turns.begin() {
                continue;
            }
            let (_, record) = subject.run(&machine, &plan(Space::Whole, precision(dtype), layout), stage)?;
            let expected = record.estimate.map_or(0, |cost| cost.peak_bytes);
            let found = record.outcome.map_or(0, |outcome| outcome.peak_bytes);
            let ratio = found as f64 / expected.max(1) as f64;
            highest = highest.max(ratio);
            if !(HONEST.0..=HONEST.1).contains(&ratio) {
                let told = [found, expected].map(bytes::display);
                let of = format!("{} {stage}, {}, {}", network.name, dtype, layout);
                faults.push(format!("{of}: {} were held, {} estimated", told[0], told[1]));
            }
            rows.push(json!({
                "network": network.name, "stage": stage, "dtype": dtype, "layout": layout,
                "estimated_bytes": expected, "peak_bytes": found, "ratio": ratio,
            }));
        }
    }
    let detail = format!("{} runs, peaks up to {highest:.3} of their estimates{turns}", rows.len());
    Ok(Finding::of(&faults, detail, Value::from(rows)))
}

/// A plan under half of what it needs.
pub fn limit(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    // Half of what a smaller one needs is refused before it is tried, or the whole is less above it
    // than what a GPU's allocator may hold past a limit.
    let subject = Subject::new(Network::FLUX, PICTURES[1])?;
    let whole = plan(Space::Whole, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst);
    let needed = subject.expected(&machine, &whole)?.peak_bytes;
    let decode = |limit| subject.decode(&machine, &whole, limit, &mut Quiet);
    // The weights are there from now on.
    drop(decode(None).map_err(|end| end.error.to_string())?);
    let held = || memory::of(machine.device).map(|memory| memory.in_use).map_err(|error| error.to_string());
    let before = held()?;
    let mut faults = Vec::new();
    match decode(Some(needed / 2)) {
        Ok((_, record)) => {
            let peak = record.outcome.map_or(0, |outcome| outcome.peak_bytes);
            let told = [peak, needed / 2].map(bytes::display);
            faults.push(format!("{} were held under a limit of {}", told[0], told[1]));
        }
        Err(end) => match end.error {
            EngineError::Exhausted { last: Failure::OutOfMemory { .. } | Failure::OverLimit { .. }, .. } => {}
            other => faults.push(format!("a plan over the limit ended with: {other}")),
        },
    }
    let left = held()?.saturating_sub(before);
    if left > MIB {
        faults.push(format!("{} stayed behind", bytes::display(left)));
    }
    if let Err(end) = decode(None) {
        faults.push(format!("the next decode failed: {}", end.error));
    }
    let data = json!({ "needed_bytes": needed, "limit_bytes": needed / 2, "left_bytes": left });
    Ok(Finding::of(&faults, format!("stopped at {} of {}", bytes::display(needed / 2), bytes::display(needed)), data))
}

/// An allocation that no device can serve, and one that any can.
pub fn out_of_memory(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    let device = machine.device;
    let total = machine.facts.total_bytes;
    let floats = |bytes: u64| Tensor::f_empty([(bytes / 4) as i64], (Kind::Float, device)).map_err(Error::from);
    let mut faults = Vec::new();
    let mut told = String::new();
    // Address space alone may be had on a CPU.
    let most = if device == Device::Cpu { 1 << 50 } else { total.saturating_mul(4) };
    match floats(most) {
        Ok(_) => faults.push(format!("{} were served of {}", bytes::display(most), bytes::display(total))),
        Err(error @ Error::OutOfMemory { .. }) => told = error.to_string(),
        Err(error) => faults.push(format!("memory that ran out is told as: {error}")),
    }
    // Up to a limit, block by block.
    let limit = 256 * MIB;
    let reached = {
        let _limit = memory::Limit::new(device, limit).map_err(|error| error.to_string())?;
        let mut blocks = Vec::new();
        let end = loop {
            match floats(16 * MIB) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
            if blocks.len() as u64 * 16 * MIB > 2 * limit {
                break Error::Torch("the limit has no effect".into());
            }
        };
        if !matches!(end, Error::OutOfMemory { .. }) {
            faults.push(format!("a limit of {} ended with: {end}", bytes::display(limit)));
        }
        blocks.len() as u64 * 16 * MIB
    };
    memory::trim(device).map_err(|error| error.to_string())?;
    let after =
        floats(MIB).and_then(|tensor| Ok(tensor.f_zeros_like()?)).and_then(|tensor| Ok(tensor.f_sum(Kind::Float)?));
    if let Err(error) = after {
        faults.push(format!("nothing can be allocated afterwards: {error}"));
    }
    let data = json!({ "asked_bytes": most, "told": told, "limit_bytes": limit, "reached_bytes": reached });
    Ok(Finding::of(&faults, "known as such, and work goes on", data))
}

/// Values to the device and back.
pub fn offload(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    let mut faults = Vec::new();
    for kind in [Kind::Float, Kind::BFloat16, Kind::Half] {
        for shape in [&[1][..], &[3, 5, 7], &[64, 257, 129]] {
            let round_trip = || -> tilewright_torch::Result<bool> {
                let count: i64 = shape.iter().product();
                let values = Tensor::f_arange(count, (Kind::Int64, Device::Cpu))?.f_to_kind(Kind::Float)?;
                let there = values.f_to_kind(kind)?.f_view(shape)?;
                let there = there.f_to_device(machine.device)?;
                let back = there.f_to_device(Device::Cpu)?;
                // Away and back again, as a clip's state goes while it waits.
                let again = back.f_to_device(machine.device)?.f_to_device(Device::Cpu)?;
                Ok(again.equal(&values.f_to_kind(kind)?.f_view(shape)?))
            };
            if !round_trip().map_err(|error| error.to_string())? {
                faults.push(format!("{kind:?} values of {shape:?} came back changed"));
            }
        }
    }
    if !changes_places(machine.device).map_err(|error| error.to_string())? {
        faults.push("tensors that changed places with others came back changed".into());
    }
    let detail = match machine.device {
        Device::Cpu => "tensors came back as they went",
        _ if waits_alike(&machine)? => "tensors came back as they went, and so did a clip's state",
        _ => {
            faults.push("a clip whose tiles wait in host memory is another".into());
            ""
        }
    };
    Ok(Finding::of(&faults, detail, Value::Null))
}

/// Two groups of large tensors that change places, and are computed with at once.
fn changes_places(device: Device) -> tilewright_torch::Result<bool> {
    let _no_grad = tch::no_grad_guard();
    let group = |first: i64| -> tilewright_torch::Result<Vec<Tensor>> {
        // Sums of small whole numbers are exact.
        let tensor = |value: i64| scalar::full(&[4 << 20], value as f64, (Kind::Float, device));
        (first..first + 6).map(tensor).collect()
    };
    let (mut one, mut other) = (group(1)?, group(7)?);
    transfer::swap(device, other.iter_mut().collect(), Vec::new())?;
    for turn in 0..6 {
        transfer::swap(device, one.iter_mut().collect(), other.iter_mut().collect())?;
        let sum = Tensor::f_stack(&other, 0)?.f_sum(Kind::Double)?;
        let first = if turn % 2 == 0 { 7 } else { 1 };
        let expected = (first..first + 6).sum::<i64>() as f64 * f64::from(4 << 20);
        if f64::try_from(&sum)? != expected {
            return Ok(false);
        }
        std::mem::swap(&mut one, &mut other);
    }
    Ok(true)
}

/// A clip in tiles whose causal states wait in host memory, against one whose states stay.
fn waits_alike(machine: &Machine) -> Result<bool, String> {
    let subject = Subject::soon(Network::WAN_21, &CLIPS[1..], machine)?;
    let half = subject.side() as u32 / 2;
    let tile = Tile { height: half, width: half, overlap: half / 4 };
    let tiles = plan(Space::Blended(tile), Precision::Uniform(Dtype::F32), Layout::ChannelsFirst);
    let decode = |offload| {
        let plan = Plan { time: Time::Carried { frames: 1 }, offload, ..tiles.clone() };
        subject.run(machine, &plan, Stage::Decode).map(|(frames, _)| frames)
    };
    Ok(decode(true)?.equal(&decode(false)?))
}

/// Many decodes, one after the other.
pub fn leaks(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    let runs = if context.is_quick() { 10 } else { 50 };
    let subject = Subject::new(Network::FLUX, 64)?;
    let whole = plan(Space::Whole, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst);
    let now = || memory::of(machine.device).map_err(|error| error.to_string());
    let mut first = None;
    for run in 0..runs + 2 {
        drop(subject.run(&machine, &whole, Stage::Decode)?);
        // Libraries keep what they take at the first use.
        if run == 1 {
            first = Some(now()?);
        }
    }
    let (first, last) = (first.unwrap_or_default(), now()?);
    let grown = |of: fn(&memory::Memory) -> u64| of(&last).saturating_sub(of(&first));
    let (in_use, held) = (grown(|memory| memory.in_use), grown(|memory| memory.held));
    let mut faults = Vec::new();
    if in_use > MIB / 16 {
        faults.push(format!("{} more are in use after {runs} decodes", bytes::display(in_use)));
    }
    if held > 64 * MIB {
        faults.push(format!("{} more are held after {runs} decodes", bytes::display(held)));
    }
    let data = json!({ "runs": runs, "in_use_grown_bytes": in_use, "held_grown_bytes": held });
    Ok(Finding::of(&faults, format!("{runs} decodes"), data))
}
