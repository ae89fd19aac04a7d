//! Properties of a picture, an animation or a video, and its texts, without unpacking a frame.

use std::{fs::File, io::BufReader, path::Path};

use image::{ImageDecoder, ImageFormat, ImageReader, metadata::Orientation};
use serde::Serialize;
use tilewright_files::Format;

use crate::{
    animation::{self, Extent},
    budget,
    error::{Error, Result},
    ffmpeg,
    frame::{Rate, Shape},
    picture::{self, Texts},
    texts,
};

/// The most bytes of texts that are unpacked; what is longer is left out.
const MOST_TEXT: usize = 16 << 20;

/// A picture's or clip's properties.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MediaInfo {
    /// Pixels, frames and channels.
    pub shape: Shape,
    /// Frames per second, if it moves.
    pub rate: Option<Rate>,
    /// A PNG's text chunks, the texts in a JPEG's or WebP's EXIF, or a video's tags, by keyword.
    pub texts: Texts,
    /// The reason if it has more pixels than an encode reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unencodable: Option<String>,
}

impl MediaInfo {
    /// Inspects a file of this format.
    ///
    /// # Errors
    /// [`Error::Input`] for other formats, [`Error::Tool`] if ffmpeg is needed and missing, others
    /// if the file is damaged.
    pub fn of(path: &Path, format: Format) -> Result<Self> {
        match format {
            Format::Png => Self::still(path, ImageFormat::Png),
            Format::Jpeg => Self::still(path, ImageFormat::Jpeg),
            Format::WebP => Self::moving(path, ImageFormat::WebP),
            Format::Gif => Self::moving(path, ImageFormat::Gif),
            _ if format.is_video() => {
                let (shape, rate) = ffmpeg::probe_file(path)?;
                Ok(Self { shape, rate: Some(rate), texts: ffmpeg::tags(path)?, unencodable: None })
            }
            other => Err(Error::input(path, format!("{}, no picture or video", other.name()))),
        }
    }

    fn moving(path: &Path, format: ImageFormat) -> Result<Self> {
        let Some(Extent { shape, rate, too_large }) = animation::look(path, format)? else {
            return Self::still(path, format);
        };
        let unencodable = too_large.map(reason);
        if shape.frames > 1 {
            return Ok(Self { shape, rate, texts: texts::of_file(path), unencodable });
        }
        // A GIF of one frame is read as an animation, too.
        Ok(Self { unencodable, ..Self::still(path, format)? })
    }

    fn still(path: &Path, format: ImageFormat) -> Result<Self> {
        let damaged = |error| Error::read(path, picture::one_line(&error));
        let mut file = picture::open(path)?;
        if format == ImageFormat::Png {
            picture::is_animated(&mut file).map_err(|error| Error::read(path, error))?;
        }
        budget::check_file(path, file.get_ref().metadata().map_err(|error| Error::read(path, error))?.len())?;
        let mut reader = ImageReader::with_format(file, format);
        let mut limits = image::Limits::default();
        limits.max_alloc = Some(budget::MOST_BESIDE);
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(damaged)?;
        let (width, height) = decoder.dimensions();
        let color = decoder.color_type();
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let fits = budget::check(path, width, height, picture::bytes_per_pixel(color, format, orientation));
        let channels = usize::from(color.channel_count());
        let texts = match format {
            ImageFormat::Png => png_texts(picture::open(path)?),
            _ => texts::of_exif(decoder),
        };
        let shape = Shape { samples: 1, frames: 1, width, height, channels };
        Ok(Self { shape, rate: None, texts, unencodable: fits.err().map(reason) })
    }
}

/// An error without the file's name.
fn reason(error: Error) -> String {
    match error {
        Error::Input { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// The texts before a PNG's pixels; damaged and overlong ones are left out.
fn png_texts(file: BufReader<File>) -> Texts {
    let limits = png::Limits { bytes: budget::MOST_BESIDE as usize };
    let reader = png::Decoder::new_with_limits(file, limits).read_info();
    reader.map(|reader| texts::of_info(reader.info(), MOST_TEXT)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::{ClipWriter, Kind, Output, samples};

    #[test]
    fn what_was_written_is_said_again() {
        let folder = tempfile::tempdir().unwrap();
        let texts: Texts = vec![("workflow".into(), "{}".into()), ("prompt".into(), "日本".into())];
        let write = |name: &str, frames: usize| {
            let path = folder.path().join(name);
            let shape = Shape { samples: 1, frames, width: 16, height: 8, channels: 3 };
            let output = Output::new(&path, Kind::Clip).unwrap();
            let mut writer = ClipWriter::begin(&output, shape, Rate::new(8, 1).unwrap(), &texts).unwrap();
            (0..frames).for_each(|index| writer.frame(0, index, &samples::frame(16, 8, 3, index)).unwrap());
            writer.finish().unwrap();
            path
        };
        let look = MediaInfo::of(&write("a.png", 1), Format::Png).unwrap();
        assert_eq!((look.shape.width, look.shape.height, look.shape.channels, look.rate), (16, 8, 3, None));
        assert_eq!(look.texts, texts);
        for (name, format, kept) in [("a.gif", Format::Gif, &Texts::new()), ("a.webp", Format::WebP, &texts)] {
            let look = MediaInfo::of(&write(name, 3), format).unwrap();
            assert_eq!((look.shape.frames, look.rate), (3, Rate::new(8, 1)), "{name}");
            assert_eq!(look.texts, *kept, "{name}");
        }
        for (name, format) in [("a.jpg", Format::Jpeg), ("still.webp", Format::WebP)] {
            let look = MediaInfo::of(&write(name, 1), format).unwrap();
            assert_eq!((look.shape.frames, look.texts), (1, texts.clone()), "{name}");
        }
        if samples::ffmpeg() {
            let look = MediaInfo::of(&write("a.mp4", 3), Format::Mp4).unwrap();
            assert_eq!((look.shape.frames, look.shape.width, look.rate), (3, 16, Rate::new(8, 1)));
            assert!(look.texts.contains(&("workflow".into(), "{}".into())), "{:?}", look.texts);
        }
        assert!(MediaInfo::of(&write("b.png", 1), Format::Html).is_err());
    }

    #[test]
    fn what_is_too_large_to_be_read_is_said_as_far_as_its_headers_tell() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gif");
        for frames in [1, 3] {
            let mut bytes = Vec::new();
            let mut encoder = gif::Encoder::new(&mut bytes, 60_000, 50_000, &[0, 0, 0, 255, 255, 255]).unwrap();
            for _ in 0..frames {
                encoder
                    .write_frame(&gif::Frame {
                        width: 1,
                        height: 1,
                        delay: 10,
                        buffer: Cow::Owned(vec![0]),
                        ..gif::Frame::default()
                    })
                    .unwrap();
            }
            drop(encoder);
            std::fs::write(&path, bytes).unwrap();
            let look = MediaInfo::of(&path, Format::Gif).unwrap();
            assert_eq!((look.shape.width, look.shape.height, look.shape.frames), (60_000, 50_000, frames));
            let reason = look.unencodable.unwrap();
            assert!(reason.starts_with("60000×50000 pixels take 75.4 GiB to be read, of at most 1.25"), "{reason}");
            assert!(crate::ClipReader::open(&path).err().unwrap().to_string().ends_with(&reason));
        }
        // A canvas of 16384 by 16384 around frames of 16 by 8.
        let path = folder.path().join("a.webp");
        let shape = Shape { samples: 1, frames: 2, width: 16, height: 8, channels: 3 };
        let output = Output::new(&path, Kind::Clip).unwrap();
        let mut writer = ClipWriter::begin(&output, shape, Rate::new(8, 1).unwrap(), &Texts::new()).unwrap();
        (0..2).for_each(|index| writer.frame(0, index, &samples::frame(16, 8, 3, index)).unwrap());
        writer.finish().unwrap();
        assert_eq!(MediaInfo::of(&path, Format::WebP).unwrap().unencodable, None);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[24..30].copy_from_slice(&[0xff, 0x3f, 0, 0xff, 0x3f, 0]);
        std::fs::write(&path, bytes).unwrap();
        let look = MediaInfo::of(&path, Format::WebP).unwrap();
        assert_eq!(
            (look.shape.width, look.shape.height, look.shape.frames, look.rate),
            (16_384, 16_384, 2, Rate::new(8, 1))
        );
        assert!(look.unencodable.unwrap().ends_with("of at most 1.25 GiB: scale it down"));
    }

    #[test]
    fn a_packed_text_does_not_unfold_beyond_its_limit() {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 1, 1);
        encoder.set_color(png::ColorType::Rgb);
        encoder.add_ztxt_chunk("bomb".into(), "0".repeat(MOST_TEXT + 1)).unwrap();
        encoder.add_ztxt_chunk("small".into(), "0".repeat(99)).unwrap();
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[1, 2, 3]).unwrap();
        writer.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        std::fs::write(&path, bytes).unwrap();
        let texts = MediaInfo::of(&path, Format::Png).unwrap().texts;
        assert_eq!(texts.iter().map(|(keyword, _)| keyword.as_str()).collect::<Vec<_>>(), ["small"]);
    }
}
