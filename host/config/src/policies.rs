//! `[policies]`: rules for all policies, and those with a name of the user's own.

use std::{collections::BTreeMap, fmt, io::ErrorKind, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use tilewright_signing::{Refusal, TrustList, Trusted, read_text, signature_path};

use crate::{policy::Policy, values::Name};

/// Characters of the longest name of a key.
const NAME: usize = 100;
/// The key under which `toml` hands a date over, as if it were a table.
const DATE: &str = "$__toml_private_datetime";

/// `[policies]`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// True if a policy's file has to be signed by a trusted key before it is used.
    pub require_signed: bool,
    /// True if a policy's file has to pass `tilewright policy check` before it is used.
    pub require_checked: bool,
    /// The trusted keys: `[[policies.trusted]]`, each with a name of the user's own.
    pub trusted: TrustList,
    /// `[policies.NAME]`. One with the name of a shipped policy replaces it.
    pub named: BTreeMap<String, Policy>,
}

/// The reason why a policy's file may not be used.
#[derive(Debug, thiserror::Error)]
pub enum NotAdmitted {
    /// The signature beside it can't be read.
    #[error(transparent)]
    Unreadable(tilewright_signing::Error),
    /// No trusted key has signed it.
    #[error(transparent)]
    Refused(Refusal),
}

impl Policies {
    /// Verifies that a trusted key has signed these bytes, in the file beside theirs, if that is
    /// required.
    ///
    /// # Errors
    /// It has not.
    pub fn verify_file(&self, path: &Path, bytes: &[u8]) -> Result<(), NotAdmitted> {
        if !self.require_signed {
            return Ok(());
        }
        let signature = signature_of(path).map_err(NotAdmitted::Unreadable)?;
        self.trusted.verify(bytes, signature.as_deref()).map(drop).map_err(NotAdmitted::Refused)
    }
}

/// The text of the signature beside a policy's file, if there is one.
///
/// # Errors
/// It can't be read.
pub fn signature_of(path: &Path) -> Result<Option<String>, tilewright_signing::Error> {
    match read_text(&signature_path(path)) {
        Ok(text) => Ok(Some(text)),
        Err(tilewright_signing::Error::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl<'de> Deserialize<'de> for Policies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Section)
    }
}

/// The three reserved keys beside the user's own names.
struct Section;

impl<'de> Visitor<'de> for Section {
    type Value = Policies;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Policies, A::Error> {
        let mut policies = Policies::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "require-signed" => policies.require_signed = map.next_value()?,
                "require-checked" => policies.require_checked = map.next_value()?,
                "trusted" => policies.trusted = map.next_value::<Keys>()?.0,
                name => {
                    let policy = map.next_value_seed(Own { name })?;
                    policies.named.insert(key, policy);
                }
            }
        }
        Ok(policies)
    }
}

/// A policy of the user's own, which is a table: anything else is an unknown key.
#[derive(Clone, Copy)]
struct Own<'a> {
    name: &'a str,
}

impl Own<'_> {
    fn reject_unknown<E: Error>(self) -> Result<Policy, E> {
        Err(E::custom(format_args!(
            "unknown field `{}`, expected one of `require-signed`, `require-checked`, `trusted`; a policy of one's own is a table \
             [policies.NAME]",
            self.name
        )))
    }
}

impl<'de> DeserializeSeed<'de> for Own<'_> {
    type Value = Policy;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Policy, D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! reject {
    ($($visit:ident: $value:ty),*) => {
        $(fn $visit<E: Error>(self, _: $value) -> Result<Policy, E> {
            self.reject_unknown()
        })*
    };
}

impl<'de> Visitor<'de> for Own<'_> {
    type Value = Policy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Policy, A::Error> {
        Name::read(self.name).map_err(A::Error::custom)?;
        Policy::deserialize(MapAccessDeserializer::new(map)).or_else(|error| match error.to_string().contains(DATE) {
            true => self.reject_unknown(),
            false => Err(error),
        })
    }

    reject! { visit_bool: bool, visit_i64: i64, visit_f64: f64, visit_str: &str }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Policy, A::Error> {
        self.reject_unknown()
    }
}

/// `trusted`
#[derive(Deserialize)]
struct Keys(#[serde(deserialize_with = "read_trusted")] TrustList);

/// Checks names: they appear in tables and messages, and two keys of one name could not be
/// distinguished.
fn read_trusted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TrustList, D::Error> {
    let mut keys: Vec<Trusted> = Vec::new();
    for entry in Vec::<Trusted>::deserialize(deserializer)? {
        let wrong = match entry.name.as_str() {
            "" => "an empty name: give one that says whose key it is".into(),
            name if name.chars().count() > NAME => format!("a name longer than {NAME} characters"),
            name if name.chars().any(char::is_control) => format!("a name with control characters: {name:?}"),
            name if keys.iter().any(|known| known.name == name) => {
                format!("'{name}' is the name of another key, too: give each its own")
            }
            _ => {
                keys.push(entry);
                continue;
            }
        };
        return Err(D::Error::custom(wrong));
    }
    Ok(TrustList::new(keys))
}
