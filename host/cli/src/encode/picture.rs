//! Pictures.

use tilewright_engine::{EncodeJob, Overrides, Vae};
use tilewright_plan::Recorder;

use super::{Plan, limit, scaling, source::Source, texts, unfinished};
use crate::{
    args::Encode,
    batch::Work,
    failure::{Failure, Outcome},
    inputs::Input,
    policy,
    progress::Progress,
    report::{keep, report},
    workplace::Workplace,
};

/// Encodes with an image VAE, whose weights stay loaded.
pub struct Pictures<'a> {
    arguments: &'a Encode,
    plan: &'a Plan<'a>,
    progress: Option<Progress>,
    planner: Recorder,
    vae: Vae,
    workplace: Workplace,
}

impl<'a> Pictures<'a> {
    /// Checks all arguments before any step that takes time.
    pub fn open(arguments: &'a Encode, plan: &'a Plan<'a>, inputs: &[Input]) -> Outcome<Self> {
        let planner = policy::configured(&arguments.policy, &arguments.set, arguments.grants, &arguments.record)?;
        inputs.iter().try_for_each(|input| plan.output(input).map(drop))?;
        let overrides =
            Overrides { family: arguments.family, scaling: arguments.scaling_factor, shift: arguments.shift_factor };
        let vae = Vae::open(&arguments.vae, overrides)?;
        let workplace = Workplace::find(arguments.device, arguments.no_history, arguments.dry_run)?;
        Ok(Self { arguments, plan, progress: None, planner, vae, workplace })
    }
}

impl Work for Pictures<'_> {
    fn work(&mut self, input: &Input) -> Outcome {
        let Self { arguments, plan, progress, planner, vae, workplace } = self;
        let output = plan.output(input)?;
        let (config, _) = vae.encoding()?;
        let scaling = scaling(arguments, &output, vae.scaling(), "give --family, or --scaling-factor")?;
        let mut source = Source::open(&input.path, arguments.frames)?;
        if source.frames() > 1 {
            return Err(Failure::input(format!(
                "{}: {} frames, and this VAE encodes pictures: give a video VAE, or one frame of it with --frames 1",
                input.shown,
                source.frames()
            )));
        }
        source.crop(config.spatial_scale())?;
        let pictures = source.next(u32::try_from(source.samples()).unwrap_or(u32::MAX))?;
        source.say_notes();
        let (machine, history) = workplace.ready()?;
        let job = EncodeJob::new(machine, vae, &pictures, limit(arguments, machine), arguments.objective.into())?;
        let before = history.before(job.stage(), job.request());
        let job = job.with_history(&before);
        if arguments.dry_run {
            let (record, candidates) = job.decide(planner);
            keep(&arguments.record, &record, planner)?;
            return report(plan.shown, &record, &candidates, &[]);
        }
        let progress = progress.get_or_insert_with(Progress::new);
        progress.resume();
        let encoded = job.run(planner, progress);
        progress.finish();
        let encoded = encoded.map_err(|stopped| unfinished(arguments, plan.shown, history, planner, stopped))?;
        history.keep(&encoded.record);
        let latents = match scaling {
            Some(scaling) => scaling.apply(&encoded.output)?,
            None => encoded.output,
        };
        let path = output.write(&latents, &texts(input), &encoded.record)?;
        plan.keep_name(&path);
        keep(&arguments.record, &encoded.record, planner)?;
        report(plan.shown, &encoded.record, &encoded.candidates, &[path])
    }
}
