//! The nodes that load the files of a model, and shift its sigmas.

use std::path::Path;

use serde_json::json;
use tilewright_sampling::{Convention, Shift};

use super::{
    CHECKPOINT, CLIP, MODEL, VAE, Workflow,
    graph::{Graph, Link},
    name, plain,
};
use crate::{Parts, text::encoder_files};

impl Workflow<'_> {
    /// The models, the text encoders and the VAE.
    pub(super) fn load(&self, graph: &mut Graph) -> Option<(Vec<Link>, Link, Link)> {
        let Parts { text_encoders, transformers, vae, .. } = self.parts;
        let vae = vae.as_ref()?;
        let first = transformers.first()?;
        let is_whole = |path: &Path| path == first && path.is_file();
        let mut checkpoint = None;
        let mut whole = |graph: &mut Graph| {
            *checkpoint.get_or_insert_with(|| {
                let fields = vec![plain("ckpt_name", json!(name(first, "checkpoints")))];
                graph.add("CheckpointLoaderSimple", vec![], fields, CHECKPOINT)
            })
        };
        let is_checkpoint = is_whole(vae) || text_encoders.iter().any(|path| is_whole(path));
        let count = self.model.denoiser.files().len();
        let mut models = Vec::new();
        for index in 0..count {
            let path = transformers.get(index).unwrap_or(first);
            let own = if index > 0 && transformers.len() == 1 { second(path) } else { name(path, "diffusion_models") };
            let mut link = match is_checkpoint && index == 0 {
                true => whole(graph),
                false => {
                    let fields = vec![plain("unet_name", json!(own)), plain("weight_dtype", json!("default"))];
                    graph.add("UNETLoader", vec![], fields, MODEL)
                }
            };
            for lora in self.loras.iter().filter(|lora| lora.expert.is_none_or(|expert| expert == index)) {
                let factor = self.model.unread_factor(&lora.path, index).unwrap_or(1.0);
                let fields = vec![
                    plain("lora_name", json!(name(&lora.path, "loras"))),
                    plain("strength_model", json!(lora.strength * factor)),
                ];
                link = graph.add("LoraLoaderModelOnly", vec![("model", "MODEL", link)], fields, MODEL);
            }
            models.push(link);
        }
        let kind = json!(self.facts().published.comfyui.clip_type);
        let count = self.model.denoiser.config().text_encoders().len();
        // A pipeline's folders are named by what is in them.
        let encoders = text_encoders.iter().flat_map(|path| encoder_files(path));
        let names: Vec<String> = encoders.map(|(path, _)| name(&path, "text_encoders")).collect();
        let device = plain("device", json!("default"));
        let clip = match (&names[..], count) {
            _ if text_encoders.iter().any(|path| is_whole(path)) => whole(graph).output(1),
            ([one], 1) => {
                let fields = vec![plain("clip_name", json!(one)), plain("type", kind), device];
                graph.add("CLIPLoader", vec![], fields, CLIP)
            }
            ([one, two], 2) => {
                let fields =
                    vec![plain("clip_name1", json!(one)), plain("clip_name2", json!(two)), plain("type", kind), device];
                graph.add("DualCLIPLoader", vec![], fields, CLIP)
            }
            _ => return None,
        };
        let vae = match is_whole(vae) {
            true => whole(graph).output(2),
            false => graph.add("VAELoader", vec![], vec![plain("vae_name", json!(name(vae, "vae")))], VAE),
        };
        Some((models, clip, vae))
    }

    /// The model with the shift of its sigmas, where it is not ComfyUI's own.
    pub(super) fn shift(&self, graph: &mut Graph, model: Link) -> Link {
        let Self { request, model: of, size: [width, height, _], .. } = self;
        let inputs = vec![("model", "MODEL", model)];
        match of.shift_of(request) {
            shift if shift == of.shift(Convention::ComfyUi) => model,
            Shift::Flow(shift) => {
                graph.add(self.facts().published.comfyui.shift, inputs, vec![plain("shift", json!(shift))], MODEL)
            }
            Shift::Exponential(_) | Shift::BySize => {
                let [most, least] = match of.shift_of(request) {
                    Shift::Exponential(mu) => [mu, mu],
                    _ => [1.15, 0.5],
                };
                let fields = vec![
                    plain("max_shift", json!(most)),
                    plain("base_shift", json!(least)),
                    plain("width", json!(width)),
                    plain("height", json!(height)),
                ];
                graph.add("ModelSamplingFlux", inputs, fields, MODEL)
            }
        }
    }
}

/// The name of a pipeline's second expert.
fn second(path: &Path) -> String {
    name(&path.join("transformer_2"), "diffusion_models")
}
