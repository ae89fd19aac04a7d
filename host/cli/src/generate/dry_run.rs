//! The price of each stage, before anything is loaded.

use tilewright_pipeline::{SampleRequest, TextEncoders, TextPlanning, Trials};
use tilewright_plan::{Denoise, Planner, Recorder, Text};

use super::{
    conditioning::store,
    prices::Prices,
    report::{Report, Stages},
    studio::Studio,
};
use crate::failure::Outcome;

/// The planners of the stages, in their order.
type Planners<'p> = (&'p mut Recorder<Text>, &'p mut Recorder, &'p mut Recorder<Denoise>, &'p mut Recorder);

/// Says what each stage would take. All that does not fit is refused before.
pub fn dry_run(
    studio: &Studio<'_>,
    prices: &Prices<'_>,
    request: &SampleRequest,
    trials: &mut Trials,
    (reading, encoding, denoising, decoding): Planners<'_>,
) -> Outcome {
    let store = store();
    let stage = studio.find(store.as_ref(), reading.identity())?;
    let mut planning = TextPlanning { planner: reading, trials };
    let mut text = Vec::new();
    if !stage.is_kept() {
        let encoders = TextEncoders::open(&studio.parts.text_encoders)?;
        encoders.check(prices.outline.model)?;
        text = stage.decide(&encoders, studio.machines(), &mut planning)?;
    }
    if let Some(vision) = &prices.vision {
        text.push(vision.decide(studio.machines(), (studio.limit, studio.objective()), &mut planning)?);
    }
    let encode = prices.encode()?.map(|job| job.decide(encoding));
    let denoise = prices.denoise()?.decide(denoising);
    let settings = prices.outline.model.settings(request, &prices.outline.sample.shape.latents)?;
    let decode = prices.decode()?.decide(decoding);
    let stages = Stages { is_kept: stage.is_kept(), text, encode, denoise, decode };
    let shown = studio.arguments.report.shown(false, false);
    Report { settings: &settings, stages: &stages, memory: None, outputs: &[], limit: studio.limit }.show(shown)
}
