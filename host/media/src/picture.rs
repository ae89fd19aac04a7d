//! Single pictures out of files.

use std::{
    fs::{self, File},
    io::{BufReader, Read},
    path::Path,
};

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, metadata::Orientation};

use crate::{
    error::{Error, Result},
    frame::{Frame, Pixels},
};

/// What a file says beside its pixels, by keyword: text chunks of a PNG, EXIF of a JPEG or WebP, tags of a video, metadata of a
/// safetensors file.
pub type Texts = Vec<(String, String)>;

/// The most pixels of a picture that is read: 16,384 by 16,384, 3 GiB as f32.
const MOST_PIXELS: u64 = 1 << 28;

/// Whether a PNG's text chunk can have this keyword: 1 to 79 printable Latin-1 characters.
pub fn is_keyword(text: &str) -> bool {
    (1..=79).contains(&text.chars().count())
        && text.chars().all(|character| matches!(u32::from(character), 32..=126 | 161..=255))
        && text.trim() == text
}

/// Reads a PNG, JPEG, WebP or GIF, the first frame of an animation, as red, green and blue in −1…1; 16-bit values keep their
/// precision. It is turned upright where its metadata says so, as ComfyUI does. Gives notes beside it, for what was dropped.
///
/// # Errors
/// [`Error::Read`] or [`Error::Input`], also for more than 2²⁸ pixels.
pub fn read_picture(path: &Path) -> Result<(Frame, Vec<String>)> {
    let mut reader = ImageReader::with_format(open(path)?, sniff(path)?);
    let mut limits = Limits::default();
    limits.max_alloc = Some(MOST_PIXELS * 8);
    reader.limits(limits);
    let damaged = |error| Error::read(path, one_line(&error));
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    check_size(path, width, height)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    picture.apply_orientation(orientation);
    let mut notes = Vec::new();
    if picture.color().has_alpha() && is_transparent(&picture) {
        notes.push(format!("{}: its transparency is dropped", path.display()));
    }
    Ok((frame(&picture), notes))
}

/// Refuses sizes that would not fit memory.
pub(crate) fn check_size(path: &Path, width: u32, height: u32) -> Result<()> {
    if width == 0 || height == 0 {
        return Err(Error::input(path, "its frames have no pixels"));
    }
    if u64::from(width) * u64::from(height) > MOST_PIXELS {
        return Err(Error::input(path, format!("{width}×{height} pixels are more than can be read: scale it down")));
    }
    Ok(())
}

/// Opens a plain file: a pipe would block, and a folder gives an odd error.
pub(crate) fn open(path: &Path) -> Result<BufReader<File>> {
    let facts = fs::metadata(path).map_err(|error| Error::read(path, error))?;
    if !facts.is_file() {
        return Err(Error::input(path, "is no file"));
    }
    Ok(BufReader::new(File::open(path).map_err(|error| Error::read(path, error))?))
}

/// The format that a file's first bytes show.
pub(crate) fn sniff(path: &Path) -> Result<ImageFormat> {
    let mut start = Vec::new();
    open(path)?.take(64).read_to_end(&mut start).map_err(|error| Error::read(path, error))?;
    let readable = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif];
    let found = image::guess_format(&start).ok().filter(|format| readable.contains(format));
    found.ok_or_else(|| Error::input(path, "is no PNG, JPEG, WebP or GIF"))
}

/// An error of a codec in one line.
pub(crate) fn one_line(error: &dyn std::fmt::Display) -> String {
    error.to_string().lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(": ")
}

fn is_transparent(picture: &DynamicImage) -> bool {
    match picture {
        DynamicImage::ImageRgba8(pixels) => pixels.pixels().any(|pixel| pixel.0[3] < u8::MAX),
        DynamicImage::ImageLumaA8(pixels) => pixels.pixels().any(|pixel| pixel.0[1] < u8::MAX),
        other => other.to_rgba16().pixels().any(|pixel| pixel.0[3] < u16::MAX),
    }
}

fn frame(picture: &DynamicImage) -> Frame {
    use image::ColorType::{L16, La16, Rgb16, Rgba16};
    let (width, height) = (picture.width(), picture.height());
    if !matches!(picture.color(), L16 | La16 | Rgb16 | Rgba16) {
        let values = picture.to_rgb8().into_raw();
        return Pixels { width, height, channels: 3, values }.frame();
    }
    let deep = picture.to_rgb16().into_raw();
    let plane = |channel| deep.iter().skip(channel).step_by(3).map(|&value| f32::from(value) / 32767.5 - 1.0);
    Frame { width, height, channels: 3, values: (0..3).flat_map(plane).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(picture: &DynamicImage, name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        picture.save(&path).unwrap();
        (folder, path)
    }

    #[test]
    fn keywords_are_those_that_png_allows() {
        assert!(
            is_keyword("prompt")
                && !is_keyword("")
                && !is_keyword(&"x".repeat(80))
                && !is_keyword(" a")
                && !is_keyword("日本")
        );
    }

    #[test]
    fn deep_pictures_keep_their_precision() {
        let deep = image::ImageBuffer::from_raw(2, 1, vec![0_u16, 1, 65_535, 32_768, 300, 40_000]).unwrap();
        let (_folder, path) = save(&DynamicImage::ImageRgb16(deep), "a.png");
        let (frame, notes) = read_picture(&path).unwrap();
        let scaled = |value: u16| f32::from(value) / 32767.5 - 1.0;
        let expected = [0, 32_768, 1, 300, 65_535, 40_000].map(scaled);
        assert_eq!((frame.values.as_slice(), notes.len()), (expected.as_slice(), 0));
    }

    #[test]
    fn transparency_is_dropped_with_a_note_where_there_is_any() {
        for (alpha, noted) in [(255, 0), (128, 1)] {
            let picture = image::ImageBuffer::from_raw(1, 1, vec![0, 255, 51, alpha]).unwrap();
            let (_folder, path) = save(&DynamicImage::ImageRgba8(picture), "a.png");
            let (frame, notes) = read_picture(&path).unwrap();
            assert_eq!((Pixels::from(&frame).values.as_slice(), notes.len()), ([0, 255, 51].as_slice(), noted));
        }
    }

    #[test]
    fn grey_becomes_three_channels() {
        let grey = image::ImageBuffer::from_raw(1, 1, vec![51_u8]).unwrap();
        let (_folder, path) = save(&DynamicImage::ImageLuma8(grey), "a.webp.png");
        assert_eq!(Pixels::from(&read_picture(&path).unwrap().0).values, [51, 51, 51]);
    }

    #[test]
    fn hostile_files_give_errors_that_name_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        // A sound header of 65,535 by 65,535 pixels, with nothing behind it.
        let mut huge = Vec::new();
        let mut encoder = png::Encoder::new(&mut huge, 65_535, 65_535);
        encoder.set_color(png::ColorType::Rgb);
        drop(encoder.write_header().unwrap());
        let whole = crate::samples::frame(9, 9, 3, 0);
        let mut cut = Vec::new();
        let values = Pixels::from(&whole).values;
        crate::still::write_png((9, 9), 3, png::BitDepth::Eight, &values, &mut cut, &Vec::new()).unwrap();
        cut.truncate(cut.len() / 2);
        for bytes in [&b""[..], b"GIF89a", b"text", &huge, &cut] {
            fs::write(&path, bytes).unwrap();
            let error = read_picture(&path).unwrap_err();
            assert!(error.to_string().starts_with(&path.display().to_string()) && error.is_input(), "{error}");
        }
        assert!(read_picture(folder.path()).unwrap_err().to_string().ends_with("is no file"));
        assert!(read_picture(&folder.path().join("missing")).is_err());
    }
}
