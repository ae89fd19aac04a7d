//! Carries plans out. A [`DecodeJob`] is one decode, an [`EncodeJob`] one encode, of clips a
//! [`ClipJob`] and a [`ClipEncodeJob`]. Each asks a planner, runs the tiles, checks every result
//! for NaN and infinity, asks again after a failure, measures, and writes the record: one loop for
//! all, in `run`.

#![forbid(unsafe_code)]

mod autoencoder;
mod clip;
mod costs;
mod denoise;
mod encode_clip;
mod error;
mod estimate;
mod grid;
mod job;
mod limit;
mod machine;
mod observer;
mod offload;
mod pause;
mod picture;
mod record;
mod run;
mod task;
mod text;
mod tiles;
mod vae;
mod weights;

pub use autoencoder::{Autoencoder, Kl, Overrides, Wan};
pub use clip::{ClipJob, ClipLatents, Sink};
pub use denoise::{Begun, ConditioningTensors, DenoiseJob, Denoiser, Kept, Prompt, SampleState, Sampled, Sampling};
pub use encode_clip::{ClipEncodeJob, ClipExtents, ClipSource, EncodedClip, Frames};
pub use error::{Error, Result};
pub use grid::{Axis, Grid};
pub use job::{Finished, Job, Unfinished};
pub use limit::MemoryLimit;
pub use machine::{Announcer, Found, Machine, Probe, announce_probe};
pub use observer::{Cancelled, FinishedStep, Next, Observer};
pub use picture::{DecodeJob, EncodeJob, Latents, Pictures};
pub use text::{EncodedText, EncoderSlot, TextJob, Texts};
pub use vae::{Vae, VideoVae};
pub use weights::{Budget, Lease, Part, Usage, WeightKey, WeightStore};

use estimate::Estimator;
