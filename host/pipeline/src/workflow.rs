//! The workflow with which ComfyUI makes the same: a graph of its own nodes (version 0.30.0), as it
//! keeps them in the texts of a PNG.

mod differences;
mod graph;
mod load;

use std::{ffi::OsStr, path::Path};

use serde_json::{Value, json};
use tilewright_engine::Sampling;
use tilewright_media::{Texts, escape};
use tilewright_models::{Facts, Start};
use tilewright_sampling::{Convention, Scheduler};

use self::graph::{Field, Graph, Link};
use crate::{LoraRequest, Parts, SampleModel, SampleRequest, Steps};

/// The keywords of the interface's form and of the server's.
const KEYWORDS: [&str; 2] = ["workflow", "prompt"];

/// The most seeds for which a graph is made: each takes a sampler of its own.
const MOST_SEEDS: usize = 16;

/// A text by which ComfyUI names what it saves.
const PREFIX: &str = "tilewright";

/// The last step of a sampler that goes to the end.
const LAST_STEP: usize = 10_000;

/// The files and settings of a picture or clip.
pub struct Workflow<'a> {
    /// The files.
    pub parts: &'a Parts,
    /// Changes of the transformer's weights.
    pub loras: Vec<&'a LoraRequest>,
    /// The prompts: the negative one comes second, if it counts.
    pub prompts: &'a [String],
    /// The model.
    pub model: &'a SampleModel,
    /// The request.
    pub request: &'a SampleRequest,
    /// The input of the job that was made of it.
    pub sampling: &'a Sampling,
    /// Width, height and frames.
    pub size: [u32; 3],
    /// Frames per second of a clip.
    pub rate: Option<f64>,
    /// The tokens of the text encoder without positions.
    pub text_tokens: u32,
    /// The picture that it began from.
    pub image: Option<&'a Path>,
    /// The mask of the part of that picture that was made again.
    pub mask: Option<&'a Path>,
}

const MODEL: &[(&str, &str)] = &[("MODEL", "MODEL")];
const CLIP: &[(&str, &str)] = &[("CLIP", "CLIP")];
const VAE: &[(&str, &str)] = &[("VAE", "VAE")];
const CHECKPOINT: &[(&str, &str)] = &[("MODEL", "MODEL"), ("CLIP", "CLIP"), ("VAE", "VAE")];
const CONDITIONING: &[(&str, &str)] = &[("CONDITIONING", "CONDITIONING")];
const LATENT: &[(&str, &str)] = &[("LATENT", "LATENT")];
const IMAGE: &[(&str, &str)] = &[("IMAGE", "IMAGE")];
const PICTURE: &[(&str, &str)] = &[("IMAGE", "IMAGE"), ("MASK", "MASK")];
const MASK: &[(&str, &str)] = &[("MASK", "MASK")];
const NOISE: &[(&str, &str)] = &[("NOISE", "NOISE")];
const GUIDER: &[(&str, &str)] = &[("GUIDER", "GUIDER")];
const SAMPLER: &[(&str, &str)] = &[("SAMPLER", "SAMPLER")];
const SIGMAS: &[(&str, &str)] = &[("SIGMAS", "SIGMAS")];
const SPLIT: &[(&str, &str)] = &[("high_sigmas", "SIGMAS"), ("low_sigmas", "SIGMAS")];
const SAMPLED: &[(&str, &str)] = &[("output", "LATENT"), ("denoised_output", "LATENT")];
const VIDEO: &[(&str, &str)] = &[("VIDEO", "VIDEO")];
const SAVED: &[(&str, &str)] = &[("images", "IMAGE")];
const SAVED_VIDEO: &[(&str, &str)] = &[("video", "VIDEO")];
const WITH_IMAGE: &[(&str, &str)] = &[("positive", "CONDITIONING"), ("negative", "CONDITIONING"), ("latent", "LATENT")];
const SEEN: &[(&str, &str)] = &[("CLIP_VISION_OUTPUT", "CLIP_VISION_OUTPUT")];
const VISION: &[(&str, &str)] = &[("CLIP_VISION", "CLIP_VISION")];

/// Conditionings and the latents to begin from.
struct Begun {
    positive: Link,
    negative: Link,
    latent: Link,
}

impl Workflow<'_> {
    /// The graph as a PNG's texts: none if ComfyUI has no nodes for it.
    pub fn texts(&self) -> Texts {
        match self.graph() {
            None => Vec::new(),
            Some(graph) => {
                // ASCII alone, since the interface and A1111 read texts in different encodings.
                let both = [graph.workflow(), graph.prompt()].map(|graph| escape(&graph.to_string()));
                KEYWORDS.into_iter().zip(both).map(|(keyword, graph)| (keyword.to_owned(), graph)).collect()
            }
        }
    }

    fn facts(&self) -> Facts {
        self.model.denoiser.config().facts()
    }

    fn graph(&self) -> Option<Graph> {
        let request = self.request;
        if request.seeds.len() > MOST_SEEDS || !self.sampling.sampler.is_comfyui() {
            return None;
        }
        let mut graph = Graph::default();
        let (loaded, clip, vae) = self.load(&mut graph)?;
        let [usual, _] = self.facts().published.text_tokens;
        let clip = match self.text_tokens {
            tokens if tokens == usual => clip,
            tokens => {
                let fields = vec![plain("min_padding", json!(0)), plain("min_length", json!(tokens))];
                graph.add("T5TokenizerOptions", vec![("clip", "CLIP", clip)], fields, CLIP)
            }
        };
        // Sigmas by hand are past every shift.
        let models: Vec<Link> = match self.scheduler() {
            Some(_) => loaded.into_iter().map(|model| self.shift(&mut graph, model)).collect(),
            None => loaded,
        };
        let begun = self.begin(&mut graph, clip, vae);
        let each = if request.seeds.len() > 1 { 1 } else { request.batch.unwrap_or(1) };
        let begun = match each {
            1 => begun,
            batch if self.image.is_some() || self.facts().start == Some(Start::FirstFrame) => {
                let inputs = vec![("samples", "LATENT", begun.latent)];
                let latent = graph.add("RepeatLatentBatch", inputs, vec![plain("amount", json!(batch))], LATENT);
                Begun { latent, ..begun }
            }
            _ => begun,
        };
        for seed in &request.seeds {
            let sampled = self.sample(&mut graph, &models, &begun, *seed);
            let inputs = vec![("samples", "LATENT", sampled), ("vae", "VAE", vae)];
            let images = graph.add("VAEDecode", inputs, vec![], IMAGE);
            let prefix = plain("filename_prefix", json!(PREFIX));
            match self.rate.filter(|_| self.facts().is_video) {
                None => graph.add("SaveImage", vec![("images", "IMAGE", images)], vec![prefix], SAVED),
                Some(rate) => {
                    let fields = vec![plain("fps", json!(rate))];
                    let video = graph.add("CreateVideo", vec![("images", "IMAGE", images)], fields, VIDEO);
                    let fields = vec![prefix, plain("format", json!("auto")), plain("codec", json!("auto"))];
                    graph.add("SaveVideo", vec![("video", "VIDEO", video)], fields, SAVED_VIDEO)
                }
            };
        }
        let differences = self.differences();
        if !differences.is_empty() {
            graph.note(format!("Not quite as it was made:\n\n{}", differences.join("\n")));
        }
        Some(graph)
    }

    /// The scheduler, if the sigmas are ones that ComfyUI finds by itself.
    fn scheduler(&self) -> Option<Scheduler> {
        match &self.request.steps {
            Steps::Count { scheduler: Some(scheduler), .. } => Some(*scheduler),
            Steps::Count { .. } if self.request.convention == Convention::ComfyUi => Some(Scheduler::default()),
            _ => None,
        }
    }

    fn begin(&self, graph: &mut Graph, clip: Link, vae: Link) -> Begun {
        let Self { request, size: [width, height, frames], .. } = self;
        let is_diffusers = request.convention == Convention::Diffusers;
        let encode = |graph: &mut Graph, text: &str| {
            // Brackets are no weights there.
            let text = if is_diffusers { text.replace('(', "\\(").replace(')', "\\)") } else { text.to_owned() };
            graph.add("CLIPTextEncode", vec![("clip", "CLIP", clip)], vec![Field::Text("text", text)], CONDITIONING)
        };
        let facts = self.facts();
        let guidance = request.guidance.filter(|_| facts.guidance.is_some());
        let guide = |graph: &mut Graph, link: Link| match guidance {
            None => link,
            Some(guidance) => {
                let inputs = vec![("conditioning", "CONDITIONING", link)];
                graph.add("FluxGuidance", inputs, vec![plain("guidance", json!(guidance))], CONDITIONING)
            }
        };
        let text = encode(graph, self.prompts.first().map_or("", String::as_str));
        let positive = guide(graph, text);
        let negative = match self.prompts.get(1) {
            Some(negative) => {
                let negative = encode(graph, negative);
                guide(graph, negative)
            }
            None => {
                graph.add("ConditioningZeroOut", vec![("conditioning", "CONDITIONING", text)], vec![], CONDITIONING)
            }
        };
        let batch = if request.seeds.len() > 1 { 1 } else { request.batch.unwrap_or(1) };
        let extents = |names: [&'static str; 2]| {
            let mut fields = vec![plain("width", json!(width)), plain("height", json!(height))];
            if facts.is_video {
                fields.push(plain(names[0], json!(frames)));
            }
            fields.push(plain(names[1], json!(batch)));
            fields
        };
        let sized = || extents(["length", "batch_size"]);
        let image = self.image.map(|path| {
            let fields = vec![plain("image", json!(name(path, "input"))), Field::Shown(json!("image"))];
            graph.add("LoadImage", vec![], fields, PICTURE)
        });
        if let Some(image) = image.filter(|_| facts.start == Some(Start::Condition)) {
            let mut inputs = vec![
                ("positive", "CONDITIONING", positive),
                ("negative", "CONDITIONING", negative),
                ("vae", "VAE", vae),
            ];
            if let Some(vision) = &self.parts.vision_encoder {
                let loader = vec![plain("clip_name", json!(name(vision, "clip_vision")))];
                let loader = graph.add("CLIPVisionLoader", vec![], loader, VISION);
                let looked = vec![("clip_vision", "CLIP_VISION", loader), ("image", "IMAGE", image)];
                let seen = graph.add("CLIPVisionEncode", looked, vec![plain("crop", json!("none"))], SEEN);
                inputs.push(("clip_vision_output", "CLIP_VISION_OUTPUT", seen));
            }
            inputs.push(("start_image", "IMAGE", image));
            let begun = graph.add("WanImageToVideo", inputs, sized(), WITH_IMAGE);
            return Begun { positive: begun, negative: begun.output(1), latent: begun.output(2) };
        }
        let empty_latent = facts.published.comfyui.empty_latent;
        let latent = match (image, facts.start) {
            (image, Some(Start::FirstFrame)) => {
                let mut inputs = vec![("vae", "VAE", vae)];
                inputs.extend(image.map(|image| ("start_image", "IMAGE", image)));
                let mut fields = sized();
                // It heeds no batch without a picture.
                if let Some(Field::Plain(_, batch)) = fields.last_mut() {
                    *batch = json!(1);
                }
                graph.add(empty_latent, inputs, fields, LATENT)
            }
            (Some(image), _) => {
                graph.add("VAEEncode", vec![("pixels", "IMAGE", image), ("vae", "VAE", vae)], vec![], LATENT)
            }
            (None, _) => graph.add(empty_latent, vec![], sized(), LATENT),
        };
        let latent = match self.mask {
            None => latent,
            Some(mask) => {
                let fields = vec![
                    plain("image", json!(name(mask, "input"))),
                    plain("channel", json!("red")),
                    Field::Shown(json!("image")),
                ];
                let mask = graph.add("LoadImageMask", vec![], fields, MASK);
                graph.add(
                    "SetLatentNoiseMask",
                    vec![("samples", "LATENT", latent), ("mask", "MASK", mask)],
                    vec![],
                    LATENT,
                )
            }
        };
        Begun { positive, negative, latent }
    }

    fn sample(&self, graph: &mut Graph, models: &[Link], begun: &Begun, seed: u64) -> Link {
        let Self { request, sampling, .. } = self;
        let (sampler, cfg) = (json!(sampling.sampler.to_string()), json!(sampling.cfg));
        let inputs = |model: Link, latent: Link| {
            vec![
                ("model", "MODEL", model),
                ("positive", "CONDITIONING", begun.positive),
                ("negative", "CONDITIONING", begun.negative),
                ("latent_image", "LATENT", latent),
            ]
        };
        // The steps of the first expert.
        let boundary = self.model.denoiser.boundary();
        let first = sampling.sigmas.iter().filter(|sigma| **sigma >= boundary).count();
        let fixed = || Field::Shown(json!("fixed"));
        match (self.scheduler(), &request.steps) {
            (Some(scheduler), Steps::Count { strength, .. }) => {
                let scheduler = json!(scheduler.to_string());
                let steps = json!(sampling.sigmas.len() - 1);
                if let [model] = models {
                    let fields = vec![
                        plain("seed", json!(seed)),
                        fixed(),
                        plain("steps", steps),
                        plain("cfg", cfg),
                        plain("sampler_name", sampler),
                        plain("scheduler", scheduler),
                        plain("denoise", json!(strength)),
                    ];
                    return graph.add("KSampler", inputs(*model, begun.latent), fields, LATENT);
                }
                let mut latent = begun.latent;
                for (index, model) in models.iter().enumerate() {
                    let is_first = index == 0;
                    let word = |is_on: bool| json!(if is_on { "enable" } else { "disable" });
                    let fields = vec![
                        plain("add_noise", word(is_first)),
                        plain("noise_seed", json!(seed)),
                        fixed(),
                        plain("steps", steps.clone()),
                        plain("cfg", cfg.clone()),
                        plain("sampler_name", sampler.clone()),
                        plain("scheduler", scheduler.clone()),
                        plain("start_at_step", json!(if is_first { 0 } else { first })),
                        plain("end_at_step", json!(if is_first { first } else { LAST_STEP })),
                        plain("return_with_leftover_noise", word(is_first)),
                    ];
                    latent = graph.add("KSamplerAdvanced", inputs(*model, latent), fields, LATENT);
                }
                latent
            }
            _ => {
                // The node reads no exponents.
                let written: Vec<String> = sampling.sigmas.iter().map(|sigma| format!("{sigma:.9}")).collect();
                let sigmas =
                    graph.add("ManualSigmas", vec![], vec![plain("sigmas", json!(written.join(", ")))], SIGMAS);
                let chosen = graph.add("KSamplerSelect", vec![], vec![plain("sampler_name", sampler)], SAMPLER);
                let parts = match models.len() {
                    1 => vec![sigmas],
                    _ => {
                        let fields = vec![plain("step", json!(first))];
                        let split = graph.add("SplitSigmas", vec![("sigmas", "SIGMAS", sigmas)], fields, SPLIT);
                        vec![split, split.output(1)]
                    }
                };
                let mut latent = begun.latent;
                for (index, (model, sigmas)) in models.iter().zip(parts).enumerate() {
                    let noise = match index {
                        0 => graph.add("RandomNoise", vec![], vec![plain("noise_seed", json!(seed)), fixed()], NOISE),
                        _ => graph.add("DisableNoise", vec![], vec![], NOISE),
                    };
                    let guided = inputs(*model, latent).into_iter().take(3).collect();
                    let guider = graph.add("CFGGuider", guided, vec![plain("cfg", cfg.clone())], GUIDER);
                    let inputs = vec![
                        ("noise", "NOISE", noise),
                        ("guider", "GUIDER", guider),
                        ("sampler", "SAMPLER", chosen),
                        ("sigmas", "SIGMAS", sigmas),
                        ("latent_image", "LATENT", latent),
                    ];
                    latent = graph.add("SamplerCustomAdvanced", inputs, vec![], SAMPLED);
                }
                latent
            }
        }
    }
}

fn plain(name: &'static str, value: Value) -> Field {
    Field::Plain(name, value)
}

/// The endings of weights that ComfyUI lists (folder_paths.py, `supported_pt_extensions`), of those
/// that are read here.
const LISTED: [&str; 6] = ["safetensors", "sft", "pth", "pt", "bin", "ckpt"];

/// The name of a file as ComfyUI lists it: its path below the folder for its kind, or else its own
/// name. It lists neither folders nor GGUF, for which a file of the same name stands.
fn name(path: &Path, folder: &str) -> String {
    let is_folder =
        |part: &Path| part.file_name().is_some_and(|name| name == folder || name == "unet" || name == "clip");
    let above = path.ancestors().skip(1).find(|part| is_folder(part));
    let own = above.and_then(|above| path.strip_prefix(above).ok()).or(path.file_name().map(Path::new)).unwrap_or(path);
    let own = own.to_string_lossy().replace('\\', "/");
    let is_weights = |ending: &OsStr| LISTED.iter().any(|listed| ending == *listed);
    let is_listed = folder == "input" || path.extension().is_some_and(is_weights);
    match is_listed {
        true => own,
        false => format!("{}.safetensors", own.strip_suffix(".gguf").unwrap_or(&own)),
    }
}
