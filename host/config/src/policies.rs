//! `[policies]`: which ones are put to work.

use serde::{Deserialize, Deserializer, de::Error};
use tilewright_signing::{TrustList, Trusted};

/// Characters of the longest name.
const NAME: usize = 100;

/// `[policies]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Policies {
    /// Whether a policy's file is only put to work where one of the trusted keys has signed it.
    pub require_signed: bool,
    /// Whether a policy's file is only put to work where it passes `tilewright policy check`.
    pub require_checked: bool,
    /// The keys that count: `[[policies.trusted]]`, each with a name of the user's own.
    #[serde(deserialize_with = "trusted")]
    pub trusted: TrustList,
}

/// Names end up in tables and messages, and two keys of one name could not be told apart.
fn trusted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TrustList, D::Error> {
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
