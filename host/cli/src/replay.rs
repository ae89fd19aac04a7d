//! `tilewright replay`: the stages of a capture run again, and compared.

use std::io::Write;

use serde::Serialize;
use tilewright_capture::{Captured, StageEntry};
use tilewright_engine::{Machine, Probe};
use tilewright_pipeline::{Replay, ReplayFiles, ReplayPlanners, Replayed, TensorDifference};
use tilewright_plan::{Planner, Stage, Work, words::with_noun};
use tilewright_policy::Policy;

use crate::{
    args::ReplayCapture,
    failure::{Failure, Outcome},
    model, policy, printer,
    progress::Progress,
    table, text_stage,
};

/// The stages that were run again.
#[derive(Serialize)]
struct Report {
    stages: Vec<Outcomes>,
    is_same: bool,
}

/// A stage, run again or not.
#[derive(Serialize)]
#[serde(untagged)]
enum Outcomes {
    Ran(Box<Replayed>),
    Failed { stage: Stage, index: u32, error: String },
}

/// Runs a capture's stages again.
pub fn run(arguments: &ReplayCapture) -> Outcome {
    let captured = Captured::open(&arguments.folder)?;
    let chosen = chosen(arguments, &captured)?;
    check_files(arguments, &chosen)?;
    note_left_out(&captured);
    let mut planners = planners(arguments, &chosen)?;
    arguments.on.set_threads();
    let machine = Machine::open(arguments.on.device, Probe::Kept)?;
    let host = text_stage::processor(&machine);
    let replay = Replay {
        captured: &captured,
        machine: &machine,
        host: host.as_ref(),
        files: ReplayFiles {
            vae: arguments.vae.as_deref().map(model::find).transpose()?,
            transformers: arguments.transformer.clone(),
            text_encoders: arguments.text_encoder.clone(),
        },
        memory_limit: arguments.memory_limit,
        bound: arguments.bound,
    };
    let mut report = Report { stages: Vec::new(), is_same: true };
    for entry in &chosen {
        let mut progress = Progress::new();
        let replayed = replay.run(entry, &mut planners, &mut progress);
        progress.finish();
        report.stages.push(match replayed {
            Ok(replayed) => Outcomes::Ran(Box::new(replayed)),
            Err(error) if crate::signals::is_received() => return Err(error.into()),
            Err(error) => {
                let error = Failure::from(error).to_string();
                Outcomes::Failed { stage: entry.stage, index: entry.index, error }
            }
        });
    }
    let differs = |outcome: &&Outcomes| match outcome {
        Outcomes::Failed { .. } => true,
        Outcomes::Ran(replayed) => replayed.outputs.iter().any(|output| output.relative() > arguments.within),
    };
    let differing = report.stages.iter().filter(differs).count();
    report.is_same = report.stages.iter().all(|outcome| matches!(outcome, Outcomes::Ran(ran) if ran.is_same));
    match arguments.json {
        true => printer::json(&report)?,
        false => writeln!(printer::stdout(), "{}", in_words(&report))?,
    }
    match differing {
        0 => Ok(()),
        count => Err(Failure::work(format!("{count} of {} stages differ from the capture, or failed", chosen.len()))),
    }
}

/// The stages that are asked for, in the order of their numbers.
fn chosen(arguments: &ReplayCapture, captured: &Captured) -> Outcome<Vec<StageEntry>> {
    let mut stages = captured.stages().to_vec();
    stages.sort_by_key(|stage| stage.index);
    if let Some(number) = arguments.stage.iter().find(|number| stages.iter().all(|stage| stage.index != **number)) {
        let there: Vec<String> = stages.iter().map(|stage| format!("{} ({})", stage.index, stage.stage)).collect();
        return Err(Failure::input(format!("--stage {number}: the capture has the stages {}", there.join(", "))));
    }
    if !arguments.stage.is_empty() {
        stages.retain(|stage| arguments.stage.contains(&stage.index));
    }
    // A prompt that was left out is no failure of the others.
    if arguments.stage.is_empty() {
        let withheld: Vec<String> =
            stages.iter().filter(|stage| stage.withheld > 0).map(|stage| stage.index.to_string()).collect();
        if !withheld.is_empty() {
            let numbers = withheld.join(", ");
            crate::tell::note(&format!("text stages can't be replayed without --capture-prompts: {numbers} left out"));
            stages.retain(|stage| stage.withheld == 0);
        }
    }
    match stages.is_empty() {
        true => Err(Failure::input(format!("{}: no stage that can be replayed", arguments.folder.display()))),
        false => Ok(stages),
    }
}

/// Refuses files that no stage would take: the comparison would say nothing of them.
fn check_files(arguments: &ReplayCapture, chosen: &[StageEntry]) -> Outcome {
    let given = [
        ("--vae", arguments.vae.is_some(), &[Stage::Decode, Stage::Encode][..]),
        ("--transformer", !arguments.transformer.is_empty(), &[Stage::Denoise]),
        ("--text-encoder", !arguments.text_encoder.is_empty(), &[Stage::Text]),
    ];
    let files = arguments.transformer.iter().chain(&arguments.text_encoder);
    if let Some(missing) = files.chain(&arguments.vae).find(|path| !path.exists()) {
        return Err(Failure::input(format!("{}: no such file", missing.display())));
    }
    let unused = given
        .iter()
        .find(|(_, is_given, stages)| *is_given && !chosen.iter().any(|stage| stages.contains(&stage.stage)));
    match unused {
        Some((option, ..)) => Err(Failure::input(format!("{option}: no stage that is replayed has one: leave it out"))),
        None => Ok(()),
    }
}

/// Says that layers were left out of a capture: the first one that differs may be among them.
fn note_left_out(captured: &Captured) {
    let left_out = captured.manifest().left_out;
    if left_out > 0 {
        let tensors = with_noun(u32::try_from(left_out).unwrap_or(u32::MAX), "tensor");
        crate::tell::note(&format!("{tensors} of layers are not in the capture, because of its limit"));
    }
}

/// The policy that decides in place of the captured plans, for each kind of work that is chosen.
fn planners(arguments: &ReplayCapture, chosen: &[StageEntry]) -> Outcome<ReplayPlanners<'static>> {
    let Some(name) = &arguments.policy else { return Ok(ReplayPlanners::default()) };
    fn of<W: Work>(arguments: &ReplayCapture, name: &str, is_wanted: bool) -> Outcome<Option<Box<dyn Planner<W>>>>
    where
        Policy: Planner<W>,
    {
        if !is_wanted {
            return Ok(None);
        }
        let host = policy::host(arguments.grants)?;
        let admitted = policy::verify_and_load(&host, name, &arguments.set)?;
        Ok(Some(Box::new(admitted.policy)))
    }
    let has = |stages: &[Stage]| chosen.iter().any(|stage| stages.contains(&stage.stage));
    Ok(ReplayPlanners {
        vae: of(arguments, name, has(&[Stage::Decode, Stage::Encode]))?,
        denoise: of(arguments, name, has(&[Stage::Denoise]))?,
        text: of(arguments, name, has(&[Stage::Text]))?,
    })
}

fn in_words(report: &Report) -> String {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for outcome in &report.stages {
        match outcome {
            Outcomes::Failed { stage, index, error } => {
                rows.push([index.to_string(), stage.to_string(), "failed".into()].into_iter().chain(empty()).collect());
                lines.push(format!("stage {index}: {error}"));
            }
            Outcomes::Ran(replayed) => {
                rows.extend(replayed.outputs.iter().map(|output| row(replayed, output)));
                lines.extend(notes(replayed));
            }
        }
    }
    let heading = ["stage", "", "output", "result", "largest", "mean", "PSNR", "then", "now"];
    let table = table::listing(&heading, &["stage", "largest", "mean", "PSNR", "then", "now"], rows);
    [table].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

fn empty() -> impl Iterator<Item = String> {
    std::iter::repeat_n(String::new(), 6)
}

fn row(replayed: &Replayed, output: &TensorDifference) -> Vec<String> {
    let figure = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3e}"));
    let time = |ms: Option<f64>| ms.map_or_else(String::new, table::milliseconds);
    let result = match (output.is_same, &output.captured_shape, &output.shape) {
        (true, ..) => "same bits".to_owned(),
        (false, Some(captured), Some(shape)) if captured == shape => "differs".to_owned(),
        (false, Some(captured), Some(shape)) => format!("{captured:?} then, {shape:?} now"),
        (false, _, None) => "missing".to_owned(),
        (false, None, _) => "new".to_owned(),
    };
    vec![
        replayed.index.to_string(),
        replayed.stage.to_string(),
        output.name.clone(),
        result,
        figure(output.largest.filter(|_| !output.is_same)),
        figure(output.mean.filter(|_| !output.is_same)),
        output.psnr_db.map_or_else(String::new, |psnr| format!("{psnr:.1} dB")),
        time(replayed.captured_ms),
        time(replayed.elapsed_ms),
    ]
}

/// Facts of a stage that its rows don't show.
fn notes(replayed: &Replayed) -> Vec<String> {
    let index = replayed.index;
    let mut lines = Vec::new();
    if replayed.plan != replayed.captured_plan {
        lines.push(format!("stage {index}: {} then, {} now", replayed.captured_plan, replayed.plan));
    }
    let Some(layers) = &replayed.layers else { return lines };
    let of = |what: &str, found: &tilewright_pipeline::LayerDifference| {
        let by = found
            .relative
            .map_or_else(|| "beyond comparison".to_owned(), |by| format!("by {by:.2e} of its largest value"));
        format!("stage {index}: {what} is {} ({}, call {}), {by}", found.layer, found.end, found.call)
    };
    match &layers.first {
        Some(first) => lines.push(of("the first layer that differs", first)),
        None => lines.push(format!("stage {index}: no layer of {} tensors differs", layers.compared)),
    }
    if let Some(worst) = layers.worst.as_ref().filter(|worst| layers.first.as_ref() != Some(*worst)) {
        lines.push(of("the layer that differs most", worst));
    }
    if layers.missing > 0 {
        lines.push(format!("stage {index}: {} captured tensors have no counterpart in this run", layers.missing));
    }
    lines
}
