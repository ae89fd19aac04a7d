//! Pictures.

use tilewright_decode::{RECORD_KEYWORD, frames, texts, unscale};
use tilewright_engine::{DecodeJob, Overrides, Vae};
use tilewright_media::{Format, Kind, Options, Output, Pixels, Shape};
use tilewright_plan::Recorder;

use super::{PICTURE, Plan, limit, say_doubt};
use crate::{
    args::Decode,
    batch::Work,
    failure::{Failure, Outcome},
    inputs::Input,
    overlay, policy,
    progress::Progress,
    report::{keep, print_json, report},
    tell::tell,
    workplace::Workplace,
};

/// Decodes with an image VAE, whose weights stay loaded.
pub struct Pictures<'a> {
    arguments: &'a Decode,
    plan: &'a Plan,
    progress: Progress,
    planner: Recorder,
    drawing: Option<Output>,
    vae: Vae,
    workplace: Workplace,
}

impl<'a> Pictures<'a> {
    /// Checks all arguments before any step that takes time.
    pub fn open(arguments: &'a Decode, plan: &'a Plan, inputs: &[Input]) -> Outcome<Self> {
        let progress = Progress::new();
        let planner = policy::configured(&arguments.policy, &arguments.set, arguments.grants, &arguments.record)?;
        arguments.clip.refused_for_pictures()?;
        inputs.iter().try_for_each(|input| plan.output(input, Kind::Picture, PICTURE).map(drop))?;
        let drawing = drawing(arguments, plan)?;
        let overrides =
            Overrides { family: arguments.family, scaling: arguments.scaling_factor, shift: arguments.shift_factor };
        let vae = Vae::open(&arguments.vae, overrides)?;
        let workplace = Workplace::find(arguments.device, arguments.no_history, arguments.dry_run)?;
        Ok(Self { arguments, plan, progress, planner, drawing, vae, workplace })
    }
}

impl Work for Pictures<'_> {
    fn work(&mut self, input: &Input) -> Outcome {
        let Self { arguments, plan, progress, planner, drawing, vae, workplace } = self;
        progress.resume();
        let output = plan.output(input, Kind::Picture, PICTURE)?;
        let mut latent = vae.latent(&input.path, arguments.tensor.as_deref())?;
        say_doubt(&input.shown, &latent, vae.families(), vae.scaling().as_ref(), arguments.scaled)?;
        if arguments.scaled {
            unscale(&mut latent, vae.scaling(), &arguments.vae, "give --family, or --scaling-factor")?;
        }
        let latents = latent.pictures()?;
        let (extents, scale) = (latent.extents(), vae.config.spatial_scale());
        let shape = Shape {
            samples: extents.samples as usize,
            frames: 1,
            width: extents.width * scale,
            height: extents.height * scale,
            channels: vae.config.image_channels,
        };
        plan.check(&output, &shape)?;
        let (machine, history) = workplace.ready()?;
        let job = DecodeJob::new(machine, vae, &latents, limit(arguments, machine), arguments.objective.into())?;
        let before = history.before(job.stage(), job.request());
        let job = job.with_history(&before);
        if arguments.dry_run {
            let (record, candidates) = job.decide(planner);
            plan.keep_names(&output, &shape);
            keep(&arguments.record, &record, planner)?;
            return report(plan.shown, &record, &candidates, &[]);
        }
        let finished = job.run(planner, progress);
        progress.finish();
        let finished = finished.or_else(|unfinished| {
            if let Some(record) = &unfinished.record {
                // A run that the user ended says nothing about the plan.
                if !matches!(unfinished.error, tilewright_engine::Error::Interrupted) {
                    history.keep(record);
                }
                keep(&arguments.record, record, planner)?;
                if arguments.json {
                    print_json(plan.shown, record, &[])?;
                }
            }
            Err(Failure::from(unfinished.error))
        })?;
        history.keep(&finished.record);
        let mut texts = texts(&latent);
        texts.push((RECORD_KEYWORD.into(), serde_json::to_string(&finished.record).map_err(Failure::work)?));
        output.notes(&texts).iter().for_each(|note| tell!("note: {note}"));
        let pictures = frames(&finished.output)?;
        let mut files = output.write(&pictures, &texts)?;
        plan.keep_names(&output, &shape);
        if let (Some(drawing), Some(picture)) = (drawing, pictures.first()) {
            let mut pixels = Pixels::from(picture);
            overlay::draw(&mut pixels, &finished.record.plan.space);
            drawing.write_pixels(&pixels)?;
            files.push(drawing.path().to_owned());
        }
        keep(&arguments.record, &finished.record, planner)?;
        report(plan.shown, &finished.record, &finished.candidates, &files)
    }
}

/// Where the tiles are drawn, where the user wants to see them.
pub fn drawing(arguments: &Decode, plan: &Plan) -> Outcome<Option<Output>> {
    let path = arguments.explain_image.as_deref();
    let drawing = path.map(|path| plan.checked(path, Kind::Picture, Options::default())).transpose()?;
    if drawing.as_ref().is_some_and(|drawing| drawing.format == Format::Safetensors) {
        return Err(Failure::input("--explain-image: a picture is drawn: expected .png, .jpg or .webp"));
    }
    Ok(drawing)
}
