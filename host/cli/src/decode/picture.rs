//! Pictures.

use std::path::{Path, PathBuf};

use tilewright_decode::{RECORD_KEYWORD, frames, texts, unscale};
use tilewright_engine::{Job, Machine, Overrides, Probe, Vae};
use tilewright_media::{Format, Kind, Output, Pixels};
use tilewright_models::Latent;

use super::limit;
use crate::{
    args::Decode,
    failure::{Failure, Outcome},
    history::Trials,
    overlay, policy,
    progress::Progress,
    report::{keep, print_json, report},
};

/// Decodes with an image VAE.
pub fn run(arguments: &Decode) -> Outcome {
    let mut progress = Progress::new();
    // Everything that can be wrong with the arguments comes before anything that takes time.
    let mut planner = policy::configured(&arguments.policy, &arguments.set, arguments.grants, &arguments.record)?;
    arguments.clip.refused_for_pictures()?;
    let path = arguments.output.clone().unwrap_or_else(|| default_output(&arguments.latent));
    let output = if arguments.dry_run { None } else { Some(Output::new(&path, Kind::Picture)?) };
    let drawing = drawing(arguments)?;
    let overrides =
        Overrides { family: arguments.family, scaling: arguments.scaling_factor, shift: arguments.shift_factor };
    let vae = Vae::open(&arguments.vae, overrides)?;
    let device = Machine::find(arguments.device)?;
    let mut latent = Latent::read(&arguments.latent, arguments.tensor.as_deref())?;
    vae.check(&latent)?;
    if arguments.scaled {
        unscale(&mut latent, vae.scaling(), &arguments.vae, "give --family, or --scaling-factor")?;
    }
    let machine = device.measured(Probe::Kept)?;
    let latents = latent.pictures()?;
    let job = Job::new(&machine, &vae, &latents, limit(arguments, &machine), arguments.objective.into())?;
    let mut history = if arguments.no_history { Trials::none() } else { Trials::of(&machine, arguments.dry_run) };
    let before = history.before(job.request());
    let job = job.with_history(&before);

    if arguments.dry_run {
        let (record, candidates) = job.decide(&mut planner);
        keep(&arguments.record, &record, &mut planner)?;
        return report((arguments.json, arguments.explain), &record, &candidates, &[]);
    }
    let finished = job.run(&mut planner, &mut progress);
    progress.finish();
    let finished = finished.or_else(|unfinished| {
        if let Some(record) = &unfinished.record {
            // What the user ended says nothing of the plan.
            if !matches!(unfinished.error, tilewright_engine::Error::Interrupted) {
                history.keep(record);
            }
            keep(&arguments.record, record, &mut planner)?;
            if arguments.json {
                print_json(record)?;
            }
        }
        Err(Failure::from(unfinished.error))
    })?;
    history.keep(&finished.record);
    let mut texts = texts(&latent);
    texts.push((RECORD_KEYWORD.into(), serde_json::to_string(&finished.record).map_err(Failure::work)?));
    let pictures = frames(&finished.pictures)?;
    let mut files = match &output {
        Some(output) => output.write(&pictures, &texts)?,
        None => Vec::new(),
    };
    if let (Some(drawing), Some(path), Some(picture)) = (drawing, &arguments.explain_image, pictures.first()) {
        let mut pixels = Pixels::from(picture);
        overlay::draw(&mut pixels, &finished.record.plan.space);
        drawing.write_pixels(&pixels)?;
        files.push(path.clone());
    }
    keep(&arguments.record, &finished.record, &mut planner)?;
    report((arguments.json, arguments.explain), &finished.record, &finished.candidates, &files)
}

/// Where the tiles are drawn, where the user wants to see them.
pub fn drawing(arguments: &Decode) -> Outcome<Option<Output>> {
    let path = arguments.explain_image.as_deref().filter(|_| !arguments.dry_run);
    let drawing = path.map(|path| Output::new(path, Kind::Picture)).transpose()?;
    if drawing.as_ref().is_some_and(|drawing| drawing.format == Format::Safetensors) {
        return Err(Failure::input("--explain-image: a picture is drawn: expected .png, .jpg or .webp"));
    }
    Ok(drawing)
}

fn default_output(latent: &Path) -> PathBuf {
    Path::new(latent.file_stem().unwrap_or(latent.as_os_str())).with_extension("png")
}
