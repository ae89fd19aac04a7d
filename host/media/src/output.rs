//! Where pictures and clips go: the path is checked before any work is done, and files get their final names when all are whole.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::{NamedTempFile, TempDir};

use crate::{
    error::{Error, Result},
    ffmpeg,
    frame::{Frame, Pixels, Shape},
    picture::{self, Texts},
    raw,
};

/// What a file's ending asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Portable network graphics, with text chunks.
    Png,
    /// JPEG of quality 95.
    Jpeg,
    /// Lossless WebP; animated for more than one frame.
    WebP,
    /// The raw output, f32, unclamped, as tensor `sample`.
    Safetensors,
    /// H.264 in MP4, by ffmpeg.
    Mp4,
    /// H.264 in Matroska, by ffmpeg.
    Mkv,
    /// VP9 in WebM, by ffmpeg.
    WebM,
    /// GIF, each frame with its own 256 colours.
    Gif,
    /// A folder of numbered PNGs.
    Folder,
}

/// What is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pictures [N, C, H, W].
    Picture,
    /// Clips [N, C, T, H, W].
    Clip,
}

const PICTURES: [(&str, Format); 5] = [
    ("png", Format::Png),
    ("jpg", Format::Jpeg),
    ("jpeg", Format::Jpeg),
    ("webp", Format::WebP),
    ("safetensors", Format::Safetensors),
];

const VIDEOS: [(&str, Format); 4] =
    [("mp4", Format::Mp4), ("mkv", Format::Mkv), ("webm", Format::WebM), ("gif", Format::Gif)];

/// Largest sides that the formats can hold, in pixels.
const LIMITS: [(Format, u32); 5] = [
    (Format::Jpeg, 65_535),
    (Format::WebP, 16_383),
    (Format::Gif, 65_535),
    (Format::Mp4, 16_384),
    (Format::Mkv, 16_384),
];

/// Formats of one frame, and formats without transparency, each with what to write instead.
const SINGLE: [Format; 2] = [Format::Png, Format::Jpeg];
const OPAQUE: [(Format, &str); 5] = [
    (Format::Jpeg, "JPEG has no transparency: write .png or .webp"),
    (Format::Mp4, "MP4 has no transparency: write .webp, a folder or .safetensors"),
    (Format::Mkv, "MKV has no transparency: write .webp, a folder or .safetensors"),
    (Format::WebM, "WebM has no transparency here: write .webp, a folder or .safetensors"),
    (Format::Gif, "GIF has no half transparency: write .webp, a folder or .safetensors"),
];

/// Where pictures or clips go; the place has been found writable.
#[derive(Clone, Debug)]
pub struct Output {
    path: PathBuf,
    /// What its ending asks for.
    pub format: Format,
}

impl Output {
    /// Checks a path before any work is done: its ending, that its folder is there and can be written, and that ffmpeg is there
    /// where it is needed.
    ///
    /// For clips, an existing folder, a name that ends in `/` or one without an ending means a folder of frames.
    ///
    /// # Errors
    /// [`Error::Output`], [`Error::Folder`] or [`Error::Tool`]; nothing has been written then.
    pub fn new(path: &Path, kind: Kind) -> Result<Self> {
        let output = Self { path: path.to_owned(), format: format(path, kind)? };
        if output.format == Format::Folder {
            if path.exists() && !path.is_dir() {
                return Err(Error::output(
                    path,
                    "a file stands there already: give a folder, or a name with an ending",
                ));
            }
        } else if path.is_dir() {
            return Err(Error::output(path, "a folder stands there already: give a file's name"));
        }
        let folder = if output.is_inside() { path } else { folder(path) };
        let unwritable = |cause| Error::Folder { path: folder.to_owned(), cause };
        temporary(folder, ".tmp").map_err(unwritable)?;
        ffmpeg::check(output.format)?;
        Ok(output)
    }

    /// The path asked for.
    pub fn path(&self) -> &Path {
        &self.path
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
        if frames > 1 && SINGLE.contains(&self.format) {
            let reason = format!(
                "this format holds one frame, the clip has {frames}: write .mp4, .webm, .gif, .webp, a folder or .safetensors"
            );
            return Err(Error::output(&self.path, reason));
        }
        holds(self.format, width, height, channels).map_err(|reason| Error::write(&self.path, reason))?;
        for name in self.names(samples) {
            match self.format {
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
                }
                _ if name.is_dir() => {
                    return Err(Error::output(name, "a folder stands there already: give a file's name"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the frames go into a folder that is there already.
    fn is_inside(&self) -> bool {
        self.format == Format::Folder && self.path.is_dir()
    }

    /// Where the pictures or clips of a batch go: the path itself for one, and else numbered from 1.
    pub(crate) fn names(&self, count: usize) -> Vec<PathBuf> {
        if count == 1 || self.format == Format::Safetensors {
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
            Box::new(move |number| self.path.with_file_name(format!("{stem}-{number:0digits$}.{ending}")))
        };
        (1..=count).map(numbered).collect()
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
            let file = temporary(folder(&self.path), ".tmp").map_err(|error| failed(error.into()))?;
            if !picture.is_whole() {
                return Err(failed("a picture lacks values".into()));
            }
            match self.format {
                Format::Safetensors => raw::write_pictures(&file, pictures),
                _ => picture::write(&Pixels::from(picture), self.format, file.as_file(), texts),
            }
            .map_err(failed)?;
            written.push(file);
        }
        for (file, name) in written.into_iter().zip(&names) {
            place(file, name)?;
        }
        Ok(names)
    }

    /// Writes one picture of 8-bit values.
    ///
    /// # Errors
    /// [`Error::Write`] where writing fails; what was written is removed.
    pub fn write_pixels(&self, pixels: &Pixels) -> Result<()> {
        let failed = |cause| Error::Write { path: self.path.clone(), source: cause };
        let file = temporary(folder(&self.path), ".tmp").map_err(|error| failed(error.into()))?;
        picture::write(pixels, self.format, file.as_file(), &Vec::new()).map_err(failed)?;
        file.persist(&self.path).map_err(|error| failed(error.error.into()))?;
        Ok(())
    }
}

fn format(path: &Path, kind: Kind) -> Result<Format> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    let find =
        |formats: &[(&str, Format)]| formats.iter().find(|(known, _)| *known == ending).map(|(_, format)| *format);
    let (picture, video) = (find(&PICTURES), find(&VIDEOS));
    match kind {
        Kind::Picture => picture.ok_or_else(|| {
            let reason = if video.is_some() { "a picture can't be written as video" } else { "unknown output ending" };
            Error::output(path, format!("{reason}: expected .png, .jpg, .webp or .safetensors"))
        }),
        Kind::Clip => {
            let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
            if slash || path.is_dir() || path.extension().is_none() {
                return Ok(Format::Folder);
            }
            picture.or(video).ok_or_else(|| {
                let expected =
                    "expected .mp4, .webm, .mkv, .gif, .webp, .safetensors, or a folder (a name that ends in /)";
                Error::output(path, format!("unknown output ending: {expected}"))
            })
        }
    }
}

/// Whether a format can hold such a picture; if not, what to do.
pub(crate) fn holds(format: Format, width: u32, height: u32, channels: usize) -> std::result::Result<(), String> {
    let side = width.max(height);
    if let Some((_, most)) = LIMITS.iter().find(|(limited, most)| *limited == format && side > *most) {
        return Err(format!("{side} pixels are more than the {most} that this format can hold: write .png"));
    }
    match OPAQUE.iter().find(|(opaque, _)| *opaque == format && channels == 4) {
        Some((_, reason)) => Err((*reason).to_owned()),
        None => Ok(()),
    }
}

/// The folder that a path is in.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file without its final name.
pub(crate) fn temporary(folder: &Path, ending: &str) -> io::Result<NamedTempFile> {
    // The umask takes away what the user does not want, as for every file.
    let mode = fs::Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(".tilewright-").suffix(ending).permissions(mode).tempfile_in(folder)
}

/// A folder without its final name.
pub(crate) fn temporary_folder(folder: &Path) -> io::Result<TempDir> {
    let mode = fs::Permissions::from_mode(0o777);
    tempfile::Builder::new().prefix(".tilewright-").permissions(mode).tempdir_in(folder)
}

/// Gives a whole file its final name.
pub(crate) fn place(file: NamedTempFile, name: &Path) -> Result<()> {
    file.as_file().sync_data().map_err(|error| Error::write(name, error))?;
    file.persist(name).map_err(|error| Error::write(name, error.error))?;
    Ok(())
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
    use super::*;
    use crate::samples;

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
        let output = |path: &str, format| Output { path: path.into(), format };
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
}
