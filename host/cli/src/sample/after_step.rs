//! The work after each finished step of a sample: it is kept, and shown.

use std::{path::Path, rc::Rc};

use tilewright_engine::{Error, Machine, Overrides};
use tilewright_media::Preview;
use tilewright_pipeline::{KeptSample, LatentMap, Model, SampleModel};

use crate::{args::PolicyGrants, failure::Outcome, model, policy, progress::AfterStep, tell::tell};

/// The policy that decides the decode that a preview's colours are fitted to.
const POLICY: &str = "adaptive";

/// A preview, and the map that its colours come from.
pub struct Previewing {
    map: LatentMap,
    preview: Preview,
}

impl Previewing {
    /// Fits the colours to a VAE, within a memory limit; none, with a warning, if that fails.
    ///
    /// # Errors
    /// The VAE can't be read, or is of another model.
    pub fn new(
        preview: Preview,
        machine: &Machine,
        transformer: &SampleModel,
        vae: &Path,
        limit: u64,
    ) -> Outcome<Option<Self>> {
        let path = model::find(vae)?;
        let vae = Model::open(&path, Overrides::default())?;
        let mut planner = policy::verify_and_load(&policy::host(PolicyGrants::default())?, POLICY, &[])?.policy;
        LatentMap::check(transformer, (&vae, &path))?;
        // A sample is worth more than its preview.
        Ok(match LatentMap::fit(machine, transformer, (&vae, &path), &mut planner, limit) {
            Ok(map) => Some(Self { map, preview }),
            Err(error) => {
                tell!("warning: no preview, since its colours can't be fitted: {error}");
                None
            }
        })
    }
}

/// Keeps each finished step in a place, and shows it.
pub fn after_step(kept: Option<Rc<KeptSample>>, mut previewing: Option<Previewing>) -> Option<AfterStep> {
    if kept.is_none() && previewing.is_none() {
        return None;
    }
    Some(Box::new(move |step| {
        if let Some(kept) = &kept {
            let kept = kept.keep(step.state, step.plan);
            kept.map_err(|error| Error::Sink(error.to_string().into()))?;
        }
        if let (Some(Previewing { map, preview }), Some(denoised)) = (&previewing, step.denoised) {
            let shown = map.picture(denoised).and_then(|frame| Ok(preview.show(&frame, &Vec::new())?));
            // A sample is worth more than its preview.
            if let Err(error) = shown {
                tell!("warning: {error}: no further preview is written");
                previewing = None;
            }
        }
        Ok(())
    }))
}
