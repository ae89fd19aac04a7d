//! `tilewright embed`: from prompts to a conditioning file.

use std::{
    io::{Read, Write},
    path::Path,
};

use serde::Serialize;
use tilewright_media::STANDARD;
use tilewright_pipeline::{
    ConditioningOutput, EmbeddingFolder, EncoderRun, Parts, TextEncoders, TextPlanning, TextRequest, prompt_notes,
};
use tilewright_plan::{Recorder, Stage, Text, TextRecord, bytes, words::with_noun};
use tilewright_profile::Profile;
use tilewright_sampling::Convention;

use crate::{
    args::Embed,
    failure::{Failure, Outcome},
    files, policy, printer, profile,
    progress::Progress,
    table,
    tell::{note, tell},
    text_stage::{self, Row},
};

/// The longest prompt that is read from standard input.
const LONGEST: u64 = 1 << 20;

/// Encodes prompts.
pub fn run(arguments: &Embed) -> Outcome {
    if arguments.output.as_os_str() == STANDARD {
        return Err(Failure::input("-o -: conditioning is written to a file, which ends in .safetensors"));
    }
    let found = arguments.model.as_deref().map(|model| Parts::find_text_encoders(model, &arguments.folders.models));
    let (parts, told) = found
        .transpose()?
        .unwrap_or_else(|| (Parts { text_encoders: arguments.text_encoder.clone(), ..Parts::default() }, Vec::new()));
    told.iter().for_each(|line| tell!("{line}"));
    let mut roles = files::roles()
        .reads_all("the text encoder", &parts.text_encoders)
        .reads_all("the embeddings", &arguments.embeddings);
    roles = files::reads_policy(roles, policy::of_stage(Stage::Text, &arguments.governed.policy, '=')?);
    roles = files::check_file(roles, "--record", arguments.report.record.file())?;
    roles = arguments.report.begin(roles)?;
    roles.occupies("-o", &arguments.output).check()?;
    arguments.report.record.check()?;
    let output = ConditioningOutput::new(&arguments.output, arguments.no_clobber)?;
    let mut planner: Recorder<Text> = arguments.governed.configure(Stage::Text, &arguments.report.record)?;
    let mut session = arguments.run.session(arguments.report.dry_run)?;
    let encoders = TextEncoders::open(&parts.text_encoders)?;
    let embeddings = arguments.embeddings.as_deref().map(EmbeddingFolder::open).transpose()?;
    if arguments.prompts.iter().filter(|prompt| *prompt == STANDARD).count() > 1 {
        return Err(Failure::input("- and -: standard input is one prompt: give the others in words"));
    }
    let prompts = arguments.prompts.iter().map(|prompt| read_prompt(prompt)).collect::<Outcome<Vec<_>>>()?;
    let (machine, trials) = session.ready()?;
    let host = text_stage::processor(machine);
    let tokens = match arguments.text_tokens {
        Some(tokens) => Some(tokens),
        None => parts.text_tokens()?,
    };
    let request = TextRequest {
        prompts: &prompts,
        convention: arguments.convention,
        tokens,
        embeddings: embeddings.as_ref(),
        memory_limit: arguments.run.limit(machine),
        objective: arguments.run.objective(),
    };
    check_prompts((&[], &prompts), arguments.embeddings.is_some(), arguments.convention)?;
    if arguments.report.dry_run {
        encoders.check_lengths(&request)?;
        let mut planning = TextPlanning { planner: &mut planner, trials };
        let mut runs = encoders.decide((machine, host.as_ref()), &request, &mut planning)?;
        text_stage::keep_runs(&arguments.report.record, trials, &mut runs)?;
        return report(arguments, &runs, None);
    }
    let mut progress = Progress::new();
    let mut planning = TextPlanning { planner: &mut planner, trials };
    let encoded = encoders.encode((machine, host.as_ref()), &request, &mut planning, &mut progress);
    progress.finish();
    let mut encoded = encoded.map_err(|error| text_stage::fail(&arguments.report.record, trials, error))?;
    let path = output.write(&encoded.conditioning)?;
    text_stage::keep_runs(&arguments.report.record, trials, &mut encoded.runs)?;
    let shape = encoded.conditioning.text.size();
    let reported = report(arguments, &encoded.runs, Some((&path, &shape)));
    arguments.report.profile.finish(arguments.report.json, reported)
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

/// Refuses embeddings that nobody would read, warns of names that nobody looks for, and notes what
/// else is read as words. A prompt without a name is called a prompt.
pub fn check_prompts((names, prompts): (&[&str], &[String]), has_folder: bool, convention: Convention) -> Outcome {
    if has_folder && convention == Convention::Diffusers {
        return Err(Failure::input(
            "--embeddings and --as diffusers: its pipelines read no names of embeddings: leave one out",
        ));
    }
    let has_names = prompts.iter().any(|prompt| prompt.contains("embedding:"));
    if has_names && !has_folder && convention == Convention::ComfyUi {
        tell!("warning: embedding: is read as words: --embeddings names the folder of embeddings");
    }
    let names = names.iter().chain(std::iter::repeat(&"prompt"));
    let notes = names.zip(prompts).flat_map(|(name, prompt)| prompt_notes(name, prompt, convention));
    let mut told: Vec<String> = notes.collect();
    told.dedup();
    told.iter().for_each(|line| note(line));
    Ok(())
}

/// A report of what was done, for --json.
#[derive(Serialize)]
struct Report<'a> {
    /// The file and the shape of its states; none after a dry run.
    #[serde(flatten)]
    written: Option<Written<'a>>,
    encoders: Vec<Row<'a>>,
    /// The profile of each run, if it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profile: Vec<Profile>,
}

#[derive(Serialize)]
struct Written<'a> {
    output: String,
    shape: &'a [i64],
}

/// Decisions and what was done, and the file with the shape of its states, unless it was a dry run.
fn report(arguments: &Embed, runs: &[EncoderRun], written: Option<(&Path, &[i64])>) -> Outcome {
    let explained: Vec<String> =
        runs.iter().map(text_stage::explanation).filter(|_| arguments.report.explain).collect();
    if arguments.report.json {
        printer::lines(&explained.join("\n\n"));
        let encoders = runs.iter().map(Row::new).collect();
        let written = written.map(|(path, shape)| Written { output: path.display().to_string(), shape });
        return printer::json(&Report { written, encoders, profile: profile::unreported() });
    }
    for text in &explained {
        writeln!(printer::stdout(), "{text}\n")?;
    }
    let rows = runs.iter().map(|run| {
        let mut row = vec![run.model.clone(), with_noun(run.tokens, "token")];
        row.extend(cells(&run.record));
        row
    });
    let heading = ["encoder", "read", "plan", "time", "load", "memory", "note"];
    writeln!(printer::summary(), "{}", table::listing(&heading, &["time", "load", "memory"], rows))?;
    if let Some((path, shape)) = written {
        tell!("wrote {}: prompt_embeds {shape:?}", path.display());
    }
    Ok(())
}

/// A decision's plan, and what was measured, or else what is expected.
fn cells(record: &TextRecord) -> [String; 5] {
    let measured = record.outcome.map(|outcome| (outcome.elapsed, outcome.load, outcome.all_bytes()));
    let expected = || record.expectation().map(|cost| (cost.elapsed, cost.load, cost.all_bytes()));
    let is_over = record.expectation().is_some_and(|cost| cost.held_bytes() > record.request.memory_limit);
    let note = if measured.is_none() && is_over { "over the limit" } else { "" };
    let plan = record.plan.to_string();
    match measured.or_else(expected) {
        Some((elapsed, load, held)) => {
            [plan, table::time(elapsed), table::time(load), bytes::display(held), note.to_owned()]
        }
        None => [plan, String::new(), String::new(), String::new(), note.to_owned()],
    }
}
