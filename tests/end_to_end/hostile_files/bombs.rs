//! Pictures of a few bytes that stand for gigabytes.

use std::io::{Cursor, Write};

/// A file's name and its bytes.
pub type Bomb = (&'static str, Vec<u8>);

/// Pictures and animations whose headers say more pixels than are read.
pub fn large() -> Vec<Bomb> {
    let pngs = [(16_384, 16_384), (65_535, 65_535), (u32::MAX >> 1, 1), (1, u32::MAX >> 1), (100_000, 20_000)];
    let gifs = [(65_535, 65_535, 1, (1, 1)), (1, 1, 2, (65_535, 65_535))];
    let mut bombs: Vec<Bomb> = pngs.into_iter().map(|(width, height)| ("bomb.png", png(width, height, &[]))).collect();
    bombs.extend(gifs.map(|(width, height, frames, frame)| ("bomb.gif", gif(width, height, frames, frame))));
    let canvas = [&b"VP8X\x0a\0\0\0\x02\0\0\0"[..], &[0xff; 6], b"ANIM\x06\0\0\0\0\0\0\0\0\0", FRAME].concat();
    bombs.push(("canvas.webp", webp(&canvas)));
    bombs.push(("lossless.webp", webp(b"VP8L\x0a\0\0\0\x2f\xfe\xbf\xff\x0f\0\0\0\0\0")));
    bombs.push(("larger.jpg", jpeg(0xffff)));
    bombs
}

/// Small pictures with packed data beside the pixels that unpack to much more.
pub fn packed() -> Vec<Bomb> {
    let beside = |keyword: &[u8], megabytes| [keyword, &zeros(megabytes)].concat();
    let chunks: [(png::chunk::ChunkType, Vec<u8>); 4] = [
        (png::chunk::iCCP, beside(b"a\0\0", 160)),
        (png::chunk::zTXt, beside(b"workflow\0\0", 160)),
        (png::chunk::iTXt, beside(b"tilewright\0\x01\0\0\0", 160)),
        (png::chunk::eXIf, vec![0x49; 4 << 20]),
    ];
    let mut bombs: Vec<Bomb> =
        chunks.iter().map(|chunk| ("beside.png", png(64, 64, std::slice::from_ref(chunk)))).collect();
    bombs.push(("all-beside.png", png(64, 64, &chunks)));
    // Each is within the limit of one text.
    let texts = vec![(png::chunk::zTXt, beside(b"workflow\0\0", 60)); 400];
    bombs.push(("many-beside.png", png(64, 64, &texts)));
    bombs
}

/// Animations of more or larger frames than are read, of none, or cut.
pub fn others() -> Vec<Bomb> {
    let canvas = b"VP8X\x0a\0\0\0\x02\0\0\0\x0f\0\0\x0f\0\0";
    let many = [&canvas[..], b"ANIM\x06\0\0\0\0\0\0\0\0\0", &FRAME.repeat(200_000)].concat();
    vec![
        ("frames.gif", gif(16, 16, 200_000, (1, 1))),
        ("none.gif", gif(16, 16, 0, (1, 1))),
        // A picture of this size is read, an animation is not.
        ("large-frames.gif", gif(8000, 8000, 3, (8000, 8000))),
        ("many.webp", webp(&many)),
        ("chunks.webp", webp(&[&canvas[..], b"ANMF\xff\xff\xff\xff"].concat())),
    ]
}

/// The header of an animation's frame.
const FRAME: &[u8] = b"ANMF\x10\0\0\0\0\0\0\0\0\0\x0f\0\0\x0f\0\0\x01\0\0\0";

fn webp(chunks: &[u8]) -> Vec<u8> {
    [&b"RIFF"[..], &(chunks.len() as u32 + 4).to_le_bytes(), b"WEBP", chunks].concat()
}

/// A JPEG that declares larger sides than it has.
fn jpeg(side: u16) -> Vec<u8> {
    let mut whole = Cursor::new(Vec::new());
    image::RgbImage::new(48, 32).write_to(&mut whole, image::ImageFormat::Jpeg).unwrap();
    let mut bytes = whole.into_inner();
    let at = bytes.windows(2).position(|window| window == [0xff, 0xc0]).unwrap();
    bytes[at + 5..at + 9].copy_from_slice(&[side.to_be_bytes(), side.to_be_bytes()].concat());
    bytes
}

/// A PNG of one-bit grey pixels, all zero.
fn png(width: u32, height: u32, chunks: &[(png::chunk::ChunkType, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::One);
    let mut writer = encoder.write_header().unwrap();
    for (kind, data) in chunks {
        writer.write_chunk(*kind, data).unwrap();
    }
    match u64::from(width) * u64::from(height) <= 1 << 28 {
        true => writer.write_image_data(&vec![0; width.div_ceil(8) as usize * height as usize]).unwrap(),
        // The beginning of the data alone, as of a file that is still to come.
        false => writer.write_chunk(png::chunk::IDAT, &zeros(1)).unwrap(),
    }
    drop(writer);
    bytes
}

/// Zeros, compressed as in a PNG.
fn zeros(megabytes: usize) -> Vec<u8> {
    let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    (0..megabytes).for_each(|_| writer.write_all(&[0; 1 << 20]).unwrap());
    writer.finish().unwrap()
}

fn gif(width: u16, height: u16, frames: usize, frame: (u16, u16)) -> Vec<u8> {
    let sides = |a: u16, b: u16| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let mut bytes = [&b"GIF89a"[..], &sides(width, height), &[0x80, 0, 0, 0, 0, 0, 255, 255, 255]].concat();
    for _ in 0..frames {
        bytes.extend([&[0x21, 0xf9, 4, 0, 1, 0, 0, 0, 0x2c, 0, 0, 0, 0][..], &sides(frame.0, frame.1)].concat());
        // One pixel and the end: decoders fill up the rest.
        bytes.extend([0, 2, 2, 0x44, 0x01, 0]);
    }
    bytes.push(0x3b);
    bytes
}
