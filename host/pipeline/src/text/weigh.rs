//! Weights of tokens.

use tch::Tensor;
use tilewright_tokenizer::segments;

use crate::{Error, Result};

/// The largest value of a weighted state, either way. The sum of the squares of a row of larger
/// ones is beyond f32, and so is every norm that a transformer takes of it.
const LARGEST: f64 = 1e16;

/// Characters of a weighted text that an error repeats.
const SHOWN: usize = 24;

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

/// Checks weighted states: a weight may be finite and still lead beyond all numbers.
///
/// # Errors
/// [`Error::Prompt`], which names the prompt's largest weight and its place.
pub(super) fn check(weighted: &Tensor, prompt: &str, encoder: &str) -> Result<()> {
    let largest = f64::try_from(&weighted.f_abs()?.f_max()?)?;
    // A comparison with NaN is false.
    if largest <= LARGEST { Ok(()) } else { Err(Error::Prompt(too_heavy(prompt, encoder)?)) }
}

/// The words for a prompt with weights that lead too far.
fn too_heavy(prompt: &str, encoder: &str) -> Result<String> {
    let segments = segments(prompt)?;
    let heaviest = segments.iter().max_by(|one, other| one.weight.abs().total_cmp(&other.weight.abs()));
    let Some(heaviest) = heaviest else { return Ok(format!("the prompt's weights are too large for {encoder}")) };
    let shown: String = heaviest.text.chars().take(SHOWN).collect();
    let more = if heaviest.text.chars().nth(SHOWN).is_some() { "…" } else { "" };
    let place = prompt.get(..heaviest.start).unwrap_or_default().chars().count() + 1;
    Ok(format!(
        "the prompt's weight {:e} of \"{shown}{more}\", at character {place}, is too large: with it the states of \
         {encoder} are beyond what can be computed with; give a smaller one",
        heaviest.weight
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_beyond_numbers_are_named_with_their_place() {
        let states = Tensor::from_slice(&[10.0_f32, -20.0]).reshape([1, 1, 2]);
        let empty = Tensor::from_slice(&[0.5_f32, 0.5]).reshape([1, 1, 2]);
        let of = |prompt: &str, weight: f32| {
            let weighted = weigh(&states, &empty, &[weight]).unwrap();
            check(&weighted, prompt, "T5").map_err(|error| error.to_string())
        };
        assert_eq!(of("(fox:1.5)", 1.5), Ok(()));
        assert_eq!(of("(fox:1e12)", 1e12), Ok(()), "large, and can be computed with");
        // The states are beyond f32, or their squares are.
        for weight in [1e38_f32, -1e38, 1e30, -1e30] {
            let said = of(&format!("a (é:2) (fox:{weight:e}) b"), weight).unwrap_err();
            let words = format!("the prompt's weight {weight:e} of \"fox\", at character 10, is too large: ");
            assert!(said.starts_with(&words) && said.ends_with("give a smaller one"), "{said}");
        }
    }
}
