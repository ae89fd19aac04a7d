//! Carries plans out. A [`Job`] is one decode, an [`EncodeJob`] one encode, of clips a [`ClipJob`] and a [`ClipEncodeJob`]: it asks a planner how, runs the tiles, checks every result for NaN and infinity,
//! asks again after a failure, measures, and writes the record.

#![forbid(unsafe_code)]

mod attempts;
mod clip;
mod encode;
mod encode_clip;
mod error;
mod estimate;
mod grid;
mod job;
mod machine;
mod run;
mod vae;
mod video;
mod weights;

pub use clip::{ClipEstimator, ClipJob, FinishedClip, Sink};
pub use encode::{EncodeJob, Encoded};
pub use encode_clip::{ClipEncodeEstimator, ClipEncodeJob, ClipExtents, EncodedClip, Frames};
pub use error::{Error, Result};
pub use estimate::Estimator;
pub use grid::{Axis, Grid};
pub use job::{Finished, Job, Observer, Unfinished};
pub use machine::{Announcer, Found, Machine, Probe, announce_probe};
pub use vae::{Overrides, Vae};
pub use video::VideoVae;
pub use weights::{Budget, Lease, Part, Usage, WeightKey, WeightStore};
