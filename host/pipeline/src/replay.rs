//! Stages of a capture, run again and compared with what came out of them then: on another device,
//! by another plan or policy, or with another file's weights.

mod comparison;
mod layers;
mod planner;
mod stages;

use std::path::PathBuf;

use serde::{Serialize, de::DeserializeOwned};
use tilewright_capture::{Captured, StageEntry};
use tilewright_engine::{BY_SEVERAL_PLANS, Machine, Observer};
use tilewright_plan::{Denoise, Planner, Record, Stage, Text, Vae, Work};

pub use self::{
    comparison::TensorDifference,
    layers::{LayerDifference, LayersCompared},
};
use self::{layers::Comparing, planner::AsCaptured};
use crate::{Error, Result, default_limit};

/// The files to take in place of the captured ones.
#[derive(Clone, Debug, Default)]
pub struct ReplayFiles {
    /// The autoencoder.
    pub vae: Option<PathBuf>,
    /// A transformer, or two experts.
    pub transformers: Vec<PathBuf>,
    /// Text encoders; each stage takes the one of its network.
    pub text_encoders: Vec<PathBuf>,
}

/// The planners that decide in place of the captured plans.
#[derive(Default)]
pub struct ReplayPlanners<'p> {
    /// The planner of decodes and encodes.
    pub vae: Option<Box<dyn Planner<Vae> + 'p>>,
    /// The planner of samples.
    pub denoise: Option<Box<dyn Planner<Denoise> + 'p>>,
    /// The planner of texts.
    pub text: Option<Box<dyn Planner<Text> + 'p>>,
}

/// A capture whose stages are run again.
#[derive(Debug)]
pub struct Replay<'a> {
    /// The capture.
    pub captured: &'a Captured,
    /// The machine that stages run on.
    pub machine: &'a Machine,
    /// The processor beside a GPU, for encoders that run there.
    pub host: Option<&'a Machine>,
    /// Files in place of the captured ones.
    pub files: ReplayFiles,
    /// The memory limit in bytes; else the captured one, or the default one of the machine where
    /// that is less.
    pub memory_limit: Option<u64>,
    /// The largest difference of a layer's values, over the largest of the captured values, up to
    /// which they count as the same.
    pub bound: f64,
}

/// A stage that was run again.
#[derive(Clone, Debug, Serialize)]
pub struct Replayed {
    /// The stage.
    pub stage: Stage,
    /// The number in the capture.
    pub index: u32,
    /// The plan then.
    pub captured_plan: String,
    /// The plan that was carried out.
    pub plan: String,
    /// The device then.
    pub captured_device: String,
    /// Milliseconds of the work then.
    pub captured_ms: Option<f64>,
    /// Milliseconds of the work now.
    pub elapsed_ms: Option<f64>,
    /// The outputs, compared.
    pub outputs: Vec<TensorDifference>,
    /// True if every output has the same bits.
    pub is_same: bool,
    /// The layers, if some were captured and the first plan succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayersCompared>,
}

/// A stage under way: its outputs by name, and its record.
struct Ran<W: Work> {
    outputs: Vec<(String, tch::Tensor)>,
    record: Record<W>,
}

impl Replay<'_> {
    /// Runs a stage again.
    ///
    /// # Errors
    /// The stage can't be run again: its inputs were left out, a file is gone, the plan can't be
    /// carried out here; the work fails.
    pub fn run(
        &self,
        entry: &StageEntry,
        planners: &mut ReplayPlanners<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Replayed> {
        if entry.withheld > 0 {
            let reason = "its inputs are the prompt, which was left out: capture it with prompts".to_owned();
            return Err(self.refused(entry, reason));
        }
        match entry.stage {
            Stage::Decode => self.replay(entry, planners.vae.as_deref_mut(), |this, record, planner| {
                this.decode(entry, record, planner, observer)
            }),
            Stage::Encode => self.replay(entry, planners.vae.as_deref_mut(), |this, record, planner| {
                this.encode(entry, record, planner, observer)
            }),
            Stage::Denoise => self.replay(entry, planners.denoise.as_deref_mut(), |this, record, planner| {
                this.sample(entry, record, planner, observer)
            }),
            Stage::Text => self.replay(entry, planners.text.as_deref_mut(), |this, record, planner| {
                this.read_texts(entry, record, planner, observer)
            }),
        }
    }

    /// Runs a stage of a kind of work, by the captured plan unless there is a planner, and
    /// compares.
    fn replay<W: Work>(
        &self,
        entry: &StageEntry,
        planner: Option<&mut (dyn Planner<W> + '_)>,
        run: impl FnOnce(&Self, &Record<W>, &mut dyn Planner<W>) -> Result<Ran<W>>,
    ) -> Result<Replayed> {
        let record: Record<W> = self.parsed(entry, self.captured.record(entry)?, "record")?;
        if record.resumed_frames > 0 {
            let reason = format!("it went on after {} frames or steps of an earlier run", record.resumed_frames);
            return Err(self.refused(entry, reason));
        }
        let facts = self.captured.facts(entry)?.unwrap_or_default();
        if facts.get(BY_SEVERAL_PLANS).is_some_and(|several| *several == true) {
            return Err(self.refused(entry, "several plans had a part in it".into()));
        }
        let layers = Comparing::begin(self.captured, entry, self.bound);
        let mut as_captured = AsCaptured::<W>::new(&record);
        let ran = match planner {
            Some(planner) => run(self, &record, planner),
            None => run(self, &record, &mut as_captured),
        }?;
        // The layers of an attempt that failed are not those that were captured.
        let layers = layers.finish()?.filter(|_| ran.record.attempts.is_empty());
        let outputs = comparison::compare(self.captured.outputs(entry)?, ran.outputs)?;
        let elapsed =
            |record: &Record<W>| record.outcome.as_ref().map(|outcome| W::elapsed(outcome).as_secs_f64() * 1e3);
        Ok(Replayed {
            stage: entry.stage,
            index: entry.index,
            captured_plan: record.plan.to_string(),
            plan: ran.record.plan.to_string(),
            captured_device: record.device.name.clone(),
            captured_ms: elapsed(&record),
            elapsed_ms: elapsed(&ran.record),
            is_same: outputs.iter().all(|output| output.is_same),
            outputs,
            layers,
        })
    }

    /// The memory limit: a capture of a machine that has more must not take all of this one's.
    fn memory_limit(&self, captured: u64) -> u64 {
        self.memory_limit.unwrap_or_else(|| captured.min(default_limit(self.machine)))
    }

    /// The value that a capture's JSON has.
    fn parsed<T: DeserializeOwned>(
        &self,
        entry: &StageEntry,
        value: Option<serde_json::Value>,
        what: &str,
    ) -> Result<T> {
        let value = value.ok_or_else(|| self.refused(entry, format!("it has no {what}: the stage failed then")))?;
        serde_json::from_value(value)
            .map_err(|error| self.refused(entry, format!("its {what} makes no sense: {error}")))
    }

    fn refused(&self, entry: &StageEntry, reason: String) -> Error {
        Error::input(self.captured.folder().join(&entry.folder), format!("can't be run again: {reason}"))
    }
}
