//! The report of each stage.

use std::{io::Write, path::PathBuf, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};
use tch::Device;
use tilewright_pipeline::{EncoderRun, Settings};
use tilewright_plan::{Denoise, Record, Stage, bytes};
use tilewright_profile::Profile;
use tilewright_torch::memory;

use super::studio::Decided;
use crate::{
    failure::{Failure, Outcome},
    printer, profile,
    report::{self, OVER, Shown},
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

/// The stages, decided, and carried out unless it is a dry run.
pub struct Stages {
    /// True if the conditionings are those of an earlier run.
    pub is_kept: bool,
    pub text: Vec<EncoderRun>,
    pub encode: Option<Decided>,
    pub denoise: Decided<Denoise>,
    pub decode: Decided,
}

/// The settings, the stages, and the files.
pub struct Report<'a> {
    pub settings: &'a Settings,
    pub stages: &'a Stages,
    /// None of a dry run.
    pub memory: Option<&'a Memory>,
    pub outputs: &'a [PathBuf],
    /// The most bytes that a stage may hold.
    pub limit: u64,
}

impl Stages {
    /// The record of each stage.
    fn records(&self) -> Result<Vec<Value>, serde_json::Error> {
        let kept = self.is_kept.then(|| Ok(json!({ "stage": "text", "kept": true })));
        let text = self.text.iter().map(|run| serde_json::to_value(text_stage::Row::new(run)));
        let encode = self.encode.iter().map(|(record, _)| serde_json::to_value(record));
        let last = [serde_json::to_value(&self.denoise.0), serde_json::to_value(&self.decode.0)];
        kept.into_iter().chain(text).chain(encode).chain(last).collect()
    }

    /// The plans that the policies considered.
    fn explanations(&self) -> Vec<String> {
        let text = self.text.iter().map(|run| format!("text: {}", text_stage::explanation(run)));
        let of_vae = |stage: &str, (record, candidates): &Decided| {
            format!("{stage}: {}", report::explanation(record, candidates))
        };
        let encode = self.encode.iter().map(|decided| of_vae("encode", decided));
        let denoise = format!("denoise: {}", sample::explanation(&self.denoise.0, &self.denoise.1));
        text.chain(encode).chain([denoise, of_vae("decode", &self.decode)]).collect()
    }

    /// Stage, plan, time, memory and note of each: as measured, or else as expected.
    fn rows(&self, limit: u64, is_dry: bool) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut row = |stage: &str, plan: String, figures: Option<(Duration, u64)>| {
            let (time, held) = figures.map_or((String::new(), 0), |(time, held)| (table::time(time), held));
            let note = if is_dry && held > limit { OVER } else { "" };
            rows.push(vec![stage.to_owned(), plan, time, bytes::display(held), note.to_owned()]);
        };
        if self.is_kept && is_dry {
            row("text", "kept from an earlier run".into(), None);
        }
        for run in &self.text {
            let measured = run.outcome().map(|outcome| (outcome.elapsed + outcome.load, outcome.all_bytes()));
            let expected = run.record.estimate.map(|cost| (cost.elapsed + cost.load, cost.held_bytes()));
            row("text", format!("{}, {}", run.model, run.record.plan), measured.or(expected));
        }
        let of_vae = |record: &Record| {
            let measured = record.outcome.map(|outcome| (outcome.elapsed + outcome.load, outcome.peak_bytes));
            let expected = record.estimate.map(|cost| (cost.elapsed, cost.peak_bytes));
            (format!("{}, {}", record.plan.space, record.plan.precision), measured.or(expected))
        };
        if let Some((encode, _)) = &self.encode {
            let (plan, figures) = of_vae(encode);
            row("encode", plan, figures);
        }
        let denoise = &self.denoise.0;
        let (plan, steps) = (&denoise.plan, denoise.request.steps);
        match (denoise.outcome, denoise.estimate) {
            (Some(outcome), _) => {
                row("denoise", plan.to_string(), Some((outcome.elapsed + outcome.load, outcome.held_bytes())));
            }
            (None, Some(cost)) => {
                let expected = (cost.step.saturating_mul(steps), cost.held_bytes());
                row("denoise", format!("{steps} steps, {plan}"), Some(expected));
            }
            (None, None) => row("denoise", plan.to_string(), None),
        }
        let (plan, figures) = of_vae(&self.decode.0);
        row("decode", plan, figures);
        rows
    }
}

impl Report<'_> {
    /// Prints it: a table, or one JSON object.
    pub fn show(&self, shown: Shown) -> Outcome {
        let &Report { settings, stages, memory, outputs, limit } = self;
        if shown.json {
            return printer::json(&Printed {
                settings,
                stages: stages.records().map_err(Failure::work)?,
                memory,
                outputs,
                profile: profile::unreported(),
            });
        }
        if shown.explain {
            let settings = format!("settings:\n{}", table::facts(rows_of(settings)));
            let parts: Vec<String> = [settings].into_iter().chain(stages.explanations()).collect();
            let text = format!("{}\n", parts.join("\n\n"));
            // Standard output may be the picture.
            if shown.aside { printer::lines(&text) } else { writeln!(printer::stdout(), "{text}")? }
        }
        let is_dry = memory.is_none();
        let heading = ["stage", "plan", "time", "memory", "note"];
        let columns = heading.len() - usize::from(!is_dry);
        let rows = stages.rows(limit, is_dry).into_iter().map(|mut row| {
            row.truncate(columns);
            row
        });
        let mut text = table::listing(&heading[..columns], &["time", "memory"], rows);
        if !is_dry {
            let names: Vec<String> = outputs.iter().map(|path| path.display().to_string()).collect();
            text += &format!("\nwrote {}", names.join(", "));
        }
        match (shown.aside, printer::is_quiet()) {
            (true, false) => printer::lines(&text),
            (true, true) => {}
            (false, _) => writeln!(printer::summary(), "{text}")?,
        }
        Ok(())
    }
}

/// The object that --json prints.
#[derive(Serialize)]
struct Printed<'a> {
    settings: &'a Settings,
    /// The record of each stage in order.
    stages: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<&'a Memory>,
    outputs: &'a [PathBuf],
    /// The profile of each stage, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profile: Vec<Profile>,
}

/// Settings row by row, the model's defaults among them.
fn rows_of(of: &Settings) -> Vec<(&'static str, String)> {
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
