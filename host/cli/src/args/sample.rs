//! `tilewright sample`, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_pipeline::{LoraRequest, PromptRequest, random_seed};
use tilewright_plan::Loss;
use tilewright_sampling::{Convention, MOST_STEPS, Sampler, Scheduler, parse_sigmas};

use super::{PolicyOptions, ReportOptions, RunOptions, finite, output_path, reuse};

/// Sigmas as one argument.
#[derive(Clone, Debug, PartialEq)]
pub struct Sigmas(pub Vec<f64>);

fn sigmas(text: &str) -> Result<Sigmas, tilewright_sampling::Error> {
    parse_sigmas(text).map(Sigmas)
}

/// A seed as an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seed {
    /// The seed's number.
    pub number: u64,
    /// True if nobody chose it.
    pub is_drawn: bool,
}

impl std::fmt::Display for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.number.fmt(f)
    }
}

/// A number, or one that is drawn: for `random`, or for -1 as A1111 has it.
pub(super) fn seed(text: &str) -> Result<Seed, String> {
    match text.trim() {
        "random" | "-1" => Ok(Seed { number: random_seed(), is_drawn: true }),
        text => match text.parse() {
            Ok(number) => Ok(Seed { number, is_drawn: false }),
            Err(_) => Err(format!("expected a whole number from 0 to {}, or random", u64::MAX)),
        },
    }
}

/// Width and height in pixels.
pub(super) fn size(text: &str) -> Result<[u32; 2], String> {
    let sides = text.split_once(['x', '×']).and_then(|(width, height)| {
        let number = |side: &str| side.trim().parse().ok().filter(|side| *side > 0);
        Some([number(width)?, number(height)?])
    });
    sides.ok_or_else(|| "expected a width and a height, as 1024x768".to_owned())
}

/// Steps, and the way that they take, of every command that samples.
#[derive(Args, Clone, Debug)]
pub struct Way {
    /// Steps [default: 20; 4 for Flux.1 schnell]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_STEPS)))]
    pub steps: Option<u32>,
    /// The sigmas by hand, one more than steps, as in 1,0.75,0.5,0.25,0
    #[arg(long, value_name = "LIST", value_parser = sigmas, conflicts_with = "steps")]
    pub sigmas: Option<Sigmas>,
    /// The sampler, by ComfyUI's name, as dpmpp_2m; an unknown name lists all 45. As diffusers,
    /// uni_pc and dpmpp_2m are its UniPC and DPM-Solver++ [default: euler; as diffusers that of a
    /// saved pipeline]
    #[arg(long, value_name = "NAME")]
    pub sampler: Option<Sampler>,
    /// The scheduler, by ComfyUI's name: simple, sgm_uniform, karras, exponential, ddim_uniform,
    /// beta, normal, linear_quadratic or kl_optimal [default: simple; as diffusers its own]
    #[arg(long, value_name = "NAME", conflicts_with = "sigmas")]
    pub scheduler: Option<Scheduler>,
    /// The shift of the model's sigmas [default: as --as has it: 1.15 for Flux.1 dev and 8 for WAN
    /// in ComfyUI]
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub shift: Option<f64>,
    /// The guidance that Flux.1 dev has as an input [default: 3.5]
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub guidance: Option<f64>,
    /// The reference to follow where they differ [default: comfyui]
    #[arg(long = "as", value_name = "comfyui|diffusers")]
    pub convention: Option<Convention>,
}

/// The help of --set.
const SET: &str = "\
A setting of the policy, repeatable; 'tilewright policy inspect NAME' lists them. adaptive and fixed have: precision (f32, bf16, f16, \
mixed-bf16, mixed-f16), products (precision, fp8, int8), weights (packed, expanded), ahead (all, or blocks to read ahead), guidance \
(together, in-turn), samples (all, or a number at once), attention (fused, or a number of queries), feed-forward (a number of parts), \
reuse (off, output, first-block), release (keep, at-end, each-step)";

/// The help of --memory-limit.
const LIMIT: &str = "\
The most to hold at once, weights included, as in 8GiB; a larger model is read block by block, as it is needed [default: 80 % of what \
is free]";

/// `tilewright sample`
#[derive(Args, Debug)]
#[command(mut_arg("policy", |arg| arg.value_name("[denoise=]NAME|FILE.wasm")))]
#[command(mut_arg("set", |arg| arg.value_name("[denoise.]KEY=VALUE").help(SET)))]
#[command(mut_arg("memory_limit", |arg| arg.help(LIMIT)))]
pub struct Sample {
    /// The transformer: a file (.safetensors, .gguf, .pth, or the index of shards), or a folder of
    /// diffusers'; of WAN 2.2's two experts first the one for high noise, and then the other
    #[arg(long, value_name = "FILE|FOLDER", required = true, num_args = 1)]
    pub transformer: Vec<PathBuf>,
    /// A LoRA, repeatable, with its strength (1 if none is given); @high or @low behind it is for
    /// one of two experts, without which it is for both
    #[arg(long, value_name = "FILE|FOLDER[:STRENGTH][@high|@low]")]
    pub lora: Vec<LoraRequest>,
    /// The conditioning: a .safetensors with prompt_embeds, for Flux also pooled_prompt_embeds, for
    /// image to video also image_embeds and condition. Repeatable, with the part of the way that it
    /// is for behind it, as @0-0.4; those for one part are averaged
    #[arg(long, value_name = "FILE[@START-END]", required = true, num_args = 1)]
    pub conditioning: Vec<PromptRequest>,
    /// The conditioning to lead away from, with --cfg; as --conditioning
    #[arg(long, value_name = "FILE[@START-END]", requires = "cfg", num_args = 1)]
    pub negative: Vec<PromptRequest>,
    /// Width and height in pixels
    #[arg(long, value_name = "WxH", value_parser = size, conflicts_with = "latent")]
    pub size: Option<[u32; 2]>,
    /// Frames of a clip [default: 81 for WAN 2.1, 121 for WAN 2.2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "latent")]
    pub frames: Option<u32>,
    /// A latent to begin from, in the VAE's own space; it gives size and frames
    #[arg(long, value_name = "FILE")]
    pub latent: Option<PathBuf>,
    /// The part to make again: a picture, white where the latent is replaced, or a .safetensors
    /// with the tensor mask [1, 1, (T,) h, w], 1 there
    #[arg(long, value_name = "FILE", requires = "latent")]
    pub mask: Option<PathBuf>,
    /// The noise: a .safetensors with the tensor noise, in place of the seed's
    #[arg(long, value_name = "FILE", conflicts_with = "no_add_noise")]
    pub noise: Option<PathBuf>,
    /// The seed of the noise: that of torch.manual_seed(N); torch.randn(shape) on the CPU; also of
    /// the noise that the sampler adds. Several, with commas, make a sample each, as alone (not
    /// with dpm_adaptive, --reuse or FP8 products, which look at the batch as a whole); random or
    /// -1 draws one
    #[arg(long, value_name = "N[,N…]", default_value = "0", value_delimiter = ',', value_parser = seed, allow_negative_numbers = true)]
    pub seed: Vec<Seed>,
    /// Samples [default: as many as noise, latent or conditioning has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Option<u32>,
    /// The path of the output: .latent as ComfyUI loads it, or .safetensors with the tensor
    /// 'latent'; - for standard output
    #[arg(short, long, value_name = "OUT", value_parser = output_path())]
    pub output: PathBuf,
    /// Replace nothing: refuse where OUT exists already
    #[arg(long)]
    pub no_clobber: bool,
    /// Steps, and the way that they take.
    #[command(flatten)]
    pub way: Way,
    /// The first of the steps to take, from 0, as KSampler (Advanced) has it
    #[arg(long, value_name = "N", conflicts_with = "sigmas")]
    pub start_step: Option<u32>,
    /// The step to end before
    #[arg(long, value_name = "N", conflicts_with = "sigmas")]
    pub end_step: Option<u32>,
    /// Add no noise at first: the latent has it, from an earlier sample with --leftover-noise
    #[arg(long, requires = "latent")]
    pub no_add_noise: bool,
    /// Leave the noise of the last sigma in the latent, with --end-step
    #[arg(long, requires = "end_step")]
    pub leftover_noise: bool,
    /// The share of the way from noise to a sample that is gone, with --latent
    #[arg(long, value_name = "X", value_parser = finite, requires = "latent", conflicts_with = "sigmas")]
    pub denoise: Option<f64>,
    /// The factor of guidance by --negative; 1 leaves it out
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true, requires = "negative")]
    pub cfg: Option<f64>,
    /// The sigma at which two experts change [default: 0.875, from a picture 0.9]
    #[arg(long, value_name = "SIGMA", value_parser = finite)]
    pub boundary: Option<f64>,
    /// The policy that decides.
    #[command(flatten)]
    pub governed: PolicyOptions,
    /// Device, limit, aim and history.
    #[command(flatten)]
    pub run: RunOptions,
    /// Let the network's last output serve once more where it would change by less than this part,
    /// as 0.2 (EasyCache's rule): faster, and not quite the same. Never for 8 steps or fewer
    #[arg(long, value_name = "X", value_parser = finite, conflicts_with = "resume")]
    pub reuse: Option<f64>,
    /// Allow what is not quite the output that was asked for: reuse=X, as --reuse X
    #[arg(long, value_name = "reuse=X", value_parser = reuse, conflicts_with_all = ["reuse", "resume"])]
    pub allow: Option<Loss>,
    /// Keep each finished step beside OUT, and go on after the last one that an earlier run kept,
    /// interrupted or killed, to the same bits
    #[arg(long)]
    pub resume: bool,
    /// A PNG of the sample so far, rewritten after each step: its colours come from a linear map
    /// that is fitted to --vae first, which takes as long as a decode of 256x256
    #[arg(long, value_name = "FILE.png", requires = "vae")]
    pub preview: Option<PathBuf>,
    /// The model's VAE, for --preview
    #[arg(long, value_name = "FILE", requires = "preview")]
    pub vae: Option<PathBuf>,
    /// Options of the report, and of a dry run.
    #[command(flatten)]
    pub report: ReportOptions,
}
