//! `tilewright encode`, declared.

use std::{path::PathBuf, str::FromStr};

use clap::Args;
use tilewright_pipeline::LatentKind;

use super::{JSON_OF_SEVERAL, ReportOptions, ScalingOptions, VaeRunOptions, output_path};

/// The help of -o, with an escape sequence in `{n}` as in that of `decode`.
const OUTPUT: &str = "\
Where to write: .latent as ComfyUI loads it, or .safetensors with the tensor 'latent', both with the picture's workflow; - for \
standard output.
{\u{1b}[0mn} in the name becomes the next free number, {name} the input's name; a folder serves, too. A link is followed; an \
input, a write-protected file or another user's is never replaced [default: the input's name with .latent, in the current folder]";

/// `tilewright encode`
#[derive(Args, Debug)]
#[command(mut_arg("json", |arg| arg.help(JSON_OF_SEVERAL)))]
#[command(mut_arg("scaled", |arg| arg.help("Apply the model's scaling, as diffusers' pipelines do: only for .safetensors")))]
#[command(mut_arg("scaling_factor", |arg| arg.help("The scaling factor that --scaled applies, instead of the family's")))]
#[command(mut_arg("shift_factor", |arg| arg.help("The shift that --scaled applies, instead of the family's")))]
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
    /// Policy, device, limit, aim and what is allowed.
    #[command(flatten)]
    pub run: VaeRunOptions,
    /// The scaling of the latents.
    #[command(flatten)]
    pub scaling: ScalingOptions,
    /// Options of the report, and of a dry run.
    #[command(flatten)]
    pub report: ReportOptions,
}
