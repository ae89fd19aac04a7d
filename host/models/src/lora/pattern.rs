//! Patterns of peft's settings: regular expressions that fit the end of a layer's name, from its
//! start or from behind a dot (peft's `get_pattern_key`).

use fancy_regex::{Regex, RegexBuilder};

/// The steps after which a pattern is given up on a name, and the bytes of a compiled one.
const MOST_STEPS: usize = 20_000;
const MOST_BYTES: usize = 1 << 18;

/// A pattern.
#[derive(Debug)]
pub(super) enum Pattern {
    /// Letters, digits and dots alone, as diffusers writes one for each layer: a dot fits anything.
    Plain { text: String, is_whole: bool },
    /// Any other.
    Expression(Box<Regex>),
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// It is no regular expression, or too large a one.
    pub fn new(text: &str) -> Result<Self, String> {
        let plain = text.strip_prefix('^').unwrap_or(text);
        if plain.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
            return Ok(Self::Plain { text: plain.to_owned(), is_whole: plain.len() < text.len() });
        }
        let expression = RegexBuilder::new(&format!(r"^(?:.*\.)?(?:{text})$"))
            .backtrack_limit(MOST_STEPS)
            .delegate_size_limit(MOST_BYTES)
            .delegate_dfa_size_limit(MOST_BYTES)
            .build();
        match expression {
            Ok(expression) => Ok(Self::Expression(Box::new(expression))),
            Err(error) => Err(format!("the pattern {text:?} can't be read: {error}")),
        }
    }

    /// True if it is more than a name.
    pub fn is_expression(&self) -> bool {
        matches!(self, Self::Expression(_))
    }

    /// True if a layer's name fits.
    ///
    /// # Errors
    /// It takes too long to tell.
    pub fn fits(&self, name: &str) -> Result<bool, String> {
        match self {
            Self::Plain { text, is_whole } => {
                let (name, text) = (name.as_bytes(), text.as_bytes());
                let Some(start) = name.len().checked_sub(text.len()) else { return Ok(false) };
                let begins = start == 0 || !is_whole && name[start - 1] == b'.';
                Ok(begins && text.iter().zip(&name[start..]).all(|(wanted, found)| *wanted == b'.' || wanted == found))
            }
            Self::Expression(expression) => expression
                .is_match(name)
                .map_err(|_| format!("the pattern {:?} takes too long on {name}", expression.as_str())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_pefts_do() {
        // Each by peft 0.21.2: get_pattern_key([pattern], name) == pattern.
        let cases = [
            ("to_q", "transformer_blocks.0.attn.to_q", true),
            ("to_q", "to_q", true),
            ("to_q", "transformer_blocks.0.attn.add_to_q", false),
            ("to_q", "transformer_blocks.0.attn.to_q.x", false),
            ("attn.to_q", "transformer_blocks.0.attn.to_q", true),
            ("attn.to_q", "transformer_blocks.0.attnxto_q", true),
            ("^transformer_blocks.0.attn.to_q", "transformer_blocks.0.attn.to_q", true),
            ("^transformer_blocks.0.attn.to_q", "single_transformer_blocks.0.attn.to_q", false),
            ("^to_q", "attn.to_q", false),
            (r"transformer_blocks\.\d+\.attn\.to_[qk]", "transformer_blocks.12.attn.to_k", true),
            (r"transformer_blocks\.\d+\.attn\.to_[qk]", "transformer_blocks.12.attn.to_v", false),
            (r".*attn.*", "transformer_blocks.12.attn.to_v", true),
            (r"(?!add_).*_proj", "x.add_q_proj", true),
            (r"^(?!.*add_).*_proj", "x.add_q_proj", false),
            (r"(?!add_)\w*_proj", "x.out_proj", true),
            (r"to_q|to_k", "x.to_k", true),
            ("", "x.", true),
        ];
        for (pattern, name, fits) in cases {
            assert_eq!(Pattern::new(pattern).unwrap().fits(name), Ok(fits), "{pattern} {name}");
        }
        assert!(Pattern::new("to_(q").unwrap_err().contains("to_(q"));
        assert!(Pattern::new("(((a{1000}){1000}){1000})").is_err());
        let slow = Pattern::new("(?:(?=a)a+)+b").unwrap().fits(&"a".repeat(200));
        assert!(slow.unwrap_err().contains("too long"));
    }
}
