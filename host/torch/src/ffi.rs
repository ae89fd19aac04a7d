//! The shim's functions; everything `extern "C"` of this crate stands here.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::{Error, Result};

/// `tw_memory` in `shim/memory.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RawMemory {
    pub in_use: u64,
    pub peak: u64,
    pub held: u64,
    pub allocations: u64,
    pub system: u64,
    pub fragmentation: f64,
}

/// `tw_allocate`: writes the address of as many bytes and returns null, or returns why not.
pub type Allocate = extern "C" fn(bytes: u64, data: *mut *mut c_void) -> *const c_char;
/// `tw_release`: frees, or returns 0 where the address is none that [`Allocate`] gave.
pub type Release = extern "C" fn(data: *mut c_void) -> c_int;

unsafe extern "C" {
    pub fn tw_cpu_install(allocate: Allocate, release: Release, error: *mut c_char, error_length: usize) -> c_int;
    pub fn tw_gpu_memory(device: c_int, out: *mut RawMemory, error: *mut c_char, error_length: usize) -> c_int;
    pub fn tw_gpu_reset_peak(device: c_int, error: *mut c_char, error_length: usize) -> c_int;
    pub fn tw_gpu_empty_cache(error: *mut c_char, error_length: usize) -> c_int;
    pub fn tw_gpu_free_and_total(
        device: c_int,
        free_bytes: *mut u64,
        total_bytes: *mut u64,
        error: *mut c_char,
        error_length: usize,
    ) -> c_int;
}

/// Runs a shim function that reports through a status and a text buffer.
pub fn call(function: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<()> {
    let mut text = [0_u8; 1024];
    if function(text.as_mut_ptr().cast(), text.len()) == 0 {
        return Ok(());
    }
    let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
    Err(Error::from_text(&text))
}
