//! The host as a service: a real server, spoken to over HTTP.

#[path = "service/access.rs"]
mod access;
#[path = "service/bombs.rs"]
mod bombs;
#[path = "service/changes.rs"]
mod changes;
#[path = "service/clock.rs"]
mod clock;
#[path = "service/deadlines.rs"]
mod deadlines;
#[path = "service/defaults.rs"]
mod defaults;
#[path = "service/encodes.rs"]
mod encodes;
#[path = "service/endurance.rs"]
mod endurance;
#[path = "service/full_disk.rs"]
mod full_disk;
#[path = "service/hostile_http.rs"]
mod hostile_http;
#[path = "service/jobs.rs"]
pub mod jobs;
#[path = "service/kills.rs"]
mod kills;
#[path = "service/loras.rs"]
mod loras;
#[path = "service/pages.rs"]
mod pages;
#[path = "service/policies.rs"]
mod policies;
#[path = "service/private.rs"]
mod private;
#[path = "service/profiles.rs"]
mod profiles;
#[path = "service/prompts.rs"]
mod prompts;
#[path = "service/registries.rs"]
mod registries;
#[path = "service/reload.rs"]
mod reload;
#[path = "service/remote_vae.rs"]
mod remote_vae;
#[path = "service/results.rs"]
mod results;
#[path = "service/samples.rs"]
mod samples;
#[path = "service/server.rs"]
pub mod server;
#[path = "service/waiting.rs"]
mod waiting;
#[path = "service/weights.rs"]
mod weights;
