//! Clips, and single pictures for video VAEs.

use tilewright_engine::{ClipEncodeJob, ClipExtents, Overrides, VideoVae};
use tilewright_plan::{Recorder, words::counted};

use super::{Plan, limit, scaling, source::Source, texts, unfinished};
use crate::{
    args::Encode,
    batch::Work,
    failure::{Failure, Outcome},
    inputs::Input,
    policy,
    progress::Progress,
    report::{keep, report},
    tell::tell,
    workplace::Workplace,
};

/// Encodes with a video VAE, whose weights stay loaded.
pub struct Clips<'a> {
    arguments: &'a Encode,
    plan: &'a Plan<'a>,
    progress: Option<Progress>,
    planner: Recorder,
    vae: VideoVae,
    workplace: Workplace,
}

impl<'a> Clips<'a> {
    /// Checks all arguments before any step that takes time.
    pub fn open(arguments: &'a Encode, plan: &'a Plan<'a>, inputs: &[Input]) -> Outcome<Self> {
        let planner = policy::configured(&arguments.policy, &arguments.set, arguments.grants, &arguments.record)?;
        if arguments.family.is_some() || arguments.scaling_factor.is_some() || arguments.shift_factor.is_some() {
            return Err(Failure::input(
                "--family, --scaling-factor and --shift-factor are for image VAEs: a video VAE's scaling is one per channel, from its config.json or as published",
            ));
        }
        inputs.iter().try_for_each(|input| plan.output(input).map(drop))?;
        let vae = VideoVae::open(&arguments.vae, Overrides::default())?;
        let workplace = Workplace::find(arguments.device, arguments.no_history, arguments.dry_run)?;
        Ok(Self { arguments, plan, progress: None, planner, vae, workplace })
    }
}

impl Work for Clips<'_> {
    fn work(&mut self, input: &Input) -> Outcome {
        let Self { arguments, plan, progress, planner, vae, workplace } = self;
        let output = plan.output(input)?;
        let (config, _) = vae.encoding()?;
        let scaling = scaling(arguments, &output, vae.scaling(), "put its config.json beside it")?;
        let mut source = Source::open(&input.path, arguments.frames)?;
        let refused = |reason: String| Err(Failure::input(format!("{}: {reason}", input.shown)));
        if source.samples() > 1 {
            return refused(format!(
                "{} clips, and an encode takes one: save it alone, as [1, C, T, H, W]",
                source.samples()
            ));
        }
        if source.channels() != config.image_channels {
            let channels = counted(source.channels() as u64, "channel");
            return refused(format!("{channels}, the VAE takes {}", config.image_channels));
        }
        source.crop(config.spatial_scale())?;
        let temporal = config.temporal_scale();
        let frames = whole(source.frames(), temporal);
        if frames < source.frames() {
            tell!(
                "note: {} of {} frames are encoded: the first, and whole groups of {temporal}",
                frames,
                source.frames()
            );
        }
        let (machine, history) = workplace.ready()?;
        let (height, width) = source.size();
        let extents = ClipExtents { frames, height, width };
        let job = ClipEncodeJob::new(machine, vae, extents, limit(arguments, machine), arguments.objective.into())?;
        let before = history.before(job.stage(), job.request());
        let job = job.with_history(&before);
        if arguments.dry_run {
            let (record, candidates) = job.decide(planner);
            keep(&arguments.record, &record, planner)?;
            return report(plan.shown, &record, &candidates, &[]);
        }
        let progress = progress.get_or_insert_with(Progress::new);
        progress.resume();
        let encoded = job.run(planner, progress, &mut |count| Ok(source.next(count)?));
        progress.finish();
        source.say_notes();
        let encoded = encoded.map_err(|stopped| unfinished(arguments, plan.shown, history, planner, stopped))?;
        if encoded.output.frames < frames {
            tell!("note: the clip ended early: {} of {frames} frames were encoded", encoded.output.frames);
        } else {
            history.keep(&encoded.record);
        }
        let latents = match scaling {
            Some(scaling) => scaling.apply(&encoded.output.latents)?,
            None => encoded.output.latents,
        };
        let path = output.write(&latents, &texts(input), &encoded.record)?;
        plan.keep_name(&path);
        keep(&arguments.record, &encoded.record, planner)?;
        report(plan.shown, &encoded.record, &encoded.candidates, &[path])
    }
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
