//! The price of each stage, before anything is loaded.

use std::io::Write;

use tch::{Device, Kind, Tensor};
use tilewright_engine::DenoiseJob;
use tilewright_pipeline::{Decode, Model, SampleModel, SampleRequest, Size, TextEncoders, TextPlanning, Trials};
use tilewright_plan::{Denoise, Loss, Planner, Recorder, Stage, Text, bytes};
use tilewright_sampling::Convention;

use super::{
    conditioning::{Conditionings, Wish, store},
    pictures::{in_words, limit},
};
use crate::{
    failure::{Failure, Outcome},
    printer, table,
};

/// The tokens of a conditioning whose prompt is not read yet.
const TOKENS: u32 = 512;
const FLUX_TOKENS: u32 = 256;

/// Says what each stage would take.
pub fn dry_run(
    wish: &Wish<'_>,
    transformer: &SampleModel,
    vae: &Model,
    [width, height]: [u32; 2],
    trials: &mut Trials,
    (reading, denoising, decoding): (&mut Recorder<Text>, &mut Recorder<Denoise>, &mut Recorder),
    request: impl FnOnce(&Conditionings) -> SampleRequest,
) -> Outcome {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |stage: &str, plan: String, time: String, held: u64| {
        let note = if held > wish.memory_limit { "over the limit" } else { "" };
        rows.push(vec![stage.to_owned(), plan, time, bytes::display(held), note.to_owned()]);
    };
    let is_kept = match store() {
        Some(kept) => wish.kept(&kept, &wish.prompts, reading.identity())?.iter().all(|(_, path)| path.is_some()),
        None => false,
    };
    if is_kept {
        row("text", "kept from an earlier run".into(), String::new(), 0);
    } else {
        let encoders = TextEncoders::open(&wish.parts.text_encoders)?;
        encoders.check(transformer)?;
        let mut planning = TextPlanning { planner: reading, trials };
        let runs =
            wish.with(&wish.prompts, true, |request| Ok(encoders.decide(wish.machine, request, &mut planning)?))?;
        for run in runs {
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
    let is_video = transformer.denoiser.config().is_video();
    let usual =
        if is_video || wish.arguments.way.convention == Some(Convention::Diffusers) { TOKENS } else { FLUX_TOKENS };
    let frames = wish.arguments.frames.unwrap_or_else(|| transformer.usual_frames());
    let tokens = wish.parts.text_tokens.unwrap_or(usual);
    transformer.generate_conditioning(&path, tokens, Size { width, height, frames })?;
    let negative = (wish.prompts.len() > 1).then(|| path.clone());
    let sampling = transformer.prepare(&request(&Conditionings::of(path, negative)))?;
    let objective = wish.arguments.objective;
    let job = DenoiseJob::new(wish.machine, &transformer.denoiser, &sampling, wish.memory_limit, objective.into())?;
    let (record, _) = job.decide(denoising);
    let steps = record.request.steps;
    match record.estimate {
        Some(cost) => {
            let plan = format!("{steps} steps, {}", record.plan);
            row("denoise", plan, table::time(cost.step.saturating_mul(steps)), cost.held_bytes());
        }
        None => row("denoise", record.plan.to_string(), String::new(), 0),
    }
    let size = sampling.latents.size();
    drop(sampling);
    let latents = Tensor::f_zeros(size, (Kind::Float, Device::Cpu)).map_err(Failure::work)?;
    let job = Decode::new(wish.machine, vae, &latents, limit(wish.memory_limit), objective.into())?;
    let job = job.allowing_blended(Loss::allows_blended(&wish.arguments.allow, Stage::Decode));
    let (record, _) = job.decide(decoding);
    let (time, held) = record.estimate.map_or((String::new(), 0), |cost| (table::time(cost.elapsed), cost.peak_bytes));
    row("decode", in_words(&record.plan), time, held);
    let heading = ["stage", "plan", "time", "memory", "note"];
    Ok(writeln!(printer::summary(), "{}", table::listing(&heading, &["time", "memory"], rows))?)
}
