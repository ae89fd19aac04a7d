//! Reuse of all blocks after the first, where the first one changes the image's tokens almost as it
//! did when all were last computed (ParaAttention's first-block cache,
//! github.com/chengzeyi/ParaAttention).

use tch::Tensor;
use tilewright_models::BlockChoice;

use super::{Reused, mean_size};

/// The last computed run of each kind in a call, and the run under way.
pub(in super::super) struct FirstBlockReuse {
    threshold: f64,
    last: Vec<Option<Computed>>,
    under_way: UnderWay,
    pub(super) reused: Reused,
}

/// A run of the network that was computed.
struct Computed {
    /// The change of the tokens by the first block.
    first: Tensor,
    /// The mean size of that change.
    size: f64,
    /// The change by all other blocks.
    rest: Tensor,
}

/// The run under way.
enum UnderWay {
    Nothing,
    /// The tokens before the first block.
    Begun(Tensor),
    /// The change by the first block, and the tokens after it.
    Past {
        first: Tensor,
        tokens: Tensor,
    },
}

impl FirstBlockReuse {
    pub fn new(threshold: f64) -> Self {
        Self { threshold, last: Vec::new(), under_way: UnderWay::Nothing, reused: Reused::default() }
    }

    /// As [`super::Reuse::before_block`].
    pub fn before_block(
        &mut self,
        run: usize,
        [block, blocks]: [usize; 2],
        tokens: &Tensor,
    ) -> tilewright_torch::Result<BlockChoice> {
        if self.last.len() <= run {
            self.last.resize_with(run + 1, || None);
        }
        // The block after the first one is also where a network of one block ends.
        match block {
            0 => self.under_way = UnderWay::Begun(copy(tokens)?),
            1 if blocks > 1 => {
                let UnderWay::Begun(before) = std::mem::replace(&mut self.under_way, UnderWay::Nothing) else {
                    return Ok(BlockChoice::Run);
                };
                let first = tokens.f_sub(&before)?;
                drop(before);
                if let Some(last) = &self.last[run] {
                    let change = mean_size(&first.f_sub(&last.first)?)? / last.size;
                    // NaN compares false: the run is computed.
                    if change < self.threshold {
                        let _ = tokens.shallow_clone().f_add_(&last.rest)?;
                        self.reused.note(change);
                        return Ok(BlockChoice::SkipRest);
                    }
                }
                self.under_way = UnderWay::Past { first, tokens: copy(tokens)? };
            }
            _ if block == blocks => {
                if let UnderWay::Past { first, tokens: after } =
                    std::mem::replace(&mut self.under_way, UnderWay::Nothing)
                {
                    let size = mean_size(&first)?.max(f64::MIN_POSITIVE);
                    self.last[run] = Some(Computed { first, size, rest: tokens.f_sub(&after)? });
                }
            }
            _ => {}
        }
        Ok(BlockChoice::Run)
    }
}

fn copy(tokens: &Tensor) -> tilewright_torch::Result<Tensor> {
    let mut copy = tokens.f_empty_like()?;
    copy.f_copy_(tokens)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn tensor(value: f64) -> Tensor {
        Tensor::ones([4], (Kind::Float, Device::Cpu)) * value
    }

    fn value(tensor: &Tensor) -> f64 {
        f64::try_from(tensor.get(0)).unwrap()
    }

    /// Runs three blocks, of which the first adds `first` and the others 10 each; the result, and
    /// whether the others were computed.
    fn run(reuse: &mut FirstBlockReuse, number: usize, first: f64) -> (f64, bool) {
        let mut tokens = tensor(1.0);
        assert_eq!(reuse.before_block(number, [0, 3], &tokens).unwrap(), BlockChoice::Run);
        let _ = tokens.f_add_(&tensor(first)).unwrap();
        if reuse.before_block(number, [1, 3], &tokens).unwrap() == BlockChoice::SkipRest {
            return (value(&tokens), false);
        }
        for block in 2..=3 {
            let _ = tokens.f_add_(&tensor(10.0)).unwrap();
            assert_eq!(reuse.before_block(number, [block, 3], &tokens).unwrap(), BlockChoice::Run);
        }
        (value(&tokens), true)
    }

    #[test]
    fn the_rest_is_reused_while_the_first_block_does_the_same() {
        let mut reuse = FirstBlockReuse::new(0.1);
        assert_eq!(run(&mut reuse, 0, 2.0), (23.0, true), "nothing is known yet");
        assert_eq!(run(&mut reuse, 1, 2.0), (23.0, true), "another conditioning has its own");
        let (found, is_computed) = run(&mut reuse, 0, 2.1);
        assert!((found - 23.1).abs() < 1e-5 && !is_computed, "{found}");
        assert!((reuse.reused.deviation - 0.05).abs() < 1e-6 && reuse.reused.calls == 1);
        assert_eq!(run(&mut reuse, 0, 2.5), (23.5, true), "a quarter more");
        assert!(!run(&mut reuse, 0, 2.6).1, "compared with the last one that was computed");
        assert!(run(&mut reuse, 0, f64::NAN).1);
    }
}
