//! A preview: the first frame, as soon as it is decoded.

use std::{path::Path, slice};

use crate::{
    error::{Error, Result},
    format::{Format, Kind, format},
    frame::Frame,
    output::{Numbering, Options, Output},
    picture::Texts,
};

/// A PNG that is replaced atomically, so that no reader sees half of it.
#[derive(Debug)]
pub struct Preview(Output);

impl Preview {
    /// Checks the path before any work is done.
    ///
    /// # Errors
    /// [`Error::Output`] or [`Error::Folder`].
    pub fn new(path: &Path) -> Result<Self> {
        if !path.is_dir() && format(path, Kind::Picture).ok() != Some(Format::Png) {
            return Err(Error::output(path, "a preview is a .png: give such a name"));
        }
        let options = Options { numbering: Numbering::At(None), ..Options::default() };
        Ok(Self(Output::with(path, Kind::Picture, options)?))
    }

    /// Writes a frame, in place of an earlier one.
    ///
    /// # Errors
    /// [`Error::Write`]; the earlier frame stays.
    pub fn show(&self, frame: &Frame, texts: &Texts) -> Result<()> {
        self.0.write(slice::from_ref(frame), texts).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{picture, samples};

    #[test]
    fn a_later_frame_replaces_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("now.png");
        let preview = Preview::new(&path).unwrap();
        for number in 0..2 {
            let frame = samples::frame(6, 4, 3, number);
            preview.show(&frame, &Vec::new()).unwrap();
            assert_eq!(picture::read_picture(&path).unwrap().0, frame);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(Preview::new(&folder.path().join("now.jpg")).unwrap_err().to_string().contains("a preview is a .png"));
        assert!(Preview::new(&folder.path().join("no/now.png")).is_err());
    }
}
