//! The work on one sample, with steps that are kept and shown.

use std::{cell::RefCell, path::Path, rc::Rc};

use tilewright_engine::{Begun, DenoiseJob, Finished, Machine, Sampled, Sampling, Unfinished};
use tilewright_media::Preview;
use tilewright_pipeline::{KeptSample, PacedSteps, SampleModel};
use tilewright_plan::{Denoise, Recorder};

use super::after_step::{Previewing, after_step};
use crate::{failure::Outcome, progress::Progress, signals, tell::tell};

/// The settings that change a sample's bits: with --resume, an earlier run's are the same.
const OF_BITS: [&str; 7] = ["precision", "products", "attention", "guidance", "samples", "feed-forward", "reuse"];

/// A sample that is about to begin.
pub struct SampleWork<'a> {
    pub model: &'a SampleModel,
    pub machine: &'a Machine,
    pub job: DenoiseJob<'a>,
    pub sampling: &'a Sampling,
    pub memory_limit: u64,
    /// A PNG of the sample so far, and the VAE that its colours are fitted to.
    pub preview: Option<(Preview, &'a Path)>,
}

/// The place beside an output in which finished steps are kept, and what an earlier run left there.
#[derive(Default)]
pub struct Resumption {
    kept: Option<Rc<RefCell<PacedSteps>>>,
    begun: Option<Begun>,
}

impl Resumption {
    /// Opens the place beside an output.
    ///
    /// # Errors
    /// It can't be made, or is another sample's.
    pub fn open(output: &Path, work: &SampleWork<'_>, set: &[(String, String)]) -> Outcome<Self> {
        let chosen: Vec<(&str, &str)> = set.iter().filter_map(of_bits).collect();
        let fingerprint = work.model.fingerprint(work.sampling, &chosen)?;
        let (place, begun) = KeptSample::open(output, &fingerprint)?;
        if let Some(Begun { state, .. }) = &begun {
            tell!(
                "note: {} of {} steps are kept from an earlier run: it goes on after them",
                state.steps,
                work.job.request().steps
            );
        }
        Ok(Self { kept: Some(Rc::new(RefCell::new(PacedSteps::new(place)))), begun })
    }

    /// Removes the place, when the output is written.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(self) -> Outcome {
        if let Some(kept) = self.kept.and_then(Rc::into_inner) {
            kept.into_inner().remove()?;
        }
        signals::advise_nothing();
        Ok(())
    }
}

impl SampleWork<'_> {
    /// Samples.
    pub fn run(
        self,
        planner: &mut Recorder<Denoise>,
        resumption: &mut Resumption,
    ) -> Outcome<Result<Finished<Sampled, Denoise>, Unfinished<Denoise>>> {
        let Self { model, machine, job, memory_limit, preview, .. } = self;
        let previewing = preview.map(|(preview, vae)| Previewing::new(preview, machine, model, vae, memory_limit));
        let after_step = after_step(resumption.kept.clone(), previewing.transpose()?.flatten());
        if resumption.kept.is_none() && job.request().steps > 1 {
            signals::advise("no step is kept: with --resume, the same command goes on after the last one".to_owned());
        }
        let mut progress = Progress::new().of_steps(job.request().steps, after_step);
        let sampled = job.run(planner, resumption.begun.take(), &mut progress);
        progress.finish();
        if let (Err(_), Some(kept)) = (&sampled, &resumption.kept) {
            kept.borrow_mut().flush()?;
        }
        if sampled.is_ok() && resumption.kept.is_none() {
            signals::advise_nothing();
        }
        Ok(sampled)
    }
}

/// A setting that changes a sample's bits.
fn of_bits((name, value): &(String, String)) -> Option<(&str, &str)> {
    let name = name.strip_prefix("denoise.").unwrap_or(name);
    OF_BITS.contains(&name).then_some((name, value))
}
