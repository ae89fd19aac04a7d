//! The host as a service. Under way.

#![forbid(unsafe_code)]

mod accept;
mod clock;
mod device;
mod error;
mod house;
mod jobs;
mod metrics;
mod models;
mod story;
mod work;

pub use error::{Error, Result};
