//! The names of the networks' tensors in each file layout, as tables of what differs: the network
//! knows diffusers' names alone.

pub mod wan;

/// A layout's table: between the file's names, without its prefix, and diffusers'.
pub trait Table {
    /// diffusers' name of a file's tensor, where the table has a place for it.
    fn canonical(&self, name: &str) -> Option<String>;

    /// The file's name of a tensor, given diffusers'; the first row that has it counts.
    fn original(&self, canonical: &str) -> Option<String>;
}

/// The way that a rule's block number is written in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    /// As in diffusers.
    Same,
    /// Counted from the other end: LDM numbers the up blocks from the output.
    Reversed,
}

/// Segments of a file's name, and what diffusers calls them; `{i}` is the block, `{j}` the layer in
/// it. A name that no rule changes is the same in both.
struct Rule(&'static str, &'static str, Index);

/// The names of the tensors in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// diffusers' own names, the attention's old ones included.
    Diffusers,
    /// The original names of Stable Diffusion's and Flux's autoencoders.
    Ldm,
}

use Index::{Reversed, Same};

/// diffusers' first releases called the attention's projections so. They are read, and never named.
const OLD_ATTENTION: &[Rule] = &[
    Rule("mid_block.attentions.0.query", "mid_block.attentions.0.to_q", Same),
    Rule("mid_block.attentions.0.key", "mid_block.attentions.0.to_k", Same),
    Rule("mid_block.attentions.0.value", "mid_block.attentions.0.to_v", Same),
    Rule("mid_block.attentions.0.proj_attn", "mid_block.attentions.0.to_out.0", Same),
];

/// CompVis' latent-diffusion and black-forest-labs' flux.
const LDM: &[Rule] = &[
    Rule("mid.block_1", "mid_block.resnets.0", Same),
    Rule("mid.block_2", "mid_block.resnets.1", Same),
    Rule("mid.attn_1.norm", "mid_block.attentions.0.group_norm", Same),
    Rule("mid.attn_1.q", "mid_block.attentions.0.to_q", Same),
    Rule("mid.attn_1.k", "mid_block.attentions.0.to_k", Same),
    Rule("mid.attn_1.v", "mid_block.attentions.0.to_v", Same),
    Rule("mid.attn_1.proj_out", "mid_block.attentions.0.to_out.0", Same),
    Rule("up.{i}.block.{j}", "up_blocks.{i}.resnets.{j}", Reversed),
    Rule("up.{i}.upsample", "up_blocks.{i}.upsamplers.0", Reversed),
    Rule("down.{i}.block.{j}", "down_blocks.{i}.resnets.{j}", Same),
    Rule("down.{i}.downsample", "down_blocks.{i}.downsamplers.0", Same),
    Rule("nin_shortcut", "conv_shortcut", Same),
    Rule("norm_out", "conv_norm_out", Same),
];

/// More blocks or layers than any network has; a file that says more is refused before anything is
/// sized by it.
const MOST_INDEX: usize = 64;

/// A KL autoencoder's names: the layout, and the number of up blocks that LDM counts from.
#[derive(Clone, Copy, Debug)]
pub struct Kl {
    pub naming: Naming,
    pub blocks: usize,
}

impl Table for Kl {
    fn canonical(&self, name: &str) -> Option<String> {
        let (stem, parameter) = parted(name)?;
        let renamed = match self.naming {
            Naming::Diffusers => self.renamed(stem, OLD_ATTENTION, true)?,
            Naming::Ldm => {
                let renamed = self.renamed(stem, LDM, true)?;
                // Diffusers' own names would be second ones of the same tensors here.
                self.renamed(&renamed, LDM, false).filter(|back| back == stem)?;
                renamed
            }
        };
        renamed.split('.').all(is_canonical).then(|| format!("{renamed}.{parameter}"))
    }

    fn original(&self, canonical: &str) -> Option<String> {
        let (stem, parameter) = parted(canonical)?;
        match self.naming {
            Naming::Diffusers => Some(canonical.to_owned()),
            Naming::Ldm => Some(format!("{}.{parameter}", self.renamed(stem, LDM, false)?)),
        }
    }
}

/// A name without its parameter, and the parameter.
fn parted(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('.').filter(|(_, parameter)| matches!(*parameter, "weight" | "bias"))
}

impl Kl {
    /// A stem with each rule applied once, from the file's names to diffusers' or back. None if a
    /// block is counted from the other end and there is no such block.
    fn renamed(&self, stem: &str, rules: &[Rule], forward: bool) -> Option<String> {
        let mut segments: Vec<String> = stem.split('.').map(str::to_owned).collect();
        for Rule(file, diffusers, index) in rules {
            let (from, to) = if forward { (file, diffusers) } else { (diffusers, file) };
            let count = from.split('.').count();
            let mut starts = 0..(segments.len() + 1).saturating_sub(count);
            let found = starts.find_map(|at| Some((at, captures(from, &segments[at..at + count].join("."))?)));
            let Some((at, (block, layer))) = found else { continue };
            let block = match index {
                Same => block,
                Reversed => self.blocks.checked_sub(block + 1)?,
            };
            let written = to.replace("{i}", &block.to_string()).replace("{j}", &layer.to_string());
            segments.splice(at..at + count, written.split('.').map(str::to_owned));
        }
        Some(segments.join("."))
    }
}

impl Naming {
    /// The part of a name before the up block's number.
    fn up(self) -> &'static str {
        match self {
            Naming::Diffusers => "decoder.up_blocks.",
            Naming::Ldm => "decoder.up.",
        }
    }

    /// The number of up blocks that the names speak of.
    pub fn blocks<'a>(self, names: impl Iterator<Item = &'a str>) -> usize {
        let numbers = names.filter_map(|name| name.strip_prefix(self.up())?.split('.').next()?.parse::<usize>().ok());
        numbers.filter(|number| *number < MOST_INDEX).max().map_or(0, |most| most + 1)
    }
}

/// A number as names have it: only canonical ones, so that "01" and "1" are not two names of one
/// tensor.
fn number(segment: &str) -> Option<usize> {
    segment.parse().ok().filter(|number: &usize| *number < MOST_INDEX && number.to_string() == segment)
}

/// False for numbers that no name has.
fn is_canonical(segment: &str) -> bool {
    !segment.bytes().all(|byte| byte.is_ascii_digit()) || number(segment).is_some()
}

/// The numbers that stand where `pattern` has `{i}` and `{j}`; 0 where it has none.
fn captures(pattern: &str, stem: &str) -> Option<(usize, usize)> {
    let mut numbers = (0, 0);
    let mut segments = stem.split('.');
    for expected in pattern.split('.') {
        let segment = segments.next()?;
        match expected {
            "{i}" => numbers.0 = number(segment)?,
            "{j}" => numbers.1 = number(segment)?,
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
    fn every_rule_is_used_and_leads_back() {
        for (naming, rules) in [(Naming::Diffusers, OLD_ATTENTION), (Naming::Ldm, LDM)] {
            for Rule(file, diffusers, _) in rules {
                let table = Kl { naming, blocks: 4 };
                let filled = |pattern: &str, block: &str| pattern.replace("{i}", block).replace("{j}", "2");
                let name = format!("decoder.{}.bias", filled(file, "1"));
                let canonical = table.canonical(&name).unwrap_or_else(|| panic!("{name} has no rule"));
                let block = if file.starts_with("up.") { "2" } else { "1" };
                assert_eq!(canonical, format!("decoder.{}.bias", filled(diffusers, block)));
                let back = table.original(&canonical).unwrap();
                assert_eq!(table.canonical(&back).unwrap(), canonical, "{name}");
            }
        }
    }

    #[test]
    fn names_that_no_rule_changes_are_the_same_in_both() {
        for naming in [Naming::Diffusers, Naming::Ldm] {
            let table = Kl { naming, blocks: 4 };
            for name in ["post_quant_conv.weight", "decoder.conv_in.bias", "encoder.conv_out.weight"] {
                assert_eq!(table.canonical(name).as_deref(), Some(name));
                assert_eq!(table.original(name).as_deref(), Some(name));
            }
            assert_eq!(table.canonical("decoder.conv_in.scale"), None);
        }
        let diffusers = |text| Kl { naming: Naming::Diffusers, blocks: 4 }.canonical(text);
        assert_eq!(diffusers("decoder.up_blocks.01.resnets.0.norm1.weight"), None);
        assert_eq!(diffusers("decoder.up_blocks.64.resnets.0.norm1.weight"), None);
        let ldm = |text| Kl { naming: Naming::Ldm, blocks: 4 }.canonical(text);
        assert_eq!(ldm("decoder.up_blocks.0.resnets.0.norm1.weight"), None, "a second name of one tensor");
        assert_eq!(ldm("decoder.conv_norm_out.weight"), None, "a second name of one tensor");
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
        assert_eq!(name("decoder.up.1.attn.0.q.weight").unwrap(), "decoder.up.1.attn.0.q.weight");
        assert_eq!(name("decoder.up.03.block.0.norm1.weight"), None);
    }
}
