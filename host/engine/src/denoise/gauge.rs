//! The memory of a sample: its limit, which counts weights, and the most that it held besides them.

use tch::Device;
use tilewright_torch::memory::{self, Limit};

use crate::{Result, WeightStore};

/// A gauge of a device's memory while a sample runs. The limit is set again whenever weights
/// change: those of an expert that is done may stay in their store.
pub(super) struct Gauge<'a> {
    device: Device,
    store: &'a WeightStore,
    /// Bytes that the sample may hold on the device, weights included.
    most: u64,
    /// Bytes in use before it, the store's aside.
    base: u64,
    /// The most bytes that it held so far, weights aside.
    peak: u64,
    limit: Option<Limit>,
}

impl<'a> Gauge<'a> {
    /// A gauge of a sample that may hold `most` bytes on a device.
    ///
    /// # Errors
    /// The device is lost.
    pub fn new(device: Device, store: &'a WeightStore, most: u64) -> Result<Self> {
        memory::reset_peak(device)?;
        let base = memory::of(device)?.in_use.saturating_sub(stored(store, device));
        let limit = Some(Limit::new(device, most)?);
        Ok(Self { device, store, most, base, peak: 0, limit })
    }

    /// A new limit for further allocations: the rest, with `weights` bytes already taken.
    ///
    /// # Errors
    /// The device is lost.
    pub fn set_limit(&mut self, weights: u64) -> Result<()> {
        self.limit = None;
        // Idle weights may have gone since.
        memory::reset_peak(self.device)?;
        let held = self.besides_weights(memory::of(self.device)?.in_use);
        self.limit = Some(Limit::new(self.device, self.most.saturating_sub(weights).saturating_sub(held))?);
        Ok(())
    }

    /// Notes the peak before weights change.
    ///
    /// # Errors
    /// The device is lost.
    pub fn note(&mut self) -> Result<()> {
        let peak = self.besides_weights(memory::of(self.device)?.peak);
        self.peak = self.peak.max(peak);
        Ok(memory::reset_peak(self.device)?)
    }

    /// The most bytes that the sample held, weights aside.
    ///
    /// # Errors
    /// The device is lost.
    pub fn finish(mut self) -> Result<u64> {
        self.note()?;
        Ok(self.peak)
    }

    fn besides_weights(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.base).saturating_sub(stored(self.store, self.device))
    }
}

/// Bytes of a store's weights on a device.
fn stored(store: &WeightStore, device: Device) -> u64 {
    let usage = store.usage(device);
    usage.leased_bytes.saturating_add(usage.idle_bytes)
}
