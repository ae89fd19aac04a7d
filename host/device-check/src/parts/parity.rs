//! Agreement with the CPU in f32.

use std::time::Duration;

use serde_json::json;
use tch::{Device, Kind, Tensor};
use tilewright_bench::Network;
use tilewright_engine::Machine;
use tilewright_plan::{Dtype, Layout, Plan, Precision, Space, Stage, Tile};
use tilewright_torch::{
    attention, conv2d, group_norm, kind,
    multi_head::{self, Way},
    to_layout,
};

use crate::{
    Context, Finding,
    compared::{Compared, network_tolerance},
    work::{Subject, Turns, cpu, plan, precision},
};

/// Width of the attention in image autoencoders, and of a head in denoisers.
const ATTENTION_WIDTH: i64 = 512;
const HEAD_WIDTH: i64 = 128;

/// The relative error that an operator may have in a type. TF32 in the place of f32 has 3e-4.
fn operators_error(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => 2e-5,
        Dtype::F16 | Dtype::Tf32 => 2e-3,
        _ => 7e-3,
    }
}

/// The time after which no run begins: a slow device checks what comes first.
const QUICK: Duration = Duration::from_secs(90);
const FULL: Duration = Duration::from_secs(240);
/// The same of attention in pieces, which has less to run.
const PIECES: Duration = Duration::from_secs(60);

/// An operator on inputs of fixed shapes.
struct Operator {
    name: &'static str,
    shapes: &'static [&'static [i64]],
    compute: fn(&[Tensor], Dtype) -> tilewright_torch::Result<Tensor>,
}

const OPERATORS: [Operator; 9] = [
    Operator {
        name: "convolution 3×3",
        shapes: &[&[1, 64, 96, 80], &[128, 64, 3, 3], &[128]],
        compute: |of, dtype| conv2d(&of[0], &of[1], Some(&of[2]), 1, [1, 1], dtype == Dtype::Tf32),
    },
    Operator {
        name: "convolution with stride 2",
        shapes: &[&[1, 64, 96, 80], &[64, 64, 3, 3], &[64]],
        compute: |of, dtype| conv2d(&of[0], &of[1], Some(&of[2]), 2, [0, 0], dtype == Dtype::Tf32),
    },
    Operator {
        name: "convolution 1×1",
        shapes: &[&[2, 128, 48, 40], &[64, 128, 1, 1], &[64]],
        compute: |of, dtype| conv2d(&of[0], &of[1], Some(&of[2]), 1, [0, 0], dtype == Dtype::Tf32),
    },
    Operator {
        name: "group norm",
        shapes: &[&[1, 128, 160, 96], &[128], &[128]],
        compute: |of, _| group_norm(&of[0], &of[1], &of[2], 32, 1e-6),
    },
    Operator { name: "silu", shapes: &[&[1, 64, 96, 80]], compute: |of, _| Ok(of[0].f_silu()?) },
    Operator {
        name: "upsampling",
        shapes: &[&[1, 64, 48, 40]],
        compute: |of, _| Ok(of[0].f_upsample_nearest2d([96, 80], None, None)?),
    },
    Operator {
        name: "linear layer",
        shapes: &[&[1, 500, 512], &[256, 512], &[256]],
        compute: |of, _| Ok(of[0].f_linear(&of[1], Some(&of[2]))?),
    },
    Operator {
        name: "attention in pieces",
        shapes: &[&[1, 900, 512], &[1, 900, 512], &[1, 900, 512]],
        compute: |of, _| attention::plain(&of[0], &of[1], &of[2]),
    },
    Operator {
        name: "attention of heads in pieces",
        shapes: HEADS,
        compute: |of, _| attention_of_heads(&of[0], Way::Pieces(Some(256))),
    },
];

/// Fused attention, by the width of a head that it needs a kernel for.
const FUSED: [(i64, Operator); 3] = [
    (
        ATTENTION_WIDTH,
        Operator {
            name: "fused attention",
            shapes: &[&[1, 900, 512], &[1, 900, 512], &[1, 900, 512]],
            compute: |of, _| attention::attend(tilewright_torch::copy(&of[0])?, &of[1], &of[2]),
        },
    ),
    (
        HEAD_WIDTH,
        Operator {
            name: "fused attention of heads as they lie",
            shapes: HEADS,
            compute: |of, _| attention_of_heads(&of[0], Way::Fused { apart: false }),
        },
    ),
    (
        HEAD_WIDTH,
        Operator {
            name: "fused attention of heads apart",
            shapes: HEADS,
            compute: |of, _| attention_of_heads(&of[0], Way::Fused { apart: true }),
        },
    ),
];

/// Queries, keys and values of four heads side by side, as one product gives them.
const HEADS: &[&[i64]] = &[&[1, 900, 3 * 4 * HEAD_WIDTH]];

/// Attention of heads whose queries, keys and values are parts of one tensor.
fn attention_of_heads(together: &Tensor, way: Way) -> tilewright_torch::Result<Tensor> {
    let parts = together.f_chunk(3, 2)?;
    let output = parts[0].f_contiguous()?;
    multi_head::attend_onto(&output, [&parts[0], &parts[1], &parts[2]], 4, false, way)?;
    Ok(output)
}

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
    let mut compared = Compared::on(machine.device);
    for (dtype, layout) in context.formats(&machine, true) {
        let is_there = |of: &&(i64, Operator)| attention::is_fused(machine.device, of.0, dtype);
        for operator in OPERATORS.iter().chain(FUSED.iter().filter(is_there).map(|of| &of.1)) {
            let computed = operator_results(operator, &machine, dtype, layout);
            let of = format!("{} in {dtype}, {layout}", operator.name);
            let row = json!({ "operator": operator.name, "dtype": dtype, "layout": layout });
            match computed {
                Ok([found, expected]) => compared.add(of, Ok(found), &expected, operators_error(dtype), row)?,
                Err(error) => compared.fail(&of, error, row)?,
            }
        }
    }
    Ok(compared.finding(""))
}

/// The device's result and the CPU's in f32.
fn operator_results(
    operator: &Operator,
    machine: &Machine,
    dtype: Dtype,
    layout: Layout,
) -> Result<[Tensor; 2], String> {
    let kind = kind(dtype).map_err(|error| error.to_string())?;
    // Both compute from the same values, which the type has rounded.
    let narrow = |tensor: Tensor| tensor.f_to_kind(kind).map_err(|error| error.to_string());
    let inputs: Vec<Tensor> = inputs(operator)?.into_iter().map(narrow).collect::<Result<_, _>>()?;
    let there = |tensor: &Tensor| -> tilewright_torch::Result<Tensor> {
        let tensor = tensor.f_to_device(machine.device)?;
        if tensor.dim() == 4 { to_layout(&tensor, layout) } else { Ok(tensor) }
    };
    let compute = || -> tilewright_torch::Result<[Tensor; 2]> {
        let wide: Vec<Tensor> =
            inputs.iter().map(|input| Ok(input.f_to_kind(Kind::Float)?)).collect::<tilewright_torch::Result<_>>()?;
        let found =
            (operator.compute)(&inputs.iter().map(there).collect::<tilewright_torch::Result<Vec<_>>>()?, dtype)?;
        Ok([found.f_to_device(Device::Cpu)?, (operator.compute)(&wide, Dtype::F32)?])
    };
    compute().map_err(|error| error.to_string())
}

/// A network's stage at a size, that the CPU has the reference of.
struct Case {
    network: Network,
    side: u32,
    batch: u32,
    stage: Stage,
}

const fn case(network: Network, side: u32, batch: u32, stage: Stage) -> Case {
    Case { network, side, batch, stage }
}

/// The cases that show most come first: a slow device may not reach the last.
const QUICK_CASES: [Case; 4] = [
    case(Network::FLUX, 64, 1, Stage::Decode),
    case(Network::WAN_21, 64, 1, Stage::Decode),
    case(Network::FLUX, 64, 2, Stage::Encode),
    case(Network::WAN_21, 64, 1, Stage::Encode),
];
const FULL_CASES: [Case; 8] = [
    case(Network::FLUX, 256, 1, Stage::Decode),
    case(Network::WAN_21, 128, 1, Stage::Decode),
    case(Network::FLUX, 128, 2, Stage::Encode),
    case(Network::WAN_21, 128, 1, Stage::Encode),
    case(Network::SD, 128, 2, Stage::Decode),
    case(Network::WAN_22, 64, 1, Stage::Decode),
    case(Network::SD, 128, 1, Stage::Encode),
    case(Network::WAN_22, 64, 1, Stage::Encode),
];

impl Case {
    fn name(&self) -> String {
        let batch = if self.batch > 1 { format!(" of {}", self.batch) } else { String::new() };
        format!("{} {}{batch}", self.network.name, self.stage)
    }

    fn spaces(&self) -> [Space; 3] {
        let tile = Tile { height: self.side / 2, width: self.side / 2, overlap: self.side / 8 };
        [Space::Whole, Space::Exact(Tile { overlap: 0, ..tile }), Space::Blended(tile)]
    }

    /// All in one batch. An encode has no exact tiles, and a clip no batches.
    fn plan(&self, space: Space, precision: Precision, layout: Layout) -> Option<Plan> {
        let batch = if self.network.is_video() { 1 } else { self.batch };
        let has_space = !(self.stage == Stage::Encode && matches!(space, Space::Exact(_)));
        has_space.then(|| Plan { batch, ..plan(space, precision, layout) })
    }

    fn run(&self, subject: &Subject, machine: &Machine, plan: &Plan) -> Result<Tensor, String> {
        subject.run(machine, plan, self.stage).map(|(found, _)| found)
    }
}

/// Decoders with attention in pieces, where they have fused attention otherwise.
pub fn attention_in_pieces(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    let formats = context.formats_by_speed(&machine);
    let is_fused = |(dtype, _): &(Dtype, Layout)| attention::is_fused(machine.device, ATTENTION_WIDTH, *dtype);
    if !formats.iter().flatten().any(is_fused) {
        return Ok(Finding::skipped("it has no other: see networks"));
    }
    let side = Subject::soon(Network::FLUX, &[128, 64], &machine)?.side() as u32;
    let cases = [case(Network::FLUX, side, 1, Stage::Decode), case(Network::WAN_21, 64, 1, Stage::Decode)];
    let (cpu, single) = (cpu()?, Precision::Uniform(Dtype::F32));
    let mut expected = Vec::new();
    for case in &cases {
        let plan = plan(Space::Whole, single, Layout::ChannelsLast);
        expected.push(case.run(&Subject::new(case.network, case.side)?, &cpu, &plan)?);
    }
    attention::forbid_fused();
    let mut compared = Compared::on(machine.device);
    let mut turns = Turns::until(PIECES);
    for (formats, (case, expected)) in
        formats.iter().flat_map(|formats| cases.iter().zip(&expected).map(move |of| (formats, of)))
    {
        // Networks that are loaded already keep their attention.
        let subject = Subject::new(case.network, case.side)?;
        for (dtype, layout) in formats {
            if !turns.begin() {
                continue;
            }
            let of = format!("{}, {dtype}, {layout}", case.name());
            let found = case.run(&subject, &machine, &plan(Space::Whole, precision(*dtype), *layout));
            let row = json!({ "network": case.name(), "dtype": dtype, "layout": layout });
            compared.add(of, found, expected, network_tolerance(*dtype), row)?;
        }
    }
    Ok(compared.finding(turns))
}

/// Decoders and encoders in every format and space.
pub fn networks(context: &Context) -> Result<Finding, String> {
    let machine = context.machine()?;
    let cpu = cpu()?;
    let (cases, time): (&[Case], _) = match context.is_quick() {
        true => (&QUICK_CASES, QUICK),
        false => (&FULL_CASES, FULL),
    };
    let mut compared = Compared::on(machine.device);
    let mut turns = Turns::until(time);
    // All networks come in the fast types first.
    let formats = context.formats_by_speed(&machine);
    for (case, formats) in formats.iter().flat_map(|formats| cases.iter().map(move |case| (case, formats))) {
        let mut subject = None;
        for space in case.spaces() {
            let mut expected = None;
            for (dtype, layout) in formats {
                let precisions = [precision(*dtype), Precision::Mixed(*dtype)];
                let is_narrow = precisions[0] != precisions[1] && *dtype != Dtype::F32;
                for precision in precisions.into_iter().take(if is_narrow { 2 } else { 1 }) {
                    let Some(plan) = case.plan(space, precision, *layout) else { continue };
                    if !turns.begin() {
                        continue;
                    }
                    let subject = match &subject {
                        Some(subject) => subject,
                        None => subject.insert(Subject::of_batch(case.network, case.side, case.batch)?),
                    };
                    let of = format!("{}, {space}, {precision}, {layout}", case.name());
                    let expected = match &expected {
                        Some(expected) => expected,
                        None => {
                            let single = Precision::Uniform(Dtype::F32);
                            let plan = Plan { precision: single, layout: Layout::ChannelsLast, ..plan.clone() };
                            expected.insert(case.run(subject, &cpu, &plan)?)
                        }
                    };
                    let row = json!({
                        "network": case.name(), "space": space.to_string(), "precision": precision, "layout": layout,
                    });
                    let found = case.run(subject, &machine, &plan);
                    compared.add(of, found, expected, network_tolerance(*dtype), row)?;
                }
            }
        }
    }
    Ok(compared.finding(turns))
}
