//! Options: the choices that the host offers beside the fields of a plan. A new one is a row of
//! [`TABLE`] and the code that carries it out.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Stage, Value};

/// The most options that a plan may name.
pub const MOST_OPTIONS: usize = 64;

/// The values that an option may have; both ends of a range belong to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Values {
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Integer {
        /// The least.
        least: i64,
        /// The most.
        most: i64,
    },
    /// Any number.
    Number {
        /// The least.
        least: f64,
        /// The most.
        most: f64,
    },
    /// One of these words.
    Text {
        /// The words.
        words: Vec<String>,
    },
}

/// A choice that the host offers beside the fields of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanOption {
    /// The name in plans and in settings.
    pub name: String,
    /// For people, in a few words.
    pub summary: String,
    /// The values that it may have.
    pub values: Values,
    /// The value of a plan that does not name the option.
    pub default: Value,
    /// Other values change the output by more than rounding does: a user has to allow them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
}

/// The options that a plan sets. Those with their defaults are left out once it is checked.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Options(Vec<(String, Value)>);

/// A row of [`TABLE`].
struct Row {
    name: &'static str,
    stages: &'static [Stage],
    summary: &'static str,
    /// The words, the default first.
    words: &'static [&'static str],
    lossy: bool,
}

/// The option for the way of convolutions, and its value for direct ones.
pub const CONVOLUTION: &str = "convolution";
/// See [`CONVOLUTION`].
pub const DIRECT: &str = "direct";

/// The option for the sums of FP8 products, and its value for the quicker ones.
pub const FP8_SUMS: &str = "fp8-sums";
/// See [`FP8_SUMS`].
pub const QUICK: &str = "quick";

/// Every option that this program can carry out, on one device or another.
const TABLE: &[Row] = &[
    Row {
        name: CONVOLUTION,
        stages: &[Stage::Decode, Stage::Encode],
        summary: "3×3 convolutions by Winograd's filtering, in memory order channels-last, or directly",
        words: &["winograd", DIRECT],
        lossy: false,
    },
    Row {
        name: FP8_SUMS,
        stages: &[Stage::Denoise],
        summary: "sums of FP8 products in f32, or in the fewer bits of the quick sums that NVIDIA's kernels have",
        words: &["f32", QUICK],
        lossy: false,
    },
];

impl PlanOption {
    /// The options of a stage that a device has, by their names. Lossy ones are left out unless the
    /// user allows them.
    pub fn offered(stage: Stage, has: impl Fn(&str) -> bool, allows: impl Fn(&str) -> bool) -> Vec<Self> {
        Self::of_table(TABLE, stage, has, allows)
    }

    fn of_table(table: &[Row], stage: Stage, has: impl Fn(&str) -> bool, allows: impl Fn(&str) -> bool) -> Vec<Self> {
        let rows = table.iter().filter(|row| row.stages.contains(&stage) && has(row.name));
        let allowed = rows.filter(|row| !row.lossy || allows(row.name));
        let words = |row: &Row| row.words.iter().map(|word| (*word).to_owned()).collect();
        allowed
            .map(|row| Self {
                name: row.name.to_owned(),
                summary: row.summary.to_owned(),
                values: Values::Text { words: words(row) },
                default: Value::Text(row.words.first().copied().unwrap_or_default().to_owned()),
                lossy: row.lossy,
            })
            .collect()
    }

    /// The value that is nearest to a given one: a number is brought into its range. `None` if the
    /// option can't have such a value.
    fn nearest(&self, value: &Value) -> Option<Value> {
        match (&self.values, value) {
            (Values::Flag, Value::Flag(flag)) => Some(Value::Flag(*flag)),
            (Values::Integer { least, most }, Value::Integer(integer)) if least <= most => {
                Some(Value::Integer((*integer).clamp(*least, *most)))
            }
            (Values::Number { least, most }, Value::Number(number)) if least <= most && !number.is_nan() => {
                Some(Value::Number(number.clamp(*least, *most)))
            }
            (Values::Text { words }, Value::Text(word)) if words.contains(word) => Some(Value::Text(word.clone())),
            _ => None,
        }
    }
}

/// A change that [`Options::fit`] made.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionChange {
    /// The option's name, as the plan gave it.
    pub name: String,
    /// The value that the plan gave.
    pub from: Value,
    /// The value that it has now; `None` of one that is not offered.
    pub to: Option<Value>,
    /// The reason, in a few words.
    pub because: String,
}

impl Options {
    /// No options.
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// The options, by name, as a policy named them.
    pub const fn new(named: Vec<(String, Value)>) -> Self {
        Self(named)
    }

    /// True if every option has its default.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of options that are named.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The names and their values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The value of an option that is named.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// True if an option is named and has this word as its value.
    pub fn is(&self, name: &str, word: &str) -> bool {
        matches!(self.get(name), Some(Value::Text(text)) if text == word)
    }

    /// As a list, with blanks between: `kernel=direct ahead=2`; "none" of none.
    pub fn in_words(&self) -> String {
        let named: Vec<String> = self.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if named.is_empty() { "none".to_owned() } else { named.join(" ") }
    }

    /// The `fixed` policy's setting of these options, if any is set.
    pub fn setting(&self) -> Option<(String, String)> {
        (!self.is_empty()).then(|| ("options".to_owned(), self.in_words()))
    }

    /// Bytes of names and texts.
    pub fn text_bytes(&self) -> usize {
        let text = |value: &Value| if let Value::Text(text) = value { text.len() } else { 0 };
        self.iter().map(|(name, value)| name.len() + text(value)).sum()
    }

    /// Brings the options into those that are offered, and leaves defaults out. Each change is
    /// passed to `changed`.
    pub fn fit(&mut self, offered: &[PlanOption], mut changed: impl FnMut(OptionChange)) {
        if self.is_empty() {
            return;
        }
        let mut fitted: Vec<(String, Value)> = Vec::with_capacity(self.len());
        for (name, value) in std::mem::take(&mut self.0) {
            let Some(option) = offered.iter().find(|option| option.name == name) else {
                changed(OptionChange { name, from: value, to: None, because: "not offered".into() });
                continue;
            };
            if let Some((_, first)) = fitted.iter().find(|(known, _)| *known == name) {
                let to = Some(first.clone());
                changed(OptionChange { name, from: value, to, because: "named before".into() });
                continue;
            }
            let to = option.nearest(&value).unwrap_or_else(|| option.default.clone());
            if !is_same(&to, &value) {
                let because = option.values.to_string();
                changed(OptionChange { name: name.clone(), from: value, to: Some(to.clone()), because });
            }
            fitted.push((name, to));
        }
        let is_default = |name: &str, value: &Value| {
            offered.iter().any(|option| option.name == name && is_same(&option.default, value))
        };
        let (defaults, set): (Vec<_>, Vec<_>) = fitted.into_iter().partition(|(name, value)| is_default(name, value));
        self.0 = set;
        for (name, from) in defaults {
            changed(OptionChange { name, from, to: None, because: "the default".into() });
        }
    }
}

/// Equal to the bit: plans are looked up.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.to_bits() == other.to_bits(),
        (one, other) => one == other,
    }
}

/// In any order.
impl PartialEq for Options {
    fn eq(&self, other: &Self) -> bool {
        let has = |name: &str, value: &Value| other.iter().any(|(known, of)| known == name && is_same(of, value));
        self.len() == other.len() && self.iter().all(|(name, value)| has(name, value))
    }
}

impl Eq for Options {}

impl Hash for Options {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut names: Vec<&str> = self.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.hash(state);
    }
}

/// In words, as a reason: "one of direct, winograd", "from 1 to 8".
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Flag => f.write_str("true or false"),
            Values::Integer { least, most } => write!(f, "a whole number from {least} to {most}"),
            Values::Number { least, most } => write!(f, "a number from {least} to {most}"),
            Values::Text { words } => write!(f, "one of {}", words.join(", ")),
        }
    }
}

/// As a list, each preceded by a comma: `, convolution=direct`.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(name, value)| write!(f, ", {name}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &[Row] = &[
        Row {
            name: "kernel",
            stages: &[Stage::Decode],
            summary: "the way of convolutions",
            words: &["usual", "direct"],
            lossy: false,
        },
        Row { name: "skip", stages: &[Stage::Decode], summary: "skips", words: &["off", "on"], lossy: true },
    ];

    fn option(name: &str, values: Values, default: Value) -> PlanOption {
        PlanOption { name: name.into(), summary: String::new(), values, default, lossy: false }
    }

    fn offered() -> Vec<PlanOption> {
        let words = ["usual", "direct"].map(str::to_owned).to_vec();
        vec![
            option("kernel", Values::Text { words }, Value::Text("usual".into())),
            option("ahead", Values::Integer { least: 0, most: 8 }, Value::Integer(1)),
            option("share", Values::Number { least: 0.0, most: 1.0 }, Value::Number(0.5)),
            option("pinned", Values::Flag, Value::Flag(false)),
        ]
    }

    fn named(named: &[(&str, Value)]) -> Options {
        Options::new(named.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
    }

    fn fitted(options: &[(&str, Value)]) -> (Options, Vec<String>) {
        let (mut options, mut changes) = (named(options), Vec::new());
        options.fit(&offered(), |change| {
            changes.push(format!("{} {} → {:?}: {}", change.name, change.from, change.to, change.because));
        });
        (options, changes)
    }

    #[test]
    fn a_device_offers_what_it_has_and_a_user_allows() {
        let names = |stage, has: bool, allows: bool| -> Vec<String> {
            let offered = PlanOption::of_table(ROWS, stage, |_| has, |_| allows);
            offered.into_iter().map(|option| option.name).collect()
        };
        assert_eq!(names(Stage::Decode, true, false), ["kernel"]);
        assert_eq!(names(Stage::Decode, true, true), ["kernel", "skip"]);
        assert!(names(Stage::Decode, false, true).is_empty() && names(Stage::Text, true, true).is_empty());
        let kernel = &PlanOption::of_table(ROWS, Stage::Decode, |_| true, |_| false)[0];
        assert_eq!(kernel.default, Value::Text("usual".into()));
    }

    #[test]
    fn options_are_brought_into_what_is_offered_with_a_note_of_each_change() {
        let direct = Value::Text("direct".into());
        let (options, changes) = fitted(&[("pinned", Value::Flag(true)), ("kernel", direct.clone())]);
        assert!(changes.is_empty(), "{changes:?}");
        assert_eq!(options, named(&[("kernel", direct.clone()), ("pinned", Value::Flag(true))]), "in any order");
        assert_ne!(options, named(&[("kernel", direct.clone()), ("pinned", Value::Flag(false))]));
        assert_eq!(options.to_string(), ", pinned=true, kernel=direct");
        assert!(options.is("kernel", "direct") && !options.is("pinned", "true"));

        // A default is the same as no option.
        let (options, changes) = fitted(&[("kernel", Value::Text("usual".into())), ("ahead", Value::Integer(2))]);
        assert_eq!(options, named(&[("ahead", Value::Integer(2))]));
        assert_eq!(changes, ["kernel usual → None: the default"]);

        let (options, changes) = fitted(&[
            ("kernal", direct.clone()),
            ("kernel", Value::Text("fast".into())),
            ("ahead", Value::Integer(99)),
            ("ahead", Value::Integer(2)),
            ("share", Value::Number(f64::NAN)),
            ("pinned", Value::Integer(1)),
        ]);
        assert_eq!(options, named(&[("ahead", Value::Integer(8))]));
        assert_eq!(
            changes,
            [
                "kernal direct → None: not offered",
                "kernel fast → Some(Text(\"usual\")): one of usual, direct",
                "ahead 99 → Some(Integer(8)): a whole number from 0 to 8",
                "ahead 2 → Some(Integer(8)): named before",
                "share NaN → Some(Number(0.5)): a number from 0 to 1",
                "pinned 1 → Some(Flag(false)): true or false",
                "kernel usual → None: the default",
                "share 0.5 → None: the default",
                "pinned false → None: the default",
            ]
        );
    }

    #[test]
    fn options_read_back_from_a_record() {
        let options = named(&[("kernel", Value::Text("direct".into())), ("ahead", Value::Integer(2))]);
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(text, r#"[["kernel","direct"],["ahead",2]]"#);
        assert_eq!(serde_json::from_str::<Options>(&text).unwrap(), options);
    }
}
