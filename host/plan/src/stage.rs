//! The stages that a request can be for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Hint, Work};

crate::names! {
    /// A stage of generation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    pub enum Stage {
        /// A text to its embedding.
        Text = "text",
        /// A step of a diffusion model.
        Denoise = "denoise",
        /// Latents to pixels.
        #[default]
        Decode = "decode",
        /// Pixels to latents.
        Encode = "encode",
    }
}

crate::from_name!(Stage, "stage", "one of ");

crate::names! {
    /// A part of a model, as configurations name it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ModelPart {
        /// The autoencoder.
        Vae = "vae",
        /// The transformer, or two experts.
        Transformer = "transformer",
        /// The text encoders.
        TextEncoder = "text-encoder",
    }
}

impl Stage {
    /// The hint that named the stage before records had a field for it. Contract 0.1 still has it.
    pub const HINT: &'static str = "stage";

    /// The stage as titles have it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Text => "Text",
            Self::Denoise => "Sampling",
            Self::Decode => "Decode",
            Self::Encode => "Encode",
        }
    }

    /// The parts of a model whose jobs may have this stage.
    pub const fn parts(self) -> &'static [ModelPart] {
        match self {
            Self::Text => &[ModelPart::TextEncoder],
            Self::Denoise => &[ModelPart::Transformer],
            Self::Decode => &[ModelPart::Vae],
            // A picture that a prompt's picture begins with.
            Self::Encode => &ModelPart::ALL,
        }
    }

    /// The stage that a request's hints name: [`Stage::Decode`] if they name none that is known.
    pub fn of_hints(hints: &[Hint]) -> Self {
        let hint = hints.iter().find(|hint| hint.name == Self::HINT);
        hint.and_then(|hint| hint.value.parse().ok()).unwrap_or_default()
    }

    /// The stage of a request whose program did not write it down.
    pub fn of_request<W: Work>(request: &W::Request) -> Self {
        match W::hints(request) {
            [] => W::STAGES[0],
            hints => Self::of_hints(hints),
        }
    }
}
