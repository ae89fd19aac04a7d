//! Frames and folders for the tests of this crate.

use std::{fs, path::Path};

use crate::frame::{Frame, Pixels};

/// A smooth picture that moves with its number: 8-bit values, as files hold them.
pub fn frame(width: u32, height: u32, channels: usize, number: usize) -> Frame {
    let mut values = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let colors = [x * 255 / width, y * 255 / height, number as u32 * 16 % 256, 255 - x * 100 / width];
            values.extend(colors[..channels].iter().map(|&color| color as u8));
        }
    }
    Pixels { width, height, channels, values }.frame()
}

pub fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// True if ffmpeg is to be tested; tests fail without it, unless a variable says that it is
/// missing.
pub fn ffmpeg() -> bool {
    let without = std::env::var_os("TILEWRIGHT_WITHOUT_FFMPEG").is_some();
    if without {
        println!("not tested: TILEWRIGHT_WITHOUT_FFMPEG is set");
    }
    !without
}
