//! The form of the page at `/prompt`. A field that is left empty is the model's own; the page shows
//! what that is, for the model that is chosen.

use maud::{Markup, html};
use tilewright_service_api::{JobRequest, SampleFields};

use crate::form;
use crate::submit::formats;
use crate::views::{PromptModel, PromptPage};

/// A number that may be left out.
struct Number {
    name: &'static str,
    label: &'static str,
    least: u64,
    most: u64,
    /// Any number between, or whole ones.
    step: &'static str,
    /// The model's own.
    usual: fn(&PromptModel) -> Option<String>,
    /// The value of a request.
    given: fn(&SampleFields) -> Option<String>,
}

fn words(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

const SIZE: [Number; 4] = [
    Number {
        name: "width",
        label: "Width",
        least: 16,
        most: 32_768,
        step: "1",
        usual: |model| words(Some(model.usual.width)),
        given: |sample| words(sample.width),
    },
    Number {
        name: "height",
        label: "Height",
        least: 16,
        most: 32_768,
        step: "1",
        usual: |model| words(Some(model.usual.height)),
        given: |sample| words(sample.height),
    },
    Number {
        name: "frames",
        label: "Frames",
        least: 1,
        most: 4096,
        step: "1",
        usual: |model| words(Some(model.usual.frames).filter(|frames| *frames > 1)),
        given: |sample| words(sample.frames),
    },
    Number {
        name: "batch",
        label: "How many",
        least: 1,
        most: 64,
        step: "1",
        usual: |_| Some("1".into()),
        given: |sample| words(sample.batch),
    },
];

const SAMPLING: [Number; 3] = [
    Number {
        name: "steps",
        label: "Steps",
        least: 1,
        most: 10_000,
        step: "1",
        usual: |model| words(Some(model.usual.steps)),
        given: |sample| words(sample.steps),
    },
    Number {
        name: "cfg",
        label: "Guidance (cfg)",
        least: 0,
        most: 100,
        step: "any",
        usual: |model| words(Some(model.usual.cfg)),
        given: |sample| words(sample.cfg),
    },
    Number {
        name: "guidance",
        label: "Guidance of the network",
        least: 0,
        most: 100,
        step: "any",
        usual: |model| words(model.usual.guidance),
        given: |sample| words(sample.guidance),
    },
];

/// The share of the way from noise to a picture that is gone again.
const DENOISE: Number = Number {
    name: "denoise",
    label: "Made anew (denoise)",
    least: 0,
    most: 1,
    step: "any",
    usual: |_| Some("1".into()),
    given: |sample| words(sample.denoise),
};

/// The largest whole number that every browser sends exactly.
const LARGEST_SEED: u64 = (1 << 53) - 1;

/// The form, filled in as the page asks.
pub(crate) fn form(view: &PromptPage) -> Markup {
    form::upload(&view.frame.form_token, "/actions/submit", "prompt", fields(view))
}

fn fields(view: &PromptPage) -> Markup {
    let empty = SampleFields::default();
    let filled = view.filled.as_ref();
    let sample = filled.and_then(|request| request.sample.as_deref()).unwrap_or(&empty);
    let text = |of: fn(&JobRequest) -> Option<&String>| filled.and_then(of).map_or("", String::as_str);
    let named = filled.map(|request| request.model.as_str());
    let chosen = view.models.iter().find(|model| Some(model.name.as_str()) == named).or(view.models.first());
    let seed = sample.seed.as_ref().map(|seed| seed.list()).filter(|seeds| seeds.len() == 1);
    html! {
        p.field.wide {
            label for="prompt-text" { "Prompt" }
            textarea #prompt-text name="prompt" rows="4" maxlength="100000" required spellcheck="true" autofocus[view.shown.is_none()] {
                // A parser takes the first line end away.
                "\n" (text(|request| request.prompt.as_ref()))
            }
        }
        div.row { @for number in &SIZE { (field(number, chosen, sample)) } }
        p.field.wide {
            label for="prompt-negative" { "Negative prompt " span.quiet { "counts where the guidance is not 1" } }
            textarea #prompt-negative name="negative_prompt" rows="2" maxlength="100000" {
                "\n" (text(|request| request.negative_prompt.as_ref()))
            }
        }
        div.row {
            p.field {
                label for="prompt-model" { "Model" }
                select #prompt-model name="model" {
                    @for model in &view.models { (option(model, chosen)) }
                }
            }
            p.field {
                label for="prompt-seed" { "Seed" }
                input #prompt-seed type="number" name="seed" min="0" max=(LARGEST_SEED) step="1" inputmode="numeric"
                    placeholder="random" value=[seed.and_then(|seeds| words(seeds.first()))];
            }
        }
        p.field { button.primary type="submit" { "Generate" } }
        fieldset {
            legend { "Sampling" }
            div.row {
                (names("sampler", "Sampler", &view.samplers, chosen.map(|model| model.usual.sampler.as_str()), sample.sampler.as_ref()))
                (names("scheduler", "Scheduler", &view.schedulers, chosen.and_then(|model| model.usual.scheduler.as_deref()), sample.scheduler.as_ref()))
                @for number in &SAMPLING { (field(number, chosen, sample)) }
            }
        }
        fieldset {
            legend { "Begin with a picture" }
            div.row {
                p.field {
                    label for="prompt-image" { "Picture " span.quiet { "its size counts" } }
                    input #prompt-image type="file" name="image" accept="image/png,image/jpeg,image/webp,image/gif";
                }
                p.field {
                    label for="prompt-mask" { "Mask " span.quiet { "white is made anew" } }
                    input #prompt-mask type="file" name="mask" accept="image/png,image/jpeg,image/webp,image/gif";
                }
                (field(&DENOISE, chosen, sample))
            }
        }
        p.field {
            label for="prompt-format" { "Result" }
            select #prompt-format name="format" {
                @for (value, words) in formats() {
                    @let is_chosen = filled.and_then(|request| request.format).is_some_and(|format| format.ending() == value);
                    option value=(value) selected[is_chosen] { (words) }
                }
            }
        }
    }
}

/// A model to choose, with what stands for empty fields: the page's script shows it when another
/// model is chosen.
fn option(model: &PromptModel, chosen: Option<&PromptModel>) -> Markup {
    let [width, height, frames, batch] = SIZE.map(|number| (number.usual)(model));
    let [steps, cfg, guidance] = SAMPLING.map(|number| (number.usual)(model));
    html! {
        option value=(model.name) selected[Some(model) == chosen]
            data-width=[width] data-height=[height] data-frames=[frames] data-batch=[batch]
            data-steps=[steps] data-cfg=[cfg] data-guidance=[guidance]
            data-sampler=(model.usual.sampler) data-scheduler=[model.usual.scheduler.as_ref()] { (model.name) }
    }
}

/// A number's field. What the chosen model takes stands in it while it is empty.
fn field(number: &Number, chosen: Option<&PromptModel>, sample: &SampleFields) -> Markup {
    let Number { name, label, least, most, step, usual, given } = number;
    let id = format!("prompt-{name}");
    let mode = if *step == "any" { "decimal" } else { "numeric" };
    html! {
        p.field {
            label for=(id) { (label) }
            input id=(id) type="number" name=(name) min=(least) max=(most) step=(step) inputmode=(mode)
                placeholder=[chosen.and_then(usual)] value=[given(sample)] data-usual=[(*name != DENOISE.name).then_some(name)];
        }
    }
}

/// A field with names, the first of which is the model's own.
fn names(name: &str, label: &str, known: &[String], usual: Option<&str>, given: Option<&String>) -> Markup {
    let id = format!("prompt-{name}");
    html! {
        p.field {
            label for=(id) { (label) }
            select id=(id) name=(name) {
                option value="" data-usual=(name) { (usual.map_or_else(|| "default".to_owned(), |usual| format!("{usual} (default)"))) }
                @for known in known { option value=(known) selected[given == Some(known)] { (known) } }
            }
        }
    }
}
