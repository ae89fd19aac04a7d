//! The settings of a job that samples, as a table: what was asked for, and what the model's
//! defaults became.

use maud::{Markup, html};
use tilewright_service_api::{JobSettings, ModelPart};

use crate::units::size;

/// The panel of a job's settings.
pub fn settings(of: &JobSettings) -> Markup {
    html! {
        section.panel.settings aria-labelledby="settings-title" {
            h2 #settings-title { "Request" }
            dl {
                @if let Some(prompt) = &of.prompt { dt { "Prompt" } dd.prompt { (prompt) } }
                @if let Some(negative) = of.negative_prompt.as_ref().filter(|negative| !negative.is_empty()) {
                    dt { "Negative prompt" }
                    dd.prompt { (negative) @if of.cfg == 1.0 { " " span.quiet { "(does not count at cfg 1)" } } }
                }
                @for (name, title, value) in rows(of) {
                    dt { (title) }
                    dd {
                        (value)
                        @if of.defaults.iter().any(|default| default == name) { " " span.quiet { "default" } }
                    }
                }
                @for part in &of.parts { dt { (title(part)) } dd { (part.name) " " span.quiet { (size(part.bytes)) " " code { (part.digest) } } } }
                @for lora in &of.loras { dt { "LoRA" } dd { (lora.name) " at " (lora.strength) @if let Some(note) = &lora.note { br; span.quiet { (note) } } } }
            }
        }
    }
}

/// The part of a model with a capital.
fn title(part: &ModelPart) -> String {
    let mut letters = part.part.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The settings that have a value: the field, its title, and the value in words.
fn rows(of: &JobSettings) -> Vec<(&'static str, &'static str, String)> {
    let number = |number: Option<f64>| number.map(|number| number.to_string()).unwrap_or_default();
    let seeds: Vec<String> = of.seeds.iter().map(u64::to_string).collect();
    let sigmas = of.sigmas.as_ref().map(|sigmas| {
        let shown: Vec<String> = sigmas.iter().take(12).map(f64::to_string).collect();
        format!("{}{}", shown.join(", "), if sigmas.len() > 12 { ", …" } else { "" })
    });
    let rows = [
        ("seeds", "Seed", seeds.join(", ")),
        ("width", "Size", format!("{}×{}", of.width, of.height)),
        ("frames", "Frames", if of.frames > 1 { of.frames.to_string() } else { String::new() }),
        ("fps", "Frames per second", if of.frames > 1 { of.fps.clone().unwrap_or_default() } else { String::new() }),
        ("batch", "Batch", if of.batch > 1 { of.batch.to_string() } else { String::new() }),
        ("steps", "Steps", of.steps.to_string()),
        ("sigmas", "Sigmas", sigmas.unwrap_or_default()),
        ("sampler", "Sampler", of.sampler.clone()),
        ("scheduler", "Scheduler", of.scheduler.clone().unwrap_or_default()),
        ("cfg", "cfg", of.cfg.to_string()),
        ("guidance", "Guidance", number(of.guidance)),
        ("shift", "Shift", number(of.shift)),
        ("image", "Begins with", begins_with(of)),
        ("denoise", "Denoise", if of.denoise < 1.0 { of.denoise.to_string() } else { String::new() }),
        ("reuse", "Reuse", number(of.reuse)),
        ("text_tokens", "Text tokens", of.text_tokens.map(|tokens| tokens.to_string()).unwrap_or_default()),
        ("as", "As", of.convention.clone()),
    ];
    rows.into_iter().filter(|(.., value)| !value.is_empty()).collect()
}

/// The files that a job begins with.
fn begins_with(of: &JobSettings) -> String {
    match (of.image, of.mask) {
        (false, _) => String::new(),
        (true, false) => "a picture".into(),
        (true, true) => "a picture, of which a mask says the part that is made anew".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_and_what_defaults_became_is_shown_and_escaped() {
        let of = JobSettings {
            prompt: Some("a <b>fox</b>".into()),
            negative_prompt: Some("bad".into()),
            width: 128,
            height: 96,
            frames: 1,
            batch: 1,
            seeds: vec![u64::MAX],
            steps: 12,
            sampler: "euler".into(),
            scheduler: Some("simple".into()),
            cfg: 1.0,
            denoise: 1.0,
            convention: "comfyui".into(),
            parts: vec![ModelPart { part: "VAE".into(), name: "ae".into(), bytes: 1, digest: "sampled:ab".into() }],
            defaults: vec!["steps".into()],
            ..JobSettings::default()
        };
        let html = settings(&of).into_string();
        for words in [
            "a &lt;b&gt;fox&lt;/b&gt;",
            "18446744073709551615",
            "128×96",
            "<dd>12 <span class=\"quiet\">default</span></dd>",
            "<dd>euler</dd>",
            "does not count at cfg 1",
            "sampled:ab",
        ] {
            assert!(html.contains(words), "{words}: {html}");
        }
        assert!(!html.contains("Guidance") && !html.contains("Frames"), "{html}");
    }
}
