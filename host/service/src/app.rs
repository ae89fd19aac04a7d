//! The state that every request handler can reach.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch as watched};

use crate::{
    auth::AccessControl, inspection_slots::InspectionSlots, notices::Notices, problem::ApiResult, state::ServerState,
};

/// The state of the HTTP interface and the dashboard. Clones share it.
#[derive(Clone)]
pub struct App {
    /// Jobs, devices, models and policies.
    pub server: Arc<ServerState>,
    /// Callers and what they may do.
    pub auth: Arc<AccessControl>,
    /// Outcomes of actions on the dashboard.
    pub notices: Arc<Notices>,
    /// Slots for reading uploaded latents.
    pub inspections: Arc<InspectionSlots>,
    /// Slots for compiling and checking modules.
    pub gates: Arc<Semaphore>,
    /// True when the server ends: streams to followers end then.
    pub end: watched::Receiver<bool>,
}

impl App {
    /// Does work that waits for the disk or computes for long, beside the threads that answer.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&App) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let (app, span) = (self.clone(), tracing::Span::current());
        tokio::task::spawn_blocking(move || span.in_scope(|| work(&app))).await?
    }

    /// Waits until the server ends.
    pub async fn wait_for_end(&self) {
        // A sender that is gone ends the server, too.
        let _ = self.end.clone().wait_for(|ends| *ends).await;
    }
}
