//! The bytes of attention: plain and in pieces, in `tilewright-torch`'s kernels, and in libtorch's.

use tilewright_plan::Dtype;

use crate::Kernels;

/// The most scores that attention in pieces holds at once.
pub const SCORES: i64 = 1 << 24;

/// The queries that plain attention of one head takes at once.
pub fn plain_rows(batch: i64, tokens: i64) -> i64 {
    (SCORES / batch.saturating_mul(tokens).max(1)).clamp(1, tokens.max(1))
}

/// Plain attention's memory besides query, key, value and as much again, in bytes: scores and their
/// softmax in f32 for the rows at hand, and the rows' result.
pub fn plain_bytes(batch: i64, tokens: i64, width: i64) -> u64 {
    let rows = plain_rows(batch, tokens);
    let values = batch.saturating_mul(rows).saturating_mul(tokens.saturating_mul(2).saturating_add(width));
    4 * values.max(0) as u64
}

/// The heads whose scores attention with a bias has in memory at once: as many as keep them small.
pub fn heads_of_biased(batch: i64, heads: i64, tokens: i64) -> i64 {
    let scores = batch.saturating_mul(tokens).saturating_mul(tokens).max(1);
    (SCORES / scores).clamp(1, heads.max(1))
}

/// Bytes that attention with a bias holds beside its operands and result, at most. `samples` counts
/// heads, too.
pub fn biased_bytes(samples: i64, tokens: i64, width: i64, dtype: Dtype) -> u64 {
    let at_once = heads_of_biased(1, samples, tokens);
    let each = dtype.bytes() as i64;
    let (scores, operand) = (tokens.saturating_mul(tokens), tokens.saturating_mul(width).saturating_mul(each));
    // Products of arranged queries and keys; the softmax beside the scores; the result twice beside
    // arranged values.
    let moments = [scores * each + 2 * operand, scores * 8, scores * each + 3 * operand];
    at_once.saturating_mul(moments.into_iter().max().unwrap_or_default()).max(0) as u64
}

/// The queries that attention in pieces has in memory at once: those that a plan asks for, or as
/// many as keep the scores small.
pub fn rows_of_pieces(samples: i64, tokens: i64, others: i64, queries: Option<i64>) -> i64 {
    let small = || SCORES / samples.saturating_mul(others).max(1);
    queries.unwrap_or_else(small).clamp(1, tokens.max(1))
}

/// Bytes that attention in pieces of `queries` queries holds beside its operands and result, at
/// most: the keys and values rearranged; the queries, scores, their softmax and the result of a
/// piece. `samples` counts heads, too.
pub fn pieces_bytes(samples: i64, [tokens, others]: [i64; 2], width: i64, dtype: Dtype, queries: Option<i64>) -> u64 {
    let rows = rows_of_pieces(samples, tokens, others, queries);
    let each = dtype.bytes() as i64;
    let (arranged, scores) = (2 * others * width * each, 8 * rows * others);
    samples.saturating_mul(arranged + scores + 3 * rows * width * each).max(0) as u64
}

/// The widest head that libtorch's flash attention takes on CUDA (pytorch v2.11.0,
/// aten/src/ATen/native/transformers/cuda/sdp_utils.cpp). On ROCm some chips have more, so that
/// what is counted is the most there.
const FLASH_WIDTH: i64 = 256;

/// Bytes that fused attention holds on a GPU beside its operands and result: a sum and a maximum
/// for each query; of heads wider than flash attention takes also the result in f32, if its own
/// type is narrower (pytorch v2.11.0, aten/src/ATen/native/transformers/cuda/attention.cu,
/// `kNeedsOutputAccumulatorBuffer`). `samples` counts heads, too.
pub fn gpu_fused_bytes(samples: i64, tokens: i64, width: i64, dtype: Dtype) -> u64 {
    let sums = if width > FLASH_WIDTH && dtype != Dtype::F32 { width.saturating_mul(4) } else { 0 };
    samples.saturating_mul(tokens).saturating_mul(sums.saturating_add(8)).max(0) as u64
}

/// Queries and keys of a block in `shim/multi_head.cpp`, columns of a product, and channels of a
/// register.
const QUERIES: i64 = 64;
const KEYS: i64 = 512;
const COLUMNS: i64 = 64;
const LANES: i64 = 16;

fn whole(count: i64, of: i64) -> i64 {
    count.saturating_add(of - 1) / of * of
}

impl Kernels {
    /// Fused attention's memory besides query, key, value and as much again, at most, in bytes. On
    /// a CPU each thread has scores and sums for some queries and keys: 64 and 512 in
    /// `shim/attention.cpp`; 256 and 512 in libtorch's, and there the scores once more in a 16-bit
    /// type (pytorch v2.11.0, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
    pub fn fused_bytes(&self, width: f64, dtype: Dtype) -> f64 {
        let threads = self.threads as f64;
        match dtype {
            // Up to 63 keys are added to fill a block.
            Dtype::F32 if self.products[0] => 4.0 * (64.0 * width + threads * 64.0 * (512.0 + 2.0 + width)),
            _ => threads * 256.0 * (4.0 * (512.0 + 2.0 + width) + 2.0 * 512.0),
        }
    }

    /// Bytes of scratch that libtorch's fused attention holds on a CPU, all threads together, for a
    /// number of tokens and of others that they attend to, of heads of a width: for a block of
    /// queries and one of keys the scores in f32, once more in a 16-bit type, and the sums (pytorch
    /// v2.11.0, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
    pub fn library_scratch_bytes(&self, [tokens, others]: [i64; 2], width: i64, dtype: Dtype) -> u64 {
        let queries = match tokens {
            768.. => 256,
            192.. => 64,
            _ => tokens.min(32),
        };
        let keys = others.min(512);
        let again = if dtype == Dtype::F32 { 0 } else { dtype.bytes() as i64 * keys };
        (self.threads * queries * (4 * (keys + 2 + width) + again)).max(0) as u64
    }

    /// Bytes that attention of several heads by `shim/multi_head.cpp` holds beside its operands and
    /// result, with keys and values of `others` tokens and `heads` heads of `width` values in all
    /// samples together: keys and values laid out for as many heads as there are threads, and what
    /// a thread works in.
    pub fn heads_scratch_bytes(&self, others: i64, width: i64, heads: i64, dtype: Dtype) -> u64 {
        let [others, width] = [others.max(0), width.max(0)];
        let per_word = 4 / dtype.bytes() as i64;
        let keys = whole(others, COLUMNS).saturating_mul(whole(width, per_word) / per_word);
        let values = (whole(others, 2) / per_word).saturating_mul(whole(width, LANES));
        let own = QUERIES * (2 * KEYS + whole(width, LANES) + 2) + COLUMNS * whole(width, LANES);
        let laid_out = self.threads.min(heads.max(0)).saturating_mul(keys.saturating_add(values));
        laid_out.saturating_add(self.threads * own).saturating_mul(4) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_few_scores() {
        // WAN's 14B at 480p: whole, its scores are 86 GB in bf16.
        let (heads, tokens) = (40, 32_760);
        let bytes = pieces_bytes(heads, [tokens, tokens], 128, Dtype::Bf16, None);
        let keys_and_values = (2 * 2 * heads * tokens * 128) as u64;
        assert!(bytes < keys_and_values + 10 * SCORES as u64, "{bytes}");
    }

    #[test]
    fn wide_heads_on_a_gpu_have_their_result_in_f32_beside_it() {
        // A middle block of 512 channels at 1024×1024: 33.5 MB.
        assert_eq!(gpu_fused_bytes(1, 16_384, 512, Dtype::Bf16), 16_384 * (4 * 512 + 8));
        assert_eq!(gpu_fused_bytes(1, 16_384, 512, Dtype::F32), 16_384 * 8);
        // A denoiser's heads.
        assert_eq!(gpu_fused_bytes(24, 4608, 128, Dtype::Bf16), 24 * 4608 * 8);
    }
}
