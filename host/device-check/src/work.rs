//! The work that parts do: decodes and encodes of generated inputs by one plan each.

use std::{
    collections::BTreeMap,
    fmt,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use tch::{Device, Tensor};
use tilewright_bench::{Latents, Network, Weights};
use tilewright_engine::{
    Cancelled, ClipEncodeJob, ClipExtents, EncodeJob, Machine, Observer, Overrides, Probe, Unfinished,
};
use tilewright_pipeline::{Decode, FrameStore, Model};
use tilewright_plan::{
    Backend, Cost, CostModel, Decision, Dtype, Layout, LearnReport, Objective, Plan, Planner, PolicyIdentity,
    Precision, Question, Record, Release, Space, Stage, Work,
};
use tilewright_torch::{device::Choice, scalar};

use crate::Effort;

/// A type slower than f32 by more than this is left out: some processors emulate f16.
const HOPELESS: f64 = 8.0;

/// The longest that one decode is to take where parts repeat it.
const SOON: Duration = Duration::from_secs(1);

/// The seed of weights and latents.
const SEED: u64 = 1;

/// The device that is checked.
pub struct Context {
    choice: Choice,
    /// The extent of the check.
    pub effort: Effort,
}

impl Context {
    pub(crate) fn new(choice: Choice, effort: Effort) -> Self {
        Self { choice, effort }
    }

    /// True if nobody asked for a device by name.
    pub(crate) fn is_automatic(&self) -> bool {
        self.choice == Choice::Auto
    }

    /// The device.
    pub(crate) fn machine(&self) -> Result<Machine, String> {
        Machine::open(self.choice, Probe::Kept).map_err(|error| error.to_string())
    }

    /// The device, measured now.
    pub(crate) fn measured_machine(&self) -> Result<Machine, String> {
        Machine::open(self.choice, Probe::Fresh).map_err(|error| error.to_string())
    }

    /// The types and memory orders that the device is worth being checked in: with `all`, also the
    /// types that it is slow in, unless it emulates them.
    pub(crate) fn formats(&self, machine: &Machine, all: bool) -> Vec<(Dtype, Layout)> {
        let measured = &machine.measured;
        let single = measured.best(Dtype::F32).unwrap_or(0.0);
        let is_fast = |dtype: Dtype| dtype == Dtype::F32 || machine.facts.fast_dtypes.contains(&dtype);
        // libtorch computes small convolutions of f16 by one thread's plain loop on processors
        // without instructions for it: one decode takes minutes.
        let is_loop = |dtype: Dtype| measured.backend == Backend::Cpu && dtype == Dtype::F16;
        let is_worth = |dtype: Dtype| match (all || !self.is_quick()) && !is_loop(dtype) {
            true => measured.best(dtype).is_some_and(|rate| rate * HOPELESS >= single),
            false => is_fast(dtype),
        };
        let formats = measured.speeds.iter().map(|speed| (speed.dtype, speed.layout));
        formats.filter(|(dtype, _)| is_worth(*dtype)).collect()
    }

    /// [`Self::formats`] of the types that the device is fast in, and of the others: these come
    /// last.
    pub(crate) fn formats_by_speed(&self, machine: &Machine) -> [Vec<(Dtype, Layout)>; 2] {
        let is_fast = |(dtype, _): &(Dtype, Layout)| machine.facts.fast_dtypes.contains(dtype);
        let (fast, slow) = self.formats(machine, false).into_iter().partition(is_fast);
        [fast, slow]
    }

    /// True if only the sizes that show most faults are checked.
    pub(crate) fn is_quick(&self) -> bool {
        self.effort == Effort::Quick
    }
}

/// Runs of a part, of which none begins after some time: a slow device checks what comes first.
#[derive(Debug)]
pub struct Turns {
    ends: Instant,
    left_out: usize,
}

impl Turns {
    /// Runs that begin within the given time from now.
    pub fn until(time: Duration) -> Self {
        Self { ends: Instant::now() + time, left_out: 0 }
    }

    /// True if the next run may begin.
    pub fn begin(&mut self) -> bool {
        self.begin_all(1)
    }

    /// True if the next runs, for which something has to be made first, may begin.
    pub fn begin_all(&mut self, runs: usize) -> bool {
        let is_late = Instant::now() > self.ends;
        self.left_out += if is_late { runs } else { 0 };
        !is_late
    }
}

/// The end of a part's detail: the runs that were left out, if there are any.
impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.left_out {
            0 => Ok(()),
            runs => write!(f, "; {runs} were left out for lack of time"),
        }
    }
}

/// The CPU, for references.
pub fn cpu() -> Result<Machine, String> {
    Machine::open(Choice::Cpu, Probe::Kept).map_err(|error| error.to_string())
}

/// An autoencoder of generated weights, and inputs for it.
pub struct Subject {
    model: Model,
    latents: Tensor,
    /// [N, 3, H, W] of pictures, [T, 3, H, W] of a clip, in −1…1.
    frames: Tensor,
}

/// The end of an encode or a decode: a tensor, or the error with the record as far as it goes.
type End = Result<(Tensor, Record), Unfinished>;

impl Subject {
    /// A square picture, or a clip of a few frames, of a side in pixels.
    pub fn new(network: Network, side: u32) -> Result<Self, String> {
        Self::of_batch(network, side, 1)
    }

    /// A square picture, or a clip of a few frames, of the largest of these sides that a decode in
    /// f32 is expected to take [`SOON`] for at most. They are in falling order, and the last one
    /// serves a device that is slower.
    pub fn soon(network: Network, sides: &[u32], machine: &Machine) -> Result<Self, String> {
        let whole = plan(Space::Whole, Precision::Uniform(Dtype::F32), Layout::ChannelsFirst);
        let (last, larger) = sides.split_last().ok_or("a picture without a side")?;
        for side in larger {
            let subject = Self::new(network, *side)?;
            if subject.expected(machine, &whole)?.elapsed <= SOON {
                return Ok(subject);
            }
        }
        Self::new(network, *last)
    }

    /// So many pictures, or one clip.
    pub fn of_batch(network: Network, side: u32, batch: u32) -> Result<Self, String> {
        let path = Weights { network, seed: SEED }.cached_file().map_err(|error| error.to_string())?;
        let model = Model::open(&path, Overrides::default()).map_err(|error| error.to_string())?;
        let latents = Latents::of(&model, [side; 2], batch, network.is_video().then_some(2), SEED);
        let batch = if network.is_video() { 1 + network.temporal_scale() as usize } else { latents.batch };
        let extent = latents.width * network.scale as usize;
        let frames = Latents { batch, channels: 3, height: extent, width: extent, frames: None, seed: SEED };
        let tensor = |of: Latents| of.tensor().map_err(|error| error.to_string());
        let frames = scalar::clamp(&tensor(frames)?, -1.0, 1.0).map_err(|error| error.to_string())?;
        let latents = tensor(latents)?;
        Ok(Self { model, latents, frames })
    }

    /// Encodes or decodes by a plan, within no limit and unwatched.
    pub fn run(&self, machine: &Machine, plan: &Plan, stage: Stage) -> Result<(Tensor, Record), String> {
        let end = match stage {
            Stage::Encode => self.encode(machine, plan),
            _ => self.decode(machine, plan, None, &mut Quiet),
        };
        end.map_err(|end| end.error.to_string())
    }

    /// Encodes by a plan.
    fn encode(&self, machine: &Machine, plan: &Plan) -> End {
        let (limit, objective, mut planner) = (u64::MAX / 4, Objective::Fastest, OnePlan::new(plan));
        match &self.model {
            Model::Picture(vae) => {
                let job = EncodeJob::new(machine, vae, &self.frames, limit, objective)?;
                let finished = job.run(&mut planner, &mut Quiet)?;
                Ok((finished.output, finished.record))
            }
            Model::Clip(vae) => {
                let (frames, _, height, width) = self.frames.size4().map_err(tilewright_engine::Error::from)?;
                let [frames, height, width] = [frames, height, width].map(|extent| extent as u32);
                let extents = ClipExtents { frames, height, width };
                let job = ClipEncodeJob::new(machine, vae, extents, limit, objective)?;
                let mut given = 0;
                let mut next = |count: u32| {
                    let part = self.frames.f_narrow(0, given, i64::from(count))?;
                    given += i64::from(count);
                    Ok(part)
                };
                let finished = job.run(&mut planner, &mut Quiet, &mut next)?;
                Ok((finished.output.latents, finished.record))
            }
        }
    }

    /// Decodes by a plan within a limit in bytes.
    pub fn decode(&self, machine: &Machine, plan: &Plan, limit: Option<u64>, observer: &mut dyn Observer) -> End {
        let limit = limit.unwrap_or(u64::MAX / 4);
        let job = Decode::new(machine, &self.model, &self.latents, limit, Objective::Fastest)?;
        let mut frames = FrameStore::new(true);
        let finished = job.run(&mut OnePlan::new(plan), observer, &mut frames, &[0])?;
        Ok((frames.tensor().map_err(|error| tilewright_engine::Error::Sink(error.into()))?, finished.record))
    }

    /// The expected cost of a decode by a plan.
    pub fn expected(&self, machine: &Machine, plan: &Plan) -> Result<Cost, String> {
        let job = Decode::new(machine, &self.model, &self.latents, u64::MAX / 4, Objective::Fastest);
        job.map_err(|error| error.to_string())?.estimate(plan)
    }

    /// The side of its pictures or frames in pixels.
    pub fn side(&self) -> i64 {
        self.frames.size().last().copied().unwrap_or_default()
    }
}

/// The precision with as much as possible in a type.
pub fn precision(dtype: Dtype) -> Precision {
    match dtype {
        // Only convolutions round to it.
        Dtype::Tf32 => Precision::Mixed(dtype),
        _ => Precision::Uniform(dtype),
    }
}

/// A plan for whole batches.
pub fn plan(space: Space, precision: Precision, layout: Layout) -> Plan {
    Plan { space, precision, layout, release: Release::AtEnd, reason: "checks the device".into(), ..Plan::plain() }
}

/// A planner that knows one plan, and has no other after a failure.
pub struct OnePlan<W: Work> {
    identity: PolicyIdentity,
    plan: W::Plan,
}

impl<W: Work> OnePlan<W> {
    pub fn new(plan: &W::Plan) -> Self {
        let identity = PolicyIdentity {
            name: "check".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            digest: String::new(),
            settings: BTreeMap::new(),
        };
        Self { identity, plan: plan.clone() }
    }
}

impl<W: Work> Planner<W> for OnePlan<W> {
    fn identity(&self) -> &PolicyIdentity {
        &self.identity
    }

    fn decide(&mut self, _: &Question<'_, W>, _: Arc<dyn CostModel<W>>) -> Decision<W> {
        Decision {
            answer: Some(self.plan.clone()),
            plan: self.plan.clone(),
            adjusted: Vec::new(),
            fallback: None,
            elapsed: Duration::ZERO,
            fuel: 0,
            candidates: Vec::new(),
            log: Vec::new(),
        }
    }

    fn learn(&mut self, _: &Question<'_, W>, _: &W::Plan, _: &W::Outcome) -> LearnReport {
        LearnReport::default()
    }
}

/// Watches nothing.
pub struct Quiet;

impl Observer for Quiet {}

/// Cancels a decode once a share of it is done.
pub struct CancelAt {
    pub share: f64,
    pub cancelled: Option<std::time::Instant>,
}

impl Observer for CancelAt {
    fn progress(&mut self, share: f64) -> ControlFlow<Cancelled> {
        if share < self.share {
            return ControlFlow::Continue(());
        }
        self.cancelled.get_or_insert_with(std::time::Instant::now);
        ControlFlow::Break(Cancelled)
    }
}

/// The root of the mean square of a difference, over that of the expected values.
pub fn relative_error(found: &Tensor, expected: &Tensor) -> Result<f64, String> {
    if found.size() != expected.size() {
        return Err(format!("the result is {:?}, the CPU's is {:?}", found.size(), expected.size()));
    }
    let error = || -> Result<f64, tch::TchError> {
        let wide = |tensor: &Tensor| tensor.f_to_device(Device::Cpu)?.f_to_kind(tch::Kind::Double);
        let (found, expected) = (wide(found)?, wide(expected)?);
        let square = |tensor: &Tensor| -> Result<f64, tch::TchError> {
            f64::try_from(tensor.f_square()?.f_mean(tch::Kind::Double)?)
        };
        Ok((square(&found.f_sub(&expected)?)? / square(&expected)?.max(1e-30)).sqrt())
    };
    error().map_err(|error| error.to_string())
}
