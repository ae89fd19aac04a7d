//! The names of the networks' tensors in each file layout, as rules for the names that differ: the
//! networks know diffusers' alone, each beside the layer that takes it.

mod wan_vae;

/// The way that a rule's numbers are written in the file. With n residual layers in a block of WAN,
/// its layers have the numbers 0…n−1 in it, and n stands for the layer that resizes at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Index {
    /// As in diffusers.
    Same,
    /// `{i}` is the block, counted from the other end: LDM numbers the up blocks from the output.
    Reversed,
    /// `{i}` counts through the whole network: a residual layer.
    FlatLayer,
    /// `{i}` counts through the whole network: the end of a block.
    FlatEnd,
    /// `{j}` counts through the block `{i}`: a residual layer.
    NestedLayer,
    /// `{j}` counts through the block `{i}`: its end.
    NestedEnd,
}

use Index::{FlatEnd, FlatLayer, NestedEnd, NestedLayer, Reversed, Same};

/// A block or layer, and a layer in it: `{i}` and `{j}` of a pattern.
type Numbers = (usize, usize);

impl Index {
    /// The file's numbers as diffusers' block and layer; none if there is no such place. `count` is
    /// the number of blocks if they are reversed, and of a block's residual layers otherwise.
    fn place(self, (i, j): Numbers, count: usize) -> Option<Numbers> {
        let (block, within) = (i / (count + 1), i % (count + 1));
        match self {
            Same => Some((i, j)),
            Reversed => Some((count.checked_sub(i + 1)?, j)),
            FlatLayer => (within < count).then_some((block, within)),
            FlatEnd => (within == count).then_some((block, 0)),
            NestedLayer => (j < count).then_some((i, j)),
            NestedEnd => (j == count).then_some((i, 0)),
        }
    }

    /// diffusers' block and layer as the file's numbers; none if the file has no such place.
    fn numbers(self, (block, layer): Numbers, count: usize) -> Option<Numbers> {
        match self {
            Same | Reversed => self.place((block, layer), count),
            FlatLayer => (layer < count).then_some((block * (count + 1) + layer, 0)),
            FlatEnd => Some((block * (count + 1) + count, 0)),
            NestedLayer => (layer < count).then_some((block, layer)),
            NestedEnd => Some((block, count)),
        }
    }
}

/// Segments of a file's name, and diffusers' names of them; `{i}` is the block, `{j}` the layer in
/// it. A segment that no rule changes is the same in both.
#[derive(Debug)]
struct Rule(&'static str, &'static str, Index);

/// The rules that a file's names follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// diffusers' own names, the attention's old ones included.
    Diffusers,
    /// The original names of Stable Diffusion's and Flux's autoencoders.
    Ldm,
    /// diffusers' names of WAN 2.1.
    Wan21Diffusers,
    /// diffusers' names of WAN 2.2.
    Wan22Diffusers,
    /// The original names of WAN 2.1.
    Wan21,
    /// The original names of WAN 2.2.
    Wan22,
}

/// The attention's projections in diffusers' first releases. They are read, and never named.
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

impl Naming {
    /// The naming of a WAN autoencoder with these names, which lack the file's prefix.
    pub fn of_wan<'a>(is_original: bool, names: impl Iterator<Item = &'a str>) -> Self {
        match (is_original, wan_vae::is_nested(names)) {
            (false, false) => Naming::Wan21Diffusers,
            (false, true) => Naming::Wan22Diffusers,
            (true, false) => Naming::Wan21,
            (true, true) => Naming::Wan22,
        }
    }

    /// True for WAN 2.2's names, in either layout.
    pub fn is_wan22(self) -> bool {
        matches!(self, Naming::Wan22 | Naming::Wan22Diffusers)
    }

    /// The rules in both directions.
    fn rules(self) -> &'static [&'static [Rule]] {
        match self {
            Naming::Diffusers => &[],
            Naming::Ldm => &[LDM],
            Naming::Wan21Diffusers => &[wan_vae::DIFFUSERS_21],
            Naming::Wan22Diffusers => &[wan_vae::DIFFUSERS_22],
            Naming::Wan21 => &[wan_vae::ORIGINAL, wan_vae::ORIGINAL_21],
            Naming::Wan22 => &[wan_vae::ORIGINAL, wan_vae::ORIGINAL_22],
        }
    }

    /// The rules of names that are read, and never named.
    fn aliases(self) -> &'static [&'static [Rule]] {
        if self == Naming::Diffusers { &[OLD_ATTENTION] } else { &[] }
    }

    /// The up blocks of a KL autoencoder that the names speak of.
    fn blocks<'a>(self, names: impl Iterator<Item = &'a str>) -> usize {
        let start = if self == Naming::Ldm { "decoder.up." } else { "decoder.up_blocks." };
        let numbers = names.filter_map(|name| name.strip_prefix(start)?.split('.').next()?.parse::<usize>().ok());
        numbers.filter(|number| *number < MOST_INDEX).max().map_or(0, |most| most + 1)
    }
}

/// The names of a file's tensors, without the file's prefix: between the file's own and diffusers'.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    naming: Naming,
    /// Up blocks that the names speak of.
    pub blocks: usize,
    /// Residual layers of an up block, and of a down block, if the file counts through them.
    layers: [usize; 2],
}

impl Names {
    /// The counts that a naming's rules need, read off the names.
    pub fn of<'a>(naming: Naming, names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let layers = [false, true].map(|encodes| wan_vae::layers(naming, encodes, names.clone()));
        Self { naming, blocks: naming.blocks(names), layers }
    }

    /// diffusers' name of a file's tensor. None if it is no parameter, has numbers that no network
    /// has, or is diffusers' name in a file of other names: that would be a second name of the same
    /// tensor.
    pub fn canonical(&self, name: &str) -> Option<String> {
        let (stem, parameter) = split_parameter(name)?;
        let renamed = self.rename(stem, self.naming.rules(), true)?;
        self.rename(&renamed, self.naming.rules(), false).filter(|back| back == stem)?;
        let renamed = self.rename(&renamed, self.naming.aliases(), true)?;
        renamed.split('.').all(is_canonical).then(|| format!("{renamed}.{parameter}"))
    }

    /// The file's name of a tensor, given diffusers'.
    pub fn original(&self, canonical: &str) -> Option<String> {
        let (stem, parameter) = split_parameter(canonical)?;
        Some(format!("{}.{parameter}", self.rename(stem, self.naming.rules(), false)?))
    }

    /// A stem with its segments renamed from left to right, from the file's names to diffusers' or
    /// back; the first rule that has a place for them counts. None if rules fit and none has one.
    fn rename(&self, stem: &str, rules: &[&[Rule]], forward: bool) -> Option<String> {
        let segments: Vec<&str> = stem.split('.').collect();
        let (mut at, mut renamed) = (0, Vec::new());
        while at < segments.len() {
            let fitting = rules.iter().copied().flatten().filter_map(|rule| {
                let (numbers, count) = capture(if forward { rule.0 } else { rule.1 }, &segments[at..])?;
                Some((rule, numbers, count))
            });
            let mut fitting = fitting.peekable();
            if fitting.peek().is_none() {
                renamed.push(segments[at].to_owned());
                at += 1;
                continue;
            }
            let (written, count) =
                fitting.find_map(|(rule, numbers, count)| Some((self.apply(rule, numbers, forward)?, count)))?;
            renamed.push(written);
            at += count;
        }
        Some(renamed.join("."))
    }

    /// A rule's other side with its numbers.
    fn apply(&self, Rule(file, diffusers, index): &Rule, numbers: Numbers, forward: bool) -> Option<String> {
        let count = match index {
            Reversed => self.blocks,
            _ => self.layers[usize::from(encodes(diffusers))],
        };
        let (to, (i, j)) = match forward {
            true => (diffusers, index.place(numbers, count)?),
            false => (file, index.numbers(numbers, count)?),
        };
        Some(to.replace("{i}", &i.to_string()).replace("{j}", &j.to_string()))
    }
}

/// True for diffusers' names of the encoder.
fn encodes(canonical: &str) -> bool {
    canonical.starts_with("encoder.")
}

/// A name without its parameter, and the parameter.
fn split_parameter(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('.').filter(|(_, parameter)| matches!(*parameter, "weight" | "bias" | "gamma"))
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

/// The numbers in the places of `{i}` and `{j}` of a pattern, 0 if it has none, and the number of
/// segments that it takes from the beginning of these.
fn capture(pattern: &str, segments: &[&str]) -> Option<(Numbers, usize)> {
    let (mut numbers, mut count) = ((0, 0), 0);
    for expected in pattern.split('.') {
        let segment = *segments.get(count)?;
        match expected {
            "{i}" => numbers.0 = number(segment)?,
            "{j}" => numbers.1 = number(segment)?,
            _ if expected == segment => {}
            _ => return None,
        }
        count += 1;
    }
    Some((numbers, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(naming: Naming, layers: usize) -> Names {
        Names { naming, blocks: 4, layers: [layers, layers - 1] }
    }

    fn filled(pattern: &str, (i, j): Numbers) -> String {
        pattern.replace("{i}", &i.to_string()).replace("{j}", &j.to_string())
    }

    #[test]
    fn every_rule_is_used_and_leads_back() {
        use Naming::{Diffusers, Ldm, Wan21, Wan21Diffusers, Wan22, Wan22Diffusers};
        for naming in [Diffusers, Ldm, Wan21Diffusers, Wan22Diffusers, Wan21, Wan22] {
            for layers in [2, 3, 4] {
                let names = names(naming, layers);
                let rules = naming.rules().iter().chain(naming.aliases()).copied().flatten();
                for rule in rules {
                    let Rule(file, diffusers, index) = rule;
                    let mut used = 0;
                    for place in [(0, 0), (1, 0), (2, 1)] {
                        let count = if *index == Reversed { 4 } else { names.layers[usize::from(encodes(diffusers))] };
                        // A down block of one layer has no second.
                        let Some(numbers) = index.numbers(place, count) else { continue };
                        let name = format!("{}.bias", filled(file, numbers));
                        let canonical = names.canonical(&name).unwrap_or_else(|| panic!("{name} has no rule"));
                        assert_eq!(canonical, format!("{}.bias", filled(diffusers, place)));
                        let back = names.original(&canonical).unwrap();
                        assert!(back == name || naming == Diffusers && back == canonical, "{name} {back}");
                        used += 1;
                    }
                    assert!(used > 0, "{rule:?}");
                }
            }
        }
    }

    #[test]
    fn names_that_no_rule_changes_are_the_same_in_both() {
        for naming in [Naming::Diffusers, Naming::Ldm] {
            let names = names(naming, 3);
            for name in ["post_quant_conv.weight", "decoder.conv_in.bias", "encoder.conv_out.weight"] {
                assert_eq!(names.canonical(name).as_deref(), Some(name));
                assert_eq!(names.original(name).as_deref(), Some(name));
            }
            assert_eq!(names.canonical("decoder.conv_in.scale"), None);
        }
        let diffusers = |text| names(Naming::Diffusers, 3).canonical(text);
        assert_eq!(diffusers("decoder.up_blocks.01.resnets.0.norm1.weight"), None);
        assert_eq!(diffusers("decoder.up_blocks.64.resnets.0.norm1.weight"), None);
        let ldm = |text| names(Naming::Ldm, 3).canonical(text);
        assert_eq!(ldm("decoder.up_blocks.0.resnets.0.norm1.weight"), None, "a second name of one tensor");
        assert_eq!(ldm("decoder.conv_norm_out.weight"), None, "a second name of one tensor");
    }

    #[test]
    fn ldm_counts_blocks_from_the_output() {
        let name = |text| names(Naming::Ldm, 3).canonical(text);
        assert_eq!(name("decoder.up.3.block.0.norm1.weight").unwrap(), "decoder.up_blocks.0.resnets.0.norm1.weight");
        assert_eq!(
            name("decoder.up.0.block.2.nin_shortcut.bias").unwrap(),
            "decoder.up_blocks.3.resnets.2.conv_shortcut.bias"
        );
        assert_eq!(name("decoder.up.4.block.0.norm1.weight"), None);
        assert_eq!(name("decoder.up.1.attn.0.q.weight").unwrap(), "decoder.up.1.attn.0.q.weight");
        assert_eq!(name("decoder.up.03.block.0.norm1.weight"), None);
    }

    #[test]
    fn wan_numbers_become_blocks_and_layers() {
        let wan21 = |name: &str| names(Naming::Wan21, 3).canonical(name);
        let cases = [
            ("decoder.upsamples.0.residual.0.gamma", "decoder.up_blocks.0.resnets.0.norm1.gamma"),
            ("decoder.upsamples.3.resample.1.weight", "decoder.up_blocks.0.upsamplers.0.resample.1.weight"),
            ("decoder.upsamples.4.shortcut.bias", "decoder.up_blocks.1.resnets.0.conv_shortcut.bias"),
            ("decoder.upsamples.7.time_conv.bias", "decoder.up_blocks.1.upsamplers.0.time_conv.bias"),
            ("decoder.upsamples.14.residual.6.weight", "decoder.up_blocks.3.resnets.2.conv2.weight"),
            ("decoder.head.0.gamma", "decoder.norm_out.gamma"),
            ("decoder.conv1.weight", "decoder.conv_in.weight"),
            ("conv2.weight", "post_quant_conv.weight"),
            ("encoder.middle.1.to_qkv.bias", "encoder.mid_block.attentions.0.to_qkv.bias"),
            ("encoder.downsamples.2.resample.1.bias", "encoder.down_blocks.0.downsampler.resample.1.bias"),
            ("encoder.downsamples.10.residual.3.gamma", "encoder.down_blocks.3.resnets.1.norm2.gamma"),
        ];
        for (name, canonical) in cases {
            assert_eq!(wan21(name).as_deref(), Some(canonical), "{name}");
            assert_eq!(names(Naming::Wan21, 3).original(canonical).as_deref(), Some(name));
        }
        for name in [
            "decoder.upsamples.04.shortcut.bias",
            "decoder.upsamples.99.residual.2.weight",
            "decoder.up_blocks.0.resnets.0.norm1.gamma",
            "decoder.conv_in.weight",
        ] {
            assert_eq!(wan21(name), None, "{name}");
        }
        let diffusers = names(Naming::Wan21Diffusers, 3);
        assert_eq!(
            diffusers.canonical("encoder.down_blocks.5.time_conv.weight").unwrap(),
            "encoder.down_blocks.1.downsampler.time_conv.weight"
        );
        assert_eq!(
            diffusers.canonical("encoder.down_blocks.6.norm1.gamma").unwrap(),
            "encoder.down_blocks.2.resnets.0.norm1.gamma"
        );
        let wan22 = |name: &str| names(Naming::Wan22, 3).canonical(name);
        assert_eq!(
            wan22("decoder.upsamples.1.upsamples.3.time_conv.weight").unwrap(),
            "decoder.up_blocks.1.upsamplers.0.time_conv.weight"
        );
        assert_eq!(wan22("decoder.upsamples.1.upsamples.4.time_conv.weight"), None, "behind the block's end");
        let diffusers = |name: &str| names(Naming::Wan22Diffusers, 3).canonical(name);
        assert_eq!(
            diffusers("decoder.up_blocks.0.upsampler.resample.1.bias").unwrap(),
            "decoder.up_blocks.0.upsamplers.0.resample.1.bias"
        );
        assert_eq!(diffusers("decoder.up_blocks.0.upsamplers.0.resample.1.bias"), None, "a second name");
    }

    #[test]
    fn the_first_layer_that_resizes_tells_a_blocks_layers() {
        let of = |text: &'static str| {
            let naming = Naming::of_wan(true, text.split(' '));
            (naming, Names::of(naming, text.split(' ')).layers)
        };
        let flat = "decoder.upsamples.9.resample.1.bias decoder.upsamples.4.time_conv.weight \
                    decoder.upsamples.0.shortcut.bias encoder.downsamples.1.resample.1.weight";
        assert_eq!(of(flat), (Naming::Wan21, [4, 1]));
        let nested = "decoder.upsamples.9.resample.1.bias decoder.upsamples.0.upsamples.2.resample.1.bias \
                      decoder.upsamples.1.upsamples.0.residual.0.gamma";
        assert_eq!(of(nested), (Naming::Wan22, [2, MOST_INDEX]));
    }
}
