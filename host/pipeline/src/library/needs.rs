//! The parts that a transformer needs beside itself, and what serves it.

use std::fmt;

use serde::Serialize;
use tilewright_models::{DenoiserConfig, EncoderKind, Family, PublishedEncoder};

use super::Content;

/// A part that a transformer needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "part")]
pub enum Need {
    /// A text encoder of a kind and of the width that the transformer was trained with.
    TextEncoder {
        /// The kind.
        kind: EncoderKind,
        /// The width of its states.
        width: i64,
    },
    /// An encoder of the picture that a clip begins from.
    VisionEncoder {
        /// The width of its states.
        width: i64,
    },
    /// An autoencoder.
    Vae {
        /// The family.
        family: Family,
        /// Channels of a latent.
        channels: i64,
        /// True for clips.
        is_video: bool,
    },
}

/// The needs of a transformer.
pub fn of(config: &DenoiserConfig) -> Vec<Need> {
    let (channels, is_video) = (config.facts().latent_channels, config.facts().is_video);
    let vae = Need::Vae { family: config.facts().family, channels, is_video };
    let vision = config.facts().widths.image.map(|width| Need::VisionEncoder { width });
    let encoders = config.text_encoders().into_iter().map(|(kind, width)| Need::TextEncoder { kind, width });
    encoders.chain(vision).chain([vae]).collect()
}

impl Need {
    /// True if a network fits.
    pub fn is_served_by(&self, content: &Content) -> bool {
        match (self, content) {
            (Need::TextEncoder { kind, width }, Content::TextEncoder { kind: own, width: of, .. }) => {
                (kind, width) == (own, of)
            }
            (Need::VisionEncoder { width }, Content::VisionEncoder { width: own, .. }) => width == own,
            (
                Need::Vae { channels, is_video, family },
                Content::Vae { channels: own, is_video: of_clips, family: of_family },
            ) => (channels, is_video) == (own, of_clips) && (family == of_family || *of_family == Family::Kl),
            _ => false,
        }
    }

    /// True if a network fits and says that it is of the family.
    pub fn is_surely_served_by(&self, content: &Content) -> bool {
        match (self, content) {
            (Need::Vae { family, .. }, Content::Vae { family: own, .. }) => family == own && self.is_served_by(content),
            _ => self.is_served_by(content),
        }
    }

    /// The option that names such a part.
    pub fn option(&self) -> &'static str {
        match self {
            Need::TextEncoder { .. } => "--text-encoder",
            Need::VisionEncoder { .. } => "--vision-encoder",
            Need::Vae { .. } => "--vae",
        }
    }

    /// The published file that serves it, if there is one.
    pub fn file(&self) -> Option<&'static str> {
        match self {
            Need::TextEncoder { kind, width } => PublishedEncoder::of_width(*kind, *width)?.file,
            Need::VisionEncoder { width } => PublishedEncoder::of_vision(*width)?.file,
            Need::Vae { family: Family::Flux, channels: 16, .. } => Some("ae.safetensors"),
            Need::Vae { family: Family::Wan21, channels: 16, .. } => Some("wan_2.1_vae.safetensors"),
            Need::Vae { family: Family::Wan22, channels: 48, .. } => Some("wan2.2_vae.safetensors"),
            Need::Vae { .. } => None,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::TextEncoder { kind, width } => write!(to, "a {} text encoder of width {width}", kind.name())?,
            Need::VisionEncoder { width } => write!(to, "a CLIP vision encoder of width {width}")?,
            Need::Vae { family, channels, is_video } => {
                let of = if *is_video { "clips" } else { "pictures" };
                write!(to, "a VAE of {of} with {channels} channels ({})", family.name())?;
            }
        }
        self.file().map_or(Ok(()), |file| write!(to, ", as {file}"))
    }
}
