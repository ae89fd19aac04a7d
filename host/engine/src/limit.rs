//! The memory that a job may hold.

use tch::Device;
use tilewright_models::ComputeFormat;
use tilewright_plan::{Dtype, Plan, Request};

/// The most that a job may hold at once. A plain number of bytes leaves the weights aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub bytes: u64,
    /// The limit counts the weights in use, and so do estimates and measured peaks; otherwise none
    /// of them does.
    pub counts_weights: bool,
}

impl From<u64> for MemoryLimit {
    fn from(bytes: u64) -> Self {
        Self { bytes, counts_weights: false }
    }
}

/// The weights of a request's model, before a plan says in which format they are loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredWeights {
    bytes: u64,
    stored: Dtype,
    device: Device,
}

impl StoredWeights {
    pub fn of(request: &Request, device: Device) -> Self {
        Self { bytes: request.model.parameter_bytes, stored: request.model.stored, device }
    }

    /// The bytes that they take on the device in a plan's format.
    pub fn bytes(&self, plan: &Plan) -> u64 {
        let format = ComputeFormat::new(plan.precision, plan.layout);
        // A format that can't be run has no cost either.
        format.map_or(0, |format| format.weight_bytes(self.bytes, self.stored, self.device))
    }
}
