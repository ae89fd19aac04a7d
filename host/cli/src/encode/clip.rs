//! Clips, and single pictures for video VAEs.

use tilewright_engine::{ClipEncodeJob, ClipExtents, Machine, Probe, VideoVae};

use super::{limit, output, scaling, source::Source, unfinished};
use crate::{
    args::Encode,
    failure::{Failure, Outcome},
    history::Trials,
    policy,
    progress::Progress,
    report::{keep, report},
};

/// Encodes with a video VAE.
pub fn run(arguments: &Encode) -> Outcome {
    // Everything that can be wrong with the arguments comes before anything that takes time.
    let mut planner = policy::configured(&arguments.policy, &arguments.set, arguments.grants)?;
    if arguments.family.is_some() || arguments.scaling_factor.is_some() || arguments.shift_factor.is_some() {
        return Err(Failure::input(
            "--family, --scaling-factor and --shift-factor are for image VAEs: a video VAE's scaling is one per channel, from its config.json or as published",
        ));
    }
    let (path, output) = output(arguments)?;
    let vae = VideoVae::open(&arguments.vae)?;
    let (config, _) = vae.encoding()?;
    let scaling = scaling(arguments, &output, vae.scaling(), "put its config.json beside it")?;
    let device = Machine::find(arguments.device)?;
    let mut source = Source::open(&arguments.input, arguments.frames)?;
    let refused = |reason: String| Err(Failure::input(format!("{}: {reason}", arguments.input.display())));
    if source.samples() > 1 {
        return refused(format!(
            "{} clips, and an encode takes one: save it alone, as [1, C, T, H, W]",
            source.samples()
        ));
    }
    if source.channels() != config.image_channels {
        return refused(format!("{} channels, the VAE takes {}", source.channels(), config.image_channels));
    }
    source.crop(config.spatial_scale())?;
    let temporal = config.temporal_scale();
    let frames = whole(source.frames(), temporal);
    if frames < source.frames() {
        eprintln!(
            "note: {} of {} frames are encoded: the first, and whole groups of {temporal}",
            frames,
            source.frames()
        );
    }
    let machine = device.measured(Probe::Kept)?;
    let (height, width) = source.size();
    let extents = ClipExtents { frames, height, width };
    let job = ClipEncodeJob::new(&machine, &vae, extents, limit(arguments, &machine), arguments.objective.into())?;
    let mut history = if arguments.no_history { Trials::none() } else { Trials::of(&machine, arguments.dry_run) };
    let before = history.before(job.request());
    let job = job.with_history(&before);

    let shown = (arguments.json, arguments.explain);
    if arguments.dry_run {
        let (record, candidates) = job.decide(planner.as_mut());
        return report(shown, &record, &candidates, &[]);
    }
    let mut progress = Progress::new();
    let encoded = job.run(planner.as_mut(), &mut progress, &mut |count| Ok(source.next(count)?));
    progress.finish();
    source.say_notes();
    let encoded = encoded.map_err(|stopped| unfinished(arguments, &mut history, stopped))?;
    if encoded.frames < frames {
        eprintln!("note: the clip ended early: {} of {frames} frames were encoded", encoded.frames);
    } else {
        history.keep(&encoded.record);
    }
    let latents = match scaling {
        Some(scaling) => scaling.apply(&encoded.latents)?,
        None => encoded.latents,
    };
    output.write(&latents, &encoded.record)?;
    keep(arguments.record.as_deref(), &encoded.record)?;
    report(shown, &encoded.record, &encoded.candidates, &[path])
}

/// As many frames as make whole latent frames, as diffusers has it: the first, and groups of `temporal`.
fn whole(frames: u32, temporal: u32) -> u32 {
    frames - frames.saturating_sub(1) % temporal.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_frames_are_left_out_where_they_make_no_latent_frame() {
        let found: Vec<u32> = (1..=10).map(|frames| whole(frames, 4)).collect();
        assert_eq!(found, [1, 1, 1, 1, 5, 5, 5, 5, 9, 9]);
        assert_eq!((whole(7, 1), whole(1, 0)), (7, 1));
    }
}
