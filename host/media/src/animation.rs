//! Animated GIF out, and animated GIF and WebP in.

use std::{
    fs::File,
    io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use image::{
    AnimationDecoder, ImageDecoder, ImageFormat,
    codecs::{gif::GifDecoder, webp::WebPDecoder},
};

use crate::{
    budget,
    error::{Cause, Error, Result},
    frame::{Frame, Pixels, Rate, Shape},
    picture,
};

/// The number of a frame's pixels that NeuQuant learns its colours from.
const SAMPLES: usize = 40_000;
const SPARSEST: usize = 10;

/// The most frames of an animation that is read.
const MOST_FRAMES: usize = 100_000;

/// GIF counts in hundredths of a second, and viewers take less than two of them for ten.
const SHORTEST: u64 = 2;

/// A GIF that grows by a frame at a time.
pub(crate) struct Gif {
    encoder: gif::Encoder<BufWriter<File>>,
    rate: Rate,
}

impl Gif {
    /// Begins the file; it loops for ever.
    pub fn begin(file: File, shape: &Shape, rate: Rate) -> std::result::Result<Self, Cause> {
        let (width, height) = (u16::try_from(shape.width)?, u16::try_from(shape.height)?);
        let mut encoder = gif::Encoder::new(BufWriter::new(file), width, height, &[])?;
        encoder.set_repeat(gif::Repeat::Infinite)?;
        Ok(Self { encoder, rate })
    }

    /// A note on a rate that GIF can't hold.
    pub fn note(rate: Rate) -> Option<String> {
        (rate.per_second() > 100.0 / SHORTEST as f64)
            .then(|| format!("GIF holds at most 50 frames per second: it plays slower than at {rate}"))
    }

    /// Adds a frame, `index` from 0.
    pub fn frame(&mut self, index: usize, pixels: Pixels) -> std::result::Result<(), Cause> {
        let pixels = pixels.rgb();
        let (width, height) = (u16::try_from(pixels.width)?, u16::try_from(pixels.height)?);
        let speed = (pixels.values.len() / 3 / SAMPLES).clamp(1, SPARSEST) as i32;
        let mut frame = gif::Frame::from_rgb_speed(width, height, &pixels.values, speed);
        // Rounded moments, not a rounded duration: errors don't add up.
        let delay = self.rate.moment(index + 1, 100) - self.rate.moment(index, 100);
        frame.delay = u16::try_from(delay.max(SHORTEST)).unwrap_or(u16::MAX);
        Ok(self.encoder.write_frame(&frame)?)
    }

    /// Ends the file.
    pub fn end(self) -> std::result::Result<(), Cause> {
        Ok(self.encoder.into_inner()?.flush()?)
    }
}

/// An animated GIF or WebP, a frame at a time.
pub(crate) struct Reader {
    path: PathBuf,
    frames: image::Frames<'static>,
    pub shape: Shape,
    pub rate: Option<Rate>,
}

impl Reader {
    /// Counts the frames and adds up their durations without unpacking one; none for a still
    /// picture.
    pub fn open(path: &Path, format: ImageFormat) -> Result<Option<Self>> {
        let Some(ParsedAnimation { shape, rate, frames }) = begin(path, format)? else { return Ok(None) };
        Ok(Some(Self { path: path.to_owned(), frames: frames?, shape, rate }))
    }

    pub fn next_frame(&mut self) -> Result<Option<Frame>> {
        let Some(frame) = self.frames.next() else { return Ok(None) };
        let frame = frame.map_err(|error| picture::unread(&self.path, &error))?.into_buffer();
        let (width, height) = frame.dimensions();
        Ok(Some(Pixels { width, height, channels: 4, values: frame.into_raw() }.rgb().frame()))
    }
}

/// The extent of an animation, by its headers.
pub(crate) struct Extent {
    pub shape: Shape,
    pub rate: Option<Rate>,
    /// The reason why it can't be read, if it is too large.
    pub too_large: Option<Error>,
}

/// Reads the headers of an animation, not its frames; none for a still picture.
pub(crate) fn look(path: &Path, format: ImageFormat) -> Result<Option<Extent>> {
    let begun = begin(path, format)?;
    Ok(begun.map(|ParsedAnimation { shape, rate, frames }| Extent { shape, rate, too_large: frames.err() }))
}

/// The mean rate, to the thousandth: delays are rounded to hundredths or thousandths of a second.
fn rate(count: usize, milliseconds: f64) -> Option<Rate> {
    let thousandths = (count as f64 * 1e6 / milliseconds).round();
    let whole = (thousandths / 1000.0).round();
    // A deviation that rounding alone explains counts as a whole rate.
    let near = (count as f64 * 1000.0 / whole - milliseconds).abs() <= 10.0;
    let (numerator, denominator) = if near { (whole, 1) } else { (thousandths, 1000) };
    (numerator.is_finite() && numerator >= 1.0).then(|| Rate::new(numerator as u32, denominator))?
}

/// The number of frames, their duration in all, and the first reason why they can't be read.
#[derive(Default)]
struct Timing {
    count: usize,
    milliseconds: f64,
    too_large: Option<Error>,
}

impl Timing {
    /// Adds a frame.
    fn add(&mut self, path: &Path, milliseconds: f64) {
        self.count += 1;
        self.milliseconds += milliseconds;
        if self.count > MOST_FRAMES && self.too_large.is_none() {
            self.too_large = Some(Error::input(path, format!("more than {MOST_FRAMES} frames can't be read: cut it")));
        }
    }
}

fn gif_timing(path: &Path, width: u32, height: u32) -> Result<Timing> {
    let damaged = |error: gif::DecodingError| Error::read(path, picture::one_line(&error));
    let mut options = gif::DecodeOptions::new();
    options.skip_frame_decoding(true);
    let mut decoder = options.read_info(picture::open(path)?).map_err(damaged)?;
    let mut timing = Timing::default();
    while let Some(frame) = decoder.next_frame_info().map_err(damaged)? {
        // A frame may be larger than the canvas that it is laid on.
        let (wide, tall) = (u32::from(frame.width).max(width), u32::from(frame.height).max(height));
        let fits = budget::check(path, wide, tall, budget::ANIMATED);
        timing.too_large = timing.too_large.take().or(fits.err());
        timing.add(path, f64::from(frame.delay) * 10.0);
    }
    Ok(timing)
}

/// Walks the file's chunks; a frame's chunk has its duration at a fixed place.
fn webp_timing(path: &Path) -> Result<Timing> {
    const DURATION: usize = 12;
    let failed = |error| Error::read(path, error);
    let mut file = picture::open(path)?;
    let mut timing = Timing::default();
    let mut head = [0; 8 + DURATION + 3];
    // Behind the file's own end anything may follow.
    file.seek(SeekFrom::Start(4)).map_err(failed)?;
    file.read_exact(&mut head[..4]).map_err(failed)?;
    let end = 8 + u64::from(u32::from_le_bytes([head[0], head[1], head[2], head[3]]));
    file.seek(SeekFrom::Start(12)).map_err(failed)?;
    let mut at = 12;
    loop {
        if at + 8 > end {
            return Ok(timing);
        }
        match file.read_exact(&mut head[..8]) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(timing),
            read => read.map_err(failed)?,
        }
        if !head[..4].iter().all(|letter| (b' '..=b'~').contains(letter)) {
            return Err(Error::read(path, picture::DAMAGED));
        }
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        at += 8 + u64::from(length) + u64::from(length % 2);
        let mut left = i64::from(length) + i64::from(length % 2);
        if head.starts_with(b"ANMF") {
            file.read_exact(&mut head[8..]).map_err(failed)?;
            left -= (DURATION + 3) as i64;
            let duration = &head[8 + DURATION..];
            timing.add(path, f64::from(u32::from_le_bytes([duration[0], duration[1], duration[2], 0])));
        }
        file.seek_relative(left).map_err(failed)?;
    }
}

/// An animation whose headers were read.
struct ParsedAnimation {
    shape: Shape,
    rate: Option<Rate>,
    /// The frames, unless they are too large.
    frames: Result<image::Frames<'static>>,
}

fn begin(path: &Path, format: ImageFormat) -> Result<Option<ParsedAnimation>> {
    let damaged = |error| picture::unread(path, &error);
    let fits = |(width, height)| budget::check(path, width, height, budget::ANIMATED);
    let file = picture::open(path)?;
    budget::check_file(path, file.get_ref().metadata().map_err(|error| Error::read(path, error))?.len())?;
    let ((width, height), frames, timing) = if format == ImageFormat::Gif {
        let decoder = GifDecoder::new(file).map_err(damaged)?;
        let size = decoder.dimensions();
        (size, fits(size).map(|()| decoder.into_frames()), gif_timing(path, size.0, size.1)?)
    } else {
        let decoder = WebPDecoder::new(file).map_err(damaged)?;
        if !decoder.has_animation() {
            return Ok(None);
        }
        let size = decoder.dimensions();
        (size, fits(size).map(|()| decoder.into_frames()), webp_timing(path)?)
    };
    if timing.count == 0 {
        return Err(Error::input(path, "holds no frame"));
    }
    let shape = Shape { samples: 1, frames: timing.count, width, height, channels: 3 };
    let rate = rate(timing.count, timing.milliseconds);
    Ok(Some(ParsedAnimation { shape, rate, frames: timing.too_large.map_or(frames, Err) }))
}
