//! Numbers as JSON text that reads back to the same bits.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
    text.parse().map_err(|_| D::Error::custom(format_args!("'{}' is no number", text.escape_debug())))
}
