//! A policy's description of itself, and its settings.

use crate::{Stage, Value, bindings::exports::tilewright::policy::lifecycle};

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<i64> for Value {
    fn from(integer: i64) -> Self {
        Self::Integer(integer)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

/// A policy's name, version, summary, stages and settings.
#[derive(Clone, Debug)]
pub struct Description {
    name: &'static str,
    version: &'static str,
    summary: &'static str,
    stages: &'static [Stage],
    settings: Vec<(&'static str, &'static str, Value)>,
}

impl Description {
    /// A policy without settings that answers decodes and encodes. Name and version are printable
    /// ASCII without blanks, 64 characters at most.
    pub const fn new(name: &'static str, version: &'static str, summary: &'static str) -> Self {
        Self { name, version, summary, stages: &[Stage::Decode, Stage::Encode], settings: Vec::new() }
    }

    /// The stages that the policy answers, if they are not decode and encode; the host decides all
    /// others.
    #[must_use]
    pub fn stages(self, stages: &'static [Stage]) -> Self {
        Self { stages, ..self }
    }

    /// Adds a setting; the type of its default is the type that it takes.
    #[must_use]
    pub fn setting(mut self, name: &'static str, summary: &'static str, default: impl Into<Value>) -> Self {
        self.settings.push((name, summary, default.into()));
        self
    }

    /// The settings as the host gives them if the user sets nothing; for tests.
    pub fn defaults(&self) -> Settings {
        Settings { values: self.settings.iter().map(|(name, _, value)| (name.to_string(), value.clone())).collect() }
    }
}

impl From<Description> for lifecycle::Description {
    fn from(description: Description) -> Self {
        let settings = description.settings.into_iter().map(|(name, summary, default)| lifecycle::Setting {
            name: name.into(),
            summary: summary.into(),
            default,
        });
        Self {
            name: description.name.into(),
            version: description.version.into(),
            summary: description.summary.into(),
            stages: description.stages.to_vec(),
            settings: settings.collect(),
        }
    }
}

/// The settings of a configured policy: every declared one.
#[derive(Clone, Debug)]
pub struct Settings {
    values: Vec<(String, Value)>,
}

impl Settings {
    /// The same settings with another value for one of them; for tests.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.values.retain(|(known, _)| known != name);
        self.values.push((name.into(), value.into()));
        self
    }

    /// A setting that is declared as a flag.
    ///
    /// # Errors
    /// One line, if it is not.
    pub fn flag(&self, name: &str) -> Result<bool, String> {
        match self.value(name) {
            Some(Value::Flag(flag)) => Ok(*flag),
            _ => Err(describe_undeclared(name, "a flag")),
        }
    }

    /// A setting that is declared as an integer.
    ///
    /// # Errors
    /// One line, if it is not.
    pub fn integer(&self, name: &str) -> Result<i64, String> {
        match self.value(name) {
            Some(Value::Integer(integer)) => Ok(*integer),
            _ => Err(describe_undeclared(name, "an integer")),
        }
    }

    /// A setting that is declared as an integer, within a range.
    ///
    /// # Errors
    /// One line with the range, if the number is outside.
    pub fn count(&self, name: &str, least: u32, most: u32) -> Result<u32, String> {
        let integer = self.integer(name)?;
        match u32::try_from(integer) {
            Ok(count) if (least..=most).contains(&count) => Ok(count),
            _ => Err([name, "=", &integer.to_string(), ": allowed is ", &least.to_string(), " to ", &most.to_string()]
                .concat()),
        }
    }

    /// A setting that is declared as a number.
    ///
    /// # Errors
    /// One line, if it is not.
    pub fn number(&self, name: &str) -> Result<f64, String> {
        match self.value(name) {
            Some(Value::Number(number)) => Ok(*number),
            _ => Err(describe_undeclared(name, "a number")),
        }
    }

    /// A setting that is declared as text.
    ///
    /// # Errors
    /// One line, if it is not.
    pub fn text(&self, name: &str) -> Result<&str, String> {
        match self.value(name) {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(describe_undeclared(name, "text")),
        }
    }

    /// The meaning of a text setting's word.
    ///
    /// # Errors
    /// One line with the words, if the text is not one of them.
    pub fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<T, String> {
        let text = self.text(name)?;
        words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            [name, "=", text, ": allowed is ", &words.join(", ")].concat()
        })
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }
}

impl From<Vec<(String, Value)>> for Settings {
    fn from(values: Vec<(String, Value)>) -> Self {
        Self { values }
    }
}

fn describe_undeclared(name: &str, kind: &str) -> String {
    ["setting '", name, "' is not declared as ", kind].concat()
}
