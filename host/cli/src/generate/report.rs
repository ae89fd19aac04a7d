//! The report of each stage.

use std::{io::Write, path::PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use tch::Device;
use tilewright_media::Shape;
use tilewright_pipeline::{SampleRequest, Steps};
use tilewright_plan::{Candidate, Denoise, DenoiseRecord, Record, Stage, bytes};
use tilewright_torch::memory;

use super::{
    conditioning::Conditionings,
    pictures::{Decoded, in_words},
};
use crate::{
    failure::{Failure, Outcome},
    printer,
    report::{self, Shown},
    sample, table, text,
};

/// The memory of a whole run, in bytes of the device's pool.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// The most in use at once.
    peak_bytes: u64,
    /// Those in use when a stage began.
    in_use_before: Vec<Before>,
    #[serde(skip)]
    device: Device,
}

/// The bytes in use when a stage began.
#[derive(Debug, Serialize)]
struct Before {
    stage: Stage,
    bytes: u64,
}

impl Memory {
    /// The account of a run that begins.
    pub fn new(device: Device) -> Self {
        Self { peak_bytes: 0, in_use_before: Vec::new(), device }
    }

    /// Notes that a stage begins.
    pub fn begins(&mut self, stage: Stage) -> Outcome {
        let bytes = memory::of(self.device).map_err(Failure::work)?.in_use;
        let peak_bytes = memory::highest(self.device).map_err(Failure::work)?;
        tracing::debug!(%stage, in_use_bytes = bytes, peak_bytes, "a stage begins");
        self.in_use_before.push(Before { stage, bytes });
        Ok(())
    }

    /// Notes the peak of all stages.
    pub fn ends(mut self) -> Outcome<Self> {
        self.peak_bytes = memory::highest(self.device).map_err(Failure::work)?;
        Ok(self)
    }
}

/// The stages that are done, and the files.
pub struct Report<'a> {
    pub memory: &'a Memory,
    pub text: &'a Conditionings,
    pub encode: Option<&'a Record>,
    pub denoise: (&'a DenoiseRecord, &'a [Candidate<Denoise>]),
    pub decode: &'a Decoded,
    pub outputs: &'a [PathBuf],
}

impl Report<'_> {
    /// Prints it: a table, or one JSON object.
    pub fn show(&self, shown: Shown) -> Outcome {
        let (record, candidates) = self.denoise;
        if shown.json {
            return self.print_json();
        }
        if shown.explain {
            let mut out = printer::stdout();
            for run in &self.text.runs {
                writeln!(out, "text: {}\n", text::explanation(run))?;
            }
            writeln!(out, "denoise: {}\n", sample::explanation(record, candidates))?;
            writeln!(out, "decode: {}\n", report::explanation(&self.decode.record, &self.decode.candidates))?;
        }
        let decode = &self.decode.record;
        let mut rows = Vec::new();
        let mut row = |stage: &str, plan: String, time: String, memory: u64| {
            rows.push(vec![stage.to_owned(), plan, time, bytes::display(memory)]);
        };
        for run in &self.text.runs {
            let Some(outcome) = run.outcome() else { continue };
            let time = table::time(outcome.elapsed + outcome.load);
            row("text", format!("{}, {}", run.model, run.record.plan), time, outcome.all_bytes());
        }
        if let Some((encode, outcome)) = self.encode.and_then(|encode| Some((encode, encode.outcome.as_ref()?))) {
            let time = table::time(outcome.elapsed + outcome.load);
            row("encode", in_words(&encode.plan), time, outcome.peak_bytes);
        }
        if let Some(outcome) = &record.outcome {
            let held = outcome.peak_bytes + outcome.weights_bytes;
            row("denoise", record.plan.to_string(), table::time(outcome.elapsed + outcome.load), held);
        }
        if let Some(outcome) = &decode.outcome {
            let time = table::time(outcome.elapsed + outcome.load);
            row("decode", in_words(&decode.plan), time, outcome.peak_bytes);
        }
        let table = table::listing(&["stage", "plan", "time", "memory"], &["time", "memory"], rows);
        let names: Vec<String> = self.outputs.iter().map(|path| path.display().to_string()).collect();
        Ok(writeln!(printer::summary(), "{table}\nwrote {}", names.join(", "))?)
    }

    fn print_json(&self) -> Outcome {
        #[derive(Serialize)]
        struct Printed<'a> {
            stages: Vec<Value>,
            memory: &'a Memory,
            outputs: &'a [PathBuf],
        }
        let mut stages = Vec::new();
        for run in &self.text.runs {
            stages.push(serde_json::to_value(text::Row::new(run)).map_err(Failure::work)?);
        }
        if stages.is_empty() {
            // The conditioning was kept, and nothing was decided.
            stages.push(json!({ "stage": "text", "kept": true }));
        }
        if let Some(encode) = self.encode {
            stages.push(serde_json::to_value(encode).map_err(Failure::work)?);
        }
        stages.push(serde_json::to_value(self.denoise.0).map_err(Failure::work)?);
        stages.push(serde_json::to_value(&self.decode.record).map_err(Failure::work)?);
        let printed = Printed { stages, memory: self.memory, outputs: self.outputs };
        let text = serde_json::to_string_pretty(&printed).map_err(Failure::work)?;
        Ok(writeln!(printer::stdout(), "{text}")?)
    }
}

/// The settings of a picture, as A1111's web UI writes and reads them.
pub fn parameters(prompts: &[String], request: &SampleRequest, shape: Shape, record: &DenoiseRecord) -> String {
    let prompt = prompts.first().map_or("", String::as_str);
    let negative = prompts.get(1).filter(|negative| !negative.is_empty());
    let negative = negative.map_or_else(String::new, |negative| format!("\nNegative prompt: {negative}"));
    let seeds: Vec<String> = request.seeds.iter().map(u64::to_string).collect();
    let scheduler = match &request.steps {
        Steps::Count { scheduler, .. } => scheduler.unwrap_or_default().to_string(),
        Steps::Sigmas(_) => "sigmas by hand".into(),
    };
    let mut facts = vec![
        format!("Steps: {}", record.request.steps),
        format!("Sampler: {}", record.request.sampler),
        format!("Schedule type: {scheduler}"),
        format!("CFG scale: {}", request.cfg),
        format!("Seed: {}", seeds.join(",")),
        format!("Size: {}x{}", shape.width, shape.height),
    ];
    if let Steps::Count { strength, .. } = &request.steps
        && *strength < 1.0
    {
        facts.push(format!("Denoising strength: {strength}"));
    }
    facts.extend(request.guidance.map(|guidance| format!("Distilled CFG Scale: {guidance}")));
    facts.push(format!("Version: tilewright {}", env!("CARGO_PKG_VERSION")));
    format!("{prompt}{negative}\n{}", facts.join(", "))
}
