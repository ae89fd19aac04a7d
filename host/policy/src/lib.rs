//! Policies: WebAssembly modules that decide how a request is run. This crate loads them, enforces
//! their limits, asks them, checks their answers, and replaces answers that can't be used. It knows
//! nothing of libtorch.
//!
//! [`PolicyHost`] loads, [`LoadedPolicy`] is a policy that was loaded, and [`Policy`] is one in
//! use: a [`tilewright_plan::Planner`].

#![deny(unsafe_code)]

mod cache;
pub mod check;
mod clock;
mod code;
mod compile;
mod contract;
mod error;
mod exact;
mod fallback;
mod fallback_planner;
mod guest;
mod host;
mod limits;
mod load;
#[doc(hidden)]
pub mod oracle;
mod outcome_memory;
mod probe;
mod runtime;
mod sandbox;
mod settings;
mod shipped;
mod time_budget;
mod wasi;
mod work;

pub use cache::CacheDir;
pub use clock::{Clock, MachineClock};
pub use compile::{compile_by, compile_nowhere, serve_compilation};
pub use error::{Fault, PolicyError};
pub use fallback_planner::FallbackPlanner;
pub use host::{Description, Inspection, LoadedPolicy, PolicyHost};
pub use limits::{CodeLimits, CompileLimits, Limits};
pub use load::{ModuleKind, as_component, shrink};
pub use probe::Probe;
pub use runtime::{Governed, Policy};
pub use settings::{Setting, key_value};
pub use shipped::{module as shipped_module, names as shipped_names};
pub use time_budget::TimeBudget;
pub use wasi::Wasi;
