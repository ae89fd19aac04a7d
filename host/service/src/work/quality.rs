//! The quality of a canary's output: the same job is decoded under the incumbent's plan, and the
//! PSNR between the two is taken.

use std::sync::Arc;

use tch::{Kind, Tensor};
use tilewright_decode::Model;
use tilewright_engine::{ClipJob, DecodeJob, Sink};
use tilewright_plan::Record;
use tilewright_rollout::{Assignment, Revision, UntrackedPlanner};

use super::{
    execute::{JobInput, objective, read_input},
    memory_limit,
    observer::{CancelOnly, StopSignal},
};
use crate::{device::Worker, error::one_line, jobs::StoredJob, state::ServerState};

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
    server: &ServerState,
    worker: &Worker,
    stored: &StoredJob,
    assignment: &Assignment,
    incumbent: &Arc<Revision>,
    canarys: &Tensor,
    stop: &StopSignal,
) -> Result<(Record, f64), String> {
    let input = read_input(server, stored)?;
    let (record, incumbents) = decode_as(worker, stored, assignment, &input, incumbent, stop)?;
    let mean = || -> Result<f64, tch::TchError> {
        let difference = canarys.f_clamp(-1.0, 1.0)?.f_sub(&incumbents.f_clamp(-1.0, 1.0)?)?;
        difference.f_square()?.f_mean(Kind::Double)?.f_double_value(&[])
    };
    let mean = mean().map_err(|error| error.to_string())?;
    // The values span −1…1: a peak of 2.
    Ok((record, 10.0 * (4.0 / mean).log10()))
}

fn decode_as(
    worker: &Worker,
    stored: &StoredJob,
    assignment: &Assignment,
    JobInput { model, latent }: &JobInput,
    revision: &Arc<Revision>,
    stop: &StopSignal,
) -> Result<(Record, Tensor), String> {
    let (limit, objective) = (memory_limit(worker, stored, assignment), objective(stored, assignment));
    let mut planner = UntrackedPlanner::new(revision);
    match &model.model {
        Model::Picture(vae) => {
            let pictures = latent.pictures().map_err(|error| one_line(&error))?;
            let job = DecodeJob::new(&worker.device.machine, vae, &pictures, limit, objective)
                .map_err(|error| one_line(&error))?;
            let finished =
                job.run(&mut planner, &mut CancelOnly(stop)).map_err(|unfinished| one_line(&unfinished.error))?;
            Ok((finished.record, finished.output))
        }
        Model::Clip(vae) => {
            let job = ClipJob::new(&worker.device.machine, vae, &latent.values, limit, objective)
                .map_err(|error| one_line(&error))?;
            let mut buffer = FrameBuffer::default();
            let none_done = vec![0; stored.job.batch as usize];
            let finished = job.run(&mut planner, &mut CancelOnly(stop), &mut buffer, &none_done);
            let finished = finished.map_err(|unfinished| one_line(&unfinished.error))?;
            Ok((finished.record, buffer.all()?))
        }
    }
}

/// The frames of a clip.
#[derive(Debug, Default)]
pub struct FrameBuffer(Vec<Tensor>);

impl FrameBuffer {
    /// The frames [T, C, H, W] of all samples, one after the other.
    pub fn all(self) -> Result<Tensor, String> {
        Tensor::f_cat(&self.0, 0).map_err(|error| error.to_string())
    }
}

impl Sink for FrameBuffer {
    fn frames(&mut self, _: u32, _: u32, frames: &Tensor) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.push(frames.f_clamp(-1.0, 1.0)?);
        Ok(())
    }
}
