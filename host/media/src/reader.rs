//! Clips out of files, a frame at a time.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use tilewright_files::{self as files, LOOKED_AT};

use crate::{
    animation,
    error::{Error, Result},
    ffmpeg::Decoder,
    format::ending,
    frame::{Frame, Rate, Shape},
    picture, raw,
};

const VIDEOS: [&str; 5] = ["mp4", "webm", "mkv", "mov", "avi"];
const PICTURES: [&str; 5] = ["png", "jpg", "jpeg", "webp", "gif"];

/// The endings that stand for the contents of files without one; others may be pictures.
const CONTENTS: [(files::Format, &str); 4] = [
    (files::Format::Mp4, "mp4"),
    (files::Format::Matroska, "mkv"),
    (files::Format::Avi, "avi"),
    (files::Format::Safetensors, "safetensors"),
];

fn ending_by_content(path: &Path) -> Result<&'static str> {
    let mut start = Vec::new();
    let read = picture::open(path)?.take(LOOKED_AT).read_to_end(&mut start);
    read.map_err(|error| Error::read(path, error))?;
    let found = files::Format::of(&start);
    Ok(CONTENTS.iter().find(|(format, _)| found == Some(*format)).map_or("", |(_, ending)| *ending))
}

/// The frames of a video, an animation, a picture, a folder of pictures or a safetensors file.
pub struct ClipReader {
    shape: Shape,
    rate: Option<Rate>,
    notes: Vec<String>,
    source: Source,
}

enum Source {
    Video(Decoder),
    Animation(animation::Reader),
    Pictures { paths: Vec<PathBuf>, next: usize },
    Raw { reader: raw::Reader, next: usize },
}

impl ClipReader {
    /// Opens a file by its ending:
    ///
    /// | file | read by |
    /// |---|---|
    /// | `.mp4`, `.webm`, `.mkv`, `.mov`, `.avi` | ffmpeg |
    /// | `.gif`, `.png`, `.jpg`, `.webp` | this crate |
    /// | `.safetensors` with a tensor `sample`, f64, f32, f16 or bf16 | this crate |
    /// | a folder of pictures | this crate, in the order of their names |
    ///
    /// A tensor is [N, C, H, W] or [N, C, T, H, W]. Of pictures, the first one's header is read. A
    /// file without an ending, such as standard input, is known by its first bytes.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Input`], [`Error::Ffmpeg`], or [`Error::Tool`] if ffmpeg is needed
    /// and missing.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::pictures(list_pictures(path)?);
        }
        let ending = match ending(path) {
            none if none.is_empty() => ending_by_content(path)?.to_owned(),
            ending => ending,
        };
        if VIDEOS.contains(&ending.as_str()) {
            let decoder = Decoder::open(path)?;
            let (shape, rate) = (decoder.shape, Some(decoder.rate));
            return Ok(Self { shape, rate, notes: Vec::new(), source: Source::Video(decoder) });
        }
        if ending == "safetensors" {
            let reader = raw::Reader::open(path)?;
            let (shape, rate) = (reader.shape, None);
            return Ok(Self { shape, rate, notes: Vec::new(), source: Source::Raw { reader, next: 0 } });
        }
        if !ending.is_empty() && !PICTURES.contains(&ending.as_str()) {
            // A missing file is reported as such.
            drop(picture::open(path)?);
            let expected = "expected .mp4, .webm, .mkv, .mov, .avi, .gif, .webp, .png, .jpg, .safetensors or a folder";
            return Err(Error::input(path, format!("unknown input ending: {expected}")));
        }
        let format = picture::sniff(path, &mut picture::open(path)?)?;
        let moving = matches!(format, image::ImageFormat::Gif | image::ImageFormat::WebP);
        match if moving { animation::Reader::open(path, format)? } else { None } {
            Some(reader) => {
                let (shape, rate) = (reader.shape, reader.rate);
                Ok(Self { shape, rate, notes: Vec::new(), source: Source::Animation(reader) })
            }
            None => Self::pictures(vec![path.to_owned()]),
        }
    }

    fn pictures(paths: Vec<PathBuf>) -> Result<Self> {
        let [width, height] = picture::picture_size(&paths[0])?;
        let shape = Shape { samples: 1, frames: paths.len(), width, height, channels: 3 };
        Ok(Self { shape, rate: None, notes: Vec::new(), source: Source::Pictures { paths, next: 0 } })
    }

    /// Reads the pixels of the first `count` pictures and keeps none, so that one which is cut or
    /// damaged behind its header, or of another size, is found before it is waited for. Videos,
    /// animations and raw values are checked as their frames are taken.
    ///
    /// # Errors
    /// As [`ClipReader::next_frame`].
    pub fn check(&self, count: usize) -> Result<()> {
        match &self.source {
            Source::Pictures { paths, .. } => {
                paths.iter().take(count).try_for_each(|path| read_of_size(path, self.shape).map(drop))
            }
            Source::Video(_) | Source::Animation(_) | Source::Raw { .. } => Ok(()),
        }
    }

    /// The shape of the frames; a damaged video may have fewer of them, and notes say so.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Frames per second, if the file states them.
    pub fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Faults and omissions so far, for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The next frame in −1…1; none after the last. Frames come in order, sample by sample. Raw
    /// values are not clamped.
    ///
    /// # Errors
    /// As [`ClipReader::open`]; also for a picture of another size than the first.
    pub fn next_frame(&mut self) -> Result<Option<Frame>> {
        let Shape { samples, frames, .. } = self.shape;
        match &mut self.source {
            Source::Video(decoder) => decoder.next_frame(&mut self.notes),
            Source::Animation(reader) => reader.next_frame(),
            Source::Raw { next, .. } if *next == samples * frames => Ok(None),
            Source::Raw { reader, next } => {
                *next += 1;
                reader.frame((*next - 1) / frames, (*next - 1) % frames).map(Some)
            }
            Source::Pictures { paths, next } => {
                let Some(path) = paths.get(*next) else { return Ok(None) };
                *next += 1;
                let (frame, notes) = read_of_size(path, self.shape)?;
                self.notes.extend(notes);
                Ok(Some(frame))
            }
        }
    }
}

/// Reads a picture of a clip's size.
fn read_of_size(path: &Path, Shape { width, height, .. }: Shape) -> Result<(Frame, Vec<String>)> {
    let (frame, notes) = picture::read_picture(path)?;
    if (frame.width, frame.height) != (width, height) {
        let reason = format!("{}×{}, but the first is {width}×{height}", frame.width, frame.height);
        return Err(Error::input(path, format!("the pictures of a clip have one size: this is {reason}")));
    }
    Ok((frame, notes))
}

/// The pictures of a folder by name; hidden files and others are skipped.
fn list_pictures(folder: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |error| Error::read(folder, error);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let hidden = name.as_encoded_bytes().starts_with(b".");
        if !hidden && PICTURES.contains(&ending(Path::new(&name)).as_str()) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Err(Error::input(folder, "holds no pictures (.png, .jpg, .webp, .gif)"));
    }
    names.sort();
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

#[cfg(test)]
mod tests;
