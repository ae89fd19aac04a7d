//! Ranges of the tokens that go through a layer one after the other.

use tilewright_nn::{Dense, Gelu, TokenOps};

use crate::Result;

/// The starts and lengths of at most `count` ranges of `tokens`, all of the same length but for the
/// last one, which may be shorter.
pub(crate) fn token_ranges(tokens: i64, count: i64) -> impl Iterator<Item = (i64, i64)> {
    let count = count.clamp(1, tokens.max(1));
    let length = ((tokens + count - 1) / count).max(1);
    (0..tokens).step_by(length as usize).map(move |start| (start, length.min(tokens - start)))
}

/// A feed-forward layer: a wide layer, gelu, and a narrow one, over tokens [N, tokens, width] that
/// are normed. Only the part of the tokens that the format says is wide at once.
///
/// # Errors
/// libtorch's failures, out of memory included.
pub(crate) fn feed_forward<O: TokenOps>(
    ops: &O,
    normed: O::Tensor,
    [widen, narrow]: [&Dense<O>; 2],
) -> Result<O::Tensor> {
    let format = ops.format();
    let shape = ops.shape(&normed);
    let run = |tokens: O::Tensor| -> Result<O::Tensor> {
        let wide = widen.forward(ops, &tokens, format.product_dtype)?;
        drop(tokens);
        ops.gelu_onto(&wide, &wide, Gelu::Tanh)?;
        Ok(narrow.forward(ops, &wide, format.layer_dtype)?)
    };
    if format.feed_forward_parts <= 1 {
        return run(normed);
    }
    let output = ops.unset(&shape, format.layer_dtype)?;
    for (start, length) in token_ranges(shape[1], format.feed_forward_parts) {
        let part = run(ops.narrow(&normed, 1, start, length)?)?;
        ops.copy_onto(&ops.narrow(&output, 1, start, length)?, &part)?;
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_tokens() {
        let of = |tokens, count| token_ranges(tokens, count).collect::<Vec<_>>();
        assert_eq!(of(10, 3), [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(of(2, 5), [(0, 1), (1, 1)]);
        assert_eq!(of(7, 1), [(0, 7)]);
    }
}
