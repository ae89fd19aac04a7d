//! The default policy: prices the picture whole, in exact bands and in blended tiles, over
//! precisions, memory orders and batches, asks the host for the price of each, corrects the prices
//! by what was measured before, and takes the best that fits the memory limit.
//!
//! **Clips** whose causal state is carried are priced in chunks of one frame up to four latent
//! frames, and as a whole, with the whole picture and with bands. Where prices are within 2 %, the
//! chunk of one latent frame wins, then shorter ones, then longer ones, then all frames together:
//! frames leave early. Tiles run over the whole clip, so that only one tile's state is held; they
//! are the last resort. Where the state of tiles that wait can be kept in host memory at about the
//! same price, they run chunk by chunk.
//!
//! **What fits.** The corrected peak, and 3 % on top as long as no plan of its kind was measured,
//! is within the limit.
//!
//! **What is best** depends on the objective, with t the time and m the peak: `fastest` takes the
//! least t; `balanced` the least t · (1 + m / limit / 2); `leanest` the least m among the plans
//! that take no longer than four times the quickest. Bands give the whole picture's output, so
//! their price stands; blended tiles don't quite, and narrow types round, so their t counts a few
//! percent more (types also their m). Where prices are alike, or memory within 2 % under `leanest`,
//! the better picture wins: whole, then exact, then blended. Narrow types that gain no time, as on
//! a CPU, only count where nothing else fits, and tiles under 256 pixels last of all. On ROCm every
//! convolution shape beyond a plan's first counts a second for its kernel search, unless that plan
//! has run before.
//!
//! **Learning.** Measured over estimated, per model and device: from the host's trials, and from
//! the outcomes that the policy was told, so that a long-lived host gets better answers without a
//! history too. The part that all plans have in common is the machine's, and counts for every plan;
//! the rest is a kind's (of space and of time, precision and memory order), after three runs have
//! shown it. So a machine that was busy for a run changes no decision. A decision changes no later
//! one.
//!
//! **After a failure.** Where memory ran out, the next plan is expected to need at most 70 % of
//! what the failed one was expected to, exact before blended; where there is no such plan, the
//! leanest that is smaller at all; after three such failures the leanest of all. Where values were
//! not finite, a wider type in the same space, else in whatever space fits. What was tried is never
//! answered again. A clip gets a shorter chunk first; where it is under way, it goes on as its
//! state allows: no tiles, no narrower type, no other order.
//!
//! A decision asks for at most 64 estimates.

mod chunks;
mod correct;
mod divide;
mod lanes;
mod learnt;
mod reason;
mod search;

use tilewright_sdk::{Attempt, Description, Dtype, Failure, Outcome, Plan, Policy, Precision, Request, Settings};

use learnt::Learnt;
use search::Search;

/// The user's bounds on the search.
#[derive(Clone, Copy, Debug)]
struct Wishes {
    precision: Option<Precision>,
    min_tile: u32,
    max_tile: u32,
    overlap: Option<u32>,
    /// Output frames of a clip's chunk; 0 for any.
    chunk: u32,
}

/// The policy: what the user wishes and what was learnt.
pub struct Adaptive {
    wishes: Wishes,
    learnt: Learnt,
}

impl Policy for Adaptive {
    fn describe() -> Description {
        Description::new(
            "adaptive",
            env!("CARGO_PKG_VERSION"),
            "Prices plans by estimate and earlier measurements, and takes the best that fits.",
        )
        .setting("precision", "auto, or the only one to consider: f32, bf16, f16, mixed-bf16, mixed-f16.", "auto")
        .setting("min-tile", "The smallest tile to consider while others fit, in pixels.", 256)
        .setting("max-tile", "The largest tile to consider, in pixels.", 2048)
        .setting("overlap", "Pixels that tiles share: auto for an eighth of the tile, or a number.", "auto")
        .setting("chunk", "Frames of a clip's chunk while that fits; 0 for what suits.", 0)
    }

    fn configure(settings: &Settings) -> Result<Self, String> {
        let precision = match settings.text("precision")? {
            "auto" => None,
            _ => {
                let words = Precision::WORDS.map(|(word, precision)| (word, Some(precision)));
                let all: Vec<_> = [("auto", None)].into_iter().chain(words).collect();
                settings.word("precision", &all)?
            }
        };
        let min_tile = settings.count("min-tile", 64, 1 << 16)?;
        let max_tile = settings.count("max-tile", 64, 1 << 16)?;
        if max_tile < min_tile {
            return Err("max-tile: has to be at least min-tile".into());
        }
        let overlap = match settings.text("overlap")? {
            "auto" => None,
            text => Some(text.parse().ok().filter(|overlap| *overlap <= max_tile / 4).ok_or_else(|| {
                [
                    "overlap=",
                    text,
                    ": allowed is auto, or up to a quarter of max-tile (",
                    &(max_tile / 4).to_string(),
                    ")",
                ]
                .concat()
            })?),
        };
        let chunk = settings.count("chunk", 0, 1 << 16)?;
        Ok(Self { wishes: Wishes { precision, min_tile, max_tile, overlap, chunk }, learnt: Learnt::default() })
    }

    fn decide(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let Some(last) = attempts.last() else {
            let best = Search::new(self.wishes, &self.learnt, request, &[]).best();
            return best.map(|best| best.plan).ok_or_else(|| "no plan fits into the memory limit".into());
        };
        let mut wishes = self.wishes;
        let overflowed = matches!(last.failure, Failure::NonFinite(_));
        if overflowed && last.plan.precision.dtype() == Dtype::F32 {
            return Err("not finite even in f32: no plan mends that".into());
        }
        if attempts.iter().any(|attempt| matches!(attempt.failure, Failure::NonFinite(_))) {
            // A precision that was asked for is given up rather than the picture.
            wishes.precision = None;
        }
        let mut search = Search::new(wishes, &self.learnt, request, attempts);
        let kept = if overflowed { search.keeping(&last.plan) } else { None };
        let mut best = kept.or_else(|| search.best()).ok_or("no plan is left to try")?;
        let why = if overflowed { "values were not finite in " } else { "memory ran out in " };
        let failed = [why, last.plan.precision.word(), ", ", &reason::shape(&last.plan), ": "].concat();
        best.plan.reason.insert_str(0, &failed);
        Ok(best.plan)
    }

    fn learn(&mut self, request: &Request, plan: &Plan, outcome: &Outcome) {
        self.learnt.note(request, plan, outcome);
    }
}

tilewright_sdk::export!(Adaptive);

/// The rank of a precision by how much it keeps: more is safer.
fn width(precision: Precision) -> u32 {
    match precision {
        Precision::Uniform(Dtype::F32) | Precision::Mixed(Dtype::F32) => 4,
        Precision::Mixed(Dtype::Bf16) => 3,
        Precision::Mixed(_) => 2,
        Precision::Uniform(Dtype::Bf16) => 1,
        Precision::Uniform(_) => 0,
    }
}

#[cfg(test)]
mod tests;
