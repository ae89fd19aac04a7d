//! Pictures.

use tilewright_engine::{EncodeJob, Machine, Overrides, Probe, Vae};

use super::{limit, output, scaling, source::Source, unfinished};
use crate::{
    args::Encode,
    failure::{Failure, Outcome},
    history::Trials,
    policy,
    progress::Progress,
    report::{keep, report},
};

/// Encodes with an image VAE.
pub fn run(arguments: &Encode) -> Outcome {
    // Everything that can be wrong with the arguments comes before anything that takes time.
    let mut planner = policy::configured(&arguments.policy, &arguments.set, arguments.grants)?;
    let (path, output) = output(arguments)?;
    let overrides =
        Overrides { family: arguments.family, scaling: arguments.scaling_factor, shift: arguments.shift_factor };
    let vae = Vae::open(&arguments.vae, overrides)?;
    let (config, _) = vae.encoding()?;
    let scaling = scaling(arguments, &output, vae.scaling(), "give --family, or --scaling-factor")?;
    let device = Machine::find(arguments.device)?;
    let mut source = Source::open(&arguments.input, arguments.frames)?;
    if source.frames() > 1 {
        return Err(Failure::input(format!(
            "{}: {} frames, and this VAE encodes pictures: give a video VAE, or one frame of it with --frames 1",
            arguments.input.display(),
            source.frames()
        )));
    }
    source.crop(config.spatial_scale())?;
    let pictures = source.next(u32::try_from(source.samples()).unwrap_or(u32::MAX))?;
    source.say_notes();
    let machine = device.measured(Probe::Kept)?;
    let job = EncodeJob::new(&machine, &vae, &pictures, limit(arguments, &machine), arguments.objective.into())?;
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
    let encoded = encoded.map_err(|stopped| unfinished(arguments, &mut history, stopped))?;
    history.keep(&encoded.record);
    let latents = match scaling {
        Some(scaling) => scaling.apply(&encoded.latents)?,
        None => encoded.latents,
    };
    output.write(&latents, &encoded.record)?;
    keep(arguments.record.as_deref(), &encoded.record)?;
    report(shown, &encoded.record, &encoded.candidates, &[path])
}
