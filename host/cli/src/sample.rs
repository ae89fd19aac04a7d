//! `tilewright sample`: from a transformer and conditioning to a latent file.

use std::{
    io::Write,
    path::{Path, PathBuf},
    rc::Rc,
};

use serde::Serialize;
use tch::Tensor;
use tilewright_engine::DenoiseJob;
use tilewright_media::STANDARD;
use tilewright_pipeline::{self as pipeline, KeptSample, SampleModel, SampleRequest, Session, Size, Steps, Trials};
use tilewright_plan::{DenoisePlan, DenoiseRecord, bytes};
use tilewright_sampling::Span;

use crate::{
    args::Sample,
    failure::{Failure, Outcome},
    files,
    latent_file::LatentFile,
    printer,
    progress::{AfterStep, Progress},
    report::open_for_append,
    table,
    tell::tell,
};

/// The stage's name before a setting.
const STAGE: &str = "denoise.";

/// The frames of a clip if nobody says how many: of WAN 2.1's models, and of 2.2's own.
const FRAMES: u32 = 81;
const FRAMES_22: u32 = 121;

/// Samples one batch.
pub fn run(arguments: &Sample) -> Outcome {
    let aside = arguments.output.as_os_str() == STANDARD;
    if aside && arguments.resume {
        return Err(Failure::input("-o - and --resume: a step is kept beside a file: write into one"));
    }
    if aside && arguments.json {
        return Err(Failure::input(
            "-o - and --json: standard output is the latent or the record: write one into a file",
        ));
    }
    check_files(arguments)?;
    arguments.record.check()?;
    let output = LatentFile::new(&arguments.output, None, arguments.no_clobber, false)?;
    if let Some(threads) = arguments.threads {
        tilewright_torch::set_threads(threads);
    }
    let mut session = Session::find(arguments.device, |_| Trials::none())?;
    let mut model = SampleModel::open(&arguments.transformer, arguments.boundary)?;
    for lora in &arguments.lora {
        if let Some(line) = model.add(lora)? {
            tracing::warn!("{line}");
        }
    }
    let sampling = model.prepare(&request(arguments, &model))?;
    let (machine, _) = session.ready()?;
    let limit = arguments.memory_limit.unwrap_or_else(|| pipeline::default_limit(machine));
    let job = DenoiseJob::new(machine, &model.denoiser, &sampling, limit);
    let mut plan = job.plan();
    for (name, value) in &arguments.set {
        plan.set(name.strip_prefix(STAGE).unwrap_or(name), value).map_err(Failure::input)?;
        plan.reason = "--set".into();
    }
    if arguments.dry_run {
        job.estimate(&plan).map_err(Failure::input)?;
        return report(arguments, &job.record(&plan, Vec::new(), None), None, aside);
    }
    // A plan that can't be carried out leaves nothing behind.
    job.estimate(&plan).map_err(Failure::input)?;
    let (mut kept, mut from) = (None, None);
    if arguments.resume {
        let fingerprint = model.fingerprint(&arguments.lora, &sampling, &plan)?;
        let (place, found) = KeptSample::open(&arguments.output, &fingerprint)?;
        if let Some((state, before)) = found {
            tell!("note: {} of {} steps are kept from an earlier run", state.steps, job.request().steps);
            // Another type, order or division would change the bits in the middle.
            let DenoisePlan { weights, ahead, release, .. } = plan;
            plan = DenoisePlan { weights, ahead, release, ..before };
            from = Some(state);
        }
        kept = Some(Rc::new(place));
    }
    let mut progress = Progress::new().after_steps(kept.clone().map(keeping));
    let left = job.request().steps.saturating_sub(from.as_ref().map_or(0, |state| state.steps));
    let expected = job.estimate(&plan).ok().map(|cost| cost.step * left);
    progress.begin(plan.to_string(), expected);
    let sampled = job.run(&plan, from, &mut progress);
    progress.finish();
    drop(progress);
    let sampled = sampled?;
    let latents = model.to_vae(&sampled.latents)?;
    let noisy = sampled.noisy.iter().flat_map(|(noisy, sigma)| {
        [(pipeline::NOISY, noisy.shallow_clone()), (pipeline::NOISY_SIGMA, Tensor::from(*sigma).reshape([1]))]
    });
    let noisy: Vec<(&str, Tensor)> = noisy.collect();
    let path = output.write_with(&latents, &noisy, &Vec::new(), &sampled.record)?;
    if let Some(kept) = kept.and_then(Rc::into_inner) {
        kept.remove()?;
    }
    keep(arguments, &sampled.record)?;
    report(arguments, &sampled.record, Some(path), aside)
}

/// Keeps each finished step.
fn keeping(place: Rc<KeptSample>) -> AfterStep {
    Box::new(move |step| {
        let kept = place.keep(step.state, step.plan);
        kept.map_err(|error| tilewright_engine::Error::Sink(error.to_string().into()))
    })
}

/// Refuses an output that would replace an input.
fn check_files(arguments: &Sample) -> Outcome {
    let reads = [
        ("the latent", arguments.latent.as_ref()),
        ("the mask", arguments.mask.as_ref()),
        ("the noise", arguments.noise.as_ref()),
    ];
    let mut roles = files::roles();
    for path in &arguments.transformer {
        roles = roles.reads("the transformer", path);
    }
    for prompt in &arguments.conditioning {
        roles = roles.reads("the conditioning", &prompt.path);
    }
    for prompt in &arguments.negative {
        roles = roles.reads("the negative conditioning", &prompt.path);
    }
    for lora in &arguments.lora {
        roles = roles.reads("the LoRA", &lora.path);
    }
    for (name, path) in reads {
        if let Some(path) = path {
            roles = roles.reads(name, path);
        }
    }
    roles = files::reads_policy(roles, &arguments.policy);
    roles = files::check_file(roles, "--record", arguments.record.file())?;
    if arguments.output.as_os_str() == STANDARD {
        roles = roles.occupies_open("-o", "standard output", printer::raw_stdout());
    } else {
        roles = roles.occupies("-o", &arguments.output);
    }
    Ok(roles.check()?)
}

fn request(arguments: &Sample, model: &SampleModel) -> SampleRequest {
    let config = model.denoiser.config();
    let usual = match config.is_video() {
        false => 1,
        true if config.latent_channels() == 48 => FRAMES_22,
        true => FRAMES,
    };
    let frames = arguments.frames.unwrap_or(usual);
    SampleRequest {
        conditioning: arguments.conditioning.clone(),
        negative: arguments.negative.clone(),
        size: arguments.size.map(|[width, height]| Size { width, height, frames }),
        latent: arguments.latent.clone(),
        noise: arguments.noise.clone(),
        batch: arguments.batch,
        mask: arguments.mask.clone(),
        seeds: arguments.seed.clone(),
        steps: match &arguments.sigmas {
            Some(sigmas) => Steps::Sigmas(sigmas.0.clone()),
            None => Steps::Count {
                steps: arguments.steps,
                strength: arguments.denoise.unwrap_or(1.0),
                scheduler: arguments.scheduler,
                span: Span { start: arguments.start_step, end: arguments.end_step, leftover: arguments.leftover_noise },
            },
        },
        shift: arguments.shift,
        sampler: arguments.sampler,
        adds_noise: !arguments.no_add_noise,
        guidance: arguments.guidance,
        cfg: arguments.cfg.unwrap_or(1.0),
        reuse: arguments.reuse,
        convention: arguments.convention,
    }
}

/// Appends the record to the user's file.
fn keep(arguments: &Sample, record: &DenoiseRecord) -> Outcome {
    let Some(path) = arguments.record.file() else { return Ok(()) };
    let mut line = serde_json::to_vec(record).map_err(Failure::work)?;
    line.push(b'\n');
    let failed = |error| Failure::work(format!("{}: can't be written: {error}", path.display()));
    open_for_append(path).and_then(|mut file| file.write_all(&line)).map_err(failed)
}

/// A record as it is printed.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    record: &'a DenoiseRecord,
    /// The final names of the files that were written.
    outputs: Vec<String>,
}

fn report(arguments: &Sample, record: &DenoiseRecord, output: Option<PathBuf>, aside: bool) -> Outcome {
    if arguments.json {
        let outputs = output.iter().map(|path| path.display().to_string()).collect();
        let text = serde_json::to_string_pretty(&Printed { record, outputs }).map_err(Failure::work)?;
        return Ok(writeln!(printer::stdout(), "{text}")?);
    }
    let text = summary(record, output.as_deref());
    if aside {
        if !printer::is_quiet() {
            printer::lines(&text);
        }
        return Ok(());
    }
    Ok(writeln!(printer::summary(), "{text}")?)
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
        ("plan", format!("{} ({})", record.plan, record.plan.reason)),
    ];
    if let Some(cost) = &record.estimate {
        let [peak, weights] = [cost.peak_bytes, cost.weights_bytes].map(bytes::display);
        rows.push(("estimate", format!("{} a step, {peak} beside {weights} of weights", table::time(cost.step))));
    }
    if let Some(outcome) = &record.outcome {
        let (elapsed, step) = (table::time(outcome.elapsed), table::time(outcome.step));
        rows.push(("measured", format!("{elapsed}, {step} a step, {} held", bytes::display(outcome.peak_bytes))));
    }
    if let Some(outcome) = record.outcome.filter(|outcome| outcome.reused > 0) {
        let part = format!("each within {:.3} of its output, as estimated", outcome.reuse_deviation);
        rows.push(("reused", format!("{} of {} steps, {part}", outcome.reused, record.request.steps)));
    }
    if let Some(output) = output {
        rows.push(("output", output.display().to_string()));
    }
    table::facts(rows)
}
