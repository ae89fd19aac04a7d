//! WAN 2.2's two transformers, one for high noise and one for low: their files differ by these
//! words, in their own names or in those of their folders.

use std::path::{Path, PathBuf};

use super::{Content, Item, Library};

/// The words, as they are written.
const WORDS: [[&str; 2]; 3] = [["high", "low"], ["High", "Low"], ["HIGH", "LOW"]];

/// The side of a pair that is looked for.
#[derive(Clone, Copy)]
enum Wanted {
    Low,
    High,
}

impl Library {
    /// The expert for low noise that goes with that for high noise, by their names.
    pub(super) fn second_expert(&self, first: &Item) -> Option<&Item> {
        self.other_expert(first, Wanted::Low)
    }

    /// The expert for high noise that goes with that for low noise.
    pub(super) fn first_expert(&self, second: &Item) -> Option<&Item> {
        self.other_expert(second, Wanted::High)
    }

    fn other_expert(&self, of: &Item, wanted: Wanted) -> Option<&Item> {
        if of.pipeline.is_some() || of.problem.is_some() {
            return None;
        }
        let config = |item: &Item| item.contents.iter().find_map(Content::clips).cloned();
        let own = config(of)?;
        let at = |path: PathBuf| self.items.iter().find(|item| item.paths().any(|own| own == path));
        let mut others = of.paths().flat_map(|path| names_of_other(path, wanted)).filter_map(at);
        others.find(|item| item.problem.is_none() && item.path != of.path && config(item).as_ref() == Some(&own))
    }
}

/// The paths that the other expert may have: with the other word in the file's name, in both, or in
/// its folder's.
fn names_of_other(path: &Path, wanted: Wanted) -> Vec<PathBuf> {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let (Some(file), Some(folder)) = (name(path), path.parent()) else { return Vec::new() };
    let beside = name(folder).map_or(folder.to_owned(), |own| folder.with_file_name(exchange(&own, wanted)));
    let other = exchange(&file, wanted);
    let found = [folder.join(&other), beside.join(&other), beside.join(&file)];
    found.into_iter().filter(|found| found != path).collect()
}

fn exchange(name: &str, wanted: Wanted) -> String {
    WORDS.iter().fold(name.to_owned(), |name, [high, low]| match wanted {
        Wanted::Low => name.replace(high, low),
        Wanted::High => name.replace(low, high),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_may_stand_in_files_and_folders() {
        let low = |path: &str| names_of_other(Path::new(path), Wanted::Low);
        let is_among = |path: &str, other: &str| low(path).contains(&PathBuf::from(other));
        assert!(is_among("m/wan2.2_t2v_high_noise_14B.safetensors", "m/wan2.2_t2v_low_noise_14B.safetensors"));
        assert!(is_among("m/HighNoise/Wan-HighNoise-Q8_0.gguf", "m/LowNoise/Wan-LowNoise-Q8_0.gguf"));
        assert!(is_among("high_noise_model/a.safetensors.index.json", "low_noise_model/a.safetensors.index.json"));
        assert!(is_among("highlights/wan_high.gguf", "highlights/wan_low.gguf"));
        assert!(low("m/flux.safetensors").is_empty() && low("high/..").is_empty());
        let high = names_of_other(Path::new("m/wan_LOW.gguf"), Wanted::High);
        assert_eq!(high, [PathBuf::from("m/wan_HIGH.gguf"), PathBuf::from("m/wan_HIGH.gguf")]);
    }
}
