//! Agreement with the CPU in f32.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use tilewright_bench::Network;
use tilewright_engine::Machine;
use tilewright_plan::{Dtype, Layout, Precision, Space, Tile};
use tilewright_torch::{attention, group_norm, kind, to_layout};

use crate::{
    Context, Finding,
    work::{Quiet, Subject, cpu, plan, relative_error},
};

/// A type slower than f32 by more than this is left out: some processors emulate f16.
const HOPELESS: f64 = 8.0;

/// The relative error that an operator may have in a type. TF32 in the place of f32 has 3e-4.
fn operators_error(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 2e-5,
        Dtype::F16 => 2e-3,
        _ => 1.5e-2,
    }
}

/// The relative error that a decoder's picture may have in a type.
fn networks_error(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 5e-4,
        Dtype::F16 => 2e-2,
        _ => 1.2e-1,
    }
}

/// The types and memory orders that a device is worth being checked in.
fn formats(machine: &Machine) -> Vec<(Dtype, Layout)> {
    let single = machine.measured.best(Dtype::F32).unwrap_or(0.0);
    let speeds = machine.measured.speeds.iter();
    let is_worth = |dtype| machine.measured.best(dtype).is_some_and(|rate| rate * HOPELESS >= single);
    speeds.filter(|speed| is_worth(speed.dtype)).map(|speed| (speed.dtype, speed.layout)).collect()
}

/// The time after which no decode begins: a slow device checks what comes first.
const QUICK: Duration = Duration::from_secs(90);
const FULL: Duration = Duration::from_secs(600);

/// An operator on inputs of fixed shapes.
struct Operator {
    name: &'static str,
    shapes: &'static [&'static [i64]],
    compute: fn(&[Tensor]) -> tilewright_torch::Result<Tensor>,
}

const OPERATORS: [Operator; 8] = [
    Operator {
        name: "convolution 3×3",
        shapes: &[&[1, 64, 96, 80], &[128, 64, 3, 3], &[128]],
        compute: |of| Ok(of[0].f_conv2d(&of[1], Some(&of[2]), [1, 1], [1, 1], [1, 1], 1)?),
    },
    Operator {
        name: "convolution with stride 2",
        shapes: &[&[1, 64, 96, 80], &[64, 64, 3, 3], &[64]],
        compute: |of| Ok(of[0].f_conv2d(&of[1], Some(&of[2]), [2, 2], [0, 0], [1, 1], 1)?),
    },
    Operator {
        name: "convolution 1×1",
        shapes: &[&[2, 128, 48, 40], &[64, 128, 1, 1], &[64]],
        compute: |of| Ok(of[0].f_conv2d(&of[1], Some(&of[2]), [1, 1], [0, 0], [1, 1], 1)?),
    },
    Operator {
        name: "group norm",
        shapes: &[&[1, 128, 160, 96], &[128], &[128]],
        compute: |of| group_norm(&of[0], &of[1], &of[2], 32, 1e-6),
    },
    Operator { name: "silu", shapes: &[&[1, 64, 96, 80]], compute: |of| Ok(of[0].f_silu()?) },
    Operator {
        name: "upsampling",
        shapes: &[&[1, 64, 48, 40]],
        compute: |of| Ok(of[0].f_upsample_nearest2d([96, 80], None, None)?),
    },
    Operator {
        name: "linear layer",
        shapes: &[&[1, 500, 512], &[256, 512], &[256]],
        compute: |of| Ok(of[0].f_linear(&of[1], Some(&of[2]))?),
    },
    Operator {
        name: "attention in pieces",
        shapes: &[&[1, 900, 512], &[1, 900, 512], &[1, 900, 512]],
        compute: |of| attention::plain(&of[0], &of[1], &of[2]),
    },
];

const FUSED: Operator = Operator {
    name: "fused attention",
    shapes: &[&[1, 900, 512], &[1, 900, 512], &[1, 900, 512]],
    compute: |of| attention::attend(of[0].copy(), &of[1], &of[2]),
};

/// Inputs whose values are spread as activations and weights are, the same in every process.
fn inputs(operator: &Operator) -> Result<Vec<Tensor>, String> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let tensor = |shape: &&[i64]| {
        // Weights are smaller, so that results are near 1.
        let fan: i64 = if shape.len() > 1 && shape[0] > 2 { shape[1..].iter().product() } else { 1 };
        let scale = 1.7 / (fan as f32).sqrt();
        let count: i64 = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| next() * scale).collect();
        Tensor::f_from_slice(&values).and_then(|values| values.f_view(*shape)).map_err(|error| error.to_string())
    };
    operator.shapes.iter().map(tensor).collect()
}

/// Each operator, in every type and memory order.
pub fn operators(context: &Context) -> Result<Finding, String> {
    let _no_grad = tch::no_grad_guard();
    let machine = context.machine()?;
    let (mut faults, mut rows, mut worst) = (Vec::new(), Vec::new(), 0.0_f64);
    for (dtype, layout) in formats(&machine) {
        let is_fused = attention::is_fused(machine.device, 512, dtype);
        for operator in OPERATORS.iter().chain(is_fused.then_some(&FUSED)) {
            let error = operator_error(operator, &machine, dtype, layout)
                .map_err(|error| format!("{} in {dtype}, {layout}: {error}", operator.name))?;
            let share = error / operators_error(dtype);
            worst = worst.max(share);
            if share > 1.0 || share.is_nan() {
                faults.push(format!("{} in {dtype}, {layout}, differs from the CPU's by {error:.1e}", operator.name));
            }
            rows.push(json!({ "operator": operator.name, "dtype": dtype, "layout": layout, "error": error }));
        }
    }
    let detail = format!("{} runs, the worst at {:.0} % of what is allowed", rows.len(), 100.0 * worst);
    Ok(Finding::of(&faults, detail, Value::from(rows)))
}

fn operator_error(operator: &Operator, machine: &Machine, dtype: Dtype, layout: Layout) -> Result<f64, String> {
    let kind = kind(dtype).map_err(|error| error.to_string())?;
    // Both compute from the same values, which the type has rounded.
    let narrow = |tensor: Tensor| tensor.f_to_kind(kind).map_err(|error| error.to_string());
    let inputs: Vec<Tensor> = inputs(operator)?.into_iter().map(narrow).collect::<Result<_, _>>()?;
    let there = |tensor: &Tensor| -> tilewright_torch::Result<Tensor> {
        let tensor = tensor.f_to_device(machine.device)?;
        if tensor.dim() == 4 { to_layout(&tensor, layout) } else { Ok(tensor) }
    };
    let compute = || -> tilewright_torch::Result<(Tensor, Tensor)> {
        let wide: Vec<Tensor> =
            inputs.iter().map(|input| Ok(input.f_to_kind(Kind::Float)?)).collect::<tilewright_torch::Result<_>>()?;
        let found = (operator.compute)(&inputs.iter().map(there).collect::<tilewright_torch::Result<Vec<_>>>()?)?;
        Ok((found.f_to_device(Device::Cpu)?, (operator.compute)(&wide)?))
    };
    let (found, expected) = compute().map_err(|error| error.to_string())?;
    relative_error(&found, &expected)
}

/// Decoders in every format and space.
pub fn networks(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    let cpu = cpu()?;
    let networks: &[(&str, u32)] = match context.is_quick() {
        true => &[("flux", 64), ("wan-2.1", 64)],
        false => &[("flux", 256), ("sd", 128), ("wan-2.1", 128)],
    };
    let (mut faults, mut rows, mut worst) = (Vec::new(), Vec::new(), 0.0_f64);
    let ends = Instant::now() + if context.is_quick() { QUICK } else { FULL };
    let mut left_out = 0;
    for (name, side) in networks {
        let network: Network = name.parse().map_err(|error: tilewright_bench::Error| error.to_string())?;
        let subject = Subject::new(network, *side)?;
        let tile = Tile { height: side / 2, width: side / 2, overlap: side / 8 };
        let spaces = [Space::Whole, Space::Exact(Tile { overlap: 0, ..tile }), Space::Blended(tile)];
        for space in spaces {
            let single = plan(space, Precision::Uniform(Dtype::F32), Layout::ChannelsLast);
            let (expected, _) = decode(&subject, &cpu, &single)?;
            for (dtype, layout) in formats(&machine) {
                let precisions = [Precision::Uniform(dtype), Precision::Mixed(dtype)];
                for precision in precisions.into_iter().take(if dtype == Dtype::F32 { 1 } else { 2 }) {
                    if Instant::now() > ends {
                        left_out += 1;
                        continue;
                    }
                    let (found, _) = decode(&subject, &machine, &plan(space, precision, layout))
                        .map_err(|error| format!("{name}, {space}, {precision}, {layout}: {error}"))?;
                    let error = relative_error(&found, &expected)?;
                    let share = error / networks_error(dtype);
                    worst = worst.max(share);
                    if share > 1.0 || share.is_nan() {
                        faults.push(format!("{name}, {space}, {precision}, {layout}: differs by {error:.1e}"));
                    }
                    rows.push(json!({
                        "network": name, "space": space.to_string(), "precision": precision, "layout": layout, "error": error,
                    }));
                }
            }
        }
    }
    let rest = if left_out == 0 { String::new() } else { format!("; {left_out} were left out for lack of time") };
    let detail = format!("{} decodes, the worst at {:.0} % of what is allowed{rest}", rows.len(), 100.0 * worst);
    Ok(Finding::of(&faults, detail, Value::from(rows)))
}

fn decode(
    subject: &Subject,
    machine: &Machine,
    plan: &tilewright_plan::Plan,
) -> Result<(Tensor, tilewright_plan::Record), String> {
    subject.decode(machine, plan, None, &mut Quiet).map_err(|end| end.error.to_string())
}
