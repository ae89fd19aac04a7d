//! `tilewright embed`: from prompts to a conditioning file.

use std::{
    io::{Read, Write},
    path::Path,
};

use serde::Serialize;
use tilewright_engine::{Machine, Probe};
use tilewright_media::STANDARD;
use tilewright_pipeline::{
    self as pipeline, ConditioningOutput, EmbeddingFolder, EncoderRun, TextEncoders, TextRequest,
};
use tilewright_plan::{bytes, words::with_noun};
use tilewright_sampling::Convention;

use crate::{
    args::Embed,
    failure::{Failure, Outcome},
    files, printer,
    progress::Progress,
    table,
    tell::tell,
};

/// The longest prompt that is read from standard input.
const LONGEST: u64 = 1 << 20;

/// Encodes prompts.
pub fn run(arguments: &Embed) -> Outcome {
    if arguments.output.as_os_str() == STANDARD {
        return Err(Failure::input("-o -: conditioning is written to a file, which ends in .safetensors"));
    }
    let mut roles = files::roles();
    for path in &arguments.text_encoder {
        roles = roles.reads("the text encoder", path);
    }
    if let Some(folder) = &arguments.embeddings {
        roles = roles.reads("the embeddings", folder);
    }
    roles.occupies("-o", &arguments.output).check()?;
    let output = ConditioningOutput::new(&arguments.output, arguments.no_clobber)?;
    if let Some(threads) = arguments.threads {
        tilewright_torch::set_threads(threads);
    }
    let found = Machine::find(arguments.device).map_err(pipeline::Error::from)?;
    let encoders = TextEncoders::open(&arguments.text_encoder)?;
    let embeddings = arguments.embeddings.as_deref().map(EmbeddingFolder::open).transpose()?;
    if arguments.prompts.iter().filter(|prompt| *prompt == STANDARD).count() > 1 {
        return Err(Failure::input("- and -: standard input is one prompt: give the others in words"));
    }
    let prompts = arguments.prompts.iter().map(|prompt| read_prompt(prompt)).collect::<Outcome<Vec<_>>>()?;
    let machine = found.measure(Probe::Kept).map_err(pipeline::Error::from)?;
    let request = TextRequest {
        prompts: &prompts,
        convention: arguments.convention,
        tokens: arguments.text_tokens,
        embeddings: embeddings.as_ref(),
        precision: arguments.set,
        memory_limit: arguments.memory_limit.unwrap_or_else(|| pipeline::default_limit(&machine)),
    };
    check_embeddings(&prompts, arguments.embeddings.is_some(), arguments.convention)?;
    if arguments.dry_run {
        encoders.check_lengths(&request)?;
        return estimate(&encoders, &machine, &request);
    }
    let mut progress = Progress::new();
    let encoded = encoders.encode(&machine, &request, &mut progress);
    progress.finish();
    let encoded = encoded?;
    let path = output.write(&encoded.conditioning)?;
    let shape = encoded.conditioning.text.size();
    report(arguments, &encoded.runs, &shape, &path)
}

/// A prompt as it is given, or standard input.
pub fn read_prompt(prompt: &str) -> Outcome<String> {
    if prompt != STANDARD {
        return Ok(prompt.to_owned());
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(Failure::input("standard input: a prompt of more than 1 MiB: give a shorter one"));
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| Failure::input("standard input: no text in UTF-8: give a prompt"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Refuses embeddings that nobody would read, and warns of names that nobody looks for.
pub fn check_embeddings(prompts: &[String], has_folder: bool, convention: Convention) -> Outcome {
    if has_folder && convention == Convention::Diffusers {
        return Err(Failure::input(
            "--embeddings and --as diffusers: its pipelines read no names of embeddings: leave one out",
        ));
    }
    let names = prompts.iter().any(|prompt| prompt.contains("embedding:"));
    if names && !has_folder && convention == Convention::ComfyUi {
        tell!("warning: embedding: is read as words: --embeddings names the folder of embeddings");
    }
    Ok(())
}

/// Says what each encoder would take.
fn estimate(encoders: &TextEncoders, machine: &Machine, request: &TextRequest<'_>) -> Outcome {
    let rows = encoders.estimate(machine, request)?.into_iter().map(|(model, cost)| {
        let is_over = cost.held_bytes() > request.memory_limit;
        vec![
            model,
            table::time(cost.elapsed),
            bytes::display(cost.peak_bytes),
            bytes::display(cost.weights_bytes),
            if is_over { "over the limit".to_owned() } else { String::new() },
        ]
    });
    let heading = ["encoder", "time", "memory", "weights", "note"];
    let table = table::listing(&heading, &["time", "memory", "weights"], rows);
    Ok(writeln!(printer::summary(), "{table}")?)
}

/// A report of what was done, for --json.
#[derive(Serialize)]
struct Report<'a> {
    output: String,
    shape: &'a [i64],
    encoders: Vec<Row>,
}

/// The run of an encoder, for --json.
#[derive(Serialize)]
pub struct Row {
    model: String,
    path: String,
    tokens: usize,
    precision: String,
    elapsed_ms: f64,
    load_ms: f64,
    peak_bytes: u64,
}

impl Row {
    /// The run's row.
    pub fn new(run: &EncoderRun) -> Self {
        Self {
            model: run.model.clone(),
            path: run.path.display().to_string(),
            tokens: run.tokens,
            precision: run.precision.to_string(),
            elapsed_ms: run.outcome.elapsed.as_secs_f64() * 1e3,
            load_ms: run.outcome.load.as_secs_f64() * 1e3,
            peak_bytes: run.outcome.peak_bytes,
        }
    }
}

fn report(arguments: &Embed, runs: &[EncoderRun], shape: &[i64], path: &Path) -> Outcome {
    if arguments.json {
        let encoders = runs.iter().map(Row::new).collect();
        let report = Report { output: path.display().to_string(), shape, encoders };
        let text = serde_json::to_string_pretty(&report).map_err(Failure::work)?;
        return Ok(writeln!(printer::stdout(), "{text}")?);
    }
    let rows = runs.iter().map(|run| {
        vec![
            run.model.clone(),
            with_noun(run.tokens, "token"),
            run.precision.to_string(),
            table::time(run.outcome.elapsed),
            table::time(run.outcome.load),
            bytes::display(run.outcome.peak_bytes),
        ]
    });
    let heading = ["encoder", "read", "types", "time", "load", "memory"];
    writeln!(printer::summary(), "{}", table::listing(&heading, &["time", "load", "memory"], rows))?;
    tell!("wrote {}: prompt_embeds {shape:?}", path.display());
    Ok(())
}
