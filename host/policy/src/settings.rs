//! A policy's settings: `KEY=VALUE` text read by the type of the declared default.

use std::collections::BTreeMap;

use serde::Serialize;
use tilewright_plan::Value;

use crate::PolicyError;

/// A setting that a policy declares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// The text before the `=`.
    pub name: String,
    /// The setting's effect.
    pub summary: String,
    /// The value if none is given; its type is the setting's type.
    pub default: Value,
}

impl Setting {
    /// The name of the type that the setting takes.
    pub const fn kind(&self) -> &'static str {
        match self.default {
            Value::Flag(_) => "flag",
            Value::Integer(_) => "integer",
            Value::Number(_) => "number",
            Value::Text(_) => "text",
        }
    }

    fn read(&self, text: &str) -> Result<Value, &'static str> {
        match self.default {
            Value::Flag(_) => match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "1" => Ok(Value::Flag(true)),
                "false" | "no" | "off" | "0" => Ok(Value::Flag(false)),
                _ => Err("a flag: true or false"),
            },
            Value::Integer(_) => text.parse().map(Value::Integer).map_err(|_| "a whole number"),
            Value::Number(_) => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Value::Number(number)),
                _ => Err("a number"),
            },
            Value::Text(_) => Ok(Value::Text(text.to_owned())),
        }
    }
}

/// Splits `KEY=VALUE` at the first `=`.
///
/// # Errors
/// [`PolicyError::SettingForm`] without a key or without `=`.
pub fn key_value(given: &str) -> Result<(String, String), PolicyError> {
    match given.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err(PolicyError::SettingForm { given: given.to_owned() }),
    }
}

/// Every declared setting with its value: as given, the last one of a name, or its default.
pub(crate) fn resolve(
    policy: &str,
    declared: &[Setting],
    given: &[(String, String)],
) -> Result<BTreeMap<String, Value>, PolicyError> {
    let mut values: BTreeMap<_, _> =
        declared.iter().map(|setting| (setting.name.clone(), setting.default.clone())).collect();
    for (name, text) in given {
        let Some(setting) = declared.iter().find(|setting| setting.name == *name) else {
            let known = declared.iter().map(|setting| setting.name.clone()).collect();
            return Err(PolicyError::UnknownSetting { policy: policy.into(), name: name.clone(), known });
        };
        let value = setting.read(text).map_err(|expected| PolicyError::SettingType {
            policy: policy.into(),
            name: name.clone(),
            value: text.clone(),
            expected,
        })?;
        values.insert(name.clone(), value);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared() -> Vec<Setting> {
        let setting = |name: &str, default| Setting { name: name.into(), summary: String::new(), default };
        vec![
            setting("tile", Value::Integer(512)),
            setting("quick", Value::Flag(false)),
            setting("share", Value::Number(0.8)),
            setting("space", Value::Text("whole".into())),
        ]
    }

    fn given(pairs: &[(&str, &str)]) -> Result<BTreeMap<String, Value>, String> {
        let pairs: Vec<_> = pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        resolve("p", &declared(), &pairs).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_read_by_their_default() {
        let values = given(&[("tile", "-3"), ("quick", "ON"), ("share", "1e-2"), ("space", "a=b")]).unwrap();
        assert_eq!(values["tile"], Value::Integer(-3));
        assert_eq!(values["quick"], Value::Flag(true));
        assert_eq!(values["share"], Value::Number(0.01));
        assert_eq!(values["space"], Value::Text("a=b".into()));
        assert_eq!(given(&[]).unwrap()["tile"], Value::Integer(512));
        assert_eq!(given(&[("tile", "1"), ("tile", "2")]).unwrap()["tile"], Value::Integer(2));
    }

    #[test]
    fn wrong_settings_say_what_is_right() {
        let refused = |name, value| given(&[(name, value)]).unwrap_err();
        assert_eq!(
            refused("tiel", "1"),
            "policy p has no setting 'tiel' (did you mean tile?): it has tile, quick, share, space"
        );
        assert_eq!(refused("zebra", "1"), "policy p has no setting 'zebra': it has tile, quick, share, space");
        assert_eq!(refused("tile", "1.5"), "policy p: setting tile=1.5 is not a whole number");
        assert_eq!(refused("quick", "maybe"), "policy p: setting quick=maybe is not a flag: true or false");
        assert_eq!(refused("share", "nan"), "policy p: setting share=nan is not a number");
        assert_eq!(key_value("tile").unwrap_err().to_string(), "setting 'tile' is not of the form KEY=VALUE");
        assert_eq!(key_value(" a = b=c ").unwrap(), ("a".into(), "b=c".into()));
    }
}
