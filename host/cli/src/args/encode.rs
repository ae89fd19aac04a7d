//! `tilewright encode`, declared.

use std::{path::PathBuf, str::FromStr};

use clap::Args;
use tilewright_models::Family;
use tilewright_pipeline::LatentKind;

use super::{
    AllowBlended, JSON_OF_SEVERAL, LIMIT_ASIDE, PolicyOptions, ReportOptions, RunOptions, factor, finite, output_path,
};

/// The help of -o, with an escape sequence in `{n}` as in that of `decode`.
const OUTPUT: &str = "\
Where to write: .latent as ComfyUI loads it, or .safetensors with the tensor 'latent', both with the picture's workflow; - for \
standard output.
{\u{1b}[0mn} in the name becomes the next free number, {name} the input's name; a folder serves, too. A link is followed; an \
input, a write-protected file or another user's is never replaced [default: the input's name with .latent, in the current folder]";

/// `tilewright encode`
#[derive(Args, Debug)]
#[command(mut_arg("memory_limit", |arg| arg.help(LIMIT_ASIDE)))]
#[command(mut_arg("json", |arg| arg.help(JSON_OF_SEVERAL)))]
pub struct Encode {
    /// A picture (.png, .jpg, .webp), or for video VAEs a clip: .mp4, .webm, .mkv, .mov, .avi,
    /// .gif, .webp, a folder of pictures in the order of their names, or .safetensors with the
    /// tensor 'sample'. Sides that are no multiples of the VAE's scale are cropped at the edges;
    /// the last frames are left out where they make no whole latent frame. Several share the loaded
    /// weights, and one that fails does not stop the others; for an image VAE, a folder is the
    /// pictures in it; - is a picture on standard input
    #[arg(value_name = "PICTURE|CLIP", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The VAE's weights, encoder included: diffusers, LDM/BFL (ae.safetensors), a whole SD
    /// checkpoint, or WAN's (Wan2.1_VAE.safetensors); or a folder as diffusers saves it, of the VAE
    /// or of all its parts
    #[arg(long, value_name = "FILE|FOLDER")]
    pub vae: PathBuf,
    /// The path of the output.
    #[arg(short, long, value_name = "OUT", help = OUTPUT, value_parser = output_path())]
    pub output: Option<PathBuf>,
    /// Write this, whatever OUT's ending [default: OUT's ending; latent on standard output]
    #[arg(long, value_name = "latent|safetensors", value_parser = LatentKind::from_str)]
    pub format: Option<LatentKind>,
    /// Replace nothing: refuse where OUT exists already
    #[arg(long)]
    pub no_clobber: bool,
    /// Take only N frames of a clip, from its beginning
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub frames: Option<u32>,
    /// The policy that decides.
    #[command(flatten)]
    pub governed: PolicyOptions,
    /// Device, limit, aim and history.
    #[command(flatten)]
    pub run: RunOptions,
    /// The memory limit counts the weights, too; estimates and measured peaks then do as well
    #[arg(long)]
    pub count_weights: bool,
    /// Losses that are allowed.
    #[command(flatten)]
    pub allow: AllowBlended,
    /// Apply the model's scaling, as diffusers' pipelines do: only for .safetensors
    #[arg(long)]
    pub scaled: bool,
    /// The model's family, where the file can't tell: sd, sdxl, sd3, flux
    #[arg(long, value_name = "FAMILY")]
    pub family: Option<Family>,
    /// The scaling factor that --scaled applies, instead of the family's
    #[arg(long, value_name = "X", value_parser = factor)]
    pub scaling_factor: Option<f64>,
    /// The shift that --scaled applies, instead of the family's
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub shift_factor: Option<f64>,
    /// Options of the report, and of a dry run.
    #[command(flatten)]
    pub report: ReportOptions,
}
