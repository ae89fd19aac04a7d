//! Options of `decode` for writing outputs.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{PathBufValueParser, TypedValueParser},
};
use tilewright_media::{Depth, Format, Options, STANDARD};
use tilewright_outputs::is_standard_output;

/// Reads the path of an output that may be standard output: `-` by each of its names.
pub fn output_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| if is_standard_output(&path) { STANDARD.into() } else { path })
}

/// Options of everything that decodes.
#[derive(Args, Debug)]
pub struct Writing {
    /// Write this, whatever OUT's ending: png, jpg, webp, safetensors, and for clips mp4, mkv,
    /// webm, gif [default: OUT's ending; png on standard output]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Quality of .jpg [default: 95], and of .mp4, .mkv and .webm [default: 70, CRF 16 of H.264 and
    /// 20 of VP9]; the other formats lose nothing
    #[arg(long, value_name = "1-100", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub quality: Option<u8>,
    /// Bits of each value in .png, and in a folder of them
    #[arg(long, value_name = "8|16", default_value = "8", value_parser = depth)]
    pub bits: Depth,
    /// Replace nothing: refuse where OUT exists already
    #[arg(long)]
    pub no_clobber: bool,
}

impl Writing {
    /// The options in the form that outputs take.
    pub fn options(&self) -> Options {
        let Self { format, no_clobber, quality, .. } = *self;
        Options { format, no_clobber, quality, depth: self.bits, ..Options::default() }
    }
}

fn depth(text: &str) -> Result<Depth, String> {
    match text {
        "8" => Ok(Depth::Eight),
        "16" => Ok(Depth::Sixteen),
        _ => Err("expected 8 or 16".into()),
    }
}
