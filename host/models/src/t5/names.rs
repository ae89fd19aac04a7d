//! The names of a T5 encoder's weights, behind the prefix of its file.

use crate::transformer::{Join::Rows, Layout, Row};

/// transformers' names (`T5EncoderModel` and `UMT5EncoderModel`), which ComfyUI's files have, too,
/// with the name of the table of tokens, of which there are two.
macro_rules! transformers {
    ($tokens:literal) => {
        &[
            Row("tokens.weight", &[$tokens], Rows),
            Row("blocks.{i}.attention.norm.weight", &["encoder.block.{i}.layer.0.layer_norm.weight"], Rows),
            Row(
                "blocks.{i}.attention.qkv.weight",
                &[
                    "encoder.block.{i}.layer.0.SelfAttention.q.weight",
                    "encoder.block.{i}.layer.0.SelfAttention.k.weight",
                    "encoder.block.{i}.layer.0.SelfAttention.v.weight",
                ],
                Rows,
            ),
            Row(
                "blocks.{i}.attention.distances.weight",
                &["encoder.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight"],
                Rows,
            ),
            Row("blocks.{i}.attention.out.weight", &["encoder.block.{i}.layer.0.SelfAttention.o.weight"], Rows),
            Row("blocks.{i}.feed_forward.norm.weight", &["encoder.block.{i}.layer.1.layer_norm.weight"], Rows),
            Row(
                "blocks.{i}.feed_forward.widen.weight",
                &[
                    "encoder.block.{i}.layer.1.DenseReluDense.wi_0.weight",
                    "encoder.block.{i}.layer.1.DenseReluDense.wi_1.weight",
                ],
                Rows,
            ),
            Row("blocks.{i}.feed_forward.narrow.weight", &["encoder.block.{i}.layer.1.DenseReluDense.wo.weight"], Rows),
            Row("norm.weight", &["encoder.final_layer_norm.weight"], Rows),
        ]
    };
}

const TRANSFORMERS: &[Row] = transformers!("shared.weight");
const EMBED_TOKENS: &[Row] = transformers!("encoder.embed_tokens.weight");

/// llama.cpp's names, in GGUF files (gguf-py, `MODEL_ARCH.T5ENCODER`).
const LLAMA_CPP: &[Row] = &[
    Row("tokens.weight", &["token_embd.weight"], Rows),
    Row("blocks.{i}.attention.norm.weight", &["enc.blk.{i}.attn_norm.weight"], Rows),
    Row(
        "blocks.{i}.attention.qkv.weight",
        &["enc.blk.{i}.attn_q.weight", "enc.blk.{i}.attn_k.weight", "enc.blk.{i}.attn_v.weight"],
        Rows,
    ),
    Row("blocks.{i}.attention.distances.weight", &["enc.blk.{i}.attn_rel_b.weight"], Rows),
    Row("blocks.{i}.attention.out.weight", &["enc.blk.{i}.attn_o.weight"], Rows),
    Row("blocks.{i}.feed_forward.norm.weight", &["enc.blk.{i}.ffn_norm.weight"], Rows),
    Row("blocks.{i}.feed_forward.widen.weight", &["enc.blk.{i}.ffn_gate.weight", "enc.blk.{i}.ffn_up.weight"], Rows),
    Row("blocks.{i}.feed_forward.narrow.weight", &["enc.blk.{i}.ffn_down.weight"], Rows),
    Row("norm.weight", &["enc.output_norm.weight"], Rows),
];

/// The names of WAN's own files (github.com/Wan-Video/Wan2.1, wan/modules/t5.py).
const WAN: &[Row] = &[
    Row("tokens.weight", &["token_embedding.weight"], Rows),
    Row("blocks.{i}.attention.norm.weight", &["blocks.{i}.norm1.weight"], Rows),
    Row(
        "blocks.{i}.attention.qkv.weight",
        &["blocks.{i}.attn.q.weight", "blocks.{i}.attn.k.weight", "blocks.{i}.attn.v.weight"],
        Rows,
    ),
    Row("blocks.{i}.attention.distances.weight", &["blocks.{i}.pos_embedding.embedding.weight"], Rows),
    Row("blocks.{i}.attention.out.weight", &["blocks.{i}.attn.o.weight"], Rows),
    Row("blocks.{i}.feed_forward.norm.weight", &["blocks.{i}.norm2.weight"], Rows),
    Row("blocks.{i}.feed_forward.widen.weight", &["blocks.{i}.ffn.gate.0.weight", "blocks.{i}.ffn.fc1.weight"], Rows),
    Row("blocks.{i}.feed_forward.narrow.weight", &["blocks.{i}.ffn.fc2.weight"], Rows),
    Row("norm.weight", &["norm.weight"], Rows),
];

/// The table of a layout.
pub(crate) fn rows(layout: Layout) -> &'static [Row] {
    match layout {
        Layout::LlamaCpp => LLAMA_CPP,
        Layout::Original => WAN,
        Layout::Diffusers => TRANSFORMERS,
        Layout::ComfyUi => EMBED_TOKENS,
    }
}

/// The beginning of the names of blocks in a layout.
pub(super) fn block_start(layout: Layout) -> &'static str {
    match layout {
        Layout::LlamaCpp => "enc.blk",
        Layout::Original => "blocks",
        Layout::Diffusers | Layout::ComfyUi => "encoder.block",
    }
}
