//! Readers of values – names, paths, sizes, spans of time, numbers, lists – and their errors.
//!
//! A reader of a value returns any type that can be made of it, so that one function serves a key
//! and an optional key.

use std::{collections::BTreeMap, fmt, marker::PhantomData, path::PathBuf, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Unexpected, Visitor, value::StrDeserializer},
};
use tilewright_plan::{Loss, bytes};

/// Characters of the longest name or word.
const LONGEST: usize = 64;
/// The smallest memory limit of a job, in bytes.
const LEAST_MEMORY: u64 = 1 << 20;

/// A name of the user's own: 1 to 64 of a–z, 0–9, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(pub String);

/// A word that is compared with a job's or a device's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub String);

/// A path, relative to the configuration's folder or absolute.
struct RawPath(PathBuf);

impl Name {
    /// The name, if the text is one.
    ///
    /// # Errors
    /// The rule for names.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
        match (1..=LONGEST).contains(&text.len()) && text.bytes().all(plain) {
            true => Ok(Self(text.into())),
            false => Err(format!("'{}' is no name: write 1 to {LONGEST} of a-z, 0-9, - and _", text.escape_debug())),
        }
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text(deserializer, "a name", Self::read)
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text(deserializer, "a text", |text| match text.chars().count() {
            1..=LONGEST if !text.chars().any(char::is_control) => Ok(Self(text.into())),
            _ => Err(format!("'{}': allowed are 1 to {LONGEST} characters, none of control", text.escape_debug())),
        })
    }
}

impl<'de> Deserialize<'de> for RawPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text(deserializer, "a path", |text| match text.is_empty() || text.contains('\0') {
            true => Err("an empty path: leave the key out, or name a file or folder".into()),
            false => Ok(Self(text.into())),
        })
    }
}

/// A text that `read` accepts; `expected` describes it in the error for a number or a table.
pub(crate) fn text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &'static str,
    read: fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(Text { expected, read })
}

struct Text<T> {
    expected: &'static str,
    read: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).map_err(E::custom)
    }
}

/// A table of the user's own names.
pub(crate) fn read_named<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let named = BTreeMap::<Name, T>::deserialize(deserializer)?;
    Ok(named.into_iter().map(|(Name(name), value)| (name, value)).collect())
}

/// A path.
pub(crate) fn path<'de, D: Deserializer<'de>, T: From<PathBuf>>(deserializer: D) -> Result<T, D::Error> {
    Ok(RawPath::deserialize(deserializer)?.0.into())
}

/// Paths.
pub(crate) fn paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    Ok(Vec::<RawPath>::deserialize(deserializer)?.into_iter().map(|RawPath(path)| path).collect())
}

/// One path, or two.
pub(crate) fn one_or_two_paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    one_or_more_paths(deserializer, 2, "a path, or the paths of two experts in a list")
}

/// One path, or a list of them.
pub(crate) fn some_paths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    one_or_more_paths(deserializer, usize::MAX, "a path, or a list of paths")
}

fn one_or_more_paths<'de, D: Deserializer<'de>>(
    deserializer: D,
    most: usize,
    expected: &'static str,
) -> Result<Vec<PathBuf>, D::Error> {
    let paths = deserializer.deserialize_any(OneOrMore { most, expected, empty: None, of: PhantomData })?;
    Ok(paths.into_iter().map(|RawPath(path)| path).collect())
}

/// A size, in bytes.
pub(crate) fn size<'de, D: Deserializer<'de>, T: From<u64>>(deserializer: D) -> Result<T, D::Error> {
    let read = |text: &str| bytes::parse(text).map_err(|error| error.to_string());
    Ok(text(deserializer, "a size such as \"8GiB\" or \"512MiB\"", read)?.into())
}

/// The most that a job may hold, in bytes.
pub(crate) fn memory_limit<'de, D: Deserializer<'de>, T: From<u64>>(deserializer: D) -> Result<T, D::Error> {
    match size(deserializer)? {
        bytes @ LEAST_MEMORY.. => Ok(T::from(bytes)),
        _ => Err(D::Error::custom("allowed is 1MiB or more: no job fits into less")),
    }
}

/// A span of time from `LEAST` to `MOST` milliseconds.
pub(crate) fn time<'de, D: Deserializer<'de>, T: From<Duration>, const LEAST: u64, const MOST: u64>(
    deserializer: D,
) -> Result<T, D::Error> {
    let time = text(deserializer, "a span of time such as \"250ms\" or \"1h\"", |text| {
        humantime::parse_duration(text).map_err(|_| {
            let text = text.escape_debug();
            format!("'{text}' is no span of time: write a number with a unit, as in 250ms, 90s, 1h or 7days")
        })
    })?;
    let (least, most) = (Duration::from_millis(LEAST), Duration::from_millis(MOST));
    match (least..=most).contains(&time) {
        true => Ok(time.into()),
        false => Err(D::Error::custom(format!(
            "allowed is {} to {}",
            humantime::format_duration(least),
            humantime::format_duration(most)
        ))),
    }
}

/// A count from 1 to `MOST`.
pub(crate) fn count<'de, D: Deserializer<'de>, T: From<u32>, const MOST: u32>(deserializer: D) -> Result<T, D::Error> {
    // As many as `MOST`, and so within 32 bits.
    Ok((deserializer.deserialize_i64(Whole { most: u64::from(MOST) })? as u32).into())
}

/// A large count from 1 to `MOST`.
pub(crate) fn large<'de, D: Deserializer<'de>, T: From<u64>, const MOST: u64>(deserializer: D) -> Result<T, D::Error> {
    Ok(deserializer.deserialize_i64(Whole { most: MOST })?.into())
}

struct Whole {
    most: u64,
}

impl Visitor<'_> for Whole {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 1 to {}", self.most)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        match u64::try_from(number) {
            Ok(count) if (1..=self.most).contains(&count) => Ok(count),
            _ => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }
}

/// True if a list of losses allows blended plans. It has no other word: reuse is a job's to allow.
pub(crate) fn allows_blended<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let words = Vec::<String>::deserialize(deserializer)?;
    let is_blended = |word: &String| word.parse() == Ok(Loss::Blended(None));
    match words.iter().find(|word| !is_blended(word)) {
        Some(word) => Err(D::Error::custom(format!("'{}': allowed is \"blended\"", word.escape_debug()))),
        None => Ok(!words.is_empty()),
    }
}

/// A number that `allowed` accepts; `expected` describes those.
pub(crate) fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
    allowed: fn(f64) -> bool,
) -> Result<f64, D::Error> {
    deserializer.deserialize_f64(Number { expected, allowed })
}

struct Number {
    expected: &'static str,
    allowed: fn(f64) -> bool,
}

impl Visitor<'_> for Number {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
        match (self.allowed)(number) {
            true => Ok(number),
            false => Err(E::invalid_value(Unexpected::Float(number), &self)),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
        self.visit_f64(number as f64)
    }
}

/// One, or a list that is not empty.
pub(crate) fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let empty = Some("an empty list: name at least one, or leave the key out to take all");
    let (most, expected) = (usize::MAX, "a text or a list of texts");
    deserializer.deserialize_any(OneOrMore { most, expected, empty, of: PhantomData })
}

/// One, or a list of at most `most`, which is not empty.
struct OneOrMore<T> {
    most: usize,
    expected: &'static str,
    /// The fault of an empty list, where `expected` does not say it.
    empty: Option<&'static str>,
    of: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMore<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![T::deserialize(StrDeserializer::new(text))?])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            all.push(one);
        }
        match (all.len(), self.empty) {
            (0, Some(empty)) => Err(A::Error::custom(empty)),
            (count, _) if count == 0 || count > self.most => Err(A::Error::invalid_length(count, &self)),
            _ => Ok(all),
        }
    }
}
