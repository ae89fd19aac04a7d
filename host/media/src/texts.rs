//! Texts of files: ComfyUI's workflow and prompt, from the part of each format that holds them.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
};

use image::{
    ImageDecoder, ImageFormat,
    codecs::{jpeg::JpegDecoder, webp::WebPDecoder},
};

use crate::{
    exif, ffmpeg,
    picture::{self, Texts, is_keyword},
    raw,
};

/// The most bytes of texts that are read from one file, unpacked.
const MOST: usize = 64 << 20;

/// Tags that programs put into videos by themselves.
const PLAYERS: [&str; 7] =
    ["major_brand", "minor_version", "compatible_brands", "encoder", "creation_time", "duration", "software"];

/// The texts of a picture, a video, a safetensors file or the first picture of a folder. An
/// unreadable file has none: the reader of its pixels reports the fault.
pub fn read_texts(path: &Path) -> Texts {
    let first = if path.is_dir() { first_picture(path) } else { Some(path.to_owned()) };
    let mut texts = first.map(|path| of_file(&path)).unwrap_or_default();
    texts.retain(|(keyword, text)| {
        is_keyword(keyword) && !text.is_empty() && !PLAYERS.contains(&keyword.to_lowercase().as_str())
    });
    texts
}

/// The texts of a file of any format, also under keywords that only other programs know.
pub(crate) fn of_file(path: &Path) -> Texts {
    let Ok(mut file) = picture::open(path) else { return Texts::new() };
    let Ok(format) = picture::sniff(path, &mut file) else { return of_other(path).unwrap_or_default() };
    match format {
        ImageFormat::Png => of_png(file).unwrap_or_default(),
        ImageFormat::Jpeg => JpegDecoder::new(file).ok().map(of_exif).unwrap_or_default(),
        ImageFormat::WebP => WebPDecoder::new(file).ok().map(of_exif).unwrap_or_default(),
        _ => Texts::new(),
    }
}

/// The texts before a PNG's pixels, as Pillow and ComfyUI write them.
fn of_png(file: BufReader<File>) -> Option<Texts> {
    let mut decoder = png::Decoder::new_with_limits(file, png::Limits { bytes: MOST });
    decoder.set_ignore_iccp_chunk(true);
    Some(of_info(decoder.read_info().ok()?.info(), MOST))
}

/// The texts of a PNG's header, of which packed ones unpack to at most `most` bytes in all. Damaged
/// and overlong ones are left out.
pub(crate) fn of_info(info: &png::Info<'_>, most: usize) -> Texts {
    let plain = info.uncompressed_latin1_text.iter().map(|chunk| (chunk.keyword.clone(), chunk.text.clone()));
    let mut texts: Texts = plain.collect();
    // A packed text may become a thousand times as long, and there may be thousands of them.
    let mut left = most;
    let mut add = |keyword: &str, unpack: &mut dyn FnMut(usize) -> Option<String>| match unpack(left)
        .filter(|text| text.len() <= left)
    {
        Some(text) => {
            left = left.saturating_sub(text.len());
            texts.push((keyword.to_owned(), text));
        }
        // Bytes were unpacked all the same, up to the limit.
        None => left /= 2,
    };
    for chunk in &info.compressed_latin1_text {
        add(&chunk.keyword, &mut |limit| {
            let mut chunk = chunk.clone();
            chunk.decompress_text_with_limit(limit).and_then(|()| chunk.get_text()).ok()
        });
    }
    for chunk in &info.utf8_text {
        add(&chunk.keyword, &mut |limit| {
            let mut chunk = chunk.clone();
            chunk.decompress_text_with_limit(limit).and_then(|()| chunk.get_text()).ok()
        });
    }
    texts
}

/// The texts in a picture's EXIF.
pub(crate) fn of_exif(mut decoder: impl ImageDecoder) -> Texts {
    let found = decoder.exif_metadata().ok().flatten().filter(|exif| exif.len() <= MOST);
    found.map(|exif| exif::decode(&exif)).unwrap_or_default()
}

/// The texts of a safetensors file, or of a video by ffmpeg.
fn of_other(path: &Path) -> Option<Texts> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    if ending != "safetensors" {
        return ffmpeg::tags(path).ok();
    }
    let file = picture::open(path).ok()?.into_inner();
    let (_, mut header) = raw::read_header(path, &file, file.metadata().ok()?.len()).ok()?;
    let texts: BTreeMap<_, _> = serde_json::from_value(header.remove("__metadata__")?).ok()?;
    Some(texts.into_iter().collect())
}

fn first_picture(folder: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let is_picture = |path: &PathBuf| picture::open(path).and_then(|mut file| picture::sniff(path, &mut file)).is_ok();
    names.filter(is_picture).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clip::ClipWriter,
        format::Kind,
        frame::{Rate, Shape},
        output::Output,
        samples,
    };

    #[test]
    fn packed_texts_do_not_unfold_beyond_their_limit_together() {
        let long = "x".repeat(1000);
        let mut info = png::Info::default();
        let packed = |keyword: &str| {
            let mut chunk = png::text_metadata::ZTXtChunk::new(keyword, long.clone());
            chunk.compress_text().unwrap();
            chunk
        };
        info.compressed_latin1_text = ["a", "b", "c", "d"].map(packed).into();
        info.utf8_text = vec![png::text_metadata::ITXtChunk::new("e", "short")];
        let names = |most: usize| of_info(&info, most).into_iter().map(|(keyword, _)| keyword).collect::<String>();
        // A text that does not fit takes half of what is left.
        assert_eq!([5000, 2500, 1000, 999].map(names), ["abcde", "abe", "a", "e"]);
    }

    #[test]
    fn every_format_gives_back_what_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let mut texts = vec![
            ("prompt".to_owned(), r#"{"1":"a \"b\""}"#.to_owned()),
            ("workflow".to_owned(), "{\"x\":[1]}".to_owned()),
        ];
        for (name, frames) in [
            ("a.png", 1),
            ("a.jpg", 1),
            ("a.webp", 1),
            ("moving.webp", 3),
            ("a.safetensors", 1),
            ("clip.safetensors", 3),
            ("frames", 2),
            ("a.mp4", 2),
            ("a.mkv", 2),
        ] {
            if name.contains(".m") && !samples::ffmpeg() {
                continue;
            }
            let path = folder.path().join(name);
            let output = Output::new(&path, Kind::Clip).unwrap();
            let shape = Shape { samples: 1, frames, width: 16, height: 16, channels: 3 };
            let mut writer = ClipWriter::begin(&output, shape, Rate::new(16, 1).unwrap(), &texts).unwrap();
            (0..frames).for_each(|index| writer.frame(0, index, &samples::frame(16, 16, 3, index)).unwrap());
            writer.finish().unwrap();
            let mut found = read_texts(&path);
            found.sort();
            texts.sort();
            assert_eq!(found, texts, "{name}");
        }
        assert!(
            read_texts(&folder.path().join("nowhere.png")).is_empty() && read_texts(Path::new("/dev/null")).is_empty()
        );
    }
}
