//! A device with known prices, which follow from the pixels that a plan holds at once, and a stub
//! host that answers them and counts the questions.

use std::{cell::Cell, rc::Rc};

use tilewright_sdk::{
    Backend, Capabilities, Cost, Device, Direction, Dtype, HostMemory, Kind, Layout, Memory, Model, Objective, Outcome,
    Plan, Precision, Request, StoredType, Time, Trial, UnderWay, Weights, host::Stub,
};

/// Bytes per pixel held at once, whole, in f32.
const HELD: f64 = 4000.0;

/// Bytes per pixel of the picture that tiles are gathered in.
const GATHERED: f64 = 12.0;

/// Bytes of causal cache per pixel that is held of a clip's picture, in f32.
const STATE: f64 = 2000.0;

/// Output frames per latent frame.
const LATENT_FRAME: u32 = 4;

/// The most and the least share of whole's memory that exact bands take, and the factor on its
/// time.
const EXACT_MEMORY: (f64, f64) = (0.60, 0.35);
const EXACT_TIME: f64 = 1.03;

/// The request and the device, with everything that a test changes.
#[derive(Clone, Debug)]
pub struct Case {
    pub backend: Backend,
    pub height: u32,
    pub width: u32,
    pub batch: u32,
    /// More than one: a clip that carries its causal cache.
    pub frames: u32,
    /// The plan that the clip is under way with, its first frames delivered.
    pub begun: Option<Plan>,
    /// The extra time if the state of waiting tiles is kept in host memory; none if that is
    /// impossible.
    pub offload: Option<f64>,
    /// The extra time of each chunk, as a share of a frame's time.
    pub per_chunk: f64,
    /// A share of whole's memory in f32, channels first; of a clip a latent frame at a time.
    pub limit: f64,
    pub objective: Objective,
    /// The user allows blended tiles where exact plans fit.
    pub blended: bool,
    pub family: &'static str,
    pub exact: bool,
    pub fast: Vec<Dtype>,
    pub offered: &'static str,
    /// The time of f16 over that of bf16.
    pub half: f64,
}

impl Case {
    pub fn new(backend: Backend, side: u32, limit: f64, objective: Objective) -> Self {
        Self {
            backend,
            height: side,
            width: side,
            batch: 1,
            frames: 1,
            begun: None,
            per_chunk: 0.04,
            offload: None,
            limit,
            objective,
            blended: true,
            family: "flux",
            exact: true,
            fast: if backend == Backend::Cpu { vec![] } else { vec![Dtype::Bf16, Dtype::F16] },
            offered: "f32,bf16,f16",
            half: 1.0,
        }
    }

    /// A clip of 81 frames.
    pub fn clip(backend: Backend, side: u32, limit: f64, objective: Objective) -> Self {
        Self { frames: 81, family: "wan-2.1", ..Self::new(backend, side, limit, objective) }
    }

    /// Whole in f32, channels first, in the chunks that limits refer to.
    pub fn natural(&self) -> Plan {
        Plan { time: if self.frames > 1 { Time::Carried(LATENT_FRAME) } else { Time::Whole }, ..f32() }
    }

    /// True of an exact plan where blended ones are not allowed: it may come without its margin.
    pub fn may_be_tight(&self, plan: &Plan) -> bool {
        !self.blended && plan.kind() != Kind::Blended
    }

    pub fn request(&self) -> Request {
        let half = [Dtype::Tf32, Dtype::Bf16, Dtype::F16].into_iter().filter(|dtype| match dtype {
            Dtype::Tf32 => self.offered.contains("tf32"),
            Dtype::Bf16 => self.offered.contains("bf16"),
            _ => self.offered.contains(",f16"),
        });
        Request {
            direction: Direction::Decode,
            model: Model {
                family: self.family.into(),
                weights: Weights {
                    stored_bytes: 1 << 27,
                    stored_types: vec![StoredType { name: "bf16".into(), bytes: 1 << 27 }],
                },
                sample_size: None,
            },
            device: Device {
                backend: self.backend,
                name: "test".into(),
                arch: "test".into(),
                compute_units: 1,
                total_bytes: 1 << 34,
                free_bytes: 1 << 33,
                unified: false,
                fast_dtypes: self.fast.clone(),
            },
            host: HostMemory { total_bytes: 0, free_bytes: 0, transfer_rate: 0 },
            limit_bytes: (self.limit * self.price(&self.natural()).held() as f64) as u64,
            objective: self.objective,
            allows_blended: self.blended,
            batch: self.batch,
            frames: self.frames,
            height: self.height,
            width: self.width,
            spatial_scale: 8,
            temporal_scale: if self.frames > 1 { LATENT_FRAME } else { 1 },
            capabilities: Capabilities {
                dtypes: std::iter::once(Dtype::F32).chain(half).collect(),
                tile_unit: 8,
                tile_least: 64,
                batch_most: 64,
                prefetch_most: 0,
                exact: self.exact,
                carried: self.frames > 1,
                offload: self.offload.is_some(),
                options: vec![],
            },
            under_way: self.begun.clone().map(|plan| UnderWay { frames_done: LATENT_FRAME, plan }),
            hints: vec![],
        }
    }

    /// 100 ns per pixel in f32; bf16 and f16 take half of time and memory, mixed three quarters of
    /// the memory. Channels-last takes 15 % less time and 10 % more memory on a CPU, and a fifth
    /// more time elsewhere.
    pub fn price(&self, plan: &Plan) -> Cost {
        let picture = f64::from(self.height) * f64::from(self.width);
        let is_cpu = self.backend == Backend::Cpu;
        let (order_time, order_memory) = match (plan.layout, is_cpu) {
            (Layout::ChannelsFirst, _) => (1.0, 1.0),
            (Layout::ChannelsLast, true) => (0.85, 1.1),
            (Layout::ChannelsLast, false) => (1.2, 1.0),
        };
        let (type_time, type_memory) = match plan.precision {
            Precision::Uniform(Dtype::F32) => (1.0, 1.0),
            Precision::Mixed(Dtype::Tf32) => (0.6, 1.0),
            Precision::Mixed(_) => (if is_cpu { 1.1 } else { 0.55 }, 0.75),
            Precision::Uniform(_) => (if is_cpu { 1.1 } else { 0.5 }, 0.5),
        };
        let type_time = if plan.precision.dtype() == Dtype::F16 { self.half * type_time } else { type_time };
        let (held, worked, tiles, gathered) = match (plan.kind(), plan.tile()) {
            (Kind::Exact, Some(band)) => {
                let share = f64::from(band.height) / f64::from(self.height);
                let (most, least) = EXACT_MEMORY;
                let memory = least + (most - least) * share;
                (picture * memory, picture * EXACT_TIME, self.height.div_ceil(band.height), 0.0)
            }
            (Kind::Blended, Some(tile)) => {
                let along = |extent: u32, side: u32| match side >= extent {
                    true => 1,
                    false => (extent - side).div_ceil(side - tile.overlap) + 1,
                };
                let tiles = along(self.height, tile.height) * along(self.width, tile.width);
                let pixels = f64::from(tile.height.min(self.height)) * f64::from(tile.width.min(self.width));
                (pixels, pixels * f64::from(tiles), tiles, GATHERED * picture)
            }
            _ => (picture, picture, 1, 0.0),
        };
        let jobs = tiles * self.batch;
        // A clip's tiles run over all frames, a latent frame at a time, and hold no state but their
        // own.
        let (at_once, chunk, held_state) = match (plan.time, plan.kind()) {
            _ if self.frames == 1 => (1, 1, 0.0),
            (Time::Carried(frames), Kind::Blended) if plan.offload => (frames.min(self.frames), frames, held),
            (Time::Carried(frames), _) => (frames.min(self.frames), frames.min(self.frames), picture),
            (_, Kind::Blended) => (LATENT_FRAME.min(self.frames), LATENT_FRAME, held),
            _ => (self.frames, self.frames, picture),
        };
        let batch = if self.frames == 1 { plan.batch.min(jobs.max(1)) } else { 1 };
        let all_frames =
            f64::from(self.frames) * (1.0 + if self.frames > 1 { self.per_chunk / f64::from(chunk) } else { 0.0 });
        let waits = 1.0 + self.offload.filter(|_| plan.offload).unwrap_or(0.0);
        let together = if plan.time == Time::Whole { f64::from(self.frames) } else { 1.0 };
        let ragged = self.frames > 1 && !(self.frames - 1).is_multiple_of(chunk);
        let bytes = (HELD * held * f64::from(at_once) + STATE * held_state) * order_memory * type_memory;
        let peak_bytes = (bytes * f64::from(batch) + gathered * together) as u64;
        Cost {
            memory: Memory { peak_bytes, weights_bytes: 0 },
            elapsed_ns: (100.0 * worked * waits * all_frames * order_time * type_time * f64::from(self.batch)) as u64,
            tiles: jobs,
            shapes: 1 + u32::from(!jobs.is_multiple_of(batch)) + u32::from(ragged),
            rework: worked / picture,
        }
    }

    /// The host with these prices and a history. Counts the estimates that are asked for.
    pub fn install(&self, trials: Vec<Trial>) -> Rc<Cell<u32>> {
        let (case, count) = (self.clone(), Rc::new(Cell::new(0)));
        let counted = count.clone();
        let estimate = Box::new(move |plan: &Plan| {
            counted.set(counted.get() + 1);
            Ok(case.price(plan))
        });
        Stub { estimate, trials }.install();
        count
    }

    /// An outcome of these multiples of the expected time and memory.
    pub fn outcome(&self, plan: &Plan, time: f64, memory: f64) -> Outcome {
        let cost = self.price(plan);
        let times = |number: u64, factor: f64| (number as f64 * factor) as u64;
        let memory = Memory { peak_bytes: times(cost.held(), memory), weights_bytes: 0 };
        Outcome { memory, elapsed_ns: times(cost.elapsed_ns, time), load_ns: 0, attempts: 1 }
    }

    pub fn trial(&self, plan: &Plan, time: f64, memory: f64) -> Trial {
        Trial { plan: plan.clone(), outcome: self.outcome(plan, time, memory) }
    }
}

/// Whole in f32, channels first.
pub fn f32() -> Plan {
    Plan::whole(Precision::Uniform(Dtype::F32))
}
