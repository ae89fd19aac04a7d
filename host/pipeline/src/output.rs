//! An output under way: a clip is written frame by frame, pictures at the end.

use std::path::PathBuf;

use tilewright_media::{ClipWriter, Error, Frame, Output, Rate, Shape, Texts};
use tilewright_plan::Record;

use crate::RECORD_KEYWORD;

/// The writer of an output. Dropped before its end, it leaves nothing behind.
pub enum OutputWriter {
    /// Pictures, which are kept until their record is known: it is written into them.
    Pictures {
        /// The output.
        output: Output,
        /// Texts that are written beside the pixels.
        texts: Texts,
        /// The pictures so far.
        frames: Vec<Frame>,
    },
    /// A clip.
    Clip(ClipWriter),
}

impl OutputWriter {
    /// Begins an output: a clip with a frame rate, pictures without one.
    ///
    /// # Errors
    /// No file can be made there.
    pub fn begin(output: &Output, shape: Shape, rate: Option<Rate>, texts: &Texts) -> Result<Self, Error> {
        Ok(match rate {
            Some(rate) => OutputWriter::Clip(ClipWriter::begin(output, shape, rate, texts)?),
            None => OutputWriter::Pictures { output: output.clone(), texts: texts.clone(), frames: Vec::new() },
        })
    }

    /// Takes the next frame of a sample. Frames come in order, sample by sample.
    ///
    /// # Errors
    /// It can't be written.
    pub fn frame(&mut self, sample: usize, index: usize, frame: Frame) -> Result<(), Error> {
        match self {
            OutputWriter::Clip(writer) => writer.frame(sample, index, &frame),
            OutputWriter::Pictures { frames, .. } => {
                frames.push(frame);
                Ok(())
            }
        }
    }

    /// Notes on what a clip's format can't hold, before its end.
    pub fn notes(&self) -> &[String] {
        match self {
            OutputWriter::Clip(writer) => writer.notes(),
            OutputWriter::Pictures { .. } => &[],
        }
    }

    /// Gives the files their names and returns them; notes go to `note`.
    ///
    /// # Errors
    /// A file can't be written; none stays then.
    pub fn finish(self, record: &Record, note: &mut dyn FnMut(&str)) -> Result<Vec<PathBuf>, Error> {
        match self {
            OutputWriter::Clip(writer) => writer.finish(),
            OutputWriter::Pictures { output, mut texts, frames } => {
                if let Ok(record) = serde_json::to_string(record) {
                    texts.push((RECORD_KEYWORD.into(), record));
                }
                output.notes(&texts).iter().for_each(|line| note(line));
                output.write(&frames, &texts)
            }
        }
    }
}
