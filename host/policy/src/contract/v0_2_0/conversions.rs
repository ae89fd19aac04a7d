//! Conversions between the types of contract 0.2.0 and [`tilewright_plan`]'s.

use tilewright_plan as plan;

use super::bindings::{
    exports::tilewright::policy::lifecycle,
    tilewright::policy::{host, types, vae},
};
use crate::{
    contract::conversions::{alike, conversions},
    host::Description,
    settings::Setting,
};

conversions!(vae, std::convert::identity);
alike!(
    types::Dtype,
    plan::Dtype,
    F32 = F32,
    Tf32 = Tf32,
    Bf16 = Bf16,
    F16 = F16,
    F8E4m3 = F8E4m3,
    F8E5m2 = F8E5m2,
    I8 = I8,
    I4 = I4
);
alike!(types::Stage, plan::Stage, Text = Text, Denoise = Denoise, Decode = Decode, Encode = Encode);

/// The hint in which the engine names the model's sample size.
const SAMPLE_SIZE: &str = "sample-size";

/// Hints that this version has fields for.
const FIELDS: [&str; 3] = [SAMPLE_SIZE, plan::Stage::HINT, "clip.done"];

/// The prefix of hints that name capabilities, as in records of earlier programs.
const CAPABILITIES: &str = "offer.";

/// A question in the contract's form: the parts that can't be lent as they are.
pub(super) struct GuestRequest<'a> {
    question: &'a plan::Question<'a>,
    fast_dtypes: Vec<types::Dtype>,
    dtypes: Vec<types::Dtype>,
    /// The clip that is under way: frames that are delivered, and their plan.
    under_way: Option<(u32, vae::Plan)>,
}

impl<'a> GuestRequest<'a> {
    pub fn new(question: &'a plan::Question<'a>, under_way: Option<&plan::UnderWay>) -> Self {
        let dtypes = |dtypes: &[plan::Dtype]| dtypes.iter().copied().map(Into::into).collect();
        Self {
            question,
            fast_dtypes: dtypes(&question.device.fast_dtypes),
            dtypes: dtypes(&question.capabilities.dtypes),
            under_way: under_way.map(|under_way| (under_way.done, (&under_way.plan).into())),
        }
    }

    /// The request's hints, without those that have a field.
    pub fn hints(&self) -> Vec<types::Hint<'_>> {
        let is_field = |name: &str| FIELDS.contains(&name) || name.starts_with(CAPABILITIES);
        let hints = self.question.request.hints.iter().filter(|hint| !is_field(&hint.name));
        hints.map(|plan::Hint { name, value }| types::Hint { name, value }).collect()
    }

    /// The request as the contract has it, everything in it lent.
    pub fn lend<'b>(&'b self, hints: &'b [types::Hint<'b>]) -> vae::Request<'b> {
        let plan::Question { stage, request, device, capabilities, .. } = *self.question;
        let sample_size = request.hints.iter().find(|hint| hint.name == SAMPLE_SIZE);
        vae::Request {
            direction: match stage {
                plan::Stage::Encode => vae::Direction::Encode,
                _ => vae::Direction::Decode,
            },
            model: types::Model {
                family: &request.model.family,
                stored: request.model.stored.into(),
                quantized: request.model.quantized,
                parameter_bytes: request.model.parameter_bytes,
                sample_size: sample_size.and_then(|hint| hint.value.parse().ok()),
            },
            device: types::Device {
                backend: device.backend.into(),
                name: &device.name,
                arch: &device.arch,
                compute_units: device.compute_units,
                total_bytes: device.total_bytes,
                free_bytes: device.free_bytes,
                unified: device.unified,
                fast_dtypes: &self.fast_dtypes,
            },
            memory: types::Memory { limit_bytes: request.memory_limit, counts_weights: request.limit_counts_weights },
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
            },
            under_way: self
                .under_way
                .as_ref()
                .map(|(frames_done, plan)| vae::UnderWay { frames_done: *frames_done, plan }),
            hints,
        }
    }
}

impl From<lifecycle::Description> for Description {
    fn from(said: lifecycle::Description) -> Self {
        let setting =
            |lifecycle::Setting { name, summary, default }| Setting { name, summary, default: default.into() };
        Self {
            name: said.name,
            version: said.version,
            summary: said.summary,
            stages: said.stages.into_iter().map(Into::into).collect(),
            settings: said.settings.into_iter().map(setting).collect(),
        }
    }
}
