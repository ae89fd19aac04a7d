//! The host as a service: models stay loaded, jobs come in over HTTP and outlive the server, and policies come and go under them. What a
//! policy may do and who decides for which job is `tilewright_rollout`'s, what the pages look like `tilewright_dashboard`'s.
//!
//! [`serve`] is all of it: from a configuration to a server that ends when it is told to.

#![forbid(unsafe_code)]

mod accept;
mod api;
mod audit;
mod bodies;
mod clock;
mod death;
mod descriptors;
mod device;
mod disk;
mod door;
mod error;
mod house;
mod jobs;
mod listen;
mod looks;
mod metrics;
mod models;
mod pages;
mod problem;
mod server;
mod story;
mod telemetry;
mod watch;
mod work;

use std::sync::Arc;

use tokio::sync::{Semaphore, watch as watched};

pub use error::{Error, Result};
pub use server::{Options, serve};
pub use telemetry::{Telemetered, begin as begin_telemetry};

/// What every request can reach.
#[derive(Clone)]
struct App {
    house: Arc<house::House>,
    door: Arc<door::Door>,
    /// Outcomes of actions on the dashboard.
    notices: Arc<pages::Notices>,
    /// Turns to look into latents.
    looks: Arc<looks::Looks>,
    /// Modules that are compiled and checked at once.
    gates: Arc<Semaphore>,
    /// True once the server ends: whoever follows something is let go.
    end: watched::Receiver<bool>,
}

impl App {
    /// Until the server ends.
    async fn ended(&self) {
        // A sender that is gone ends it, too.
        let _ = self.end.clone().wait_for(|ends| *ends).await;
    }
}
