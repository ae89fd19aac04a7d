//! The names of WAN's weights, after diffusers' `convert_wan_transformer_to_diffusers` (0.42.1,
//! loaders/single_file_utils.py). Queries, keys and values of the same tokens are taken together.

use crate::transformer::{Join::Rows, Layout, Row};

const ORIGINAL: &[Row] = &[
    Row(
        "blocks.{i}.self_attn.qkv.{p}",
        &["blocks.{i}.self_attn.q.{p}", "blocks.{i}.self_attn.k.{p}", "blocks.{i}.self_attn.v.{p}"],
        Rows,
    ),
    Row("blocks.{i}.cross_attn.kv.{p}", &["blocks.{i}.cross_attn.k.{p}", "blocks.{i}.cross_attn.v.{p}"], Rows),
    Row(
        "blocks.{i}.cross_attn.kv_img.{p}",
        &["blocks.{i}.cross_attn.k_img.{p}", "blocks.{i}.cross_attn.v_img.{p}"],
        Rows,
    ),
];

const DIFFUSERS: &[Row] = &[
    Row("time_embedding.0.{p}", &["condition_embedder.time_embedder.linear_1.{p}"], Rows),
    Row("time_embedding.2.{p}", &["condition_embedder.time_embedder.linear_2.{p}"], Rows),
    Row("time_projection.1.{p}", &["condition_embedder.time_proj.{p}"], Rows),
    Row("text_embedding.0.{p}", &["condition_embedder.text_embedder.linear_1.{p}"], Rows),
    Row("text_embedding.2.{p}", &["condition_embedder.text_embedder.linear_2.{p}"], Rows),
    Row("img_emb.proj.0.{p}", &["condition_embedder.image_embedder.norm1.{p}"], Rows),
    Row("img_emb.proj.1.{p}", &["condition_embedder.image_embedder.ff.net.0.proj.{p}"], Rows),
    Row("img_emb.proj.3.{p}", &["condition_embedder.image_embedder.ff.net.2.{p}"], Rows),
    Row("img_emb.proj.4.{p}", &["condition_embedder.image_embedder.norm2.{p}"], Rows),
    Row("blocks.{i}.modulation", &["blocks.{i}.scale_shift_table"], Rows),
    Row(
        "blocks.{i}.self_attn.qkv.{p}",
        &["blocks.{i}.attn1.to_q.{p}", "blocks.{i}.attn1.to_k.{p}", "blocks.{i}.attn1.to_v.{p}"],
        Rows,
    ),
    Row("blocks.{i}.self_attn.norm_q.{p}", &["blocks.{i}.attn1.norm_q.{p}"], Rows),
    Row("blocks.{i}.self_attn.norm_k.{p}", &["blocks.{i}.attn1.norm_k.{p}"], Rows),
    Row("blocks.{i}.self_attn.o.{p}", &["blocks.{i}.attn1.to_out.0.{p}"], Rows),
    Row("blocks.{i}.norm3.{p}", &["blocks.{i}.norm2.{p}"], Rows),
    Row("blocks.{i}.cross_attn.q.{p}", &["blocks.{i}.attn2.to_q.{p}"], Rows),
    Row("blocks.{i}.cross_attn.kv.{p}", &["blocks.{i}.attn2.to_k.{p}", "blocks.{i}.attn2.to_v.{p}"], Rows),
    Row(
        "blocks.{i}.cross_attn.kv_img.{p}",
        &["blocks.{i}.attn2.add_k_proj.{p}", "blocks.{i}.attn2.add_v_proj.{p}"],
        Rows,
    ),
    Row("blocks.{i}.cross_attn.norm_q.{p}", &["blocks.{i}.attn2.norm_q.{p}"], Rows),
    Row("blocks.{i}.cross_attn.norm_k.{p}", &["blocks.{i}.attn2.norm_k.{p}"], Rows),
    Row("blocks.{i}.cross_attn.norm_k_img.{p}", &["blocks.{i}.attn2.norm_added_k.{p}"], Rows),
    Row("blocks.{i}.cross_attn.o.{p}", &["blocks.{i}.attn2.to_out.0.{p}"], Rows),
    Row("blocks.{i}.ffn.0.{p}", &["blocks.{i}.ffn.net.0.proj.{p}"], Rows),
    Row("blocks.{i}.ffn.2.{p}", &["blocks.{i}.ffn.net.2.{p}"], Rows),
    Row("head.modulation", &["scale_shift_table"], Rows),
    Row("head.head.{p}", &["proj_out.{p}"], Rows),
];

/// The table of a layout.
pub(crate) fn rows(layout: Layout) -> &'static [Row] {
    match layout {
        Layout::Original | Layout::ComfyUi | Layout::LlamaCpp => ORIGINAL,
        Layout::Diffusers => DIFFUSERS,
    }
}
