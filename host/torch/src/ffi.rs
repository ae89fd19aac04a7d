//! The shim's functions; everything `extern "C"` of this crate stands here.

use std::ffi::{CStr, c_char, c_int, c_void};

use tilewright_kernels::TAPS;

use crate::{Error, Result, memory::Memory};

/// `tw_unit_norm_job` in `shim/unit_norm.h`.
#[repr(C)]
pub struct RawUnitNorm {
    pub pixels: i64,
    pub channels: i64,
    pub silu: i32,
    pub input: *const f32,
    pub gamma: *const f32,
    pub output: *mut f32,
}

/// `tw_convolution` in `shim/winograd.h`.
#[repr(C)]
pub struct RawConvolution {
    pub batch: i64,
    pub into: i64,
    pub out: i64,
    pub width: i64,
    pub height: i64,
    pub first: i64,
    pub rows: i64,
    pub out_first: i64,
    pub out_rows: i64,
    pub upsample: c_int,
    pub silu: c_int,
    pub taps: i32,
    pub missing: i32,
    /// As many as `TW_TAPS`.
    pub inputs: [*const f32; TAPS],
    pub scale: *const f32,
    pub shift: *const f32,
    pub bf16: i32,
    pub weights: *const c_void,
    pub bias: *const f32,
    pub add: *const f32,
    pub output: *mut f32,
    pub add_stride: i64,
    pub output_stride: i64,
    pub sums: *mut f64,
}

/// `tw_groups` in `shim/expand.h`.
#[repr(C)]
pub struct RawGroups {
    pub codes: *const u8,
    pub values: i64,
    pub e8m0: i32,
}

/// `tw_packed` in `shim/expand.h`.
#[repr(C)]
pub struct RawPacked {
    pub bytes: *const u8,
    pub rows: i64,
    pub columns: i64,
    pub packing: i32,
    pub scales: *const f32,
    pub scale_count: i64,
    pub groups: RawGroups,
}

/// `tw_product` in `shim/product.h`.
#[repr(C)]
pub struct RawProduct {
    pub matrix: *const RawPacked,
    pub rows: i64,
    pub bf16: i32,
    pub output_bf16: i32,
    pub left: *const c_void,
    pub bias: *const f32,
    pub output: *mut c_void,
    pub output_apart: i64,
}

/// `tw_rows` in `shim/tokens.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawRows {
    pub values: *mut c_void,
    pub apart: i64,
    pub sample_apart: i64,
    pub bf16: i32,
}

/// `tw_extents` in `shim/tokens.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawExtents {
    pub samples: i64,
    pub tokens: i64,
    pub width: i64,
    pub spans: i64,
}

/// `tw_layer_norm` in `shim/tokens.h`.
#[repr(C)]
pub struct RawLayerNorm {
    pub extents: RawExtents,
    pub input: RawRows,
    pub output: RawRows,
    pub epsilon: f32,
    pub weight: *const f32,
    pub bias: *const f32,
    pub shift: *const f32,
    pub scale: *const f32,
    pub span_apart: i64,
    pub modulation_sample_apart: i64,
}

/// `tw_head_norm` in `shim/tokens.h`.
#[repr(C)]
pub struct RawHeadNorm {
    pub extents: RawExtents,
    pub rows: RawRows,
    pub epsilon: f32,
    pub weight: *const f32,
    pub over: i64,
    pub rotation: *const f32,
    pub turned: i64,
}

/// `tw_gelu` in `shim/tokens.h`.
#[repr(C)]
pub struct RawGelu {
    pub extents: RawExtents,
    pub input: RawRows,
    pub output: RawRows,
}

/// `tw_gated_sum` in `shim/tokens.h`.
#[repr(C)]
pub struct RawGatedSum {
    pub extents: RawExtents,
    pub tokens: RawRows,
    pub other: RawRows,
    pub gate: *const f32,
    pub span_apart: i64,
    pub gate_sample_apart: i64,
}

/// `tw_heads` in `shim/tokens.h`.
#[repr(C)]
pub struct RawHeads {
    pub extents: RawExtents,
    pub others: i64,
    pub query: RawRows,
    pub key: RawRows,
    pub value: RawRows,
    pub output: RawRows,
    pub add: i32,
}

/// `tw_cancellation` in `shim/cancel.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawCancellation {
    pub is_asked: Option<extern "C" fn(of: *const c_void) -> i32>,
    pub of: *const c_void,
}

/// `tw_event` in `shim/profile.h`.
#[repr(C)]
pub struct RawEvent {
    pub name: *const c_char,
    pub name_length: usize,
    pub kind: i32,
    pub device: i32,
    pub track: u64,
    pub start: u64,
    pub end: u64,
    pub id: u64,
    pub launched_by: u64,
}

impl RawEvent {
    /// `TW_CALL`, `TW_KERNEL` and `TW_TRANSFER`; any other kind is an operator.
    pub const CALL: i32 = 1;
    pub const KERNEL: i32 = 2;
    pub const TRANSFER: i32 = 3;
}

/// The status of work that a cancellation ended, `kCancelled` in `shim/guarded.h`.
const CANCELLED: c_int = 2;

/// `tw_allocate`: writes the address of as many bytes and returns null, or returns why not.
pub type Allocate = extern "C" fn(bytes: u64, data: *mut *mut c_void) -> *const c_char;
/// `tw_release`: frees, or returns 0 if [`Allocate`] did not return the address.
pub type Release = extern "C" fn(data: *mut c_void) -> c_int;

unsafe extern "C" {
    pub fn tw_cancellation_exchange(cancellation: RawCancellation) -> RawCancellation;
    pub safe fn tw_product_available(bf16: i32) -> c_int;
    #[cfg(test)]
    pub safe fn tw_product_scratch(columns: i64) -> i64;
    pub safe fn tw_int8_available() -> c_int;
    #[cfg(test)]
    pub safe fn tw_int8_packing(packing: i32) -> c_int;
    #[cfg(test)]
    pub safe fn tw_int8_scratch(rows_of_left: i64, columns: i64, threads: i64) -> i64;
    #[cfg(test)]
    pub safe fn tw_attend_heads_scratch(others: i64, width: i64, heads: i64, threads: i64, bf16: i32) -> i64;
    pub safe fn tw_winograd_values(into: i64, out: i64, taps: c_int, upsample: c_int, bf16: i32) -> i64;
    #[cfg(test)]
    pub safe fn tw_winograd_scratch(into: i64, taps: c_int, upsample: c_int, bf16: i32) -> i64;
    pub fn tw_winograd_weights(
        weights: *const f32,
        into: i64,
        out: i64,
        taps: c_int,
        upsample: c_int,
        bf16: i32,
        laid_out: *mut c_void,
    );
    pub fn tw_generator_destroy(generator: *mut c_void);
    pub fn tw_range_begin(name: *const c_char, length: usize) -> *mut c_void;
    pub fn tw_range_end(range: *mut c_void);
    pub safe fn tw_event_create() -> *mut c_void;
    pub fn tw_event_destroy(event: *mut c_void);
}

/// Functions of the shim that report through a status and a text buffer, their last arguments: here
/// they return a [`Result`]. Callers vouch for the other arguments.
macro_rules! reporting {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        pub unsafe fn $name($($argument: $type),*) -> Result<()> {
            unsafe extern "C" {
                fn $name($($argument: $type,)* error: *mut c_char, error_length: usize) -> c_int;
            }
            // SAFETY: the buffer is valid for its length.
            call(|error, length| unsafe { $name($($argument,)* error, length) })
        }
    )*};
}

reporting! {
    fn tw_attention(query: *const f32, key: *const f32, value: *const f32, output: *mut f32, tokens: i64, width: i64);
    fn tw_expand(packed: *const RawPacked, first: i64, rows: i64, kind: i32, to: *mut c_void);
    fn tw_multiply(product: *const RawProduct);
    fn tw_int8_multiply(product: *const RawProduct);
    fn tw_layer_norm_rows(norm: *const RawLayerNorm);
    fn tw_norm_heads(norm: *const RawHeadNorm);
    fn tw_gelu_rows(gelu: *const RawGelu);
    fn tw_add_gated(sum: *const RawGatedSum);
    fn tw_attend_heads(heads: *const RawHeads);
    fn tw_unit_norm(norm: *const RawUnitNorm);
    fn tw_winograd_convolve(convolution: *const RawConvolution);
    fn tw_cpu_install(allocate: Allocate, release: Release);
    fn tw_gpu_memory(device: c_int, out: *mut Memory);
    fn tw_gpu_reset_peak(device: c_int);
    fn tw_generator_create(seed: u64, generator: *mut *mut c_void);
    fn tw_generator_draw(generator: *mut c_void, shape: *const i64, axes: i64, result: *mut *mut c_void);
    fn tw_with_scalar(operation: c_int, tensor: *const c_void, first: f64, second: f64, result: *mut *mut c_void);
    fn tw_largest(tensor: *const c_void, result: *mut *mut c_void);
    fn tw_length(tensor: *const c_void, axis: i64, result: *mut *mut c_void);
    fn tw_gpu_fraction(device: c_int, fraction: *mut f64);
    fn tw_gpu_set_fraction(device: c_int, fraction: f64);
    fn tw_gpu_synchronize(device: c_int);
    fn tw_gpu_forbid_tf32();
    fn tw_cpu_leave_nnpack_out();
    fn tw_gpu_is_f32_exact(exact: *mut c_int);
    fn tw_event_record(event: *mut c_void, device: c_int);
    fn tw_event_wait(event: *mut c_void);
    fn tw_event_block(event: *mut c_void, device: c_int);
    fn tw_host_like(tensor: *const c_void, result: *mut *mut c_void);
    fn tw_pinned(bytes: u64, result: *mut *mut c_void);
    fn tw_pinned_empty_cache();
    fn tw_start_copy(to: *mut c_void, from: *const c_void, behind: *mut c_void, end: *mut c_void);
    fn tw_event_record_behind(event: *mut c_void, device: c_int);
    fn tw_has_fused_attention(query: *const c_void, key: *const c_void, value: *const c_void, fused: *mut c_int);
    fn tw_profile_begin(gpu: c_int);
    fn tw_profile_end(each: Option<extern "C" fn(event: *const RawEvent, of: *mut c_void)>, of: *mut c_void);
    fn tw_gpu_empty_cache();
    fn tw_gpu_free_and_total(device: c_int, free_bytes: *mut u64, total_bytes: *mut u64);
}

/// Runs a shim function that reports through a status and a text buffer.
fn call(function: impl FnOnce(*mut c_char, usize) -> c_int) -> Result<()> {
    let mut text = [0_u8; 1024];
    match function(text.as_mut_ptr().cast(), text.len()) {
        0 => return Ok(()),
        CANCELLED => return Err(Error::Cancelled),
        _ => {}
    }
    let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
    Err(Error::from_text(&text))
}
