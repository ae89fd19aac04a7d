//! Checks of a safetensors header before anything is built from it. The format sets no limits: a
//! header of a million empty tensors is valid and takes a gigabyte of memory to read.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// The size limit of a header, in bytes. A checkpoint of 10,000 tensors has 1.5 million; ComfyUI's
/// workflows and trainers' notes are in it, too.
pub const MOST_BYTES: u64 = 32 << 20;

/// The most tensors: a checkpoint of Stable Diffusion has 2,500, a large LoRA 10,000.
pub const MOST_TENSORS: usize = 1 << 16;

/// The most axes of a tensor; those of networks have at most five.
pub const MOST_AXES: usize = 16;

/// The bytes of the longest name of a tensor; those of networks have some hundred.
pub const MOST_NAME: usize = 1 << 10;

/// The most texts; a trainer writes some hundred notes.
pub const MOST_TEXTS: usize = 1 << 12;

/// The key of the texts.
const TEXTS: &str = "__metadata__";

/// Checks a header's text in one pass, and builds nothing from it.
///
/// # Errors
/// One line, if a limit is exceeded. Text that is not JSON passes: the parser that builds from it
/// reports the fault.
pub fn check(text: &[u8]) -> Result<(), String> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    match Header.deserialize(&mut deserializer) {
        Err(error) if error.is_data() && error.to_string().starts_with(MORE) => {
            let text = error.to_string();
            Err(text.split(" at line ").next().unwrap_or(&text).to_owned())
        }
        _ => Ok(()),
    }
}

/// The beginning of a refusal, which distinguishes it from other errors.
const MORE: &str = "more than ";

/// Counts one more item, and refuses it beyond the limit.
fn count<E: serde::de::Error>(so_far: &mut usize, most: usize, what: &str) -> Result<(), E> {
    *so_far += 1;
    if *so_far > most { Err(E::custom(format!("{MORE}{most} {what}"))) } else { Ok(()) }
}

/// Parts of a header, each with its place's kind, its words and what is done with it.
macro_rules! parts {
    ($($part:ty, $ask:ident, $words:literal => $value:ty { $($visit:tt)* })*) => {$(
        impl<'de> DeserializeSeed<'de> for $part {
            type Value = $value;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<$value, D::Error> {
                deserializer.$ask(self)
            }
        }

        impl<'de> Visitor<'de> for $part {
            type Value = $value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($words)
            }

            $($visit)*
        }
    )*};
}

/// The whole header.
struct Header;

/// A comparison of a key with this one.
struct Is(&'static str);

/// The texts; their key may occur more than once.
struct Texts<'a>(&'a mut usize);

/// One tensor's facts.
struct Tensor;

/// A tensor's shape.
struct Axes;

parts! {
    Header, deserialize_map, "a header" => () {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            let (mut tensors, mut texts) = (0, 0);
            while let Some(is_texts) = map.next_key_seed(Is(TEXTS))? {
                if is_texts {
                    map.next_value_seed(Texts(&mut texts))?;
                } else {
                    count(&mut tensors, MOST_TENSORS, "tensors")?;
                    map.next_value_seed(Tensor)?;
                }
            }
            Ok(())
        }
    }

    Is, deserialize_str, "a name" => bool {
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<bool, E> {
            match text.len() > MOST_NAME {
                true => Err(E::custom(format!("{MORE}{MOST_NAME} bytes of a name"))),
                false => Ok(text == self.0),
            }
        }
    }

    Texts<'_>, deserialize_map, "texts by name" => () {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                count(self.0, MOST_TEXTS, "texts")?;
            }
            Ok(())
        }

        /// `null` stands for no texts.
        fn visit_unit<E>(self) -> Result<(), E> {
            Ok(())
        }
    }

    Tensor, deserialize_map, "a tensor's facts" => () {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(is_shape) = map.next_key_seed(Is("shape"))? {
                if is_shape {
                    map.next_value_seed(Axes)?;
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(())
        }
    }

    Axes, deserialize_seq, "a shape" => () {
        fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
            let mut axes = 0;
            while sequence.next_element::<IgnoredAny>()?.is_some() {
                count(&mut axes, MOST_AXES, "axes of a tensor")?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &str) -> String {
        format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}"#)
    }

    #[test]
    fn headers_as_files_have_them_pass() {
        for text in [
            "{}".to_owned(),
            format!(
                r#"{{"__metadata__":{{"format":"pt"}},"a.weight":{},"\u0062":{}}}"#,
                tensor("[0,4,3,3,3]"),
                tensor("[]")
            ),
            r#"{"__metadata__":null}"#.to_owned(),
        ] {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_is_no_header_is_somebody_elses_to_explain() {
        for text in
            ["", "[]", "{", r#"{"a":7}"#, r#"{"a":{"shape":{}}}"#, r#"{"__metadata__":[1]}"#, "\u{1}", "{\"more than"]
        {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
        assert_eq!(check(&[b'{', 0xff, 0xfe]), Ok(()));
    }

    #[test]
    fn more_than_files_have_is_refused() {
        let tensors: Vec<String> =
            (0..=MOST_TENSORS).map(|number| format!(r#""{number}":{}"#, tensor("[0]"))).collect();
        let texts: Vec<String> = (0..=MOST_TEXTS).map(|number| format!(r#""{number}":"""#)).collect();
        let axes = vec!["1"; MOST_AXES + 1].join(",");
        let cases = [
            (format!("{{{}}}", tensors.join(",")), "more than 65536 tensors"),
            (format!(r#"{{"__metadata__":{{{}}}}}"#, texts.join(",")), "more than 4096 texts"),
            (format!(r#"{{"a":{}}}"#, tensor(&format!("[{axes}]"))), "more than 16 axes of a tensor"),
            (format!(r#"{{"{}":{}}}"#, "a".repeat(MOST_NAME + 1), tensor("[0]")), "more than 1024 bytes of a name"),
            // Broken after the shape: a parser that builds from it would get as far.
            (format!(r#"{{"a":{},"b":"#, tensor(&format!("[{axes}]"))), "more than 16 axes of a tensor"),
        ];
        for (text, words) in cases {
            assert_eq!(check(text.as_bytes()), Err(words.to_owned()));
        }
        // The same key again and again.
        let again = vec![r#""__metadata__":{"a":""}"#; MOST_TEXTS + 1].join(",");
        assert_eq!(check(format!("{{{again}}}").as_bytes()), Err("more than 4096 texts".to_owned()));
    }
}
