//! The bytes of products of tokens with packed matrices, as `shim/product.cpp` and
//! `shim/product_int8.cpp` of `tilewright-torch` hold them.

use tilewright_plan::Dtype;

use crate::Kernels;

/// The most bytes of expanded rows that a product holds at once where it can't expand a panel at a
/// time.
pub const EXPANDED: i64 = 32 << 20;

/// The bytes that an expansion on a GPU holds at once for a number of values, its result among
/// them: twice the result, of values that are looked up, or codes and bits of codes beside it; and
/// scales.
pub fn expanding_bytes(values: u64, dtype: Dtype) -> u64 {
    values.saturating_mul(2 * dtype.bytes() + 2)
}

/// The rows that a product expands at once.
pub fn expanded_rows(columns: i64, dtype: Dtype) -> i64 {
    (EXPANDED / columns.saturating_mul(dtype.bytes() as i64).max(1)).max(1)
}

/// The multiple that sides of FP8 products are of (pytorch v2.11.0,
/// aten/src/ATen/native/cuda/ScaledBlas.cpp).
pub const FP8_SIDES: i64 = 16;

/// Rows of the matrix in a panel, rows of the left side that are multiplied at once, and rows that
/// are transposed at once.
const PANEL: i64 = 64;
const ROWS: i64 = 64;
const STRIP: i64 = 16;

/// In 8-bit integers: columns that are multiplied at once; bytes of a rounded piece of the left
/// side and of a part of the matrix; rows of the left side whose sums are kept.
const DEPTH: i64 = 256;
const PIECE: i64 = 384;
const PART: i64 = 22_528;
const SUMS: i64 = 1024;

impl Kernels {
    /// Bytes of scratch that a product with a matrix of `columns` columns holds, all threads
    /// together: a panel, a product, a strip and a row.
    pub fn product_scratch_bytes(&self, columns: i64) -> u64 {
        let columns = columns.max(0) as u64;
        let values = columns.saturating_mul((PANEL + STRIP + 1) as u64).saturating_add((ROWS * PANEL) as u64);
        values.saturating_mul(4).next_multiple_of(64).saturating_mul(self.threads as u64)
    }

    /// Bytes of scratch that a product in 8-bit integers holds, all threads together: the left
    /// side, rounded, and the part of the matrix that each thread works on with its sums.
    pub fn int8_scratch_bytes(&self, left_rows: i64, columns: i64) -> u64 {
        let [left_rows, columns] = [left_rows.max(0), columns.max(0)];
        let rounded = left_rows.saturating_mul(columns.div_euclid(DEPTH) + i64::from(columns % DEPTH > 0));
        let own = PART + left_rows.min(SUMS) * PANEL * 4;
        rounded.saturating_mul(PIECE).saturating_add(self.threads * own) as u64
    }
}
