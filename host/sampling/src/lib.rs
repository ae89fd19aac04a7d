//! Schedulers, samplers and noise. A sample is the path of latents from noise to a picture or clip,
//! along sigmas that fall to 0, by what a network says of the noise in them.
//!
//! ```
//! use tilewright_sampling::{ModelSampling, Sampler, Schedule, Scheduler};
//!
//! let model = ModelSampling::shifted(1.0);
//! let schedule = Schedule { sampler: "euler".parse()?, scheduler: Scheduler::Simple, model };
//! assert_eq!(schedule.sigmas(4, 1.0).map_err(|error| error.to_string())?, [1.0, 0.75, 0.5, 0.25,
//! 0.0]);
//! # Ok::<(), String>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(feature = "torch")]
mod brownian;
mod latents;
mod model_sampling;
mod rehearsal;
mod sampler;
mod schedule;
mod scheduler;
#[cfg(feature = "torch")]
mod tensors;

pub use latents::{Latents, Real};
pub use model_sampling::{ModelSampling, Prediction};
pub use rehearsal::check_finite;
pub use sampler::{Course, Denoised, Denoiser, Noise, NoiseKind, Sampler, State};
pub use schedule::{
    Convention, Error, FlowScheduler, MOST_STEPS, Result, Schedule, Shift, Span, Times, check_sigmas, parse_sigmas,
};
pub use scheduler::Scheduler;
#[cfg(feature = "torch")]
pub use tensors::{SamplerNoise, Tensors, noise_of};
#[cfg(feature = "torch")]
pub use tilewright_torch::noise;
