//! WAN's names. The original code numbers residual layers and upsamplers alike, in 2.1 through the
//! whole network (`upsamples.{0…14}`), in 2.2 through each block; diffusers' encoder of 2.1 kept
//! that. Both become diffusers' names with block and layer apart.
//!
//! After diffusers' `convert_wan_vae_to_diffusers` (loaders/single_file_utils.py) and
//! scripts/convert_wan_to_diffusers.py.

use super::{MOST_INDEX, Table, captures};

/// The parameters of norms and of convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameters {
    /// `gamma`.
    Norm,
    /// `weight` and `bias`.
    Conv,
}

/// A part of a layer: the original name, diffusers' name, what it holds.
type Part = (&'static str, &'static str, Parameters);

use Parameters::{Conv, Norm};

const RESIDUAL: &[Part] = &[
    ("residual.0", "norm1", Norm),
    ("residual.2", "conv1", Conv),
    ("residual.3", "norm2", Norm),
    ("residual.6", "conv2", Conv),
    ("shortcut", "conv_shortcut", Conv),
];
const ATTENTION: &[Part] = &[("norm", "norm", Norm), ("to_qkv", "to_qkv", Conv), ("proj", "proj", Conv)];
const RESAMPLE: &[Part] = &[("resample.1", "resample.1", Conv), ("time_conv", "time_conv", Conv)];
const CONV: &[Part] = &[("", "", Conv)];
const NORM: &[Part] = &[("", "", Norm)];

/// The way from a row's numbers in the file, `{i}` and `{j}`, to diffusers' block and layer. With n
/// residual layers in a block, its layers have the numbers 0…n−1 in it, and n stands for what
/// resizes at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    /// They are the same.
    Same,
    /// `{i}` counts through the whole network: a residual layer.
    FlatLayer,
    /// `{i}` counts through the whole network: the end of a block.
    FlatEnd,
    /// `{j}` counts through the block: a residual layer.
    NestedLayer,
    /// `{j}` counts through the block: its end.
    NestedEnd,
}

impl Index {
    /// Block and layer of the file's numbers, in blocks of so many residual layers.
    fn place(self, (i, j): (usize, usize), layers: usize) -> Option<(usize, usize)> {
        let (block, within) = (i / (layers + 1), i % (layers + 1));
        match self {
            Index::Same => Some((i, j)),
            Index::FlatLayer => (within < layers).then_some((block, within)),
            Index::FlatEnd => (within == layers).then_some((block, 0)),
            Index::NestedLayer => (j < layers).then_some((i, j)),
            Index::NestedEnd => (j == layers).then_some((i, 0)),
        }
    }

    /// The file's numbers of a block and layer.
    fn numbers(self, (block, layer): (usize, usize), layers: usize) -> Option<(usize, usize)> {
        match self {
            Index::Same => Some((block, layer)),
            Index::FlatLayer => (layer < layers).then_some((block * (layers + 1) + layer, 0)),
            Index::FlatEnd => Some((block * (layers + 1) + layers, 0)),
            Index::NestedLayer => (layer < layers).then_some((block, layer)),
            Index::NestedEnd => Some((block, layers)),
        }
    }
}

/// Which of the two networks a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Both,
    Wan21,
    Wan22,
}

/// One row: the file's name of a layer, diffusers' name, how its numbers translate, its parts, the
/// network.
struct Row(&'static str, &'static str, Index, &'static [Part], Of);

use Index::{FlatEnd, FlatLayer, NestedEnd, NestedLayer, Same};
use Of::{Both, Wan21, Wan22};

const DIFFUSERS: &[Row] = &[
    Row("quant_conv", "quant_conv", Same, CONV, Both),
    Row("post_quant_conv", "post_quant_conv", Same, CONV, Both),
    Row("decoder.conv_in", "decoder.conv_in", Same, CONV, Both),
    Row("decoder.mid_block.resnets.0", "decoder.mid_block.resnets.0", Same, RESIDUAL, Both),
    Row("decoder.mid_block.attentions.0", "decoder.mid_block.attentions.0", Same, ATTENTION, Both),
    Row("decoder.mid_block.resnets.1", "decoder.mid_block.resnets.1", Same, RESIDUAL, Both),
    Row("decoder.up_blocks.{i}.resnets.{j}", "decoder.up_blocks.{i}.resnets.{j}", Same, RESIDUAL, Both),
    Row("decoder.up_blocks.{i}.upsamplers.0", "decoder.up_blocks.{i}.upsamplers.0", Same, RESAMPLE, Wan21),
    Row("decoder.up_blocks.{i}.upsampler", "decoder.up_blocks.{i}.upsamplers.0", Same, RESAMPLE, Wan22),
    Row("decoder.norm_out", "decoder.norm_out", Same, NORM, Both),
    Row("decoder.conv_out", "decoder.conv_out", Same, CONV, Both),
    Row("encoder.conv_in", "encoder.conv_in", Same, CONV, Both),
    Row("encoder.down_blocks.{i}", "encoder.down_blocks.{i}.resnets.{j}", FlatLayer, RESIDUAL, Wan21),
    Row("encoder.down_blocks.{i}", "encoder.down_blocks.{i}.downsampler", FlatEnd, RESAMPLE, Wan21),
    Row("encoder.down_blocks.{i}.resnets.{j}", "encoder.down_blocks.{i}.resnets.{j}", Same, RESIDUAL, Wan22),
    Row("encoder.down_blocks.{i}.downsampler", "encoder.down_blocks.{i}.downsampler", Same, RESAMPLE, Wan22),
    Row("encoder.mid_block.resnets.0", "encoder.mid_block.resnets.0", Same, RESIDUAL, Both),
    Row("encoder.mid_block.attentions.0", "encoder.mid_block.attentions.0", Same, ATTENTION, Both),
    Row("encoder.mid_block.resnets.1", "encoder.mid_block.resnets.1", Same, RESIDUAL, Both),
    Row("encoder.norm_out", "encoder.norm_out", Same, NORM, Both),
    Row("encoder.conv_out", "encoder.conv_out", Same, CONV, Both),
];

const ORIGINAL: &[Row] = &[
    Row("conv1", "quant_conv", Same, CONV, Both),
    Row("conv2", "post_quant_conv", Same, CONV, Both),
    Row("decoder.conv1", "decoder.conv_in", Same, CONV, Both),
    Row("decoder.middle.0", "decoder.mid_block.resnets.0", Same, RESIDUAL, Both),
    Row("decoder.middle.1", "decoder.mid_block.attentions.0", Same, ATTENTION, Both),
    Row("decoder.middle.2", "decoder.mid_block.resnets.1", Same, RESIDUAL, Both),
    Row("decoder.upsamples.{i}", "decoder.up_blocks.{i}.resnets.{j}", FlatLayer, RESIDUAL, Wan21),
    Row("decoder.upsamples.{i}", "decoder.up_blocks.{i}.upsamplers.0", FlatEnd, RESAMPLE, Wan21),
    Row("decoder.upsamples.{i}.upsamples.{j}", "decoder.up_blocks.{i}.resnets.{j}", NestedLayer, RESIDUAL, Wan22),
    Row("decoder.upsamples.{i}.upsamples.{j}", "decoder.up_blocks.{i}.upsamplers.0", NestedEnd, RESAMPLE, Wan22),
    Row("decoder.head.0", "decoder.norm_out", Same, NORM, Both),
    Row("decoder.head.2", "decoder.conv_out", Same, CONV, Both),
    Row("encoder.conv1", "encoder.conv_in", Same, CONV, Both),
    Row("encoder.downsamples.{i}", "encoder.down_blocks.{i}.resnets.{j}", FlatLayer, RESIDUAL, Wan21),
    Row("encoder.downsamples.{i}", "encoder.down_blocks.{i}.downsampler", FlatEnd, RESAMPLE, Wan21),
    Row("encoder.downsamples.{i}.downsamples.{j}", "encoder.down_blocks.{i}.resnets.{j}", NestedLayer, RESIDUAL, Wan22),
    Row("encoder.downsamples.{i}.downsamples.{j}", "encoder.down_blocks.{i}.downsampler", NestedEnd, RESAMPLE, Wan22),
    Row("encoder.middle.0", "encoder.mid_block.resnets.0", Same, RESIDUAL, Both),
    Row("encoder.middle.1", "encoder.mid_block.attentions.0", Same, ATTENTION, Both),
    Row("encoder.middle.2", "encoder.mid_block.resnets.1", Same, RESIDUAL, Both),
    Row("encoder.head.0", "encoder.norm_out", Same, NORM, Both),
    Row("encoder.head.2", "encoder.conv_out", Same, CONV, Both),
];

impl Row {
    fn encodes(&self) -> bool {
        self.0.starts_with("encoder.")
    }
}

impl Parameters {
    fn hold(self, parameter: &str) -> bool {
        match self {
            Norm => parameter == "gamma",
            Conv => matches!(parameter, "weight" | "bias"),
        }
    }
}

/// The names of a WAN autoencoder's tensors in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The names are the original code's, not diffusers'.
    original: bool,
    /// The network is WAN 2.2's.
    nested: bool,
    /// Residual layers of an up block.
    up_layers: usize,
    /// Residual layers of a down block.
    down_layers: usize,
}

impl Naming {
    /// The naming that these names follow; they lack the file's prefix.
    pub fn of<'a>(original: bool, names: impl Iterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = names.collect();
        let stems = || names.iter().filter_map(|name| name.rsplit_once('.')).map(|(stem, _)| stem);
        let mut naming = Self { original, nested: false, up_layers: MOST_INDEX, down_layers: MOST_INDEX };
        let count =
            |of: Of| stems().filter(|stem| naming.rows().any(|row| row.4 == of && naming.fits(row, stem))).count();
        naming.nested = count(Wan22) > count(Wan21);
        // The first layer that resizes stands behind all others of its block.
        let first = |encodes: bool| {
            let ends = naming.rows().filter(|row| row.encodes() == encodes && matches!(row.2, FlatEnd | NestedEnd));
            let numbers = ends.filter(|row| naming.is_of(row)).flat_map(|row| {
                stems().filter_map(move |stem| {
                    let (i, j) = naming.numbers(row, stem)?;
                    Some(if row.2 == FlatEnd { i } else { j })
                })
            });
            numbers.min().unwrap_or(MOST_INDEX)
        };
        Self { up_layers: first(false), down_layers: first(true), ..naming }
    }

    /// True if the network is WAN 2.2's.
    pub fn nested(&self) -> bool {
        self.nested
    }

    fn rows(&self) -> impl Iterator<Item = &'static Row> + use<> {
        if self.original { ORIGINAL } else { DIFFUSERS }.iter()
    }

    fn is_of(&self, row: &Row) -> bool {
        row.4 != if self.nested { Wan21 } else { Wan22 }
    }

    fn layers(&self, row: &Row) -> usize {
        if row.encodes() { self.down_layers } else { self.up_layers }
    }

    fn file_name(&self, row: &Row, part: &Part) -> String {
        join(row.0, if self.original { part.0 } else { part.1 })
    }

    /// The numbers in the file's name of a layer's part.
    fn numbers(&self, row: &Row, stem: &str) -> Option<(usize, usize)> {
        row.3.iter().find_map(|part| captures(&self.file_name(row, part), stem))
    }

    fn fits(&self, row: &Row, stem: &str) -> bool {
        self.numbers(row, stem).is_some()
    }

    /// The rows of this network with their parts.
    fn parts(&self) -> impl Iterator<Item = (&'static Row, &'static Part)> {
        self.rows().filter(|row| self.is_of(row)).flat_map(|row| row.3.iter().map(move |part| (row, part)))
    }
}

impl Table for Naming {
    fn canonical(&self, name: &str) -> Option<String> {
        let (stem, parameter) = name.rsplit_once('.')?;
        self.parts().filter(|(_, part)| part.2.hold(parameter)).find_map(|(row, part)| {
            let numbers = captures(&self.file_name(row, part), stem)?;
            let place = row.2.place(numbers, self.layers(row))?;
            Some(format!("{}.{parameter}", fill(&join(row.1, part.1), place)))
        })
    }

    fn original(&self, canonical: &str) -> Option<String> {
        let (stem, parameter) = canonical.rsplit_once('.')?;
        self.parts().filter(|(_, part)| part.2.hold(parameter)).find_map(|(row, part)| {
            let place = captures(&join(row.1, part.1), stem)?;
            let numbers = row.2.numbers(place, self.layers(row))?;
            Some(format!("{}.{parameter}", fill(&self.file_name(row, part), numbers)))
        })
    }
}

fn join(layer: &str, part: &str) -> String {
    if part.is_empty() { layer.to_owned() } else { format!("{layer}.{part}") }
}

fn fill(pattern: &str, (i, j): (usize, usize)) -> String {
    pattern.replace("{i}", &i.to_string()).replace("{j}", &j.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(original: bool, nested: bool, up_layers: usize) -> Naming {
        Naming { original, nested, up_layers, down_layers: up_layers - 1 }
    }

    #[test]
    fn every_row_is_used_and_leads_back() {
        for (original, nested) in [(false, false), (false, true), (true, false), (true, true)] {
            for layers in [2, 3, 4] {
                let naming = naming(original, nested, layers);
                for (row, part) in naming.parts() {
                    for block in 0..3 {
                        let numbers = row.2.numbers((block, 1), naming.layers(row));
                        // A down block of one layer has no second.
                        let Some(numbers) = numbers else { continue };
                        let parameter = if part.2 == Norm { "gamma" } else { "bias" };
                        let name = format!("{}.{parameter}", fill(&naming.file_name(row, part), numbers));
                        let canonical = naming.canonical(&name).unwrap_or_else(|| panic!("{name} has no row"));
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
            "decoder.upsamples.3.residual.0.gamma",
            "decoder.upsamples.2.resample.1.weight",
            "decoder.upsamples.04.shortcut.bias",
            "decoder.upsamples.99.residual.2.weight",
            "decoder.upsamples.0.residual.0.weight",
            "decoder.upsamples.0.upsamples.0.residual.0.gamma",
            "decoder.middle.3.residual.0.gamma",
        ] {
            assert_eq!(wan21(name), None, "{name}");
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
        assert_eq!(wan22.canonical("decoder.upsamples.1.upsamples.2.time_conv.weight"), None);
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
        assert_eq!((found.nested, found.up_layers, found.down_layers), (false, 4, 1));
        let found = Naming::of(
            true,
            names(
                "decoder.upsamples.9.resample.1.bias decoder.upsamples.0.upsamples.2.resample.1.bias decoder.upsamples.1.upsamples.0.residual.0.gamma",
            ),
        );
        assert_eq!((found.nested, found.up_layers), (true, 2));
    }
}
