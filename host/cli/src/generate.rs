//! `tilewright generate`: from a prompt to a picture or clip, stage by stage.

mod conditioning;
mod dry_run;
mod image;
mod like;
mod pictures;
mod policies;
mod report;

use std::path::{Path, PathBuf};

use tilewright_engine::{DenoiseJob, Overrides, Sampled};
use tilewright_media::{Format, Output, Preview, Rate, STANDARD, Shape};
use tilewright_models::Extents;
use tilewright_outputs::Roles;
use tilewright_pipeline::{
    self as pipeline, LatentMap, LatentOutput, Model, Parts, PromptRequest, SampleModel, SampleRequest, Size, Steps,
    Workflow,
};
use tilewright_plan::{Denoise, Loss, Recorder, Stage, Text, words::with_noun};
use tilewright_sampling::{Convention, Span};

use self::{
    conditioning::Conditionings,
    image::Beginning,
    like::Recipe,
    pictures::decode,
    report::{Memory, Report},
};
use crate::{
    args::Generate,
    embed::check_embeddings,
    failure::{Failure, Outcome},
    files, history, model, printer,
    report::{Shown, fail, keep},
    sample::work::{Resumption, SampleWork},
    tell::tell,
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
    if let Some(path) = arguments.like.clone() {
        Recipe::fill(&mut arguments, &path)?;
    }
    let arguments = &arguments;
    if arguments.output.as_os_str() == STANDARD {
        return Err(Failure::input("-o -: a picture of a prompt is written to a file: give its name"));
    }
    let parts = Parts {
        text_encoders: arguments.text_encoder.clone(),
        transformers: arguments.transformer.clone(),
        vision_encoder: arguments.vision_encoder.clone(),
        vae: arguments.vae.clone(),
        text_tokens: arguments.text_tokens,
    };
    let wants_clip = arguments.frames.is_some() || Format::is_of_clips(&arguments.output);
    let (parts, found) = parts.find(arguments.model.as_deref(), &arguments.folders.models, wants_clip)?;
    if !printer::is_quiet() {
        found.iter().for_each(|line| tell!("{line}"));
    }
    let vae_path = model::find(parts.check()?)?;
    let roles = check_files(arguments, &parts)?;
    arguments.record.check()?;
    let preview = arguments.preview.as_deref().map(Preview::new).transpose()?;
    let keep_latent = arguments.keep.as_deref().map(|path| LatentOutput::new(path, None, false, false)).transpose()?;
    if let Some(threads) = arguments.threads {
        tilewright_torch::set_threads(threads);
    }
    let mut reading: Recorder<Text> = policies::configure(arguments, Stage::Text)?;
    let mut planner: Recorder<Denoise> = policies::configure(arguments, Stage::Denoise)?;
    let mut decoding: Recorder = policies::configure(arguments, Stage::Decode)?;
    let mut encoding: Recorder = policies::configure(arguments, Stage::Encode)?;
    let mut transformer = SampleModel::open(&parts.transformers, arguments.boundary)?;
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
    let mut session = history::session(arguments.device, arguments.no_history, arguments.dry_run)?;
    let (machine, trials) = session.ready()?;
    let limit = arguments.memory_limit.unwrap_or_else(|| pipeline::default_limit(machine));
    let shown = Shown { json: arguments.json, explain: arguments.explain, several: false, aside: false };

    let cfg = arguments.cfg.unwrap_or_else(|| transformer.usual_cfg());
    let prompts = conditioning::read_prompts(arguments, cfg != 1.0)?;
    check_embeddings(&prompts, arguments.embeddings.is_some(), arguments.way.convention.unwrap_or_default())?;
    let host = std::cell::OnceCell::new();
    let wish = conditioning::Wish { arguments, parts: &parts, machine, memory_limit: limit, prompts, host };
    let beginning = arguments.image.as_ref().map(|_| Beginning::of(&transformer, arguments)).transpose()?;
    let size = match (&arguments.image, beginning) {
        (Some(_), Some(Beginning::Latent)) if arguments.size.is_some() => {
            return Err(Failure::input("--size: a picture of --image has its size: leave one of them out"));
        }
        (Some(path), Some(Beginning::Latent)) => image::size(path, &vae)?,
        _ => arguments.size.unwrap_or_else(|| transformer.usual_size()),
    };
    if arguments.dry_run {
        let planners = (&mut reading, &mut planner, &mut decoding);
        return dry_run::dry_run(&wish, &transformer, &vae, size, trials, planners, |conditionings| {
            request(arguments, &transformer, conditionings, size, None, cfg)
        });
    }
    // Refused before encoders run.
    let [width, height] = size;
    let frames = arguments.frames.unwrap_or_else(|| transformer.usual_frames());
    transformer.check_size(Size { width, height, frames })?;
    transformer.check_guidance(arguments.way.guidance)?;
    let one = vae.shape_of(extents(&[1, 1, 1, 1]));
    output.check(&Shape { frames: frames as usize, width, height, ..one })?;
    roles.clone().occupies("-o", &arguments.output).check()?;
    let rate = pictures::rate(arguments, &vae)?;
    let mut memory = Memory::new(machine.device);
    memory.begins(Stage::Text)?;
    let mut conditionings = Conditionings::make(&wish, &transformer, trials, &mut reading)?;
    let image = match (&arguments.image, beginning) {
        (Some(path), Some(way)) => {
            let size = [width, height, frames];
            let (parts, memory_limit) = (&parts, limit);
            let (vae, model) = (&vae, &transformer);
            let text = &wish;
            memory.begins(Stage::Encode)?;
            let wish = image::Wish { arguments, parts, machine, vae, model, memory_limit, text, size };
            Some(wish.encode(way, path, &mut conditionings, trials, (&mut encoding, &mut reading))?)
        }
        _ => None,
    };
    let begun = image.as_ref().and_then(|image| image.latent.as_deref());
    let mut request = request(arguments, &transformer, &conditionings, size, begun, cfg);
    if let Some(mask) = image.as_ref().and_then(|image| image.mask.clone()) {
        request.mask = Some(mask);
    }
    let sampling = transformer.prepare(&request)?;
    let shape = vae.shape_of(extents(&sampling.latents.size()));
    output.check(&shape)?;
    output.files(&shape).iter().fold(roles, |roles, file| roles.occupies("-o", file)).check()?;

    let job = DenoiseJob::new(machine, &transformer.denoiser, &sampling, limit, arguments.objective.into())?;
    let before = trials.before(Stage::Denoise, job.request());
    let job = job.with_history(&before);
    let preview = preview.map(|preview| (preview, vae_path.as_path()));
    let work = SampleWork { model: &transformer, machine, job, sampling: &sampling, memory_limit: limit, preview };
    let mut resumption = match arguments.resume {
        true => Resumption::open(&arguments.output, &work, &arguments.lora, &arguments.set)?,
        false => Resumption::default(),
    };
    let quiet = Shown { json: false, ..shown };
    memory.begins(Stage::Denoise)?;
    let sampled = match work.run(&mut planner, &mut resumption)? {
        Ok(sampled) => sampled,
        Err(unfinished) => return Err(fail(&arguments.record, quiet, trials, &mut planner, unfinished)),
    };
    if sampled.record.resumed_frames == 0 {
        trials.keep(&sampled.record);
    }
    keep(&arguments.record, &sampled.record, &mut planner)?;
    let mut outputs = Vec::new();
    if let Some(place) = &keep_latent {
        outputs.push(transformer.write(place, &sampled)?);
    }
    let Sampled { latents, record, candidates, .. } = sampled;
    let latents = transformer.to_vae(&latents)?;
    let recipe = Recipe::new(arguments, (&wish.prompts, parts.text_tokens), &request, size, &record);
    let parameters = report::parameters(&wish.prompts, &request, shape, &record);
    let workflow = Workflow {
        parts: &parts,
        loras: &arguments.lora,
        prompts: &wish.prompts,
        model: &transformer,
        request: &request,
        sampling: &sampling,
        size: [size[0], size[1], frames],
        rate: rate.map(Rate::per_second),
        image: arguments.image.as_deref(),
        mask: arguments.mask.as_deref(),
    };
    // ComfyUI and A1111 take the first text that they know.
    let mut texts = workflow.texts();
    texts.extend([("parameters".to_owned(), parameters), recipe.text()?]);
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
        memory,
        text: &conditionings,
        encode,
        denoise: (&record, &candidates),
        decode: &decoded,
        outputs: &outputs,
    }
    .show(shown)
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
    files::check_file(roles, "--record", arguments.record.file())
}

fn request(
    arguments: &Generate,
    model: &SampleModel,
    conditionings: &Conditionings,
    [width, height]: [u32; 2],
    latent: Option<&Path>,
    cfg: f64,
) -> SampleRequest {
    let way = &arguments.way;
    let frames = arguments.frames.unwrap_or_else(|| model.usual_frames());
    let prompt = |path: &PathBuf| PromptRequest { path: path.clone(), within: None };
    let convention = way.convention.unwrap_or_default();
    let usual_sampler = || if convention == Convention::ComfyUi { model.usual_sampler() } else { None };
    SampleRequest {
        conditioning: vec![prompt(&conditionings.positive)],
        negative: conditionings.negative.iter().map(prompt).collect(),
        size: latent.is_none().then_some(Size { width, height, frames }),
        latent: latent.map(Path::to_owned),
        noise: None,
        batch: arguments.batch,
        mask: latent.and(arguments.mask.clone()),
        seeds: if arguments.seed.is_empty() { vec![0] } else { arguments.seed.clone() },
        steps: match &way.sigmas {
            Some(sigmas) => Steps::Sigmas(sigmas.0.clone()),
            None => Steps::Count {
                steps: way.steps,
                strength: arguments.denoise.filter(|_| latent.is_some()).unwrap_or(1.0),
                scheduler: way.scheduler,
                span: Span::default(),
            },
        },
        shift: way.shift,
        sampler: way.sampler.or_else(usual_sampler),
        adds_noise: true,
        guidance: way.guidance,
        cfg,
        reuse: arguments.reuse,
        convention,
        most_values: SampleRequest::MOST_VALUES,
        most_samples: u64::MAX,
    }
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
