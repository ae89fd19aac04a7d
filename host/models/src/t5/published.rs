//! The published encoders of T5's kind: names of files, and the facts that their users ask for.

use super::{Config, names};
use crate::{
    EncoderKind,
    text_encoder::{EncoderArchitecture, PublishedEncoder, Sign},
    transformer::Layout,
};

const TRANSFORMERS: &str = "encoder.block.0.layer.0.SelfAttention.q.weight";

/// The signs of a file with an encoder.
pub(crate) const SIGNS: &[Sign] = &[
    Sign { is_vision: false, layout: Layout::Diffusers, mark: TRANSFORMERS, companion: "shared.weight" },
    Sign { is_vision: false, layout: Layout::ComfyUi, mark: TRANSFORMERS, companion: "encoder.embed_tokens.weight" },
    Sign {
        is_vision: false,
        layout: Layout::LlamaCpp,
        mark: "enc.blk.0.attn_q.weight",
        companion: "token_embd.weight",
    },
    Sign {
        is_vision: false,
        layout: Layout::Original,
        mark: "blocks.0.attn.q.weight",
        companion: "token_embedding.weight",
    },
];

/// The published encoders.
pub(crate) const PUBLISHED: &[PublishedEncoder] = &[
    PublishedEncoder {
        kind: EncoderKind::T5,
        is_vision: false,
        width: 4096,
        blocks: 24,
        id: "t5-xxl",
        name: "T5-XXL",
        file: Some("t5xxl_fp16.safetensors"),
    },
    PublishedEncoder {
        kind: EncoderKind::Umt5,
        is_vision: false,
        width: 4096,
        blocks: 24,
        id: "umt5-xxl",
        name: "UMT5-XXL",
        file: Some("umt5_xxl_fp16.safetensors"),
    },
];

impl EncoderArchitecture for Config {
    fn kind(&self) -> EncoderKind {
        if self.own_distances { EncoderKind::Umt5 } else { EncoderKind::T5 }
    }

    fn hidden(&self) -> i64 {
        self.hidden
    }

    fn vocabulary(&self) -> i64 {
        self.vocabulary
    }

    fn shape(&self) -> String {
        format!(
            "{} heads in a width of {}, {} blocks, a vocabulary of {} tokens",
            self.heads, self.hidden, self.blocks, self.vocabulary
        )
    }

    fn block_start(&self, layout: Layout) -> &'static str {
        names::block_start(layout)
    }
}
