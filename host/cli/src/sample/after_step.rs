//! The work after each finished step of a sample: it is kept, and shown.

use std::{cell::RefCell, path::Path, rc::Rc};

use tilewright_engine::{Error, Machine, Overrides};
use tilewright_media::Preview;
use tilewright_pipeline::{LatentMap, Model, PacedSteps, SampleModel};

use crate::{args::PolicyGrants, failure::Outcome, model, policy, progress::AfterStep, signals, tell::tell};

/// The policy that decides the decode that a preview's colours are fitted to.
const POLICY: &str = "adaptive";

/// Advice about steps that are kept.
const GOING_ON: &str = "the same command goes on from them, and deleting the folder gives them up";

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

/// Keeps finished steps in a place, and shows each.
pub fn after_step(kept: Option<Rc<RefCell<PacedSteps>>>, mut previewing: Option<Previewing>) -> Option<AfterStep> {
    if kept.is_none() && previewing.is_none() {
        return None;
    }
    Some(Box::new(move |step| {
        if let Some(kept) = &kept {
            let mut kept = kept.borrow_mut();
            kept.keep(step.state, step.plan).map_err(|error| Error::Sink(error.to_string().into()))?;
            signals::advise(format!("steps are kept in {}: {GOING_ON}", kept.folder().display()));
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
