//! The price of each stage, before anything is loaded.

use std::io::Write;

use serde_json::json;
use tch::{Device, Kind, Tensor};
use tilewright_engine::DenoiseJob;
use tilewright_pipeline::{Decode, Model, SampleModel, SampleRequest, Steps, TextEncoders, TextPlanning, Trials};
use tilewright_plan::{Denoise, Loss, Planner, Recorder, Stage, Text, bytes};

use super::{
    conditioning::{Conditionings, Wish, store},
    pictures::{in_words, limit},
    report::{self as report_of, Printed},
};
use crate::{
    failure::{Failure, Outcome},
    printer, report, sample, table,
    text_stage::Row,
};

/// Says what each stage would take.
pub fn dry_run(
    wish: &Wish<'_>,
    transformer: &SampleModel,
    vae: &Model,
    mut request: SampleRequest,
    trials: &mut Trials,
    (reading, denoising, decoding): (&mut Recorder<Text>, &mut Recorder<Denoise>, &mut Recorder),
) -> Outcome {
    let (mut rows, mut stages) = (Vec::new(), Vec::new());
    let mut row = |stage: &str, plan: String, time: String, held: u64| {
        let note = if held > wish.memory_limit { "over the limit" } else { "" };
        rows.push(vec![stage.to_owned(), plan, time, bytes::display(held), note.to_owned()]);
    };
    let is_kept = match store() {
        Some(kept) => wish.find(Some(&kept), reading.identity())?.missing(&wish.prompts).is_empty(),
        None => false,
    };
    if is_kept {
        row("text", "kept from an earlier run".into(), String::new(), 0);
        stages.push(json!({ "stage": "text", "kept": true }));
    } else {
        let encoders = TextEncoders::open(&wish.parts.text_encoders)?;
        encoders.check(transformer)?;
        let mut planning = TextPlanning { planner: reading, trials };
        let runs =
            wish.with(&wish.prompts, true, |request| Ok(encoders.decide(wish.machine, request, &mut planning)?))?;
        for run in runs {
            stages.push(serde_json::to_value(Row::new(&run)).map_err(Failure::work)?);
            let plan = format!("{}, {}", run.model, run.record.plan);
            match run.record.estimate {
                Some(cost) => row("text", plan, table::time(cost.elapsed + cost.load), cost.held_bytes()),
                None => row("text", plan, String::new(), 0),
            }
        }
    }
    // Conditioning of the same size stands for the prompt's, which is not encoded.
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("conditioning.safetensors");
    let tokens = transformer.text_tokens_of(wish.text_tokens, request.convention)?;
    if let Some(size) = request.size {
        transformer.generate_conditioning(&path, tokens, size)?;
    }
    let negative = (wish.prompts.len() > 1).then(|| path.clone());
    Conditionings::of(path, negative).put_into(&mut request);
    // The picture to begin with is not encoded.
    let mut unbegun = request.clone();
    if let Steps::Count { strength, .. } = &mut unbegun.steps {
        *strength = 1.0;
    }
    let sampling = transformer.prepare(&unbegun)?;
    let objective = wish.arguments.run.objective();
    let job = DenoiseJob::new(wish.machine, &transformer.denoiser, &sampling, wish.memory_limit, objective)?;
    let (record, candidates) = job.decide(denoising);
    let mut explained = vec![format!("denoise: {}", sample::explanation(&record, &candidates))];
    stages.push(serde_json::to_value(&record).map_err(Failure::work)?);
    let steps = record.request.steps;
    match record.estimate {
        Some(cost) => {
            let plan = format!("{steps} steps, {}", record.plan);
            row("denoise", plan, table::time(cost.step.saturating_mul(steps)), cost.held_bytes());
        }
        None => row("denoise", record.plan.to_string(), String::new(), 0),
    }
    let size = sampling.latents.size();
    let settings = transformer.settings(&request, &size)?;
    drop(sampling);
    let latents = Tensor::f_zeros(size, (Kind::Float, Device::Cpu)).map_err(Failure::work)?;
    let job = Decode::new(wish.machine, vae, &latents, limit(wish.memory_limit), objective)?;
    let job = job.allowing_blended(Loss::allows_blended(&wish.arguments.allow, Stage::Decode));
    let (record, candidates) = job.decide(decoding);
    explained.push(format!("decode: {}", report::explanation(&record, &candidates)));
    stages.push(serde_json::to_value(&record).map_err(Failure::work)?);
    let (time, held) = record.estimate.map_or((String::new(), 0), |cost| (table::time(cost.elapsed), cost.peak_bytes));
    row("decode", in_words(&record.plan), time, held);
    if wish.arguments.report.json {
        return Printed { settings: &settings, stages, memory: None, outputs: &[] }.print();
    }
    if wish.arguments.report.explain {
        let facts = table::facts(report_of::settings(&settings));
        writeln!(printer::stdout(), "settings:\n{facts}\n\n{}\n", explained.join("\n\n"))?;
    }
    let heading = ["stage", "plan", "time", "memory", "note"];
    Ok(writeln!(printer::summary(), "{}", table::listing(&heading, &["time", "memory"], rows))?)
}
