//! Sigmas and noise of flow models. A sample is the path of latents from noise (sigma 1) to a
//! picture or clip (sigma 0), along the velocities that a network gives.
//!
//! ```
//! use tilewright_sampling::{Convention, Schedule, Shift};
//!
//! let (shift, convention) = (Shift::Flow(1.0), Convention::ComfyUi);
//! let schedule = Schedule { shift, convention, tokens: 256 };
//! assert_eq!(schedule.sigmas(4, 1.0)?, [1.0, 0.75, 0.5, 0.25, 0.0]);
//! # Ok::<(), tilewright_sampling::Error>(())
//! ```

#![forbid(unsafe_code)]

mod schedule;

pub use schedule::{Convention, Error, MOST_STEPS, Result, Schedule, Shift, check_sigmas, parse_sigmas};
pub use tilewright_torch::noise;
