//! Decodes and encodes: what pictures and clips have in common in both directions.

use tilewright_plan::{Failure, Layout, Outcome, Plan, Space, Time, Vae};
use tilewright_wording::Setting;

use crate::{
    Job,
    run::is_hopeless,
    work::{Attempts, Runnable},
};

impl Runnable for Vae {
    fn layout(plan: &Plan) -> Option<Layout> {
        Some(plan.layout)
    }

    fn with_attempts(outcome: Outcome, Attempts { count, load, cold }: Attempts) -> Outcome {
        Outcome { attempts: count, load, cold, ..outcome }
    }
}

impl<I> Job<'_, Vae, I> {
    /// The same job, with blended tiles and chunks allowed where an exact plan fits, or not.
    #[must_use]
    pub fn allowing_blended(self, allows: bool) -> Self {
        Self { quote: self.quote.allowing_blended(allows), ..self }
    }

    /// The bytes of weights in use that the memory limit counts.
    pub(crate) fn counted_weights(&self, weights_bytes: u64) -> u64 {
        if self.request().limit_counts_weights { weights_bytes } else { 0 }
    }

    /// The way out after the last attempt has failed.
    pub(crate) fn advice(&self, plan: &Plan, last: Failure) -> String {
        match last {
            Failure::NonFinite { .. } if is_hopeless::<Vae>(plan, last) => {
                "in f32 too: the weights or the input are damaged".into()
            }
            Failure::NonFinite { .. } => format!("try {} fixed {} precision=f32", Setting::Policy, Setting::Set),
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                let (plan, least) = self.leanest();
                let set = Setting::Set;
                let kind = if let Space::Exact(_) = plan.space { "exact" } else { "blended" };
                let mut space = match plan.space.tile() {
                    Some(tile) => format!("space={kind} {set} tile={} {set} overlap={}", tile.height, tile.overlap),
                    None => "space=whole".into(),
                };
                if let Time::Carried { frames } = plan.time {
                    space.push_str(&format!(" {set} time=carried {set} chunk={frames}"));
                }
                format!(
                    "raise {}, or try {} fixed {set} {space} {set} precision={} {set} layout={} (about {}{})",
                    Setting::MemoryLimit,
                    Setting::Policy,
                    plan.precision,
                    plan.layout,
                    tilewright_plan::bytes::display(least.peak_bytes),
                    if self.request().limit_counts_weights { ", weights included" } else { "" }
                )
            }
        }
    }
}
