//! A piece of work that plans are carried out for, one attempt after the other.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use tch::Device;
use tilewright_mapped::meeting;
use tilewright_models::{Error as ModelError, LoadStep};
use tilewright_plan::{Decision, Failure, Outcome, PoolStatistics, Release, UnderWay, Vae, Work};
use tilewright_torch::{Error as TorchError, Pace, memory};

use crate::{
    Cancelled, Error, Next, Observer, Result,
    capturing::{Inputs, Values},
    profiling::Profiling,
};

/// A piece of work. It keeps what one attempt leaves to the next.
pub(crate) trait Task<W: Work> {
    /// The result of the work.
    type Output;

    /// The inputs of the work, and what running it again takes beside them, for a capture.
    ///
    /// # Errors
    /// A tensor can't be brought to host memory.
    fn inputs(&mut self) -> tilewright_capture::Result<Inputs>;

    /// The tensors of the output by name, for a capture.
    ///
    /// # Errors
    /// As [`Self::inputs`].
    fn outputs(&mut self, output: &Self::Output) -> tilewright_capture::Result<Values>;

    /// True if the next attempt goes on where one before it came to.
    fn goes_on(&self) -> bool {
        false
    }

    /// Keeps what goes by, such as frames, for a capture.
    fn keep_for_capture(&mut self) {}

    /// Carries a plan out; gives the output and what was measured.
    fn attempt(&mut self, plan: &W::Plan, context: &mut AttemptContext<'_, W>)
    -> Attempted<(Self::Output, W::Outcome)>;

    /// Checks that the files that the work reads are as they were when they were opened.
    fn check_files(&self) -> Result<()>;

    /// The way out after a plan, the last one, has failed.
    fn advice(&self, plan: &W::Plan, failure: Failure) -> String;

    /// The clip or the sample that the next attempt goes on with. `last` is the plan of the last
    /// attempt in this process.
    fn under_way(&self, _last: Option<&W::Plan>) -> Option<UnderWay<W>> {
        None
    }

    /// Steps of a sample that are done.
    fn steps_done(&self) -> Option<u32> {
        None
    }

    /// Frames of a clip or steps of a sample that an earlier process has done.
    fn resumed(&self) -> u32 {
        0
    }

    /// Holds a first decision to what an earlier process has done.
    fn bind(&self, _decision: &mut Decision<W>) {}

    /// True if two plans are carried out alike: one fails where the other one failed.
    fn is_alike(&self, one: &W::Plan, other: &W::Plan) -> bool {
        W::is_same_work(one, other)
    }
}

/// The surroundings of an attempt.
pub(crate) struct AttemptContext<'a, W: Work = Vae> {
    pub observer: &'a mut dyn Observer,
    /// The brake that lets the program run only a little ahead of the GPU's queue.
    pub pace: Pace,
    /// Grows by the time that loading weights takes.
    pub load: &'a mut Duration,
    /// Takes what a part of the work makes likely for all of it.
    pub learn: &'a mut dyn FnMut(&W::Outcome),
    /// The profile of the attempt.
    pub profiling: &'a mut Profiling,
    /// The beginning and the length of the progress at hand: of work that runs more than once, each
    /// run has a part.
    pub span: [f64; 2],
}

impl<W: Work> AttemptContext<'_, W> {
    /// Tells the observer the share that is done, from 0 to 1, and ends the network's run if it
    /// cancels.
    pub fn progress(&mut self, share: f64) -> tilewright_models::Result<()> {
        meeting::at(format_args!("progress"));
        self.pace.keep()?;
        let [begin, length] = self.span;
        match self.observer.progress(begin + share * length) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(Cancelled) => Err(ModelError::Cancelled),
        }
    }

    /// Asks the observer between two chunks of a clip.
    pub fn between_chunks(&mut self) -> Attempted<()> {
        match self.observer.between_chunks() {
            Next::GoOn => Ok(()),
            Next::AskAgain => Err(AttemptError::AskAgain),
        }
    }
}

/// The result of an attempt, or of a part of one.
pub(crate) type Attempted<T> = std::result::Result<T, AttemptError>;

/// The end of an attempt without a result.
#[derive(Debug)]
pub(crate) enum AttemptError {
    /// Another plan may avoid it.
    Failed(Failure),
    /// No other plan avoids it, unless libtorch refused this one.
    Broken(Error),
    /// The planner is to be asked again.
    AskAgain,
    /// The user or the caller ended the job.
    Cancelled,
}

impl<E: Into<Error>> From<E> for AttemptError {
    fn from(error: E) -> Self {
        match error.into() {
            Error::Torch(TorchError::OutOfMemory { bytes })
            | Error::Model(ModelError::Torch(TorchError::OutOfMemory { bytes })) => {
                Self::Failed(Failure::OutOfMemory { bytes })
            }
            Error::Interrupted | Error::Model(ModelError::Cancelled) => Self::Cancelled,
            other => Self::Broken(other),
        }
    }
}

/// The end of an attempt, of which nothing counts if a file that it read has changed meanwhile:
/// neither its result nor its failure.
pub(crate) fn unless_files_changed<T>(ended: Attempted<T>, check: impl FnOnce() -> Result<()>) -> Attempted<T> {
    match &ended {
        Err(AttemptError::Cancelled) => {}
        Err(AttemptError::Broken(error)) if error.is_lost_device() => {}
        _ => check().map_err(AttemptError::Broken)?,
    }
    ended
}

/// The memory of a device that an attempt may take, and the bytes of it that are taken before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// All that the work may hold at once.
    pub limit: u64,
    /// Weights that are loaded, as far as the limit counts them.
    pub weights: u64,
    /// State that an earlier attempt left.
    pub state: u64,
}

impl Allowance {
    /// A limit of which nothing is taken.
    pub fn whole(limit: u64) -> Self {
        Self { limit, weights: 0, state: 0 }
    }

    /// Bytes that are left for the attempt.
    pub fn rest(&self) -> u64 {
        self.limit.saturating_sub(self.weights).saturating_sub(self.state)
    }
}

/// Carries out what `attempt` says within an allowance and measures it. The peak counts what was
/// taken before.
pub(crate) fn measure<T>(
    device: Device,
    allowance: Allowance,
    attempt: impl FnOnce() -> Attempted<T>,
) -> Attempted<(T, Outcome)> {
    let Allowance { weights, state, .. } = allowance;
    memory::reset_peak(device)?;
    let before = memory::of(device)?;
    let limit = memory::Limit::new(device, allowance.rest())?;
    let start = Instant::now();
    let output = attempt();
    let elapsed = start.elapsed();
    drop(limit);
    let output = output?;
    let after = memory::of(device)?;
    let misses = after.system - before.system;
    let outcome = Outcome {
        elapsed,
        peak_bytes: (after.peak + state).saturating_sub(before.in_use).saturating_add(weights),
        weights_bytes: weights,
        attempts: 1,
        pool: PoolStatistics {
            hits: (after.allocations - before.allocations).saturating_sub(misses),
            misses,
            held_bytes: after.held,
            fragmentation: after.fragmentation,
        },
        ..Outcome::default()
    };
    Ok((output, outcome))
}

/// Gives memory back after an attempt that failed, or whose plan releases it at the end: it must
/// not stay in the way of the next one.
pub(crate) fn settle<T>(device: Device, release: Release, output: Attempted<T>) -> Attempted<T> {
    let waited = tilewright_torch::device::synchronize(device);
    // A fault that shows here is of the work, unless that failed by itself.
    let output = output.and_then(|output| waited.map(|()| output).map_err(AttemptError::from));
    if output.is_err() || release != Release::Keep {
        memory::trim(device)?;
    }
    output
}

/// Gives memory back between two steps of a plan that asks for it. A GPU's goes back at the end:
/// its driver takes milliseconds for each block, and the limit makes room where it is needed.
pub(crate) fn trim_between(device: Device, release: Release) -> Result<()> {
    if release == Release::EachStep && device == Device::Cpu {
        memory::trim(device)?;
    }
    Ok(())
}

/// The likely outcome of a whole clip, from the time of a share of it, its peak, and the weights in
/// the peak, in bytes.
pub(crate) fn likely(spent: Duration, share: f64, [peak_bytes, weights_bytes]: [u64; 2]) -> Outcome {
    let elapsed = Duration::try_from_secs_f64(spent.as_secs_f64() / share).unwrap_or(Duration::MAX);
    Outcome { elapsed, peak_bytes, weights_bytes, attempts: 1, ..Outcome::default() }
}

/// A check of the peak within a clip. The allocator's own cap leaves room for rounding, and is off
/// past the memory that an APU's runtime reports.
pub(crate) fn check_peak(device: Device, peak: u64, memory_limit: u64) -> Attempted<()> {
    if device != Device::Cpu && peak > memory_limit {
        return Err(AttemptError::Failed(Failure::OverLimit { bytes: peak }));
    }
    Ok(())
}

/// The weights of a network that a plan asks for, leased within the observer's hearing, which can
/// cancel a load. The second value of `lease` is the time that loading took.
pub(crate) fn load<T, W: Work>(
    context: &mut AttemptContext<'_, W>,
    lease: impl FnOnce(LoadStep<'_>) -> Result<(T, Duration)>,
) -> Result<T> {
    context.observer.loading();
    let observer = &mut *context.observer;
    let mut step = |share| match observer.loading_progress(share) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(Cancelled) => Err(ModelError::Cancelled),
    };
    let (weights, took) = lease(&mut step)?;
    *context.load += took;
    context.observer.loaded();
    Ok(weights)
}
