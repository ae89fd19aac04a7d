//! `tilewright bench sample`: policies compared on one sample, and the sweep over its plans.

use std::path::PathBuf;

use tilewright_bench::{
    Spelling,
    samples::{SampleCase, SampleContest, SampleReport, SampleRow, SampleSweep, SampleSweepReport},
    suite,
};
use tilewright_pipeline::{Model, PromptRequest, SampleModel, SampleRequest, Size, Steps};
use tilewright_plan::{Denoise, DenoisePlan, Device, Work, bytes, words::with_noun};
use tilewright_plot::{Axis, Chart, Lines, Page};
use tilewright_sampling::Span;

use super::{
    Policies, expect_some, machine, pages, publish,
    tables::{or_dash, percent, ratio, size, time, verdict},
    waiting::watched,
};
use crate::{
    args::{BenchSample, Suite},
    failure::{Failure, Outcome},
    files,
    sample::with_loras,
    table::{self, headed},
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
    let against = match arguments.contest.against() {
        Some(spelling) if spelling == Spelling::whole() => Some("fixed:precision=f32".parse()?),
        against => against,
    };
    let prompts = arguments.conditioning.iter().chain(&arguments.negative);
    let roles = files::roles()
        .reads_all("the transformer", &arguments.transformer)
        .reads_all("the conditioning", prompts.map(|prompt| &prompt.path));
    let profile = &arguments.contest.profile;
    if arguments.sweep && profile.file().is_some() {
        return Err(Failure::input("--profile and --sweep: a sweep runs every plan of a list: leave one out"));
    }
    let roles = profile.begin(roles, false)?;
    let policies = Policies::check(arguments.contest.policies.iter().chain(&against), &arguments.common, roles)?;
    let model = with_loras(SampleModel::open(&arguments.transformer, None)?, &arguments.lora)?;
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
    if arguments.sweep {
        let sweep = SampleSweep {
            machine: &machine,
            denoiser: &model.denoiser,
            sampling: &sampling,
            limits: arguments.limits.clone(),
            objectives: arguments.objectives.iter().map(|objective| (*objective).into()).collect(),
            iterations: arguments.contest.iterations,
            policy: arguments.contest.policies[0].clone(),
            plans: arguments.plans,
            any_precision: arguments.any_precision,
        };
        let report = watched(|waiting| sweep.run(&policies.planner(), waiting))?;
        let table = || headed(&CASES, report.cases.iter().map(case_cells));
        let page = || page("Tilewright bench sample: every plan", &report.device, table(), &report.plans);
        return publish(&arguments.common, (&report, report.interrupted), || sweep_table(&report), page);
    }
    let contest = SampleContest {
        machine: &machine,
        denoiser: &model.denoiser,
        sampling: &sampling,
        entries: arguments.contest.entries(&machine),
        against,
        rounds: arguments.contest.rounds(),
    };
    let report = watched(|waiting| contest.run(&policies.planner(), waiting))?;
    let table = || headed(&HEADING, report.runs.iter().map(cells));
    let page = || page("Tilewright bench sample", &report.device, table(), &report.runs);
    let published = publish(&arguments.common, (&report, report.interrupted), || contest_table(&report), page);
    let profiles = report.runs.iter().filter_map(|row| row.profile.clone());
    profile.finish_contest(profiles, arguments.common.json, published)?;
    expect_some(report.runs.iter().any(|row| !row.samples_ms.is_empty()))
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

/// A report: the steps of each policy or plan, and their memory.
fn page(title: &str, device: &Device, table: Vec<Vec<String>>, rows: &[SampleRow]) -> Page {
    let measured = || rows.iter().filter(|row| !row.samples_ms.is_empty());
    let times = measured().map(|row| (row.policy.clone(), row.samples_ms.clone()));
    let memory = measured().map(|row| pages::memory(&row.policy, row.held_bytes(), row.median_ms));
    let axes = ["most held, weights included, MiB", "median step, ms"].map(Axis::linear);
    let charts = vec![
        Chart::boxes("Time of a step (lower is better)", "time, ms", times),
        Chart::plane("Memory against time", axes, memory, Lines::None),
    ];
    let facts = vec![("device".to_owned(), device.name.clone())];
    Page { title: title.into(), facts, table, charts }
}

fn plan(plan: Option<&DenoisePlan>) -> String {
    or_dash(plan, |plan| Denoise::without_reason(plan).to_string())
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
    let psnr = or_dash(row.psnr, |psnr| match psnr.is_finite() {
        true => format!("{psnr:.1} dB"),
        false => "the same".to_owned(),
    });
    vec![
        row.policy.clone(),
        plan(row.plan.as_ref()),
        time(row.first_ms),
        time(row.mean_ms),
        time(row.std_ms),
        time(row.min_ms),
        ratio(row.ratio),
        size(row.held_bytes()),
        size(row.moved_bytes),
        psnr,
    ]
}

fn case_cells(case: &SampleCase) -> Vec<String> {
    vec![
        format!("{} ({})", case.limit, bytes::display(case.memory_limit)),
        format!("{:?}", case.objective).to_lowercase(),
        plan(case.best.as_ref()),
        plan(case.chosen.as_ref()),
        verdict(case.met, case.ratio),
        case.note.clone(),
    ]
}

fn sweep_table(report: &SampleSweepReport) -> String {
    let cases = table::listing(&CASES, &["ratio"], report.cases.iter().map(case_cells));
    let met = report.cases.iter().filter(|case| case.met).count();
    let measured = report.plans.iter().filter(|row| row.error.is_none() && !row.samples_ms.is_empty()).count();
    let [step, held] = report.errors.map(percent);
    format!(
        "{cases}\nwithin 5 % of the best plan and within the limit: {met} of {}\n\nestimates of {} against what was measured, at the 90th percentile:\nstep  off by {step}\nheld  off by {held}",
        with_noun(report.cases.len(), "case"),
        with_noun(measured, "plan"),
    )
}
