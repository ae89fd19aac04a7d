//! `tilewright bench sample`, declared.

use std::path::PathBuf;

use clap::Args;
use tilewright_bench::sweep::Limit;
use tilewright_pipeline::{LoraRequest, PromptRequest};
use tilewright_sampling::{MOST_STEPS, Sampler, Scheduler};

use super::{Common, ObjectiveArgument, bench::ContestOptions, finite, sample::size};

/// The help of --policy, --against and --memory-limit.
const POLICY: &str = "\
A policy that takes part, repeatable: NAME, FILE.wasm, or either with settings as in fixed:precision=bf16,ahead=1";
const AGAINST: &str = "\
The reference of the latents, sampled once without the memory limit: whole (the plain plan in f32), a policy, or none";
const LIMIT: &str = "The most to hold at once, weights included [default: 80 % of what is free]";

/// `tilewright bench sample`
#[derive(Args, Debug)]
#[command(mut_arg("policies", |arg| arg.help(POLICY)))]
#[command(mut_arg("warmup", |arg| arg.default_value("1")))]
#[command(mut_arg("against", |arg| arg.help(AGAINST).default_value("none")))]
#[command(mut_arg("memory_limit", |arg| arg.help(LIMIT)))]
pub struct BenchSample {
    /// The transformer, as for sample
    #[arg(long, value_name = "FILE|FOLDER", required = true, num_args = 1)]
    pub transformer: Vec<PathBuf>,
    /// A LoRA, as for sample
    #[arg(long, value_name = "FILE|FOLDER[:STRENGTH][@high|@low]")]
    pub lora: Vec<LoraRequest>,
    /// The conditioning, as for sample [default: generated, of 512 tokens]
    #[arg(long, value_name = "FILE", num_args = 1)]
    pub conditioning: Vec<PromptRequest>,
    /// The conditioning to lead away from, with --cfg
    #[arg(long, value_name = "FILE", requires = "cfg", num_args = 1)]
    pub negative: Vec<PromptRequest>,
    /// The factor of guidance by --negative
    #[arg(long, value_name = "X", value_parser = finite, requires = "negative")]
    pub cfg: Option<f64>,
    /// Width and height in pixels
    #[arg(long, value_name = "WxH", value_parser = size, default_value = "512x512")]
    pub size: [u32; 2],
    /// Frames of a clip [default: 81 for WAN 2.1, 121 for WAN 2.2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub frames: Option<u32>,
    /// Samples
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub batch: Option<u32>,
    /// Steps of each run
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_STEPS)))]
    pub steps: u32,
    /// The sampler, by ComfyUI's name
    #[arg(long, value_name = "NAME")]
    pub sampler: Option<Sampler>,
    /// The scheduler, by ComfyUI's name
    #[arg(long, value_name = "NAME")]
    pub scheduler: Option<Scheduler>,
    /// Reuse that policies may make use of, as for sample
    #[arg(long, value_name = "X", value_parser = finite)]
    pub reuse: Option<f64>,
    /// The policies, their runs and limits.
    #[command(flatten)]
    pub contest: ContestOptions,
    /// Measure every plan of a long list, and compare the best with what the first policy chooses
    #[arg(long, conflicts_with_all = ["against", "memory_limit", "objective", "warmup"])]
    pub sweep: bool,
    /// With --sweep, memory limits: ample (80 % of what is free), third (of the way from the
    /// leanest plan to the plain one), or sizes
    #[arg(long, value_name = "LIMITS", value_delimiter = ',', default_value = "ample,third", requires = "sweep")]
    pub limits: Vec<Limit>,
    /// With --sweep, objectives
    #[arg(
        long,
        value_name = "OBJECTIVES",
        value_enum,
        value_delimiter = ',',
        default_value = "fastest,leanest",
        requires = "sweep"
    )]
    pub objectives: Vec<ObjectiveArgument>,
    /// With --sweep, the most plans; the list starts with what matters most [default: all]
    #[arg(long, value_name = "N", requires = "sweep")]
    pub plans: Option<usize>,
    /// With --sweep, let plans in narrow types count on a CPU, too
    #[arg(long, requires = "sweep")]
    pub any_precision: bool,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: Common,
}
