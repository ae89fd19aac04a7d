//! Raw frames in safetensors: written as they come, and read a frame at a time.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use serde::Deserialize;
use tempfile::NamedTempFile;

use tilewright_files::{self as files, Format, LOOKED_AT};

use crate::{
    budget,
    error::{Cause, Error, Result},
    frame::{Frame, Shape},
    picture::{self, Texts},
};

/// The tensor's name.
const TENSOR: &str = "sample";

/// The values' bytes in a file.
pub(crate) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The file's header for one tensor of f32, padded to eight bytes as the format's own library does.
fn header(shape: &[usize], texts: &Texts) -> Vec<u8> {
    let length = shape.iter().product::<usize>() as u64 * 4;
    let mut tensor = format!(r#""{TENSOR}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[0,{length}]}}"#);
    tensor.retain(|character| character != ' ');
    // Sorted, so that the same texts give the same bytes.
    let texts: BTreeMap<_, _> = texts.iter().map(|(keyword, text)| (keyword, text)).collect();
    let metadata = match texts.is_empty() {
        true => String::new(),
        false => format!(r#""__metadata__":{},"#, serde_json::json!(texts)),
    };
    let text = format!("{{{metadata}{tensor}}}");
    let mut padded = text.into_bytes();
    padded.resize(padded.len().next_multiple_of(8), b' ');
    [&(padded.len() as u64).to_le_bytes()[..], &padded].concat()
}

/// Writes pictures of one size as [N, C, H, W].
pub(crate) fn write_pictures(
    file: &NamedTempFile,
    pictures: &[Frame],
    texts: &Texts,
) -> std::result::Result<(), Cause> {
    let first = pictures.first().ok_or("there are no pictures")?;
    let size = |frame: &Frame| [frame.channels, frame.height as usize, frame.width as usize];
    if pictures.iter().any(|picture| size(picture) != size(first) || !picture.is_whole()) {
        return Err("the pictures differ in size".into());
    }
    let [channels, height, width] = size(first);
    let mut writer = BufWriter::new(file.as_file());
    writer.write_all(&header(&[pictures.len(), channels, height, width], texts))?;
    for picture in pictures {
        writer.write_all(&bytes(&picture.values))?;
    }
    Ok(writer.flush()?)
}

/// Clips as [N, C, T, H, W]; frames may come in any order.
pub(crate) struct Writer {
    file: NamedTempFile,
    shape: Shape,
    /// The offset of the values.
    start: u64,
}

impl Writer {
    /// Begins the file at its full length.
    pub fn begin(file: NamedTempFile, shape: Shape, texts: &Texts) -> io::Result<Self> {
        let Shape { samples, frames, width, height, channels } = shape;
        let header = header(&[samples, channels, frames, height as usize, width as usize], texts);
        let start = header.len() as u64;
        let values = (samples * channels * frames) as u64 * u64::from(height) * u64::from(width);
        file.as_file().set_len(start + values * 4)?;
        file.as_file().write_all_at(&header, 0)?;
        Ok(Self { file, shape, start })
    }

    /// Writes one frame, a plane at a time: [C, T, H, W] keeps a channel's frames together.
    pub fn frame(&mut self, sample: usize, index: usize, frame: &Frame) -> io::Result<()> {
        for (channel, plane) in frame.values.chunks_exact(frame.area()).enumerate() {
            let before = plane_number(&self.shape, sample, channel, index);
            self.file.as_file().write_all_at(&bytes(plane), self.start + before * plane.len() as u64 * 4)?;
        }
        Ok(())
    }

    pub fn into_file(self) -> NamedTempFile {
        self.file
    }
}

fn plane_number(shape: &Shape, sample: usize, channel: usize, index: usize) -> u64 {
    ((sample * shape.channels + channel) * shape.frames + index) as u64
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The conversion of a value to f32, for each type that can be read.
type Convert = fn(&[u8]) -> f32;
const TYPES: [(&str, usize, Convert); 4] = [
    ("F64", 8, |bytes| bytes.first_chunk().map_or(f32::NAN, |bytes| f64::from_le_bytes(*bytes) as f32)),
    ("F32", 4, |bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
    ("F16", 2, |bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()),
    ("BF16", 2, |bytes| bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()),
];

/// Reads tensor `sample`, [N, C, H, W] or [N, C, T, H, W], a frame at a time.
pub(crate) struct Reader {
    path: PathBuf,
    file: File,
    pub shape: Shape,
    start: u64,
    size: usize,
    convert: Convert,
}

impl Reader {
    pub fn open(path: &Path) -> Result<Self> {
        let file = picture::open(path)?.into_inner();
        let damaged = |reason: &str| damaged(path, reason);
        let length = file.metadata().map_err(|error| Error::read(path, error))?.len();
        let mut start = Vec::new();
        (&file).take(LOOKED_AT).read_to_end(&mut start).map_err(|error| Error::read(path, error))?;
        if let Some(other) = Format::of(&start).filter(|format| *format != Format::Safetensors) {
            let advice = match other.is_picture() || other.is_video() {
                true => "give it the ending of its kind".into(),
                false => other.advice(),
            };
            return Err(Error::input(path, format!("{}, not a safetensors file: {advice}", other.name())));
        }
        let (header, mut entries) = read_header(path, &file, length)?;
        let Some(entry) = entries.remove(TENSOR) else {
            return Err(Error::input(path, format!("has no tensor {TENSOR}: save the frames under this name")));
        };
        let entry: Entry = serde_json::from_value(entry).map_err(|_| damaged("its header lacks facts"))?;
        let Some((_, size, convert)) = TYPES.iter().find(|(name, ..)| *name == entry.dtype) else {
            let reason = format!("tensor {TENSOR} is stored as {}: f64, f32, f16 and bf16 can be read", entry.dtype);
            return Err(Error::input(path, reason));
        };
        let shape = shape(&entry.shape).ok_or_else(|| {
            let reason = "[N, C, H, W] or [N, C, T, H, W] with 1, 3 or 4 channels expected";
            Error::input(path, format!("tensor {TENSOR} has shape {:?}, {reason}", entry.shape))
        })?;
        let plane = *size as u64 + budget::FRAME / 3 * shape.channels as u64;
        budget::check(path, shape.width, shape.height, plane)?;
        let wanted = entry.shape.iter().try_fold(*size as u64, |all, &extent| all.checked_mul(extent));
        let [from, to] = entry.data_offsets;
        let end = to.checked_add(8 + header).filter(|&end| end <= length);
        if end.is_none() || to.checked_sub(from) != wanted {
            return Err(damaged("its data don't have the length that its header says"));
        }
        Ok(Self { path: path.to_owned(), file, shape, start: 8 + header + from, size: *size, convert: *convert })
    }

    pub fn frame(&self, sample: usize, index: usize) -> Result<Frame> {
        let Shape { width, height, channels, .. } = self.shape;
        let area = width as usize * height as usize;
        let mut plane = vec![0; area * self.size];
        let mut values = Vec::with_capacity(area * channels);
        for channel in 0..channels {
            let at = self.start + plane_number(&self.shape, sample, channel, index) * plane.len() as u64;
            self.file.read_exact_at(&mut plane, at).map_err(|error| Error::read(&self.path, error))?;
            values.extend(plane.chunks_exact(self.size).map(self.convert));
        }
        Ok(Frame { width, height, channels, values })
    }
}

fn damaged(path: &Path, reason: &str) -> Error {
    Error::input(path, format!("is no sound safetensors file: {reason}"))
}

/// The length of the header of a file of this length, and the entries in it.
pub(crate) fn read_header(path: &Path, file: &File, length: u64) -> Result<(u64, BTreeMap<String, serde_json::Value>)> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 0).map_err(|_| damaged(path, "it ends within its header"))?;
    let header = u64::from_le_bytes(word);
    if header > files::header::MOST_BYTES || header > length.saturating_sub(8) {
        return Err(damaged(path, "its header is longer than it can be"));
    }
    let mut text = vec![0; header as usize];
    file.read_exact_at(&mut text, 8).map_err(|error| Error::read(path, error))?;
    files::header::check(&text).map_err(|reason| damaged(path, &format!("its header has {reason}")))?;
    let entries = serde_json::from_slice(&text).map_err(|_| damaged(path, "its header is no JSON"))?;
    Ok((header, entries))
}

fn shape(extents: &[u64]) -> Option<Shape> {
    let (samples, channels, frames, height, width) = match *extents {
        [n, c, h, w] => (n, c, 1, h, w),
        [n, c, t, h, w] => (n, c, t, h, w),
        _ => return None,
    };
    let shape = Shape {
        samples: usize::try_from(samples).ok()?,
        frames: usize::try_from(frames).ok()?,
        width: u32::try_from(width).ok()?,
        height: u32::try_from(height).ok()?,
        channels: usize::try_from(channels).ok()?,
    };
    ([1, 3, 4].contains(&shape.channels) && samples > 0 && frames > 0).then_some(shape)
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{Dtype, TensorView};

    use super::*;
    use crate::samples;

    #[test]
    fn the_header_is_the_one_of_the_formats_own_library() {
        let frame = samples::frame(3, 2, 3, 0);
        let data = bytes(&frame.values);
        let view = TensorView::new(Dtype::F32, vec![1, 3, 2, 3], &data).unwrap();
        let view = &view;
        let theirs = safetensors::serialize([("sample", view)], None).unwrap();
        assert_eq!([header(&[1, 3, 2, 3], &Texts::new()), data.clone()].concat(), theirs);
        let texts = vec![("workflow".to_owned(), r#"{"日":"本"}"#.to_owned())];
        let theirs = safetensors::serialize([("sample", view)], Some(texts.iter().cloned().collect())).unwrap();
        assert_eq!([header(&[1, 3, 2, 3], &texts), data.clone()].concat(), theirs);
    }

    #[test]
    fn sixteen_bit_types_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let values = [-1.0_f32, 0.5, 1.0];
        let cases: [(Dtype, Vec<u8>); 2] = [
            (Dtype::F16, values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect()),
            (Dtype::BF16, values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()),
        ];
        for (dtype, data) in cases {
            let view = TensorView::new(dtype, vec![1, 3, 1, 1], &data).unwrap();
            // Another tensor in front: the data don't begin at 0.
            let other = TensorView::new(Dtype::F32, vec![2], &[0; 8]).unwrap();
            std::fs::write(&path, safetensors::serialize([("a", other), ("sample", view)], None).unwrap()).unwrap();
            let reader = Reader::open(&path).unwrap();
            assert_eq!(reader.shape, Shape { samples: 1, frames: 1, width: 1, height: 1, channels: 3 });
            assert_eq!(reader.frame(0, 0).unwrap().values, values);
        }
    }

    #[test]
    fn unsound_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let file = |text: &str, data: usize| {
            [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &vec![0; data]].concat()
        };
        let entry = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"sample":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let cases = [
            (vec![1, 2, 3], "ends within its header"),
            (b"<!doctype html>\n<html>".to_vec(), "a web page (HTML), not a safetensors file: the download gave"),
            (b"{\"error\": 1}".to_vec(), "JSON, not a safetensors file"),
            (b"\x89PNG\r\n\x1a\n".to_vec(), "a PNG picture, not a safetensors file: give it the ending of its kind"),
            (u64::MAX.to_le_bytes().to_vec(), "longer than it can be"),
            (file("[]", 0), "no JSON"),
            (file("{}", 0), "no tensor sample"),
            (file(r#"{"sample":{}}"#, 0), "lacks facts"),
            (file(&entry("I64", "[1,3,1,1]", "[0,24]"), 24), "stored as I64"),
            (file(&entry("F32", "[1,2,1,1]", "[0,8]"), 8), "has shape [1, 2, 1, 1]"),
            (file(&entry("F32", "[1,3,1]", "[0,12]"), 12), "has shape"),
            (file(&entry("F32", "[1,3,1,0]", "[0,0]"), 0), "no pixels"),
            (file(&entry("F32", "[1,3,1,1]", "[0,12]"), 11), "length"),
            (file(&entry("F32", "[1,3,1,1]", "[12,0]"), 12), "length"),
            (file(&entry("F32", "[1,3,1,1]", "[0,18446744073709551615]"), 12), "length"),
            (file(&entry("F32", "[4294967296,3,4294967296,4,4]", "[0,12]"), 12), "length"),
            (file(&entry("F32", "[1,3,4294967295,4294967295]", "[0,12]"), 12), "scale it down"),
        ];
        for (bytes, reason) in cases {
            std::fs::write(&path, bytes).unwrap();
            let error = Reader::open(&path).err().expect(reason).to_string();
            assert!(error.contains(reason), "{error}: {reason}");
        }
    }
}
