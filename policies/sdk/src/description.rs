//! A policy's description of itself, and its settings.

use crate::{Stage, Value, bindings::exports::tilewright::policy::lifecycle};

/// Makes the types of settings: what a default becomes, and the method that reads one.
macro_rules! types {
    ($($type:ident($value:ident: $of:ty) => $read:expr, $words:literal;)*) => {$(
        impl From<$of> for Value {
            fn from($value: $of) -> Self {
                Self::$type($value.into())
            }
        }

        impl Settings {
            #[doc = concat!("A setting that is declared as ", $words, ".")]
            ///
            /// # Errors
            /// One line, if it is not.
            pub fn $value(&self, name: &str) -> Result<$of, String> {
                match self.value(name) {
                    Some(Value::$type($value)) => Ok($read),
                    _ => Err(["setting '", name, "' is not declared as ", $words].concat()),
                }
            }
        }
    )*};
}

types! {
    Flag(flag: bool) => *flag, "a flag";
    Integer(integer: i64) => *integer, "an integer";
    Number(number: f64) => *number, "a number";
    Text(text: &str) => text, "text";
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

    /// The meaning of a text setting's word; none of `auto`, which leaves it to the policy.
    ///
    /// # Errors
    /// One line with the words, if the text is not one of them.
    pub fn word_or_auto<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>, String> {
        let words = words.iter().map(|(word, meaning)| (*word, Some(*meaning)));
        self.word(name, &std::iter::once(("auto", None)).chain(words).collect::<Vec<_>>())
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
