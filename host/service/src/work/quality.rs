//! The quality of a canary's output: the same job is decoded under the incumbent's plan, and the
//! PSNR between the two is taken.

use std::sync::Arc;

use tch::Kind;
use tilewright_pipeline::{Decode, FrameStore};
use tilewright_plan::Record;
use tilewright_rollout::{Assignment, Revision, UntrackedPlanner};
use tilewright_torch::scalar;

use super::{
    execute::{JobInput, objective},
    memory_limit,
    observer::{CancelOnly, StopSignal},
};
use crate::{device::Worker, error::one_line, jobs::StoredJob};

/// The most bytes of frames that are held to compare; larger clips are not compared.
const MOST_HELD: u64 = 2 << 30;

/// True if a job's output is small enough to be held.
pub fn fits_buffer(stored: &StoredJob) -> bool {
    let job = &stored.job;
    let sides = [job.batch, job.frames, job.height, job.width].map(u64::from);
    // Two outputs, three or four channels, four bytes each.
    sides.iter().product::<u64>().saturating_mul(2 * 4 * 4) <= MOST_HELD
}

/// Decodes a job under the incumbent's plan and compares. Returns the incumbent's record and the
/// PSNR in dB, infinite if nothing differs.
///
/// # Errors
/// One line.
pub fn compare_with_incumbent(
    worker: &Worker,
    stored: &StoredJob,
    input: &JobInput,
    assignment: &Assignment,
    incumbent: &Arc<Revision>,
    canarys: &FrameStore,
    stop: &StopSignal,
) -> Result<(Record, f64), String> {
    let (limit, objective) = (memory_limit(worker, stored, assignment), objective(stored, assignment));
    let job = Decode::new(&worker.device.machine, &input.model.model, &input.tensor, limit, objective);
    let job = job.map_err(|error| one_line(&error))?;
    let mut incumbents = FrameStore::new(true);
    let done = vec![0; stored.job.batch as usize];
    let mut planner = UntrackedPlanner::new(incumbent);
    let finished = job.run(&mut planner, &mut CancelOnly(stop), &mut incumbents, &done);
    let record = finished.map_err(|unfinished| one_line(&unfinished.error))?.record;
    let mean = || -> tilewright_pipeline::Result<f64> {
        let (canarys, incumbents) = (canarys.tensor()?, incumbents.tensor()?);
        let difference = scalar::clamp(&canarys, -1.0, 1.0)?.f_sub(&scalar::clamp(&incumbents, -1.0, 1.0)?)?;
        Ok(difference.f_square()?.f_mean(Kind::Double)?.f_double_value(&[])?)
    };
    let mean = mean().map_err(|error| one_line(&error))?;
    // The values span −1…1: a peak of 2.
    Ok((record, 10.0 * (4.0 / mean).log10()))
}
