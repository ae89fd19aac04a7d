//! The memory that reading a picture takes, checked beforehand: a few bytes of a file can stand for
//! gigabytes of pixels.

use std::path::Path;

use crate::error::{Error, Result};

/// The most memory that one picture or frame may take while it is read: enough for 8192 by 8192
/// pixels of 16 bits.
const MOST_BYTES: u64 = 5 << 28;

/// The longest file of a picture, in bytes; some readers take it into memory whole.
pub(crate) const MOST_FILE: u64 = 1 << 29;

/// The most memory for a PNG's data beside the pixels, such as colour profiles and texts, all of
/// which may be packed.
pub(crate) const MOST_BESIDE: u64 = 64 << 20;

/// Bytes of a pixel of three values as f32, in which every reader ends.
pub(crate) const FRAME: u64 = 12;

/// Bytes of a pixel of an animation while it is read: the canvas, the frame laid on it and the copy
/// that is given out, in four values each, the same in three values, and these as f32.
pub(crate) const ANIMATED: u64 = 4 + 4 + 4 + 3 + FRAME;

/// Refuses a picture or frame without pixels, or with more than the budget allows.
pub(crate) fn check(path: &Path, width: u32, height: u32, bytes_per_pixel: u64) -> Result<()> {
    if width == 0 || height == 0 {
        return Err(Error::input(path, "its frames have no pixels"));
    }
    let takes = u128::from(width) * u128::from(height) * u128::from(bytes_per_pixel);
    if takes > u128::from(MOST_BYTES) {
        return Err(Error::input(
            path,
            format!(
                "{width}×{height} pixels take {:.1} GiB to be read, of at most {} GiB: scale it down",
                gigabytes(takes),
                gigabytes(u128::from(MOST_BYTES))
            ),
        ));
    }
    Ok(())
}

/// The error of a picture whose codec found a part of it beyond its own bounds.
pub(crate) fn exceeded(path: &Path) -> Error {
    let most = gigabytes(u128::from(MOST_BYTES));
    Error::input(path, format!("a frame takes too many GiB to be read, of at most {most} GiB: scale it down"))
}

fn gigabytes(bytes: u128) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// The most pixels that the budget allows.
pub(crate) fn most_pixels(bytes_per_pixel: u64) -> u64 {
    MOST_BYTES / bytes_per_pixel
}

/// Refuses files that are longer than any picture.
pub(crate) fn check_file(path: &Path, length: u64) -> Result<()> {
    if length > MOST_FILE {
        let most = MOST_FILE >> 20;
        return Err(Error::input(path, format!("{length} bytes are more than a picture has: at most {most} MiB")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pictures_pass_and_bombs_do_not() {
        let path = Path::new("a.png");
        // Three values of 8 bits and of 16 bits, with the f32 that they become.
        for bytes in [3 + FRAME, 6 + FRAME] {
            assert!(check(path, 8192, 8192, bytes).is_ok());
            let error = check(path, 16_384, 16_384, bytes).unwrap_err().to_string();
            assert!(
                error.starts_with("a.png: 16384×16384 pixels take")
                    && error.ends_with("at most 1.25 GiB: scale it down"),
                "{error}"
            );
        }
        assert!(check(path, u32::MAX, u32::MAX, u64::MAX).is_err() && check(path, 0, 9, 1).is_err());
        assert!(check_file(path, MOST_FILE).is_ok() && check_file(path, 30 << 30).is_err());
    }
}
