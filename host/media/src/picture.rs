//! Single pictures out of files.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Cursor, ErrorKind, Read, Seek, SeekFrom},
    path::Path,
    sync::Arc,
};

use image::{
    ColorType, DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, metadata::Orientation,
};

use tilewright_files::{self as files, LOOKED_AT};

use crate::{
    budget,
    error::{Error, Result},
    frame::{Frame, Pixels},
    jpeg,
};

/// A file's texts beside its pixels, by keyword: text chunks of a PNG, EXIF of a JPEG or WebP, tags
/// of a video, metadata of a safetensors file.
pub type Texts = Vec<(String, String)>;

/// True if a PNG's text chunk can have this keyword: 1 to 79 printable Latin-1 characters.
pub fn is_keyword(text: &str) -> bool {
    (1..=79).contains(&text.chars().count())
        && text.chars().all(|character| matches!(u32::from(character), 32..=126 | 161..=255))
        && text.trim() == text
}

/// Reads a PNG, JPEG, WebP or GIF, the first frame of an animation, as red, green and blue in −1…1;
/// 16-bit values keep their precision. It is turned upright if its metadata says so, as ComfyUI
/// does. Also returns notes on what was dropped.
///
/// # Errors
/// [`Error::Read`] or [`Error::Input`], also for a picture that would take more than 1.25 GiB to
/// read.
pub fn read_picture(path: &Path) -> Result<(Frame, Vec<String>)> {
    let Opened { decoder, orientation, jpeg, .. } = open_picture(path)?;
    if let Some(bytes) = jpeg {
        jpeg::check(&bytes[..bytes.len() - jpeg::END.len()]).map_err(|fault| Error::read(path, fault.reason()))?;
    }
    let mut picture = DynamicImage::from_decoder(decoder).map_err(|error| unread(path, &error))?;
    picture.apply_orientation(orientation);
    let mut notes = Vec::new();
    if is_transparent(&picture) {
        notes.push(format!("{}: its transparency is dropped", path.display()));
    }
    Ok((frame(picture), notes))
}

/// The width and height that [`read_picture`] gives a picture, by its header: no pixel is read.
///
/// # Errors
/// As [`read_picture`], but for damage behind the header.
pub(crate) fn picture_size(path: &Path) -> Result<[u32; 2]> {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    let Opened { decoder, orientation, .. } = open_picture(path)?;
    let (width, height) = decoder.dimensions();
    let lies = matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH);
    Ok(if lies { [height, width] } else { [width, height] })
}

/// The most bytes that [`read_picture`] takes at once for a file, by its header.
///
/// # Errors
/// As [`read_picture`].
pub fn picture_bytes(path: &Path) -> Result<u64> {
    let Opened { decoder, format, orientation, .. } = open_picture(path)?;
    let (width, height) = decoder.dimensions();
    let pixel = bytes_per_pixel(decoder.color_type(), format, orientation);
    Ok(u64::from(width).saturating_mul(height.into()).saturating_mul(pixel))
}

/// A picture whose header is read and checked.
struct Opened<D> {
    decoder: D,
    format: ImageFormat,
    orientation: Orientation,
    /// The bytes of a JPEG, with an end marker behind them.
    jpeg: Option<Arc<[u8]>>,
}

/// A source of a picture's bytes.
trait Source: BufRead + Seek {}

impl<S: BufRead + Seek> Source for S {}

fn open_picture(path: &Path) -> Result<Opened<impl ImageDecoder>> {
    let mut file = open(path)?;
    let length = file.get_ref().metadata().map_err(|error| Error::read(path, error))?.len();
    budget::check_file(path, length)?;
    let format = sniff(path, &mut file)?;
    if let Some([width, height]) = stated_size(format, &mut file).map_err(|error| Error::read(path, error))? {
        // The decoder makes room for a part of them before it says the size.
        budget::check(path, width, height, LEAST)?;
    }
    if format == ImageFormat::Png && is_animated(&mut file).map_err(|error| Error::read(path, error))? {
        return Err(Error::input(
            path,
            "an animated PNG, of which the frames are not read: convert it to WebP, GIF or a video, or to a still picture",
        ));
    }
    let mut jpeg: Option<Arc<[u8]>> = None;
    let source: Box<dyn Source> = match format {
        ImageFormat::Jpeg => {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(|error| Error::read(path, error))?;
            // Without an end marker, the decoder leaves the last data out.
            bytes.extend(jpeg::END);
            Box::new(Cursor::new(jpeg.insert(bytes.into()).clone()))
        }
        ImageFormat::WebP if ends_in_zeros(&mut file, length).map_err(|error| Error::read(path, error))? => {
            return Err(Error::read(path, "it ends in zeros: the download broke off; download it again"));
        }
        _ => Box::new(file),
    };
    let mut reader = ImageReader::with_format(source, format);
    let mut limits = Limits::default();
    // A PNG's limit is for the data beside the pixels; the pixels are checked against the budget
    // below.
    limits.max_alloc = Some(if format == ImageFormat::Png { budget::MOST_BESIDE } else { MOST_SCRATCH });
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|error| match &jpeg {
        Some(bytes) if !jpeg::has_header(&bytes[..bytes.len() - jpeg::END.len()]) => Error::read(path, TOO_SHORT),
        _ => unread(path, &error),
    })?;
    let (width, height) = decoder.dimensions();
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    budget::check(path, width, height, bytes_per_pixel(decoder.color_type(), format, orientation))?;
    Ok(Opened { decoder, format, orientation, jpeg })
}

/// True if the last quarter of a file is zero: a download broke off after its file had got the full
/// length. The codes of a WebP of one colour end in zeros as well, by a twentieth of it.
fn ends_in_zeros(file: &mut (impl Read + Seek), length: u64) -> io::Result<bool> {
    let quarter = length / 4;
    file.seek(SeekFrom::End(-(quarter as i64)))?;
    let mut end = Vec::new();
    file.take(quarter).read_to_end(&mut end)?;
    file.rewind()?;
    Ok(end.iter().all(|byte| *byte == 0))
}

/// The width and height that a PNG or a GIF states at its beginning; none if it is cut, and for
/// other formats, whose decoders read no more than their headers. The file is rewound afterwards.
fn stated_size(format: ImageFormat, file: &mut BufReader<File>) -> io::Result<Option<[u32; 2]>> {
    let mut start = Vec::new();
    file.take(24).read_to_end(&mut start)?;
    file.rewind()?;
    let long = |at: usize| Some(u32::from_be_bytes(*start.get(at..)?.first_chunk()?));
    let short = |at: usize| Some(u16::from_le_bytes(*start.get(at..)?.first_chunk()?).into());
    let size = match format {
        ImageFormat::Png => long(16).zip(long(20)),
        ImageFormat::Gif => short(6).zip(short(8)),
        _ => None,
    };
    Ok(size.map(|(width, height)| [width, height]))
}

/// The most chunks before a PNG's data: its decoder holds each text for as long as it reads.
const MOST_CHUNKS: usize = 1 << 16;

/// True if a PNG has several frames: what it says of them comes before its data. The file is
/// rewound afterwards. More than [`MOST_CHUNKS`] are an error.
pub(crate) fn is_animated(file: &mut BufReader<File>) -> io::Result<bool> {
    file.seek(SeekFrom::Start(8))?;
    let mut chunk = [0; 12];
    let mut chunks = 0;
    let animated = loop {
        chunks += 1;
        if chunks > MOST_CHUNKS {
            let reason =
                format!("more than {MOST_CHUNKS} chunks come before its pixels: save it again without its texts");
            return Err(io::Error::new(ErrorKind::InvalidData, reason));
        }
        match file.read_exact(&mut chunk) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break false,
            read => read?,
        }
        let [length, kind, frames] = [0, 4, 8].map(|at| [chunk[at], chunk[at + 1], chunk[at + 2], chunk[at + 3]]);
        match &kind {
            b"acTL" => break u32::from_be_bytes(frames) > 1,
            b"IDAT" | b"IEND" => break false,
            // Relative, since there may be millions of chunks, and the buffer has the next ones.
            _ => file.seek_relative(i64::from(u32::from_be_bytes(length)))?,
        }
    };
    file.rewind()?;
    Ok(animated)
}

/// The most bytes that a reader holds beside the picture, such as a GIF's frame that is no larger
/// than its canvas.
const MOST_SCRATCH: u64 = 1 << 29;

/// The fewest bytes that a pixel takes while it is read: three values of 8 bits, and as f32.
const LEAST: u64 = 3 + budget::FRAME;

/// The most bytes that a pixel takes at once while it is read: as stored, with the reader's scratch
/// or twice if it is turned; as stored and as three values of its depth; as the latter and as f32.
pub(crate) fn bytes_per_pixel(color: ColorType, format: ImageFormat, orientation: Orientation) -> u64 {
    let stored = u64::from(color.bytes_per_pixel());
    let narrowed = if color.bytes_per_pixel() / color.channel_count() > 1 { 6 } else { 3 };
    let beside = match format {
        // A progressive JPEG takes two bytes for each coefficient.
        ImageFormat::Jpeg => 2 * u64::from(color.channel_count()),
        ImageFormat::Png => 0,
        _ => 8,
    };
    let turned = if orientation == Orientation::NoTransforms { 0 } else { stored };
    [stored + beside, stored + turned, stored + narrowed, narrowed + budget::FRAME].into_iter().max().unwrap_or(stored)
}

/// Opens a plain file: a pipe would block, and a folder gives an odd error.
pub(crate) fn open(path: &Path) -> Result<BufReader<File>> {
    tilewright_files::open(path).map(BufReader::new).map_err(|error| match error.kind() {
        ErrorKind::IsADirectory | ErrorKind::InvalidInput => Error::input(path, error.to_string()),
        _ => Error::read(path, error),
    })
}

/// The format that an open file's first bytes show; the file is rewound afterwards.
pub(crate) fn sniff(path: &Path, file: &mut BufReader<File>) -> Result<ImageFormat> {
    let failed = |error| Error::read(path, error);
    let mut start = Vec::new();
    file.by_ref().take(LOOKED_AT).read_to_end(&mut start).map_err(failed)?;
    file.rewind().map_err(failed)?;
    let length = file.get_ref().metadata().map_err(failed)?.len();
    if riff_is_cut(&start, length) {
        return Err(Error::read(path, TOO_SHORT));
    }
    let expected = "a PNG, JPEG, WebP or GIF is expected";
    match files::Format::of(&start) {
        Some(files::Format::Png) => Ok(ImageFormat::Png),
        Some(files::Format::Jpeg) => Ok(ImageFormat::Jpeg),
        Some(files::Format::WebP) => Ok(ImageFormat::WebP),
        Some(files::Format::Gif) => Ok(ImageFormat::Gif),
        Some(other) => Err(Error::input(path, format!("{}: {expected}", other.name()))),
        None => Err(Error::input(path, format!("no picture: {expected}"))),
    }
}

/// True if a file of RIFF's kind, such as WebP and AVI, is shorter than it says itself, as libwebp
/// has it. A length of ones stands for one that was not known.
pub(crate) fn riff_is_cut(start: &[u8], length: u64) -> bool {
    let said = start.strip_prefix(b"RIFF").and_then(|rest| rest.first_chunk());
    said.map(|bytes| u32::from_le_bytes(*bytes)).is_some_and(|said| said != u32::MAX && u64::from(said) + 8 > length)
}

/// The reason of a file that is cut short, and what to do.
pub(crate) const TOO_SHORT: &str = "it ends too early: copy or download it again";

/// The reason of a file whose data make no sense, and what to do.
pub(crate) const DAMAGED: &str = "its data are damaged: copy or download it again";

/// The phrase of a codec for more pixels than it counts, in lower case.
const TOO_LARGE: &str = "image too large";

/// Phrases of codecs for such a file, in lower case.
const MAKE_NO_SENSE: [&str; 5] = ["crc error", "corrupt", "unknown block type", "invalid lzw", "invalid zlib"];

/// Phrases of codecs for a truncated file, in lower case.
const CUT_SHORT: [&str; 7] = [
    "unexpected end of file",
    "failed to fill whole buffer",
    "not enough bytes",
    "exhausted data",
    "image truncated",
    "no more bytes",
    "unexpected eof",
];

/// An error of a codec in one line.
pub(crate) fn one_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    let small = text.to_lowercase();
    if CUT_SHORT.iter().any(|words| small.contains(words)) {
        return TOO_SHORT.to_owned();
    }
    if MAKE_NO_SENSE.iter().any(|words| small.contains(words)) {
        return DAMAGED.to_owned();
    }
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(": ")
}

/// The error of a picture that a codec does not read.
pub(crate) fn unread(path: &Path, error: &ImageError) -> Error {
    match error {
        ImageError::Limits(_) => budget::exceeded(path),
        _ if error.to_string().to_lowercase().contains(TOO_LARGE) => budget::exceeded(path),
        _ => Error::read(path, one_line(error)),
    }
}

fn is_transparent(picture: &DynamicImage) -> bool {
    match picture {
        DynamicImage::ImageRgba8(pixels) => pixels.pixels().any(|pixel| pixel.0[3] < u8::MAX),
        DynamicImage::ImageLumaA8(pixels) => pixels.pixels().any(|pixel| pixel.0[1] < u8::MAX),
        DynamicImage::ImageRgba16(pixels) => pixels.pixels().any(|pixel| pixel.0[3] < u16::MAX),
        DynamicImage::ImageLumaA16(pixels) => pixels.pixels().any(|pixel| pixel.0[1] < u16::MAX),
        // The other types that are read have no transparency.
        _ => false,
    }
}

fn frame(picture: DynamicImage) -> Frame {
    use image::ColorType::{L16, La16, Rgb16, Rgba16};
    let (width, height) = (picture.width(), picture.height());
    if !matches!(picture.color(), L16 | La16 | Rgb16 | Rgba16) {
        let values = picture.into_rgb8().into_raw();
        return Pixels { width, height, channels: 3, values }.frame();
    }
    let deep = picture.into_rgb16().into_raw();
    let mut values = Vec::with_capacity(deep.len());
    for channel in 0..3 {
        values.extend(deep.iter().skip(channel).step_by(3).map(|&value| f32::from(value) / 32767.5 - 1.0));
    }
    Frame { width, height, channels: 3, values }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

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
    fn a_size_is_read_off_the_header_alone() {
        let grey = image::ImageBuffer::from_raw(3, 2, vec![51_u8; 6]).unwrap();
        let (_folder, path) = save(&DynamicImage::ImageLuma8(grey), "a.png");
        assert_eq!(picture_size(&path).unwrap(), [3, 2]);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 16]).unwrap();
        assert_eq!(picture_size(&path).unwrap(), [3, 2]);
        assert!(read_picture(&path).is_err());
    }

    #[test]
    fn millions_of_texts_are_refused_before_they_are_held() {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 1, 1);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().unwrap();
        for _ in 0..MOST_CHUNKS {
            writer.write_chunk(png::chunk::tEXt, b"a\0b").unwrap();
        }
        writer.write_image_data(&[0; 3]).unwrap();
        writer.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        std::fs::write(&path, bytes).unwrap();
        let error = read_picture(&path).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("more than 65536 chunks come before its pixels"), "{cause}");
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
        for bytes in [&b""[..], b"GIF89a", b"text", b"GIF89a\xff\xff\xff\xff\0\0\0;", &huge, &cut] {
            std::fs::write(&path, bytes).unwrap();
            let error = read_picture(&path).unwrap_err();
            assert!(error.to_string().starts_with(&path.display().to_string()) && error.is_input(), "{error}");
        }
        assert!(read_picture(folder.path()).unwrap_err().to_string().ends_with("a folder, not a file"));
        assert!(read_picture(&folder.path().join("missing")).is_err());
        // The error names the file's real kind; a long file is not read to its end.
        std::fs::write(&path, b"\x09\0\0\0\0\0\0\0{       }").unwrap();
        assert!(
            read_picture(&path)
                .unwrap_err()
                .to_string()
                .ends_with("a safetensors file: a PNG, JPEG, WebP or GIF is expected")
        );
        std::fs::write(&path, b"\xff\xd8\xff").unwrap();
        File::options().write(true).open(&path).unwrap().set_len(30 << 30).unwrap();
        assert!(read_picture(&path).unwrap_err().to_string().contains("more than a picture has"));
    }

    #[test]
    fn a_packed_profile_does_not_unfold_beyond_its_limit() {
        // Zeros, a hundred times as long as they are packed.
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        (0..32).for_each(|_| packed.write_all(&[0; 4 << 20]).unwrap());
        let mut profile = b"a\0\0".to_vec();
        profile.extend(packed.finish().unwrap());
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 1, 1);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().unwrap();
        writer.write_chunk(png::chunk::iCCP, &profile).unwrap();
        writer.write_image_data(&[1, 2, 3]).unwrap();
        writer.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        std::fs::write(&path, bytes).unwrap();
        // The picture is read; the profile is not needed.
        assert_eq!(Pixels::from(&read_picture(&path).unwrap().0).values, [1, 2, 3]);
    }
}
