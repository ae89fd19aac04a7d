//! Whether a canary's picture is the incumbent's: the same job decoded as the incumbent would have it, and the PSNR between the two.

use std::sync::Arc;

use tch::{Kind, Tensor};
use tilewright_decode::Model;
use tilewright_engine::{ClipJob, DecodeJob, Sink};
use tilewright_plan::Record;
use tilewright_rollout::{Assignment, Revision, UntrackedPlanner};

use super::{
    memory_limit,
    observer::{CancelOnly, Why},
    picture_and_clip::{Input, input, objective},
};
use crate::{device::Worker, error::one_line, house::House, jobs::Kept};

/// Bytes of a clip's frames that are held to compare; larger ones are not compared.
const MOST_HELD: u64 = 2 << 30;

/// Whether a job's output is small enough to be held.
pub fn is_held(kept: &Kept) -> bool {
    let job = &kept.job;
    let sides = [job.batch, job.frames, job.height, job.width].map(u64::from);
    // Two of them, three or four channels, four bytes each.
    sides.iter().product::<u64>().saturating_mul(2 * 4 * 4) <= MOST_HELD
}

/// Decodes a job as the incumbent would have it and compares: the incumbent's record, and the PSNR in dB, infinite where nothing differs.
///
/// # Errors
/// One line.
pub fn compared(
    house: &House,
    worker: &Worker,
    kept: &Kept,
    assignment: &Assignment,
    incumbent: &Arc<Revision>,
    canarys: &Tensor,
    why: &Why,
) -> Result<(Record, f64), String> {
    let input = input(house, kept)?;
    let (record, incumbents) = decoded(worker, kept, assignment, &input, incumbent, why)?;
    let mean = || -> Result<f64, tch::TchError> {
        let difference = canarys.f_clamp(-1.0, 1.0)?.f_sub(&incumbents.f_clamp(-1.0, 1.0)?)?;
        difference.f_square()?.f_mean(Kind::Double)?.f_double_value(&[])
    };
    let mean = mean().map_err(|error| error.to_string())?;
    // The values span −1…1: a peak of 2.
    Ok((record, 10.0 * (4.0 / mean).log10()))
}

fn decoded(
    worker: &Worker,
    kept: &Kept,
    assignment: &Assignment,
    Input { model, latent }: &Input,
    revision: &Arc<Revision>,
    why: &Why,
) -> Result<(Record, Tensor), String> {
    let (limit, objective) = (memory_limit(worker, kept, assignment), objective(kept, assignment));
    let mut planner = UntrackedPlanner::new(revision);
    match &model.model {
        Model::Picture(vae) => {
            let pictures = latent.pictures().map_err(|error| one_line(&error))?;
            let job = DecodeJob::new(&worker.device.machine, vae, &pictures, limit, objective)
                .map_err(|error| one_line(&error))?;
            let finished =
                job.run(&mut planner, &mut CancelOnly(why)).map_err(|unfinished| one_line(&unfinished.error))?;
            Ok((finished.record, finished.output))
        }
        Model::Clip(vae) => {
            let job = ClipJob::new(&worker.device.machine, vae, &latent.values, limit, objective)
                .map_err(|error| one_line(&error))?;
            let mut held = Held::default();
            let none_done = vec![0; kept.job.batch as usize];
            let finished = job.run(&mut planner, &mut CancelOnly(why), &mut held, &none_done);
            let finished = finished.map_err(|unfinished| one_line(&unfinished.error))?;
            Ok((finished.record, held.all()?))
        }
    }
}

/// Every frame of a clip.
#[derive(Debug, Default)]
pub struct Held(Vec<Tensor>);

impl Held {
    /// Frames [T, C, H, W] of all samples, one after the other.
    pub fn all(self) -> Result<Tensor, String> {
        Tensor::f_cat(&self.0, 0).map_err(|error| error.to_string())
    }
}

impl Sink for Held {
    fn frames(&mut self, _: u32, _: u32, frames: &Tensor) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.push(frames.f_clamp(-1.0, 1.0)?);
        Ok(())
    }
}
