//! The host as a service: models stay loaded, jobs come in over HTTP and outlive the server, and
//! policies are swapped while it works. `tilewright_rollout` says which policy decides for which
//! job, and `tilewright_dashboard` makes the pages.
//!
//! [`serve`] is all of it: from a configuration to a server that runs until a signal ends it.

#![forbid(unsafe_code)]

mod accept;
mod api;
mod app;
mod audit;
mod auth;
mod clock;
mod config_state;
mod descriptors;
mod device;
mod disk_check;
mod error;
mod inspection_slots;
mod job_traces;
mod jobs;
mod last_exit;
mod listen;
mod metrics;
mod middleware;
mod models;
mod notices;
mod pages;
mod problem;
mod remote_vae;
mod request_body;
mod server;
mod state;
mod telemetry;
mod watch;
mod words;
mod work;

pub use error::{Error, Result};
pub use listen::{CertificateFault, server_config};
pub use models::{OpenParts, PartsRefused, open_parts};
pub use server::{Options, StandardInput, serve};
pub use telemetry::{TelemetryGuard, begin as begin_telemetry};
pub use words::WORDS;
