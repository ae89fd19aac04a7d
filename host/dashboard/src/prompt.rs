//! The page at `/prompt`: a picture first, beside it the form that makes the next one, and below
//! them the pictures and clips that came of prompts before.

use maud::html;

use crate::address;
use crate::form::offered;
use crate::frame::{page, parts, section};
use crate::gallery::{gallery, shown};
use crate::prompt_form::form;
use crate::views::PromptPage;

/// The page at `/prompt`.
pub fn prompt(view: &PromptPage) -> String {
    let no_model = html! {
        "No model reads prompts. Name one in the configuration, under " code { "[models.NAME]" } ", with its "
        code { "text-encoder" } ", " code { "transformer" } " and " code { "vae" } "."
    };
    let body = offered(&view.frame, !view.models.is_empty(), no_model, form(view));
    let content = html! {
        h1.unseen { "From a prompt" }
        div.studio {
            (shown(view))
            (section("prompt", "Make a picture", None, body))
            (gallery(view))
        }
    };
    page(&view.frame, "Prompt", &path(view), content).into_string()
}

/// The page's own address, by which its parts are renewed.
fn path(view: &PromptPage) -> String {
    match &view.shown {
        Some(shown) if view.is_named => address::prompt_of("job", &shown.job.id),
        _ => "/prompt".to_owned(),
    }
}

/// The parts of the page that change, each an element with its id: the picture and the gallery. The
/// form never changes, so that nothing typed into it is lost.
pub fn prompt_parts(view: &PromptPage) -> Vec<(&'static str, String)> {
    parts(&view.frame, [("shown", shown(view)), ("gallery", gallery(view))])
}

/// A prompt in a line of few letters, as the words for its picture.
pub(crate) fn brief(prompt: &str) -> String {
    const LETTERS: usize = 200;
    let line = prompt.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
