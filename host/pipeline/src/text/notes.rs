//! Notes on parts of a prompt that other programs obey, and the reference reads as words.

use tilewright_sampling::Convention;
use tilewright_wording::Setting;

/// Words in capitals that A1111's web UI obeys.
const WORDS: [&str; 2] = ["BREAK", "AND"];

/// Networks that it loads from within a prompt.
const NETWORKS: [&str; 3] = ["lora", "lyco", "hypernet"];

/// Characters of a part that a note repeats.
const SHOWN: usize = 60;

/// A note on each part of a prompt that is read as words, though another program obeys it. `name`
/// is what the note calls the prompt.
pub fn prompt_notes(name: &str, prompt: &str, convention: Convention) -> Vec<String> {
    let reads = match convention {
        Convention::ComfyUi => "as ComfyUI reads it",
        Convention::Diffusers => "as diffusers reads it",
    };
    let mut notes: Vec<String> = Vec::new();
    let mut note = |part: &str, advice: &str| {
        let shown: String = part.chars().take(SHOWN).collect();
        let more = if part.chars().nth(SHOWN).is_some() { "…" } else { "" };
        let line = format!("the {name}'s {shown}{more} is words, {reads}{advice}");
        if !notes.contains(&line) {
            notes.push(line);
        }
    };
    for part in enclosed(prompt, '<', '>') {
        let inner = &part[1..part.len() - 1];
        if let Some((kind, _)) = inner.split_once(':').filter(|(kind, _)| NETWORKS.contains(kind)) {
            let advice = format!(": {} takes a LoRA", Setting::Lora);
            note(part, if kind == "hypernet" { "" } else { &advice });
        }
    }
    for part in enclosed(prompt, '{', '}').filter(|part| part.contains('|')) {
        note(part, ", without its interface: give one of them");
    }
    // Alternating words, and such that change at a step.
    for part in enclosed(prompt, '[', ']') {
        let inner = &part[1..part.len() - 1];
        let is_step = inner.rsplit_once(':').is_some_and(|(_, step)| step.trim().parse::<f64>().is_ok());
        if is_step || inner.contains('|') {
            note(part, "");
        }
    }
    for word in prompt.split(|character: char| !character.is_alphanumeric()).filter(|word| WORDS.contains(word)) {
        note(word, "");
    }
    notes
}

/// Parts between two brackets with none of them inside.
fn enclosed(text: &str, open: char, close: char) -> impl Iterator<Item = &str> {
    let mut start = None;
    text.char_indices().filter_map(move |(place, character)| {
        if character == open {
            start = Some(place);
            return None;
        }
        let start = if character == close { start.take()? } else { return None };
        Some(&text[start..=place])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_programs_obey_is_named() {
        let of = |prompt: &str| prompt_notes("prompt", prompt, Convention::ComfyUi);
        for (prompt, words) in [
            (
                "a fox <lora:style_v2:0.8>, red",
                "the prompt's <lora:style_v2:0.8> is words, as ComfyUI reads it: lora takes",
            ),
            ("a fox BREAK a dog", "the prompt's BREAK is words"),
            ("a {red|blue} fox", "the prompt's {red|blue} is words, as ComfyUI reads it, without its interface"),
            ("a [fox:dog:0.5]", "the prompt's [fox:dog:0.5] is words"),
            ("a [fox|dog]", "the prompt's [fox|dog] is words"),
            ("a fox AND a dog", "the prompt's AND is words"),
        ] {
            let notes = of(prompt);
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert!(notes[0].starts_with(words), "{notes:?}");
        }
        for plain in
            ["a fox", "(red:1.2) [fox]", "{fox}", "BREAKING news, and a BRAND", "a < b > c <3", "embedding:x é<"]
        {
            assert_eq!(of(plain), [""; 0], "{plain}");
        }
        assert_eq!(of("BREAK a BREAK").len(), 1);
        assert!(prompt_notes("prompt", "BREAK", Convention::Diffusers)[0].ends_with("as diffusers reads it"));
    }
}
