//! Output files. Each is written under another name in its own folder and renamed when all are whole, so that a half-written
//! file never stands under the final name.

use std::{
    borrow::Cow,
    fs,
    io::{self, BufWriter, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use image::{ExtendedColorType, ImageEncoder, codecs::jpeg::JpegEncoder, codecs::webp::WebPEncoder};
use safetensors::tensor::{Dtype, TensorView};
use tch::{Kind, Tensor};
use tempfile::NamedTempFile;

use crate::failure::{Failure, Outcome};

/// What a file's ending asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Portable network graphics, with text chunks.
    Png,
    /// JPEG of quality 95.
    Jpeg,
    /// Lossless WebP.
    WebP,
    /// The raw output.
    Safetensors,
}

const FORMATS: [(&str, Format); 5] = [
    ("png", Format::Png),
    ("jpg", Format::Jpeg),
    ("jpeg", Format::Jpeg),
    ("webp", Format::WebP),
    ("safetensors", Format::Safetensors),
];

/// Endings of video, which come later.
const VIDEO: [&str; 4] = ["mp4", "webm", "gif", "mkv"];

const JPEG_QUALITY: u8 = 95;

/// Largest sides that the formats can hold, in pixels.
const LIMITS: [(Format, i64); 2] = [(Format::Jpeg, 65_535), (Format::WebP, 16_383)];

/// Where pictures go; the place has been found writable.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    /// What its ending asks for.
    pub format: Format,
}

/// The text chunks of a PNG, by keyword.
pub type Texts = Vec<(String, String)>;

impl Output {
    /// Checks a path before any work is done: its ending, and that its folder is there and can be written.
    pub fn new(path: &Path) -> Outcome<Self> {
        let shown = path.display();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
        let Some((_, format)) = FORMATS.iter().find(|(known, _)| *known == ending) else {
            let reason = match VIDEO.contains(&ending.as_str()) {
                true => "a picture can't be written as video",
                false => "unknown output ending",
            };
            return Err(Failure::input(format!("{shown}: {reason}: expected .png, .jpg, .webp or .safetensors")));
        };
        writable(path)?;
        Ok(Self { path: path.to_owned(), format: *format })
    }

    /// Where the pictures of a batch go: the path itself for one, and else numbered from 1.
    fn names(&self, count: usize) -> Vec<PathBuf> {
        if count == 1 || self.format == Format::Safetensors {
            return vec![self.path.clone()];
        }
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let ending = self.path.extension().unwrap_or_default().to_string_lossy();
        let digits = count.to_string().len().max(2);
        (1..=count).map(|number| self.path.with_file_name(format!("{stem}-{number:0digits$}.{ending}"))).collect()
    }

    /// Writes pictures [N, C, H, W] in −1…1; gives the files' names. None stands there unless all are whole.
    pub fn write(&self, pictures: &Tensor, texts: &Texts) -> Outcome<Vec<PathBuf>> {
        let failed = |what: &Path, error: &dyn std::fmt::Display| {
            Failure::work(format!("{}: can't be written: {error}", what.display()))
        };
        let samples = pictures.size()[0];
        let names = self.names(samples as usize);
        let mut written = Vec::new();
        for (sample, name) in names.iter().enumerate() {
            let file = temporary(&self.path).map_err(|error| failed(name, &error))?;
            match self.format {
                Format::Safetensors => write_raw(&file, pictures),
                _ => Pixels::of(pictures, sample as i64).and_then(|pixels| pixels.write(self.format, &file, texts)),
            }
            .map_err(|error| failed(name, &error))?;
            written.push(file);
        }
        for (file, name) in written.into_iter().zip(&names) {
            file.as_file().sync_data().map_err(|error| failed(name, &error))?;
            file.persist(name).map_err(|error| failed(name, &error.error))?;
        }
        Ok(names)
    }

    /// Writes one picture of 8-bit values.
    pub fn write_pixels(&self, pixels: &Pixels) -> Outcome {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::work(format!("{}: can't be written: {error}", self.path.display()))
        };
        let file = temporary(&self.path).map_err(|error| failed(&error))?;
        pixels.write(self.format, &file, &Vec::new()).map_err(|error| failed(&error))?;
        file.persist(&self.path).map_err(|error| failed(&error.error))?;
        Ok(())
    }
}

/// Checks before any work is done that a file can be written there.
pub fn writable(path: &Path) -> Outcome {
    if path.is_dir() {
        return Err(Failure::input(format!("{}: a folder stands there already: give a file's name", path.display())));
    }
    temporary(path).map(drop).map_err(|error| {
        Failure::input(format!("{}: can't be written: {error}: choose another folder with -o", folder(path).display()))
    })
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file in the folder of this one, to be renamed to it when it is whole.
pub fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    // The umask takes away what the user does not want, as for every file.
    let mode = fs::Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(".tilewright-").permissions(mode).tempfile_in(folder(path))
}

/// A picture of 8-bit values, row by row, channels interleaved.
pub struct Pixels {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// 1, 3 or 4.
    pub channels: usize,
    /// `width * height * channels` values.
    pub values: Vec<u8>,
}

impl Pixels {
    /// One sample of [N, C, H, W]: −1…1 becomes 0…255, rounded, as in diffusers' `VaeImageProcessor`.
    pub fn of(pictures: &Tensor, sample: i64) -> anyhow::Result<Self> {
        let picture = pictures.f_narrow(0, sample, 1)?.f_squeeze_dim(0)?;
        let (channels, height, width) = picture.size3()?;
        let bytes = picture.f_mul_scalar(127.5)?.f_add_scalar(127.5)?.f_round()?.f_clamp(0.0, 255.0)?;
        let bytes = bytes.f_to_kind(Kind::Uint8)?.f_permute([1, 2, 0])?.f_contiguous()?;
        let mut values = vec![0; bytes.numel()];
        bytes.f_copy_data(&mut values, bytes.numel())?;
        Ok(Self { width: width as u32, height: height as u32, channels: channels as usize, values })
    }

    fn write(&self, format: Format, file: &NamedTempFile, texts: &Texts) -> anyhow::Result<()> {
        if let Some((_, most)) = LIMITS.iter().find(|(limited, _)| *limited == format) {
            let side = i64::from(self.width.max(self.height));
            anyhow::ensure!(
                side <= *most,
                "{side} pixels are more than the {most} that this format can hold: write .png"
            );
        }
        let color = match self.channels {
            1 => ExtendedColorType::L8,
            4 => ExtendedColorType::Rgba8,
            _ => ExtendedColorType::Rgb8,
        };
        let mut writer = BufWriter::new(file);
        match format {
            Format::Png => self.write_png(&mut writer, texts)?,
            Format::Jpeg => {
                anyhow::ensure!(self.channels != 4, "JPEG has no transparency: write .png or .webp");
                JpegEncoder::new_with_quality(&mut writer, JPEG_QUALITY).write_image(
                    &self.values,
                    self.width,
                    self.height,
                    color,
                )?;
            }
            Format::WebP => {
                WebPEncoder::new_lossless(&mut writer).write_image(&self.values, self.width, self.height, color)?
            }
            Format::Safetensors => anyhow::bail!("pixels are no raw output"),
        }
        Ok(writer.flush()?)
    }

    fn write_png(&self, writer: &mut impl Write, texts: &Texts) -> anyhow::Result<()> {
        let mut encoder = png::Encoder::new(writer, self.width, self.height);
        encoder.set_color(match self.channels {
            1 => png::ColorType::Grayscale,
            4 => png::ColorType::Rgba,
            _ => png::ColorType::Rgb,
        });
        encoder.set_depth(png::BitDepth::Eight);
        for (keyword, text) in texts {
            // As Pillow does for ComfyUI's nodes: plain text where Latin-1 can hold it, and else UTF-8.
            if text.chars().all(|character| u32::from(character) < 256 && character != '\0') {
                encoder.add_text_chunk(keyword.clone(), text.clone())?;
            } else {
                encoder.add_itxt_chunk(keyword.clone(), text.clone())?;
            }
        }
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.values)?;
        Ok(writer.finish()?)
    }
}

/// Whether a PNG's text chunk can have this keyword: 1 to 79 printable Latin-1 characters.
pub fn is_keyword(text: &str) -> bool {
    (1..=79).contains(&text.chars().count())
        && text.chars().all(|character| matches!(u32::from(character), 32..=126 | 161..=255))
        && text.trim() == text
}

fn write_raw(file: &NamedTempFile, pictures: &Tensor) -> anyhow::Result<()> {
    let (shape, values) = raw(pictures)?;
    let view = TensorView::new(Dtype::F32, shape, &values)?;
    let bytes = safetensors::serialize([(Cow::Borrowed("sample"), view)], None)?;
    let mut file = file.as_file();
    Ok(file.write_all(&bytes)?)
}

/// A tensor's shape, and its values as bytes of f32.
pub fn raw(tensor: &Tensor) -> anyhow::Result<(Vec<usize>, Vec<u8>)> {
    let tensor = tensor.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut values = vec![0_u8; tensor.numel() * 4];
    tensor.f_copy_data_u8(&mut values, tensor.numel())?;
    Ok((tensor.size().iter().map(|&extent| extent as usize).collect(), values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_known_whatever_their_case() {
        let folder = tempfile::tempdir().unwrap();
        for (name, format) in [("a.PNG", Format::Png), ("a.jpeg", Format::Jpeg), ("a.webp", Format::WebP)] {
            assert_eq!(Output::new(&folder.path().join(name)).unwrap().format, format);
        }
        for name in ["a", "a.bmp", "a.mp4", "png"] {
            assert!(matches!(Output::new(&folder.path().join(name)), Err(Failure::Input(_))), "{name}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_batch_becomes_numbered_files() {
        let output = Output { path: "out/cat.png".into(), format: Format::Png };
        assert_eq!(output.names(1), [PathBuf::from("out/cat.png")]);
        assert_eq!(output.names(2), [PathBuf::from("out/cat-01.png"), PathBuf::from("out/cat-02.png")]);
    }

    #[test]
    fn values_become_bytes_as_in_diffusers() {
        let picture = Tensor::from_slice(&[-1.5_f32, -1.0, 0.0, 0.999, 1.0, 2.0]).view([1, 1, 2, 3]);
        assert_eq!(Pixels::of(&picture, 0).unwrap().values, [0, 0, 128, 255, 255, 255]);
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
}
