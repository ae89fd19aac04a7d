//! Spellings of a policy and its settings in one word: `fixed:space=blended,tile=512`.

use std::{fmt, str::FromStr};

use tilewright_plan::{DenoisePlan, Layout, Plan, Space, Time};

use crate::Error;

/// A policy by name or file, with settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spelling {
    /// A shipped policy's name, or a .wasm file.
    pub policy: String,
    /// Settings in the order given.
    pub settings: Vec<(String, String)>,
}

impl FromStr for Spelling {
    type Err = Error;

    /// Reads `NAME`, `FILE.wasm` or either with `:key=value,key=value` after it. A file's name may
    /// contain colons, a value no commas.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |reason| Error::Spelling { given: text.to_owned(), reason };
        // The last colon before the first `=`: colons further on belong to values, colons before to
        // the file's name.
        let named = text.find('=').map_or(text, |equals| &text[..equals]);
        let colon = named.rfind(':').filter(|_| named.len() < text.len() || !text.ends_with(".wasm"));
        let (policy, settings) = match colon {
            Some(colon) => (&text[..colon], Some(&text[colon + 1..])),
            None if named.len() < text.len() => return Err(refused("no ':' before the settings")),
            None => (text, None),
        };
        if policy.trim().is_empty() {
            return Err(refused("no name"));
        }
        let pair = |pair: &str| match pair.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
            _ => Err(refused("a setting is not of the form key=value")),
        };
        let settings = settings.map_or(Ok(Vec::new()), |settings| settings.split(',').map(pair).collect())?;
        Ok(Self { policy: policy.trim().to_owned(), settings })
    }
}

impl fmt::Display for Spelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.policy)?;
        for (index, (key, value)) in self.settings.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

impl Spelling {
    /// The `fixed` policy's settings that make exactly this plan.
    pub fn fixed(plan: &Plan) -> Self {
        Self { policy: "fixed".into(), settings: plan.settings() }
    }

    /// The `fixed` policy's settings that make exactly this plan of a sample.
    pub fn fixed_sample(plan: &DenoisePlan) -> Self {
        Self { policy: "fixed".into(), settings: plan.settings() }
    }

    /// The plain whole decode in f32 that differences are taken against.
    pub fn whole() -> Self {
        let settings = [("space", "whole"), ("precision", "f32")];
        Self { policy: "fixed".into(), settings: settings.map(|(key, value)| (key.into(), value.into())).to_vec() }
    }
}

/// A plan in a few words: `exact 512×512/0 f32 channels-last`.
pub(crate) fn in_words(plan: &Plan) -> String {
    let layout = if plan.layout == Layout::ChannelsLast { " channels-last" } else { "" };
    let batch = if plan.batch > 1 { format!(" batch {}", plan.batch) } else { String::new() };
    let space = match plan.space {
        Space::Whole => "whole".to_owned(),
        space => space.to_string(),
    };
    let time = if plan.time == Time::Whole { String::new() } else { format!(" {}", plan.time) };
    format!("{space}{time} {}{layout}{batch}", plan.precision)
}

#[cfg(test)]
mod tests {
    use tilewright_plan::{Dtype, Precision, Release, Tile};

    use super::*;

    fn read(text: &str) -> Result<(String, Vec<(String, String)>), String> {
        text.parse::<Spelling>().map(|read| (read.policy, read.settings)).map_err(|error| error.to_string())
    }

    #[test]
    fn names_files_and_settings_are_told_apart() {
        let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)]);
        let cases: [Case; 6] = [
            ("adaptive", "adaptive", &[]),
            ("a:b.wasm", "a:b.wasm", &[]),
            (
                "fixed:space=blended,tile=512,overlap=64",
                "fixed",
                &[("space", "blended"), ("tile", "512"), ("overlap", "64")],
            ),
            ("dir/a.wasm:k=v", "dir/a.wasm", &[("k", "v")]),
            ("c:a.wasm:k=v:w", "c:a.wasm", &[("k", "v:w")]),
            ("fixed: tile = 8=9 ", "fixed", &[("tile", "8=9")]),
        ];
        for (text, policy, settings) in cases {
            assert_eq!(read(text), Ok((policy.to_owned(), pairs(settings))), "{text}");
        }
        assert_eq!("fixed:a=1,b=2".parse::<Spelling>().unwrap().to_string(), "fixed:a=1,b=2");
    }

    #[test]
    fn nonsense_is_refused_in_one_line() {
        for (text, words) in [
            ("", "no name"),
            (":a=1", "no name"),
            ("a=1", "no ':'"),
            ("fixed:", "key=value"),
            ("fixed:tile", "key=value"),
            ("fixed:tile=1,", "key=value"),
            ("fixed:tile=1,=2", "key=value"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_plan_is_spelled_for_the_fixed_policy() {
        let plan = Plan {
            space: Space::Exact(Tile { height: 256, width: 512, overlap: 0 }),
            batch: 2,
            precision: Precision::Mixed(Dtype::Bf16),
            layout: Layout::ChannelsLast,
            release: Release::EachStep,
            reason: "any".into(),
            ..Plan::plain()
        };
        assert_eq!(
            Spelling::fixed(&plan).to_string(),
            "fixed:space=exact,tile=512x256,overlap=0,precision=mixed-bf16,layout=channels-last,batch=2,release=each-step"
        );
    }
}
