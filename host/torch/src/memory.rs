//! Accounting of tensors' memory: current, peak, and a limit.
//!
//! The CPU's tensors are in the host's own pool, a GPU's in libtorch's caching allocator.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr,
    sync::{Mutex, OnceLock, PoisonError},
};

use tch::Device;

use crate::{
    Error, Result, ffi,
    pool::{AllocationError, Pool, reservation},
};

/// The pool of the CPU's tensors. Never dropped: some may outlive everything else.
static POOL: OnceLock<Pool> = OnceLock::new();

/// The highest peak of each device before its last [`reset_peak`].
static HIGHEST: Mutex<Vec<(Device, u64)>> = Mutex::new(Vec::new());

/// Memory of one device as its allocator sees it, as `tw_memory` in `shim/memory.h` has
/// it. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Memory {
    /// Asked for by tensors that live now.
    pub in_use: u64,
    /// The most in use since [`reset_peak`].
    pub peak: u64,
    /// Taken from the system or driver, in use or not.
    pub held: u64,
    /// Requests served since the start.
    pub allocations: u64,
    /// Requests that needed memory from the system or driver; the others were served from held
    /// memory.
    pub system: u64,
    /// The fragmentation of memory that is held and not in use, from 0 to 1. On the CPU: 1 − its
    /// largest piece / all of it. On a GPU: the part of held memory that is free but can't be
    /// returned, since it shares a segment with something in use.
    pub fragmentation: f64,
}

/// Makes the pool the allocator of every CPU tensor from now on. Call it before the first tensor; a
/// second call is harmless.
///
/// # Errors
/// There is no address space for the pool, or libtorch's error.
pub fn install() -> Result<()> {
    if POOL.get().is_none() {
        let pool = Pool::new(reservation()).map_err(|error| Error::Device {
            what: "reserving address space for tensors".into(),
            reason: format!("{error}; raise the limit on it (ulimit -v)"),
        })?;
        // Another thread may have been faster, and its pool is as good.
        let _ = POOL.set(pool);
    }
    // SAFETY: the functions do what the shim asks of them and never unwind.
    unsafe { ffi::tw_cpu_install(allocate, release) }
}

extern "C" fn allocate(bytes: u64, data: *mut *mut c_void) -> *const c_char {
    let refused = match (POOL.get(), usize::try_from(bytes)) {
        (Some(pool), Ok(bytes)) => pool.allocate(bytes),
        _ => Err(AllocationError::System),
    };
    match refused {
        Ok(address) => {
            // SAFETY: the shim passes the address of a pointer of its own.
            unsafe { data.write(address.cast()) };
            ptr::null()
        }
        // `Error` knows both by these words.
        Err(AllocationError::Limit) => c"memory limit".as_ptr(),
        Err(AllocationError::System) => c"out of memory".as_ptr(),
    }
}

extern "C" fn release(data: *mut c_void) -> c_int {
    POOL.get().is_some_and(|pool| pool.release(data.cast())).into()
}

/// Memory of a device now; of the CPU all zeros before [`install`].
///
/// # Errors
/// libtorch's error, for a GPU that does not exist.
pub fn of(device: Device) -> Result<Memory> {
    let Device::Cuda(index) = device else {
        return Ok(POOL.get().map(Pool::memory).unwrap_or_default());
    };
    let mut memory = Memory::default();
    // SAFETY: `memory` is valid for writing and only read after the call.
    unsafe { ffi::tw_gpu_memory(index as i32, &mut memory) }?;
    Ok(memory)
}

/// The most bytes of a device that were ever in use at once.
///
/// # Errors
/// libtorch's error, for a GPU that does not exist.
pub fn highest(device: Device) -> Result<u64> {
    let peak = of(device)?.peak;
    let known = HIGHEST.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(known.iter().filter(|(of, _)| *of == device).fold(peak, |most, (_, peak)| most.max(*peak)))
}

/// Starts a new peak from the memory in use now.
///
/// # Errors
/// libtorch's error, for a GPU that does not exist.
pub fn reset_peak(device: Device) -> Result<()> {
    let peak = of(device)?.peak;
    let mut known = HIGHEST.lock().unwrap_or_else(PoisonError::into_inner);
    match known.iter_mut().find(|(of, _)| *of == device) {
        Some((_, highest)) => *highest = peak.max(*highest),
        None => known.push((device, peak)),
    }
    drop(known);
    match device {
        Device::Cuda(index) => {
            // SAFETY: it is given no address.
            unsafe { ffi::tw_gpu_reset_peak(index as i32) }
        }
        _ => {
            POOL.get().into_iter().for_each(Pool::reset_peak);
            Ok(())
        }
    }
}

/// Returns memory that is held but not in use to the system or driver. Costs next to nothing if
/// there is none.
///
/// # Errors
/// libtorch's error.
pub fn trim(device: Device) -> Result<()> {
    match device {
        // SAFETY: it is given no address.
        Device::Cuda(_) => unsafe { ffi::tw_gpu_empty_cache() },
        _ => {
            POOL.get().into_iter().for_each(Pool::trim);
            Ok(())
        }
    }
}

/// Free and total bytes of a GPU as its driver gives them.
///
/// # Errors
/// libtorch's error.
pub fn free_and_total(index: usize) -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both integers are valid for writing.
    unsafe { ffi::tw_gpu_free_and_total(index as i32, &mut free, &mut total) }?;
    Ok((free, total))
}

/// The room that a limit leaves to rounding, in bytes or as a divisor of the limit, whichever is
/// more: the rest of a page, slab or segment that is partly in use.
const ROUNDING: u64 = 32 << 20;
const ROUNDING_PART: u64 = 8;

/// A limit while it lives: a device's tensors may hold no more than `bytes` above what they held
/// when it was made. An allocation past that fails as out-of-memory, and memory that is cached is
/// returned to the system or driver before both together pass it. Rounding comes on top: at most
/// 32 MiB, or an eighth of the limit if that is more.
///
/// There is one limit per device: the last one made counts.
#[derive(Debug)]
pub struct Limit(Device);

impl Limit {
    /// Limits a device's tensors. A GPU's allocator that can't be limited, as the driver's own pool
    /// can't, is warned of: the limit guides the plans then, and no more.
    ///
    /// # Errors
    /// The device is lost.
    pub fn new(device: Device, bytes: u64) -> Result<Self> {
        match device {
            Device::Cuda(index) => {
                let (_, total) = free_and_total(index)?;
                match set_fraction(index, fraction(of(device)?, bytes, total)) {
                    Err(error @ Error::DeviceLost(_)) => return Err(error),
                    Err(error) => tracing::warn!(%error, "the memory limit is not enforced"),
                    Ok(()) => {}
                }
            }
            _ => {
                if let Some(pool) = POOL.get() {
                    let most = pool.memory().in_use.saturating_add(bytes);
                    pool.set_limit(usize::try_from(most).unwrap_or(usize::MAX));
                }
            }
        }
        Ok(Self(device))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        match self.0 {
            Device::Cuda(index) => {
                if let Err(error) = set_fraction(index, 1.0) {
                    tracing::warn!(%error, "the memory limit can't be taken back");
                }
            }
            _ => POOL.get().into_iter().for_each(|pool| pool.set_limit(usize::MAX)),
        }
    }
}

/// The part of a GPU's memory that its allocator may hold under a limit. It bounds what is held,
/// cached blocks included, of which it frees those that are in the way; parts of a segment that is
/// in use can't be freed (pytorch v2.11.0, c10/cuda/CUDACachingAllocator.cpp, `alloc_block`).
///
/// An APU can use more memory than its runtime reports as all of it: past that, nothing is limited.
fn fraction(now: Memory, bytes: u64, total: u64) -> f64 {
    let stuck = (now.fragmentation * now.held as f64) as u64;
    let rounding = ROUNDING.max(bytes / ROUNDING_PART);
    let most = now.in_use.saturating_add(stuck).saturating_add(bytes).saturating_add(rounding);
    (most as f64 / total.max(1) as f64).min(1.0)
}

fn set_fraction(index: usize, fraction: f64) -> Result<()> {
    // SAFETY: it is given no address.
    unsafe { ffi::tw_gpu_set_fraction(index as i32, fraction) }?;
    let mut set = 0.0;
    // SAFETY: the number is valid for writing.
    unsafe { ffi::tw_gpu_fraction(index as i32, &mut set) }?;
    if (set - fraction).abs() > 1e-9 {
        let reason = format!("its allocator took {set} for {fraction}");
        return Err(Error::Device { what: format!("limiting cuda:{index}"), reason });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_part_of_a_gpus_memory() {
        const GIB: u64 = 1 << 30;
        let now = Memory { in_use: GIB, held: 4 * GIB, fragmentation: 0.25, ..Memory::default() };
        // In use, stuck in segments, the limit itself, and an eighth of it.
        assert_eq!(fraction(now, 8 * GIB, 22 * GIB), 0.5);
        assert_eq!(fraction(now, u64::MAX, 22 * GIB), 1.0);
        assert_eq!(fraction(Memory::default(), GIB, 0), 1.0);
    }
}
