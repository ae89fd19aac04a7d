//! CLIP's published encoders: names of files, and the facts that its users ask for.

use super::{Config, config::Picture};
use crate::{
    EncoderKind,
    text_encoder::{EncoderArchitecture, PublishedEncoder, Sign},
    transformer::Layout,
};

const TRANSFORMERS: &str = "encoder.layers.0.self_attn.q_proj.weight";
const ORIGINAL: &str = "transformer.resblocks.0.attn.in_proj_weight";

/// The signs of a file with an encoder.
pub(crate) const SIGNS: &[Sign] = &[
    Sign {
        is_vision: false,
        layout: Layout::Diffusers,
        mark: TRANSFORMERS,
        companion: "embeddings.token_embedding.weight",
    },
    Sign { is_vision: false, layout: Layout::Original, mark: ORIGINAL, companion: "token_embedding.weight" },
    // SigLIP's has the same names, and no class.
    Sign { is_vision: true, layout: Layout::Diffusers, mark: TRANSFORMERS, companion: "embeddings.class_embedding" },
    Sign { is_vision: true, layout: Layout::Original, mark: ORIGINAL, companion: "class_embedding" },
];

/// The published encoders.
pub(crate) const PUBLISHED: &[PublishedEncoder] = &[
    PublishedEncoder {
        kind: EncoderKind::Clip,
        is_vision: false,
        width: 768,
        blocks: 12,
        id: "clip-l",
        name: "CLIP-L",
        file: Some("clip_l.safetensors"),
    },
    PublishedEncoder {
        kind: EncoderKind::OpenClip,
        is_vision: false,
        width: 1280,
        blocks: 32,
        id: "openclip-bigg",
        name: "OpenCLIP bigG",
        file: None,
    },
    PublishedEncoder {
        kind: EncoderKind::OpenClip,
        is_vision: true,
        width: 1280,
        blocks: 32,
        id: "clip-vision-h",
        name: "CLIP ViT-H's vision",
        file: Some("clip_vision_h.safetensors"),
    },
    PublishedEncoder {
        kind: EncoderKind::Clip,
        is_vision: true,
        width: 1024,
        blocks: 24,
        id: "clip-vision-l",
        name: "CLIP ViT-L's vision",
        file: None,
    },
];

impl EncoderArchitecture for Config {
    fn kind(&self) -> EncoderKind {
        if self.quick_gelu { EncoderKind::Clip } else { EncoderKind::OpenClip }
    }

    fn picture(&self) -> Option<Picture> {
        self.picture
    }

    fn hidden(&self) -> i64 {
        self.hidden
    }

    fn vocabulary(&self) -> i64 {
        self.vocabulary
    }

    fn positions(&self) -> Option<i64> {
        Some(self.positions)
    }

    fn shape(&self) -> String {
        format!(
            "{} heads in a width of {}, {} blocks, a vocabulary of {} tokens, chunks of a prompt of {} tokens",
            self.heads, self.hidden, self.blocks, self.vocabulary, self.positions
        )
    }

    fn block_start(&self, layout: Layout) -> &'static str {
        match layout {
            Layout::Original => "transformer.resblocks",
            _ => "encoder.layers",
        }
    }
}
