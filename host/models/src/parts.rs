//! Kinds of networks other than the VAEs that can be run, distinguished by the names of their
//! tensors in each published layout. Some can be run (see denoiser.rs and text_encoder.rs), the
//! others only named in messages.

use std::{
    collections::{HashMap, HashSet},
    iter,
};

use serde::Serialize;

use crate::Checkpoint;

/// A sign of a network among its tensors. Segments may have any prefix: they begin at the start of
/// one of a name's segments.
#[derive(Clone, Copy, Debug)]
enum Mark {
    /// These segments stand in some tensor's name.
    Has(&'static str),
    /// Some tensor's name begins so.
    Starts(&'static str),
    /// Some tensor's name ends so.
    Ends(&'static str),
    /// The tensor whose name ends in these segments has this extent along an axis.
    Extent(&'static str, usize, usize),
}

use Mark::{Ends, Extent, Has, Starts};

/// The purpose of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Changes to another network's weights.
    Lora,
    /// Denoises latents.
    Denoiser,
    /// Steers a denoiser.
    Control,
    /// Turns text into conditioning.
    TextEncoder,
    /// Turns pictures into conditioning.
    VisionEncoder,
    /// Translates between latents and pictures, in a way that is not supported.
    Autoencoder,
    /// Makes pictures larger.
    Upscaler,
    /// A word for a text encoder.
    Embedding,
}

/// A network's name and its marks, all of which have to be there.
type Known = (&'static str, &'static [Mark]);

/// Changes to weights. The last rows have marks that LoRAs for any network have.
const LORAS: &[Known] = &[
    ("a LoRA for SDXL", &[Starts("lora_te2_")]),
    ("a LoRA for SDXL", &[Starts("lora_unet_input_blocks_4_1_transformer_blocks_1_")]),
    ("a LoRA for SDXL", &[Starts("lora_unet_down_blocks_1_attentions_0_transformer_blocks_1_")]),
    ("a LoRA for SDXL", &[Has("down_blocks.1.attentions.0.transformer_blocks.1"), Ends("lora_A.weight")]),
    ("a LoRA for SDXL", &[Has("down_blocks.1.attentions.0.transformer_blocks.1"), Ends("lora.down.weight")]),
    ("a LoRA for Stable Diffusion 1 or 2", &[Starts("lora_unet_down_blocks_0_attentions_0_")]),
    ("a LoRA for Stable Diffusion 1 or 2", &[Starts("lora_te_text_model_")]),
    ("a LoRA for Stable Diffusion 1 or 2", &[Has("down_blocks.0.attentions.0"), Ends("lora_A.weight")]),
    ("a LoRA for Stable Diffusion 1 or 2", &[Has("down_blocks.0.attentions.0"), Ends("lora.down.weight")]),
    ("a LoRA for Flux", &[Starts("lora_unet_double_blocks_")]),
    ("a LoRA for Flux", &[Starts("lora_unet_single_blocks_")]),
    ("a LoRA for Flux", &[Starts("lora_transformer_single_transformer_blocks_")]),
    ("a LoRA for Flux", &[Has("single_transformer_blocks"), Ends("lora_A.weight")]),
    ("a LoRA for HunyuanVideo", &[Has("double_blocks.0.img_attn_qkv"), Ends("lora_A.weight")]),
    ("a LoRA for Flux", &[Has("double_blocks"), Ends("lora_A.weight")]),
    ("a LoRA for Flux", &[Has("double_blocks"), Ends("lora_down.weight")]),
    ("a LoRA for Flux", &[Has("double_blocks"), Has("processor.qkv_lora1")]),
    ("a LoRA for WAN", &[Starts("lora_unet_blocks_0_cross_attn_")]),
    ("a LoRA for WAN", &[Has("blocks.0.cross_attn"), Ends("lora_A.weight")]),
    ("a LoRA for WAN", &[Has("blocks.0.cross_attn"), Ends("lora_down.weight")]),
    ("a LoRA for WAN", &[Has("blocks.0.attn2"), Ends("lora_A.weight")]),
    ("a LoRA for Stable Diffusion 3", &[Starts("lora_unet_joint_blocks_")]),
    ("a LoRA for Stable Diffusion 3", &[Has("joint_blocks"), Ends("lora_A.weight")]),
    ("a LoRA for Qwen-Image", &[Has("transformer_blocks.0.img_mlp"), Ends("lora_A.weight")]),
    ("a LoRA for Qwen-Image", &[Has("transformer_blocks.0.img_mlp"), Ends("lora_down.weight")]),
    ("a LoRA", &[Ends("lora_A.weight")]),
    ("a LoRA", &[Has("lora_A")]),
    ("a LoRA", &[Ends("lora_down.weight")]),
    ("a LoRA", &[Ends("lora.down.weight")]),
    ("a LoRA", &[Ends("lora_linear_layer.down.weight")]),
    ("a LoHa (a kind of LoRA)", &[Ends("hada_w1_a")]),
    ("a LoKr (a kind of LoRA)", &[Ends("lokr_w1")]),
    ("a LoKr (a kind of LoRA)", &[Ends("lokr_w1_a")]),
];

/// Networks that steer a denoiser, and have parts of one.
const CONTROLS: &[Known] = &[
    ("a ControlNet (original)", &[Has("input_hint_block.0"), Has("zero_convs.0.0")]),
    ("a ControlNet (diffusers)", &[Has("controlnet_cond_embedding.conv_in")]),
    ("a ControlNet (diffusers)", &[Has("controlnet_down_blocks.0")]),
    ("a ControlNet for a transformer", &[Has("controlnet_blocks.0")]),
    ("a ControlNet for a transformer", &[Has("controlnet_single_blocks.0")]),
    ("a Control-LoRA", &[Has("lora_controlnet")]),
    ("an IP-Adapter", &[Has("ip_adapter.1.to_k_ip")]),
    ("an IP-Adapter", &[Has("ip_adapter_proj_model")]),
    ("a T2I-Adapter", &[Has("adapter.body.0.resnets.0")]),
    ("a T2I-Adapter", &[Starts("body.0.block1."), Starts("conv_in.")]),
    ("a motion module of AnimateDiff's", &[Has("motion_modules.0.temporal_transformer")]),
];

/// Transformers, and UNets.
const DENOISERS: &[Known] = &[
    // Transformers.
    #[cfg(all(test, feature = "torch"))]
    ("a test's transformer", &[Has("own_embedder")]),
    ("HunyuanVideo's transformer", &[Has("double_blocks.0"), Has("txt_in.individual_token_refiner")]),
    ("HunyuanVideo's transformer", &[Has("transformer_blocks.0"), Has("context_embedder.token_refiner")]),
    ("Chroma's transformer", &[Has("double_blocks.0"), Has("distilled_guidance_layer")]),
    ("Flux.2's transformer", &[Has("double_blocks.0"), Has("double_stream_modulation_img")]),
    ("Flux.2's transformer (diffusers)", &[Has("single_transformer_blocks.0.attn.to_qkv_mlp_proj")]),
    (
        "Flux.1 Fill's transformer, which paints a part of a picture",
        &[Has("double_blocks.0.img_attn.qkv"), Extent("img_in.weight", 1, 384)],
    ),
    (
        "Flux.1 Fill's transformer, which paints a part of a picture (diffusers)",
        &[Has("single_transformer_blocks.0.proj_mlp"), Extent("x_embedder.weight", 1, 384)],
    ),
    (
        "Flux.1 Depth's or Canny's transformer, which a picture of depths or edges steers",
        &[Has("double_blocks.0.img_attn.qkv"), Extent("img_in.weight", 1, 128)],
    ),
    (
        "Flux.1 Depth's or Canny's transformer, which a picture of depths or edges steers (diffusers)",
        &[Has("single_transformer_blocks.0.proj_mlp"), Extent("x_embedder.weight", 1, 128)],
    ),
    (
        "Flux.1's transformer (Nunchaku)",
        &[Has("single_transformer_blocks.0.qkv_proj"), Has("transformer_blocks.0.qkv_proj_context")],
    ),
    ("Flux.1's transformer", &[Has("double_blocks.0.img_attn.qkv"), Has("single_blocks.0.linear1")]),
    (
        "Flux.1's transformer (diffusers)",
        &[Has("single_transformer_blocks.0.proj_mlp"), Has("transformer_blocks.0.attn.add_q_proj")],
    ),
    ("Stable Diffusion 3's transformer", &[Has("joint_blocks.0.x_block.attn.qkv")]),
    (
        "Stable Diffusion 3's transformer (diffusers)",
        &[Has("transformer_blocks.0.attn.add_q_proj"), Has("pos_embed.proj")],
    ),
    ("WAN VACE's transformer", &[Has("vace_blocks.0")]),
    ("WAN Animate's transformer", &[Has("pose_patch_embedding"), Has("blocks.0.self_attn.norm_k")]),
    ("WAN S2V's transformer, speech to video", &[Has("audio_injector"), Has("blocks.0.self_attn.norm_k")]),
    (
        "WAN Fun's transformer, which a camera or a clip steers",
        &[Has("control_adapter"), Has("blocks.0.self_attn.norm_k")],
    ),
    ("WAN Fun's transformer, which a camera or a clip steers", &[Has("ref_conv"), Has("blocks.0.self_attn.norm_k")]),
    (
        "WAN's transformer, first and last frame to video (FLF2V)",
        &[Has("img_emb.emb_pos"), Has("blocks.0.self_attn.norm_k")],
    ),
    (
        "WAN's transformer, first and last frame to video (FLF2V, diffusers)",
        &[Has("condition_embedder.image_embedder.pos_embed"), Has("blocks.0.attn2.norm_k")],
    ),
    ("WAN's transformer, image to video", &[Has("blocks.0.cross_attn.k_img"), Has("blocks.0.self_attn.norm_k")]),
    ("WAN's transformer", &[Has("blocks.0.cross_attn.norm_k"), Has("blocks.0.self_attn.norm_k")]),
    (
        "WAN's transformer (diffusers)",
        &[Has("condition_embedder.time_embedder.linear_1"), Has("blocks.0.attn2.norm_k")],
    ),
    ("Qwen-Image's transformer", &[Has("transformer_blocks.0.img_mod.1")]),
    ("LTX-Video's transformer", &[Has("patchify_proj"), Has("adaln_single")]),
    (
        "LTX-Video's transformer (diffusers)",
        &[Has("proj_in"), Has("caption_projection"), Has("transformer_blocks.0.attn1.norm_q")],
    ),
    ("PixArt's transformer", &[Has("adaln_single"), Has("pos_embed.proj")]),
    ("HiDream's transformer", &[Has("double_stream_blocks.0")]),
    ("Lumina's or Z-Image's transformer", &[Has("noise_refiner.0"), Has("context_refiner.0")]),
    ("AuraFlow's transformer", &[Has("joint_transformer_blocks.0")]),
    ("AuraFlow's transformer", &[Has("double_layers.0"), Has("register_tokens")]),
    ("CogVideoX's transformer", &[Has("patch_embed.text_proj"), Has("transformer_blocks.0.attn1.to_q")]),
    // UNets.
    ("Stable Video Diffusion's UNet", &[Has("input_blocks.1.0.time_stack")]),
    (
        "Stable Video Diffusion's UNet (diffusers)",
        &[Has("down_blocks.0.resnets.0.temporal_res_block"), Has("add_embedding.linear_1")],
    ),
    ("SDXL's UNet", &[Has("input_blocks.0.0"), Has("label_emb.0.0"), Has("output_blocks.0.0.in_layers.0")]),
    (
        "Stable Diffusion 2's UNet",
        &[Has("input_blocks.0.0"), Extent("input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight", 1, 1024)],
    ),
    (
        "Stable Diffusion 1's UNet",
        &[Has("input_blocks.0.0"), Extent("input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight", 1, 768)],
    ),
    ("a UNet of Stable Diffusion's kind", &[Has("input_blocks.0.0"), Has("output_blocks.0.0.in_layers.0")]),
    (
        "SDXL's UNet (diffusers)",
        &[
            Has("down_blocks.0.resnets.0.time_emb_proj"),
            Has("up_blocks.0.resnets.0.time_emb_proj"),
            Has("add_embedding.linear_1"),
        ],
    ),
    (
        "Stable Diffusion 2's UNet (diffusers)",
        &[
            Has("up_blocks.0.resnets.0.time_emb_proj"),
            Extent("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight", 1, 1024),
        ],
    ),
    (
        "Stable Diffusion 1's UNet (diffusers)",
        &[
            Has("up_blocks.0.resnets.0.time_emb_proj"),
            Extent("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight", 1, 768),
        ],
    ),
    (
        "a UNet of Stable Diffusion's kind (diffusers)",
        &[Has("down_blocks.0.resnets.0.time_emb_proj"), Has("up_blocks.0.resnets.0.time_emb_proj")],
    ),
];

/// Encoders of text.
const TEXT_ENCODERS: &[Known] = &[
    (
        "UMT5, WAN's text encoder",
        &[Has("blocks.0.attn.q"), Has("blocks.0.pos_embedding.embedding"), Has("token_embedding")],
    ),
    ("UMT5, WAN's text encoder", &[Has("encoder.block.1.layer.0.SelfAttention.relative_attention_bias")]),
    ("T5-XXL, a text encoder", &[Extent("encoder.block.0.layer.0.SelfAttention.q.weight", 1, 4096)]),
    ("T5, a text encoder", &[Has("encoder.block.0.layer.0.SelfAttention.q")]),
    ("UMT5, WAN's text encoder", &[Has("enc.blk.1.attn_rel_b"), Has("token_embd")]),
    ("T5, a text encoder", &[Has("enc.blk.0.attn_rel_b"), Has("token_embd")]),
    ("CLIP-G, a text encoder", &[Extent("text_model.embeddings.token_embedding.weight", 1, 1280)]),
    (
        "CLIP-L and OpenCLIP-G, text encoders",
        &[Has("text_model.encoder.layers.0"), Has("model.transformer.resblocks.0")],
    ),
    ("CLIP-L, a text encoder", &[Extent("text_model.embeddings.token_embedding.weight", 1, 768)]),
    ("CLIP, a text encoder", &[Has("text_model.encoder.layers.0")]),
    ("OpenCLIP, a text encoder", &[Has("transformer.resblocks.0.attn.in_proj_weight"), Has("token_embedding")]),
    (
        "Qwen-VL, a language model that sees, used as a text encoder",
        &[Has("visual.blocks.0.attn.qkv"), Has("layers.0.self_attn.q_proj")],
    ),
    ("Gemma, a language model used as a text encoder", &[Has("layers.0.pre_feedforward_layernorm")]),
    (
        "a language model such as Qwen or Llama, used as a text encoder",
        &[Has("layers.0.self_attn.q_proj"), Has("embed_tokens"), Has("layers.0.mlp.gate_proj")],
    ),
];

/// Encoders of pictures.
const VISION_ENCODERS: &[Known] = &[
    ("CLIP's picture encoder", &[Has("vision_model.encoder.layers.0")]),
    ("CLIP's picture encoder", &[Has("visual.transformer.resblocks.0")]),
];

/// Networks that stand behind an encoder of pictures.
const ENCODED: &[Known] = &[(
    "Flux.1 Redux, which turns a picture's encoding into conditioning",
    &[Starts("redux_up."), Starts("redux_down.")],
)];

/// Autoencoders that can't be run.
const AUTOENCODERS: &[Known] = &[
    ("TAEF1 or TAESD3, a tiny autoencoder of 16 channels", &[Extent("taesd_decoder.1.weight", 1, 16)]),
    ("TAESD, a tiny autoencoder", &[Has("taesd_decoder.1.weight")]),
    ("TAESD, a tiny autoencoder", &[Has("taesd_encoder.0.weight")]),
    (
        "TAEF1 or TAESD3, a tiny autoencoder of 16 channels (diffusers)",
        &[Has("decoder.layers.3.conv.0"), Extent("decoder.layers.0.weight", 1, 16)],
    ),
    ("TAESD, a tiny autoencoder (diffusers)", &[Has("decoder.layers.3.conv.0")]),
    ("TAESD, a tiny autoencoder (diffusers)", &[Starts("decoder.layers.1."), Starts("encoder.layers.1.")]),
    ("TAESD's encoder, a tiny autoencoder's (diffusers)", &[Has("encoder.layers.3.conv.0")]),
    (
        "TAEF1's or TAESD3's decoder, a tiny autoencoder's of 16 channels",
        &[Starts("3.conv.0."), Extent("1.weight", 1, 16)],
    ),
    ("TAESD's decoder, a tiny autoencoder's", &[Starts("1.weight"), Starts("3.conv.0.")]),
    ("TAESD's encoder, a tiny autoencoder's", &[Starts("0.weight"), Starts("1.conv.0.")]),
    ("TAEHV, a tiny autoencoder of video", &[Has("decoder.22.bias")]),
    ("TAEHV, a tiny autoencoder of video (such as taew2_1)", &[Starts("decoder.3.conv.0."), Has("decoder.1.weight")]),
    ("CogVideoX's autoencoder", &[Has("decoder.conv_in.conv"), Has("decoder.mid_block.resnets.0.norm1.conv_y")]),
    ("HunyuanVideo's autoencoder", &[Has("decoder.up_blocks.0.resnets.0.conv1.conv")]),
    ("HunyuanVideo's autoencoder", &[Has("decoder.up.0.block.0.conv1.conv")]),
    ("HunyuanVideo's autoencoder", &[Has("decoder.conv_in.conv"), Has("decoder.mid_block.attentions.0.to_q")]),
    (
        "HunyuanVideo's autoencoder, the encoder alone",
        &[Has("encoder.conv_in.conv"), Has("encoder.mid_block.attentions.0.to_q")],
    ),
    ("LTX-Video's autoencoder", &[Has("per_channel_statistics.mean-of-means")]),
    ("Stable Video Diffusion's autoencoder", &[Has("decoder.up.0.block.0.time_stack")]),
    ("Stable Video Diffusion's autoencoder (diffusers)", &[Has("decoder.up_blocks.0.resnets.0.temporal_res_block")]),
    ("a VQ autoencoder", &[Has("quantize.embedding")]),
];

/// Networks that make pictures larger.
const UPSCALERS: &[Known] = &[
    ("an upscaler of ESRGAN's kind", &[Starts("model.1.sub.0.RDB1.conv1.0.")]),
    ("an upscaler of ESRGAN's kind", &[Starts("body.0.rdb1.conv1."), Starts("conv_first.")]),
    ("an upscaler of SwinIR's kind", &[Has("layers.0.residual_group.blocks.0"), Has("conv_first")]),
];

/// Words for text encoders.
const EMBEDDINGS: &[Known] = &[
    ("an embedding (textual inversion)", &[Starts("emb_params")]),
    ("an embedding (textual inversion) for SDXL", &[Starts("clip_l"), Starts("clip_g")]),
];

/// The networks of each role. The first that fits counts for its role, so the more special ones
/// come first.
const ROLES: &[(Role, &[Known])] = &[
    (Role::Lora, LORAS),
    (Role::Control, CONTROLS),
    (Role::Denoiser, DENOISERS),
    (Role::TextEncoder, TEXT_ENCODERS),
    (Role::VisionEncoder, VISION_ENCODERS),
    (Role::Control, ENCODED),
    (Role::Autoencoder, AUTOENCODERS),
    (Role::Upscaler, UPSCALERS),
    (Role::Embedding, EMBEDDINGS),
];

/// Each network's role and name, and its marks.
fn rows() -> impl Iterator<Item = (Role, &'static str, &'static [Mark])> {
    ROLES.iter().flat_map(|(role, known)| known.iter().map(|(name, marks)| (*role, *name, *marks)))
}

/// A network in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The network's purpose.
    pub role: Role,
    /// The network's name in a sentence, such as `a LoRA for SDXL`.
    pub name: &'static str,
}

impl Part {
    /// The networks in a file beside an autoencoder that can be run; at most one of each role.
    pub fn of(file: &Checkpoint) -> Vec<Self> {
        let standing = standing(file);
        let mut parts: Vec<Self> = Vec::new();
        for (role, name, marks) in rows() {
            // A LoRA's tensors have the names of the network that it changes, too.
            let is_lora = parts.first().is_some_and(|part| part.role == Role::Lora);
            let is_control = |part: &Part| part.role == Role::Control && role == Role::Denoiser;
            if is_lora || parts.iter().any(|part| part.role == role || is_control(part)) {
                continue;
            }
            if marks.iter().all(|mark| mark.fits(file, &standing)) {
                parts.push(Self { role, name });
            }
        }
        parts
    }
}

impl Part {
    /// The parts' names in one line.
    pub fn list_names(parts: &[Self]) -> String {
        parts.iter().map(|part| part.name).collect::<Vec<_>>().join("; ")
    }
}

impl Mark {
    /// True if a file has it; `standing` is what [`standing`] finds there.
    fn fits(self, file: &Checkpoint, standing: &HashSet<&str>) -> bool {
        match self {
            Has(segments) => standing.contains(segments),
            Starts(start) => file.names().any(|name| name.starts_with(start)),
            Ends(end) => file.names().any(|name| name.ends_with(end)),
            Extent(end, axis, extent) => {
                let at_end = |name: &&str| name.ends_with(end) && has(name, end);
                let shape = file.names().find(at_end).and_then(|name| file.shape(name));
                shape.and_then(|shape| shape.get(axis)) == Some(&extent)
            }
        }
    }
}

/// The segments of all rows that stand in some tensor's name. The names are gone through once for
/// all rows: a file has up to tens of thousands of them, and there are hundreds of rows.
fn standing(file: &Checkpoint) -> HashSet<&'static str> {
    let marks = rows().flat_map(|(_, _, marks)| marks);
    let mut asked: Vec<&'static str> =
        marks.filter_map(|mark| if let Has(segments) = *mark { Some(segments) } else { None }).collect();
    asked.sort_unstable();
    asked.dedup();
    let mut by_first: HashMap<&str, Vec<&'static str>> = HashMap::new();
    for segments in asked {
        by_first.entry(first(segments)).or_default().push(segments);
    }
    let mut standing = HashSet::new();
    for tail in file.names().flat_map(tails) {
        if let Some(asked) = by_first.get(first(tail)) {
            standing.extend(asked.iter().copied().filter(|segments| begins(tail, segments)));
        }
    }
    standing
}

/// A name from each of its segments on.
fn tails(name: &str) -> impl Iterator<Item = &str> {
    iter::successors(Some(name), |tail| tail.split_once('.').map(|(_, next)| next))
}

/// The first segment.
fn first(segments: &str) -> &str {
    segments.split_once('.').map_or(segments, |(first, _)| first)
}

/// True if these segments are a name's first ones.
fn begins(name: &str, segments: &str) -> bool {
    name.strip_prefix(segments).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// True if these segments stand in a name.
fn has(name: &str, segments: &str) -> bool {
    tails(name).any(|tail| begins(tail, segments))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of tensors of these names and shapes, without a byte of data.
    fn file(folder: &std::path::Path, tensors: &[(&str, &[usize])]) -> Checkpoint {
        let entries: Vec<String> = tensors
            .iter()
            .map(|(name, shape)| {
                // An extent of 0 at the end, which no mark looks at: nothing is stored.
                let mut shape = shape.to_vec();
                shape.push(0);
                format!(r#""{name}":{{"dtype":"F16","shape":{shape:?},"data_offsets":[0,0]}}"#)
            })
            .collect();
        let header = format!("{{{}}}", entries.join(","));
        let path = folder.join("x.safetensors");
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
        Checkpoint::open(&path).unwrap()
    }

    /// A tensor that has a mark.
    fn example(mark: Mark) -> (String, Vec<usize>) {
        match mark {
            Has(segments) => (format!("{segments}.weight"), vec![1]),
            Starts(start) => (format!("{start}x"), vec![1]),
            Ends(end) => (format!("x.{end}"), vec![1]),
            Extent(end, axis, extent) => (end.to_owned(), [vec![1; axis], vec![extent]].concat()),
        }
    }

    #[test]
    fn every_row_is_found_by_its_marks_and_below_a_prefix() {
        let folder = tempfile::tempdir().unwrap();
        for (role, name, marks) in rows() {
            let tensors: Vec<_> = marks.iter().map(|mark| example(*mark)).collect();
            let tensors: Vec<_> = tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
            let found = Part::of(&file(folder.path(), &tensors));
            assert!(found.contains(&Part { role, name }), "{name}: {found:?} of {tensors:?}");
            if marks.iter().any(|mark| matches!(mark, Starts(_))) {
                continue;
            }
            let nested: Vec<_> =
                tensors.iter().map(|(name, shape)| (format!("model.diffusion_model.{name}"), *shape)).collect();
            let nested: Vec<_> = nested.iter().map(|(name, shape)| (name.as_str(), *shape)).collect();
            assert!(Part::of(&file(folder.path(), &nested)).contains(&Part { role, name }), "{name} below a prefix");
        }
    }

    #[test]
    fn segments_are_whole_ones() {
        assert!(has("a.b.c", "b") && has("a.b.c", "b.c") && has("a.b", "a") && has("xb.b", "b"));
        assert!(!has("a.bb.c", "b") && !has("ab.c", "b") && !has("a.b1", "b"));
        assert!(has("a.b.b.c", "b.c") && !has("a.b.b.c", "a.b.c"), "they follow each other");
    }

    #[test]
    fn files_as_people_have_them_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let roles = |tensors: &[(&str, &[usize])]| -> Vec<&str> {
            Part::of(&file(folder.path(), tensors)).into_iter().map(|part| part.name).collect()
        };
        // A whole SDXL checkpoint, its autoencoder aside.
        let sdxl: [(&str, &[usize]); 5] = [
            ("model.diffusion_model.input_blocks.0.0.weight", &[320, 4, 3, 3]),
            ("model.diffusion_model.label_emb.0.0.weight", &[1280, 2816]),
            ("model.diffusion_model.output_blocks.0.0.in_layers.0.weight", &[2560]),
            ("conditioner.embedders.0.transformer.text_model.encoder.layers.0.self_attn.q_proj.weight", &[768, 768]),
            ("conditioner.embedders.1.model.transformer.resblocks.0.attn.in_proj_weight", &[3840, 1280]),
        ];
        assert_eq!(roles(&sdxl), ["SDXL's UNet", "CLIP-L and OpenCLIP-G, text encoders"]);
        // A LoRA has the names of the network that it changes, and is nothing else.
        let lora: [(&str, &[usize]); 2] = [
            ("diffusion_model.blocks.0.cross_attn.norm_k.lora_A.weight", &[16, 1536]),
            ("diffusion_model.blocks.0.self_attn.norm_k.lora_A.weight", &[16, 1536]),
        ];
        assert_eq!(roles(&lora), ["a LoRA for WAN"]);
        // A ControlNet has the names of half a UNet.
        let control: [(&str, &[usize]); 3] = [
            ("control_model.input_hint_block.0.weight", &[16, 3, 3, 3]),
            ("control_model.zero_convs.0.0.weight", &[320, 320, 1, 1]),
            ("control_model.input_blocks.0.0.weight", &[320, 4, 3, 3]),
        ];
        assert_eq!(roles(&control), ["a ControlNet (original)"]);
        assert_eq!(roles(&[("something.else", &[1])]), [""; 0]);
        // Files that look like others, of which one tensor tells them.
        let flux = |inputs: usize| {
            let width = [3072, inputs];
            roles(&[
                ("img_in.weight", &width),
                ("double_blocks.0.img_attn.qkv.weight", &[1]),
                ("single_blocks.0.linear1.weight", &[1]),
            ])
        };
        assert_eq!(flux(64), ["Flux.1's transformer"]);
        assert_eq!(flux(384), ["Flux.1 Fill's transformer, which paints a part of a picture"]);
        assert!(flux(128)[0].starts_with("Flux.1 Depth's or Canny's transformer"));
        let wan: [(&str, &[usize]); 3] = [
            ("blocks.0.cross_attn.k_img.weight", &[1]),
            ("blocks.0.self_attn.norm_k.weight", &[1]),
            ("img_emb.emb_pos", &[1, 514]),
        ];
        assert_eq!(roles(&wan), ["WAN's transformer, first and last frame to video (FLF2V)"]);
        assert_eq!(roles(&wan[..2]), ["WAN's transformer, image to video"]);
    }
}
