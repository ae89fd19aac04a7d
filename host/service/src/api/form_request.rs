//! A request as the dashboard's forms send it, a part for each field, and back.

use serde_json::{Map, Number, Value, json};
use tilewright_dashboard::views::FormRest;
use tilewright_service_api::{JobRequest, LoraField};

use super::extract::parse_json;
use crate::problem::{ApiResult, Problem};

/// The kind of value that a field's text becomes.
#[derive(Clone, Copy, PartialEq)]
enum Reading {
    Text,
    Number,
    Seeds,
    /// A box that is ticked; one that is not sends nothing.
    Flag,
}

/// Fields by what their texts become.
type Fields = [(Reading, &'static [&'static str])];

/// Fields of a request.
const OF_JOB: &Fields = &[
    (Reading::Text, &["model", "format", "tag", "objective", "prompt", "negative_prompt"]),
    (Reading::Number, &["text_tokens"]),
    (Reading::Flag, &["profile"]),
];

/// Fields of its sample.
const OF_SAMPLE: &Fields = &[
    (Reading::Number, &["width", "height", "frames", "batch", "steps", "cfg", "guidance", "shift", "denoise"]),
    (Reading::Seeds, &["seed"]),
    (Reading::Text, &["sampler", "scheduler", "as"]),
];

/// The kind of value that a field's text becomes, if it is one of these.
fn reading(fields: &Fields, name: &str) -> Option<Reading> {
    fields.iter().find(|(_, names)| names.contains(&name)).map(|(reading, _)| *reading)
}

/// The names of fields.
fn names(fields: &'static Fields) -> impl Iterator<Item = &'static str> {
    fields.iter().flat_map(|(_, names)| *names).copied()
}

/// The names of a LoRA and of its strength, which follows it: as many pairs as there are LoRAs.
const LORA: &str = "lora";
const STRENGTH: &str = "lora_strength";

/// All of a request that the form has no field for, as JSON.
const REST: &str = "rest";

/// The ending of a LoRA's name for all experts or for one of two, by their numbers.
const ALL_EXPERTS: &str = "@both";
const EXPERTS: [&str; 2] = ["@high", "@low"];

/// The most bytes of a field, if a form has such a field.
pub fn most_bytes(name: &str, texts: u64) -> Option<u64> {
    match name {
        "prompt" | "negative_prompt" | REST => Some(texts),
        LORA => Some(4096),
        STRENGTH => Some(64),
        "seed" => Some(32 << 10),
        _ if names(OF_JOB).chain(names(OF_SAMPLE)).any(|known| known == name) => Some(256),
        _ => None,
    }
}

/// True if a form may have several fields of the name.
pub fn may_repeat(name: &str) -> bool {
    [LORA, STRENGTH].contains(&name)
}

/// The request of a form's fields: empty fields are left out.
///
/// # Errors
/// A field can't be read.
pub fn request_of(fields: &[(String, String)]) -> ApiResult<JobRequest> {
    let all = |wanted: &'static str| fields.iter().filter(move |(name, _)| name == wanted).map(|(_, text)| text.trim());
    let mut object = match all(REST).find(|rest| !rest.is_empty()) {
        Some(rest) => parse_json::<Map<String, Value>>(rest.as_bytes())?,
        None => Map::new(),
    };
    let mut sample = match object.remove("sample") {
        Some(Value::Object(sample)) => sample,
        None => Map::new(),
        Some(_) => return Err(Problem::invalid("rest: its sample is no object")),
    };
    for (name, text) in fields {
        // An empty prompt is one, too.
        if text.is_empty() && name != "prompt" {
            continue;
        }
        if let Some(reading) = reading(OF_JOB, name) {
            object.insert(name.clone(), reading.read(name, text)?);
        } else if let Some(reading) = reading(OF_SAMPLE, name) {
            sample.insert(name.clone(), reading.read(&format!("sample.{name}"), text)?);
        }
    }
    let mut loras: Vec<Value> = Vec::new();
    let mut of_lora = fields.iter().filter(|(name, _)| [LORA, STRENGTH].contains(&name.as_str())).peekable();
    while let Some((name, text)) = of_lora.next() {
        // A strength is that of the LoRA before it.
        let strength = of_lora.next_if(|(next, _)| name == LORA && next == STRENGTH);
        if name == LORA && !text.trim().is_empty() {
            loras.push(lora(text.trim(), strength.map_or("", |(_, strength)| strength.trim()))?);
        }
    }
    if !loras.is_empty() {
        object.insert("loras".into(), loras.into());
    }
    if object.contains_key("prompt") {
        sample.insert("preview".into(), true.into());
        // The form is for people, who expect another picture each time.
        sample.entry("seed").or_insert_with(|| "random".into());
    }
    if !sample.is_empty() {
        object.insert("sample".into(), sample.into());
    }
    parse_json(Value::from(object).to_string().as_bytes())
}

/// A LoRA of a form.
fn lora(text: &str, strength: &str) -> ApiResult<Value> {
    let of_expert = |(number, ending)| Some((text.strip_suffix(ending)?, number));
    let found = EXPERTS.into_iter().enumerate().find_map(of_expert);
    let (name, expert) = match found {
        Some((name, number)) => (name, Some(number)),
        None => (text.strip_suffix(ALL_EXPERTS).unwrap_or(text), None),
    };
    let strength = if strength.is_empty() { Value::from(1.0) } else { Reading::Number.read(STRENGTH, strength)? };
    Ok(json!({ "name": name, "expert": expert, "strength": strength }))
}

impl Reading {
    fn read(self, field: &str, text: &str) -> ApiResult<Value> {
        // Browsers take more spellings of a number than JSON does.
        let number = |text: &str| {
            let text = text.trim();
            let whole = text.parse::<u64>().map(Number::from).ok();
            let read = whole.or_else(|| text.parse().ok().and_then(Number::from_f64));
            read.map(Value::from).ok_or_else(|| Problem::invalid(format!("{field}: expected a number")))
        };
        match self {
            Self::Text => Ok(text.into()),
            Self::Number => number(text),
            Self::Flag if ["true", "on"].contains(&text.trim()) => Ok(true.into()),
            Self::Flag => Err(Problem::invalid(format!("{field}: expected true"))),
            Self::Seeds if ["random", "-1"].contains(&text.trim()) => Ok("random".into()),
            Self::Seeds if text.contains(',') => text.split(',').map(number).collect(),
            Self::Seeds => number(text),
        }
    }
}

/// The rest of a request, beyond the fields of the form for prompts.
pub fn rest_of(request: &JobRequest) -> Option<FormRest> {
    let mut rest = serde_json::to_value(request).ok()?;
    let object = rest.as_object_mut()?;
    let has_field = |name: &&str| !["tag", "objective"].contains(name);
    names(OF_JOB).filter(has_field).for_each(|name| drop(object.remove(name)));
    object.remove("loras");
    let mut left = Vec::new();
    if let Some(Value::Object(mut sample)) = object.remove("sample") {
        // Files are sent anew, and each form asks for a preview.
        ["paths", "preview"].into_iter().chain(names(OF_SAMPLE)).for_each(|name| drop(sample.remove(name)));
        left.extend(sample.keys().cloned());
        if !sample.is_empty() {
            object.insert("sample".into(), sample.into());
        }
    }
    left.splice(..0, object.keys().filter(|name| *name != "sample").cloned());
    (!left.is_empty()).then(|| FormRest { json: rest.to_string(), names: left })
}

/// A LoRA as the form has it: its name, with the expert that it is for behind it.
pub fn lora_text(lora: &LoraField) -> String {
    let expert = lora.expert.and_then(|expert| EXPERTS.get(expert as usize));
    // A name may end as if it said an expert.
    let is_ambiguous = EXPERTS.iter().chain([&ALL_EXPERTS]).any(|ending| lora.name.ends_with(ending));
    format!("{}{}", lora.name, expert.unwrap_or(if is_ambiguous { &ALL_EXPERTS } else { &"" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(fields: &[(&str, &str)]) -> ApiResult<JobRequest> {
        let fields: Vec<_> = fields.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        request_of(&fields)
    }

    #[test]
    fn a_form_has_all_that_a_request_says() {
        let asked = json!({
            "model": "wan", "prompt": "a cat", "negative_prompt": "a dog", "text_tokens": 300, "objective": "leanest",
            "allow": ["blended"], "fps": "12", "deadline_s": 60,
            "profile": true, "loras": [{ "name": "a/ink", "strength": 0.5, "expert": 1 }, { "name": "oil@low", "strength": 1.0 }],
            "sample": {
                "width": 64, "height": 32, "seed": [18446744073709551615_u64, 2], "sigmas": [1.0, 0.5, 0.0], "as": "diffusers",
                "shift": 3.5, "cfg": 0.5, "sampler": "euler", "reuse": 0.1, "preview": true,
            },
        });
        let asked: JobRequest = serde_json::from_value(asked).unwrap();
        let rest = rest_of(&asked).unwrap();
        assert_eq!(rest.names, ["allow", "deadline_s", "fps", "objective", "reuse", "sigmas"]);
        let fields = [
            ("model", "wan"),
            ("prompt", "a cat"),
            ("negative_prompt", "a dog"),
            ("text_tokens", "300"),
            ("profile", "true"),
            ("lora", &lora_text(&asked.loras[0])),
            ("lora_strength", "0.5"),
            ("lora", ""),
            ("lora_strength", "7"),
            ("lora", &lora_text(&asked.loras[1])),
            ("width", "064"),
            ("height", "32"),
            ("seed", "18446744073709551615, 2"),
            ("as", "diffusers"),
            ("shift", "3.5"),
            ("cfg", ".5"),
            ("sampler", "euler"),
            ("steps", ""),
            ("rest", &rest.json),
        ];
        assert_eq!(form(&fields).unwrap(), asked);
    }

    #[test]
    fn a_form_that_says_nothing_takes_any_seed() {
        let plain = form(&[("model", "flux"), ("prompt", ""), ("seed", "")]).unwrap();
        let expected = json!({ "model": "flux", "prompt": "", "sample": { "seed": "random", "preview": true } });
        assert_eq!(plain, serde_json::from_value(expected).unwrap());
        assert_eq!(rest_of(&plain), None);
        let seeds =
            |text| form(&[("model", "flux"), ("prompt", ""), ("seed", text)]).map(|made| made.sample.unwrap().seed);
        assert_eq!(seeds("-1").unwrap(), seeds("random").unwrap());
        for (fields, words) in [
            ([("model", "flux"), ("steps", "many")], "sample.steps: expected a number"),
            ([("model", "flux"), ("seed", "1, two")], "sample.seed: expected a number"),
            ([("model", "flux"), ("profile", "maybe")], "profile: expected true"),
            ([("model", "flux"), ("rest", "[1]")], "expected"),
            ([("model", "flux"), ("rest", "{\"sample\": 1}")], "rest: its sample is no object"),
            ([("model", "flux"), ("rest", "{\"unknown\": 1}")], "unknown"),
        ] {
            let problem = form(&fields).unwrap_err();
            assert!(problem.detail.contains(words), "{}", problem.detail);
        }
    }
}
