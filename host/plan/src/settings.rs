//! Plans as the settings of the policy `fixed` that make exactly them.

use crate::{Attention, DenoisePlan, GuidanceOrder, Plan, Precision, Products, Release, StepReuse, Time, WeightForm};

impl Plan {
    /// The `fixed` policy's settings that make exactly this plan.
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        let mut set = |key: &str, value: String| settings.push((key.to_owned(), value));
        set("space", self.space.to_string().split(' ').next().unwrap_or_default().to_owned());
        if let Some(tile) = self.space.tile() {
            set(
                "tile",
                if tile.width == tile.height {
                    tile.width.to_string()
                } else {
                    format!("{}x{}", tile.width, tile.height)
                },
            );
            set("overlap", tile.overlap.to_string());
        }
        set(
            "precision",
            match self.precision {
                Precision::Uniform(dtype) => dtype.to_string(),
                Precision::Mixed(dtype) => format!("mixed-{dtype}"),
            },
        );
        set("layout", self.layout.to_string());
        if self.batch != 1 {
            set("batch", self.batch.to_string());
        }
        match self.release {
            Release::Keep => {}
            Release::AtEnd => set("release", "at-end".into()),
            Release::EachStep => set("release", "each-step".into()),
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
        set(
            "precision",
            match self.precision {
                Precision::Uniform(dtype) => dtype.to_string(),
                Precision::Mixed(dtype) => format!("mixed-{dtype}"),
            },
        );
        if self.products != Products::Precision {
            set("products", self.products.to_string());
        }
        set("weights", if self.weights == WeightForm::Packed { "packed" } else { "expanded" }.into());
        set("ahead", self.ahead.map_or_else(|| "all".into(), |blocks| blocks.to_string()));
        if let Attention::Pieces { queries } = self.attention {
            set("attention", queries.to_string());
        }
        set("guidance", if self.guidance == GuidanceOrder::Together { "together" } else { "in-turn" }.into());
        if let Some(samples) = self.samples {
            set("samples", samples.to_string());
        }
        set("feed-forward", self.feed_forward.to_string());
        let reuse = match self.reuse {
            StepReuse::Off => "off",
            StepReuse::Output { .. } => "output",
            StepReuse::FirstBlock { .. } => "first-block",
        };
        set("reuse", reuse.into());
        match self.release {
            Release::Keep => {}
            Release::AtEnd => set("release", "at-end".into()),
            Release::EachStep => set("release", "each-step".into()),
        }
        settings.extend(self.options.setting());
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
