//! `tilewright encode`, declared.

use std::{path::PathBuf, str::FromStr};

use clap::Args;
use tilewright_models::Family;
use tilewright_pipeline::LatentKind;
use tilewright_plan::bytes;
use tilewright_torch::device::Choice;

use super::{AllowBlended, ObjectiveArgument, PolicyGrants, Recording, device, factor, finite};

/// The help of -o, with an escape sequence in `{n}` as in that of `decode`.
const OUTPUT: &str = "\
Where to write: .latent as ComfyUI loads it, or .safetensors with the tensor 'latent', both with the picture's workflow; - for \
standard output.
{\u{1b}[0mn} in the name becomes the next free number, {name} the input's name; a folder serves, too. A link is followed; an \
input, a write-protected file or another user's is never replaced [default: the input's name with .latent, in the current folder]";

/// `tilewright encode`
#[derive(Args, Debug)]
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
    #[arg(short, long, value_name = "OUT", help = OUTPUT)]
    pub output: Option<PathBuf>,
    /// Write this, whatever OUT's ending [default: OUT's ending; latent on standard output]
    #[arg(long, value_name = "latent|safetensors", value_parser = LatentKind::from_str)]
    pub format: Option<LatentKind>,
    /// Replace nothing: refuse where OUT is there already
    #[arg(long)]
    pub no_clobber: bool,
    /// Take only so many frames of a clip, from its beginning
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub frames: Option<u32>,
    /// The policy that decides: a shipped policy's name, or a .wasm file
    #[arg(long, value_name = "NAME|FILE.wasm", default_value = "adaptive")]
    pub policy: String,
    /// A setting of the policy, repeatable; 'tilewright policy inspect NAME' lists them
    #[arg(long, value_name = "KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set: Vec<(String, String)>,
    /// Grants of the policy.
    #[command(flatten)]
    pub grants: PolicyGrants,
    /// The device to run on; ROCm answers to cuda, as in PyTorch
    #[arg(long, value_name = "auto|cpu|cuda[:N]", default_value = "auto", value_parser = device)]
    pub device: Choice,
    /// The most to hold at once, weights aside unless --count-weights, as in 8GiB or 512MiB
    /// [default: 80 % of what is free]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub memory_limit: Option<u64>,
    /// The memory limit counts the weights, too; estimates and measured peaks then do as well
    #[arg(long)]
    pub count_weights: bool,
    /// The objective: what counts most
    #[arg(long, value_enum, default_value_t = ObjectiveArgument::Balanced)]
    pub objective: ObjectiveArgument,
    /// Losses that are allowed.
    #[command(flatten)]
    pub allow: AllowBlended,
    /// Processor threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
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
    /// Decide and estimate, encode nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Show every plan that the policy considered, with what was predicted and measured
    #[arg(long)]
    pub explain: bool,
    /// Print the decision record as JSON on standard output, with the names of the outputs; for
    /// several inputs a line each
    #[arg(long)]
    pub json: bool,
    /// The record of the decision.
    #[command(flatten)]
    pub record: Recording,
    /// Neither tell the policy of earlier encodes nor keep this one; for all:
    /// TILEWRIGHT_HISTORY=off
    #[arg(long)]
    pub no_history: bool,
}
