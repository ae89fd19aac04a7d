//! `tilewright embed`, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_plan::bytes;
use tilewright_sampling::Convention;
use tilewright_torch::device::Choice;

use super::{ObjectiveArgument, PolicyGrants, Recording, device};

/// `tilewright embed`
#[derive(Args, Debug)]
pub struct Embed {
    /// The prompt, with weights as (word:1.2) and embedding:NAME as ComfyUI has them; several make
    /// a row of the conditioning each; - is standard input
    #[arg(value_name = "PROMPT", required = true)]
    pub prompts: Vec<String>,
    /// A text encoder, repeatable, in any order: a file (.safetensors, .gguf, .pth, or the index of
    /// shards), a folder of transformers', a pipeline's folder or a whole checkpoint. CLIP and T5
    /// for Flux, UMT5 for WAN, CLIP and OpenCLIP for SDXL
    #[arg(long, value_name = "FILE|FOLDER", required = true, num_args = 1)]
    pub text_encoder: Vec<PathBuf>,
    /// The path of the output: .safetensors with prompt_embeds [N, tokens, width], and with CLIP
    /// pooled_prompt_embeds [N, width]
    #[arg(short, long, value_name = "OUT.safetensors")]
    pub output: PathBuf,
    /// Replace nothing: refuse where OUT is there already
    #[arg(long)]
    pub no_clobber: bool,
    /// The tokens that T5 reads at least, and as diffusers at most: for a model that was trained
    /// with fewer [default: 256 as ComfyUI, 512 as diffusers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..=512))]
    pub text_tokens: Option<u32>,
    /// A folder of embeddings (textual inversion) that prompts may name
    #[arg(long, value_name = "FOLDER")]
    pub embeddings: Option<PathBuf>,
    /// The reference to follow where they differ: T5 reads 256 tokens or more as ComfyUI, 512 as
    /// diffusers, which knows no weights
    #[arg(long = "as", value_name = "comfyui|diffusers", default_value = "comfyui")]
    pub convention: Convention,
    /// The policy that decides: a shipped policy's name, or a .wasm file
    #[arg(long, value_name = "[text=]NAME|FILE.wasm", default_value = "adaptive")]
    pub policy: String,
    /// A setting of the policy, repeatable; 'tilewright policy inspect NAME' lists them. adaptive
    /// and fixed have: precision (f32, bf16, f16, mixed-bf16, mixed-f16), place (device, host),
    /// weights (packed, expanded), kept (true, false)
    #[arg(long, value_name = "[text.]KEY=VALUE", value_parser = tilewright_policy::key_value)]
    pub set: Vec<(String, String)>,
    /// Grants of the policy.
    #[command(flatten)]
    pub grants: PolicyGrants,
    /// The device to run on; ROCm answers to cuda, as in PyTorch
    #[arg(long, value_name = "auto|cpu|cuda[:N]", default_value = "auto", value_parser = device)]
    pub device: Choice,
    /// The most to hold at once, weights included, as in 8GiB [default: 80 % of what is free]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub memory_limit: Option<u64>,
    /// The objective: what counts most
    #[arg(long, value_enum, default_value_t = ObjectiveArgument::Balanced)]
    pub objective: ObjectiveArgument,
    /// Processor threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Read the prompts and decide, encode nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Show every plan that the policy considered
    #[arg(long)]
    pub explain: bool,
    /// Print the record of each encoder's decision as JSON on standard output, with the name of the
    /// output
    #[arg(long)]
    pub json: bool,
    /// The records of the decisions.
    #[command(flatten)]
    pub record: Recording,
    /// Neither tell the policy of earlier runs nor keep this one; for all: TILEWRIGHT_HISTORY=off
    #[arg(long)]
    pub no_history: bool,
}
