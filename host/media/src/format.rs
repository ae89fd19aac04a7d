//! The formats of pictures and clips: their names, and what each can hold.

use std::{path::Path, str::FromStr};
use tilewright_wording::{Remedy, Setting};

use crate::{
    error::{Error, Result},
    exif, ffmpeg,
    frame::Shape,
    picture::Texts,
    still::Depth,
};

/// The format of a file, by its ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Portable network graphics, with text chunks.
    Png,
    /// JPEG, with texts in its EXIF as far as they fit.
    Jpeg,
    /// Lossless WebP, with texts in its EXIF; animated for more than one frame.
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

/// The kind of output.
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

/// Formats of one frame, and formats without transparency, the latter with the formats to write
/// instead.
const SINGLE: [Format; 2] = [Format::Png, Format::Jpeg];
const OPAQUE: [(Format, &str); 5] = [
    (Format::Jpeg, "JPEG has no transparency: write .png or .webp"),
    (Format::Mp4, "MP4 has no transparency: write .webp"),
    (Format::Mkv, "MKV has no transparency: write .webp"),
    (Format::WebM, "WebM has no transparency here: write .webp"),
    (Format::Gif, "GIF has no half transparency: write .webp"),
];

impl Format {
    /// The ending of its files; empty for folders.
    pub fn ending(self) -> &'static str {
        PICTURES.iter().chain(&VIDEOS).find(|(_, format)| *format == self).map_or("", |(name, _)| *name)
    }

    /// True if a path's ending is one of clips alone.
    pub fn is_of_clips(path: &Path) -> bool {
        let ending = ending(path);
        VIDEOS.iter().any(|(known, _)| *known == ending)
    }

    /// True if it holds clips alone.
    pub fn is_video(self) -> bool {
        VIDEOS.iter().any(|(_, format)| *format == self)
    }

    /// True if it can hold this kind of output.
    pub(crate) fn serves(self, kind: Kind) -> bool {
        kind == Kind::Clip || PICTURES.iter().any(|(_, format)| *format == self)
    }

    /// The objection to a number of frames that it can't hold.
    pub(crate) fn objection_to_frames(self, frames: usize) -> Option<String> {
        (frames > 1 && SINGLE.contains(&self)).then(|| {
            let others = Remedy::OtherOutputs;
            format!("this format holds one frame, the clip has {frames}: write .mp4, .webm, .gif, .webp{others}")
        })
    }

    /// Checks that outputs of a kind and shape can be written in this format on this machine.
    ///
    /// # Errors
    /// One line.
    pub fn check(self, kind: Kind, shape: &Shape) -> std::result::Result<(), String> {
        if !self.serves(kind) {
            return Err("a picture can't be written as video".into());
        }
        if let Some(objection) = self.objection_to_frames(shape.frames) {
            return Err(objection);
        }
        holds(self, shape.width, shape.height, shape.channels)?;
        ffmpeg::check(self).map_err(|error| error.to_string())
    }

    /// The objection to a quality or depth that it lacks, with the formats that have it.
    pub(crate) fn objection(self, quality: Option<u8>, depth: Depth) -> Option<String> {
        use Format::{Folder, Jpeg, Mkv, Mp4, Png, WebM};
        match self {
            Jpeg | Mp4 | Mkv | WebM => {}
            _ if quality.is_some() => {
                return Some(format!(
                    "has no quality to choose, being lossless or of few colours: {} is for .jpg, .mp4, .mkv and .webm",
                    Setting::Quality
                ));
            }
            _ => {}
        }
        match self {
            Png | Folder => None,
            _ if depth == Depth::Sixteen => Some(format!(
                "can't hold 16 bits: {} 16 is for .png and folders of them, and .safetensors holds f32 anyway",
                Setting::Bits
            )),
            _ => None,
        }
    }

    /// The keywords of texts that a file of this format can't hold, with the formats that can.
    pub(crate) fn omitted_texts(self, texts: &Texts) -> Option<String> {
        let (keywords, reason): (Vec<String>, _) = match self {
            Format::Jpeg => {
                let reason = "a JPEG has room for 64 KiB of texts: write .png or .webp to keep all";
                (exif::encode(texts, exif::MOST_IN_JPEG).1, reason)
            }
            Format::WebP => (exif::encode(texts, exif::MOST).1, "a WebP has no more tags for texts: write .png"),
            Format::Gif => {
                let keywords = texts.iter().map(|(keyword, _)| keyword.clone()).collect();
                (keywords, "a GIF has no place for texts: write .webp, .mp4 or a folder to keep all")
            }
            _ => return None,
        };
        (!keywords.is_empty()).then(|| format!("without {}: {reason}", keywords.join(", ")))
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = || PICTURES.iter().chain(&VIDEOS);
        all().find(|(name, _)| *name == text).map(|(_, format)| *format).ok_or_else(|| {
            let names: Vec<_> = all().map(|(name, _)| *name).filter(|name| *name != "jpeg").collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

/// A path's ending, in lower case.
pub(crate) fn ending(path: &Path) -> String {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase()
}

/// The format of a path.
pub(crate) fn format(path: &Path, kind: Kind) -> Result<Format> {
    let ending = ending(path);
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

/// Checks that a format can hold a picture; the error names the remedy.
pub(crate) fn holds(format: Format, width: u32, height: u32, channels: usize) -> std::result::Result<(), String> {
    let side = width.max(height);
    if let Some((_, most)) = LIMITS.iter().find(|(limited, most)| *limited == format && side > *most) {
        return Err(format!("{side} pixels are more than the {most} that this format can hold: write .png"));
    }
    match OPAQUE.iter().find(|(opaque, _)| *opaque == format && channels == 4) {
        Some((Format::Jpeg, reason)) => Err((*reason).to_owned()),
        Some((_, reason)) => Err(format!("{reason}{}", Remedy::OtherOutputs)),
        None => Ok(()),
    }
}
