//! The names of a CLIP encoder's weights, behind the prefix of its file.

use crate::transformer::{Join::Rows, Layout, Row};

/// transformers' names (`CLIPTextModel`, `CLIPVisionModel`), behind `text_model.` and
/// `vision_model.`.
const TRANSFORMERS: &[Row] = &[
    Row("tokens.weight", &["embeddings.token_embedding.weight"], Rows),
    Row("positions.weight", &["embeddings.position_embedding.weight"], Rows),
    Row("patches.weight", &["embeddings.patch_embedding.weight"], Rows),
    Row("class", &["embeddings.class_embedding"], Rows),
    Row("first_norm.{p}", &["pre_layrnorm.{p}"], Rows),
    Row("blocks.{i}.norm1.{p}", &["encoder.layers.{i}.layer_norm1.{p}"], Rows),
    Row(
        "blocks.{i}.attention.qkv.{p}",
        &[
            "encoder.layers.{i}.self_attn.q_proj.{p}",
            "encoder.layers.{i}.self_attn.k_proj.{p}",
            "encoder.layers.{i}.self_attn.v_proj.{p}",
        ],
        Rows,
    ),
    Row("blocks.{i}.attention.out.{p}", &["encoder.layers.{i}.self_attn.out_proj.{p}"], Rows),
    Row("blocks.{i}.norm2.{p}", &["encoder.layers.{i}.layer_norm2.{p}"], Rows),
    Row("blocks.{i}.widen.{p}", &["encoder.layers.{i}.mlp.fc1.{p}"], Rows),
    Row("blocks.{i}.narrow.{p}", &["encoder.layers.{i}.mlp.fc2.{p}"], Rows),
    Row("norm.{p}", &["final_layer_norm.{p}"], Rows),
    Row("picture_norm.{p}", &["post_layernorm.{p}"], Rows),
];

/// OpenCLIP's names (github.com/mlfoundations/open_clip, `TextTransformer` and
/// `VisionTransformer`), as in SDXL's checkpoints.
const OPEN_CLIP: &[Row] = &[
    Row("tokens.weight", &["token_embedding.weight"], Rows),
    Row("positions.weight", &["positional_embedding"], Rows),
    Row("patches.weight", &["conv1.weight"], Rows),
    Row("class", &["class_embedding"], Rows),
    Row("first_norm.{p}", &["ln_pre.{p}"], Rows),
    Row("blocks.{i}.norm1.{p}", &["transformer.resblocks.{i}.ln_1.{p}"], Rows),
    Row("blocks.{i}.attention.qkv.weight", &["transformer.resblocks.{i}.attn.in_proj_weight"], Rows),
    Row("blocks.{i}.attention.qkv.bias", &["transformer.resblocks.{i}.attn.in_proj_bias"], Rows),
    Row("blocks.{i}.attention.out.{p}", &["transformer.resblocks.{i}.attn.out_proj.{p}"], Rows),
    Row("blocks.{i}.norm2.{p}", &["transformer.resblocks.{i}.ln_2.{p}"], Rows),
    Row("blocks.{i}.widen.{p}", &["transformer.resblocks.{i}.mlp.c_fc.{p}"], Rows),
    Row("blocks.{i}.narrow.{p}", &["transformer.resblocks.{i}.mlp.c_proj.{p}"], Rows),
    Row("norm.{p}", &["ln_final.{p}"], Rows),
    Row("picture_norm.{p}", &["ln_post.{p}"], Rows),
];

/// The table of a layout, of which CLIP has two.
pub(crate) fn rows(layout: Layout) -> &'static [Row] {
    match layout {
        Layout::Original => OPEN_CLIP,
        _ => TRANSFORMERS,
    }
}
