//! Single pictures into files.

use std::{
    fs::File,
    io::{BufWriter, Write},
};

use image::{
    ImageEncoder, ImageError,
    codecs::{jpeg::JpegEncoder, webp::WebPEncoder},
};

use crate::{
    error::Cause,
    exif,
    format::{Format, holds},
    frame::{Frame, Pixels},
    picture::Texts,
};

/// The default quality of a JPEG.
const JPEG_QUALITY: u8 = 95;

/// The depth of a picture's values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// 8 bits, 0…255.
    #[default]
    Eight,
    /// 16 bits, 0…65535, in PNG alone.
    Sixteen,
}

/// The settings of a picture's encoder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Still {
    pub format: Format,
    /// The quality of a JPEG, 1 to 100.
    pub quality: Option<u8>,
    /// The depth of a PNG.
    pub depth: Depth,
}

impl Still {
    /// Writes one picture; the file is not synced.
    pub fn write(self, frame: &Frame, file: &File, texts: &Texts) -> Result<(), Cause> {
        if self.depth == Depth::Eight {
            return self.write_pixels(&Pixels::from(frame), file, texts);
        }
        if self.format != Format::Png {
            return Err("only PNG holds 16 bits".into());
        }
        let mut writer = BufWriter::new(file);
        let size = (frame.width, frame.height);
        write_png(size, frame.channels, png::BitDepth::Sixteen, &frame.deep(), &mut writer, texts)?;
        Ok(writer.flush()?)
    }

    /// Writes one picture of 8-bit values.
    pub fn write_pixels(self, pixels: &Pixels, file: &File, texts: &Texts) -> Result<(), Cause> {
        holds(self.format, pixels.width, pixels.height, pixels.channels)?;
        let (width, height, values) = (pixels.width, pixels.height, &pixels.values);
        let mut writer = BufWriter::new(file);
        match self.format {
            Format::Png => {
                let depth = png::BitDepth::Eight;
                write_png((width, height), pixels.channels, depth, values, &mut writer, texts)?;
            }
            Format::Jpeg => {
                let mut encoder = JpegEncoder::new_with_quality(&mut writer, self.quality.unwrap_or(JPEG_QUALITY));
                encoder.set_exif_metadata(exif::encode(texts, exif::MOST_IN_JPEG).0)?;
                encoder.write_image(values, width, height, pixels.color()).map_err(of_image)?;
            }
            Format::WebP => {
                let mut encoder = WebPEncoder::new_lossless(&mut writer);
                encoder.set_exif_metadata(exif::encode(texts, exif::MOST).0)?;
                encoder.write_image(values, width, height, pixels.color()).map_err(of_image)?;
            }
            _ => return Err("pixels are no raw output".into()),
        }
        Ok(writer.flush()?)
    }
}

/// The cause of a picture that can't be written: the system's own error, if there is one. The
/// encoders' errors don't give it as their source, where a full disk is looked for.
fn of_image(error: ImageError) -> Cause {
    match error {
        ImageError::IoError(error) => error.into(),
        error => error.into(),
    }
}

/// The same for a PNG.
fn of_png(error: png::EncodingError) -> Cause {
    match error {
        png::EncodingError::IoError(error) => error.into(),
        error => error.into(),
    }
}

/// Writes a PNG. `values` are bytes; 16-bit values have the more significant byte first.
pub(crate) fn write_png(
    (width, height): (u32, u32),
    channels: usize,
    depth: png::BitDepth,
    values: &[u8],
    writer: &mut impl Write,
    texts: &Texts,
) -> Result<(), Cause> {
    let mut encoder = png::Encoder::new(writer, width, height);
    encoder.set_color(match channels {
        1 => png::ColorType::Grayscale,
        4 => png::ColorType::Rgba,
        _ => png::ColorType::Rgb,
    });
    encoder.set_depth(depth);
    // Models were trained on sRGB, and every viewer assumes it.
    encoder.set_source_srgb(png::SrgbRenderingIntent::Perceptual);
    for (keyword, text) in texts {
        // As Pillow does for ComfyUI's nodes: plain text if Latin-1 can hold it, else UTF-8.
        if text.chars().all(|character| u32::from(character) < 256 && character != '\0') {
            encoder.add_text_chunk(keyword.clone(), text.clone())?;
        } else {
            encoder.add_itxt_chunk(keyword.clone(), text.clone())?;
        }
    }
    let mut writer = encoder.write_header().map_err(of_png)?;
    writer.write_image_data(values).map_err(of_png)?;
    writer.finish().map_err(of_png)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Seek};

    use super::*;
    use crate::samples;

    fn plain(format: Format) -> Still {
        Still { format, quality: None, depth: Depth::Eight }
    }

    fn written(still: Still, frame: &Frame, texts: &Texts) -> Vec<u8> {
        let mut file = tempfile::tempfile().unwrap();
        still.write(frame, &file, texts).unwrap();
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn png(bytes: &[u8]) -> png::Reader<std::io::Cursor<&[u8]>> {
        png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap()
    }

    #[test]
    fn a_full_disk_is_the_cause_itself() {
        let values = (0..256 * 256 * 3_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let pixels = Pixels { width: 256, height: 256, channels: 3, values };
        for format in [Format::Png, Format::Jpeg, Format::WebP] {
            let full = File::options().write(true).open("/dev/full").unwrap();
            let cause = plain(format).write_pixels(&pixels, &full, &Texts::new()).unwrap_err();
            let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
            assert_eq!(kind, Some(io::ErrorKind::StorageFull), "{format:?}: {cause}");
        }
    }

    #[test]
    fn sixteen_bits_are_rounded_from_the_values_themselves() {
        let values = vec![-1.0, 1.0, 0.0, 0.5, -2.0, 2.0, 1.0 / 65_535.0, -0.999, f32::NAN];
        let frame = Frame { width: 3, height: 1, channels: 3, values: values.clone() };
        let bytes = written(Still { depth: Depth::Sixteen, ..plain(Format::Png) }, &frame, &Texts::new());
        let mut reader = png(&bytes);
        assert_eq!((reader.info().bit_depth, reader.info().color_type), (png::BitDepth::Sixteen, png::ColorType::Rgb));
        let mut raw = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut raw).unwrap();
        let found: Vec<u16> = raw.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
        // Interleaved: the planes hold three values each.
        let expected: Vec<u16> = (0..9)
            .map(|place| f64::from(values[place % 3 * 3 + place / 3]))
            .map(|value| ((value + 1.0) / 2.0 * 65_535.0).round_ties_even().clamp(0.0, 65_535.0) as u16)
            .collect();
        assert_eq!(found, expected);
        assert_eq!((found[0], found[3], found[6]), (0, 65_535, 32_768));
    }

    #[test]
    fn pngs_say_that_they_are_srgb() {
        let sixteen = Still { depth: Depth::Sixteen, ..plain(Format::Png) };
        for (still, channels) in [(plain(Format::Png), 3), (sixteen, 4), (plain(Format::Png), 1)] {
            let bytes = written(still, &samples::frame(4, 3, channels, 0), &Texts::new());
            assert_eq!(png(&bytes).info().srgb, Some(png::SrgbRenderingIntent::Perceptual));
        }
    }

    #[test]
    fn a_lower_quality_makes_a_smaller_jpeg() {
        let frame = samples::frame(64, 64, 3, 0);
        let length = |quality| written(Still { quality, ..plain(Format::Jpeg) }, &frame, &Texts::new()).len();
        assert_eq!(length(None), length(Some(JPEG_QUALITY)));
        assert!(length(Some(20)) < length(None) && length(None) < length(Some(100)));
    }
}
