//! How much memory tensors hold, the most that they held, and a limit on it.
//!
//! On the CPU a counting allocator stands behind every tensor; on a GPU the figures are those of libtorch's caching allocator.

use tch::Device;

use crate::{Result, ffi};

/// Memory of one device as its allocator sees it. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Held by tensors now.
    pub in_use: u64,
    /// The most held by tensors since [`reset_peak`].
    pub peak: u64,
    /// Taken from the system or driver, in use or not.
    pub held: u64,
    /// Requests served since the start.
    pub allocations: u64,
    /// Requests that had to ask the system or driver.
    pub system: u64,
}

impl From<ffi::RawMemory> for Memory {
    fn from(raw: ffi::RawMemory) -> Self {
        let ffi::RawMemory { in_use, peak, held, allocations, system } = raw;
        Self { in_use, peak, held, allocations, system }
    }
}

/// Puts the counting allocator behind every CPU tensor made from now on. Call it before the first tensor; again is harmless.
///
/// # Errors
/// What libtorch says.
pub fn install() -> Result<()> {
    // SAFETY: the buffer is valid for its length; the allocator set lives for ever.
    ffi::call(|error, length| unsafe { ffi::tw_cpu_install(error, length) })
}

/// Memory of a device now.
///
/// # Errors
/// What libtorch says, for a GPU that is not there.
pub fn of(device: Device) -> Result<Memory> {
    let mut raw = ffi::RawMemory::default();
    match device {
        Device::Cuda(index) => {
            // SAFETY: `raw` is valid for writing and only read after the call.
            ffi::call(|error, length| unsafe { ffi::tw_gpu_memory(index as i32, &mut raw, error, length) })?
        }
        // SAFETY: as above; the function cannot fail.
        _ => unsafe { ffi::tw_cpu_memory(&mut raw) },
    }
    Ok(raw.into())
}

/// Starts a new peak from what is held now.
///
/// # Errors
/// What libtorch says, for a GPU that is not there.
pub fn reset_peak(device: Device) -> Result<()> {
    match device {
        Device::Cuda(index) => {
            // SAFETY: the buffer is valid for its length.
            ffi::call(|error, length| unsafe { ffi::tw_gpu_reset_peak(index as i32, error, length) })
        }
        _ => {
            // SAFETY: touches atomics only.
            unsafe { ffi::tw_cpu_reset_peak() };
            Ok(())
        }
    }
}

/// Hands memory that is held but not in use back to the driver. The CPU's allocator holds none.
///
/// # Errors
/// What libtorch says.
pub fn trim(device: Device) -> Result<()> {
    match device {
        // SAFETY: the buffer is valid for its length.
        Device::Cuda(_) => ffi::call(|error, length| unsafe { ffi::tw_gpu_empty_cache(error, length) }),
        _ => Ok(()),
    }
}

/// Free and total bytes of a GPU as its driver tells them.
///
/// # Errors
/// What libtorch says.
pub fn free_and_total(index: usize) -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both integers are valid for writing; the buffer is valid for its length.
    ffi::call(|error, length| unsafe {
        ffi::tw_gpu_free_and_total(index as i32, &mut free, &mut total, error, length)
    })?;
    Ok((free, total))
}

/// While it lives, CPU tensors may hold no more than `bytes` above what they held when it was made; an allocation past that fails
/// as out-of-memory. There is one limit for the process: the last one made counts.
#[derive(Debug)]
pub struct Limit(());

impl Limit {
    /// Limits the CPU's tensors. On a GPU there is no limit yet but the card's own.
    pub fn new(device: Device, bytes: u64) -> Self {
        if device == Device::Cpu {
            let held = of(device).map(|memory| memory.in_use).unwrap_or(0);
            // SAFETY: touches an atomic only.
            unsafe { ffi::tw_cpu_set_limit(held.saturating_add(bytes).max(1)) };
        }
        Self(())
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // SAFETY: touches an atomic only.
        unsafe { ffi::tw_cpu_set_limit(0) };
    }
}
