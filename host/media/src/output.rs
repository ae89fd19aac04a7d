//! Output paths of pictures and clips: checked before any work is done, and written atomically.

mod names;
mod streams;

use std::{
    env, fs,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};
use tilewright_wording::Setting;

use tempfile::{NamedTempFile, TempDir};
use tilewright_outputs::{destination, folder_of, place, place_new, temporary, temporary_in};

pub(crate) use self::names::frame_name;
pub use self::{
    names::{NUMBER, Numbering, find_number},
    streams::{STANDARD, check_no_stream},
};
use self::{
    names::{frame_number, insert_number, name_of, next_number},
    streams::copy_out,
};
use crate::{
    error::{Cause, Error, Result},
    ffmpeg,
    format::{Format, Kind, format, holds},
    frame::{Frame, Pixels, Shape},
    picture::Texts,
    raw,
    still::{Depth, Still},
};

/// Choices for an output beyond its path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The format, instead of the one of the path's ending; standard output has no ending.
    pub format: Option<Format>,
    /// Existing files are left in place.
    pub no_clobber: bool,
    /// The quality of a JPEG or a video, 1 to 100.
    pub quality: Option<u8>,
    /// The depth of PNGs.
    pub depth: Depth,
    /// The place of a number in the name.
    pub numbering: Numbering,
}

/// The output of pictures or clips; its folder has been found writable.
#[derive(Clone, Debug)]
pub struct Output {
    path: PathBuf,
    /// The format that is written.
    pub format: Format,
    options: Options,
}

impl Output {
    /// [`Output::with`] the default options.
    ///
    /// # Errors
    /// As [`Output::with`].
    pub fn new(path: &Path, kind: Kind) -> Result<Self> {
        Self::with(path, kind, Options::default())
    }

    /// Checks a path before any work is done: its ending, its folder's existence and permissions,
    /// that an existing file may be replaced, and that ffmpeg is installed if it is needed.
    ///
    /// `-` is standard output. `{n}` in the name becomes the next free number. For clips, an
    /// existing folder, a name that ends in `/` or one without an ending means a folder of frames.
    ///
    /// # Errors
    /// [`Error::Output`], [`Error::Folder`] or [`Error::Tool`]; nothing has been written then.
    pub fn with(path: &Path, kind: Kind, options: Options) -> Result<Self> {
        Self::check_path(path, kind, options, false)
    }

    /// [`Output::with`] for an output whose folder may be missing yet: checks that it can be made.
    ///
    /// # Errors
    /// As [`Output::with`].
    pub fn ahead(path: &Path, kind: Kind, options: Options) -> Result<Self> {
        Self::check_path(path, kind, options, true)
    }

    fn check_path(path: &Path, kind: Kind, options: Options, ahead: bool) -> Result<Self> {
        check_no_stream(path)?;
        let format = match (options.format, kind) {
            (Some(format), _) if format.serves(kind) => format,
            (Some(_), _) => return Err(Error::output(path, "a picture can't be written as video")),
            (None, Kind::Picture) if path.as_os_str() == STANDARD => Format::Png,
            (None, Kind::Clip) if path.as_os_str() == STANDARD => {
                let advice = format!("say with {} what a clip is written as: mp4, gif, webp, …", Setting::Format);
                return Err(Error::output(path, advice));
            }
            (None, _) => format(path, kind)?,
        };
        let output = Self { path: path.to_owned(), format, options };
        if let Some(objection) = format.objection(options.quality, options.depth) {
            return Err(Error::output(path, objection));
        }
        output.check_place(ahead)?;
        ffmpeg::check(format)?;
        Ok(output)
    }

    fn check_place(&self, ahead: bool) -> Result<()> {
        let path = &self.path;
        if self.is_standard() {
            if io::stdout().is_terminal() {
                let reason = "standard output is a terminal: send it into a file or a program, or give -o a name";
                return Err(Error::output(path, reason));
            }
            return check_writable(&env::temp_dir());
        }
        if self.format == Format::Folder {
            if path.exists() && !path.is_dir() {
                return Err(Error::output(
                    path,
                    "a file stands there already: give a folder, or a name with an ending",
                ));
            }
        } else if path.is_dir() {
            return Err(Error::output(path, "a folder stands there already: give a file's name"));
        }
        if !self.is_numbered() {
            self.check_free(path)?;
        }
        let mut folder = if self.is_inside() { path.clone() } else { folder_of(path).to_owned() };
        let is_later =
            ahead && fs::symlink_metadata(&folder).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if is_later {
            folder = folder_of(&folder).to_owned();
        }
        check_writable(&folder)?;
        if self.format != Format::Folder && !self.is_numbered() && !is_later {
            // A link's target may be in another folder.
            check_writable(folder_of(&destination(path)?))?;
        }
        Ok(())
    }

    /// Refuses an existing name, if existing files are to stay.
    fn check_free(&self, name: &Path) -> Result<()> {
        match self.options.no_clobber && fs::symlink_metadata(name).is_ok() {
            true => Err(name_taken(name)),
            false => Ok(()),
        }
    }

    /// The path asked for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True for standard output.
    pub fn is_standard(&self) -> bool {
        self.path.as_os_str() == STANDARD
    }

    /// True if the name has a number; it is known only when its number is.
    pub fn is_numbered(&self) -> bool {
        self.number_at().is_some()
    }

    /// The byte of the name at which its number stands.
    fn number_at(&self) -> Option<usize> {
        self.options.numbering.of(&name_of(&self.path))
    }

    /// The settings of its pictures.
    pub(crate) fn still(&self) -> Still {
        let format = if self.format == Format::Folder { Format::Png } else { self.format };
        Still { format, quality: self.options.quality, depth: self.options.depth }
    }

    /// Notes for the user on texts that its format can't hold.
    pub fn notes(&self, texts: &Texts) -> Vec<String> {
        self.format
            .omitted_texts(texts)
            .map(|note| format!("{} is written {note}", self.path.display()))
            .into_iter()
            .collect()
    }

    /// Checks an output against the shape of its input: the format's limits, and files that exist
    /// already.
    ///
    /// # Errors
    /// [`Error::Write`] if the format can't hold the frames; else [`Error::Output`].
    pub fn check(&self, shape: &Shape) -> Result<()> {
        let Shape { samples, frames, width, height, channels } = *shape;
        if samples == 0 || frames == 0 || width == 0 || height == 0 || ![1, 3, 4].contains(&channels) {
            let what = format!("[{samples}, {channels}, {frames}, {height}, {width}]");
            return Err(Error::write(&self.path, format!("{what} is no shape of pictures")));
        }
        if self.is_standard() && samples > 1 && self.format != Format::Safetensors {
            let [output, format] = [Setting::Output, Setting::Format];
            let reason = format!(
                "standard output takes one, the latent has {samples}: give {output} a name, or {format} safetensors"
            );
            return Err(Error::output(&self.path, reason));
        }
        if let Some(objection) = self.format.objection_to_frames(frames) {
            return Err(Error::output(&self.path, objection));
        }
        holds(self.format, width, height, channels).map_err(|reason| Error::write(&self.path, reason))?;
        for name in self.names(samples) {
            self.check_free(&name)?;
            match self.format {
                _ if self.is_standard() => {}
                Format::Folder => {
                    let rest = fs::read_dir(&name)
                        .into_iter()
                        .flatten()
                        .flatten()
                        .find(|entry| frame_number(&entry.file_name()).is_some_and(|number| number > frames));
                    if let Some(rest) = rest {
                        let rest = rest.file_name();
                        let reason = format!(
                            "{} of a longer clip is there: delete it, or choose another folder",
                            rest.display()
                        );
                        return Err(Error::output(name, reason));
                    }
                    let frames = (0..frames).filter(|_| name.is_dir()).map(|index| name.join(frame_name(index)));
                    frames.map(|frame| destination(&frame)).find(|found| found.is_err()).transpose()?;
                }
                _ => {
                    destination(&name)?;
                }
            }
        }
        Ok(())
    }

    /// True if the frames go into an existing folder.
    fn is_inside(&self) -> bool {
        self.format == Format::Folder && self.path.is_dir()
    }

    /// The final names of files and folders for `count` samples: the path itself for one sample, or
    /// if all are in one file; else numbered from 1. Names with `{n}` have the numbers that are
    /// free now.
    pub fn names(&self, count: usize) -> Vec<PathBuf> {
        let count = if self.format == Format::Safetensors { 1 } else { count };
        if let Some(at) = self.number_at() {
            let first = next_number(&self.path, at);
            return (first..).take(count).map(|number| insert_number(&self.path, at, number)).collect();
        }
        if count == 1 {
            return vec![self.path.clone()];
        }
        let digits = count.to_string().len().max(2);
        let is_folder = self.format == Format::Folder;
        // `.` and `..` have no name to number.
        let nameless = is_folder && self.path.file_name().is_none();
        let path = nameless.then(|| fs::canonicalize(&self.path).ok()).flatten().unwrap_or_else(|| self.path.clone());
        let (name, ending) = match is_folder {
            true => (path.file_name(), None),
            false => (path.file_stem(), path.extension().filter(|ending| !ending.is_empty())),
        };
        let numbered = |number: usize| {
            let mut numbered = name.unwrap_or_default().to_owned();
            numbered.push(format!("-{number:0digits$}"));
            if let Some(ending) = ending {
                numbered.push(".");
                numbered.push(ending);
            }
            path.with_file_name(numbered)
        };
        (1..=count).map(numbered).collect()
    }

    /// The files of frames for clips of this shape; for other formats as [`Output::names`].
    pub fn files(&self, shape: &Shape) -> Vec<PathBuf> {
        let names = self.names(shape.samples);
        match self.format {
            Format::Folder => {
                let frames =
                    |name: &PathBuf| (0..shape.frames).map(|index| name.join(frame_name(index))).collect::<Vec<_>>();
                names.iter().flat_map(frames).collect()
            }
            _ => names,
        }
    }

    /// A temporary file for the output of this name.
    ///
    /// # Errors
    /// No file can be made there.
    pub fn temporary(&self, name: &Path, ending: &str) -> io::Result<NamedTempFile> {
        if self.is_standard() { temporary_in(&env::temp_dir(), ending) } else { temporary(name, ending) }
    }

    /// Writes pictures of one size; returns the files' names. All files get their names together.
    ///
    /// # Errors
    /// [`Error::Write`]; files written so far are removed.
    pub fn write(&self, pictures: &[Frame], texts: &Texts) -> Result<Vec<PathBuf>> {
        let names = self.names(pictures.len());
        let mut written = Vec::new();
        for (picture, name) in pictures.iter().zip(&names) {
            let failed = |cause: Cause| Error::write(name, cause);
            let file = self.temporary(name, ".tmp").map_err(|error| failed(error.into()))?;
            if !picture.is_whole() {
                return Err(failed("a picture lacks values".into()));
            }
            match self.format {
                Format::Safetensors => raw::write_pictures(&file, pictures, texts),
                _ => self.still().write(picture, file.as_file(), texts),
            }
            .map_err(failed)?;
            written.push(file);
        }
        written.into_iter().zip(&names).map(|(file, name)| self.place(file, name)).collect()
    }

    /// Writes one picture of 8-bit values.
    ///
    /// # Errors
    /// [`Error::Write`]; the file is removed then.
    pub fn write_pixels(&self, pixels: &Pixels) -> Result<()> {
        let file = self.temporary(&self.path, ".tmp").map_err(|error| Error::write(&self.path, error))?;
        let written = self.still().write_pixels(pixels, file.as_file(), &Vec::new());
        written.map_err(|cause| Error::write(&self.path, cause))?;
        self.place(file, &self.path).map(drop)
    }

    /// Returns a complete file its final name and returns it: `name`, or with `{n}` the next free
    /// one. For standard output, the file is copied there and removed.
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Output`] if the name has been taken meanwhile and existing files
    /// are to stay.
    pub fn place(&self, mut file: NamedTempFile, name: &Path) -> Result<PathBuf> {
        let failed = |error: io::Error| Error::write(name, error);
        if self.is_standard() {
            copy_out(file.as_file_mut()).map_err(|error| Error::write("standard output", error))?;
            return Ok(name.to_owned());
        }
        if let Some(at) = self.number_at() {
            let mut number = next_number(&self.path, at);
            loop {
                let name = insert_number(&self.path, at, number);
                match place_new(file, &name).map_err(|error| Error::write(&name, error))? {
                    None => return Ok(name),
                    // Another process took the name first.
                    Some(back) => (file, number) = (back, number + 1),
                }
            }
        }
        if self.options.no_clobber {
            return match place_new(file, name).map_err(failed)? {
                None => Ok(name.to_owned()),
                Some(_) => Err(name_taken(name)),
            };
        }
        place(file, name).map_err(failed)?;
        Ok(name.to_owned())
    }

    /// Returns a complete folder its final name and returns it; only an empty folder may have it
    /// yet.
    pub(crate) fn place_folder(&self, folder: TempDir, name: &Path) -> Result<PathBuf> {
        let failed = |error: io::Error| Error::write(name, error);
        let at = self.number_at();
        if at.is_none() && !self.options.no_clobber {
            fs::rename(folder.path(), name).map_err(failed)?;
            // The folder has moved; nothing is left to remove.
            let _ = folder.keep();
            return Ok(name.to_owned());
        }
        let mut number = at.map_or(0, |at| next_number(&self.path, at));
        loop {
            let free = at.map_or_else(|| name.to_owned(), |at| insert_number(&self.path, at, number));
            match fs::create_dir(&free) {
                Ok(()) => {
                    // Replaces the empty folder, which this process has just made.
                    fs::rename(folder.path(), &free).map_err(failed)?;
                    let _ = folder.keep();
                    return Ok(free);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && at.is_some() => number += 1,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(name_taken(name)),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// Checks that files can be made in a folder.
fn check_writable(folder: &Path) -> Result<()> {
    let made = temporary_in(folder, ".tmp");
    made.map(drop).map_err(|cause| Error::Folder { path: folder.to_owned(), cause })
}

fn name_taken(name: &Path) -> Error {
    let advice = "give another name, {n} in it for the next number, or leave";
    Error::output(name, format!("stands there already: {advice} {} out", Setting::NoClobber))
}

#[cfg(test)]
mod tests;
