//! Devices at work.

use serde::Serialize;
use tilewright_plan::Device;
use utoipa::ToSchema;

/// A device at work.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct DeviceBody {
    /// The device's name in the configuration.
    pub name: String,
    /// The device's properties, as policies are given them.
    #[schema(value_type = Object)]
    pub facts: Device,
    /// The most that a job may hold.
    pub memory_limit_bytes: u64,
    /// The limit counts the weights that a job uses; otherwise it leaves them aside.
    pub counts_weights: bool,
    /// The most weights that are kept on the hardware, in use or idle, for all models and all
    /// devices that share it. More only while they are in use.
    pub weights_memory_bytes: u64,
    /// Handed out at the last look, weights included.
    pub in_use_bytes: u64,
    /// Kept for the next allocations.
    pub pooled_bytes: u64,
    /// Jobs that wait.
    pub queued: usize,
    /// The most that may.
    pub queue: u32,
    /// True if a job is at work.
    pub running: bool,
}
