//! Weights of tokens.

use tch::Tensor;

use crate::Result;

/// The states [1, tokens, width] of a chunk, of which those of weighted tokens are moved away from
/// the empty prompt's, or towards them: empty + weight · (state − empty), as ComfyUI's
/// `ClipTokenWeightEncoder` does it.
///
/// # Errors
/// libtorch's failures.
pub(super) fn weigh(states: &Tensor, empty: &Tensor, weights: &[f32]) -> Result<Tensor> {
    let tokens = states.size()[1];
    let empty = empty.f_narrow(1, 0, tokens)?;
    let weights = Tensor::f_from_slice(weights)?.f_reshape([1, tokens, 1])?;
    let weighted = states.f_sub(&empty)?.f_mul(&weights)?.f_add(&empty)?;
    // States that weigh 1 stay as they are, to the bit.
    Ok(weighted.f_where_self(&weights.f_ne(1.0)?, states)?)
}
