//! Policies: WebAssembly modules that say how a request is run. This crate loads them, keeps them within limits, asks them, checks
//! what they answer, and stands in for them when they fail. It knows nothing of libtorch.
//!
//! [`PolicyHost`] loads, [`LoadedPolicy`] says what was loaded, and [`Policy`] is one at work: a [`tilewright_plan::Planner`].

#![deny(unsafe_code)]

mod cache;
pub mod check;
mod code;
mod compile;
mod contract;
mod error;
mod fallback;
mod fallback_planner;
mod guest;
mod host;
mod lessons;
mod limits;
mod load;
#[doc(hidden)]
pub mod oracle;
mod patience;
mod probe;
mod runtime;
mod sandbox;
mod settings;
mod shipped;
mod wasi;

pub use cache::CacheDir;
pub use error::{Fault, PolicyError};
pub use fallback_planner::FallbackPlanner;
pub use host::{Description, Inspection, LoadedPolicy, PolicyHost};
pub use limits::{CodeLimits, CompileLimits, Limits};
pub use load::{Kind, as_component};
pub use probe::Probe;
pub use runtime::Policy;
pub use settings::{Setting, key_value};
pub use shipped::{module as shipped_module, names as shipped_names};
pub use wasi::Wasi;
