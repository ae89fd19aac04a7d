//! `[policies.NAME]`: one policy, its source, and its grants.

use std::{collections::BTreeMap, convert::Infallible, fmt, path::PathBuf, str::FromStr, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, Visitor},
};
use tilewright_files::digest::is_sha256;
use tilewright_plan::bytes;

use crate::values::{self, Name};

/// The prefix of a policy in a registry.
const REGISTRY: &str = "oci://";
/// The most instructions that a call may be granted; the time limit ends it long before.
const MOST_FUEL: u64 = 1_000_000_000_000;

/// `[policies.NAME]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub struct Policy {
    /// The source of its module.
    pub source: Source,
    /// The module's expected digest: `sha256:` and 64 hexadecimal digits in lower case.
    #[serde(default, deserialize_with = "digest")]
    pub digest: Option<String>,
    /// The policy's settings as `KEY` and `VALUE`, in the order of their keys; the others keep
    /// their defaults.
    #[serde(default, deserialize_with = "settings")]
    pub set: Vec<(String, String)>,
    /// Bytes of memory that it may use, 64 KiB to 4 GiB; by default the limit of every policy.
    #[serde(default, rename = "memory", deserialize_with = "memory")]
    pub memory_bytes: Option<usize>,
    /// Instructions that a call may take, roughly; by default the limit of every policy.
    #[serde(default, deserialize_with = "values::large::<_, _, MOST_FUEL>")]
    pub fuel: Option<u64>,
    /// Processor time that a call may take, 1 ms to 1 min; by default the limit of every policy.
    #[serde(default, deserialize_with = "values::time::<_, _, 1, 60_000>")]
    pub time: Option<Duration>,
    /// The part of WASI that it gets.
    #[serde(default)]
    pub wasi: Wasi,
    /// True if a changed file takes over by itself, after its gate. Ignored for a policy that is
    /// not a file.
    #[serde(default = "yes")]
    pub watch: bool,
}

/// The source of a policy's module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A shipped one, by its name.
    Shipped(String),
    /// A file: a text that has a `/` or `\`, or ends with `.wasm`.
    File(PathBuf),
    /// One in a registry, without its prefix `oci://`.
    Oci(String),
}

/// The part of WASI that a policy gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wasi {
    /// Nothing.
    #[default]
    None,
    /// An inert WASI: no files, environment or network, a constant clock, seeded randomness.
    Inert,
}

impl FromStr for Source {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix(REGISTRY) {
            Some(reference) => Source::Oci(reference.into()),
            None if text.ends_with(".wasm") || text.contains(['/', '\\']) => Source::File(text.into()),
            None => Source::Shipped(text.into()),
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Shipped(name) => f.write_str(name),
            Source::File(path) => path.display().fmt(f),
            Source::Oci(reference) => write!(f, "{REGISTRY}{reference}"),
        }
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        values::text(deserializer, "a policy's name, file or oci://REGISTRY/NAME:TAG", |text| {
            let Ok(source) = text.parse();
            let sound = match &source {
                Source::Shipped(name) => Name::read(name).is_ok(),
                Source::File(_) => !text.contains("://") && !text.contains(char::is_control),
                Source::Oci(reference) => {
                    reference.contains('/') && reference.bytes().all(|byte| byte.is_ascii_graphic())
                }
            };
            sound.then_some(source).ok_or_else(|| {
                format!(
                    "'{}' is no source of a policy: name one that ships, a file (with a / or ending with .wasm), or \
                     oci://REGISTRY/NAME:TAG",
                    text.escape_debug()
                )
            })
        })
    }
}

fn yes() -> bool {
    true
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    values::text(deserializer, "a digest: sha256: and 64 hexadecimal digits", |text| {
        let digest = text.to_ascii_lowercase();
        match text.starts_with("sha256:") && is_sha256(&digest) {
            true => Ok(Some(digest)),
            false => Err(format!("'{}' is no digest: write sha256: and 64 hexadecimal digits", text.escape_debug())),
        }
    })
}

/// The size of a memory of 32-bit WebAssembly: a page to 4 GiB.
fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    values::text(deserializer, "a size such as \"64MiB\"", |text| {
        match bytes::parse(text).map_err(|error| error.to_string())? {
            bytes @ 0x1_0000..=0x1_0000_0000 => Ok(Some(bytes as usize)),
            _ => Err("allowed is 64KiB to 4GiB".into()),
        }
    })
}

fn settings<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    let settings = BTreeMap::<String, Setting>::deserialize(deserializer)?;
    Ok(settings.into_iter().map(|(key, Setting(value))| (key, value)).collect())
}

/// A setting's value as text, from any type of TOML.
struct Setting(String);

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Plain;

        impl Visitor<'_> for Plain {
            type Value = Setting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, true or false")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Setting, E> {
                Ok(Setting(value.to_string()))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Setting, E> {
                Ok(Setting(value.to_string()))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Setting, E> {
                // Keeps the point of 1.0, since the policy may tell it from a whole number.
                Ok(Setting(format!("{value:?}")))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Setting, E> {
                Ok(Setting(value.into()))
            }
        }

        deserializer.deserialize_any(Plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::expect_error;

    #[test]
    fn a_source_is_told_by_how_it_is_written() {
        for (text, source) in [
            ("adaptive", Source::Shipped("adaptive".into())),
            ("mine.wasm", Source::File("mine.wasm".into())),
            ("./mine", Source::File("./mine".into())),
            ("policies\\mine", Source::File("policies\\mine".into())),
            ("oci://registry.example/team/fast:1.0", Source::Oci("registry.example/team/fast:1.0".into())),
            ("oci://registry.example/mine.wasm", Source::Oci("registry.example/mine.wasm".into())),
        ] {
            assert_eq!(text.parse(), Ok(source.clone()));
            assert_eq!(source.to_string(), text);
        }
    }

    #[test]
    fn policies_that_are_wrong() {
        let sources = "name one that ships, a file (with a / or ending with .wasm), or oci://REGISTRY/NAME:TAG";
        for (text, line, words) in [
            ("set = {}", 1, "missing field `source`"),
            ("source = 1", 2, "expected a policy's name, file or oci://REGISTRY/NAME:TAG"),
            ("source = \"\"", 2, sources),
            ("source = \"Adaptive\"", 2, sources),
            ("source = \"oci://fast\"", 2, sources),
            ("source = \"https://registry.example/fast\"", 2, sources),
            ("source = \"wide\"", 2, "no policy 'wide' ships: expected adaptive, fixed, a file"),
            (
                "source = \"fixed\"\nsettings = {}",
                3,
                "expected one of `source`, `digest`, `set`, `memory`, `fuel`, `time`",
            ),
            ("source = \"fixed\"\ndigest = \"sha256:12\"", 3, "'sha256:12' is no digest: write sha256: and 64"),
            ("source = \"fixed\"\nset = { tile = [1] }", 3, "expected a text, a number, true or false"),
            ("source = \"fixed\"\nset = { tile = 2020-01-01 }", 3, "expected a text, a number, true or false"),
            ("source = \"fixed\"\nset = \"tile=1\"", 3, "expected a table"),
            ("source = \"fixed\"\nmemory = \"1KiB\"", 3, "allowed is 64KiB to 4GiB"),
            ("source = \"fixed\"\nfuel = 0", 3, "expected a whole number from 1 to 1000000000000"),
            ("source = \"fixed\"\ntime = \"2m\"", 3, "allowed is 1ms to 1m"),
            ("source = \"fixed\"\nwasi = \"full\"", 3, "unknown variant `full`, expected `none` or `inert`"),
            ("source = \"fixed\"\nwatch = \"no\"", 3, "expected a boolean"),
        ] {
            let message = expect_error(&format!("[policies.own]\n{text}"), line);
            assert!(message.contains(words), "{message}");
        }
        let message = expect_error("[policies.Own]\nsource = \"fixed\"", 1);
        assert!(message.contains("'Own' is no name"), "{message}");
    }
}
