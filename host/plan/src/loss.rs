//! The losses that a user may allow: the words of `--allow`, of a job's `allow` and of a route's.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::Stage;

/// The word for parts that are cross-faded.
const BLENDED: &str = "blended";

/// The word for reuse, which takes a number.
const REUSE: &str = "reuse=";

/// A difference from the output that was asked for, which a user allows a plan to make. Narrow
/// types are none of them: the objective says what they are worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Blended tiles and chunks where an exact plan fits: of decodes, of encodes, or of both.
    Blended(Option<Stage>),
    /// The transformer's last output serves once more where it would change by less than this part.
    Reuse(f64),
}

impl Loss {
    /// True if blended tiles and chunks are allowed in a stage.
    pub fn allows_blended(losses: &[Self], stage: Stage) -> bool {
        losses.iter().any(|loss| matches!(loss, Loss::Blended(of) if of.is_none_or(|of| of == stage)))
    }

    /// The change up to which outputs may be reused, if that is allowed; the last one counts.
    pub fn reuse(losses: &[Self]) -> Option<f64> {
        losses.iter().rev().find_map(|loss| match loss {
            Loss::Reuse(part) => Some(*part),
            Loss::Blended(_) => None,
        })
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Blended(None) => f.write_str(BLENDED),
            Loss::Blended(Some(stage)) => write!(f, "{stage}.{BLENDED}"),
            Loss::Reuse(part) => write!(f, "{REUSE}{part}"),
        }
    }
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let of = [None, Some(Stage::Decode), Some(Stage::Encode)].map(Loss::Blended);
        if let Some(known) = of.into_iter().find(|loss| loss.to_string() == text) {
            return Ok(known);
        }
        let part = text.strip_prefix(REUSE).and_then(|part| part.parse::<f64>().ok());
        part.filter(|part| part.is_finite() && *part > 0.0).map(Loss::Reuse).ok_or_else(|| {
            let [all, decode, encode] = of.map(|loss| loss.to_string());
            format!("'{}': expected {all}, {decode}, {encode}, or {REUSE}0.2", text.escape_debug())
        })
    }
}

impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_words_of_one_list() {
        let read = |words: &[&str]| words.iter().map(|word| word.parse().unwrap()).collect::<Vec<Loss>>();
        let both = read(&["blended", "reuse=0.2"]);
        assert!(Loss::allows_blended(&both, Stage::Decode) && Loss::allows_blended(&both, Stage::Encode));
        assert_eq!(Loss::reuse(&both), Some(0.2));
        let encode = read(&["encode.blended"]);
        assert!(!Loss::allows_blended(&encode, Stage::Decode) && Loss::allows_blended(&encode, Stage::Encode));
        assert_eq!(Loss::reuse(&encode), None);
        assert_eq!(serde_json::to_string(&both).unwrap(), r#"["blended","reuse=0.2"]"#);
        assert_eq!(serde_json::from_str::<Vec<Loss>>(r#"["blended","reuse=0.2"]"#).unwrap(), both);
        for wrong in ["", "blend", "denoise.blended", "reuse", "reuse=", "reuse=inf", "reuse=0", "reuse=-1", "reuse=x"]
        {
            let error = wrong.parse::<Loss>().unwrap_err();
            assert_eq!(error, format!("'{wrong}': expected blended, decode.blended, encode.blended, or reuse=0.2"));
        }
    }
}
