//! An encode, of pictures or of a clip.

use std::{path::Path, time::Duration};

use tch::Tensor;
use tilewright_engine::{
    ClipEncodeJob, ClipExtents, ClipSource, EncodeJob, Finished, Machine, MemoryLimit, Observer, Pictures, Unfinished,
};
use tilewright_plan::{Objective, Planner, words::with_noun};
use tilewright_torch::scalar;
use tilewright_wording::Setting;

use crate::{
    EncodeSource, Error, Model, Result,
    vae_job::{VaeJob, least_of},
};

/// The input of an encode, checked against the model.
#[derive(Debug)]
pub enum EncodeInput {
    /// Pictures [N, C, H, W] in −1…1.
    Pictures(Tensor),
    /// The extents of a clip, whose frames are read while it is encoded.
    Clip(ClipExtents),
}

/// A request for one encode on one device, of pictures or of one clip.
pub type Encode<'a> = VaeJob<'a, Pictures<'a>, ClipSource<'a>>;

/// The latents of an encode.
#[derive(Debug)]
pub struct Encoded {
    /// [N, C, h, w] of pictures, [1, C, t, h, w] of a clip; the means in the autoencoder's own
    /// space, f32, in host memory.
    pub latents: Tensor,
    /// The frames that they were made of: fewer than asked for if the clip ended before.
    pub frames: u32,
}

impl EncodeInput {
    /// Crops a source to what a model takes, and reads it if it is pictures. `shown` is the
    /// source's name in errors; notes go to `note`.
    ///
    /// # Errors
    /// The model has no encoder, the source does not suit it or can't be read.
    pub fn of(model: &Model, source: &mut EncodeSource, shown: &str, note: &mut dyn FnMut(&str)) -> Result<Self> {
        Self::outline(model, source, shown, note)?.read(source)
    }

    /// Crops a source to what a model takes. Zeros that take no memory stand for pictures.
    ///
    /// # Errors
    /// The model has no encoder, or the source does not suit it.
    pub fn outline(model: &Model, source: &mut EncodeSource, shown: &str, note: &mut dyn FnMut(&str)) -> Result<Self> {
        let refused = |reason| Err(Error::input(Path::new(shown), reason));
        let (samples, frames) = (source.samples(), source.frames());
        let check_channels = |source: &EncodeSource, taken: usize| match source.channels() == taken {
            true => Ok(()),
            false => {
                let channels = with_noun(source.channels() as u64, "channel");
                Err(Error::input(Path::new(shown), format!("{channels}, the VAE takes {taken}")))
            }
        };
        match model {
            Model::Picture(vae) => {
                let (config, _) = vae.encoding()?;
                check_channels(source, config.image_channels)?;
                if frames > 1 {
                    return refused(format!(
                        "{frames} frames, and this VAE encodes pictures: give a video VAE, or encode the first frame alone with {} 1",
                        Setting::Frames
                    ));
                }
                source.crop(config.spatial_scale(), note)?;
                let (height, width) = source.size();
                Self::foreseen(model, [samples as u64, 1, height.into(), width.into()], source.channels())
            }
            Model::Clip(vae) => {
                let (config, _) = vae.encoding()?;
                if samples > 1 {
                    return refused(format!(
                        "{samples} clips, and an encode takes one: save it alone, as [1, C, T, H, W]"
                    ));
                }
                check_channels(source, config.image_channels)?;
                source.crop(config.spatial_scale(), note)?;
                let temporal = config.temporal_scale();
                let whole = whole_groups(frames, temporal);
                if whole < frames {
                    note(&format!("{whole} of {frames} frames are encoded: the first, and whole groups of {temporal}"));
                }
                let (height, width) = source.size();
                Ok(EncodeInput::Clip(ClipExtents { frames: whole, height, width }))
            }
        }
    }

    /// The input that stands for one of some samples, frames, rows and columns until it is made.
    ///
    /// # Errors
    /// Memory is out.
    pub(crate) fn foreseen(model: &Model, extents: [u64; 4], channels: usize) -> Result<Self> {
        let side = |axis: usize| u32::try_from(extents[axis]).unwrap_or(u32::MAX);
        Ok(match model {
            Model::Picture(_) => {
                let shape = [side(0).into(), channels as i64, side(2).into(), side(3).into()];
                EncodeInput::Pictures(scalar::stand_in(&shape)?)
            }
            Model::Clip(_) => EncodeInput::Clip(ClipExtents { frames: side(1), height: side(2), width: side(3) }),
        })
    }

    /// The input with the pictures of its source, if it is pictures; a clip's frames are read as it
    /// is encoded; its pictures are checked before.
    ///
    /// # Errors
    /// They can't be read.
    pub fn read(self, source: &mut EncodeSource) -> Result<Self> {
        match self {
            EncodeInput::Pictures(of) => {
                let samples = of.size().first().copied().unwrap_or_default();
                Ok(EncodeInput::Pictures(source.next(u32::try_from(samples).unwrap_or(u32::MAX))?))
            }
            clip @ EncodeInput::Clip(_) => {
                source.check()?;
                Ok(clip)
            }
        }
    }

    /// The frames that are encoded.
    pub fn frames(&self) -> u32 {
        match self {
            EncodeInput::Pictures(_) => 1,
            EncodeInput::Clip(extents) => extents.frames,
        }
    }
}

impl<'a> Encode<'a> {
    /// An encode within a memory limit.
    ///
    /// # Errors
    /// The input is of another kind than the model, or its sides are no multiples of the scale;
    /// [`tilewright_engine::Refusal::DoesNotFit`] if not even the leanest plan fits.
    pub fn new(
        machine: &'a Machine,
        model: &'a Model,
        input: &'a EncodeInput,
        memory_limit: impl Into<MemoryLimit>,
        objective: Objective,
    ) -> Result<Self> {
        let memory_limit = memory_limit.into();
        match (model, input) {
            (Model::Picture(vae), EncodeInput::Pictures(pictures)) => {
                Ok(Encode::Pictures(EncodeJob::new(machine, vae, pictures, memory_limit, objective)?))
            }
            (Model::Clip(vae), EncodeInput::Clip(extents)) => {
                Ok(Encode::Clips(ClipEncodeJob::new(machine, vae, *extents, memory_limit, objective)?))
            }
            (Model::Picture(_), EncodeInput::Clip(_)) | (Model::Clip(_), EncodeInput::Pictures(_)) => {
                let reason = "pictures and clips are encoded by different VAEs".to_owned();
                Err(tilewright_models::Error::Clip { reason }.into())
            }
        }
    }

    /// Refuses an input whose encode does not fit in a limit; what stands for it will do.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn check(
        machine: &Machine,
        model: &Model,
        input: &EncodeInput,
        memory_limit: impl Into<MemoryLimit>,
    ) -> Result<()> {
        Encode::new(machine, model, input, memory_limit, Objective::Leanest).map(drop)
    }

    /// The peak of the leanest plan for an input in bytes, with the weights if a limit would count
    /// them.
    ///
    /// # Errors
    /// As [`Self::new`], but for the limit.
    pub fn least_bytes(machine: &Machine, model: &Model, input: &EncodeInput, counts_weights: bool) -> Result<u64> {
        least_of(Encode::check(machine, model, input, MemoryLimit { bytes: 0, counts_weights }))
    }

    /// The shortest time that a plan for an input is expected to take, in whatever memory; none if
    /// no plan has a price.
    ///
    /// # Errors
    /// As [`Self::new`], but for the limit.
    pub fn shortest(machine: &Machine, model: &Model, input: &EncodeInput) -> Result<Option<Duration>> {
        let limit = MemoryLimit { bytes: u64::MAX, counts_weights: false };
        Ok(Encode::new(machine, model, input, limit, Objective::Fastest)?.fastest())
    }

    /// Decides and encodes. The frames of a clip are read from its source as they are needed.
    ///
    /// # Errors
    /// An error that no other plan avoids, [`tilewright_engine::Error::Source`], or
    /// [`tilewright_engine::Error::Exhausted`]; with the record as far as it goes.
    pub fn run(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        source: &mut EncodeSource,
    ) -> Result<Finished<Encoded>, Unfinished> {
        match self {
            Encode::Pictures(job) => Ok(job.run(planner, observer)?.map(|latents| Encoded { latents, frames: 1 })),
            Encode::Clips(job) => {
                let finished = job.run(planner, observer, &mut |count| Ok(source.next(count)?))?;
                Ok(finished.map(|clip| Encoded { latents: clip.latents, frames: clip.frames }))
            }
        }
    }
}

/// The frames that make whole latent frames, as diffusers has it: the first, and groups of
/// `temporal`.
fn whole_groups(frames: u32, temporal: u32) -> u32 {
    frames - frames.saturating_sub(1) % temporal.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_frames_that_make_no_latent_frame_are_left_out() {
        let found: Vec<u32> = (1..=10).map(|frames| whole_groups(frames, 4)).collect();
        assert_eq!(found, [1, 1, 1, 1, 5, 5, 5, 5, 9, 9]);
        assert_eq!((whole_groups(7, 1), whole_groups(1, 0)), (7, 1));
    }
}
