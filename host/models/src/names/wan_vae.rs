//! WAN's names. The original code numbers residual layers and upsamplers alike, in 2.1 through the
//! whole network (`upsamples.{0…14}`), in 2.2 through each block; diffusers' encoder of 2.1 kept
//! that. Both become diffusers' names with block and layer apart.
//!
//! After diffusers' `convert_wan_vae_to_diffusers` (loaders/single_file_utils.py) and
//! scripts/convert_wan_to_diffusers.py.

use super::{FlatEnd, FlatLayer, MOST_INDEX, Naming, NestedEnd, NestedLayer, Rule, Same, capture, encodes};

/// The original names of both networks.
pub(super) const ORIGINAL: &[Rule] = &[
    Rule("conv1", "quant_conv", Same),
    Rule("conv2", "post_quant_conv", Same),
    Rule("decoder.conv1", "decoder.conv_in", Same),
    Rule("encoder.conv1", "encoder.conv_in", Same),
    Rule("middle.0", "mid_block.resnets.0", Same),
    Rule("middle.1", "mid_block.attentions.0", Same),
    Rule("middle.2", "mid_block.resnets.1", Same),
    Rule("head.0", "norm_out", Same),
    Rule("head.2", "conv_out", Same),
    Rule("residual.0", "norm1", Same),
    Rule("residual.2", "conv1", Same),
    Rule("residual.3", "norm2", Same),
    Rule("residual.6", "conv2", Same),
    Rule("shortcut", "conv_shortcut", Same),
];

/// The original names of WAN 2.1 alone.
pub(super) const ORIGINAL_21: &[Rule] = &[
    Rule("decoder.upsamples.{i}", "decoder.up_blocks.{i}.resnets.{j}", FlatLayer),
    Rule("decoder.upsamples.{i}", "decoder.up_blocks.{i}.upsamplers.0", FlatEnd),
    Rule("encoder.downsamples.{i}", "encoder.down_blocks.{i}.resnets.{j}", FlatLayer),
    Rule("encoder.downsamples.{i}", "encoder.down_blocks.{i}.downsampler", FlatEnd),
];

/// The original names of WAN 2.2 alone.
pub(super) const ORIGINAL_22: &[Rule] = &[
    Rule("decoder.upsamples.{i}.upsamples.{j}", "decoder.up_blocks.{i}.resnets.{j}", NestedLayer),
    Rule("decoder.upsamples.{i}.upsamples.{j}", "decoder.up_blocks.{i}.upsamplers.0", NestedEnd),
    Rule("encoder.downsamples.{i}.downsamples.{j}", "encoder.down_blocks.{i}.resnets.{j}", NestedLayer),
    Rule("encoder.downsamples.{i}.downsamples.{j}", "encoder.down_blocks.{i}.downsampler", NestedEnd),
];

/// diffusers' names of WAN 2.1 that differ from the network's.
pub(super) const DIFFUSERS_21: &[Rule] = &[
    Rule("encoder.down_blocks.{i}", "encoder.down_blocks.{i}.resnets.{j}", FlatLayer),
    Rule("encoder.down_blocks.{i}", "encoder.down_blocks.{i}.downsampler", FlatEnd),
];

/// diffusers' names of WAN 2.2 that differ from the network's.
pub(super) const DIFFUSERS_22: &[Rule] = &[Rule("upsampler", "upsamplers.0", Same)];

/// The beginnings of names in blocks, of either network in either layout.
const IN_BLOCKS: [&str; 5] = [
    "decoder.upsamples.{i}",
    "encoder.downsamples.{i}",
    "decoder.up_blocks.{i}.upsamplers.0",
    "decoder.up_blocks.{i}.upsampler",
    "encoder.down_blocks.{i}",
];

/// The beginnings of names that only WAN 2.2 has.
const NESTED: [&str; 5] = [
    "decoder.upsamples.{i}.upsamples.{j}",
    "encoder.downsamples.{i}.downsamples.{j}",
    "decoder.up_blocks.{i}.upsampler",
    "encoder.down_blocks.{i}.resnets.{j}",
    "encoder.down_blocks.{i}.downsampler",
];

/// Parts of the layers that resize.
const RESIZING: [&str; 2] = ["resample", "time_conv"];

/// True if most names in blocks are WAN 2.2's.
pub(super) fn is_nested<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let (mut nested, mut all) = (0, 0);
    for name in names {
        let segments: Vec<&str> = name.split('.').collect();
        let starts = |patterns: &[&str]| patterns.iter().any(|pattern| capture(pattern, &segments).is_some());
        nested += usize::from(starts(&NESTED));
        all += usize::from(starts(&IN_BLOCKS));
    }
    2 * nested > all
}

/// Residual layers of a block, if the naming counts through them: the first layer that resizes
/// stands behind all others of its block.
pub(super) fn layers<'a>(naming: Naming, is_encoder: bool, names: impl Iterator<Item = &'a str>) -> usize {
    let ends: Vec<&Rule> = naming
        .rules()
        .iter()
        .copied()
        .flatten()
        .filter(|rule| encodes(rule.1) == is_encoder && matches!(rule.2, FlatEnd | NestedEnd))
        .collect();
    let number = |name: &str| {
        let segments: Vec<&str> = name.split('.').collect();
        ends.iter().find_map(|Rule(file, _, index)| {
            let ((i, j), count) = capture(file, &segments)?;
            let resizes = segments.get(count).is_some_and(|part| RESIZING.contains(part));
            resizes.then_some(if *index == FlatEnd { i } else { j })
        })
    };
    names.filter_map(number).min().unwrap_or(MOST_INDEX)
}
