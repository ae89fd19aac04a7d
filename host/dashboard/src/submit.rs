//! The form that sends a job.

use maud::{Markup, html};

use crate::form::{self, choice, options};
use crate::frame::section;
use crate::views::OverviewPage;

/// Formats of results, with their labels.
pub(crate) const FORMATS: [(&str, &str); 9] = [
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

/// The element with the id `submit`. It never changes, so that nothing typed into it is lost.
pub(crate) fn submit(view: &OverviewPage) -> Markup {
    let fields = html! {
        (choice("submit-model", "model", "Model", options(view.models.iter().map(|model| (model, model)), None)))
        p.field {
            label for="submit-latent" { "Latent" }
            input #submit-latent type="file" name="latent" accept=".latent,.safetensors" required;
        }
        (choice("submit-format", "format", "Result", options(FORMATS, None)))
        (choice("submit-objective", "objective", "Objective", options(OBJECTIVES, None)))
        p.field {
            label for="submit-tag" { "Tag " span.quiet { "optional" } }
            input #submit-tag type="text" name="tag" autocomplete="off" spellcheck="false" maxlength="64";
        }
        (form::profile("submit-profile", false))
        p.field { button.primary type="submit" { "Decode" } }
    };
    let no_model = html! {
        "No model is set up. Name one in the configuration, under " code { "[models.NAME]" } ", with its " code { "vae" } "."
    };
    let form = form::upload(&view.frame.form_token, "/actions/submit", "fields", fields);
    let body = form::offered(&view.frame, !view.models.is_empty(), no_model, form);
    section("submit", "New job", None, body)
}
