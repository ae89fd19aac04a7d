//! The way of frames as they are decoded: into the output, the journal from which an interrupted
//! decode goes on, and the preview.

use std::{
    error::Error as StdError,
    mem,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tilewright_wording::Setting;

use tch::Tensor;
use tilewright_engine::Sink;
use tilewright_media::{Frame, Journal, Output, Preview, Rate, Shape, Texts};
use tilewright_plan::{Planner, Record};

use crate::{FrameStore, KeptPlan, OutputWriter, Result, frame};

/// Advice about frames that are kept.
fn going_on() -> String {
    format!("{} goes on from them, and deleting the folder gives them up", Setting::Resume)
}

/// The output under way, shared with the thread that may end the program in the middle of it.
#[derive(Clone, Default)]
pub struct Writing(Arc<Mutex<UnderWay>>);

#[derive(Default)]
struct UnderWay {
    writer: Option<OutputWriter>,
    /// The journal's folder, if there is a journal.
    journal: Option<PathBuf>,
}

impl Writing {
    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the writer and forgets the journal's folder: nothing more is written, and
    /// [`Self::abandon`] has nothing to do.
    fn take(&self) -> Option<OutputWriter> {
        mem::take(&mut *self.lock()).writer
    }

    /// Removes what is half-written, for good: a thread that would write more waits until the
    /// program has ended.
    pub fn abandon(&self, note: &mut dyn FnMut(&str)) {
        let mut under_way = self.lock();
        drop(under_way.writer.take());
        if let Some(folder) = under_way.journal.take() {
            if Journal::is_begun(&folder) {
                note(&format!("finished frames are kept in {}: {}", folder.display(), going_on()));
            } else {
                // The next decode reports a journal that can't be removed.
                let _ = KeptPlan::remove(&folder);
                let _ = Journal::sweep(&folder);
            }
        }
        // The lock stays taken: a thread that would write waits until the program ends.
        mem::forget(under_way);
    }
}

/// The frames of one decode on their way.
pub struct Delivery {
    output: Output,
    shape: Shape,
    rate: Option<Rate>,
    texts: Texts,
    writing: Writing,
    journal: Option<Journal>,
    /// The frames of each sample that an earlier decode left in the journal.
    done: Vec<u32>,
    preview: Option<Preview>,
    store: Option<FrameStore>,
    keeps_first: bool,
    first: Option<Frame>,
}

impl Delivery {
    /// A delivery of frames to an output: of a clip if it has a frame rate, of pictures if it has
    /// none.
    pub fn new(output: &Output, shape: Shape, rate: Option<Rate>, texts: Texts) -> Self {
        Self {
            output: output.clone(),
            shape,
            rate,
            texts,
            writing: Writing::default(),
            journal: None,
            done: vec![0; shape.samples],
            preview: None,
            store: None,
            keeps_first: false,
            first: None,
        }
    }

    /// Shares the output under way with this handle.
    #[must_use]
    pub fn shared_with(self, writing: &Writing) -> Self {
        Self { writing: writing.clone(), ..self }
    }

    /// Shows the first frame in a file, too.
    #[must_use]
    pub fn with_preview(self, preview: Option<Preview>) -> Self {
        Self { preview, ..self }
    }

    /// Keeps all frames in memory, too, if `keeps`.
    #[must_use]
    pub fn with_store(self, keeps: bool) -> Self {
        Self { store: keeps.then(|| FrameStore::new(true)), ..self }
    }

    /// Keeps the first frame in memory, too, if `keeps_first`.
    #[must_use]
    pub fn with_first(self, keeps_first: bool) -> Self {
        Self { keeps_first, ..self }
    }

    /// Goes on from the journal of an earlier decode with this fingerprint, or begins a journal.
    ///
    /// # Errors
    /// The journal is another decode's, or can't be read or made.
    pub fn with_journal(self, fingerprint: &str) -> Result<Self> {
        let (journal, done) = Journal::open(&self.output, fingerprint, self.shape)?;
        let done = done.into_iter().map(|done| done as u32).collect();
        Ok(Self { journal: Some(journal), done, ..self })
    }

    /// The frames of each sample that are there already.
    pub fn done(&self) -> &[u32] {
        &self.done
    }

    /// The frames of all samples that are there already.
    pub fn resumed_frames(&self) -> u32 {
        self.done.iter().sum()
    }

    /// All frames of the output.
    fn count(&self) -> usize {
        self.shape.samples * self.shape.frames
    }

    /// The first frame of the first sample, if it has arrived and is kept.
    pub const fn first(&self) -> Option<&Frame> {
        self.first.as_ref()
    }

    /// The frames that were kept.
    pub fn into_store(self) -> Option<FrameStore> {
        self.store
    }

    /// The planner of a decode with a journal: the plan that the decode began with comes first.
    /// None without a journal.
    ///
    /// # Errors
    /// The journal's plan can't be read.
    pub fn keep_plan<'a>(&self, planner: &'a mut dyn Planner) -> Result<Option<KeptPlan<'a>>> {
        let has_frames = self.resumed_frames() > 0;
        self.journal.as_ref().map(|journal| KeptPlan::new(planner, journal.folder(), has_frames)).transpose()
    }

    /// Begins the output with the frames that are in the journal; notes go to `note`.
    ///
    /// # Errors
    /// The output can't be written, or the journal not read. [`Delivery::leave`] cleans up.
    pub fn begin(&mut self, note: &mut dyn FnMut(&str)) -> Result<()> {
        let folder = Journal::folder_of(&self.output);
        // A sample's steps are kept in a folder of the same name.
        if self.journal.is_none() && self.rate.is_some() && Journal::is_begun(&folder) {
            note(&format!("{}: frames of an interrupted decode are kept here: {}", folder.display(), going_on()));
        }
        {
            let mut under_way = self.writing.lock();
            under_way.journal = self.journal.as_ref().map(|journal| journal.folder().to_owned());
            let writer = OutputWriter::begin(&self.output, self.shape, self.rate, &self.texts)?;
            under_way.writer.insert(writer).notes().iter().for_each(|line| note(line));
        }
        let resumed = self.resumed_frames();
        if resumed > 0 {
            note(&format!("{resumed} of {} frames are there already", self.count()));
        }
        self.replay()
    }

    /// Writes the frames of the journal into the output.
    fn replay(&mut self) -> Result<()> {
        for sample in 0..self.done.len() {
            for index in 0..self.done[sample] as usize {
                let Some(journal) = &self.journal else { return Ok(()) };
                let frame = journal.frame(sample, index)?;
                let writing = self.writing.clone();
                let mut under_way = writing.lock();
                self.write(under_way.writer.as_mut(), sample, index, frame)?;
            }
        }
        Ok(())
    }

    /// Cleans up after a decode that failed: removes a half-written output, and a journal without a
    /// frame to go on from. Returns a sentence about frames that are kept.
    ///
    /// # Errors
    /// The journal can't be removed.
    pub fn leave(&mut self) -> Result<Option<String>> {
        drop(self.writing.take());
        let Some(journal) = self.journal.take() else { return Ok(None) };
        let folder = journal.folder().to_owned();
        match journal.resumable_frames() {
            0 => {
                KeptPlan::remove(&folder)?;
                journal.remove()?;
                Ok(None)
            }
            kept => {
                Ok(Some(format!("{kept} of {} frames are kept in {}: {}", self.count(), folder.display(), going_on())))
            }
        }
    }

    /// Gives the output its name and returns its files; notes go to `note`.
    ///
    /// # Errors
    /// The output can't be written. [`Delivery::leave`] cleans up.
    pub fn finish(&mut self, record: &Record, note: &mut dyn FnMut(&str)) -> Result<Vec<PathBuf>> {
        let writer = self.writing.take().ok_or(tilewright_engine::Error::Interrupted)?;
        Ok(writer.finish(record, note)?)
    }

    /// Removes the journal of an output that is complete.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn remove_journal(&mut self) -> Result<()> {
        if let Some(journal) = self.journal.take() {
            KeptPlan::remove(journal.folder())?;
            journal.remove()?;
        }
        Ok(())
    }

    /// Writes a frame, and shows and keeps it if it is the first one.
    fn write(&mut self, writer: Option<&mut OutputWriter>, sample: usize, index: usize, frame: Frame) -> Result<()> {
        // A thread that ends the program has taken the writer.
        let writer = writer.ok_or(tilewright_engine::Error::Interrupted)?;
        if (sample, index) != (0, 0) {
            return Ok(writer.frame(sample, index, frame)?);
        }
        self.first = self.keeps_first.then(|| frame.clone());
        match &self.preview {
            Some(preview) => {
                writer.frame(sample, index, frame.clone())?;
                Ok(preview.show(&frame, &self.texts)?)
            }
            None => Ok(writer.frame(sample, index, frame)?),
        }
    }
}

impl Sink for Delivery {
    fn frames(&mut self, sample: u32, first: u32, frames: &Tensor) -> Result<(), Box<dyn StdError + Send + Sync>> {
        for index in 0..frames.size()[0] {
            let frame = frame(&frames.f_get(index)?)?;
            let (sample, index) = (sample as usize, first as usize + index as usize);
            // The journal first: the output can be written again from it, and not the other way
            // round.
            if let Some(journal) = &mut self.journal {
                journal.append(sample, index, &frame)?;
            }
            // The lock is held until the frame is shown: no half-written preview stays behind
            // either.
            let writing = self.writing.clone();
            let mut under_way = writing.lock();
            self.write(under_way.writer.as_mut(), sample, index, frame)?;
        }
        if let Some(store) = &mut self.store {
            store.frames(sample, first, frames)?;
        }
        if let Some(journal) = &mut self.journal {
            journal.commit()?;
        }
        Ok(())
    }
}
