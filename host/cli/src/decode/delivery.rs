//! Where a clip's frames go as they are decoded: into the output, the journal that lets an interrupted decode go on, and the preview.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tch::Tensor;
use tilewright_decode::frame;
use tilewright_engine::Sink;
use tilewright_media::{ClipWriter, Frame, Journal, Preview, Texts};

use crate::{
    failure::{Failure, Outcome},
    tell::tell,
};

/// The output being written; taken away by whoever ends the program in the middle of it, so that nothing half-written stays behind.
#[derive(Clone, Default)]
pub struct Writing(Arc<Mutex<Option<ClipWriter>>>);

impl Writing {
    /// Begins the output.
    pub fn begin(&self, begin: impl FnOnce() -> Result<ClipWriter, tilewright_media::Error>) -> Outcome {
        let mut writing = self.lock();
        let writer = writing.insert(begin()?);
        writer.notes().iter().for_each(|note| tell!("note: {note}"));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<ClipWriter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the writer away; without it nothing more is written.
    pub fn take(&self) -> Option<ClipWriter> {
        self.lock().take()
    }

    /// Removes what is half-written, for good: whoever would write more waits until the program has ended.
    pub fn abandon(&self) {
        let mut writing = self.lock();
        drop(writing.take());
        mem::forget(writing);
    }
}

/// A decode's frames on their way out.
pub struct Delivery {
    pub writing: Writing,
    pub journal: Option<Journal>,
    pub preview: Option<Preview>,
    pub texts: Texts,
    /// The first frame of the first sample, once it is there.
    pub first: Option<Frame>,
    /// Frames of all samples that are out.
    pub delivered: usize,
}

impl Delivery {
    /// Feeds what an earlier decode left in the journal to the output.
    pub fn replay(&mut self, done: &[usize]) -> Outcome {
        let Some(journal) = &self.journal else { return Ok(()) };
        for (sample, &done) in done.iter().enumerate() {
            for place in 0..done {
                let frame = journal.frame(sample, place)?;
                let mut writing = self.writing.lock();
                let writer = writing.as_mut().ok_or_else(|| Failure::work("interrupted"))?;
                writer.frame(sample, place, &frame)?;
                self.delivered += 1;
                if (sample, place) == (0, 0) {
                    self.show(&frame)?;
                    self.first = Some(frame);
                }
            }
        }
        Ok(())
    }

    fn show(&self, frame: &Frame) -> Result<(), tilewright_media::Error> {
        match &self.preview {
            Some(preview) => preview.show(frame, &self.texts),
            None => Ok(()),
        }
    }
}

impl Sink for Delivery {
    fn frames(
        &mut self,
        sample: u32,
        first: u32,
        frames: &Tensor,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for index in 0..frames.size()[0] {
            let frame = frame(&frames.get(index))?;
            let (sample, place) = (sample as usize, first as usize + index as usize);
            // The journal first: what it holds can be written again, and not the other way round.
            if let Some(journal) = &mut self.journal {
                journal.append(sample, place, &frame)?;
            }
            // Held until the frame is shown, too: no half-written preview stays behind, either.
            let mut writing = self.writing.lock();
            let writer = writing.as_mut().ok_or("the program is being ended")?;
            writer.frame(sample, place, &frame)?;
            self.delivered += 1;
            if (sample, place) == (0, 0) {
                self.show(&frame)?;
                self.first = Some(frame);
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.commit()?;
        }
        Ok(())
    }
}
