//! Animated WebP, lossless like the single pictures: frames by image's encoder, in a container that
//! this module writes. ffmpeg could write it too, but would then be needed for it.
//!
//! Source: the WebP container specification,
//! <https://developers.google.com/speed/webp/docs/riff_container>.

use std::{
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
};

use image::{ImageEncoder, codecs::webp::WebPEncoder};

use crate::{
    error::Cause,
    exif,
    frame::{Pixels, Rate, Shape},
    picture::Texts,
};

const ANIMATION: u8 = 0x02;
const EXIF: u8 = 0x08;
const ALPHA: u8 = 0x10;
/// The flag by which a frame replaces the canvas instead of being blended with it.
const NO_BLENDING: u8 = 0x02;
/// The file's header ("RIFF", length, "WEBP"), and that of a chunk.
const FILE_HEADER: usize = 12;

/// A file that grows by a frame at a time.
pub(crate) struct Animation {
    file: BufWriter<File>,
    rate: Rate,
    /// Bytes written.
    length: u64,
    /// The EXIF, which follows the last frame.
    exif: Vec<u8>,
}

impl Animation {
    /// Begins the file; it loops for ever.
    pub fn begin(file: File, shape: &Shape, rate: Rate, texts: &Texts) -> io::Result<Self> {
        let exif = exif::encode(texts, exif::MOST).0;
        let alpha = if shape.channels == 4 { ALPHA } else { 0 };
        let flags = ANIMATION | alpha | if exif.is_empty() { 0 } else { EXIF };
        let mut animation = Self { file: BufWriter::new(file), rate, length: 0, exif };
        animation.put(b"RIFF\0\0\0\0WEBP")?;
        let size = [&[flags, 0, 0, 0], &three(shape.width - 1)[..], &three(shape.height - 1)].concat();
        animation.chunk(b"VP8X", &[&size])?;
        animation.chunk(b"ANIM", &[&[0; 6]])?;
        Ok(animation)
    }

    /// Adds a frame, `index` from 0.
    pub fn frame(&mut self, index: usize, pixels: &Pixels) -> Result<(), Cause> {
        let mut still = Vec::new();
        WebPEncoder::new_lossless(&mut still).write_image(
            &pixels.values,
            pixels.width,
            pixels.height,
            pixels.color(),
        )?;
        let bitstream = still.get(FILE_HEADER..).filter(|chunk| chunk.starts_with(b"VP8L"));
        let bitstream = bitstream.ok_or("the encoder gave no lossless frame")?;
        // Rounded moments, not a rounded duration: errors don't add up.
        let duration = self.rate.moment(index + 1, 1000) - self.rate.moment(index, 1000);
        let duration = u32::try_from(duration.max(1)).unwrap_or(u32::MAX).min((1 << 24) - 1);
        let place = [three(0), three(0), three(pixels.width - 1), three(pixels.height - 1), three(duration)].concat();
        Ok(self.chunk(b"ANMF", &[&place, &[NO_BLENDING], bitstream])?)
    }

    /// Ends the file.
    pub fn end(mut self) -> io::Result<()> {
        let exif = std::mem::take(&mut self.exif);
        if !exif.is_empty() {
            self.chunk(b"EXIF", &[&exif])?;
        }
        self.file.seek(SeekFrom::Start(4))?;
        let length = u32::try_from(self.length - 8).unwrap_or(u32::MAX);
        self.file.write_all(&length.to_le_bytes())?;
        self.file.flush()
    }

    fn chunk(&mut self, name: &[u8; 4], parts: &[&[u8]]) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.length + length as u64 + 9 > u64::from(u32::MAX) {
            return Err(io::Error::other(
                "the clip has more than the 4 GiB that .webp can hold: write .mp4 or a folder",
            ));
        }
        self.put(name)?;
        self.put(&(length as u32).to_le_bytes())?;
        parts.iter().try_for_each(|part| self.put(part))?;
        if length % 2 == 1 { self.put(&[0]) } else { Ok(()) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length += bytes.len() as u64;
        self.file.write_all(bytes)
    }
}

/// A number of 24 bits.
fn three(value: u32) -> [u8; 3] {
    let [a, b, c, _] = value.to_le_bytes();
    [a, b, c]
}
