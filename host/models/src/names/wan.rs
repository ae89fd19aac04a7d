//! WAN's names. The original code numbers residual layers and upsamplers alike, in 2.1 through the
//! whole network (`upsamples.{0…14}`), in 2.2 through each block; diffusers' encoder of 2.1 kept
//! that. Both become diffusers' names with block and layer apart.
//!
//! After diffusers' `convert_wan_vae_to_diffusers` (loaders/single_file_utils.py) and
//! scripts/convert_wan_to_diffusers.py.

use super::{
    Extent,
    Index::{FlatEnd, FlatLayer, NestedEnd, NestedLayer, Same},
    MOST_INDEX, Rule, Table, number,
};

/// diffusers' names of 2.1 and of 2.2.
const DIFFUSERS: [&[Rule]; 2] = [
    &[
        Rule("encoder.down_blocks.{i}", "encoder.down_blocks.{i}.resnets.{j}", FlatLayer),
        Rule("encoder.down_blocks.{i}", "encoder.down_blocks.{i}.downsampler", FlatEnd),
    ],
    &[Rule("decoder.up_blocks.{i}.upsampler", "decoder.up_blocks.{i}.upsamplers.0", Same)],
];

/// The original code's names of both versions.
const ORIGINAL: &[Rule] = &[
    Rule("^conv1", "^quant_conv", Same),
    Rule("^conv2", "^post_quant_conv", Same),
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

/// The original code's names of layers, in 2.1 and in 2.2.
const ORIGINAL_LAYERS: [&[Rule]; 2] = [
    &[
        Rule("decoder.upsamples.{i}", "decoder.up_blocks.{i}.resnets.{j}", FlatLayer),
        Rule("decoder.upsamples.{i}", "decoder.up_blocks.{i}.upsamplers.0", FlatEnd),
        Rule("encoder.downsamples.{i}", "encoder.down_blocks.{i}.resnets.{j}", FlatLayer),
        Rule("encoder.downsamples.{i}", "encoder.down_blocks.{i}.downsampler", FlatEnd),
    ],
    &[
        Rule("decoder.upsamples.{i}.upsamples.{j}", "decoder.up_blocks.{i}.resnets.{j}", NestedLayer),
        Rule("decoder.upsamples.{i}.upsamples.{j}", "decoder.up_blocks.{i}.upsamplers.0", NestedEnd),
        Rule("encoder.downsamples.{i}.downsamples.{j}", "encoder.down_blocks.{i}.resnets.{j}", NestedLayer),
        Rule("encoder.downsamples.{i}.downsamples.{j}", "encoder.down_blocks.{i}.downsampler", NestedEnd),
    ],
];

/// The lists that layers are numbered in.
const LISTS: [&str; 4] = ["upsamples", "downsamples", "up_blocks", "down_blocks"];

/// The parts of a layer that resizes.
const RESIZES: [&str; 2] = ["resample", "time_conv"];

/// The names of a WAN autoencoder's tensors in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The names are the original code's, not diffusers'.
    original: bool,
    /// The network is WAN 2.2's.
    nested: bool,
    extent: Extent,
}

impl Naming {
    /// The naming that these names follow; they lack the file's prefix.
    pub fn of<'a>(original: bool, names: impl Iterator<Item = &'a str>) -> Self {
        let layers: Vec<Vec<&str>> =
            names.map(|name| name.split('.').collect::<Vec<_>>()).filter(|parts| is_layer(parts)).collect();
        let versions: Vec<bool> = layers.iter().filter_map(|parts| version(parts)).collect();
        let nested = 2 * versions.iter().filter(|nested| **nested).count() > versions.len();
        // The first layer that resizes stands behind all others of its block.
        let first = |part: &str| {
            let ends =
                layers.iter().filter(|parts| parts[0] == part && parts.iter().any(|word| RESIZES.contains(word)));
            let numbers = ends.filter_map(|parts| number(parts.get(if nested { 4 } else { 2 })?));
            numbers.min().unwrap_or(MOST_INDEX)
        };
        let (up_layers, down_layers) = (first("decoder"), first("encoder"));
        Self { original, nested, extent: Extent { blocks: 0, up_layers, down_layers } }
    }

    /// True if the network is WAN 2.2's.
    pub fn nested(&self) -> bool {
        self.nested
    }

    fn rules(&self) -> impl Iterator<Item = &'static Rule> + use<> {
        let version = usize::from(self.nested);
        let (layers, others) =
            if self.original { (ORIGINAL_LAYERS[version], ORIGINAL) } else { (DIFFUSERS[version], &[][..]) };
        layers.iter().chain(others)
    }
}

/// True for a tensor of a numbered layer, by the segments of its name.
fn is_layer(parts: &[&str]) -> bool {
    matches!(parts, ["decoder" | "encoder", list, index, ..] if LISTS.contains(list) && number(index).is_some())
}

/// True for a name that WAN 2.2 alone has, false for one that 2.1 alone has.
fn version(parts: &[&str]) -> Option<bool> {
    match parts {
        [_, "upsamples", _, "upsamples", ..] | [_, "downsamples", _, "downsamples", ..] => Some(true),
        [_, "up_blocks", _, "upsampler", ..] | [_, "down_blocks", _, "resnets" | "downsampler", ..] => Some(true),
        [_, "up_blocks", _, "resnets", ..] => None,
        _ => Some(false),
    }
}

impl Table for Naming {
    fn canonical(&self, name: &str) -> Option<String> {
        self.extent.canonical(name, || self.rules())
    }

    fn original(&self, canonical: &str) -> Option<String> {
        self.extent.original(canonical, self.rules())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(original: bool, nested: bool, up_layers: usize) -> Naming {
        Naming { original, nested, extent: Extent { blocks: 0, up_layers, down_layers: up_layers - 1 } }
    }

    #[test]
    fn every_rule_is_used_and_leads_back() {
        for (original, nested) in [(false, false), (false, true), (true, false), (true, true)] {
            for layers in [2, 3, 4] {
                let naming = naming(original, nested, layers);
                for Rule(file, diffusers, index) in naming.rules() {
                    let fill = |pattern: &str, (i, j): (usize, usize)| {
                        let pattern = pattern.trim_start_matches('^');
                        pattern.replace("{i}", &i.to_string()).replace("{j}", &j.to_string())
                    };
                    let layers = if file.starts_with("encoder.") { layers - 1 } else { layers };
                    for block in 0..3 {
                        // A down block of one layer has no second.
                        let Some(numbers) = index.numbers((block, 1), 0, layers) else { continue };
                        let name = format!("{}.bias", fill(file, numbers));
                        let canonical = naming.canonical(&name).unwrap_or_else(|| panic!("{name} has no rule"));
                        assert_eq!(canonical, format!("{}.bias", fill(diffusers, (block, 1))), "{name}");
                        assert_eq!(naming.original(&canonical).unwrap(), name);
                    }
                }
            }
        }
    }

    #[test]
    fn the_published_numbers_are_diffusers_blocks_and_layers() {
        let wan21 = |name: &str| naming(true, false, 3).canonical(name);
        let cases = [
            ("decoder.upsamples.0.residual.0.gamma", "decoder.up_blocks.0.resnets.0.norm1.gamma"),
            ("decoder.upsamples.3.resample.1.weight", "decoder.up_blocks.0.upsamplers.0.resample.1.weight"),
            ("decoder.upsamples.4.shortcut.bias", "decoder.up_blocks.1.resnets.0.conv_shortcut.bias"),
            ("decoder.upsamples.7.time_conv.bias", "decoder.up_blocks.1.upsamplers.0.time_conv.bias"),
            ("decoder.upsamples.14.residual.6.weight", "decoder.up_blocks.3.resnets.2.conv2.weight"),
            ("decoder.head.0.gamma", "decoder.norm_out.gamma"),
            ("conv2.weight", "post_quant_conv.weight"),
            ("encoder.downsamples.2.resample.1.bias", "encoder.down_blocks.0.downsampler.resample.1.bias"),
            ("encoder.downsamples.10.residual.3.gamma", "encoder.down_blocks.3.resnets.1.norm2.gamma"),
        ];
        for (name, canonical) in cases {
            assert_eq!(wan21(name).as_deref(), Some(canonical), "{name}");
        }
        for name in [
            "decoder.upsamples.04.shortcut.bias",
            "decoder.upsamples.999.residual.2.weight",
            "decoder.up_blocks.0.resnets.0.norm1.gamma",
            "quant_conv.weight",
            "decoder.conv_in.bias",
            "decoder.upsamples.0.residual.0.scale",
        ] {
            assert_eq!(wan21(name), None, "{name}");
        }
        // Names of no network, and of none by another name.
        for (name, canonical) in [
            ("decoder.upsamples.3.residual.0.gamma", "decoder.up_blocks.0.upsamplers.0.norm1.gamma"),
            ("decoder.upsamples.2.resample.1.weight", "decoder.up_blocks.0.resnets.2.resample.1.weight"),
            ("decoder.middle.3.residual.0.gamma", "decoder.middle.3.norm1.gamma"),
        ] {
            assert_eq!(wan21(name).as_deref(), Some(canonical));
        }
        let diffusers = naming(false, false, 3);
        assert_eq!(
            diffusers.canonical("encoder.down_blocks.5.time_conv.weight").unwrap(),
            "encoder.down_blocks.1.downsampler.time_conv.weight"
        );
        let wan22 = naming(true, true, 3);
        assert_eq!(
            wan22.canonical("decoder.upsamples.1.upsamples.3.time_conv.weight").unwrap(),
            "decoder.up_blocks.1.upsamplers.0.time_conv.weight"
        );
        assert_eq!(
            wan22.canonical("decoder.upsamples.1.upsamples.2.time_conv.weight").unwrap(),
            "decoder.up_blocks.1.resnets.2.time_conv.weight"
        );
    }

    #[test]
    fn layers_per_block_are_where_the_first_upsampler_stands() {
        let names = |text: &'static str| text.split(' ');
        let found = Naming::of(
            true,
            names(
                "decoder.upsamples.9.resample.1.bias decoder.upsamples.4.time_conv.weight decoder.upsamples.0.shortcut.bias encoder.downsamples.1.resample.1.weight",
            ),
        );
        assert_eq!((found.nested, found.extent.up_layers, found.extent.down_layers), (false, 4, 1));
        let found = Naming::of(
            true,
            names(
                "decoder.upsamples.9.resample.1.bias decoder.upsamples.0.upsamples.2.resample.1.bias decoder.upsamples.1.upsamples.0.residual.0.gamma",
            ),
        );
        assert_eq!((found.nested, found.extent.up_layers), (true, 2));
    }
}
