//! The report of each stage.

use std::{io::Write, path::PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use tch::Device;
use tilewright_pipeline::Settings;
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
    sample, table, text_stage,
};

/// The memory of a whole run, in bytes of the device's pool.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// The most in use at once.
    peak_bytes: u64,
    /// The bytes in use when each stage began.
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
    pub settings: &'a Settings,
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
            let mut parts = vec![format!("settings:\n{}", table::facts(settings(self.settings)))];
            parts.extend(self.text.runs.iter().map(|run| format!("text: {}", text_stage::explanation(run))));
            parts.push(format!("denoise: {}", sample::explanation(record, candidates)));
            let decode = &self.decode;
            parts.push(format!("decode: {}", report::explanation(&decode.record, &decode.candidates)));
            let text = format!("{}\n", parts.join("\n\n"));
            // Standard output may be the picture.
            if shown.aside { printer::lines(&text) } else { writeln!(printer::stdout(), "{text}")? }
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
        let text = format!("{table}\nwrote {}", names.join(", "));
        match (shown.aside, printer::is_quiet()) {
            (true, false) => printer::lines(&text),
            (true, true) => {}
            (false, _) => writeln!(printer::summary(), "{text}")?,
        }
        Ok(())
    }

    fn print_json(&self) -> Outcome {
        let mut stages = Vec::new();
        for run in &self.text.runs {
            stages.push(serde_json::to_value(text_stage::Row::new(run)).map_err(Failure::work)?);
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
        let (memory, outputs) = (Some(self.memory), self.outputs);
        Printed { settings: self.settings, stages, memory, outputs }.print()
    }
}

/// The object that --json prints.
#[derive(Serialize)]
pub struct Printed<'a> {
    pub settings: &'a Settings,
    /// The record of each stage in order.
    pub stages: Vec<Value>,
    /// None of a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<&'a Memory>,
    pub outputs: &'a [PathBuf],
}

impl Printed<'_> {
    pub fn print(&self) -> Outcome {
        let text = serde_json::to_string_pretty(self).map_err(Failure::work)?;
        Ok(writeln!(printer::stdout(), "{text}")?)
    }
}

/// Settings row by row, the model's defaults among them.
pub fn settings(of: &Settings) -> Vec<(&'static str, String)> {
    let seeds: Vec<String> = of.seeds.iter().map(u64::to_string).collect();
    let number = |number: Option<f64>| number.map_or_else(String::new, |number| number.to_string());
    let rows = [
        ("size", format!("{}x{}", of.width, of.height)),
        ("frames", if of.frames > 1 { of.frames.to_string() } else { String::new() }),
        ("seed", seeds.join(",")),
        ("batch", if of.batch > 1 { of.batch.to_string() } else { String::new() }),
        ("steps", of.steps.to_string()),
        ("sampler", of.sampler.clone()),
        ("scheduler", of.scheduler.clone().unwrap_or_default()),
        ("cfg", of.cfg.to_string()),
        ("guidance", number(of.guidance)),
        ("shift", number(of.shift)),
        ("denoise", if of.denoise < 1.0 { of.denoise.to_string() } else { String::new() }),
        ("reuse", number(of.reuse)),
        ("as", of.convention.to_string()),
    ];
    rows.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}
