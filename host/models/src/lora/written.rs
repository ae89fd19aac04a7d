//! Values of settings as they are written: JSON, or the texts of a file's header.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// A value as far as it is of use.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Written {
    /// Entries in their order: of patterns, the first that fits counts.
    Map(Vec<(String, Written)>),
    Text(String),
    Number(f64),
    Flag(bool),
    /// Nothing, or a list.
    Other,
}

impl Written {
    /// The value, if it is a finite number or the text of one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
        .filter(|number| number.is_finite())
    }

    /// True if it is yes, in any spelling.
    pub fn is_true(&self) -> bool {
        match self {
            Self::Flag(flag) => *flag,
            Self::Number(number) => *number != 0.0,
            Self::Text(text) => ["true", "1", "yes"].contains(&text.trim().to_ascii_lowercase().as_str()),
            _ => false,
        }
    }

    /// The value as a text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The entries of a map.
    pub fn into_map(self) -> Option<Vec<(String, Written)>> {
        match self {
            Self::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The entries; those of a text that is a map itself, too.
    pub fn into_entries(self) -> Vec<(String, Written)> {
        match self {
            Self::Map(entries) => entries,
            Self::Text(text) if text.trim_start().starts_with('{') => {
                serde_json::from_str(&text).map(Self::into_entries).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Written, E> {
        Ok(Written::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Written, E> {
        Ok(Written::Number(number as f64))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Written, E> {
        Ok(Written::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Written, E> {
        Ok(Written::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Written, E> {
        Ok(Written::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Written, E> {
        Ok(Written::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Written, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Written::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Written::Map(entries))
    }
}
