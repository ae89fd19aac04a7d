//! The default policy. It prices the picture whole and in exact bands, over precisions, memory
//! orders and batches. It asks the host for the prices, corrects them by earlier measurements, and
//! takes the best plan that fits the memory limit.
//!
//! **Blended tiles** are priced if the user allows them; otherwise only if nothing exact fits, in
//! any type. Before them comes even the exact plan that fits without the margin below.
//!
//! **Clips** that carry their causal cache are priced in chunks of one frame up to four latent
//! frames, and as a whole, with the whole picture and with bands. If prices are within 2 %, the
//! order of preference is: the chunk of one latent frame, shorter ones, longer ones, all frames
//! together. So frames are delivered early. Tiles are the last resort: they run over the whole
//! clip, so that only one tile's causal cache is held. If the host can keep the caches of waiting
//! tiles in its own memory at about the same price, tiles run chunk by chunk.
//!
//! **A plan fits** if its corrected peak is within the limit, with a margin of 3 % as long as no
//! plan of its kind was measured.
//!
//! **The best plan** depends on the objective, with t the time and m the peak:
//!
//! | objective | takes the least |
//! |---|---|
//! | `fastest` | t |
//! | `balanced` | t · (1 + m / limit / 2) |
//! | `leanest` | m, of the plans that take at most four times as long as the fastest |
//!
//! These rules change a plan's t and m:
//!
//! | plan | rule |
//! |---|---|
//! | bands | none: they give the whole picture's output |
//! | blended tiles that the user allows | t counts 5 % more |
//! | narrow types | t and m count a few percent more, since they round |
//! | narrow types that the device is not fast in | considered only if nothing else fits |
//! | all narrow types on a CPU, unless `fastest` | considered only if nothing else fits |
//! | tiles under 256 pixels | considered last of all |
//! | several convolution shapes, on ROCm | t counts 1 s more per further shape, until it has run |
//!
//! If prices are equal, or memory within 2 % under `leanest`, the better picture wins: whole, then
//! exact, then blended.
//!
//! **Learning.** The ratios of measured to estimated, per model and device, come from the host's
//! trials, and from the outcomes that the policy has learned from, which serve a long-lived host
//! without a history. The part that all plans have in common is the machine's and counts for every
//! plan. The rest belongs to a kind of plan (its space and time, precision and memory order) after
//! three runs have shown it. So a machine that was busy for one run changes no decision. A decision
//! changes no later one.
//!
//! **After a failure:**
//!
//! | failure | next plan |
//! |---|---|
//! | out of memory | at most 70 % of the failed one's expected memory |
//! | the same, and no plan is that small | the leanest that is smaller at all |
//! | the third one | the leanest of all |
//! | values not finite | a wider type in the same space, else in any space that fits |
//!
//! With less memory, shorter chunks of a clip come first, then exact bands, then blended tiles,
//! allowed or not.
//!
//! A plan that was tried is never answered again. A clip under way goes on as its causal cache
//! allows: no tiles, no narrower type, no other memory order.
//!
//! A decision asks for at most 64 estimates.
//!
//! **Samples** are searched likewise: see `sample.rs`. The objective's rules are the same, with the
//! time of a step and the memory with the weights. So are **text encoders**: see `text.rs`.

mod calibration;
mod candidates;
mod chunks;
mod contest;
mod divide;
mod outcome_memory;
mod reason;
mod sample;
mod search;
mod text;

use tilewright_sdk::{
    Attempt, Description, Dtype, Outcome, Plan, Policy, Precision, Release, Request, Settings, Stage, denoise,
    text as encoder,
};

use outcome_memory::OutcomeMemory;
use search::Search;

/// The user's bounds on the search.
#[derive(Clone, Copy, Debug)]
struct UserBounds {
    precision: Option<Precision>,
    min_tile: u32,
    max_tile: u32,
    overlap: Option<u32>,
    /// Output frames of a clip's chunk; 0 for any.
    chunk: u32,
}

/// The policy: the user's bounds and the outcomes so far.
pub struct Adaptive {
    wishes: UserBounds,
    sample: sample::Wishes,
    text: text::Wishes,
    memory: OutcomeMemory,
}

impl Policy for Adaptive {
    fn describe() -> Description {
        let description = Description::new(
            "adaptive",
            env!("CARGO_PKG_VERSION"),
            "Prices plans by estimate and earlier measurements, and takes the best that fits.",
        );
        let description = description
            .stages(&[Stage::Decode, Stage::Encode, Stage::Denoise, Stage::Text])
            .setting(
                "precision",
                "auto, or the only one to consider: f32, tf32, bf16, f16, mixed-bf16, mixed-f16.",
                "auto",
            )
            .setting("min-tile", "The smallest tile to consider while others fit, in pixels.", 256)
            .setting("max-tile", "The largest tile to consider, in pixels.", 2048)
            .setting("overlap", "Pixels that tiles share: auto for an eighth of the tile, or a number.", "auto")
            .setting("chunk", "Frames of a clip's chunk while that fits; 0 for what suits.", 0);
        let description = encoder::Choice::declare(denoise::Choice::declare(description));
        description.setting("release", "Samples: when unused memory is freed: keep, at-end or each-step.", "keep")
    }

    fn configure(settings: &Settings) -> Result<Self, String> {
        let precision = denoise::precision(settings)?;
        let min_tile = settings.count("min-tile", 64, 1 << 16)?;
        let max_tile = settings.count("max-tile", 64, 1 << 16)?;
        if max_tile < min_tile {
            return Err(format!("max-tile={max_tile}: has to be at least min-tile, which is {min_tile}"));
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
        let release = settings.word("release", &Release::WORDS)?;
        Ok(Self {
            wishes: UserBounds { precision, min_tile, max_tile, overlap, chunk },
            sample: sample::Wishes { precision, release, choice: denoise::Choice::read(settings)? },
            text: text::Wishes { precision, choice: encoder::Choice::read(settings)? },
            memory: OutcomeMemory::default(),
        })
    }

    fn decide(&mut self, request: &Request, attempts: &[Attempt]) -> Result<Plan, String> {
        let Some(last) = attempts.last() else {
            let best = Search::new(self.wishes, &self.memory, request, &[]).best();
            return best.map(|best| best.plan).ok_or_else(|| "no plan fits into the memory limit".into());
        };
        let mut wishes = self.wishes;
        if last.is_hopeless() {
            return Err("not finite even in f32: no plan mends that".into());
        }
        let overflowed = last.overflowed();
        if attempts.iter().any(Attempt::overflowed) {
            // A precision that was asked for is given up rather than the picture.
            wishes.precision = None;
        }
        let mut search = Search::new(wishes, &self.memory, request, attempts);
        let kept = if overflowed { search.keeping(&last.plan) } else { None };
        let mut best = kept.or_else(|| search.best()).ok_or("no plan is left to try")?;
        let why = if overflowed { "values were not finite in " } else { "memory ran out in " };
        let failed = [why, last.plan.precision.word(), ", ", &reason::shape(&last.plan), ": "].concat();
        best.plan.reason.insert_str(0, &failed);
        Ok(best.plan)
    }

    fn decide_denoise(
        &mut self,
        request: &denoise::Request,
        attempts: &[denoise::Attempt],
    ) -> Result<denoise::Plan, String> {
        sample::decide(&self.sample, request, attempts)
    }

    fn decide_text(
        &mut self,
        request: &encoder::Request,
        attempts: &[encoder::Attempt],
    ) -> Result<encoder::Plan, String> {
        text::decide(&self.text, request, attempts)
    }

    fn learn(&mut self, request: &Request, plan: &Plan, outcome: &Outcome) {
        self.memory.note(request, plan, outcome);
    }
}

tilewright_sdk::export!(Adaptive);

/// The rank of a precision by how much it keeps: more is safer.
fn width(precision: Precision) -> u32 {
    match precision {
        Precision::Uniform(Dtype::F32) | Precision::Mixed(Dtype::F32) => 5,
        Precision::Mixed(Dtype::Tf32) => 4,
        Precision::Mixed(Dtype::Bf16) => 3,
        Precision::Mixed(_) => 2,
        Precision::Uniform(Dtype::Bf16) => 1,
        Precision::Uniform(_) => 0,
    }
}

#[cfg(test)]
mod tests;
