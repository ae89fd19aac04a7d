//! The files that jobs read, by the names that requests and folders have for them.

use std::collections::BTreeMap;

use tempfile::NamedTempFile;

/// A file that a job reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    /// The latent that is decoded, or that a sample begins from.
    Latent,
    /// Conditioning.
    Conditioning,
    /// The conditioning that guidance leads away from.
    Negative,
    /// Noise.
    Noise,
    /// The part of a latent that is made again.
    Mask,
    /// The picture or clip that is encoded, or the picture that a prompt's picture begins with.
    Image,
}

/// Files that came with a request.
pub type Uploads = BTreeMap<Input, NamedTempFile>;

impl Input {
    /// Each with the name of its part of a form and of its file.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Latent, "latent"),
        (Self::Conditioning, "conditioning"),
        (Self::Negative, "negative"),
        (Self::Noise, "noise"),
        (Self::Mask, "mask"),
        (Self::Image, "image"),
    ];

    /// The input's name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(input, _)| *input == self).map_or("", |(_, name)| name)
    }

    /// The input of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == name).map(|(input, _)| *input)
    }
}
