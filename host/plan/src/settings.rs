//! Plans as the settings of the policy `fixed` that make exactly them.

use crate::{Attention, DenoisePlan, Plan, Products, Release, Time};

impl Plan {
    /// The `fixed` policy's settings that make exactly this plan.
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        let mut set = |key: &str, value: String| settings.push((key.to_owned(), value));
        set("space", self.space.to_string().split(' ').next().unwrap_or_default().to_owned());
        if let Some(tile) = self.space.tile() {
            let is_square = tile.width == tile.height;
            set("tile", if is_square { tile.width.to_string() } else { format!("{}x{}", tile.width, tile.height) });
            set("overlap", tile.overlap.to_string());
        }
        set("precision", self.precision.setting());
        set("layout", self.layout.to_string());
        if self.batch != 1 {
            set("batch", self.batch.to_string());
        }
        if self.release != Release::Keep {
            set("release", self.release.to_string());
        }
        if self.offload {
            set("offload", "true".into());
        }
        if self.prefetch != 0 {
            set("prefetch", self.prefetch.to_string());
        }
        match self.time {
            Time::Whole => {}
            Time::Carried { frames } => {
                set("time", "carried".into());
                set("chunk", frames.to_string());
            }
            Time::Blended { frames, overlap } => {
                set("time", "blended".into());
                set("chunk", frames.to_string());
                set("time-overlap", overlap.to_string());
            }
        }
        settings.extend(self.options.setting());
        settings
    }
}

impl DenoisePlan {
    /// The `fixed` policy's settings that make exactly this plan.
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        let mut set = |key: &str, value: String| settings.push((key.to_owned(), value));
        set("precision", self.precision.setting());
        if self.products != Products::Precision {
            set("products", self.products.to_string());
        }
        set("weights", self.weights.to_string());
        set("ahead", self.ahead.map_or_else(|| "all".into(), |blocks| blocks.to_string()));
        if let Attention::Pieces { queries } = self.attention {
            set("attention", queries.to_string());
        }
        set("guidance", self.guidance.to_string());
        if let Some(samples) = self.samples {
            set("samples", samples.to_string());
        }
        set("feed-forward", self.feed_forward.to_string());
        set("reuse", self.reuse.name().into());
        if self.release != Release::Keep {
            set("release", self.release.to_string());
        }
        settings.extend(self.options.setting());
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WeightForm;

    #[test]
    fn a_samples_plan_is_spelled_for_the_fixed_policy() {
        let plan = DenoisePlan {
            weights: WeightForm::Packed,
            ahead: Some(1),
            attention: Attention::Pieces { queries: 256 },
            samples: Some(2),
            feed_forward: 4,
            release: Release::AtEnd,
            ..DenoisePlan::plain()
        };
        let spelled: Vec<String> = plan.settings().iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            spelled.join(","),
            "precision=f32,weights=packed,ahead=1,attention=256,guidance=in-turn,samples=2,feed-forward=4,reuse=off,release=at-end"
        );
    }
}
