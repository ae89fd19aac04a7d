//! `tilewright generate`: from a prompt to a picture or clip, stage by stage.

mod conditioning;
mod dry_run;
mod image;
mod like;
mod pictures;
mod policies;
mod prices;
mod report;
mod studio;

use std::cell::OnceCell;

use tilewright_engine::{DenoiseJob, Finished, Overrides, Sampled};
use tilewright_media::{Format, Output, Preview, STANDARD, Shape};
use tilewright_outputs::Roles;
use tilewright_pipeline::{
    self as pipeline, Conditioning, Description, EmbeddingFolder, LatentMap, LatentOutput, LoraIdentity, Model,
    ModelIdentity, Parts, Recipe, SampleModel, Size,
};
use tilewright_plan::{Denoise, Loss, Recorder, Stage, Text};

use self::{
    conditioning::Conditionings,
    like::Filled,
    prices::Prices,
    report::{Memory, Report, Stages},
    studio::Studio,
};
use crate::{
    args::Generate,
    embed::check_prompts,
    failure::{Failure, Outcome},
    files, history, model, printer,
    report::{Shown, fail, keep},
    sample::{
        self,
        work::{Resumption, SampleWork},
    },
    tell::{note, tell},
};

/// Makes pictures or clips.
pub fn run(mut arguments: Generate) -> Outcome {
    if let Some(reuse) = Loss::reuse(&arguments.allow) {
        if arguments.resume || arguments.reuse.is_some() {
            let other = if arguments.resume { "--resume" } else { "--reuse" };
            return Err(Failure::input(format!("--allow reuse={reuse} and {other}: leave one of them out")));
        }
        arguments.reuse = Some(reuse);
    }
    let Some(path) = arguments.like.clone() else { return make(&arguments, None) };
    let Filled { recipe, options } = like::fill(&mut arguments, &path)?;
    // Nobody typed an option that the picture filled in.
    make(&arguments, Some(&recipe)).map_err(|failure| match failure.option_of(&options) {
        Some(option) => failure.and(format!("{option} is that of {}", path.display())),
        None => failure,
    })
}

fn make(arguments: &Generate, like: Option<&Recipe>) -> Outcome {
    sample::tell_drawn(&arguments.seed);
    let aside = arguments.output.as_os_str() == STANDARD;
    for (option, is_given, words) in [
        ("--json", arguments.report.json && !arguments.report.dry_run, "standard output is the picture or the report"),
        ("--resume", arguments.resume, "steps are kept beside a file"),
    ] {
        if aside && is_given {
            return Err(Failure::input(format!("-o - and {option}: {words}: write the picture into a file")));
        }
    }
    let before = like.and_then(|recipe| recipe.model.as_ref());
    let parts = find_parts(arguments, before)?;
    let vae_path = model::find(parts.check()?)?;
    let roles = check_files(arguments, &parts)?;
    arguments.report.record.check()?;
    let preview = arguments.preview.as_deref().map(Preview::new).transpose()?;
    let keep_latent = arguments.keep.as_deref().map(|path| LatentOutput::new(path, None, false, false)).transpose()?;
    let mut reading: Recorder<Text> = policies::configure(arguments, Stage::Text)?;
    let mut planner: Recorder<Denoise> = policies::configure(arguments, Stage::Denoise)?;
    let mut decoding: Recorder = policies::configure(arguments, Stage::Decode)?;
    let mut encoding: Recorder = policies::configure(arguments, Stage::Encode)?;
    let transformer = sample::with_loras(SampleModel::of_parts(&parts, arguments.boundary)?, &arguments.lora)?;
    let vae = Model::open(&vae_path, Overrides::default())?;
    vae.check_weights()?;
    LatentMap::check(&transformer, (&vae, &vae_path))?;
    let transformer = transformer.scaled_for(&vae);
    let output = Output::with(&arguments.output, vae.kind(), arguments.writing.options())?;
    let mut session = arguments.run.session(arguments.report.dry_run)?;
    let (machine, trials) = session.ready()?;
    let limit = arguments.run.limit(machine);
    let mut request = transformer.choose(&like::asked(arguments));
    let prompts = conditioning::read_prompts(arguments, request.cfg != 1.0)?;
    check_prompts((&["prompt", "negative prompt"], &prompts), arguments.embeddings.is_some(), request.convention)?;
    let text_tokens = transformer.text_tokens_in(arguments.text_tokens)?;
    let usual = request.size.unwrap_or(Size { width: 0, height: 0, frames: 1 });
    let (start, size) = image::begin(arguments, (&transformer, &vae), usual)?;
    request.size = Some(size);
    transformer.check_guidance(request.guidance)?;
    let one = vae.shape_of_latents(&[1, 1, 1, 1]);
    output.check(&Shape { frames: size.frames as usize, width: size.width, height: size.height, ..one })?;
    let roles = match aside {
        true => roles.occupies_open("-o", "standard output", printer::raw_stdout()),
        false => roles,
    };
    if aside {
        roles.check()?
    } else {
        roles.clone().occupies("-o", &arguments.output).check()?
    }
    let rate = pictures::rate(arguments, &vae)?;
    let tokens = transformer.text_tokens_of(text_tokens, request.convention)?;
    let embeddings = arguments.embeddings.as_deref().map(EmbeddingFolder::open).transpose()?;
    let studio = Studio {
        arguments,
        parts: &parts,
        machine,
        vae: &vae,
        limit,
        prompts,
        text_tokens,
        embeddings,
        start,
        host: OnceCell::new(),
    };
    let prices = Prices::new(&studio, &transformer, &request, tokens)?;
    let shape = vae.shape_of_latents(&prices.outline.sample.shape.latents);
    output.check(&shape)?;
    if !aside {
        output.files(&shape).iter().fold(roles, |roles, file| roles.occupies("-o", file)).check()?;
    }
    prices.check()?;
    // Pixels are read once it is known that the work fits.
    arguments.image.as_deref().map_or(Ok(()), image::check)?;
    if arguments.report.dry_run {
        let planners = (&mut reading, &mut encoding, &mut planner, &mut decoding);
        return dry_run::dry_run(&studio, &prices, &request, trials, planners);
    }
    drop(prices);
    let mut memory = Memory::new(machine.device);
    memory.begins(Stage::Text)?;
    let mut conditionings = Conditionings::make(&studio, &transformer, trials, &mut reading)?;
    // Encoders whose conditioning was kept are not read again.
    let encoders = Conditioning::encoders_of(&conditionings.positive);
    let identity = ModelIdentity::of(&parts.name(arguments.model.as_deref()), &transformer, &parts, encoders)?;
    if let (Some(before), Some(path)) = (before, &arguments.like) {
        identity.differences(before).iter().for_each(|line| note(&format!("{}: {line}", path.display())));
    }
    let image = match start {
        Some(start) => {
            memory.begins(Stage::Encode)?;
            let planners = (&mut encoding, &mut reading);
            Some(studio.encode_start(start, (&transformer, size), &mut conditionings, trials, planners)?)
        }
        None => None,
    };
    conditionings.put_into(&mut request);
    if let Some(image) = &image {
        image.file.put_into(&mut request, arguments.mask.as_deref());
    }
    let sampling = transformer.prepare(&request)?;
    let job = DenoiseJob::new(machine, &transformer.denoiser, &sampling, limit, arguments.run.objective())?;
    let job = trials.remind(job);
    let preview = preview.map(|preview| (preview, vae_path.as_path()));
    let work = SampleWork { model: &transformer, machine, job, sampling: &sampling, memory_limit: limit, preview };
    let mut resumption = match arguments.resume {
        true => Resumption::open(&arguments.output, &work, &arguments.set)?,
        false => Resumption::default(),
    };
    let shown = arguments.report.shown(false, aside);
    let quiet = Shown { json: false, ..shown };
    memory.begins(Stage::Denoise)?;
    let sampled = match work.run(&mut planner, &mut resumption)? {
        Ok(sampled) => sampled,
        Err(unfinished) => return Err(fail(&arguments.report.record, quiet, trials, &mut planner, unfinished)),
    };
    if sampled.record.resumed_frames == 0 {
        history::keep(trials, &sampled.record);
    }
    keep(&arguments.report.record, &sampled.record, planner.take())?;
    let loras = arguments.lora.iter().map(|lora| LoraIdentity::of(lora).map(|identity| (lora, identity)));
    let description = Description {
        parts: &parts,
        identity: &identity,
        loras: loras.collect::<pipeline::Result<_>>()?,
        boundary: arguments.boundary,
        prompts: &studio.prompts,
        text_tokens: arguments.text_tokens,
        has_embeddings: arguments.embeddings.is_some(),
        text_settings: like::text_settings(&arguments.set),
        image: arguments.image.as_deref(),
        mask: arguments.mask.as_deref(),
        model: &transformer,
        request: &request,
        sampling: &sampling,
        plan: &sampled.record.plan,
        rate,
    };
    let (texts, settings) = (description.texts()?, description.settings()?);
    let mut outputs = Vec::new();
    if let Some(place) = &keep_latent {
        outputs.push(transformer.write(place, &sampled, &texts)?);
    }
    let Finished { output: Sampled { latents, .. }, record, candidates, .. } = sampled;
    let latents = transformer.to_vae(&latents)?;
    drop((sampling, transformer));
    memory.begins(Stage::Decode)?;
    let (decode, files) = studio.write_decoded(&latents, (&output, rate, texts), trials, &mut decoding)?;
    outputs.extend(files);
    outputs.extend(arguments.preview.clone());
    resumption.remove()?;
    let text = std::mem::take(&mut conditionings.runs);
    let encode = image.map(|image| image.decided);
    // Without a run of an encoder, nothing was decided.
    let stages = Stages { is_kept: text.is_empty(), text, encode, denoise: (record, candidates), decode };
    let memory = Some(&memory.ends()?);
    let reported = Report { settings: &settings, stages: &stages, memory, outputs: &outputs, limit }.show(shown);
    arguments.report.profile.finish(shown.aside || shown.json, reported)
}

/// The parts of the model that is asked for, or else of the one that made a picture.
fn find_parts(arguments: &Generate, before: Option<&ModelIdentity>) -> Outcome<Parts> {
    let parts = Parts {
        text_encoders: arguments.text_encoder.clone(),
        transformers: arguments.transformer.clone(),
        vision_encoder: arguments.vision_encoder.clone(),
        vae: arguments.vae.clone(),
        pipeline: None,
    };
    let wants_clip = arguments.frames.is_some_and(|frames| frames > 1)
        || arguments.writing.format.map_or(Format::is_of_clips(&arguments.output), Format::is_video);
    let folders = &arguments.folders.models;
    let (parts, found) = match before {
        Some(identity) if arguments.model.is_none() && parts.transformers.is_empty() => {
            parts.like(identity, folders)?
        }
        _ => parts.find(arguments.model.as_deref(), folders, wants_clip)?,
    };
    found.iter().for_each(|line| tell!("{line}"));
    Ok(parts)
}

/// Refuses an output that would replace an input.
fn check_files(arguments: &Generate, parts: &Parts) -> Outcome<Roles> {
    let mut roles = files::roles()
        .reads_all("the transformer", &parts.transformers)
        .reads_all("the text encoder", &parts.text_encoders)
        .reads_all("the vision encoder", &parts.vision_encoder)
        .reads_all("the image", &arguments.image)
        .reads_all("the mask", &arguments.mask)
        .reads_all("the picture", &arguments.like)
        .reads_all("the VAE", &parts.vae)
        .reads_all("the embeddings", &arguments.embeddings)
        .reads_all("the LoRA", arguments.lora.iter().map(|lora| &lora.path));
    for named in &arguments.policy {
        roles = files::reads_policy(roles, policies::name(named));
    }
    roles = files::check_file(roles, "--preview", arguments.preview.as_deref())?;
    roles = files::check_file(roles, "--keep", arguments.keep.as_deref())?;
    roles = files::check_file(roles, "--record", arguments.report.record.file())?;
    arguments.report.begin(roles)
}
