//! `tilewright bench estimates`, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_bench::Spelling;
use tilewright_plan::bytes;

use super::{Common, sample::size};

/// `tilewright bench estimates`
#[derive(Args, Debug)]
#[command(after_help = "\
The price of a plan is that of its layers: a layer whose ratio is far from those of others is one whose price is wrong on this machine. An ellipsis \
behind a block's name is what it takes beside its layers: attention, norms of heads, gates.")]
pub struct Estimates {
    /// A latent to decode, with --vae
    #[arg(value_name = "LATENT", requires = "vae")]
    pub latent: Option<PathBuf>,
    /// The VAE that decodes it
    #[arg(long, value_name = "FILE", requires = "latent")]
    pub vae: Option<PathBuf>,
    /// A transformer to sample with, of generated conditioning, or two experts
    #[arg(long, value_name = "FILE|FOLDER", num_args = 1)]
    pub transformer: Vec<PathBuf>,
    /// Width and height of the sample in pixels
    #[arg(long, value_name = "WxH", value_parser = size, default_value = "512x512")]
    pub size: [u32; 2],
    /// Frames of a clip
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub frames: Option<u32>,
    /// Steps of the sample
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub steps: u32,
    /// A text encoder that reads generated tokens
    #[arg(long, value_name = "FILE|FOLDER")]
    pub text_encoder: Option<PathBuf>,
    /// Tokens of the text
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub tokens: u32,
    /// The policy that decides, as for bench: fixed:precision=f16
    #[arg(long, value_name = "P", default_value = "adaptive")]
    pub policy: Spelling,
    /// The most to hold at once [default: 80 % of what is free]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub memory_limit: Option<u64>,
    /// Rows to list
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
}
