//! `tilewright decode`: arguments to a job, and its result to files and tables.

use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::{Path, PathBuf},
};

use tilewright_engine::{Job, Machine, Overrides, Probe, Vae};
use tilewright_models::{Latent, Origin};
use tilewright_plan::{Candidate, Record, bytes};

use crate::{
    args::Decode,
    failure::{Failure, Outcome},
    history::Trials,
    output::{Format, Output, Pixels, Texts, is_keyword},
    overlay, policy,
    progress::Progress,
    table,
};

/// The share of free memory that is used where the user sets no limit.
pub const SHARE_OF_FREE: f64 = 0.8;

/// The keyword of the decision record among a PNG's text chunks.
pub const RECORD_KEYWORD: &str = "tilewright";

/// Decodes as asked.
pub fn run(arguments: &Decode) -> Outcome {
    // Everything that can be wrong with the arguments comes before anything that takes time.
    let mut planner = policy::configured(&arguments.policy, &arguments.set)?;
    let path = arguments.output.clone().unwrap_or_else(|| default_output(&arguments.latent));
    let output = if arguments.dry_run { None } else { Some(Output::new(&path)?) };
    let drawing = arguments.explain_image.as_deref().filter(|_| !arguments.dry_run).map(Output::new).transpose()?;
    if drawing.as_ref().is_some_and(|drawing| drawing.format == Format::Safetensors) {
        return Err(Failure::input("--explain-image: a picture is drawn: expected .png, .jpg or .webp"));
    }
    if let Some(path) = &arguments.record {
        appended(path).map_err(|error| Failure::input(format!("{}: can't be written: {error}", path.display())))?;
    }
    let overrides =
        Overrides { family: arguments.family, scaling: arguments.scaling_factor, shift: arguments.shift_factor };
    let vae = Vae::open(&arguments.vae, overrides)?;
    if let Some(threads) = arguments.threads {
        tilewright_torch::set_threads(threads);
    }
    let device = Machine::find(arguments.device)?;
    let mut latent = Latent::read(&arguments.latent, arguments.tensor.as_deref())?;
    vae.check(&latent)?;
    if arguments.scaled {
        unscale(&mut latent, &vae, &arguments.vae)?;
    }
    let machine = device.measured(Probe::Kept)?;
    let limit = arguments.memory_limit.unwrap_or((machine.facts.free_bytes as f64 * SHARE_OF_FREE) as u64);
    let latents = latent.pictures()?;
    let job = Job::new(&machine, &vae, &latents, limit, arguments.objective.into())?;
    let mut history = if arguments.no_history { Trials::none() } else { Trials::of(&machine, arguments.dry_run) };
    let before = history.before(job.request());
    let job = job.with_history(&before);

    if arguments.dry_run {
        let (record, candidates) = job.decide(planner.as_mut());
        return report((arguments.json, arguments.explain), &record, &candidates, &[]);
    }
    let mut progress = Progress::new();
    let finished = job.run(planner.as_mut(), &mut progress);
    progress.finish();
    let finished = finished.or_else(|unfinished| {
        if let Some(record) = &unfinished.record {
            // What the user ended says nothing of the plan.
            if !matches!(unfinished.error, tilewright_engine::Error::Interrupted) {
                history.keep(record);
            }
            keep(arguments.record.as_deref(), record)?;
            if arguments.json {
                print_json(record)?;
            }
        }
        Err(Failure::from(unfinished.error))
    })?;
    history.keep(&finished.record);
    let texts = texts(&latent, &finished.record)?;
    let mut files = match &output {
        Some(output) => output.write(&finished.pictures, &texts)?,
        None => Vec::new(),
    };
    if let (Some(drawing), Some(path)) = (drawing, &arguments.explain_image) {
        let mut pixels = Pixels::of(&finished.pictures, 0).map_err(Failure::Work)?;
        overlay::draw(&mut pixels, &finished.record.plan.space);
        drawing.write_pixels(&pixels)?;
        files.push(path.clone());
    }
    keep(arguments.record.as_deref(), &finished.record)?;
    report((arguments.json, arguments.explain), &finished.record, &finished.candidates, &files)
}

fn default_output(latent: &Path) -> PathBuf {
    Path::new(latent.file_stem().unwrap_or(latent.as_os_str())).with_extension("png")
}

fn unscale(latent: &mut Latent, vae: &Vae, file: &Path) -> Outcome {
    if latent.origin != Origin::Plain {
        return Err(Failure::input(format!(
            "{}: a ComfyUI latent carries no scaling: leave --scaled out",
            latent.path.display()
        )));
    }
    let scaling = vae.scaling().ok_or_else(|| {
        Failure::input(format!(
            "{}: no scaling is known of this VAE: give --family, or --scaling-factor",
            file.display()
        ))
    })?;
    Ok(latent.unscale(&scaling)?)
}

/// What a PNG carries: ComfyUI's workflow, so that the picture can be dragged back into it, and the record.
fn texts(latent: &Latent, record: &Record) -> Outcome<Texts> {
    let mut texts: Texts = latent
        .texts
        .iter()
        .filter(|(name, _)| is_keyword(name) && name != "format" && name != RECORD_KEYWORD)
        .cloned()
        .collect();
    texts.push((RECORD_KEYWORD.into(), serde_json::to_string(record).map_err(Failure::work)?));
    Ok(texts)
}

/// A file opened to be appended to.
pub fn appended(path: &Path) -> io::Result<std::fs::File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Appends the record where the user asked for it, as one write, so that records of several processes don't mix.
pub fn keep(path: Option<&Path>, record: &Record) -> Outcome {
    let Some(path) = path else { return Ok(()) };
    let mut line = serde_json::to_vec(record).map_err(Failure::work)?;
    line.push(b'\n');
    appended(path)
        .and_then(|mut file| file.write_all(&line))
        .map_err(|error| Failure::work(format!("{}: can't be written: {error}", path.display())))
}

/// The record on standard output.
pub fn print_json(record: &Record) -> Outcome {
    let text = serde_json::to_string_pretty(record).map_err(Failure::work)?;
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// What was decided and measured: the record alone on standard output as JSON, or tables.
pub fn report((json, explain): (bool, bool), record: &Record, candidates: &[Candidate], files: &[PathBuf]) -> Outcome {
    if json {
        // Standard output is the record alone.
        if explain {
            eprintln!("{}", explanation(record, candidates));
        }
        return print_json(record);
    }
    let mut stdout = io::stdout().lock();
    if explain {
        writeln!(stdout, "{}\n", explanation(record, candidates))?;
    }
    writeln!(stdout, "{}", summary(record, files))?;
    Ok(())
}

/// The decision and its outcome in a few lines.
fn summary(record: &Record, files: &[PathBuf]) -> String {
    let plan = &record.plan;
    let request = &record.request;
    let samples = if request.batch == 1 { String::new() } else { format!("{} × ", request.batch) };
    let mut rows = vec![
        (
            "request",
            format!(
                "{samples}{}×{} {}, at most {}",
                request.width,
                request.height,
                request.model.family,
                bytes::display(request.memory_limit)
            ),
        ),
        (
            "policy",
            format!(
                "{} {} in {}, {} fuel",
                record.policy.name,
                record.policy.version,
                table::time(record.decision),
                record.fuel
            ),
        ),
        ("plan", format!("{}, {}, {}, batch {}", plan.space, plan.precision, plan.layout, plan.batch)),
    ];
    if !plan.reason.is_empty() {
        rows.push(("why", plan.reason.clone()));
    }
    rows.extend(record.adjusted.iter().map(|line| ("adjusted", line.clone())));
    rows.extend(
        record.fallback.iter().map(|fallback| ("fallback", format!("{}: {}", fallback.reason, fallback.detail))),
    );
    rows.extend(
        record.attempts.iter().map(|attempt| {
            ("failed", format!("{} {}: {}", attempt.plan.space, attempt.plan.precision, attempt.failure))
        }),
    );
    if let Some(cost) = &record.estimate {
        rows.push((
            "expected",
            format!(
                "{} in {} tiles, {} held, rework {:.2}",
                table::time(cost.elapsed),
                cost.tiles,
                bytes::display(cost.peak_bytes),
                cost.rework
            ),
        ));
    }
    if let Some(outcome) = &record.outcome {
        rows.push((
            "measured",
            format!(
                "{}, {} held, loaded in {}",
                table::time(outcome.elapsed),
                bytes::display(outcome.peak_bytes),
                table::time(outcome.load)
            ),
        ));
    }
    rows.extend(files.iter().map(|file| ("wrote", file.display().to_string())));
    table::facts(rows)
}

/// Every plan that the policy asked the price of, the one carried out marked.
fn explanation(record: &Record, candidates: &[Candidate]) -> String {
    let heading = ["", "space", "precision", "layout", "batch", "tiles", "rework", "memory", "time", "note"];
    let limit = record.request.memory_limit;
    let chosen = |candidate: &Candidate| {
        let plan = &candidate.plan;
        let one = (plan.space, plan.time, plan.batch, plan.precision, plan.layout);
        let other = &record.plan;
        one == (other.space, other.time, other.batch, other.precision, other.layout)
    };
    let rows = candidates.iter().map(|candidate| {
        let plan = &candidate.plan;
        let mut row = vec![
            if chosen(candidate) { "→" } else { "" }.to_owned(),
            plan.space.to_string(),
            plan.precision.to_string(),
            plan.layout.to_string(),
            plan.batch.to_string(),
        ];
        match &candidate.cost {
            Ok(cost) => row.extend([
                cost.tiles.to_string(),
                format!("{:.2}", cost.rework),
                bytes::display(cost.peak_bytes),
                table::time(cost.elapsed),
                match (&record.outcome, chosen(candidate)) {
                    (Some(outcome), true) => {
                        format!("measured {}, {}", bytes::display(outcome.peak_bytes), table::time(outcome.elapsed))
                    }
                    _ if cost.peak_bytes > limit => "over the limit".into(),
                    _ => String::new(),
                },
            ]),
            Err(reason) => row.extend([String::new(), String::new(), String::new(), String::new(), reason.clone()]),
        }
        row
    });
    if candidates.is_empty() {
        return format!("{} asked for no prices: it decides by rule.", record.policy.name);
    }
    let considered = format!("{} considered {} plans:", record.policy.name, candidates.len());
    format!("{considered}\n{}", table::listing(&heading, &["batch", "tiles", "rework", "memory", "time"], rows))
}
