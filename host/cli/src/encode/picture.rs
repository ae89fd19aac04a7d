//! A picture's file to a tensor.

use std::{fs::File, io::BufReader, path::Path};

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use tch::{Kind, Tensor};

use crate::failure::{Failure, Outcome};

/// Longest side in pixels; past this a picture is hostile rather than large.
const MOST_PIXELS: u32 = 1 << 16;

/// What reading may hold: a few bytes can stand for any number of pixels.
const MOST_BYTES: u64 = 2 << 30;

/// Reads a picture to [1, 3, H, W] in −1…1, turned as its camera noted. Transparency is left out, gray becomes colour.
pub fn read(path: &Path) -> Outcome<Tensor> {
    let refused = |reason: String| Failure::input(format!("{}: {reason}", path.display()));
    let file = File::open(path).map_err(|error| refused(format!("can't be read: {error}")))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(refused("not a file: give a picture's".into()));
    }
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format();
    let mut reader = reader.map_err(|error| refused(format!("can't be read: {error}")))?;
    if !matches!(reader.format(), Some(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) {
        return Err(refused("no PNG, JPEG or WebP picture".into()));
    }
    let mut limits = Limits::no_limits();
    limits.max_image_width = Some(MOST_PIXELS);
    limits.max_image_height = Some(MOST_PIXELS);
    limits.max_alloc = Some(MOST_BYTES);
    reader.limits(limits);
    let broken = |error: image::ImageError| refused(format!("can't be read: {error}"));
    let mut decoder = reader.into_decoder().map_err(broken)?;
    let orientation = decoder.orientation().map_err(broken)?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(broken)?;
    picture.apply_orientation(orientation);
    tensor(picture).map_err(Failure::work)
}

/// v / 255 · 2 − 1, or the same of 16 bits.
fn tensor(picture: DynamicImage) -> Result<Tensor, tch::TchError> {
    let picture = picture.into_rgb32f();
    let (width, height) = (i64::from(picture.width()), i64::from(picture.height()));
    let values = Tensor::f_from_slice(picture.as_raw())?.f_reshape([1, height, width, 3])?;
    drop(picture);
    values.f_permute([0, 3, 1, 2])?.f_contiguous()?.f_mul_scalar(2.0)?.f_sub_scalar(1.0)?.f_to_kind(Kind::Float)
}

#[cfg(test)]
mod tests {
    use image::{ImageBuffer, Luma, Rgb, Rgba};

    use super::*;

    #[test]
    fn pixels_become_values_of_either_depth_with_transparency_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let read = |picture: DynamicImage| {
            let path = folder.path().join("x.png");
            picture.save(&path).unwrap();
            let tensor = read(&path).unwrap();
            assert_eq!(tensor.size(), [1, 3, 1, 2]);
            Vec::<f64>::try_from(tensor.to_kind(Kind::Double).flatten(0, -1)).unwrap()
        };
        let near = |found: Vec<f64>, expected: [f64; 6]| {
            let apart = found.iter().zip(expected).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
            assert!(apart < 1e-6, "{found:?} {expected:?}");
        };
        let eight = |value: u8| f64::from(value) / 127.5 - 1.0;
        let expected = [eight(0), eight(3), eight(128), eight(4), eight(255), eight(5)];
        near(
            read(
                ImageBuffer::from_vec(2, 1, vec![0_u8, 128, 255, 3, 4, 5])
                    .map(ImageBuffer::<Rgb<u8>, _>::into)
                    .unwrap(),
            ),
            expected,
        );
        let clear = ImageBuffer::<Rgba<u8>, _>::from_vec(2, 1, vec![0, 128, 255, 0, 3, 4, 5, 99]).unwrap();
        near(read(clear.into()), expected);
        let deep = ImageBuffer::<Luma<u16>, _>::from_vec(2, 1, vec![257, 40_000]).unwrap();
        let [one, other] = [257.0, 40_000.0].map(|value| value / 32_767.5 - 1.0);
        near(read(deep.into()), [one, other, one, other, one, other]);
    }
}
