//! Where a clip's frames go as they are decoded: into the output, the journal that lets an interrupted decode go on, and the preview.

use std::{
    mem,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tch::Tensor;
use tilewright_decode::frame;
use tilewright_engine::Sink;
use tilewright_media::{ClipWriter, Frame, Journal, Preview, Texts};

use super::pinned::Pinned;

use crate::{
    failure::{Failure, Outcome},
    tell::tell,
};

/// Advice about frames that are kept.
const GOING_ON: &str = "--resume goes on from them, and deleting the folder gives them up";

/// The output being written; taken away by whoever ends the program in the middle of it, so that nothing half-written stays behind.
#[derive(Clone, Default)]
pub struct Writing(Arc<Mutex<Underway>>);

#[derive(Default)]
struct Underway {
    writer: Option<ClipWriter>,
    /// The journal's folder, if there is a journal.
    journal: Option<PathBuf>,
}

impl Writing {
    /// Begins the output; `journal` is the folder of its journal, if there is one.
    pub fn begin(
        &self,
        journal: Option<&Path>,
        begin: impl FnOnce() -> Result<ClipWriter, tilewright_media::Error>,
    ) -> Outcome {
        let mut underway = self.lock();
        underway.journal = journal.map(Path::to_owned);
        let writer = underway.writer.insert(begin()?);
        writer.notes().iter().for_each(|note| tell!("note: {note}"));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Underway> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the writer away; without it nothing more is written.
    pub fn take(&self) -> Option<ClipWriter> {
        mem::take(&mut *self.lock()).writer
    }

    /// Removes what is half-written, for good: whoever would write more waits until the program has ended.
    pub fn abandon(&self) {
        let mut underway = self.lock();
        drop(underway.writer.take());
        if let Some(folder) = underway.journal.take() {
            if Journal::is_begun(&folder) {
                tell!("note: finished frames are kept in {}: {GOING_ON}", folder.display());
            } else {
                // A journal that can't be removed is told of by the next decode.
                let _ = Pinned::forget(&folder);
                let _ = Journal::sweep(&folder);
            }
        }
        mem::forget(underway);
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
}

impl Delivery {
    /// Feeds what an earlier decode left in the journal to the output.
    pub fn replay(&mut self, done: &[usize]) -> Outcome {
        let Some(journal) = &self.journal else { return Ok(()) };
        for (sample, &done) in done.iter().enumerate() {
            for place in 0..done {
                let frame = journal.frame(sample, place)?;
                let mut underway = self.writing.lock();
                let writer = underway.writer.as_mut().ok_or_else(|| Failure::work("interrupted"))?;
                writer.frame(sample, place, &frame)?;
                if (sample, place) == (0, 0) {
                    self.show(&frame)?;
                    self.first = Some(frame);
                }
            }
        }
        Ok(())
    }

    /// The failure of a decode that has not come to its end, with what is kept of it: a
    /// half-written output is removed, and so is a journal without a frame to go on from. `frames`
    /// are those of the whole clip.
    pub fn left(&mut self, failure: Failure, frames: usize) -> Failure {
        drop(self.writing.take());
        let Some(journal) = self.journal.take() else { return failure };
        let folder = journal.folder().to_owned();
        match journal.resumable_frames() {
            0 => match Pinned::forget(&folder).and_then(|()| Ok(journal.remove()?)) {
                Ok(()) => failure,
                Err(error) => failure.and(error),
            },
            kept => failure.and(format!("{kept} of {frames} frames are kept in {}: {GOING_ON}", folder.display())),
        }
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
            let mut underway = self.writing.lock();
            let writer = underway.writer.as_mut().ok_or("the program is being ended")?;
            writer.frame(sample, place, &frame)?;
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
