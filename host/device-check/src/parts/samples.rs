//! Samples: steps of denoisers of published width, with weights as files store them and kept as
//! plans keep them.

use std::time::Duration;

use serde_json::json;
use tch::{Device, Kind, Tensor};
use tilewright_bench::Transformer;
use tilewright_engine::{Error as EngineError, Machine};
use tilewright_models::Stored;
use tilewright_plan::{Attention, DenoisePlan, Dtype, Failure, Precision, Products, WeightForm, bytes};
use tilewright_torch::{memory, streamed};

use crate::{
    Context, Finding,
    compared::{Compared, network_tolerance},
    step::{Step, TOKENS, widest, widest_in_memory},
    work::{Turns, cpu, relative_error},
};

/// The time after which no step begins: a slow device checks what comes first.
const QUICK: Duration = Duration::from_secs(200);
const FULL: Duration = Duration::from_secs(300);

/// The relative error that a step with products in FP8 may have: each activation is rounded to 4
/// bits of mantissa.
const FP8_PRODUCTS: f64 = 1.5e-1;

/// The way that weights are kept in.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Way {
    name: &'static str,
    weights: WeightForm,
    ahead: Option<u32>,
    /// Streamed weights are read from the file for each step, as those that host memory has no
    /// room for.
    from_file: bool,
}

const fn way(name: &'static str, weights: WeightForm, ahead: Option<u32>) -> Way {
    Way { name, weights, ahead, from_file: false }
}

const EXPANDED: Way = way("expanded", WeightForm::Expanded, None);
const AS_STORED: Way = way("as stored", WeightForm::Packed, None);
const READ_AHEAD: Way = way("read ahead", WeightForm::Packed, Some(1));
const FROM_FILE: Way = Way { name: "read ahead from the file", from_file: true, ..READ_AHEAD };
const BLOCK_BY_BLOCK: Way = way("block by block", WeightForm::Packed, Some(0));

/// All ways; a quick check takes the first four.
const WAYS: [Way; 5] = [EXPANDED, AS_STORED, READ_AHEAD, FROM_FILE, BLOCK_BY_BLOCK];

impl Way {
    fn plan(self, precision: Precision) -> DenoisePlan {
        DenoisePlan { weights: self.weights, ahead: self.ahead, precision, ..DenoisePlan::plain() }
    }

    /// A step with weights that are kept so.
    fn run(self, step: &Step, machine: &Machine, plan: &DenoisePlan) -> Result<Tensor, String> {
        // Weights that are there already stay where they are.
        let _in_file = self.from_file.then(|| {
            step.release();
            streamed::keep_none()
        });
        let found = step.run(machine, plan);
        if self.from_file {
            step.release();
        }
        found
    }
}

/// The reference's plan.
fn exact() -> DenoisePlan {
    EXPANDED.plan(Precision::Uniform(Dtype::F32))
}

/// The transformers, and the types that their weights are stored in. Those that show most come
/// first.
const CASES: [(Transformer, Stored); 6] = [
    (Transformer::FLUX, Stored::Bf16),
    (Transformer::FLUX, Stored::Q8_0),
    (Transformer::FLUX, Stored::Q4K),
    (Transformer::FLUX, Stored::F8E4m3),
    (Transformer::WAN, Stored::Bf16),
    (Transformer::WAN, Stored::F8E4m3),
];

/// The types that steps are compared in: those that the device is fast in, or all that it is worth;
/// of a GPU also bf16, which plans take there even where it is no faster.
pub(super) fn types(context: &Context, machine: &Machine) -> Vec<Dtype> {
    let mut types = if machine.device == Device::Cpu { Vec::new() } else { vec![Dtype::F32, Dtype::Bf16] };
    types.retain(|dtype| machine.measured.best(*dtype).is_some());
    for (dtype, _) in context.formats_by_speed(machine).concat() {
        if dtype != Dtype::Tf32 && !types.contains(&dtype) {
            types.push(dtype);
        }
    }
    types
}

/// The steps of a transformer that are compared: name, the way that weights are kept in, and plan.
fn steps(context: &Context, machine: &Machine) -> Vec<(&'static str, Way, DenoisePlan)> {
    let mut steps = Vec::new();
    for dtype in types(context, machine) {
        let ways = if context.is_quick() { &WAYS[..4] } else { &WAYS };
        steps.extend(ways.iter().map(|way| (way.name, *way, way.plan(Precision::Uniform(dtype)))));
        if !context.is_quick() && dtype != Dtype::F32 {
            steps.push((EXPANDED.name, EXPANDED, EXPANDED.plan(Precision::Mixed(dtype))));
        }
        let attention = Attention::Pieces { queries: 128 };
        let pieces = DenoisePlan { attention, ..EXPANDED.plan(Precision::Uniform(dtype)) };
        steps.push(("attention in pieces", EXPANDED, pieces));
    }
    let fp8 = DenoisePlan { products: Products::Fp8, ..AS_STORED.plan(Precision::Uniform(Dtype::Bf16)) };
    steps.push(("products in FP8", AS_STORED, fp8));
    steps
}

/// Steps of denoisers with weights of every kind.
pub fn samples(context: &Context) -> Result<Finding, String> {
    let (machine, cpu) = (context.machine()?, cpu()?);
    let mut compared = Compared::on(machine.device);
    let mut turns = Turns::until(if context.is_quick() { QUICK } else { FULL });
    let steps = steps(context, &machine);
    for (published, stored) in CASES {
        if !turns.begin_all(steps.len()) {
            continue;
        }
        let transformer = widest(published, TOKENS, &[&machine, &cpu]);
        let step = Step::new(transformer, stored)?;
        let expected = step.run(&cpu, &exact())?;
        step.release();
        let has_fp8 = step.job(&machine, u64::MAX / 4)?.capabilities().fp8_products;
        for (of, way, plan) in &steps {
            let is_fp8 = plan.products == Products::Fp8;
            if is_fp8 && !has_fp8 || !turns.begin() {
                continue;
            }
            let name =
                format!("{} of {} wide in {stored}, {of}, {}", transformer.name, transformer.width(), plan.precision);
            let most = if is_fp8 { FP8_PRODUCTS } else { network_tolerance(plan.precision.dtype()) };
            let row = json!({
                "transformer": transformer.name, "width": transformer.width(), "stored": stored.name(), "weights": of,
                "precision": plan.precision,
            });
            compared.add(name, way.run(&step, &machine, plan), &expected, most, row)?;
        }
    }
    Ok(compared.finding(turns))
}

/// Heads of transformers that are compared where the width shows nothing.
const FEW: usize = 8;

/// Steps with LoRAs, which are kept beside packed weights and added to expanded ones.
pub fn loras(context: &Context) -> Result<Finding, String> {
    /// The least part by which the LoRA changes a step: with less, its absence would pass.
    const CHANGES: f64 = 0.2;
    let (machine, cpu) = (context.machine()?, cpu()?);
    let mut compared = Compared::on(machine.device);
    let mut turns = Turns::until(QUICK);
    let types = types(context, &machine);
    for (published, stored) in CASES {
        if !turns.begin_all(types.len() * WAYS.len()) {
            continue;
        }
        let transformer = widest(published.of_heads(FEW), TOKENS, &[&machine, &cpu]);
        let without = Step::new(transformer, stored)?.run(&cpu, &exact())?;
        let step = Step::new(transformer, stored)?.with_lora(transformer)?;
        let expected = step.run(&cpu, &exact())?;
        step.release();
        let change = relative_error(&expected, &without)?;
        if change < CHANGES {
            return Err(format!(
                "the LoRA generated for {} in {stored} changes a step by {change:.1e} alone",
                published.name
            ));
        }
        for (dtype, way) in types.iter().flat_map(|dtype| WAYS.map(|way| (*dtype, way))) {
            if !turns.begin() {
                continue;
            }
            let found = way.run(&step, &machine, &way.plan(Precision::Uniform(dtype)));
            let name = format!("{} in {stored}, {}, {dtype}", transformer.name, way.name);
            let row = json!({
                "transformer": transformer.name, "stored": stored.name(), "weights": way.name, "dtype": dtype,
            });
            compared.add(name, found, &expected, network_tolerance(dtype), row)?;
        }
    }
    Ok(compared.finding(turns))
}

/// A sample, one that runs out of memory, and the first one again.
pub fn recovery(context: &Context) -> Result<Finding, String> {
    let (machine, cpu) = (context.machine()?, cpu()?);
    // A narrower one would hold too little for a limit.
    let transformer = widest_in_memory(Transformer::FLUX.of_heads(FEW), &[&machine, &cpu]);
    let step = Step::new(transformer, Stored::Q8_0)?;
    let plan = exact();
    let job = step.job(&machine, u64::MAX / 4)?;
    let cost = job.estimate(&plan).map_err(|error| error.to_string())?;
    let expected = step.run(&machine, &plan)?;
    step.release();
    memory::trim(machine.device).map_err(|error| error.to_string())?;
    let held = || memory::of(machine.device).map(|memory| memory.in_use).map_err(|error| error.to_string());
    let before = held()?;
    let mut faults = Vec::new();
    let mut check = |what: &str, end: Result<(), String>| -> Result<(), String> {
        faults.extend(end.err().map(|error| format!("{what}: {error}")));
        step.release();
        let left = held()?.saturating_sub(before);
        if left > MIB {
            faults.push(format!("{what}: {} stayed behind", bytes::display(left)));
        }
        match step.run(&machine, &plan) {
            Ok(found) => {
                let error = relative_error(&found, &expected)?;
                let is_other = error.is_nan() || error > SAME;
                faults.extend(is_other.then(|| format!("{what}: the next sample differs by {error:.1e}")));
            }
            Err(error) => faults.push(format!("{what}: the next sample failed: {error}")),
        }
        step.release();
        Ok(())
    };
    // A limit that the leanest plan fits in, so that the job is not refused, and that this one is
    // far beyond: a GPU's allocator rounds it up.
    let least = job.least_bytes().unwrap_or_default();
    let limit = least + cost.held_bytes().saturating_sub(least) / 8;
    let mut told = Vec::new();
    if cost.held_bytes().saturating_sub(limit) > 2 * ROUNDING {
        check("a limit", step.job(&machine, limit).and_then(|job| runs_out(&step, &job, &plan)))?;
        told.push("a limit");
    }
    // The system's own memory is no place for that.
    if machine.device != Device::Cpu && !machine.facts.unified {
        memory::trim(machine.device).map_err(|error| error.to_string())?;
        let full = filled(machine.device, cost.held_bytes() / 2)?;
        let end = runs_out(&step, &job, &plan);
        drop(full);
        memory::trim(machine.device).map_err(|error| error.to_string())?;
        check("a full device", end)?;
        told.push("a full device");
    }
    if told.is_empty() {
        return Ok(Finding::skipped("it is too small for a limit, and has no memory of its own"));
    }
    let detail = format!("the next sample is the same after {}", told.join(" and "));
    Ok(Finding::of(&faults, detail, json!({ "held_bytes": cost.held_bytes(), "limit_bytes": limit })))
}

const MIB: u64 = 1 << 20;

/// The bytes that a GPU's allocator may hold past a limit.
const ROUNDING: u64 = 32 * MIB;

/// The relative error between two samples that are the same. Products may be summed in another
/// order.
const SAME: f64 = 1e-6;

/// All of a device's memory but `left` bytes. What the device says is free need not be had, and
/// others take of it meanwhile.
fn filled(device: Device, left: u64) -> Result<Vec<Tensor>, String> {
    let (mut blocks, mut size) = (Vec::new(), 1 << 30);
    while size >= 16 * MIB {
        let free = tilewright_torch::device::free_bytes(device).map_err(|error| error.to_string())?;
        let block = (free >= left + size).then(|| Tensor::f_empty([size as i64], (Kind::Uint8, device)));
        match block {
            Some(Ok(block)) => blocks.push(block),
            _ => size /= 2,
        }
    }
    Ok(blocks)
}

/// A sample that is to run out of memory.
fn runs_out(step: &Step, job: &tilewright_engine::DenoiseJob<'_>, plan: &DenoisePlan) -> Result<(), String> {
    match step.change(job, plan).map_err(|end| end.error) {
        Ok(_) => Err("the sample did not run out of memory".into()),
        Err(EngineError::Exhausted { last: Failure::OutOfMemory { .. } | Failure::OverLimit { .. }, .. }) => Ok(()),
        Err(other) => Err(format!("it ended with: {other}")),
    }
}
