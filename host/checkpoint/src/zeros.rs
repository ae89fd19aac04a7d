//! Tails of zeros, which a download leaves that broke off after its file had got the full length.

use crate::contents::Entry;

/// The fewest zeros at a file's end that say anything, in bytes.
const FEWEST: usize = 1 << 12;

/// The fewest bytes of a weight that is all zero, and of zeros at the end of one that is not.
const FEWEST_OF_WHOLE: usize = 1 << 8;
const FEWEST_OF_PART: usize = 1 << 14;

/// The least share of zeros at the end of a weight: tables of embeddings end in some rows of zeros
/// for tokens that there are not.
const LEAST_SHARE: usize = 64;

/// The most bytes that are looked at.
const MOST: usize = 1 << 30;

/// Bytes that are compared at once.
const BLOCK: usize = 1 << 16;

const ZEROS: &[u8] = &[0; BLOCK];

/// Ends of names of weights; a matrix of them, or a norm, that is all zero makes nothing of its
/// input.
const WEIGHTS: [&str; 3] = ["weight", ".lora_A", ".lora_A.default"];

/// Parts of names of weights that may be zero by design: the second half of a low-rank change,
/// which training begins with as zero, layers behind which a network joins another one, and zero
/// points.
const BY_DESIGN: [&str; 15] = [
    "lora_B",
    "lora_up",
    "lora.up",
    "layer.up",
    "hada_",
    "lokr_",
    "oft_",
    ".diff",
    "zero",
    "gate",
    "control",
    "hint_block",
    "before_proj",
    "after_proj",
    "motion_module",
];

/// The zeros at the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The offset of the first of them, or of the first that was looked at.
    start: usize,
    /// There may be others before.
    is_cut: bool,
}

impl Tail {
    /// The zeros at the end of a file, if there are enough of them to mean anything. If the file
    /// ends in other bytes, only its last page is read.
    pub fn of(file: &[u8]) -> Option<Self> {
        let first = file.len().saturating_sub(MOST);
        let mut start = file.len();
        // A page first, then larger blocks.
        let mut block = FEWEST;
        while start > first {
            let next = start.saturating_sub(block).max(first);
            let bytes = &file[next..start];
            if bytes != &ZEROS[..bytes.len()] {
                start = bytes.iter().rposition(|byte| *byte != 0).map_or(next, |last| next + last + 1);
                break;
            }
            (start, block) = (next, BLOCK);
        }
        let is_cut = start == first && first > 0;
        (file.len() - start >= FEWEST).then_some(Self { start, is_cut })
    }

    /// The zeros at the end of a file whose download broke off, and the number of tensors that are
    /// all zero: among them is a weight that can't be so by design, or the zeros begin within one.
    pub fn of_broken<'a>(file: &[u8], tensors: impl Iterator<Item = (&'a str, &'a Entry)>) -> Option<(Self, usize)> {
        if !file.ends_with(&ZEROS[..FEWEST]) {
            return None;
        }
        let tensors: Vec<_> = tensors.collect();
        // Latents and masks may end in any number of zeros.
        if !tensors.iter().any(|(name, entry)| is_weight(name, entry)) {
            return None;
        }
        let tail = Self::of(file)?;
        Some((tail, tail.accuse(&tensors)?))
    }

    /// The number of tensors that are all zero, if there is a weight among them that can't be so by
    /// design, or if one ends in too many zeros.
    fn accuse(self, tensors: &[(&str, &Entry)]) -> Option<usize> {
        let is_within = |entry: &Entry| {
            let range = &entry.range;
            !range.is_empty() && (range.start >= self.start || self.is_cut && range.end > self.start)
        };
        let ends_in_zeros = |entry: &Entry| {
            let zeros = entry.range.end.saturating_sub(self.start.max(entry.range.start));
            zeros >= FEWEST_OF_PART && zeros >= entry.range.len() / LEAST_SHARE
        };
        let zeros: Vec<_> = tensors.iter().filter(|(_, entry)| is_within(entry)).collect();
        let is_broken = zeros.iter().any(|(name, entry)| is_weight(name, entry))
            || tensors.iter().any(|(name, entry)| is_weight(name, entry) && ends_in_zeros(entry));
        is_broken.then_some(zeros.len())
    }

    /// The fault of a file that can't be understood, and ends in zeros.
    pub fn in_words(self) -> String {
        format!("all bytes from byte {} on are zero: the download broke off; download it again", self.start)
    }

    /// The fault of a file with `tensors` tensors that are all zero.
    pub fn in_words_of(self, tensors: usize) -> String {
        let verb = match tensors {
            0 => return self.in_words(),
            1 => "tensor is",
            _ => "tensors are",
        };
        format!("{tensors} {verb} all zero: the download broke off at byte {}; download it again", self.start)
    }
}

/// True for a matrix of weights or a norm's factors, which are never zero as a whole.
fn is_weight(name: &str, entry: &Entry) -> bool {
    entry.range.len() >= FEWEST_OF_WHOLE
        && (entry.shape.iter().filter(|extent| **extent > 1).count() >= 2 || name.contains("norm"))
        && WEIGHTS.iter().any(|end| name.ends_with(end))
        && !BY_DESIGN.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use tilewright_kernels::Stored;

    use super::*;

    fn entry(shape: &[usize], start: usize) -> Entry {
        let length = Stored::F16.bytes(shape).unwrap();
        Entry { shape: shape.to_vec(), stored: Stored::F16, range: start..start + length, strides: None }
    }

    #[test]
    fn tails_are_found_from_the_end() {
        assert_eq!(Tail::of(&[0; FEWEST - 1]), None);
        assert_eq!(Tail::of(&[]), None);
        for (before, zeros) in [(1, FEWEST), (FEWEST, FEWEST + 1), (BLOCK + 3, 3 * BLOCK + 17), (0, BLOCK)] {
            let file = [vec![1; before], vec![0; zeros]].concat();
            assert_eq!(Tail::of(&file), Some(Tail { start: before, is_cut: false }), "{before} {zeros}");
        }
        let mut file = vec![0; 4 * BLOCK];
        file[2 * BLOCK] = 7;
        assert_eq!(Tail::of(&file).unwrap().start, 2 * BLOCK + 1);
    }

    #[test]
    fn weights_that_can_not_be_zero_tell_a_download_that_broke_off() {
        let tail = Tail { start: 1000, is_cut: false };
        let accused = |tensors: &[(&str, Entry)]| {
            tail.accuse(&tensors.iter().map(|(name, entry)| (*name, entry)).collect::<Vec<_>>())
        };
        let matrix = || entry(&[64, 64], 5000);
        assert_eq!(accused(&[("a.weight", matrix()), ("a.bias", entry(&[64], 13192))]), Some(2));
        for name in ["x.lora_A.weight", "lora_unet_x.lora_down.weight", "x.lora_A", "attn.in_proj_weight"] {
            assert_eq!(accused(&[(name, matrix())]), Some(1), "{name}");
        }
        for name in [
            "x.lora_B.weight",
            "lora_unet_x.lora_up.weight",
            "unet.x_lora.up.weight",
            "x.lora_linear_layer.up.weight",
            "control_model.zero_convs.0.0.weight",
            "controlnet_blocks.3.weight",
            "vace_blocks.0.after_proj.weight",
            "blocks.0.diff",
            "a.weight_zero_point",
            "a.qzeros",
            "a.bias",
            "latent",
            "sample",
            "prompt_embeds",
        ] {
            assert_eq!(accused(&[(name, matrix())]), None, "{name}");
        }
        assert_eq!(accused(&[("final_layer_norm.weight", entry(&[4096], 5000))]), Some(1));
        // Begins before the zeros, is a vector, or is too small to tell.
        assert_eq!(accused(&[("a.weight", entry(&[64, 64], 999))]), None);
        assert_eq!(accused(&[("a.weight", entry(&[4096], 5000))]), None);
        assert_eq!(accused(&[("a.weight", entry(&[1, 4096, 1], 5000))]), None);
        assert_eq!(accused(&[("a.weight", entry(&[8, 8], 5000))]), None);
        // Ends in zeros: some rows of a table may, and not a good part of a matrix.
        let within = Tail { start: 10_000_000, is_cut: false };
        let table = |rows: usize| entry(&[rows, 64], 10_000_000 + (2 << 14) - rows * 128);
        assert_eq!(within.accuse(&[("shared.weight", &table(4096))]), Some(0));
        assert_eq!(within.accuse(&[("shared.weight", &table(32128))]), None);
        assert_eq!(within.accuse(&[("shared.bias", &table(4096))]), None);
        // A tail that was not followed to its beginning.
        let cut = Tail { start: 1000, is_cut: true };
        assert_eq!(cut.accuse(&[("a.weight", &entry(&[64, 64], 0))]), Some(1));
    }
}
