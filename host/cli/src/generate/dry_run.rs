//! The price of each stage, before anything is loaded.

use std::io::Write;

use serde_json::json;
use tilewright_pipeline::{SampleRequest, TextEncoders, TextPlanning, Trials};
use tilewright_plan::{Denoise, Planner, Record, Recorder, Text, bytes};

use super::{
    conditioning::{Wish, store},
    pictures::in_words,
    prices::Prices,
    report::{self as report_of, Printed},
};
use crate::{
    failure::{Failure, Outcome},
    printer, report, sample, table,
    text_stage::Row,
};

/// The planners of the stages, in their order.
type Planners<'p> = (&'p mut Recorder<Text>, &'p mut Recorder, &'p mut Recorder<Denoise>, &'p mut Recorder);

/// Says what each stage would take. All that does not fit is refused before.
pub fn dry_run(
    wish: &Wish<'_>,
    prices: &Prices<'_>,
    request: &SampleRequest,
    trials: &mut Trials,
    (reading, encoding, denoising, decoding): Planners<'_>,
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
    let mut encoded = Vec::new();
    if is_kept {
        row("text", "kept from an earlier run".into(), String::new(), 0);
        stages.push(json!({ "stage": "text", "kept": true }));
    } else {
        let encoders = TextEncoders::open(&wish.parts.text_encoders)?;
        encoders.check(prices.transformer)?;
        let mut planning = TextPlanning { planner: reading, trials };
        let runs =
            wish.with(&wish.prompts, true, |request| Ok(encoders.decide(wish.machine, request, &mut planning)?))?;
        encoded = runs;
    }
    if let Some(vision) = &prices.vision {
        let mut planning = TextPlanning { planner: reading, trials };
        let on = (wish.machine, wish.host());
        encoded.push(vision.decide(on, (wish.memory_limit, wish.arguments.run.objective()), &mut planning)?);
    }
    for run in encoded {
        stages.push(serde_json::to_value(Row::new(&run)).map_err(Failure::work)?);
        let plan = format!("{}, {}", run.model, run.record.plan);
        match run.record.estimate {
            Some(cost) => row("text", plan, table::time(cost.elapsed + cost.load), cost.held_bytes()),
            None => row("text", plan, String::new(), 0),
        }
    }
    let mut explained = Vec::new();
    if let Some(job) = prices.encode()? {
        let (record, candidates) = job.decide(encoding);
        explained.push(format!("encode: {}", report::explanation(&record, &candidates)));
        stages.push(serde_json::to_value(&record).map_err(Failure::work)?);
        let (time, held) = of_vae(&record);
        row("encode", in_words(&record.plan), time, held);
    }
    let job = prices.denoise()?;
    let (record, candidates) = job.decide(denoising);
    explained.push(format!("denoise: {}", sample::explanation(&record, &candidates)));
    stages.push(serde_json::to_value(&record).map_err(Failure::work)?);
    let steps = record.request.steps;
    match record.estimate {
        Some(cost) => {
            let plan = format!("{steps} steps, {}", record.plan);
            row("denoise", plan, table::time(cost.step.saturating_mul(steps)), cost.held_bytes());
        }
        None => row("denoise", record.plan.to_string(), String::new(), 0),
    }
    let settings = prices.transformer.settings(request, &prices.outline.shape.latents)?;
    let job = prices.decode()?;
    let (record, candidates) = job.decide(decoding);
    explained.push(format!("decode: {}", report::explanation(&record, &candidates)));
    stages.push(serde_json::to_value(&record).map_err(Failure::work)?);
    let (time, held) = of_vae(&record);
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

/// The time and the memory that a decode or an encode is expected to take.
fn of_vae(record: &Record) -> (String, u64) {
    record.estimate.map_or((String::new(), 0), |cost| (table::time(cost.elapsed), cost.peak_bytes))
}
