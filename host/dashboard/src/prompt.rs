//! The page at `/prompt`: a prompt becomes a job. The page of the job shows its steps and the
//! result.

use maud::{Markup, html};
use tilewright_config::Role;

use crate::form;
use crate::frame::{page, section};
use crate::submit::{choice, formats};
use crate::views::PromptPage;

/// Numbers that may be left out: name, label, the least and the most.
const NUMBERS: [(&str, &str, u64, u64); 6] = [
    ("width", "Width", 16, 32_768),
    ("height", "Height", 16, 32_768),
    ("frames", "Frames of a clip", 1, 4096),
    ("steps", "Steps", 1, 10_000),
    // The largest whole number that every browser sends exactly.
    ("seed", "Seed", 0, (1 << 53) - 1),
    ("batch", "How many", 1, 64),
];

/// The page at `/prompt`.
pub fn prompt(view: &PromptPage) -> String {
    let body = html! {
        @if view.frame.role < Role::Submit {
            p.empty { "The token that you signed in with is good for looking only." }
        } @else if view.models.is_empty() {
            p.empty {
                "No model reads prompts. Name one in the configuration, under " code { "[models.NAME]" } ", with its "
                code { "text-encoder" } ", " code { "transformer" } " and " code { "vae" } "."
            }
        } @else {
            (form::upload(&view.frame.form_token, "/actions/submit", "fields prompt", fields(view)))
        }
    };
    let content = html! {
        h1 { "From a prompt" }
        (section("prompt", "Prompt", None, body))
    };
    page(&view.frame, "Prompt", "/prompt", content).into_string()
}

fn fields(view: &PromptPage) -> Markup {
    html! {
        p.field.wide {
            label for="prompt-text" { "Prompt" }
            textarea #prompt-text name="prompt" rows="4" maxlength="100000" required autofocus spellcheck="true" {}
        }
        p.field.wide {
            label for="prompt-negative" { "Negative prompt " span.quiet { "optional, counts if guidance is not 1" } }
            textarea #prompt-negative name="negative_prompt" rows="2" maxlength="100000" {}
        }
        (choice("prompt-model", "model", "Model", view.models.iter().map(|model| (model.as_str(), model.as_str()))))
        @for (name, label, least, most) in NUMBERS {
            p.field {
                label for={ "prompt-" (name) } { (label) " " span.quiet { "optional" } }
                input id={ "prompt-" (name) } type="number" name=(name) min=(least) max=(most) step="1" inputmode="numeric";
            }
        }
        p.field {
            label for="prompt-cfg" { "Guidance (cfg) " span.quiet { "optional" } }
            input #prompt-cfg type="number" name="cfg" min="0" max="100" step="any" inputmode="decimal";
        }
        (choice("prompt-format", "format", "Result", formats()))
        p.field { button.primary type="submit" { "Generate" } }
    }
}
