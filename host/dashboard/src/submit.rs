//! The form that sends a job.

use maud::{Markup, html};
use tilewright_config::Role;

use crate::form;
use crate::frame::section;
use crate::views::OverviewPage;

/// Formats of results, with their labels.
const FORMATS: [(&str, &str); 9] = [
    ("", "PNG, or MP4 for a clip"),
    ("png", "PNG"),
    ("jpg", "JPEG"),
    ("webp", "WebP"),
    ("safetensors", "safetensors, not clamped"),
    ("mp4", "MP4"),
    ("webm", "WebM"),
    ("mkv", "Matroska"),
    ("gif", "GIF"),
];

const OBJECTIVES: [(&str, &str); 4] = [
    ("", "as the route says"),
    ("fastest", "fastest"),
    ("balanced", "balanced"),
    ("leanest", "leanest: the least memory"),
];

/// Formats of results.
pub(crate) fn formats() -> impl Iterator<Item = (&'static str, &'static str)> {
    FORMATS.into_iter()
}

/// The element with the id `submit`. It never changes, so that nothing typed into it is lost.
pub(crate) fn submit(view: &OverviewPage) -> Markup {
    let fields = html! {
        (choice("submit-model", "model", "Model", view.models.iter().map(|model| (model.as_str(), model.as_str()))))
        p.field {
            label for="submit-latent" { "Latent" }
            input #submit-latent type="file" name="latent" accept=".latent,.safetensors" required;
        }
        (choice("submit-format", "format", "Result", formats()))
        (choice("submit-objective", "objective", "Objective", OBJECTIVES.into_iter()))
        p.field {
            label for="submit-tag" { "Tag " span.quiet { "optional" } }
            input #submit-tag type="text" name="tag" autocomplete="off" spellcheck="false" maxlength="64";
        }
        p.field { button.primary type="submit" { "Decode" } }
    };
    let body = html! {
        @if view.frame.role < Role::Submit {
            p.empty { "The token that you signed in with is good for looking only." }
        } @else if view.models.is_empty() {
            p.empty {
                "No model is set up. Name one in the configuration, under " code { "[models.NAME]" } ", with its " code { "vae" } "."
            }
        } @else {
            (form::upload(&view.frame.form_token, "/actions/submit", "fields", fields))
        }
    };
    section("submit", "New job", None, body)
}

/// A field with options, each a value and its words.
pub(crate) fn choice<'a>(
    id: &str,
    name: &str,
    label: &str,
    options: impl Iterator<Item = (&'a str, &'a str)>,
) -> Markup {
    html! {
        p.field {
            label for=(id) { (label) }
            select id=(id) name=(name) {
                @for (value, words) in options { option value=(value) { (words) } }
            }
        }
    }
}
