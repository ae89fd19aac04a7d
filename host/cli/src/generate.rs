//! `tilewright generate`: from a prompt to a picture or clip, stage by stage.

mod conditioning;
mod dry_run;
mod image;
mod like;
mod pictures;
mod policies;
mod prices;
mod report;

use std::path::PathBuf;

use tilewright_engine::{DenoiseJob, Finished, Overrides, Sampled};
use tilewright_media::{Format, Output, Preview, Rate, STANDARD, Shape};
use tilewright_models::{Extents, Start};
use tilewright_outputs::{Roles, folder_of};
use tilewright_pipeline::{
    self as pipeline, Conditioning, Description, LatentMap, LatentOutput, LoraIdentity, Model, ModelIdentity, Parts,
    Recipe, SampleModel, Size, Workflow,
};
use tilewright_plan::{Denoise, Loss, Recorder, Stage, Text, words::with_noun};

use self::{
    conditioning::Conditionings,
    image::start_of,
    like::Filled,
    pictures::decode,
    prices::{On, Prices},
    report::{Memory, Report},
};
use crate::{
    args::Generate,
    embed::check_prompts,
    failure::{Failure, Outcome},
    files, model, printer,
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
    let before = like.and_then(|recipe| recipe.model.as_ref());
    let (parts, found) = match before {
        Some(identity) if arguments.model.is_none() && parts.transformers.is_empty() => {
            parts.like(identity, folders)?
        }
        _ => parts.find(arguments.model.as_deref(), folders, wants_clip)?,
    };
    if !printer::is_quiet() {
        found.iter().for_each(|line| tell!("{line}"));
    }
    let vae_path = model::find(parts.check()?)?;
    let roles = check_files(arguments, &parts)?;
    arguments.report.record.check()?;
    let preview = arguments.preview.as_deref().map(Preview::new).transpose()?;
    let keep_latent = arguments.keep.as_deref().map(|path| LatentOutput::new(path, None, false, false)).transpose()?;
    let mut reading: Recorder<Text> = policies::configure(arguments, Stage::Text)?;
    let mut planner: Recorder<Denoise> = policies::configure(arguments, Stage::Denoise)?;
    let mut decoding: Recorder = policies::configure(arguments, Stage::Decode)?;
    let mut encoding: Recorder = policies::configure(arguments, Stage::Encode)?;
    let mut transformer = SampleModel::of_parts(&parts, arguments.boundary)?;
    for lora in &arguments.lora {
        if let Some(line) = transformer.add(lora)? {
            tracing::warn!("{line}");
        }
    }
    let vae = Model::open(&vae_path, Overrides::default())?;
    vae.check_weights()?;
    LatentMap::check(&transformer, (&vae, &vae_path))?;
    let transformer = transformer.scaled_for(&vae);
    let output = Output::with(&arguments.output, vae.kind(), arguments.writing.options())?;
    let mut session = arguments.run.session(arguments.report.dry_run)?;
    let (machine, trials) = session.ready()?;
    let limit = arguments.run.limit(machine);
    let shown = Shown { json: arguments.report.json, explain: arguments.report.explain, several: false, aside };

    let mut request = transformer.choose(&like::asked(arguments));
    let prompts = conditioning::read_prompts(arguments, request.cfg != 1.0)?;
    check_prompts((&["prompt", "negative prompt"], &prompts), arguments.embeddings.is_some(), request.convention)?;
    let text_tokens = match arguments.text_tokens {
        Some(tokens) => Some(tokens),
        None => transformer.text_tokens()?,
    };
    let host = std::cell::OnceCell::new();
    let wish =
        conditioning::Wish { arguments, parts: &parts, machine, memory_limit: limit, prompts, text_tokens, host };
    let start = arguments.image.as_ref().map(|_| start_of(&transformer, arguments)).transpose()?;
    let usual = request.size.unwrap_or(Size { width: 0, height: 0, frames: 1 });
    let size = match (&arguments.image, start) {
        (Some(_), Some(Start::Latent)) if arguments.size.is_some() => {
            return Err(Failure::input("--size: a picture of --image has its size: leave one of them out"));
        }
        (Some(path), Some(Start::Latent)) => {
            let [width, height] = image::size(path, &vae)?;
            Size { width, height, ..usual }
        }
        _ => usual,
    };
    request.size = Some(size);
    // Refused before encoders run, and by a dry run too.
    let Size { width, height, frames } = size;
    transformer.check_size(size).map_err(|error| match (&arguments.image, start, error) {
        (Some(path), Some(Start::Latent), pipeline::Error::Setting { reason, .. }) => {
            Failure::input(format!("{}: {reason}", path.display()))
        }
        (.., error) => error.into(),
    })?;
    transformer.check_guidance(request.guidance)?;
    let one = vae.shape_of(extents(&[1, 1, 1, 1]));
    output.check(&Shape { frames: frames as usize, width, height, ..one })?;
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
    let on = On { text: &wish, transformer: &transformer, vae: &vae, tokens, start };
    let prices = Prices::new(&request, &on)?;
    let shape = vae.shape_of(extents(&prices.outline.shape.latents));
    output.check(&shape)?;
    if !aside {
        output.files(&shape).iter().fold(roles, |roles, file| roles.occupies("-o", file)).check()?;
    }
    prices.check()?;
    // Pixels are read once it is known that the work fits.
    arguments.image.as_deref().map_or(Ok(()), image::check)?;
    if arguments.report.dry_run {
        let planners = (&mut reading, &mut encoding, &mut planner, &mut decoding);
        return dry_run::dry_run(&wish, &prices, &request, trials, planners);
    }
    drop(prices);
    let mut memory = Memory::new(machine.device);
    memory.begins(Stage::Text)?;
    let mut conditionings = Conditionings::make(&wish, &transformer, trials, &mut reading)?;
    // Encoders whose conditioning was kept are not read again.
    let encoders = Conditioning::encoders_of(&conditionings.positive);
    let identity = ModelIdentity::of(&like::model_name(arguments, &parts), &transformer, &parts, encoders)?;
    if let (Some(before), Some(path)) = (before, &arguments.like) {
        identity.differences(before).iter().for_each(|line| note(&format!("{}: {line}", path.display())));
    }
    let image = match (&arguments.image, start) {
        (Some(path), Some(start)) => {
            let size = [width, height, frames];
            let (parts, memory_limit) = (&parts, limit);
            let (vae, model) = (&vae, &transformer);
            let text = &wish;
            memory.begins(Stage::Encode)?;
            let wish = image::Wish { arguments, parts, machine, vae, model, memory_limit, text, size };
            Some(wish.encode(start, path, &mut conditionings, trials, (&mut encoding, &mut reading))?)
        }
        _ => None,
    };
    conditionings.put_into(&mut request);
    if let Some(image) = &image {
        image.put_into(&mut request, arguments.mask.as_deref());
    }
    let sampling = transformer.prepare(&request)?;
    let job = DenoiseJob::new(machine, &transformer.denoiser, &sampling, limit, arguments.run.objective())?;
    let before = trials.before(Stage::Denoise, job.request());
    let job = job.with_history(&before);
    let preview = preview.map(|preview| (preview, vae_path.as_path()));
    let work = SampleWork { model: &transformer, machine, job, sampling: &sampling, memory_limit: limit, preview };
    let mut resumption = match arguments.resume {
        true => Resumption::open(&arguments.output, &work, &arguments.set)?,
        false => Resumption::default(),
    };
    let quiet = Shown { json: false, ..shown };
    memory.begins(Stage::Denoise)?;
    let sampled = match work.run(&mut planner, &mut resumption)? {
        Ok(sampled) => sampled,
        Err(unfinished) => return Err(fail(&arguments.report.record, quiet, trials, &mut planner, unfinished)),
    };
    if sampled.record.resumed_frames == 0 {
        trials.keep(&sampled.record);
    }
    keep(&arguments.report.record, &sampled.record, planner.take())?;
    let description = Description {
        workflow: Workflow {
            parts: &parts,
            loras: &arguments.lora,
            prompts: &wish.prompts,
            model: &transformer,
            request: &request,
            sampling: &sampling,
            size: [width, height, frames],
            rate: rate.map(Rate::per_second),
            text_tokens: transformer.text_tokens_of(text_tokens, request.convention)?,
            image: arguments.image.as_deref(),
            mask: arguments.mask.as_deref(),
        },
        rate,
        identity: &identity,
        loras: arguments.lora.iter().map(LoraIdentity::of).collect::<pipeline::Result<_>>()?,
        text_tokens,
        has_embeddings: arguments.embeddings.is_some(),
        boundary: arguments.boundary,
        text_settings: like::text_settings(&arguments.set),
        plan: &sampled.record.plan,
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
    let decoded = decode(
        pictures::Wish {
            arguments,
            machine,
            vae: &vae,
            latents: &latents,
            memory_limit: limit,
            output: &output,
            rate,
            texts,
        },
        trials,
        &mut decoding,
    )?;
    outputs.extend(decoded.files.iter().cloned());
    outputs.extend(arguments.preview.clone());
    resumption.remove()?;
    let encode = image.as_ref().map(|image| &image.record);
    let memory = &memory.ends()?;
    Report {
        settings: &settings,
        memory,
        text: &conditionings,
        encode,
        denoise: (&record, &candidates),
        decode: &decoded,
        outputs: &outputs,
    }
    .show(shown)
}

/// The folder for files of the run's own, beside the output.
fn folder_beside(arguments: &Generate) -> PathBuf {
    match arguments.output.as_os_str() == STANDARD {
        true => std::env::temp_dir(),
        false => folder_of(&arguments.output).to_owned(),
    }
}

/// The extents of latents [N, C, (T,) h, w].
fn extents(size: &[i64]) -> Extents {
    let of = |extent: i64| u32::try_from(extent).unwrap_or(u32::MAX);
    match *size {
        [samples, _, frames, height, width] => {
            Extents { samples: of(samples), frames: of(frames), height: of(height), width: of(width) }
        }
        [samples, _, height, width] => {
            Extents { samples: of(samples), frames: 1, height: of(height), width: of(width) }
        }
        _ => Extents { samples: 0, frames: 0, height: 0, width: 0 },
    }
}

/// Refuses an output that would replace an input.
fn check_files(arguments: &Generate, parts: &Parts) -> Outcome<Roles> {
    let mut roles = files::roles();
    for path in &parts.transformers {
        roles = roles.reads("the transformer", path);
    }
    for path in &parts.text_encoders {
        roles = roles.reads("the text encoder", path);
    }
    if let Some(path) = &parts.vision_encoder {
        roles = roles.reads("the vision encoder", path);
    }
    for (name, path) in
        [("the image", &arguments.image), ("the mask", &arguments.mask), ("the picture", &arguments.like)]
    {
        if let Some(path) = path {
            roles = roles.reads(name, path);
        }
    }
    if let Some(path) = &parts.vae {
        roles = roles.reads("the VAE", path);
    }
    if let Some(folder) = &arguments.embeddings {
        roles = roles.reads("the embeddings", folder);
    }
    for lora in &arguments.lora {
        roles = roles.reads("the LoRA", &lora.path);
    }
    for named in &arguments.policy {
        roles = files::reads_policy(roles, policies::name(named));
    }
    roles = files::check_file(roles, "--preview", arguments.preview.as_deref())?;
    roles = files::check_file(roles, "--keep", arguments.keep.as_deref())?;
    files::check_file(roles, "--record", arguments.report.record.file())
}

/// A note of a stage that is done.
fn told(stage: Stage, what: &str) {
    if !printer::is_quiet() {
        tell!("{stage}: {what}");
    }
}

/// A number of tokens in words.
fn tokens(count: usize) -> String {
    with_noun(count, "token")
}
