//! The bytes of 3×3 convolutions by Winograd's minimal filtering, as `shim/winograd.cpp` of
//! `tilewright-torch` lays them out.

use tilewright_plan::Dtype;

use crate::Kernels;

/// Pixels along the side of a block that one thread computes at once.
pub const BLOCK: u32 = 16;

/// Frames that a causal convolution reads.
pub const TAPS: usize = 3;

/// Output channels that are computed together, and channels of a register.
const CHANNELS: i64 = 64;
const LANES: i64 = 16;

/// Tiles of a block; of the direct case and after an upsampling: the products of a tile, and the
/// pixels along the side of a block's input.
const TILES: i64 = 64;
const POINTS: [i64; 2] = [16, 9];
const PATCH: [i64; 2] = [18, 10];

/// Products of two channels for each pixel of the output of a 3×3 convolution by Winograd's
/// filtering: 4, and 2¼ after an upsampling.
pub const fn winograd_products(upsamples: bool) -> f64 {
    POINTS[upsamples as usize] as f64 / 4.0
}

/// Bytes of a convolution's weights and bias when they are laid out: channels are filled up to
/// whole blocks.
pub fn winograd_weight_bytes(into: i64, out: i64, taps: usize, upsamples: bool, dtype: Dtype) -> u64 {
    let [into, out] = [into, out].map(|channels| channels.max(0) as u64);
    let rows = match (taps, dtype) {
        (1, Dtype::Bf16) => into.next_multiple_of(2),
        (1, _) => into,
        _ => into.next_multiple_of(LANES as u64),
    };
    let points = POINTS[usize::from(upsamples)] as u64;
    let columns = out.next_multiple_of(CHANNELS as u64);
    let values = [taps as u64, rows, points].into_iter().fold(columns, u64::saturating_mul);
    values.saturating_mul(dtype.bytes()).saturating_add(out.saturating_mul(4))
}

impl Kernels {
    /// Bytes of scratch that a convolution of `into` input channels holds, all threads together.
    pub fn winograd_scratch_bytes(&self, into: i64, upsamples: bool, dtype: Dtype) -> u64 {
        self.filter_bytes(into, 1, upsamples, dtype)
    }

    /// The scratch of a causal convolution over three frames.
    pub fn causal_scratch_bytes(&self, into: i64, dtype: Dtype) -> u64 {
        self.filter_bytes(into, TAPS, false, dtype)
    }

    /// For each thread the input of a block, its products, a tile, and the transformed tiles in the
    /// products' type.
    fn filter_bytes(&self, into: i64, taps: usize, upsamples: bool, dtype: Dtype) -> u64 {
        let (points, side) = (POINTS[usize::from(upsamples)], PATCH[usize::from(upsamples)]);
        let own = side * side * CHANNELS + points * TILES * CHANNELS + 4 * CHANNELS;
        let channels = (into.max(0) as u64).next_multiple_of(LANES as u64);
        let transformed = ((points * TILES * taps as i64) as u64).saturating_mul(channels);
        let bytes = transformed.saturating_mul(dtype.bytes()).saturating_add(4 * own as u64);
        bytes.saturating_mul(self.threads as u64)
    }
}
