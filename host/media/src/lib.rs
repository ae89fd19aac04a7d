//! Pictures and clips in and out of files. Outputs are written atomically: each file gets a
//! temporary name in its own folder, and all are renamed when all are complete. Videos go through
//! ffmpeg's program; the rest is Rust.

#![forbid(unsafe_code)]

mod animation;
mod budget;
mod clip;
mod error;
mod exif;
mod ffmpeg;
mod format;
mod frame;
mod info;
mod journal;
mod jpeg;
mod output;
mod picture;
mod preview;
mod raw;
mod reader;
mod resize;
mod still;
mod texts;
mod webp;

pub use clip::ClipWriter;
pub use error::{Error, Result};
pub use exif::escape;
pub use format::{Format, Kind};
pub use frame::{Frame, Pixels, Rate, Shape};
pub use info::MediaInfo;
pub use journal::Journal;
pub use output::{NUMBER, Numbering, Options, Output, STANDARD, check_no_stream, find_number};
pub use picture::{Texts, is_keyword, picture_bytes, read_picture};
pub use preview::Preview;
pub use reader::ClipReader;
pub use resize::{Filter, resize};
pub use still::Depth;
pub use texts::read_texts;

#[cfg(test)]
mod samples;
