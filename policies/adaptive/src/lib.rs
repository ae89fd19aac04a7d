//! The default policy: enumerates whole and blended plans over tile sizes, precisions, memory orders and batches, asks the host for
//! the price of each, corrects the prices by what was measured before, and takes the best that fits the memory limit.
//!
//! What is best depends on the objective, with t the time and m the peak as a share of the limit:
//! `fastest` takes the least t; `balanced` the least t · (1 + m / 2); `leanest` the least m among the plans that take no longer than
//! four times the quickest. Blended tiles are not quite the whole picture's output and narrow types round, so their prices count a
//! few percent more: at near-equal cost the better picture wins.

mod correct;
mod search;

use tilewright_sdk::{Attempt, Description, Dtype, Failure, Plan, Policy, Precision, Request, Settings, host};

use correct::Corrections;
use search::{Limits, Search};

/// What the user may narrow the search to.
#[derive(Clone, Copy)]
pub struct Adaptive {
    precision: Option<Precision>,
    min_tile: u32,
    max_tile: u32,
    overlap: Option<u32>,
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
        Ok(Self { precision, min_tile, max_tile, overlap })
    }

    fn decide(&mut self, request: &Request) -> Result<Plan, String> {
        let limits = Limits { peak_bytes: request.memory_limit as f64, wider_than: None };
        let found = Search::new(self, request).best(&limits, &[]);
        found.ok_or_else(|| "no plan fits into the memory limit".into())
    }

    fn recover(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let Some(last) = attempts.last() else {
            return self.decide(request);
        };
        let overflowed = attempts.iter().filter(|attempt| matches!(attempt.failure, Failure::NonFinite(_)));
        let overflowed = overflowed.map(|attempt| attempt.plan.precision).max_by_key(|precision| width(*precision));
        let mut limits = Limits { peak_bytes: request.memory_limit as f64, wider_than: overflowed };
        let mut search = Search::new(self, request);
        let why = match last.failure {
            Failure::NonFinite(_) => {
                if last.plan.precision.dtype() == Dtype::F32 {
                    return Err("not finite even in f32: no plan mends that".into());
                }
                // A precision that was asked for is given up rather than the picture.
                search.widen();
                "values were not finite in "
            }
            Failure::OutOfMemory(_) | Failure::OverLimit(_) => {
                let expected = host::estimate(&last.plan).map_or(request.memory_limit, |cost| cost.peak_bytes);
                limits.peak_bytes = limits.peak_bytes.min(0.7 * expected as f64 * search.memory_ratio(&last.plan));
                "memory ran out in "
            }
        };
        let plan = search.best(&limits, attempts).ok_or("no plan is left to try")?;
        let reason = [why, last.plan.precision.word(), shape(&last.plan), ": ", &plan.reason].concat();
        Ok(plan.because(reason))
    }
}

tilewright_sdk::export!(Adaptive);

/// How much a precision keeps, for comparing: more is safer.
fn width(precision: Precision) -> u32 {
    match precision {
        Precision::Uniform(Dtype::F32) | Precision::Mixed(Dtype::F32) => 4,
        Precision::Mixed(Dtype::Bf16) => 3,
        Precision::Mixed(_) => 2,
        Precision::Uniform(Dtype::Bf16) => 1,
        Precision::Uniform(_) => 0,
    }
}

fn shape(plan: &Plan) -> &'static str {
    if plan.tile().is_some() { " tiles" } else { ", whole" }
}

#[cfg(test)]
mod tests;
