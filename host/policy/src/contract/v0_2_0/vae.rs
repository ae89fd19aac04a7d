//! Conversions between the types of contract 0.2.0's `vae` and [`tilewright_plan`]'s.

use tilewright_plan as plan;
use tilewright_plan::{Vae, exchange::nanoseconds};

use super::{
    bindings::tilewright::policy::{types, vae},
    conversions::{Facts, lower_options, options, plans},
};

plans!(vae, Plan, space, time, batch, precision, layout, release, offload, prefetch);

/// The hint in which the engine names the model's sample size.
const SAMPLE_SIZE: &str = "sample-size";

/// Hints that this version has fields for.
const FIELDS: [&str; 3] = [SAMPLE_SIZE, plan::Stage::HINT, "clip.done"];

/// The prefix of hints that name capabilities, as in records of earlier programs.
const CAPABILITIES: &str = "offer.";

/// A question about a decode or an encode.
pub(super) type VaeRequest<'a> = Facts<'a, Vae, vae::Plan>;

impl<'a> VaeRequest<'a> {
    pub fn of(question: &'a plan::Question<'a>, under_way: Option<&plan::UnderWay>) -> Self {
        let plan::Request { model, hints, .. } = question.request;
        let stored = types::StoredType { name: model.stored.name(), bytes: model.parameter_bytes };
        let is_field = |name: &str| FIELDS.contains(&name) || name.starts_with(CAPABILITIES);
        let hints = hints.iter().filter(|hint| !is_field(&hint.name));
        Self::new(question, under_way, &question.capabilities.dtypes, std::iter::once(stored), hints, ())
    }

    /// The request as the contract has it, everything in it lent.
    pub fn lend<'b>(&'b self, options: &'b [types::PlanOption<'b>]) -> vae::Request<'b> {
        let plan::Question { stage, request, capabilities, .. } = *self.question;
        let sample_size = request.hints.iter().find(|hint| hint.name == SAMPLE_SIZE);
        vae::Request {
            direction: match stage {
                plan::Stage::Encode => vae::Direction::Encode,
                _ => vae::Direction::Decode,
            },
            model: vae::Model {
                family: &request.model.family,
                weights: self.weights(request.model.parameter_bytes),
                sample_size: sample_size.and_then(|hint| hint.value.parse().ok()),
            },
            device: self.device(),
            host: request.host.into(),
            limit_bytes: request.memory_limit,
            objective: request.objective.into(),
            allows_blended: request.allows_blended,
            batch: request.batch,
            frames: request.frames,
            height: request.height,
            width: request.width,
            spatial_scale: request.model.spatial_scale,
            temporal_scale: request.model.temporal_scale,
            capabilities: vae::Capabilities {
                dtypes: &self.dtypes,
                tile_unit: capabilities.tile_unit,
                tile_least: capabilities.tile_least,
                batch_most: capabilities.batch_most,
                prefetch_most: capabilities.prefetch_most,
                exact: capabilities.exact,
                carried: capabilities.carried,
                offload: capabilities.offload,
                options,
            },
            under_way: self.under_way.as_ref().map(|&(frames_done, ref plan)| vae::UnderWay { frames_done, plan }),
            hints: &self.hints,
        }
    }
}

/// Peak and weights apart, as the contract has them.
fn memory(peak_bytes: u64, weights_bytes: u64) -> types::Memory {
    types::Memory { peak_bytes: peak_bytes.saturating_sub(weights_bytes), weights_bytes }
}

impl From<plan::Cost> for vae::Cost {
    fn from(cost: plan::Cost) -> Self {
        let plan::Cost { peak_bytes, weights_bytes, elapsed, tiles, shapes, rework } = cost;
        Self { memory: memory(peak_bytes, weights_bytes), elapsed_ns: nanoseconds(elapsed), tiles, shapes, rework }
    }
}

impl From<&plan::Outcome> for vae::Outcome {
    fn from(outcome: &plan::Outcome) -> Self {
        let &plan::Outcome { elapsed, load, peak_bytes, weights_bytes, attempts, .. } = outcome;
        let [elapsed_ns, load_ns] = [elapsed, load].map(nanoseconds);
        Self { memory: memory(peak_bytes, weights_bytes), elapsed_ns, load_ns, attempts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_the_request_s_and_the_device_s() {
        let hint = |name: &str| plan::Hint { name: name.into(), value: "7".into() };
        let model = plan::Model {
            family: "flux".into(),
            stored: plan::Dtype::Bf16,
            quantized: false,
            parameter_bytes: 1,
            spatial_scale: 8,
            temporal_scale: 1,
        };
        let request = plan::Request {
            model,
            batch: 1,
            frames: 1,
            height: 64,
            width: 64,
            memory_limit: 1,
            limit_counts_weights: false,
            host: plan::HostMemory::default(),
            objective: plan::Objective::Balanced,
            allows_blended: false,
            hints: ["sample-size", "colours", "offer.exact"].map(hint).into(),
        };
        let device = plan::Device {
            backend: plan::Backend::Rocm,
            name: "a GPU".into(),
            arch: "gfx1151".into(),
            compute_units: 1,
            total_bytes: 1,
            free_bytes: 1,
            unified: true,
            fast_dtypes: Vec::new(),
            hints: ["rocm", "miopen"].map(hint).into(),
        };
        let capabilities = plan::Capabilities::default();
        let question = plan::Question::new(plan::Stage::Decode, &request, &device, &capabilities);
        let told = VaeRequest::of(&question, None);
        let lent = told.lend(&[]);
        let names: Vec<&str> = lent.hints.iter().map(|hint| hint.name).collect();
        assert_eq!(names, ["colours", "rocm", "miopen"]);
        assert_eq!(lent.model.sample_size, Some(7));
    }
}
