//! The stages that a request can be for.

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Hint, Work};

/// A stage of generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// A text to its embedding.
    Text,
    /// A step of a diffusion model.
    Denoise,
    /// Latents to pixels.
    #[default]
    Decode,
    /// Pixels to latents.
    Encode,
}

impl Stage {
    /// Every stage with its name in settings, records and tables.
    pub const NAMES: [(Stage, &'static str); 4] =
        [(Stage::Text, "text"), (Stage::Denoise, "denoise"), (Stage::Decode, "decode"), (Stage::Encode, "encode")];

    /// The hint that named the stage before records had a field for it. Contract 0.1 still has it.
    pub const HINT: &'static str = "stage";

    /// The stage's name, as in [`Stage::NAMES`].
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
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

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::NAMES.iter().find(|(_, name)| *name == text);
        known.map(|(stage, _)| *stage).ok_or_else(|| {
            let names: Vec<_> = Self::NAMES.iter().map(|(_, name)| *name).collect();
            format!("unknown stage '{text}': expected one of {}", names.join(", "))
        })
    }
}
