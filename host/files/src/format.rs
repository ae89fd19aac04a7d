//! Kinds of files, identified by their first bytes and never by their names: tables of signatures,
//! and of advice about wrong files.

use std::fmt;

use tilewright_wording::Remedy;

use crate::header;

/// The number of bytes at the start of a file that are looked at.
pub const LOOKED_AT: u64 = 4096;

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table of words says what each is")]
pub enum Format {
    Empty,
    Zeros,
    Safetensors,
    Pickle,
    PickleInZip,
    NumpyInZip,
    Zip,
    Gzip,
    Zstd,
    Xz,
    Bzip2,
    SevenZip,
    Rar,
    Tar,
    Gguf,
    Numpy,
    Hdf5,
    TensorflowLite,
    LfsPointer,
    AppleDouble,
    Png,
    Jpeg,
    Gif,
    WebP,
    Heif,
    Tiff,
    Bmp,
    Photoshop,
    Exr,
    JpegXl,
    Mp4,
    Matroska,
    Avi,
    Wave,
    WebAssembly,
    Sqlite,
    Program,
    Pdf,
    Html,
    Xml,
    Script,
    Minisign,
    WeightIndex,
    DiffusersConfig,
    Workflow,
    Json,
    Toml,
    Text,
}

use Format::*;

/// Bytes at their offsets, all of which a format has. The first row that fits counts.
type Signature = (&'static [(usize, &'static [u8])], Format);

const SIGNATURES: &[Signature] = &[
    (&[(0, b"version https://git-lfs")], LfsPointer),
    (&[(0, b"\x89PNG\r\n\x1a\n")], Png),
    (&[(0, b"\xff\xd8\xff")], Jpeg),
    (&[(0, b"GIF8")], Gif),
    (&[(0, b"RIFF"), (8, b"WEBP")], WebP),
    (&[(0, b"RIFF"), (8, b"AVI ")], Avi),
    (&[(0, b"RIFF"), (8, b"WAVE")], Wave),
    (&[(4, b"ftyphei")], Heif),
    (&[(4, b"ftypavif")], Heif),
    (&[(4, b"ftypmif1")], Heif),
    (&[(4, b"ftyp")], Mp4),
    (&[(4, b"moov")], Mp4),
    (&[(4, b"mdat")], Mp4),
    (&[(0, b"\x1a\x45\xdf\xa3")], Matroska),
    (&[(0, b"II*\0")], Tiff),
    (&[(0, b"MM\0*")], Tiff),
    (&[(0, b"BM"), (6, b"\0\0\0\0")], Bmp),
    (&[(0, b"8BPS")], Photoshop),
    (&[(0, b"\x76\x2f\x31\x01")], Exr),
    (&[(0, b"\xff\x0a")], JpegXl),
    (&[(0, b"\0\0\0\x0cJXL ")], JpegXl),
    (&[(0, b"GGUF")], Gguf),
    (&[(0, b"\x93NUMPY")], Numpy),
    (&[(0, b"\x89HDF\r\n\x1a\n")], Hdf5),
    (&[(4, b"TFL3")], TensorflowLite),
    (&[(0, b"\0asm")], WebAssembly),
    (&[(0, b"SQLite format 3\0")], Sqlite),
    (&[(0, b"\x7fELF")], Program),
    (&[(0, b"MZ"), (3, b"\0")], Program),
    (&[(0, b"\0\x05\x16\x07")], AppleDouble),
    (&[(0, b"%PDF")], Pdf),
    (&[(0, b"\x1f\x8b")], Gzip),
    (&[(0, b"\x28\xb5\x2f\xfd")], Zstd),
    (&[(0, b"\xfd7zXZ\0")], Xz),
    (&[(0, b"BZh"), (4, b"1AY&SY")], Bzip2),
    (&[(0, b"7z\xbc\xaf\x27\x1c")], SevenZip),
    (&[(0, b"Rar!\x1a\x07")], Rar),
    (&[(257, b"ustar")], Tar),
    (&[(0, b"\x80\x02")], Pickle),
    (&[(0, b"\x80\x03")], Pickle),
    (&[(0, b"\x80\x04")], Pickle),
    (&[(0, b"\x80\x05")], Pickle),
    (&[(0, b"PK\x03\x04")], Zip),
    (&[(0, b"PK\x05\x06")], Zip),
];

/// Names among the first bytes of a zip archive that tell which program wrote it.
const ZIPS: [(&[u8], Format); 2] = [(b"data.pkl", PickleInZip), (b".npy", NumpyInZip)];

/// The beginnings of texts, in lower case and without leading blanks.
const TEXTS: [(&str, Format); 5] =
    [("<!doctype html", Html), ("<html", Html), ("<", Xml), ("#!", Script), ("untrusted comment:", Minisign)];

/// Keys that tell the purpose of JSON if they are among its first bytes.
const JSONS: [(&str, Format); 5] = [
    ("\"weight_map\"", WeightIndex),
    ("\"_class_name\"", DiffusersConfig),
    ("\"class_type\"", Workflow),
    ("\"last_node_id\"", Workflow),
    ("\"extra_pnginfo\"", Workflow),
];

const WEIGHTS: &str = "it holds the weights of a model";
const UNPACK: &str = "unpack it, and give the file in it";

/// A format, its name, and the advice if a file of tensors was wanted.
const WORDS: &[(Format, &str, &(dyn fmt::Display + Sync))] = &[
    (Empty, "an empty file (0 bytes)", &"copy or download it again"),
    (Zeros, "a file that begins in nothing but zeros", &"a download that broke off leaves such: download it again"),
    (Safetensors, "a safetensors file", &""),
    (Pickle, "a Python pickle", &WEIGHTS),
    (PickleInZip, "a PyTorch pickle (zip)", &WEIGHTS),
    (NumpyInZip, "NumPy's arrays (.npz)", &"save the array with safetensors.numpy.save_file"),
    (Zip, "a zip archive", &UNPACK),
    (Gzip, "packed with gzip", &UNPACK),
    (Zstd, "packed with zstd", &UNPACK),
    (Xz, "packed with xz", &UNPACK),
    (Bzip2, "packed with bzip2", &UNPACK),
    (SevenZip, "a 7z archive", &UNPACK),
    (Rar, "a RAR archive", &UNPACK),
    (Tar, "a tar archive", &UNPACK),
    (Gguf, "a GGUF file", &WEIGHTS),
    (Numpy, "a NumPy array (.npy)", &"save it with safetensors.numpy.save_file"),
    (Hdf5, "an HDF5 file", &"weights of Keras can't be read: give the safetensors file"),
    (TensorflowLite, "a TensorFlow Lite model", &"give the safetensors file of the model"),
    (LfsPointer, "a Git LFS pointer, not the file itself", &"run 'git lfs pull'"),
    (AppleDouble, "macOS's companion of a file", &"give the file whose name lacks the ._ in front"),
    (Png, "a PNG picture", &Remedy::MakeLatent),
    (Jpeg, "a JPEG picture", &Remedy::MakeLatent),
    (Gif, "a GIF picture or animation", &Remedy::MakeLatent),
    (WebP, "a WebP picture or animation", &Remedy::MakeLatent),
    (Heif, "an HEIF or AVIF picture", &"save it as PNG"),
    (Tiff, "a TIFF picture", &"save it as PNG"),
    (Bmp, "a BMP picture", &"save it as PNG"),
    (Photoshop, "a Photoshop picture", &"save it as PNG"),
    (Exr, "an OpenEXR picture", &"save it as PNG"),
    (JpegXl, "a JPEG XL picture", &"save it as PNG"),
    (Mp4, "an MP4 or QuickTime video", &Remedy::MakeLatent),
    (Matroska, "a Matroska or WebM video", &Remedy::MakeLatent),
    (Avi, "an AVI video", &Remedy::MakeLatent),
    (Wave, "a WAVE sound", &"there is no picture in it"),
    (WebAssembly, "WebAssembly, perhaps a policy", &Remedy::InspectPolicy),
    (Sqlite, "an SQLite database", &Remedy::ReadHistory),
    (Program, "a program", &"give the safetensors file"),
    (Pdf, "a PDF document", &"give the safetensors file"),
    (
        Html,
        "a web page (HTML)",
        &"the download gave a page instead of the file, as where one has to log in: download the file itself",
    ),
    (Xml, "XML or SVG", &"give the safetensors file"),
    (Script, "a script", &"give the safetensors file"),
    (Minisign, "a key or signature of minisign's", &"give the file that it is of"),
    (WeightIndex, "the index of a model in several files", &"give one of the .safetensors files that it names"),
    (DiffusersConfig, "a configuration of diffusers'", &"give the .safetensors file beside it"),
    (Workflow, "a workflow of ComfyUI's", &"give the latent or the model that it made or used"),
    (Json, "JSON", &"give the safetensors file"),
    (Toml, "a configuration in TOML", &"give the safetensors file"),
    (Text, "a text", &"give the safetensors file"),
];

impl Format {
    /// The kind of a file from its first [`LOOKED_AT`] bytes, or all if it is shorter; none if it
    /// is unknown.
    pub fn of(start: &[u8]) -> Option<Self> {
        let has = |(at, bytes): &(usize, &[u8])| start.get(*at..).is_some_and(|rest| rest.starts_with(bytes));
        if start.is_empty() {
            return Some(Empty);
        }
        if let Some(length) = start.first_chunk() {
            let is_header = start.get(8).is_none_or(|byte| *byte == b'{');
            if (2..=header::MOST_BYTES).contains(&u64::from_le_bytes(*length)) && is_header {
                return Some(Safetensors);
            }
        }
        let found = SIGNATURES.iter().find(|(parts, _)| parts.iter().all(has)).map(|(_, format)| *format);
        match found {
            Some(Zip) => Some(find_signature(start, &ZIPS).unwrap_or(Zip)),
            Some(format) => Some(format),
            None if start.len() > 8 && start.iter().all(|byte| *byte == 0) => Some(Zeros),
            None => of_text(start),
        }
    }

    /// The name for messages, such as `a zip archive`.
    pub fn name(self) -> &'static str {
        self.words().1
    }

    /// The way from such a file to one of tensors; empty for a safetensors file.
    pub fn advice(self) -> String {
        self.words().2.to_string()
    }

    /// True for a picture or animation that can be read.
    pub fn is_picture(self) -> bool {
        matches!(self, Png | Jpeg | Gif | WebP)
    }

    /// True for a video, which ffmpeg reads.
    pub fn is_video(self) -> bool {
        matches!(self, Mp4 | Matroska | Avi)
    }

    fn words(self) -> &'static (Format, &'static str, &'static (dyn fmt::Display + Sync)) {
        // Every format has its row, as a test checks.
        WORDS.iter().find(|row| row.0 == self).unwrap_or(&WORDS[0])
    }
}

fn find_signature(start: &[u8], table: &[(&[u8], Format)]) -> Option<Format> {
    table.iter().find(|(part, _)| start.windows(part.len()).any(|window| window == *part)).map(|row| row.1)
}

/// The kind of a text; none if the bytes are no text.
fn of_text(start: &[u8]) -> Option<Format> {
    let text = match str::from_utf8(start) {
        Ok(text) => text,
        // The end may cut a character in two.
        Err(error) if error.error_len().is_none() => str::from_utf8(&start[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    if text.chars().any(|character| character.is_control() && !matches!(character, '\t' | '\n' | '\r' | '\u{c}')) {
        return None;
    }
    let text = text.trim_start_matches('\u{feff}').trim_start();
    if is_heading(text) {
        return Some(Toml);
    }
    if text.starts_with(['{', '[']) {
        return Some(JSONS.iter().find(|(part, _)| text.contains(part)).map_or(Json, |row| row.1));
    }
    let small = text.get(..32).unwrap_or(text).to_ascii_lowercase();
    Some(TEXTS.iter().find(|(begin, _)| small.starts_with(begin)).map_or(Text, |row| row.1))
}

/// True for a text that begins with the heading of a table in TOML, which begins as a list in JSON
/// does.
fn is_heading(text: &str) -> bool {
    let line = text.lines().next().unwrap_or_default();
    let line = line.split('#').next().unwrap_or_default().trim_end();
    let key = line.trim_matches(['[', ']']);
    line.starts_with('[')
        && line.ends_with(']')
        && key.starts_with(|first: char| first.is_ascii_alphabetic())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && !["true", "false", "null"].contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_found_and_has_words() {
        for (parts, expected) in SIGNATURES {
            let mut bytes = vec![1; 300];
            for (at, part) in *parts {
                bytes[*at..at + part.len()].copy_from_slice(part);
            }
            assert_eq!(Format::of(&bytes), Some(*expected), "{parts:?}");
            assert_eq!(expected.words().0, *expected);
        }
        for (_, format) in ZIPS {
            assert_eq!(format.words().0, format);
        }
        for (_, format) in TEXTS.iter().chain(&JSONS) {
            assert_eq!(format.words().0, *format);
        }
    }

    #[test]
    fn what_people_give_is_recognised() {
        let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let cases: [(&[u8], Option<Format>); 26] = [
            (b"", Some(Empty)),
            (&[0; 64], Some(Zeros)),
            (&header("{}"), Some(Safetensors)),
            (&header(r#"{"a":{"dtype":"F32"}}"#), Some(Safetensors)),
            (
                b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0archive/data.pkl",
                Some(PickleInZip),
            ),
            (b"PK\x03\x04 of holiday pictures", Some(Zip)),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", Some(Pickle)),
            (b"\n <!DOCTYPE html><html>", Some(Html)),
            (b"<svg xmlns=", Some(Xml)),
            (b"{\"metadata\": {\"total_size\": 1}, \"weight_map\": {", Some(WeightIndex)),
            (b"{\"_class_name\": \"AutoencoderKL\"", Some(DiffusersConfig)),
            (b"\xef\xbb\xbf{\"3\": {\"class_type\": \"KSampler\"", Some(Workflow)),
            (b"{\"time\": 1}\n", Some(Json)),
            (b"[\"a\", 1]", Some(Json)),
            (b"[[true]]", Some(Json)),
            (b"[1, 2]\n", Some(Json)),
            (b"[server] # ours\nlisten = 1\n", Some(Toml)),
            (b"\n[[server.tokens]]\n", Some(Toml)),
            (b"\0\0\0\x20ftypisom\0\0", Some(Mp4)),
            (b"\0\0\0\x20ftypavif\0\0", Some(Heif)),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some(WebP)),
            (b"hello", Some(Text)),
            ("Grüße\u{0}".as_bytes(), None),
            (b"Invalid username or password.", Some(Text)),
            (&[0xff; 24], None),
            (b"gr\xc3", Some(Text)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Format::of(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
