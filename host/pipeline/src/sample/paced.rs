//! The steps of a sample, kept at most once a second: a quick model's steps would otherwise wait
//! for the disk, and nobody misses a second of work.

use std::time::{Duration, Instant};

use tilewright_engine::SampleState;
use tilewright_plan::DenoisePlan;

use super::KeptSample;
use crate::Result;

/// The time between two steps that are kept.
const INTERVAL: Duration = Duration::from_secs(1);

/// A clock.
type Clock = Box<dyn FnMut() -> Instant>;

/// The place of a sample's steps, and the newest step if it is still to be kept there.
pub struct PacedSteps {
    place: KeptSample,
    clock: Clock,
    last: Option<Instant>,
    waiting: Option<(SampleState, DenoisePlan)>,
}

impl std::fmt::Debug for PacedSteps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacedSteps").field("place", &self.place).finish_non_exhaustive()
    }
}

impl PacedSteps {
    /// Keeps steps in a place.
    pub fn new(place: KeptSample) -> Self {
        Self::with_clock(place, Box::new(Instant::now))
    }

    fn with_clock(place: KeptSample, clock: Clock) -> Self {
        Self { place, clock, last: None, waiting: None }
    }

    /// Keeps a finished step, or remembers it until [`Self::flush`] if another one was just kept.
    ///
    /// # Errors
    /// It can't be written; the one before is still there then.
    pub fn keep(&mut self, state: &SampleState, plan: &DenoisePlan) -> Result<()> {
        let now = (self.clock)();
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            // Samplers write to no latents: shared ones stay as they are.
            let shared = SampleState {
                latents: state.latents.shallow_clone(),
                steps: state.steps,
                history: state.history.iter().map(tch::Tensor::shallow_clone).collect(),
                numbers: state.numbers.clone(),
                draws: state.draws,
            };
            self.waiting = Some((shared, plan.clone()));
            return Ok(());
        }
        self.place.keep(state, plan)?;
        self.waiting = None;
        // The disk's own time does not count.
        self.last = Some((self.clock)());
        Ok(())
    }

    /// Keeps the newest step, if it is not kept yet: the sample is about to end without it.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub fn flush(&mut self) -> Result<()> {
        match self.waiting.take() {
            Some((state, plan)) => self.place.keep(&state, &plan),
            None => Ok(()),
        }
    }

    /// The folder of the place.
    pub fn folder(&self) -> &std::path::Path {
        self.place.folder()
    }

    /// Removes the place, when the sample is complete.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove(self) -> Result<()> {
        self.place.remove()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use tch::{Device, Kind};

    use super::*;

    fn state(steps: u32) -> SampleState {
        let options = (Kind::Float, Device::Cpu);
        let latents = tilewright_torch::scalar::full(&[1, 4, 2, 2], f64::from(steps), options).unwrap();
        SampleState { latents, steps, history: vec![], numbers: vec![], draws: 0 }
    }

    #[test]
    fn steps_are_kept_once_a_second_and_the_newest_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("out.latent");
        let (start, passed) = (Instant::now(), Rc::new(Cell::new(Duration::ZERO)));
        let clock = {
            let passed = passed.clone();
            Box::new(move || start + passed.get())
        };
        let (place, found) = KeptSample::open(&output, "f").unwrap();
        assert!(found.is_none());
        let mut paced = PacedSteps::with_clock(place, clock);
        let file = KeptSample::folder_of(&output).join("step.safetensors");
        let kept = || {
            let texts = safetensors::SafeTensors::read_metadata(&std::fs::read(&file).unwrap()).unwrap().1;
            let text = texts.metadata().as_ref().unwrap()["tilewright"].clone();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()["steps"].as_u64().unwrap()
        };
        for (millis, steps, on_disk) in
            [(0, 1, 1), (400, 2, 1), (999, 3, 1), (1000, 4, 4), (1999, 5, 4), (60_000, 6, 6)]
        {
            passed.set(Duration::from_millis(millis));
            paced.keep(&state(steps), &DenoisePlan::plain()).unwrap();
            assert_eq!(kept(), on_disk, "{millis} ms");
        }
        paced.keep(&state(7), &DenoisePlan::plain()).unwrap();
        assert_eq!(kept(), 6);
        paced.flush().unwrap();
        assert_eq!(kept(), 7);
        drop(paced);
        let (place, found) = KeptSample::open(&output, "f").unwrap();
        let state = found.unwrap().state;
        assert_eq!((state.steps, state.latents.double_value(&[0, 0, 0, 0])), (7, 7.0));
        place.remove().unwrap();
    }
}
