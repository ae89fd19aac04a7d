//! Where pictures and clips go: the path is checked before any work is done, and files get their final names when all are whole.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, IsTerminal, Seek, Write},
    path::{Path, PathBuf},
};

use tempfile::{NamedTempFile, TempDir};
use tilewright_outputs::{destination, folder_of, place, place_new, temporary, temporary_in};

use crate::{
    error::{Error, Result},
    ffmpeg,
    format::{Format, Kind, format, holds},
    frame::{Frame, Pixels, Shape},
    picture::Texts,
    raw,
    still::{Depth, Still},
};

/// The path that stands for standard output.
pub const STANDARD: &str = "-";

/// Stands in a name for the next free number.
pub const NUMBER: &str = "{n}";

/// Digits of the largest number that is counted on from.
const MOST_DIGITS: usize = 9;

/// How an output is written, where its path does not say it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Instead of what the path's ending asks for; standard output has none.
    pub format: Option<Format>,
    /// Leave what stands there.
    pub no_clobber: bool,
    /// Of a JPEG or a video, 1 to 100.
    pub quality: Option<u8>,
    /// Of PNGs.
    pub depth: Depth,
}

/// Where pictures or clips go; the place has been found writable.
#[derive(Clone, Debug)]
pub struct Output {
    path: PathBuf,
    /// What is written.
    pub format: Format,
    options: Options,
}

impl Output {
    /// [`Output::with`] nothing but what the path says.
    ///
    /// # Errors
    /// As there.
    pub fn new(path: &Path, kind: Kind) -> Result<Self> {
        Self::with(path, kind, Options::default())
    }

    /// Checks a path before any work is done: its ending, that its folder is there and can be written, that what stands there may be
    /// replaced, and that ffmpeg is there where it is needed.
    ///
    /// `-` is standard output. `{n}` in the name becomes the next free number. For clips, an existing folder, a name that ends in `/`
    /// or one without an ending means a folder of frames.
    ///
    /// # Errors
    /// [`Error::Output`], [`Error::Folder`] or [`Error::Tool`]; nothing has been written then.
    pub fn with(path: &Path, kind: Kind, options: Options) -> Result<Self> {
        let format = match (options.format, kind) {
            (Some(format), _) if format.serves(kind) => format,
            (Some(_), _) => return Err(Error::output(path, "a picture can't be written as video")),
            (None, Kind::Picture) if path.as_os_str() == STANDARD => Format::Png,
            (None, Kind::Clip) if path.as_os_str() == STANDARD => {
                return Err(Error::output(path, "say with --format what a clip is written as: mp4, gif, webp, …"));
            }
            (None, _) => format(path, kind)?,
        };
        let output = Self { path: path.to_owned(), format, options };
        if let Some(objection) = format.objection(options.quality, options.depth) {
            return Err(Error::output(path, objection));
        }
        output.check_place()?;
        ffmpeg::check(format)?;
        Ok(output)
    }

    fn check_place(&self) -> Result<()> {
        let path = &self.path;
        if self.is_standard() {
            if io::stdout().is_terminal() {
                let reason = "standard output is a terminal: send it into a file or a program, or give -o a name";
                return Err(Error::output(path, reason));
            }
            return temporary_in(&env::temp_dir(), ".tmp")
                .map(drop)
                .map_err(|cause| self.unwritable(&env::temp_dir(), cause));
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
        let folder = if self.is_inside() { path.clone() } else { folder_of(path).to_owned() };
        temporary_in(&folder, ".tmp").map(drop).map_err(|cause| self.unwritable(&folder, cause))?;
        if self.format != Format::Folder && !self.is_numbered() {
            // What a link leads to may be in another folder.
            let place = destination(path)?;
            temporary_in(folder_of(&place), ".tmp")
                .map(drop)
                .map_err(|cause| self.unwritable(folder_of(&place), cause))?;
        }
        Ok(())
    }

    fn unwritable(&self, folder: &Path, cause: io::Error) -> Error {
        Error::Folder { path: folder.to_owned(), cause }
    }

    /// Refuses what stands there already, where it is to be left.
    fn check_free(&self, name: &Path) -> Result<()> {
        match self.options.no_clobber && fs::symlink_metadata(name).is_ok() {
            true => Err(taken(name)),
            false => Ok(()),
        }
    }

    /// The path asked for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it goes to standard output.
    pub fn is_standard(&self) -> bool {
        self.path.as_os_str() == STANDARD
    }

    /// Whether its name has the next free number in it, and so is known only once it has it.
    pub fn is_numbered(&self) -> bool {
        name_of(&self.path).to_string_lossy().contains(NUMBER)
    }

    /// How its pictures are written.
    pub(crate) fn still(&self) -> Still {
        let format = if self.format == Format::Folder { Format::Png } else { self.format };
        Still { format, quality: self.options.quality, depth: self.options.depth }
    }

    /// What its format has no place for, for the user.
    pub fn notes(&self, texts: &Texts) -> Vec<String> {
        self.format
            .left_out(texts)
            .map(|note| format!("{} is written {note}", self.path.display()))
            .into_iter()
            .collect()
    }

    /// Checks what is known only once the input has been read: whether the format can hold so large, so many and such frames, and
    /// whether files stand in the way.
    ///
    /// # Errors
    /// [`Error::Write`] where the format can't hold them, as for pictures; else [`Error::Output`].
    pub fn check(&self, shape: &Shape) -> Result<()> {
        let Shape { samples, frames, width, height, channels } = *shape;
        if samples == 0 || frames == 0 || width == 0 || height == 0 || ![1, 3, 4].contains(&channels) {
            let what = format!("[{samples}, {channels}, {frames}, {height}, {width}]");
            return Err(Error::write(&self.path, format!("{what} is no shape of pictures")));
        }
        if self.is_standard() && samples > 1 && self.format != Format::Safetensors {
            let reason =
                format!("standard output takes one, the latent has {samples}: give -o a name, or --format safetensors");
            return Err(Error::output(&self.path, reason));
        }
        if frames > 1 && self.format.is_single() {
            let reason = format!(
                "this format holds one frame, the clip has {frames}: write .mp4, .webm, .gif, .webp, a folder or .safetensors"
            );
            return Err(Error::output(&self.path, reason));
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

    /// Whether the frames go into a folder that is there already.
    fn is_inside(&self) -> bool {
        self.format == Format::Folder && self.path.is_dir()
    }

    /// The final names of files and folders for so many samples: the path itself for one or where all are in one file, and else
    /// numbered from 1. Those with `{n}` are what is free now; none for standard output.
    pub fn names(&self, count: usize) -> Vec<PathBuf> {
        let count = if self.format == Format::Safetensors { 1 } else { count };
        if self.is_numbered() {
            let first = next_number(&self.path);
            return (first..).take(count).map(|number| numbered(&self.path, number)).collect();
        }
        if count == 1 {
            return vec![self.path.clone()];
        }
        let digits = count.to_string().len().max(2);
        let numbered: Box<dyn Fn(usize) -> PathBuf> = if self.format == Format::Folder {
            // `.` and `..` have no name to number.
            let path = self.path.file_name().map_or_else(|| fs::canonicalize(&self.path).ok(), |_| None);
            let path = path.unwrap_or_else(|| self.path.clone());
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Box::new(move |number| path.with_file_name(format!("{name}-{number:0digits$}")))
        } else {
            let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
            let ending = self.path.extension().unwrap_or_default().to_string_lossy();
            let ending = if ending.is_empty() { String::new() } else { format!(".{ending}") };
            Box::new(move |number| self.path.with_file_name(format!("{stem}-{number:0digits$}{ending}")))
        };
        (1..=count).map(numbered).collect()
    }

    /// The folder and the files of frames in it that a clip of so many would have, for a folder; else as [`Output::names`].
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

    /// A file without its final name, for what is to stand under this one.
    ///
    /// # Errors
    /// No file can be made there.
    pub fn temporary(&self, name: &Path, ending: &str) -> io::Result<NamedTempFile> {
        if self.is_standard() { temporary_in(&env::temp_dir(), ending) } else { temporary(name, ending) }
    }

    /// Writes pictures of one size; gives the files' names. None stands there unless all are whole.
    ///
    /// # Errors
    /// [`Error::Write`] where writing fails; what was written is removed.
    pub fn write(&self, pictures: &[Frame], texts: &Texts) -> Result<Vec<PathBuf>> {
        let names = self.names(pictures.len());
        let mut written = Vec::new();
        for (picture, name) in pictures.iter().zip(&names) {
            let failed = |cause| Error::Write { path: name.clone(), source: cause };
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
    /// [`Error::Write`] where writing fails; what was written is removed.
    pub fn write_pixels(&self, pixels: &Pixels) -> Result<()> {
        let failed = |cause| Error::Write { path: self.path.clone(), source: cause };
        let file = self.temporary(&self.path, ".tmp").map_err(|error| failed(error.into()))?;
        self.still().write_pixels(pixels, file.as_file(), &Vec::new()).map_err(failed)?;
        self.place(file, &self.path).map(drop)
    }

    /// Gives a whole file its final name, and says which it is: that one, or with `{n}` the next that is free by now. What goes to
    /// standard output is copied there, and the file removed.
    ///
    /// # Errors
    /// [`Error::Write`]; [`Error::Output`] for what has come to stand there and is to be left.
    pub fn place(&self, mut file: NamedTempFile, name: &Path) -> Result<PathBuf> {
        let failed = |error: io::Error| Error::write(name, error);
        if self.is_standard() {
            copy_out(file.as_file_mut()).map_err(|error| Error::write("standard output", error))?;
            return Ok(name.to_owned());
        }
        if self.is_numbered() {
            let mut number = next_number(&self.path);
            loop {
                let name = numbered(&self.path, number);
                match place_new(file, &name).map_err(|error| Error::write(&name, error))? {
                    None => return Ok(name),
                    // Another process was quicker.
                    Some(back) => (file, number) = (back, number + 1),
                }
            }
        }
        if self.options.no_clobber {
            return match place_new(file, name).map_err(failed)? {
                None => Ok(name.to_owned()),
                Some(_) => Err(taken(name)),
            };
        }
        place(file, name).map_err(failed)?;
        Ok(name.to_owned())
    }

    /// Gives a whole folder its final name, and says which it is; nothing stands there but perhaps an empty folder.
    pub(crate) fn place_folder(&self, folder: TempDir, name: &Path) -> Result<PathBuf> {
        let failed = |error: io::Error| Error::write(name, error);
        if !self.is_numbered() && !self.options.no_clobber {
            fs::rename(folder.path(), name).map_err(failed)?;
            // It has gone from where it was; nothing is left to remove.
            let _ = folder.keep();
            return Ok(name.to_owned());
        }
        let mut number = next_number(&self.path);
        loop {
            let free = if self.is_numbered() { numbered(&self.path, number) } else { name.to_owned() };
            match fs::create_dir(&free) {
                Ok(()) => {
                    // Over the empty one, which nobody else can have made.
                    fs::rename(folder.path(), &free).map_err(failed)?;
                    let _ = folder.keep();
                    return Ok(free);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.is_numbered() => number += 1,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(taken(name)),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

fn taken(name: &Path) -> Error {
    Error::output(
        name,
        "stands there already: give another name, {n} in it for the next number, or leave --no-clobber out",
    )
}

/// The whole file on standard output.
fn copy_out(file: &mut File) -> io::Result<()> {
    file.rewind()?;
    let mut stdout = io::stdout().lock();
    io::copy(file, &mut stdout)?;
    stdout.flush()
}

fn name_of(path: &Path) -> OsString {
    path.file_name().unwrap_or_default().to_owned()
}

/// The path with a number in the place of `{n}`.
fn numbered(path: &Path, number: u64) -> PathBuf {
    let name = name_of(path);
    let (before, after) = around(&name);
    path.with_file_name(format!("{before}{number}{after}"))
}

/// One more than the largest number that stands in a name of this kind: in a row, numbers tell the order.
fn next_number(path: &Path) -> u64 {
    let name = name_of(path);
    let (before, after) = around(&name);
    let numbers = fs::read_dir(folder_of(path)).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let digits = name.to_str()?.strip_prefix(&*before)?.strip_suffix(&*after)?;
        let plain = (1..=MOST_DIGITS).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| plain)
    });
    numbers.max().unwrap_or(0) + 1
}

/// What stands before and after `{n}`.
fn around(name: &OsStr) -> (String, String) {
    let name = name.to_string_lossy();
    let (before, after) = name.split_once(NUMBER).unwrap_or((&name, ""));
    (before.to_owned(), after.to_owned())
}

/// A frame's name in a folder of frames; `index` from 0.
pub(crate) fn frame_name(index: usize) -> String {
    format!("frame-{:06}.png", index + 1)
}

fn frame_number(name: &OsStr) -> Option<usize> {
    name.to_str()?.strip_prefix("frame-")?.strip_suffix(".png")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{picture, samples};

    #[test]
    fn endings_are_known_whatever_their_case() {
        let folder = tempfile::tempdir().unwrap();
        for (name, format) in [("a.PNG", Format::Png), ("a.jpeg", Format::Jpeg), ("a.webp", Format::WebP)] {
            assert_eq!(Output::new(&folder.path().join(name), Kind::Picture).unwrap().format, format);
        }
        for (name, format) in [("a.GIF", Format::Gif), ("a", Format::Folder), ("a.b/", Format::Folder)] {
            assert_eq!(Output::new(&folder.path().join(name), Kind::Clip).unwrap().format, format);
        }
        for (name, kind) in
            [("a", Kind::Picture), ("a.bmp", Kind::Picture), ("png", Kind::Picture), ("a.b", Kind::Clip)]
        {
            let error = Output::new(&folder.path().join(name), kind).unwrap_err();
            assert!(error.is_input() && error.to_string().contains("unknown output ending: expected ."), "{error}");
        }
        let error = Output::new(&folder.path().join("a.mp4"), Kind::Picture).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("a picture can't be written as video: expected .png, .jpg, .webp or .safetensors")
        );
        assert!(samples::is_empty(folder.path()), "nothing is left behind");
    }

    #[test]
    fn a_place_that_does_not_serve_is_told_before_any_work() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Output::new(&folder.path().join("no/a.gif"), Kind::Clip).unwrap_err();
        assert!(matches!(missing, Error::Folder { .. }) && missing.is_input());
        // Even root can't write here.
        let system = Output::new(Path::new("/proc/a.png"), Kind::Picture).unwrap_err();
        assert!(system.to_string().ends_with(": choose another folder with -o"), "{system}");

        fs::create_dir(folder.path().join("b.png")).unwrap();
        assert!(Output::new(&folder.path().join("b.png"), Kind::Picture).is_err());
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(Output::new(&folder.path().join("file"), Kind::Clip).is_err());
    }

    #[test]
    fn a_batch_becomes_numbered_files_and_folders() {
        let output = |path: &str, format| Output { path: path.into(), format, options: Options::default() };
        let cat = output("out/cat.png", Format::Png);
        assert_eq!(cat.names(1), [PathBuf::from("out/cat.png")]);
        assert_eq!(cat.names(2), [PathBuf::from("out/cat-01.png"), PathBuf::from("out/cat-02.png")]);
        assert_eq!(output("out/v1.5/", Format::Folder).names(2)[1], PathBuf::from("out/v1.5-02"));
        assert_eq!(output("a.safetensors", Format::Safetensors).names(3), [PathBuf::from("a.safetensors")]);
    }

    #[test]
    fn what_a_format_cannot_hold_is_told_with_what_can() {
        let folder = tempfile::tempdir().unwrap();
        let shape = Shape { samples: 1, frames: 2, width: 8, height: 8, channels: 3 };
        let check = |name: &str, shape: Shape| {
            let error = Output::new(&folder.path().join(name), Kind::Clip).unwrap().check(&shape).unwrap_err();
            format!("{error}: {}", std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default())
        };
        assert!(check("a.png", shape).contains("holds one frame, the clip has 2"));
        assert!(check("a.gif", Shape { channels: 4, ..shape }).contains("transparency"));
        assert!(check("a.webp", Shape { width: 16_384, ..shape }).contains("16384 pixels are more than the 16383"));
        assert!(check("a.webp", Shape { frames: 0, ..shape }).contains("no shape"));
        fs::create_dir(folder.path().join("frames")).unwrap();
        fs::write(folder.path().join("frames/frame-000003.png"), "").unwrap();
        assert!(check("frames", shape).contains("frame-000003.png of a longer clip"));
    }

    #[test]
    fn pictures_come_back_as_they_went() {
        let folder = tempfile::tempdir().unwrap();
        let pictures = [samples::frame(7, 5, 3, 0), samples::frame(7, 5, 3, 1)];
        for name in ["a.png", "a.webp"] {
            let output = Output::new(&folder.path().join(name), Kind::Picture).unwrap();
            let names = output.write(&pictures, &vec![("prompt".into(), "日本".into())]).unwrap();
            for (name, picture) in names.iter().zip(&pictures) {
                let (read, notes) = picture::read_picture(name).unwrap();
                assert_eq!((Pixels::from(&read), notes.len()), (Pixels::from(picture), 0));
                assert_eq!(fs::metadata(name).unwrap().permissions().mode() & 0o600, 0o600);
            }
        }
        let raw = Output::new(&folder.path().join("a.safetensors"), Kind::Picture).unwrap();
        let bytes = fs::read(&raw.write(&pictures, &Vec::new()).unwrap()[0]).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensor = file.tensor("sample").unwrap();
        assert_eq!(tensor.shape(), [2, 3, 5, 7]);
        let second = pictures[1].values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(tensor.data()[second.len()..], second);
    }

    #[test]
    fn what_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::new(&folder.path().join("a.jpg"), Kind::Picture).unwrap();
        let pictures = [samples::frame(4, 4, 3, 0), samples::frame(4, 4, 4, 0)];
        let error = output.write(&pictures, &Vec::new()).unwrap_err();
        assert!(!error.is_input());
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "JPEG has no transparency: write .png or .webp");
        assert!(samples::is_empty(folder.path()));
    }

    #[test]
    fn a_number_counts_on_from_the_largest_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out-{n}.png");
        for name in ["out-7.png", "out-0003.png", "out-x.png", "out-8.jpg", "out-99999999999999999999.png", "out-.png"]
        {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let output = Output::new(&path, Kind::Picture).unwrap();
        assert_eq!(output.names(2), ["out-8.png", "out-9.png"].map(|name| folder.path().join(name)));
        let pictures = [samples::frame(4, 4, 3, 0), samples::frame(4, 4, 3, 1)];
        assert_eq!(
            output.write(&pictures, &Vec::new()).unwrap(),
            output
                .names(2)
                .iter()
                .enumerate()
                .map(|(index, _)| { folder.path().join(format!("out-{}.png", index + 8)) })
                .collect::<Vec<_>>()
        );
        assert_eq!(fs::read(folder.path().join("out-7.png")).unwrap(), b"");
    }

    #[test]
    fn numbers_are_taken_once_however_many_ask() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out-{n}.png");
        let write = |number: usize| {
            let output = Output::new(&path, Kind::Picture).unwrap();
            output.write(&[samples::frame(4, 4, 3, number)], &Vec::new()).unwrap().remove(0)
        };
        let names = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8).map(|number| scope.spawn(move || write(number))).collect();
            let names = writers.into_iter().map(|writer| writer.join().unwrap());
            names.collect::<std::collections::BTreeSet<_>>()
        });
        assert_eq!(names.len(), 8);
        assert!(names.contains(&folder.path().join("out-8.png")));
    }

    #[test]
    fn what_is_there_is_left_where_that_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let (path, frames) = (folder.path().join("a.png"), folder.path().join("frames"));
        let options = Options { no_clobber: true, ..Options::default() };
        let output = Output::with(&path, Kind::Picture, options).unwrap();
        let into_folder = Output::with(&frames, Kind::Clip, options).unwrap();
        // They came while the picture was decoded.
        fs::write(&path, "precious").unwrap();
        fs::create_dir(&frames).unwrap();
        let error = output.write(&[samples::frame(4, 4, 3, 0)], &Vec::new()).unwrap_err();
        assert!(error.is_input() && error.to_string().contains("--no-clobber"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let whole = tilewright_outputs::temporary_folder(folder.path()).unwrap();
        assert!(into_folder.place_folder(whole, &frames).unwrap_err().to_string().contains("--no-clobber"));
        assert!(Output::with(&path, Kind::Picture, options).is_err() && Output::new(&path, Kind::Picture).is_ok());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_may_not_be_replaced_is_told_before_any_work() {
        let folder = tempfile::tempdir().unwrap();
        let (path, frames) = (folder.path().join("a.png"), folder.path().join("frames"));
        fs::create_dir(&frames).unwrap();
        for file in [&path, &frames.join("frame-000002.png")] {
            fs::write(file, "").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o400)).unwrap();
        }
        let error = Output::new(&path, Kind::Picture).unwrap_err();
        assert!(error.is_input() && error.to_string().contains("write-protected"), "{error}");
        let shape = Shape { samples: 1, frames: 2, width: 8, height: 8, channels: 3 };
        let output = Output::new(&frames, Kind::Clip).unwrap();
        assert!(output.check(&shape).unwrap_err().to_string().contains("write-protected"));
        output.check(&Shape { frames: 1, ..shape }).unwrap_err();
    }

    #[test]
    fn quality_and_bits_are_for_the_formats_that_have_them() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |name: &str, options: Options| {
            Output::with(&folder.path().join(name), Kind::Clip, options).err().map(|error| error.to_string())
        };
        let quality = Options { quality: Some(50), ..Options::default() };
        let bits = Options { depth: Depth::Sixteen, ..Options::default() };
        assert!(
            refused("a.jpg", quality).is_none() && refused("a.png", bits).is_none() && refused("a", bits).is_none()
        );
        for name in ["a.png", "a.webp", "a.gif", "a.safetensors", "a"] {
            assert!(refused(name, quality).unwrap().contains("--quality is for .jpg"), "{name}");
        }
        for name in ["a.jpg", "a.webp", "a.gif", "a.safetensors"] {
            assert!(refused(name, bits).unwrap().contains("--bits 16 is for .png"), "{name}");
        }
    }

    #[test]
    fn texts_that_have_no_place_are_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let texts = vec![("workflow".to_owned(), "x".repeat(70_000)), ("prompt".to_owned(), "{}".to_owned())];
        let notes = |name: &str| Output::new(&folder.path().join(name), Kind::Clip).unwrap().notes(&texts).join("");
        assert!(notes("a.jpg").contains("a.jpg is written without workflow: a JPEG has room"), "{}", notes("a.jpg"));
        assert!(notes("a.gif").contains("without workflow, prompt: a GIF"), "{}", notes("a.gif"));
        assert_eq!(notes("a.png") + &notes("a.webp") + &notes("a.safetensors"), "");
    }
}
