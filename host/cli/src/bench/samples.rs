//! `tilewright bench sample`: policies compared on one sample, and the sweep over its plans.

use std::{io::Write, path::PathBuf};

use tilewright_bench::{
    Entry, Rounds, Spelling,
    samples::{SampleCase, SampleContest, SampleReport, SampleRow, SampleSweep, SampleSweepReport},
    suite,
};
use tilewright_pipeline::{Model, PromptRequest, SampleModel, SampleRequest, Size, Steps, default_limit};
use tilewright_plan::{DenoisePlan, Device, bytes, words::with_noun};
use tilewright_plot::{Axis, Chart, Form, Lines, Page, Series};
use tilewright_sampling::Span;

use super::{Policies, exit_outcome, machine, tables::time, waiting::Waiting};
use crate::{
    args::{Against, BenchSample, Suite},
    failure::{Failure, Outcome},
    files, printer, table,
    tell::tell,
};

/// Text tokens of generated conditioning: as many as published pipelines pad to.
const TOKENS: u32 = 512;

/// Steps of the suite's workflows: in full, and with --quick.
const STEPS: u32 = 20;
const QUICK_STEPS: u32 = 4;

/// The columns of a contest, of which all after the plan are numbers.
const HEADING: [&str; 10] =
    ["policy", "plan", "first", "step", "± std", "min", "against first", "held", "moved", "PSNR"];

/// The columns of a sweep's cases.
const CASES: [&str; 6] = ["limit", "objective", "best", "chosen", "ratio", "note"];

/// Measures policies on a sample, or every plan of a list.
pub fn run(arguments: &BenchSample) -> Outcome {
    let against = match &arguments.against {
        Against::None => None,
        Against::Policy(spelling) if *spelling == Spelling::whole() => Some("fixed:precision=f32".parse()?),
        Against::Policy(spelling) => Some(spelling.clone()),
    };
    let mut roles = files::roles();
    for path in &arguments.transformer {
        roles = roles.reads("the transformer", path);
    }
    for prompt in arguments.conditioning.iter().chain(&arguments.negative) {
        roles = roles.reads("the conditioning", &prompt.path);
    }
    let policies = Policies::check(arguments.policies.iter().chain(&against), &arguments.common, roles)?;
    let mut model = SampleModel::open(&arguments.transformer, None)?;
    for lora in &arguments.lora {
        if let Some(line) = model.add(lora)? {
            tracing::warn!("{line}");
        }
    }
    let machine = machine(&arguments.common)?;
    let [width, height] = arguments.size;
    let size = Size { width, height, frames: arguments.frames.unwrap_or_else(|| model.usual_frames()) };
    let folder = tempfile::tempdir()?;
    let generated = folder.path().join("generated conditioning");
    let mut conditioning = arguments.conditioning.clone();
    if conditioning.is_empty() {
        model.generate_conditioning(&generated, TOKENS, size)?;
        conditioning.push(PromptRequest { path: generated, within: None });
    }
    let sampling = model.prepare(&request(arguments, conditioning, size))?;
    let planner = policies.sampler();
    let mut waiting = Waiting::new();
    if arguments.sweep {
        let sweep = SampleSweep {
            machine: &machine,
            denoiser: &model.denoiser,
            sampling: &sampling,
            limits: arguments.limits.clone(),
            objectives: arguments.objectives.iter().map(|objective| (*objective).into()).collect(),
            iterations: arguments.iterations,
            policy: arguments.policies[0].clone(),
            plans: arguments.plans,
            any_precision: arguments.any_precision,
        };
        let report = sweep.run(&planner, &mut waiting)?;
        waiting.finish();
        publish(
            arguments,
            &report,
            || sweep_table(&report),
            || {
                let table = headed(CASES, report.cases.iter().map(case_cells));
                page("Tilewright bench sample: every plan", &report.device, table, &report.plans)
            },
        )?;
        return exit_outcome(report.interrupted);
    }
    let memory_limit = arguments.memory_limit.unwrap_or_else(|| default_limit(&machine));
    let objective = arguments.objective.into();
    let entry = |spelling: &Spelling| Entry { spelling: spelling.clone(), memory_limit, objective };
    let contest = SampleContest {
        machine: &machine,
        denoiser: &model.denoiser,
        sampling: &sampling,
        entries: arguments.policies.iter().map(entry).collect(),
        against,
        rounds: Rounds { first_apart: true, warmup: arguments.warmup, iterations: arguments.iterations },
    };
    let report = contest.run(&planner, &mut waiting)?;
    waiting.finish();
    publish(
        arguments,
        &report,
        || contest_table(&report),
        || {
            let table = headed(HEADING, report.runs.iter().map(cells));
            page("Tilewright bench sample", &report.device, table, &report.runs)
        },
    )?;
    exit_outcome(report.interrupted)?;
    match report.runs.iter().all(|row| row.samples_ms.is_empty()) {
        true => Err(Failure::work("no policy was measured: the table says why of each")),
        false => Ok(()),
    }
}

/// The transformers of the suite's workflows: of pictures, and of clips.
pub fn transformers(arguments: &Suite) -> Outcome<(Option<SampleModel>, Option<SampleModel>)> {
    let open = |path: &Option<PathBuf>, option: &str, is_video: bool| -> Outcome<Option<SampleModel>> {
        let Some(path) = path else { return Ok(None) };
        let model = SampleModel::open(std::slice::from_ref(path), None)?;
        if model.denoiser.config().facts().is_video != is_video {
            let kind = if is_video { "pictures" } else { "clips" };
            return Err(Failure::input(format!("{}: makes {kind}: {option} is for the others", path.display())));
        }
        Ok(Some(model))
    };
    let flux = open(&arguments.transformer, "--transformer", false)?;
    Ok((flux, open(&arguments.video_transformer, "--video-transformer", true)?))
}

/// The published workflow of a transformer: a quarter of its sides, and few steps, if `quick`.
pub fn workflow<'a>(transformer: &'a SampleModel, vae: &'a Model, quick: bool) -> Outcome<suite::Workflow<'a>> {
    let is_video = transformer.denoiser.config().facts().is_video;
    let (id, what, side, frames) = match is_video {
        false => ("flux-1024", "Flux.1, 1024×1024: load, sample, decode", 1024, 1),
        true => ("wan-320-17", "WAN 2.1, 17 frames of 320×320: load, sample, decode", 320, 17),
    };
    let (side, frames, steps) = match quick {
        false => (side, frames, STEPS),
        true => (side / 4, if is_video { 5 } else { 1 }, QUICK_STEPS),
    };
    let size = Size { width: side, height: side, frames };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("generated conditioning");
    transformer.generate_conditioning(&path, TOKENS, size)?;
    let sampling =
        transformer.prepare(&SampleRequest::plain(vec![PromptRequest { path, within: None }], size, steps))?;
    Ok(suite::Workflow { id, what, transformer, sampling, vae })
}

fn request(arguments: &BenchSample, conditioning: Vec<PromptRequest>, size: Size) -> SampleRequest {
    SampleRequest {
        negative: arguments.negative.clone(),
        batch: arguments.batch,
        sampler: arguments.sampler,
        steps: Steps::Count {
            steps: Some(arguments.steps),
            strength: 1.0,
            scheduler: arguments.scheduler,
            span: Span::default(),
        },
        cfg: arguments.cfg.unwrap_or(1.0),
        reuse: arguments.reuse,
        ..SampleRequest::plain(conditioning, size, arguments.steps)
    }
}

/// Prints the table or the JSON, and writes the report.
fn publish(
    arguments: &BenchSample,
    report: &impl serde::Serialize,
    text: impl FnOnce() -> String,
    page: impl FnOnce() -> Page,
) -> Outcome {
    let text = match arguments.common.json {
        true => serde_json::to_string_pretty(report).map_err(Failure::work)?,
        false => text(),
    };
    writeln!(printer::stdout(), "{text}")?;
    if let Some(plot) = &arguments.common.plot {
        page().write(plot)?;
        tell!("wrote {}", plot.display());
    }
    Ok(())
}

/// A report: the steps of each policy or plan, and their memory.
fn page(title: &str, device: &Device, table: Vec<Vec<String>>, rows: &[SampleRow]) -> Page {
    const MIB: f64 = 1024.0 * 1024.0;
    let measured = || rows.iter().filter(|row| !row.samples_ms.is_empty());
    let memory = |row: &SampleRow| Series {
        name: row.policy.clone(),
        points: row.held_bytes().zip(row.median_ms).map(|(held, ms)| (held as f64 / MIB, ms)).into_iter().collect(),
    };
    let charts = vec![
        Chart::Rows {
            title: "Time of a step (lower is better)".into(),
            axis: Axis::linear("time, ms"),
            rows: measured().map(|row| (row.policy.clone(), row.samples_ms.clone())).collect(),
            form: Form::Box,
        },
        Chart::Plane {
            title: "Memory against time".into(),
            x: Axis::linear("most held, weights included, MiB"),
            y: Axis::linear("median step, ms"),
            series: measured().map(memory).collect(),
            lines: Lines::None,
        },
    ];
    let facts = vec![("device".to_owned(), device.name.clone())];
    Page { title: title.into(), facts, table, charts }
}

fn headed<const N: usize>(heading: [&str; N], rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    [heading.map(str::to_owned).to_vec()].into_iter().chain(rows).collect()
}

fn plan(plan: Option<&DenoisePlan>) -> String {
    plan.map_or_else(|| "–".to_owned(), |plan| plan.without_reason().to_string())
}

fn contest_table(report: &SampleReport) -> String {
    let mut text = table::listing(&HEADING, &HEADING[2..], report.runs.iter().map(cells));
    for row in &report.runs {
        let reused = (row.reused > 0).then(|| format!("{} reused in a run", with_noun(row.reused, "call")));
        let notes = row.error.iter().chain(&row.fallback).chain(&row.adjusted).chain(&reused);
        for note in notes {
            text += &format!("\n{}: {note}", row.policy);
        }
    }
    match &report.against {
        Some(Ok(policy)) => text += &format!("\nlatents are compared with those of {policy}"),
        Some(Err(why)) => text += &format!("\nno latents to compare with: {why}"),
        None => {}
    }
    text
}

fn cells(row: &SampleRow) -> Vec<String> {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "–".to_owned(), bytes::display);
    let ratio = row.ratio.map_or_else(
        || "–".to_owned(),
        |ratio| format!("{:.3} ({:.3}–{:.3})", ratio.of_medians, ratio.low, ratio.high),
    );
    let psnr = row.psnr.map_or_else(
        || "–".to_owned(),
        |psnr| match psnr.is_finite() {
            true => format!("{psnr:.1} dB"),
            false => "the same".to_owned(),
        },
    );
    vec![
        row.policy.clone(),
        plan(row.plan.as_ref()),
        time(row.first_ms),
        time(row.mean_ms),
        time(row.std_ms),
        time(row.min_ms),
        ratio,
        size(row.held_bytes()),
        size(row.moved_bytes),
        psnr,
    ]
}

fn case_cells(case: &SampleCase) -> Vec<String> {
    let verdict = if case.met { "met" } else { "not met" };
    vec![
        format!("{} ({})", case.limit, bytes::display(case.memory_limit)),
        format!("{:?}", case.objective).to_lowercase(),
        plan(case.best.as_ref()),
        plan(case.chosen.as_ref()),
        case.ratio.map_or_else(|| verdict.to_owned(), |ratio| format!("{ratio:.3} {verdict}")),
        case.note.clone(),
    ]
}

fn sweep_table(report: &SampleSweepReport) -> String {
    let cases = table::listing(&CASES, &["ratio"], report.cases.iter().map(case_cells));
    let met = report.cases.iter().filter(|case| case.met).count();
    let measured = report.plans.iter().filter(|row| row.error.is_none() && !row.samples_ms.is_empty()).count();
    let percent = |share: Option<f64>| share.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let [step, held] = report.errors.map(percent);
    format!(
        "{cases}\nwithin 5 % of the best plan and within the limit: {met} of {}\n\nestimates of {} against what was measured, at the 90th percentile:\nstep  off by {step}\nheld  off by {held}",
        with_noun(report.cases.len(), "case"),
        with_noun(measured, "plan"),
    )
}
