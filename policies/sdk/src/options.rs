//! Options: the choices that a host offers beside the fields of a plan.

use crate::{Description, PlanOption, Settings, Value, Values, Weights};

/// The name of the setting that [`OptionChoice`] declares.
pub const OPTIONS: &str = "options";

impl PlanOption {
    /// The option's value as a text writes it. `None` if the option can't have it.
    pub fn parse(&self, text: &str) -> Option<Value> {
        match &self.values {
            Values::Flag => text.parse().ok().map(Value::Flag),
            Values::Integer((least, most)) => {
                text.parse().ok().filter(|number| (least..=most).contains(&number)).map(Value::Integer)
            }
            Values::Number((least, most)) => {
                text.parse().ok().filter(|number| (least..=most).contains(&number)).map(Value::Number)
            }
            Values::Text(words) => words.iter().find(|word| *word == text).map(|word| Value::Text(word.clone())),
        }
    }

    /// The values that the option may have, in words.
    fn describe_values(&self) -> String {
        match &self.values {
            Values::Flag => "true or false".into(),
            Values::Integer((least, most)) => [&least.to_string(), " to ", &most.to_string()].concat(),
            // The text of a fraction takes tens of kilobytes of code.
            Values::Number(_) => "a number within its range".into(),
            Values::Text(words) => words.join(", "),
        }
    }
}

/// The options that the user chose, for policies whose users may choose them: `NAME=VALUE`,
/// separated by blanks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OptionChoice(Vec<(String, String)>);

impl OptionChoice {
    /// Declares the setting, without any option by default.
    #[must_use]
    pub fn declare(description: Description) -> Description {
        description.setting(OPTIONS, "Options that the host offers beside a plan's fields: NAME=VALUE NAME=VALUE.", "")
    }

    /// Reads the setting.
    ///
    /// # Errors
    /// One line, if it is not of that form.
    pub fn read(settings: &Settings) -> Result<Self, String> {
        let named = settings.text(OPTIONS)?.split_whitespace().map(|text| {
            let (name, value) = text.split_once('=').ok_or_else(|| {
                [OPTIONS, "=", text, ": NAME=VALUE was expected, and blanks between several"].concat()
            })?;
            Ok((name.to_owned(), value.to_owned()))
        });
        named.collect::<Result<_, String>>().map(Self)
    }

    /// The options of a plan. One that the host does not offer for a request is left out: a
    /// setting serves every stage and device.
    ///
    /// # Errors
    /// One line with the allowed values, if an option is offered and can't have the value.
    pub fn of(&self, offered: &[PlanOption]) -> Result<Vec<(String, Value)>, String> {
        let chosen = self.0.iter().filter_map(|(name, text)| {
            let option = offered.iter().find(|option| option.name == *name)?;
            Some(match option.parse(text) {
                Some(value) => Ok((name.clone(), value)),
                None => Err([name, "=", text, ": allowed is ", &option.describe_values()].concat()),
            })
        });
        chosen.collect()
    }
}

impl Weights {
    /// The type that most of the weights are stored in, as files name it.
    pub fn stored(&self) -> &str {
        self.stored_types.first().map_or("", |stored| stored.name.as_str())
    }

    /// True if weights are stored in fewer than 16 bits.
    pub fn is_quantized(&self) -> bool {
        !matches!(self.stored(), "f32" | "bf16" | "f16" | "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_options_are_those_that_are_offered() {
        let option = |name: &str, values, default| PlanOption {
            name: name.into(),
            summary: String::new(),
            values,
            default,
            lossy: false,
        };
        let words = vec!["usual".into(), "direct".into()];
        let offered = [
            option("kernel", Values::Text(words), Value::Text("usual".into())),
            option("ahead", Values::Integer((0, 8)), Value::Integer(1)),
        ];
        let choice = |text: &str| {
            let settings = OptionChoice::declare(Description::new("p", "1", "")).defaults().with(OPTIONS, text);
            OptionChoice::read(&settings)
        };
        let chosen = choice("kernel=direct ahead=3 other=1").unwrap();
        let expected = [("kernel".to_owned(), Value::Text("direct".into())), ("ahead".to_owned(), Value::Integer(3))];
        assert_eq!(chosen.of(&offered), Ok(expected.to_vec()));
        assert_eq!(chosen.of(&[]), Ok(Vec::new()));
        assert_eq!(choice("kernel=fast").unwrap().of(&offered).unwrap_err(), "kernel=fast: allowed is usual, direct");
        assert_eq!(choice("ahead=9").unwrap().of(&offered).unwrap_err(), "ahead=9: allowed is 0 to 8");
        assert!(choice("kernel").unwrap_err().starts_with("options=kernel: NAME=VALUE"));
    }
}
