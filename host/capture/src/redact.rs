//! The leaving out of prompts, file names and secrets from JSON and from plain text.

use std::env;

use serde_json::{Map, Value};

use crate::{
    fields::{self, Kind},
    private::{without_names, without_secrets},
};

/// The words in the place of what was left out.
pub const LEFT_OUT: &str = "left out";

/// The private parts that stay. Secrets never do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Prompts, and tokens of them.
    pub prompts: bool,
    /// Names and paths of files.
    pub names: bool,
}

/// Replaces prompts, file names and secrets in JSON by [`LEFT_OUT`]: by the names of fields, of
/// hints and of pairs, and where free text shows paths or tokens. Numbers stay, but for lists of
/// tokens and for passwords. The path of the user's home folder becomes `~` where names are kept.
pub fn redact(value: &mut Value, keep: Keep) {
    Redactor::new(keep).value(value, Kind::Open);
}

pub(crate) struct Redactor {
    keep: Keep,
    home: Option<String>,
}

impl Redactor {
    pub fn new(keep: Keep) -> Self {
        let home = env::home_dir().and_then(|home| home.into_os_string().into_string().ok());
        Self::with_home(keep, home)
    }

    pub fn with_home(keep: Keep, home: Option<String>) -> Self {
        let home = home.map(|home| home.trim_end_matches('/').to_owned()).filter(|home| home.len() > 1);
        Self { keep, home }
    }

    pub fn value(&self, value: &mut Value, kind: Kind) {
        let leave_out = match value {
            Value::String(text) => {
                *text = if kind >= Kind::File && !text.is_empty() { LEFT_OUT.into() } else { self.text(text) };
                false
            }
            Value::Number(_) => kind == Kind::Secret,
            Value::Array(items) if kind == Kind::Tokens && is_tokens(items) => true,
            Value::Array(items) => {
                self.items(items, kind);
                false
            }
            Value::Object(map) => {
                self.object(map, kind);
                false
            }
            Value::Null | Value::Bool(_) => false,
        };
        if leave_out {
            *value = LEFT_OUT.into();
        }
    }

    fn items(&self, items: &mut [Value], kind: Kind) {
        // A setting as a pair.
        if let [Value::String(name), value] = items
            && self.kind_of(name) > kind
        {
            let kind = self.kind_of(name);
            return self.value(value, kind);
        }
        items.iter_mut().for_each(|item| self.value(item, kind));
    }

    fn object(&self, map: &mut Map<String, Value>, kind: Kind) {
        let inherited = match kind {
            // In a description of a file, the fields that say no name stay.
            Kind::File => Kind::Part,
            // Lists of numbers in a description are shapes and the like.
            Kind::Tokens => Kind::Prompt,
            kind => kind,
        };
        // A hint or a setting with a field for its name.
        let named = map.get("name").and_then(Value::as_str).map_or(Kind::Open, |name| self.kind_of(name));
        for (name, mut value) in std::mem::take(map) {
            let kind = match name.as_str() {
                "name" if inherited == Kind::Part => Kind::File,
                "value" => named.max(inherited),
                _ => self.kind_of(&name).max(inherited),
            };
            self.value(&mut value, kind);
            map.insert(free_name(map, self.text(&name)), value);
        }
    }

    /// The kind of a field's value, [`Kind::Open`] if it stays.
    fn kind_of(&self, name: &str) -> Kind {
        let stays = |kind: &Kind| match kind {
            Kind::Open | Kind::Part => true,
            Kind::File => self.keep.names,
            Kind::Prompt | Kind::Tokens => self.keep.prompts,
            Kind::Access | Kind::Secret => false,
        };
        fields::kinds(name).filter(|kind| !stays(kind)).max().unwrap_or(Kind::Open)
    }

    /// Free text without what gives away a secret or a file.
    fn text(&self, text: &str) -> String {
        let text = without_secrets(text);
        match &self.home {
            _ if !self.keep.names => without_names(&text),
            Some(home) => text.replace(home.as_str(), "~"),
            None => text,
        }
    }

    /// Lines such as those of a log, of which one may begin with a field's name.
    pub fn lines(&self, text: &str) -> String {
        let line = |line: &str| match line.split_once([':', '=']) {
            Some((name, rest)) if !rest.trim().is_empty() => {
                let word = name.rsplit(char::is_whitespace).find(|word| !word.is_empty()).unwrap_or_default();
                let names = [name.trim(), word.trim_matches(['"', '\''])];
                match names.iter().any(|name| self.kind_of(name) >= Kind::File) {
                    true => format!("{}: {LEFT_OUT}\n", self.text(name)),
                    false => self.text(line) + "\n",
                }
            }
            _ => self.text(line) + "\n",
        };
        // A key takes several lines, and is known by its first.
        let text = without_secrets(text);
        text.lines().map(line).collect()
    }
}

/// True for a list that can be of tokens: whole numbers and nothing else.
fn is_tokens(items: &[Value]) -> bool {
    !items.is_empty() && items.iter().all(|item| item.is_u64() || item.is_i64())
}

/// The name, or one like it if it is taken.
fn free_name(map: &Map<String, Value>, name: String) -> String {
    if !map.contains_key(&name) {
        return name;
    }
    (2..).map(|number: u64| format!("{name} {number}")).find(|name| !map.contains_key(name)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redacted(mut value: Value, keep: Keep) -> Value {
        Redactor::with_home(keep, Some("/home/me/".into())).value(&mut value, Kind::Open);
        value
    }

    #[test]
    fn prompts_names_and_secrets_are_left_out_and_the_rest_stays() {
        let value = json!({
            "prompt": "a fox", "negative_prompt": "", "text_tokens": 77, "tokens": [1, 2], "prompts": ["a", "b"],
            "prompt_shapes": [{"width": 4, "within": [0.0, 1.0], "note": "a fox"}],
            "model": {"family": "sdxl", "name": "mine", "bytes": 5, "vae": {"name": "ae", "digest": "d"}},
            "vae": "ae", "loras": [{"name": "style", "strength": 0.5}], "image": true,
            "device": {"name": "AMD Radeon 8060S"},
            "hints": [{"name": "prompt", "value": "a fox"}, {"name": "stage", "value": "text"}],
            "settings": [["negative_prompt", "dogs"], ["denoise.attention", "fused"]],
            "adjusted": ["tile 64 in place of 65", "can't read /home/me/a.png"],
            "/home/me/a.png": 1, "/home/me/b.png": 2, "password": 1234, "hash": "h", "none": null,
        });
        let out = LEFT_OUT;
        assert_eq!(
            redacted(value.clone(), Keep::default()),
            json!({
                "prompt": out, "negative_prompt": "", "text_tokens": 77, "tokens": out, "prompts": [out, out],
                "prompt_shapes": [{"width": 4, "within": [0.0, 1.0], "note": out}],
                "model": {"family": "sdxl", "name": out, "bytes": 5, "vae": {"name": out, "digest": "d"}},
                "vae": out, "loras": [{"name": out, "strength": 0.5}], "image": true,
                "device": {"name": "AMD Radeon 8060S"},
                "hints": [{"name": "prompt", "value": out}, {"name": "stage", "value": "text"}],
                "settings": [["negative_prompt", out], ["denoise.attention", "fused"]],
                "adjusted": ["tile 64 in place of 65", "can't read left out"],
                "left out": 1, "left out 2": 2, "password": out, "hash": "h", "none": null,
            })
        );
        let kept = redacted(value, Keep { prompts: true, names: true });
        assert_eq!((&kept["prompt"], &kept["model"]["name"]), (&json!("a fox"), &json!("mine")));
        assert_eq!((&kept["tokens"], &kept["password"]), (&json!([1, 2]), &json!(out)));
        assert_eq!((&kept["adjusted"][1], &kept["~/a.png"]), (&json!("can't read ~/a.png"), &json!(1)));
    }

    #[test]
    fn lines_keep_their_names_alone() {
        let redactor = Redactor::with_home(Keep::default(), None);
        let text = "device: cpu\nHF_TOKEN=abc\n  \"prompt\": \"a fox\"\nsaw /home/me/a.png\nnegative prompt: dogs\n";
        assert_eq!(
            redactor.lines(text),
            "device: cpu\nHF_TOKEN: left out\n  \"prompt\": left out\nsaw left out\nnegative prompt: left out\n"
        );
        assert_eq!(redactor.lines("-----BEGIN PRIVATE KEY-----\nabc\n"), "left out\n");
    }
}
