//! The bytes and passes of group norms.

use tilewright_plan::Dtype;

/// Values that a pass over a picture in pieces takes at once on a CPU: a piece stays in a core's
/// cache.
pub const CPU_PIECE: i64 = 1 << 17;

/// The same on a GPU: a piece keeps it busy.
pub const GPU_PIECE: i64 = 1 << 24;

/// The launches of a norm of 16-bit values on a GPU.
pub const GROUP_NORM_LAUNCHES: u64 = 9;

/// The times that a norm reads or writes its picture.
pub fn group_norm_passes(dtype: Dtype, on_cpu: bool) -> u64 {
    match dtype {
        // For means and for deviations, and twice to norm.
        Dtype::Bf16 | Dtype::F16 if !on_cpu => 4,
        _ => 3,
    }
}

/// The bytes that a norm of a picture in f32 and channels-last order holds on a CPU beside its
/// input, before there is an output.
pub fn group_norm_bytes([batch, channels, height, width]: [i64; 4]) -> u64 {
    let pixel = batch.saturating_mul(channels).max(1);
    let pixels = (CPU_PIECE / pixel).clamp(1, height.saturating_mul(width).max(1));
    pixels.saturating_mul(pixel).saturating_mul(4) as u64
}
