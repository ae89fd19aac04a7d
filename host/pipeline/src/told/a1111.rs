//! The text of A1111's web UI: prompts, and a line of settings at the end.

use serde_json::{Map, Value, json};

/// The line that the negative prompt begins on.
const NEGATIVE: &str = "Negative prompt:";

/// The beginning of the line of settings.
const SETTINGS: &str = "Steps:";

/// The web UI's names of settings, and ours.
const NAMES: [(&str, &str); 10] = [
    ("Steps", "steps"),
    ("Sampler", "sampler"),
    ("Schedule type", "scheduler"),
    ("CFG scale", "cfg"),
    ("Distilled CFG Scale", "guidance"),
    ("Seed", "seed"),
    ("Size", "size"),
    ("Model", "model"),
    ("Denoising strength", "denoise"),
    ("Shift", "shift"),
];

/// Reads the settings.
pub fn parse(text: &str) -> Map<String, Value> {
    let lines: Vec<&str> = text.lines().collect();
    // A prompt may have such a line, too: the last one counts.
    let end = lines.iter().rposition(|line| line.trim_start().starts_with(SETTINGS)).unwrap_or(lines.len());
    let negative = lines[..end].iter().position(|line| line.trim_start().starts_with(NEGATIVE)).unwrap_or(end);
    let mut found = Map::new();
    found.insert("prompt".into(), json!(lines[..negative].join("\n").trim()));
    if negative < end {
        let words = lines[negative..end].join("\n");
        let words = words.trim_start().strip_prefix(NEGATIVE).unwrap_or_default().trim().to_owned();
        found.insert("negative_prompt".into(), json!(words));
    }
    for (name, value) in lines.get(end).map(|line| pairs(line)).unwrap_or_default() {
        let known = NAMES.iter().find(|(theirs, _)| *theirs == name);
        let name = known.map_or(name, |(_, ours)| (*ours).to_owned());
        found.entry(name).or_insert(value);
    }
    found
}

/// The pairs of a line, with commas between them. A value with commas is in quotes; of settings in
/// brackets, as seeds with commas, the rest has no name and belongs to the one before.
fn pairs(line: &str) -> Vec<(String, Value)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for piece in pieces(line) {
        match piece.split_once(": ").or_else(|| piece.split_once(':')) {
            Some((name, value)) if !name.trim().is_empty() && !name.contains('"') => {
                found.push((name.trim().to_owned(), value.trim().to_owned()));
            }
            _ => {
                if let Some((_, value)) = found.last_mut() {
                    value.push(',');
                    value.push_str(piece.trim());
                }
            }
        }
    }
    let typed = |value: String| match serde_json::from_str(&value) {
        Ok(known @ (Value::Number(_) | Value::String(_))) => known,
        _ => Value::String(value),
    };
    found.into_iter().map(|(name, value)| (name, typed(value))).collect()
}

/// The pieces of a line between commas outside quotes.
fn pieces(line: &str) -> Vec<&str> {
    let (mut pieces, mut start, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (place, character) in line.char_indices() {
        match character {
            '"' if !is_escaped => is_quoted = !is_quoted,
            ',' if !is_quoted => {
                pieces.push(&line[start..place]);
                start = place + 1;
            }
            _ => {}
        }
        is_escaped = character == '\\' && !is_escaped;
    }
    pieces.push(&line[start..]);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As A1111's web UI 1.10 writes it.
    #[test]
    fn settings_of_the_web_ui_are_read() {
        let text = "a fox, (red:1.2)\nSteps: to heaven\nNegative prompt: bad,\nugly\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras, \
            CFG scale: 7.5, Seed: 18446744073709551615, Size: 512x768, Model hash: 6ce0161689, Model: \"a, b: c\", Lora hashes: \"x: 1, y: 2\", \
            Version: v1.10.0";
        let found = parse(text);
        let expected = [
            ("prompt", json!("a fox, (red:1.2)\nSteps: to heaven")),
            ("negative_prompt", json!("bad,\nugly")),
            ("steps", json!(20)),
            ("sampler", json!("DPM++ 2M")),
            ("scheduler", json!("Karras")),
            ("cfg", json!(7.5)),
            ("seed", json!(u64::MAX)),
            ("size", json!("512x768")),
            ("Model hash", json!("6ce0161689")),
            ("model", json!("a, b: c")),
            ("Lora hashes", json!("x: 1, y: 2")),
            ("Version", json!("v1.10.0")),
        ];
        for (name, value) in expected {
            assert_eq!(found[name], value, "{name}");
        }
        assert_eq!(parse("a\nSteps: 1, Seed: 1,2, Size: 8x8")["seed"], json!("1,2"));
        assert_eq!(parse("only words").len(), 1);
    }
}
