//! Estimates beside measurements, layer by layer: where a price is wrong.

use serde::Serialize;
use tilewright_engine::{DenoiseJob, TextJob};
use tilewright_pipeline::Decode;
use tilewright_plan::{Denoise, Planner, Text, Vae};
use tilewright_profile::{Part, Profile};

use crate::{
    StageProfile, Watch,
    race::{Raced, Stop},
};

/// A stage's price beside its time.
#[derive(Clone, Debug, Serialize)]
pub struct StageEstimates {
    /// The stage.
    pub stage: String,
    /// The request in words.
    pub request: String,
    /// The plan in words.
    pub plan: String,
    /// Milliseconds by the price; none if the plan has none.
    pub estimated_ms: Option<f64>,
    /// Milliseconds that it took, without the profiler.
    pub measured_ms: f64,
    /// The price over the time.
    pub ratio: Option<f64>,
    /// Layers, and what blocks take beside their layers, the greatest difference first.
    pub rows: Vec<EstimateRow>,
}

/// A layer's estimate beside its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EstimateRow {
    /// The name of its weights; of the rest of a block its own name and an ellipsis.
    pub name: String,
    /// Runs.
    pub calls: u64,
    /// Milliseconds of all runs by the price.
    pub estimated_ms: f64,
    /// Milliseconds that they took, under the profiler.
    pub measured_ms: f64,
    /// The price over the time; none of a layer that took none.
    pub ratio: Option<f64>,
}

impl EstimateRow {
    fn new(name: String, calls: u64, estimated_ms: f64, measured_ms: f64) -> Self {
        let ratio = (measured_ms > 0.0).then(|| estimated_ms / measured_ms);
        Self { name, calls, estimated_ms, measured_ms, ratio }
    }

    /// Milliseconds that the price is off.
    pub fn off_ms(&self) -> f64 {
        self.estimated_ms - self.measured_ms
    }
}

impl StageEstimates {
    /// The estimates of a profile whose layers have them.
    pub fn of(profile: &Profile) -> Self {
        let priced = |name: &str, calls, estimated: Option<f64>, measured| {
            estimated.map(|estimated| EstimateRow::new(name.to_owned(), calls, estimated, measured))
        };
        let layers: Vec<EstimateRow> = profile
            .layers
            .iter()
            .filter_map(|layer| priced(&layer.name, layer.calls, layer.estimated_ms, layer.total_ms))
            .collect();
        let blocks = profile.parts.iter().filter(|part| part.part == Part::Block);
        let rest = blocks.filter_map(|block| {
            let estimated = block.estimated_ms?;
            // A block within a block is no layer, and neither is a layer that is its own block.
            let start = format!("{}.", block.name);
            let within = layers.iter().filter(|layer| layer.name.starts_with(&start) || layer.name == block.name);
            let (priced, took) = within
                .fold((0.0, 0.0), |(priced, took), layer| (priced + layer.estimated_ms, took + layer.measured_ms));
            let (estimated, measured) = ((estimated - priced).max(0.0), (block.total_ms - took).max(0.0));
            Some(EstimateRow::new(format!("{} …", block.name), block.calls, estimated, measured))
        });
        let mut rows: Vec<EstimateRow> = rest.collect();
        rows.extend(layers);
        rows.sort_by(|one, other| other.off_ms().abs().total_cmp(&one.off_ms().abs()));
        let facts = &profile.facts;
        let ratio = facts.estimated_ms.filter(|_| profile.unprofiled_ms > 0.0);
        Self {
            stage: facts.stage.clone(),
            request: facts.request.clone(),
            plan: facts.plan.clone(),
            estimated_ms: facts.estimated_ms,
            measured_ms: profile.unprofiled_ms,
            ratio: ratio.map(|estimated| estimated / profile.unprofiled_ms),
            rows,
        }
    }
}

/// Work whose estimates are compared.
pub enum Estimated<'j, 'a> {
    /// A decode, and its planner.
    Decode(&'j Decode<'a>, &'j mut dyn Planner<Vae>),
    /// A sample.
    Sample(&'j DenoiseJob<'a>, &'j mut dyn Planner<Denoise>),
    /// Texts.
    Texts(&'j TextJob<'a>, &'j mut dyn Planner<Text>),
}

impl Estimated<'_, '_> {
    /// Profiles the work; none if it was interrupted.
    ///
    /// # Errors
    /// The work failed: its reason in one line.
    pub fn profile(self, watch: &mut dyn Watch) -> Result<Option<StageProfile>, String> {
        let profiled = match self {
            Self::Decode(job, planner) => Raced::profile(job, planner, watch),
            Self::Sample(job, planner) => Raced::profile(job, planner, watch),
            Self::Texts(job, planner) => Raced::profile(job, planner, watch),
        };
        match profiled {
            Err(Stop::Interrupted) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
            Ok(profiled) => profiled.map(StageProfile::of).transpose(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tilewright_profile::{EstimatedPart, Event, Facts, Kind, Peaks, Recording, Track};

    use super::*;

    #[test]
    fn the_rest_of_a_block_is_beside_its_layers() {
        let event = |name: &str, part, start: u64, end: u64| Event {
            name: name.into(),
            kind: Kind::Part(part),
            track: Track::Thread(1),
            start: start * 1_000_000,
            end: end * 1_000_000,
            id: 0,
            launched_by: 0,
        };
        let events = vec![
            event("denoise", Part::Stage, 0, 100),
            event("blocks.0", Part::Block, 10, 90),
            event("blocks.0.qkv", Part::Layer, 20, 50),
            event("head", Part::Layer, 92, 97),
        ];
        let estimated = |name: &str, is_block, total_ms| EstimatedPart { name: name.into(), is_block, total_ms };
        let peaks = Peaks {
            operations_per_second: 1.0,
            convolution_operations_per_second: 1.0,
            attention_operations_per_second: 1.0,
            bytes_per_second: 1.0,
        };
        let facts = Facts {
            stage: "denoise".into(),
            device: String::new(),
            on_gpu: false,
            request: String::new(),
            policy: String::new(),
            plan: String::new(),
            peaks,
            compared_ms: [100.0, 100.0],
            compared: "the stage".into(),
            estimated_ms: Some(80.0),
            estimated_parts: vec![estimated("blocks.0", true, 60.0), estimated("blocks.0.qkv", false, 30.0)],
            peaks_are_rough: false,
            manual_attention: false,
            in_f32: true,
        };
        let found = StageEstimates::of(&Profile::of(&Recording { events }, facts).unwrap());
        let rows: Vec<_> =
            found.rows.iter().map(|row| (row.name.as_str(), row.estimated_ms, row.measured_ms)).collect();
        assert_eq!(rows, [("blocks.0 …", 30.0, 50.0), ("blocks.0.qkv", 30.0, 30.0)]);
        assert_eq!(found.ratio, Some(0.8));
    }
}
