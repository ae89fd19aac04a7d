//! `tilewright sample`: from a transformer and conditioning to a latent file.

mod after_step;
pub mod work;

use std::path::{Path, PathBuf};

use tilewright_engine::{DenoiseJob, Quote};
use tilewright_media::{Preview, STANDARD};
use tilewright_pipeline::{LatentOutput, LoraRequest, SampleModel, SampleRequest, Size, Steps};
use tilewright_plan::{Candidate, Denoise, DenoiseRecord, Loss, Recorder, Stage, StepReuse, Work, bytes};
use tilewright_sampling::Span;

use self::work::{Resumption, SampleWork};
use crate::{
    args::{Sample, Seed},
    failure::{Failure, Outcome},
    files, history, policy, printer,
    report::{OVER, Shown, considered, decision_rows, fail, keep, present},
    table,
    tell::note,
};

/// Samples one batch.
pub fn run(arguments: &Sample) -> Outcome {
    if arguments.output.as_os_str() == STANDARD && arguments.resume {
        return Err(Failure::input("-o - and --resume: a step is kept beside a file: write into one"));
    }
    let aside = arguments.report.goes_aside(Some(&arguments.output), "latent")?;
    check_files(arguments)?;
    tell_drawn(&arguments.seed);
    arguments.report.record.check()?;
    let preview = arguments.preview.as_deref().map(Preview::new).transpose()?;
    let output = LatentOutput::new(&arguments.output, None, arguments.no_clobber, false)?;
    let mut planner: Recorder<Denoise> = arguments.governed.configure(Stage::Denoise, &arguments.report.record)?;
    let mut session = arguments.run.session(arguments.report.dry_run)?;
    let model = with_loras(SampleModel::open(&arguments.transformer, arguments.boundary)?, &arguments.lora)?;
    let request = request(arguments, &model);
    let outline = model.outline(&request)?;
    let (machine, trials) = session.ready()?;
    let limit = arguments.run.limit(machine);
    // Refused before latents and noise are made.
    let basis = machine.basis();
    let quote = Quote::denoise(&basis, &model.denoiser, &outline.shape, limit, arguments.run.objective())
        .map_err(tilewright_engine::Error::from)?;
    let shown = arguments.report.shown(false, aside);
    if arguments.report.dry_run {
        model.check_values(&request, &outline)?;
        let (record, candidates) = trials.remind_quote(quote).decide(&mut planner);
        keep(&arguments.report.record, &record, planner.take())?;
        return report(shown, &record, &candidates, None);
    }
    drop(quote);
    let sampling = model.prepare(&request)?;
    let job = DenoiseJob::new(machine, &model.denoiser, &sampling, limit, arguments.run.objective())?;
    let job = trials.remind(job);
    let vae = arguments.vae.as_deref();
    let work =
        SampleWork { model: &model, machine, job, sampling: &sampling, memory_limit: limit, preview: preview.zip(vae) };
    let mut resumption = match arguments.resume {
        true => Resumption::open(&arguments.output, &work, &arguments.governed.set)?,
        false => Resumption::default(),
    };
    let sampled = work.run(&mut planner, &mut resumption)?;
    let sampled = match sampled {
        Ok(sampled) => sampled,
        Err(unfinished) => return Err(fail(&arguments.report.record, shown, trials, &mut planner, unfinished)),
    };
    let path = model.write(&output, &sampled, &Vec::new())?;
    resumption.remove()?;
    if sampled.record.resumed_frames == 0 {
        // A resumed sample takes less time than its whole, so the history leaves it out.
        history::keep(trials, &sampled.record);
    }
    keep(&arguments.report.record, &sampled.record, planner.take())?;
    let reported = report(shown, &sampled.record, &sampled.candidates, Some(path));
    arguments.report.profile.finish(shown.aside || shown.json, reported)
}

/// The model with LoRAs; those that change it in part are warned of.
pub fn with_loras(mut model: SampleModel, loras: &[LoraRequest]) -> Outcome<SampleModel> {
    for lora in loras {
        if let Some(line) = model.add(lora)? {
            tracing::warn!("{line}");
        }
    }
    Ok(model)
}

/// Says which seeds were drawn, so that the same sample can be made again.
pub fn tell_drawn(seeds: &[Seed]) {
    let drawn: Vec<String> = seeds.iter().filter(|seed| seed.is_drawn).map(Seed::to_string).collect();
    if !drawn.is_empty() {
        note(&format!("--seed {}, drawn at random", drawn.join(",")));
    }
}

/// Refuses an output that would replace an input.
fn check_files(arguments: &Sample) -> Outcome {
    let mut roles = files::roles()
        .reads_all("the transformer", &arguments.transformer)
        .reads_all("the conditioning", arguments.conditioning.iter().map(|prompt| &prompt.path))
        .reads_all("the negative conditioning", arguments.negative.iter().map(|prompt| &prompt.path))
        .reads_all("the LoRA", arguments.lora.iter().map(|lora| &lora.path))
        .reads_all("the latent", &arguments.latent)
        .reads_all("the mask", &arguments.mask)
        .reads_all("the noise", &arguments.noise)
        .reads_all("the VAE", &arguments.vae);
    roles = files::reads_policy(roles, policy::of_stage(Stage::Denoise, &arguments.governed.policy, '=')?);
    roles = files::check_file(roles, "--preview", arguments.preview.as_deref())?;
    roles = files::check_file(roles, "--record", arguments.report.record.file())?;
    roles = arguments.report.begin(roles)?;
    if arguments.output.as_os_str() == STANDARD {
        roles = roles.occupies_open("-o", "standard output", printer::raw_stdout());
    } else {
        roles = roles.occupies("-o", &arguments.output);
    }
    Ok(roles.check()?)
}

fn request(arguments: &Sample, model: &SampleModel) -> SampleRequest {
    let frames = arguments.frames.unwrap_or_else(|| model.usual_frames());
    SampleRequest {
        conditioning: arguments.conditioning.clone(),
        negative: arguments.negative.clone(),
        size: arguments.size.map(|[width, height]| Size { width, height, frames }),
        latent: arguments.latent.clone(),
        noise: arguments.noise.clone(),
        batch: arguments.batch,
        mask: arguments.mask.clone(),
        seeds: arguments.seed.iter().map(|seed| seed.number).collect(),
        steps: match &arguments.way.sigmas {
            Some(sigmas) => Steps::Sigmas(sigmas.0.clone()),
            None => Steps::Count {
                steps: arguments.way.steps,
                strength: arguments.denoise.unwrap_or(1.0),
                scheduler: arguments.way.scheduler,
                span: Span { start: arguments.start_step, end: arguments.end_step, leftover: arguments.leftover_noise },
            },
        },
        shift: arguments.way.shift,
        sampler: arguments.way.sampler,
        adds_noise: !arguments.no_add_noise,
        guidance: arguments.way.guidance,
        cfg: arguments.cfg.unwrap_or(1.0),
        reuse: arguments.reuse.or(Loss::reuse(arguments.allow.as_slice())),
        convention: arguments.way.convention.unwrap_or_default(),
        most_values: SampleRequest::MOST_VALUES,
        most_samples: SampleRequest::MOST_SAMPLES,
    }
}

fn report(shown: Shown, record: &DenoiseRecord, candidates: &[Candidate<Denoise>], output: Option<PathBuf>) -> Outcome {
    let files: Vec<PathBuf> = output.into_iter().collect();
    let summary = || summary(record, files.first().map(PathBuf::as_path));
    present(shown, record, &files, || explanation(record, candidates), summary)
}

/// Every plan that the policy asked the price of, listed once, with a mark at the one carried out.
pub fn explanation(record: &DenoiseRecord, candidates: &[Candidate<Denoise>]) -> String {
    let heading = ["", "plan", "memory", "weights", "moved", "step", "note"];
    considered(&record.policy.name, candidates, (&heading, &heading[2..6]), |candidate, row| {
        row.push(candidate.plan.to_string());
        let mut notes = Vec::new();
        if let Ok(cost) = &candidate.cost {
            row.extend([cost.peak_bytes, cost.weights_bytes, cost.moved_bytes].map(bytes::display));
            row.push(table::time(cost.step));
            notes.extend((cost.held_bytes() > record.request.memory_limit).then(|| OVER.to_owned()));
        }
        (Denoise::is_same_work(&candidate.plan, &record.plan), notes)
    })
}

/// The decision and its outcome in a few lines.
fn summary(record: &DenoiseRecord, output: Option<&Path>) -> String {
    let model = &record.request.model;
    let experts = if model.experts > 1 { format!("{} experts, each ", model.experts) } else { String::new() };
    let mut rows = vec![
        ("request", record.request.to_string()),
        (
            "model",
            format!(
                "{}, {experts}{:.2} G weights, {} as {}",
                model.family,
                model.parameters as f64 / 1e9,
                bytes::display(model.stored_bytes),
                model.stored
            ),
        ),
        ("device", record.device.name.clone()),
    ];
    rows.extend(decision_rows(record, record.plan.to_string(), |attempt| {
        format!("{}, step {}: {}", attempt.plan, attempt.step.unwrap_or(0) + 1, attempt.failure)
    }));
    if let Some(cost) = record.expectation() {
        let [peak, weights] = [cost.peak_bytes, cost.weights_bytes].map(bytes::display);
        let price = record.estimate.filter(|_| record.expected.is_some());
        let price = price.map_or(String::new(), |price| {
            format!(" (by what was measured before; priced at {})", table::time(price.step))
        });
        rows.push((
            "expected",
            format!("{} a step, {peak} beside {weights} of weights{price}", table::time(cost.step)),
        ));
    }
    if let Some(outcome) = &record.outcome {
        let (elapsed, step) = (table::time(outcome.elapsed), table::time(outcome.step));
        rows.push(("measured", format!("{elapsed}, {step} a step, {} held", bytes::display(outcome.peak_bytes))));
    }
    if let Some(outcome) = record.outcome.filter(|outcome| outcome.reused > 0) {
        let (count, most) = (outcome.reused, outcome.reuse_deviation);
        let said = match record.plan.reuse {
            StepReuse::FirstBlock { .. } => {
                format!(
                    "the blocks after the first in {count} runs of the network; the first changed by up to {most:.3}"
                )
            }
            StepReuse::Off | StepReuse::Output { .. } => {
                format!("the last output in {count} calls of the network, each within {most:.3}, as estimated")
            }
        };
        rows.push(("reused", said));
    }
    if let Some(output) = output {
        rows.push(("output", output.display().to_string()));
    }
    table::facts(rows)
}
