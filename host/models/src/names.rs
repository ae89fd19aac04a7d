//! What each file layout calls the networks' tensors, as tables: the network knows diffusers' names alone.

pub mod wan;

/// A layout's table: between the file's names, without its prefix, and diffusers'.
pub trait Table {
    /// diffusers' name of a file's tensor, where the table has a place for it.
    fn canonical(&self, name: &str) -> Option<String>;

    /// The file's name of a tensor, given diffusers'; the first row that has it counts.
    fn original(&self, canonical: &str) -> Option<String>;
}

/// How a row's block number is written in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    /// As in diffusers.
    Same,
    /// Counted from the other end: LDM numbers the up blocks from the output.
    Reversed,
}

/// One row: the file's name, diffusers' name, both without `.weight` or `.bias`; `{i}` is the block, `{j}` the layer in it.
struct Row(&'static str, &'static str, Index);

/// What the tensors are called in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// diffusers' own names, the attention's old ones included.
    Diffusers,
    /// The original names of Stable Diffusion's and Flux's autoencoders.
    Ldm,
}

use Index::{Reversed, Same};

/// diffusers, including what its first releases called the attention's projections.
const DIFFUSERS: &[Row] = &[
    Row("post_quant_conv", "post_quant_conv", Same),
    Row("decoder.conv_in", "decoder.conv_in", Same),
    Row("decoder.mid_block.resnets.{i}.norm1", "decoder.mid_block.resnets.{i}.norm1", Same),
    Row("decoder.mid_block.resnets.{i}.conv1", "decoder.mid_block.resnets.{i}.conv1", Same),
    Row("decoder.mid_block.resnets.{i}.norm2", "decoder.mid_block.resnets.{i}.norm2", Same),
    Row("decoder.mid_block.resnets.{i}.conv2", "decoder.mid_block.resnets.{i}.conv2", Same),
    Row("decoder.mid_block.attentions.0.group_norm", "decoder.mid_block.attentions.0.group_norm", Same),
    Row("decoder.mid_block.attentions.0.to_q", "decoder.mid_block.attentions.0.to_q", Same),
    Row("decoder.mid_block.attentions.0.to_k", "decoder.mid_block.attentions.0.to_k", Same),
    Row("decoder.mid_block.attentions.0.to_v", "decoder.mid_block.attentions.0.to_v", Same),
    Row("decoder.mid_block.attentions.0.to_out.0", "decoder.mid_block.attentions.0.to_out.0", Same),
    Row("decoder.mid_block.attentions.0.query", "decoder.mid_block.attentions.0.to_q", Same),
    Row("decoder.mid_block.attentions.0.key", "decoder.mid_block.attentions.0.to_k", Same),
    Row("decoder.mid_block.attentions.0.value", "decoder.mid_block.attentions.0.to_v", Same),
    Row("decoder.mid_block.attentions.0.proj_attn", "decoder.mid_block.attentions.0.to_out.0", Same),
    Row("decoder.up_blocks.{i}.resnets.{j}.norm1", "decoder.up_blocks.{i}.resnets.{j}.norm1", Same),
    Row("decoder.up_blocks.{i}.resnets.{j}.conv1", "decoder.up_blocks.{i}.resnets.{j}.conv1", Same),
    Row("decoder.up_blocks.{i}.resnets.{j}.norm2", "decoder.up_blocks.{i}.resnets.{j}.norm2", Same),
    Row("decoder.up_blocks.{i}.resnets.{j}.conv2", "decoder.up_blocks.{i}.resnets.{j}.conv2", Same),
    Row("decoder.up_blocks.{i}.resnets.{j}.conv_shortcut", "decoder.up_blocks.{i}.resnets.{j}.conv_shortcut", Same),
    Row("decoder.up_blocks.{i}.upsamplers.0.conv", "decoder.up_blocks.{i}.upsamplers.0.conv", Same),
    Row("decoder.conv_norm_out", "decoder.conv_norm_out", Same),
    Row("decoder.conv_out", "decoder.conv_out", Same),
    Row("quant_conv", "quant_conv", Same),
    Row("encoder.conv_in", "encoder.conv_in", Same),
    Row("encoder.down_blocks.{i}.resnets.{j}.norm1", "encoder.down_blocks.{i}.resnets.{j}.norm1", Same),
    Row("encoder.down_blocks.{i}.resnets.{j}.conv1", "encoder.down_blocks.{i}.resnets.{j}.conv1", Same),
    Row("encoder.down_blocks.{i}.resnets.{j}.norm2", "encoder.down_blocks.{i}.resnets.{j}.norm2", Same),
    Row("encoder.down_blocks.{i}.resnets.{j}.conv2", "encoder.down_blocks.{i}.resnets.{j}.conv2", Same),
    Row("encoder.down_blocks.{i}.resnets.{j}.conv_shortcut", "encoder.down_blocks.{i}.resnets.{j}.conv_shortcut", Same),
    Row("encoder.down_blocks.{i}.downsamplers.0.conv", "encoder.down_blocks.{i}.downsamplers.0.conv", Same),
    Row("encoder.mid_block.resnets.{i}.norm1", "encoder.mid_block.resnets.{i}.norm1", Same),
    Row("encoder.mid_block.resnets.{i}.conv1", "encoder.mid_block.resnets.{i}.conv1", Same),
    Row("encoder.mid_block.resnets.{i}.norm2", "encoder.mid_block.resnets.{i}.norm2", Same),
    Row("encoder.mid_block.resnets.{i}.conv2", "encoder.mid_block.resnets.{i}.conv2", Same),
    Row("encoder.mid_block.attentions.0.group_norm", "encoder.mid_block.attentions.0.group_norm", Same),
    Row("encoder.mid_block.attentions.0.to_q", "encoder.mid_block.attentions.0.to_q", Same),
    Row("encoder.mid_block.attentions.0.to_k", "encoder.mid_block.attentions.0.to_k", Same),
    Row("encoder.mid_block.attentions.0.to_v", "encoder.mid_block.attentions.0.to_v", Same),
    Row("encoder.mid_block.attentions.0.to_out.0", "encoder.mid_block.attentions.0.to_out.0", Same),
    Row("encoder.mid_block.attentions.0.query", "encoder.mid_block.attentions.0.to_q", Same),
    Row("encoder.mid_block.attentions.0.key", "encoder.mid_block.attentions.0.to_k", Same),
    Row("encoder.mid_block.attentions.0.value", "encoder.mid_block.attentions.0.to_v", Same),
    Row("encoder.mid_block.attentions.0.proj_attn", "encoder.mid_block.attentions.0.to_out.0", Same),
    Row("encoder.conv_norm_out", "encoder.conv_norm_out", Same),
    Row("encoder.conv_out", "encoder.conv_out", Same),
];

/// CompVis' latent-diffusion and black-forest-labs' flux.
const LDM: &[Row] = &[
    Row("post_quant_conv", "post_quant_conv", Same),
    Row("decoder.conv_in", "decoder.conv_in", Same),
    Row("decoder.mid.block_1.norm1", "decoder.mid_block.resnets.0.norm1", Same),
    Row("decoder.mid.block_1.conv1", "decoder.mid_block.resnets.0.conv1", Same),
    Row("decoder.mid.block_1.norm2", "decoder.mid_block.resnets.0.norm2", Same),
    Row("decoder.mid.block_1.conv2", "decoder.mid_block.resnets.0.conv2", Same),
    Row("decoder.mid.attn_1.norm", "decoder.mid_block.attentions.0.group_norm", Same),
    Row("decoder.mid.attn_1.q", "decoder.mid_block.attentions.0.to_q", Same),
    Row("decoder.mid.attn_1.k", "decoder.mid_block.attentions.0.to_k", Same),
    Row("decoder.mid.attn_1.v", "decoder.mid_block.attentions.0.to_v", Same),
    Row("decoder.mid.attn_1.proj_out", "decoder.mid_block.attentions.0.to_out.0", Same),
    Row("decoder.mid.block_2.norm1", "decoder.mid_block.resnets.1.norm1", Same),
    Row("decoder.mid.block_2.conv1", "decoder.mid_block.resnets.1.conv1", Same),
    Row("decoder.mid.block_2.norm2", "decoder.mid_block.resnets.1.norm2", Same),
    Row("decoder.mid.block_2.conv2", "decoder.mid_block.resnets.1.conv2", Same),
    Row("decoder.up.{i}.block.{j}.norm1", "decoder.up_blocks.{i}.resnets.{j}.norm1", Reversed),
    Row("decoder.up.{i}.block.{j}.conv1", "decoder.up_blocks.{i}.resnets.{j}.conv1", Reversed),
    Row("decoder.up.{i}.block.{j}.norm2", "decoder.up_blocks.{i}.resnets.{j}.norm2", Reversed),
    Row("decoder.up.{i}.block.{j}.conv2", "decoder.up_blocks.{i}.resnets.{j}.conv2", Reversed),
    Row("decoder.up.{i}.block.{j}.nin_shortcut", "decoder.up_blocks.{i}.resnets.{j}.conv_shortcut", Reversed),
    Row("decoder.up.{i}.upsample.conv", "decoder.up_blocks.{i}.upsamplers.0.conv", Reversed),
    Row("decoder.norm_out", "decoder.conv_norm_out", Same),
    Row("decoder.conv_out", "decoder.conv_out", Same),
    Row("quant_conv", "quant_conv", Same),
    Row("encoder.conv_in", "encoder.conv_in", Same),
    Row("encoder.down.{i}.block.{j}.norm1", "encoder.down_blocks.{i}.resnets.{j}.norm1", Same),
    Row("encoder.down.{i}.block.{j}.conv1", "encoder.down_blocks.{i}.resnets.{j}.conv1", Same),
    Row("encoder.down.{i}.block.{j}.norm2", "encoder.down_blocks.{i}.resnets.{j}.norm2", Same),
    Row("encoder.down.{i}.block.{j}.conv2", "encoder.down_blocks.{i}.resnets.{j}.conv2", Same),
    Row("encoder.down.{i}.block.{j}.nin_shortcut", "encoder.down_blocks.{i}.resnets.{j}.conv_shortcut", Same),
    Row("encoder.down.{i}.downsample.conv", "encoder.down_blocks.{i}.downsamplers.0.conv", Same),
    Row("encoder.mid.block_1.norm1", "encoder.mid_block.resnets.0.norm1", Same),
    Row("encoder.mid.block_1.conv1", "encoder.mid_block.resnets.0.conv1", Same),
    Row("encoder.mid.block_1.norm2", "encoder.mid_block.resnets.0.norm2", Same),
    Row("encoder.mid.block_1.conv2", "encoder.mid_block.resnets.0.conv2", Same),
    Row("encoder.mid.attn_1.norm", "encoder.mid_block.attentions.0.group_norm", Same),
    Row("encoder.mid.attn_1.q", "encoder.mid_block.attentions.0.to_q", Same),
    Row("encoder.mid.attn_1.k", "encoder.mid_block.attentions.0.to_k", Same),
    Row("encoder.mid.attn_1.v", "encoder.mid_block.attentions.0.to_v", Same),
    Row("encoder.mid.attn_1.proj_out", "encoder.mid_block.attentions.0.to_out.0", Same),
    Row("encoder.mid.block_2.norm1", "encoder.mid_block.resnets.1.norm1", Same),
    Row("encoder.mid.block_2.conv1", "encoder.mid_block.resnets.1.conv1", Same),
    Row("encoder.mid.block_2.norm2", "encoder.mid_block.resnets.1.norm2", Same),
    Row("encoder.mid.block_2.conv2", "encoder.mid_block.resnets.1.conv2", Same),
    Row("encoder.norm_out", "encoder.conv_norm_out", Same),
    Row("encoder.conv_out", "encoder.conv_out", Same),
];

/// More blocks or layers than any network has; a file that says more is refused before anything is sized by it.
const MOST_INDEX: usize = 64;

/// A KL autoencoder's names: the layout, and the number of up blocks that LDM counts from.
#[derive(Clone, Copy, Debug)]
pub struct Kl {
    pub naming: Naming,
    pub blocks: usize,
}

impl Table for Kl {
    fn canonical(&self, name: &str) -> Option<String> {
        self.naming.rename(name, self.blocks, |row| row.0, |row| row.1)
    }

    fn original(&self, canonical: &str) -> Option<String> {
        self.naming.rename(canonical, self.blocks, |row| row.1, |row| row.0)
    }
}

impl Naming {
    fn rows(self) -> &'static [Row] {
        match self {
            Naming::Diffusers => DIFFUSERS,
            Naming::Ldm => LDM,
        }
    }

    /// The part of a name before the up block's number.
    fn up(self) -> &'static str {
        match self {
            Naming::Diffusers => "decoder.up_blocks.",
            Naming::Ldm => "decoder.up.",
        }
    }

    /// How many up blocks the names speak of.
    pub fn blocks<'a>(self, names: impl Iterator<Item = &'a str>) -> usize {
        let numbers = names.filter_map(|name| name.strip_prefix(self.up())?.split('.').next()?.parse::<usize>().ok());
        numbers.filter(|number| *number < MOST_INDEX).max().map_or(0, |most| most + 1)
    }

    fn rename(
        self,
        name: &str,
        blocks: usize,
        from: impl Fn(&Row) -> &'static str,
        to: impl Fn(&Row) -> &'static str,
    ) -> Option<String> {
        let (stem, parameter) = name.rsplit_once('.')?;
        if !matches!(parameter, "weight" | "bias") {
            return None;
        }
        self.rows().iter().find_map(|row| {
            let (block, layer) = captures(from(row), stem)?;
            let block = match row.2 {
                Same => block,
                Reversed => blocks.checked_sub(block + 1)?,
            };
            let stem = to(row).replace("{i}", &block.to_string()).replace("{j}", &layer.to_string());
            Some(format!("{stem}.{parameter}"))
        })
    }
}

/// The numbers that stand where `pattern` has `{i}` and `{j}`; 0 where it has none.
fn captures(pattern: &str, stem: &str) -> Option<(usize, usize)> {
    let mut numbers = (0, 0);
    let mut segments = stem.split('.');
    for expected in pattern.split('.') {
        let segment = segments.next()?;
        // Only canonical numbers, so that "01" and "1" are not two names of one tensor.
        let number =
            || segment.parse().ok().filter(|number: &usize| *number < MOST_INDEX && number.to_string() == segment);
        match expected {
            "{i}" => numbers.0 = number()?,
            "{j}" => numbers.1 = number()?,
            _ if expected == segment => {}
            _ => return None,
        }
    }
    segments.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_used_and_leads_back() {
        for naming in [Naming::Diffusers, Naming::Ldm] {
            for row in naming.rows() {
                let name = format!("{}.weight", row.0.replace("{i}", "1").replace("{j}", "2"));
                let table = Kl { naming, blocks: 4 };
                let canonical = table.canonical(&name).unwrap_or_else(|| panic!("{name} has no row"));
                let back = table.original(&canonical).unwrap();
                assert_eq!(table.canonical(&back).unwrap(), canonical, "{name}");
            }
        }
    }

    #[test]
    fn ldm_counts_blocks_from_the_output() {
        let name = |text| Kl { naming: Naming::Ldm, blocks: 4 }.canonical(text);
        assert_eq!(name("decoder.up.3.block.0.norm1.weight").unwrap(), "decoder.up_blocks.0.resnets.0.norm1.weight");
        assert_eq!(
            name("decoder.up.0.block.2.nin_shortcut.bias").unwrap(),
            "decoder.up_blocks.3.resnets.2.conv_shortcut.bias"
        );
        assert_eq!(name("decoder.up.4.block.0.norm1.weight"), None);
        assert_eq!(name("decoder.up.1.attn.0.q.weight"), None);
        assert_eq!(name("decoder.up.03.block.0.norm1.weight"), None);
    }
}
