//! `tilewright embed`, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_sampling::Convention;

use super::{ModelFolders, PolicyOptions, ReportOptions, RunOptions};

/// The help of --set.
const SET: &str = "\
A setting of the policy, repeatable; 'tilewright policy inspect NAME' lists them. adaptive and fixed have: precision (f32, bf16, f16, \
mixed-bf16, mixed-f16), place (device, host), weights (packed, expanded), kept (true, false)";

/// `tilewright embed`
#[derive(Args, Debug)]
#[command(mut_arg("policy", |arg| arg.value_name("[text=]NAME|FILE.wasm")))]
#[command(mut_arg("set", |arg| arg.value_name("[text.]KEY=VALUE").help(SET)))]
pub struct Embed {
    /// The prompt, with weights as (word:1.2) and embedding:NAME as ComfyUI has them; several make
    /// a row of the conditioning each; - is standard input
    #[arg(value_name = "PROMPT", required = true)]
    pub prompts: Vec<String>,
    /// A text encoder, repeatable, in any order: a file (.safetensors, .gguf, .pth, or the index of
    /// shards), a folder of transformers', a pipeline's folder or a whole checkpoint. CLIP and T5
    /// for Flux, UMT5 for WAN, CLIP and OpenCLIP for SDXL
    #[arg(long, value_name = "FILE|FOLDER", required_unless_present = "model", num_args = 1)]
    pub text_encoder: Vec<PathBuf>,
    /// A model whose text encoders are taken, as `tilewright generate` takes them: a transformer, a
    /// checkpoint, a folder, or a name that `tilewright models` lists
    #[arg(long, value_name = "FILE|FOLDER|NAME", conflicts_with = "text_encoder")]
    pub model: Option<PathBuf>,
    /// Further folders with models.
    #[command(flatten)]
    pub folders: ModelFolders,
    /// The path of the output: .safetensors with prompt_embeds [N, tokens, width], and with CLIP
    /// pooled_prompt_embeds [N, width]
    #[arg(short, long, value_name = "OUT.safetensors")]
    pub output: PathBuf,
    /// Replace nothing: refuse where OUT exists already
    #[arg(long)]
    pub no_clobber: bool,
    /// The tokens that T5 reads at least, and as diffusers at most: for a model that was trained
    /// with fewer [default: the model's, or 256 as ComfyUI, 512 as diffusers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=512))]
    pub text_tokens: Option<u32>,
    /// A folder of embeddings (textual inversion) that prompts may name
    #[arg(long, value_name = "FOLDER")]
    pub embeddings: Option<PathBuf>,
    /// The reference to follow where they differ: T5 reads 256 tokens or more as ComfyUI, 512 as
    /// diffusers, which knows no weights
    #[arg(long = "as", value_name = "comfyui|diffusers", default_value = "comfyui")]
    pub convention: Convention,
    /// The policy that decides.
    #[command(flatten)]
    pub governed: PolicyOptions,
    /// Device, limit, aim and history.
    #[command(flatten)]
    pub run: RunOptions,
    /// Options of the report, and of a dry run.
    #[command(flatten)]
    pub report: ReportOptions,
}
