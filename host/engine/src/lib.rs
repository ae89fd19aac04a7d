//! Execution of plans. A planner (a policy, or the built-in rules) answers a [`Job`] with a plan:
//! types, tiles, chunks, and the place of weights. A job is one piece of work on one device:
//!
//! | job | work |
//! |---|---|
//! | [`TextJob`] | the states of texts by one encoder |
//! | [`DenoiseJob`] | a sample, by one denoiser or two that take turns |
//! | [`DecodeJob`], [`ClipJob`] | pictures, or clips, of latents |
//! | [`EncodeJob`], [`ClipEncodeJob`] | latents of pictures, or of a clip |
//!
//! A job carries the plan out, checks each result for NaN and infinity, asks again after a failure,
//! and ends with a record: one loop for all. Weights are leased from a [`WeightStore`]. Work that
//! is only priced is a [`Quote`], which every job has, too.

#![forbid(unsafe_code)]

mod autoencoding;
mod capturing;
mod clip;
mod denoise;
mod encode_clip;
mod error;
mod job;
mod kept;
mod libraries;
mod machine;
mod observer;
mod offload;
mod pause;
mod picture;
mod profiling;
mod run;
mod task;
mod text;
mod tiles;
mod trial;
mod vae;
mod weights;
mod work;

pub use capturing::{BY_SEVERAL_PLANS, Capturing};
pub use clip::{ClipJob, ClipLatents, Sink};
pub use denoise::{
    Begun, ConditioningTensors, DenoiseJob, Denoiser, DenoiserFacts, Kept, LoraFacts, Prompt, SampleInput, SampleState,
    Sampled, Sampling, SamplingFacts,
};
pub use encode_clip::{ClipEncodeJob, ClipSource, EncodedClip, Frames};
pub use error::{Error, Result};
pub use job::{Finished, Job, Unfinished};
pub use machine::{Announcer, Found, Machine, Probe, announce_probe};
pub use observer::{Cancelled, FinishedStep, Next, Observer, StopCheck};
pub use picture::{DecodeJob, EncodeJob, Latents, Pictures};
pub use profiling::Profiled;
pub use text::{TextJob, Texts};
pub use tilewright_nn::{End as LayerEnd, LayerCalls, Watch};
pub use tilewright_prices::{
    Autoencoder, Axis, ClipExtents, Error as Refusal, Grid, MemoryLimit, Overrides, PromptShape, Quote, SampleShape,
    extents,
};
pub use trial::{Trial, TryGpu, Trying, load_gpus, try_gpus_by};
pub use vae::{VaeFile, VideoVaeFile};
pub use weights::{Budget, Lease, Part, Reservation, Usage, WeightKey, WeightStore};
pub use work::{AnyDecided, AnyFailed, Decided, Failed, Runnable};
