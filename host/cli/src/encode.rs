//! `tilewright encode`: a picture to a latent's file, and what was decided to tables.

mod latent_file;
mod picture;

use std::path::{Path, PathBuf};

use tch::Tensor;
use tilewright_engine::{EncodeJob, Machine, Overrides, Probe, Vae};

use crate::{
    args::Encode,
    decode::SHARE_OF_FREE,
    failure::{Failure, Outcome},
    history::Trials,
    policy,
    progress::Progress,
    report::{appended, keep, print_json, report},
};
use latent_file::{Kind, LatentFile};

/// Encodes as asked.
pub fn run(arguments: &Encode) -> Outcome {
    // Everything that can be wrong with the arguments comes before anything that takes time.
    let mut planner = policy::configured(&arguments.policy, &arguments.set)?;
    let path = arguments.output.clone().unwrap_or_else(|| default_output(&arguments.picture));
    let output = LatentFile::new(&path)?;
    if !arguments.dry_run {
        output.check()?;
    }
    if let Some(path) = &arguments.record {
        appended(path).map_err(|error| Failure::input(format!("{}: can't be written: {error}", path.display())))?;
    }
    let overrides =
        Overrides { family: arguments.family, scaling: arguments.scaling_factor, shift: arguments.shift_factor };
    let vae = Vae::open(&arguments.vae, overrides)?;
    let (config, _) = vae.encoding()?;
    let scaling = match (arguments.scaled, output.kind) {
        (false, _) => None,
        (true, Kind::ComfyUi) => {
            return Err(Failure::input(format!(
                "{}: a ComfyUI latent carries no scaling: leave --scaled out, or write .safetensors",
                path.display()
            )));
        }
        (true, Kind::Safetensors) => Some(vae.scaling().ok_or_else(|| {
            Failure::input(format!(
                "{}: no scaling is known of this VAE: give --family, or --scaling-factor",
                arguments.vae.display()
            ))
        })?),
    };
    if let Some(threads) = arguments.threads {
        tilewright_torch::set_threads(threads);
    }
    let device = Machine::find(arguments.device)?;
    let picture = picture::read(&arguments.picture)?;
    let picture = cropped(picture, i64::from(config.spatial_scale()), &arguments.picture)?;
    let machine = device.measured(Probe::Kept)?;
    let limit = arguments.memory_limit.unwrap_or((machine.facts.free_bytes as f64 * SHARE_OF_FREE) as u64);
    let job = EncodeJob::new(&machine, &vae, &picture, limit, arguments.objective.into())?;
    let mut history = if arguments.no_history { Trials::none() } else { Trials::of(&machine, arguments.dry_run) };
    let before = history.before(job.request());
    let job = job.with_history(&before);

    let shown = (arguments.json, arguments.explain);
    if arguments.dry_run {
        let (record, candidates) = job.decide(planner.as_mut());
        return report(shown, &record, &candidates, &[]);
    }
    let mut progress = Progress::new();
    let encoded = job.run(planner.as_mut(), &mut progress);
    progress.finish();
    let encoded = encoded.or_else(|unfinished| {
        if let Some(record) = &unfinished.record {
            // What the user ended says nothing of the plan.
            if !matches!(unfinished.error, tilewright_engine::Error::Interrupted) {
                history.keep(record);
            }
            keep(arguments.record.as_deref(), record)?;
            if arguments.json {
                print_json(record)?;
            }
        }
        Err(Failure::from(unfinished.error))
    })?;
    history.keep(&encoded.record);
    let latents = match scaling {
        Some(scaling) => scaling.apply(&encoded.latents)?,
        None => encoded.latents,
    };
    output.write(&latents, &encoded.record)?;
    keep(arguments.record.as_deref(), &encoded.record)?;
    report(shown, &encoded.record, &encoded.candidates, &[path])
}

fn default_output(picture: &Path) -> PathBuf {
    Path::new(picture.file_stem().unwrap_or(picture.as_os_str())).with_extension("latent")
}

/// The middle of a picture [1, C, H, W] whose sides are multiples of `scale`, and a note where that is not all of it. The same pixels as ComfyUI takes
/// (comfyanonymous/ComfyUI, comfy/sd.py, `vae_encode_crop_pixels`).
fn cropped(picture: Tensor, scale: i64, path: &Path) -> Outcome<Tensor> {
    let size = picture.size();
    let (height, width) = (size[2], size[3]);
    let (tall, wide) = (height - height % scale, width - width % scale);
    if tall == 0 || wide == 0 {
        return Err(Failure::input(format!(
            "{}: {width}×{height} pixels are less than the {scale}×{scale} that one latent pixel stands for",
            path.display()
        )));
    }
    if (tall, wide) == (height, width) {
        return Ok(picture);
    }
    eprintln!(
        "note: {width}×{height} is cropped to {wide}×{tall}: the sides of what is encoded are multiples of {scale}"
    );
    let crop = || -> Result<Tensor, tch::TchError> {
        picture.f_narrow(2, (height % scale) / 2, tall)?.f_narrow(3, (width % scale) / 2, wide)?.f_contiguous()
    };
    Ok(crop().map_err(tilewright_torch::Error::from)?)
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    #[test]
    fn crops_keep_the_middle() {
        let crop = |height: i64, width: i64| {
            let picture = Tensor::arange(height * width, (Kind::Float, tch::Device::Cpu)).view([1, 1, height, width]);
            cropped(picture, 8, Path::new("x.png"))
        };
        let first = |tensor: &Tensor| tensor.double_value(&[0, 0, 0, 0]);
        for (height, width, size, starts) in [
            (16, 24, [16, 24], (0, 0)),
            (17, 31, [16, 24], (0, 3)),
            (23, 25, [16, 24], (3, 0)),
            (8, 15, [8, 8], (0, 3)),
        ] {
            let found = crop(height, width).unwrap();
            assert_eq!(found.size()[2..], size);
            assert_eq!(first(&found), (starts.0 * width + starts.1) as f64, "{height}×{width}");
        }
        assert!(matches!(crop(7, 64), Err(Failure::Input(_))));
    }
}
