//! `tilewright embed`, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_plan::{Precision, bytes};
use tilewright_sampling::Convention;
use tilewright_torch::device::Choice;

use super::device;

/// The only setting of text encoders.
const PRECISION: &str = "precision";

/// A setting of text encoders.
fn setting(text: &str) -> Result<Precision, String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, as precision=bf16")?;
    if key.strip_prefix("text.").unwrap_or(key) != PRECISION {
        return Err(format!("text encoders have no setting '{key}': {PRECISION} is the only one"));
    }
    Precision::of_tokens(value).ok_or_else(|| "expected f32, bf16, f16, mixed-bf16 or mixed-f16".to_owned())
}

/// `tilewright embed`
#[derive(Args, Debug)]
pub struct Embed {
    /// The prompt, with weights as (word:1.2) and embedding:NAME as ComfyUI has them; several make
    /// a row of the conditioning each; - is standard input
    #[arg(value_name = "PROMPT", required = true)]
    pub prompts: Vec<String>,
    /// A text encoder, repeatable, in any order: a file (.safetensors, .gguf, or the index of
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
    /// A setting: precision (f32, bf16, f16, mixed-bf16, mixed-f16) [default: f32, and mixed-bf16
    /// where memory is too short for it]
    #[arg(long, value_name = "[text.]KEY=VALUE", value_parser = setting)]
    pub set: Option<Precision>,
    /// The device to run on; ROCm answers to cuda, as in PyTorch
    #[arg(long, value_name = "auto|cpu|cuda[:N]", default_value = "auto", value_parser = device)]
    pub device: Choice,
    /// The most to hold at once, weights included, as in 8GiB [default: 80 % of what is free]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    pub memory_limit: Option<u64>,
    /// Processor threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Read the prompts and estimate, encode nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print what each encoder took as JSON on standard output, with the name of the output
    #[arg(long)]
    pub json: bool,
}
