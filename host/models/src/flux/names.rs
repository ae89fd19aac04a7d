//! The names of Flux.1's weights, after diffusers'
//! `convert_flux_transformer_checkpoint_to_diffusers` (0.42.1, loaders/single_file_utils.py).

use crate::transformer::{
    Join::{Rows, Swapped},
    Layout, Row,
};

/// diffusers' names. The last modulation has scale and shift in the other order there.
const DIFFUSERS: &[Row] = &[
    Row("img_in.{p}", &["x_embedder.{p}"], Rows),
    Row("txt_in.{p}", &["context_embedder.{p}"], Rows),
    Row("time_in.in_layer.{p}", &["time_text_embed.timestep_embedder.linear_1.{p}"], Rows),
    Row("time_in.out_layer.{p}", &["time_text_embed.timestep_embedder.linear_2.{p}"], Rows),
    Row("vector_in.in_layer.{p}", &["time_text_embed.text_embedder.linear_1.{p}"], Rows),
    Row("vector_in.out_layer.{p}", &["time_text_embed.text_embedder.linear_2.{p}"], Rows),
    Row("guidance_in.in_layer.{p}", &["time_text_embed.guidance_embedder.linear_1.{p}"], Rows),
    Row("guidance_in.out_layer.{p}", &["time_text_embed.guidance_embedder.linear_2.{p}"], Rows),
    Row("double_blocks.{i}.img_mod.lin.{p}", &["transformer_blocks.{i}.norm1.linear.{p}"], Rows),
    Row("double_blocks.{i}.txt_mod.lin.{p}", &["transformer_blocks.{i}.norm1_context.linear.{p}"], Rows),
    Row(
        "double_blocks.{i}.img_attn.qkv.{p}",
        &[
            "transformer_blocks.{i}.attn.to_q.{p}",
            "transformer_blocks.{i}.attn.to_k.{p}",
            "transformer_blocks.{i}.attn.to_v.{p}",
        ],
        Rows,
    ),
    Row(
        "double_blocks.{i}.txt_attn.qkv.{p}",
        &[
            "transformer_blocks.{i}.attn.add_q_proj.{p}",
            "transformer_blocks.{i}.attn.add_k_proj.{p}",
            "transformer_blocks.{i}.attn.add_v_proj.{p}",
        ],
        Rows,
    ),
    Row("double_blocks.{i}.img_attn.norm.query_norm.scale", &["transformer_blocks.{i}.attn.norm_q.weight"], Rows),
    Row("double_blocks.{i}.img_attn.norm.key_norm.scale", &["transformer_blocks.{i}.attn.norm_k.weight"], Rows),
    Row("double_blocks.{i}.txt_attn.norm.query_norm.scale", &["transformer_blocks.{i}.attn.norm_added_q.weight"], Rows),
    Row("double_blocks.{i}.txt_attn.norm.key_norm.scale", &["transformer_blocks.{i}.attn.norm_added_k.weight"], Rows),
    Row("double_blocks.{i}.img_attn.proj.{p}", &["transformer_blocks.{i}.attn.to_out.0.{p}"], Rows),
    Row("double_blocks.{i}.txt_attn.proj.{p}", &["transformer_blocks.{i}.attn.to_add_out.{p}"], Rows),
    Row("double_blocks.{i}.img_mlp.0.{p}", &["transformer_blocks.{i}.ff.net.0.proj.{p}"], Rows),
    Row("double_blocks.{i}.img_mlp.2.{p}", &["transformer_blocks.{i}.ff.net.2.{p}"], Rows),
    Row("double_blocks.{i}.txt_mlp.0.{p}", &["transformer_blocks.{i}.ff_context.net.0.proj.{p}"], Rows),
    Row("double_blocks.{i}.txt_mlp.2.{p}", &["transformer_blocks.{i}.ff_context.net.2.{p}"], Rows),
    Row("single_blocks.{i}.modulation.lin.{p}", &["single_transformer_blocks.{i}.norm.linear.{p}"], Rows),
    Row(
        "single_blocks.{i}.linear1.{p}",
        &[
            "single_transformer_blocks.{i}.attn.to_q.{p}",
            "single_transformer_blocks.{i}.attn.to_k.{p}",
            "single_transformer_blocks.{i}.attn.to_v.{p}",
            "single_transformer_blocks.{i}.proj_mlp.{p}",
        ],
        Rows,
    ),
    Row("single_blocks.{i}.linear2.{p}", &["single_transformer_blocks.{i}.proj_out.{p}"], Rows),
    Row("single_blocks.{i}.norm.query_norm.scale", &["single_transformer_blocks.{i}.attn.norm_q.weight"], Rows),
    Row("single_blocks.{i}.norm.key_norm.scale", &["single_transformer_blocks.{i}.attn.norm_k.weight"], Rows),
    Row("final_layer.adaLN_modulation.1.{p}", &["norm_out.linear.{p}"], Swapped),
    Row("final_layer.linear.{p}", &["proj_out.{p}"], Rows),
];

/// BFL's names as ComfyUI saves them: the norms of queries and keys are called otherwise
/// (comfy/supported_models.py, `Flux.process_unet_state_dict`, 0.30.0).
const COMFYUI: &[Row] = &[
    Row(
        "double_blocks.{i}.img_attn.norm.query_norm.scale",
        &["double_blocks.{i}.img_attn.norm.query_norm.weight"],
        Rows,
    ),
    Row("double_blocks.{i}.img_attn.norm.key_norm.scale", &["double_blocks.{i}.img_attn.norm.key_norm.weight"], Rows),
    Row(
        "double_blocks.{i}.txt_attn.norm.query_norm.scale",
        &["double_blocks.{i}.txt_attn.norm.query_norm.weight"],
        Rows,
    ),
    Row("double_blocks.{i}.txt_attn.norm.key_norm.scale", &["double_blocks.{i}.txt_attn.norm.key_norm.weight"], Rows),
    Row("single_blocks.{i}.norm.query_norm.scale", &["single_blocks.{i}.norm.query_norm.weight"], Rows),
    Row("single_blocks.{i}.norm.key_norm.scale", &["single_blocks.{i}.norm.key_norm.weight"], Rows),
];

/// The table of a layout.
pub(crate) fn rows(layout: Layout) -> &'static [Row] {
    match layout {
        Layout::Original | Layout::LlamaCpp => &[],
        Layout::ComfyUi => COMFYUI,
        Layout::Diffusers => DIFFUSERS,
    }
}
