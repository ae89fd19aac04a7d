//! `tilewright generate`, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_media::Rate;
use tilewright_pipeline::LoraRequest;
use tilewright_plan::Loss;

use super::{
    ModelFolders, PolicyGrants, ReportOptions, RunOptions, Writing, finite, output_path,
    sample::{Seed, Way, seed, size},
};

/// The end of --help.
const EXAMPLES: &str = "\
With the models that ship with the program:
  tilewright generate 'a red circle on a blue square' -o out.png
  tilewright generate 'a green triangle moving left' --model wan-shapes -o out.webp

With a model of your own, such as `tilewright models` lists:
  tilewright generate 'a red fox in the snow' --model FLUX.1-dev -o fox.png";

/// The help of --memory-limit, --explain and --json.
const LIMIT: &str =
    "The most that a stage may hold at once, weights included, as in 8GiB [default: 80 % of what is free]";
const EXPLAIN: &str =
    "Show every plan that the policies considered, and the settings that the model's defaults fill in";
const JSON: &str = "\
Print one JSON object on standard output: stages, with the record of each in order, and outputs";

/// `tilewright generate`
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(mut_arg("memory_limit", |arg| arg.help(LIMIT)))]
#[command(mut_arg("explain", |arg| arg.help(EXPLAIN)))]
#[command(mut_arg("json", |arg| arg.help(JSON)))]
pub struct Generate {
    /// The prompt, with weights as (word:1.2) and embedding:NAME as ComfyUI has them; - is standard
    /// input
    #[arg(value_name = "PROMPT", required_unless_present = "like")]
    pub prompt: Option<String>,
    /// A picture or clip of this command or of the service whose settings fill in those that are
    /// not given, its model, its LoRAs and the plans of its stages included: on the same device,
    /// the same picture comes out. What differs is said
    #[arg(long, value_name = "FILE")]
    pub like: Option<PathBuf>,
    /// The path of the output: a picture (.png, .jpg, .webp, .safetensors) or a clip (.mp4, .webm,
    /// .gif, .png, …), by its ending; - for standard output
    #[arg(short, long, value_name = "OUT", value_parser = output_path())]
    pub output: PathBuf,
    /// Options of the output's format.
    #[command(flatten)]
    pub writing: Writing,
    /// The model: a transformer, a checkpoint of several networks, the folder of a pipeline as
    /// diffusers saves it, a folder with the files of one model, or a name that `tilewright
    /// models` lists. Parts that are named by themselves go before its own; what is missing is
    /// looked for by what it is [default: the one that ships with the program]
    #[arg(long, value_name = "FILE|FOLDER|NAME")]
    pub model: Option<PathBuf>,
    /// Further folders with models.
    #[command(flatten)]
    pub folders: ModelFolders,
    /// The transformer: a file (.safetensors, .gguf, .pth, or the index of shards), or a folder; of
    /// WAN 2.2's two experts first the one for high noise, and then the other
    #[arg(long, value_name = "FILE|FOLDER", num_args = 1)]
    pub transformer: Vec<PathBuf>,
    /// A text encoder, repeatable, in any order: CLIP and T5 for Flux, UMT5 for WAN
    #[arg(long, value_name = "FILE|FOLDER", num_args = 1)]
    pub text_encoder: Vec<PathBuf>,
    /// The encoder of the picture that a clip begins from: CLIP ViT-H's vision for WAN 2.1, image
    /// to video
    #[arg(long, value_name = "FILE|FOLDER")]
    pub vision_encoder: Option<PathBuf>,
    /// The VAE: a file, or a folder
    #[arg(long, value_name = "FILE|FOLDER")]
    pub vae: Option<PathBuf>,
    /// A LoRA, repeatable, with its strength (1 if none is given); @high or @low behind it is for
    /// one of two experts, without which it is for both
    #[arg(long, value_name = "FILE|FOLDER[:STRENGTH][@high|@low]")]
    pub lora: Vec<LoraRequest>,
    /// The prompt to lead away from; it counts if --cfg is not 1
    #[arg(long, value_name = "TEXT")]
    pub negative: Option<String>,
    /// A picture to begin with: of a picture, which --denoise makes again in part, it gives the
    /// size; of a clip it is the first frame, scaled to --size
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// The part of --image to make again: a picture, white where it is replaced
    #[arg(long, value_name = "FILE", requires = "image")]
    pub mask: Option<PathBuf>,
    /// The share of the way from noise to a picture that is gone from --image, as 0.6; 1 is all
    /// of it [default: 1]
    #[arg(long, value_name = "X", value_parser = finite, requires = "image", conflicts_with = "sigmas")]
    pub denoise: Option<f64>,
    /// Width and height in pixels [default: 1024x1024 for Flux, 832x480 for WAN, 1280x704 for WAN
    /// 2.2 5B]
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub size: Option<[u32; 2]>,
    /// Frames of a clip [default: 81 for WAN 2.1, 121 for WAN 2.2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub frames: Option<u32>,
    /// Frames per second of a clip, as 24, 23.976 or 30000/1001 [default: 16 for WAN 2.1, 24 for
    /// WAN 2.2]
    #[arg(long, value_name = "RATE")]
    pub fps: Option<Rate>,
    /// The seed of the noise: that of torch.manual_seed(N); torch.randn(shape) on the CPU. Several,
    /// with commas, make a picture each, as alone; random or -1 draws one [default: 0]
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',', value_parser = seed, allow_negative_numbers = true)]
    pub seed: Vec<Seed>,
    /// Pictures or clips of one seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Option<u32>,
    /// Steps, and the way that they take.
    #[command(flatten)]
    pub way: Way,
    /// The factor of guidance by --negative; 1 leaves it out [default: 1 for Flux, 6 for WAN 2.1, 5
    /// for WAN 2.2 5B, 3.5 for WAN 2.2's experts]
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub cfg: Option<f64>,
    /// The sigma at which two experts change [default: 0.875]
    #[arg(long, value_name = "SIGMA", value_parser = finite)]
    pub boundary: Option<f64>,
    /// The tokens that T5 reads at least, and as diffusers at most [default: the model's, or 256 as
    /// ComfyUI and 512 as diffusers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=512))]
    pub text_tokens: Option<u32>,
    /// A folder of embeddings (textual inversion) that prompts may name
    #[arg(long, value_name = "FOLDER")]
    pub embeddings: Option<PathBuf>,
    /// Keep the latent, too, as ComfyUI's .latent, or as .safetensors
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
    /// A PNG of the sample so far, rewritten after each step
    #[arg(long, value_name = "FILE.png")]
    pub preview: Option<PathBuf>,
    /// The policy that decides, of all stages or of one (text, encode, denoise, decode),
    /// repeatable: a shipped policy's name, or a .wasm file [default: adaptive]
    #[arg(long, value_name = "[STAGE=]NAME|FILE.wasm", num_args = 1)]
    pub policy: Vec<String>,
    /// A setting of the policies, of all stages or of one, repeatable, as precision=f32 or
    /// decode.precision=f32
    #[arg(long, value_name = "[STAGE.]KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set: Vec<(String, String)>,
    /// Grants of the policies.
    #[command(flatten)]
    pub grants: PolicyGrants,
    /// Device, limit, aim and history.
    #[command(flatten)]
    pub run: RunOptions,
    /// Allow what is not quite the output that was asked for, several separated by commas: blended
    /// (tiles and chunks that are cross-faded, where the whole or exact bands fit, too), or that of
    /// one stage, as decode.blended; reuse=X, as --reuse X
    #[arg(long, value_name = "LOSS,…", value_delimiter = ',')]
    pub allow: Vec<Loss>,
    /// Let the network's last output serve once more where it would change by less than this part
    #[arg(long, value_name = "X", value_parser = finite, conflicts_with = "resume")]
    pub reuse: Option<f64>,
    /// Keep each finished step beside OUT, and go on after the last one that an earlier run kept
    #[arg(long)]
    pub resume: bool,
    /// Options of the report, and of a dry run.
    #[command(flatten)]
    pub report: ReportOptions,
}
