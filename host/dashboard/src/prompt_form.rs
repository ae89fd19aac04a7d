//! The form of the page at `/prompt`. A field that is left empty is the model's own; the page shows
//! what that is, for the model that is chosen.

use maud::{Markup, html};
use tilewright_service_api::{JobRequest, OutputFormat, SampleFields};

use crate::form::{self, choice, options};
use crate::submit::FORMATS;
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
    given: fn(&JobRequest) -> Option<String>,
}

impl Number {
    const fn whole(name: &'static str, label: &'static str, least: u64, most: u64) -> Self {
        Self { name, label, least, most, step: "1", usual: |_| None, given: |_| None }
    }

    const fn any(name: &'static str, label: &'static str, most: u64) -> Self {
        Self { step: "any", ..Self::whole(name, label, 0, most) }
    }

    /// The same with the model's own and the value of a request.
    const fn of(self, usual: fn(&PromptModel) -> Option<String>, given: fn(&JobRequest) -> Option<String>) -> Self {
        Self { usual, given, ..self }
    }
}

fn sample(request: &JobRequest) -> Option<&SampleFields> {
    request.sample.as_deref()
}

fn words(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

const SIZE: [Number; 4] = [
    Number::whole("width", "Width", 16, 32_768)
        .of(|model| words(Some(model.usual.width)), |request| words(sample(request)?.width)),
    Number::whole("height", "Height", 16, 32_768)
        .of(|model| words(Some(model.usual.height)), |request| words(sample(request)?.height)),
    Number::whole("frames", "Frames", 1, 4096).of(
        |model| words(Some(model.usual.frames).filter(|frames| *frames > 1)),
        |request| words(sample(request)?.frames),
    ),
    Number::whole("batch", "How many", 1, 64).of(|_| Some("1".into()), |request| words(sample(request)?.batch)),
];

const SAMPLING: [Number; 5] = [
    Number::whole("steps", "Steps", 1, 10_000)
        .of(|model| words(Some(model.usual.steps)), |request| words(sample(request)?.steps)),
    Number::any("cfg", "Guidance (cfg)", 100)
        .of(|model| words(Some(model.usual.cfg)), |request| words(sample(request)?.cfg)),
    Number::any("guidance", "Guidance of the network", 100)
        .of(|model| words(model.usual.guidance), |request| words(sample(request)?.guidance)),
    Number::any("shift", "Shift", 1000).of(|model| words(model.usual.shift), |request| words(sample(request)?.shift)),
    Number::whole("text_tokens", "Tokens of T5", 3, 512)
        .of(|model| words(model.usual.text_tokens), |request| words(request.text_tokens)),
];

/// The share of the way from noise to a picture that is gone again.
const DENOISE: Number = Number::any("denoise", "Made anew (denoise)", 1)
    .of(|_| Some("1".into()), |request| words(sample(request)?.denoise));

/// Seeds as the service reads them: numbers of 64 bits, which a field for numbers would round.
const SEEDS: &str = "random|-1|[0-9]{1,20}( *, *[0-9]{1,20})*";

/// The rows for LoRAs, and those that are left empty beside what the form is filled in with.
const LORA_ROWS: usize = 3;

/// The references that a sample may follow.
const CONVENTIONS: [&str; 2] = ["comfyui", "diffusers"];

/// The form, filled in as the page asks.
pub(crate) fn form(view: &PromptPage) -> Markup {
    form::upload(&view.frame.form_token, "/actions/submit", "prompt", fields(view))
}

fn fields(view: &PromptPage) -> Markup {
    let filled = view.filled.as_ref().map(|filled| &filled.request);
    let sample = filled.and_then(sample);
    let text = |of: fn(&JobRequest) -> Option<&String>| filled.and_then(of).map_or("", String::as_str);
    let named = filled.map(|request| request.model.as_str());
    let chosen = view.models.iter().find(|model| Some(model.name.as_str()) == named).or(view.models.first());
    let seeds =
        sample.and_then(|sample| sample.seed.as_ref()).map(|seed| seed.list()).filter(|seeds| !seeds.is_empty());
    let seeds = seeds.map(|seeds| seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", "));
    let format = filled.and_then(|request| request.format).map(OutputFormat::ending);
    html! {
        p.field.wide {
            label for="prompt-text" { "Prompt" }
            textarea #prompt-text name="prompt" rows="4" maxlength="100000" required spellcheck="true" autofocus[view.shown.is_none()] {
                // A parser takes the first line end away.
                "\n" (text(|request| request.prompt.as_ref()))
            }
        }
        div.row { @for number in &SIZE { (field(number, chosen, filled)) } }
        p.field.wide {
            label for="prompt-negative" { "Negative prompt " span.quiet { "counts where the guidance is not 1" } }
            textarea #prompt-negative name="negative_prompt" rows="2" maxlength="100000" {
                "\n" (text(|request| request.negative_prompt.as_ref()))
            }
        }
        div.row {
            (choice("prompt-model", "model", "Model", html! { @for model in &view.models { (option(model, chosen)) } }))
            p.field {
                label for="prompt-seed" { "Seed" }
                input #prompt-seed type="text" name="seed" pattern=(SEEDS) inputmode="numeric" autocomplete="off"
                    placeholder="random" title="a whole number, or one for each picture with commas between" value=[seeds];
            }
        }
        p.field { button.primary type="submit" { "Generate" } }
        fieldset {
            legend { "Sampling" }
            div.row {
                (names("sampler", "Sampler", &view.samplers, chosen.map(|model| model.usual.sampler.as_str()), sample.and_then(|sample| sample.sampler.as_ref())))
                (names("scheduler", "Scheduler", &view.schedulers, chosen.and_then(|model| model.usual.scheduler.as_deref()), sample.and_then(|sample| sample.scheduler.as_ref())))
                @for number in &SAMPLING { (field(number, chosen, filled)) }
                (names("as", "As", &CONVENTIONS, chosen.map(|model| model.usual.convention.as_str()), sample.and_then(|sample| sample.convention.as_ref())))
            }
        }
        (loras(view))
        fieldset {
            legend { "Begin with a picture" }
            div.row {
                @for file in view.filled.iter().flat_map(|filled| &filled.files) {
                    p.wide { "It had a " (file) ": choose it again." }
                }
                p.field {
                    label for="prompt-image" { "Picture " span.quiet { "its size counts" } }
                    input #prompt-image type="file" name="image" accept="image/png,image/jpeg,image/webp,image/gif";
                }
                p.field {
                    label for="prompt-mask" { "Mask " span.quiet { "white is made anew" } }
                    input #prompt-mask type="file" name="mask" accept="image/png,image/jpeg,image/webp,image/gif";
                }
                (field(&DENOISE, chosen, filled))
            }
        }
        (choice("prompt-format", "format", "Result", options(FORMATS, format)))
        (form::profile("prompt-profile", filled.is_some_and(|request| request.profile)))
        @if let Some(rest) = view.filled.as_ref().and_then(|filled| filled.rest.as_ref()) {
            p.quiet {
                "It keeps what has no field here: "
                @for (place, name) in rest.names.iter().enumerate() { @if place > 0 { ", " } code { (name) } }
                ". " a href="/prompt" { "Begin with an empty form" }
            }
            input type="hidden" name="rest" value=(rest.json);
        }
    }
}

/// The fields of LoRAs, if a model offers any.
fn loras(view: &PromptPage) -> Markup {
    let given = view.filled.as_ref().map_or(&[][..], |filled| &filled.loras);
    let offered = || view.models.iter().flat_map(|model| model.loras.iter().map(move |lora| (lora, model)));
    let rows = given.iter().map(Some).chain(std::iter::repeat(None)).take(LORA_ROWS.max(given.len()));
    html! {
        @if !given.is_empty() || offered().next().is_some() {
            fieldset {
                legend { "LoRA" }
                @for (row, lora) in rows.enumerate() {
                    @let (name, strength) = (format!("prompt-lora-{row}"), format!("prompt-strength-{row}"));
                    div.row {
                        p.field {
                            label for=(name) { "LoRA" }
                            input id=(name) type="text" name="lora" list="prompt-loras" autocomplete="off" spellcheck="false"
                                placeholder="none" value=[lora.map(|(name, _)| name)];
                        }
                        p.field {
                            label for=(strength) { "Strength" }
                            input id=(strength) type="number" name="lora_strength" step="any" inputmode="decimal" placeholder="1"
                                value=[lora.map(|(_, strength)| strength)];
                        }
                    }
                }
                datalist #prompt-loras {
                    @for (lora, model) in offered() { option value=(lora) { (lora) " of " (model.name) } }
                }
            }
        }
    }
}

/// A model to choose, with what stands for empty fields: the page's script shows it when another
/// model is chosen.
fn option(model: &PromptModel, chosen: Option<&PromptModel>) -> Markup {
    let [width, height, frames, batch] = SIZE.map(|number| (number.usual)(model));
    let [steps, cfg, guidance, shift, tokens] = SAMPLING.map(|number| (number.usual)(model));
    html! {
        option value=(model.name) selected[Some(model) == chosen]
            data-width=[width] data-height=[height] data-frames=[frames] data-batch=[batch]
            data-steps=[steps] data-cfg=[cfg] data-guidance=[guidance] data-shift=[shift] data-text_tokens=[tokens]
            data-sampler=(model.usual.sampler) data-scheduler=[model.usual.scheduler.as_ref()]
            data-as=(model.usual.convention) { (model.name) }
    }
}

/// A number's field. What the chosen model takes stands in it while it is empty.
fn field(number: &Number, chosen: Option<&PromptModel>, filled: Option<&JobRequest>) -> Markup {
    let Number { name, label, least, most, step, usual, given } = number;
    let id = format!("prompt-{name}");
    let mode = if *step == "any" { "decimal" } else { "numeric" };
    html! {
        p.field {
            label for=(id) { (label) }
            input id=(id) type="number" name=(name) min=(least) max=(most) step=(step) inputmode=(mode)
                placeholder=[chosen.and_then(usual)] value=[filled.and_then(given)] data-usual=[(*name != DENOISE.name).then_some(name)];
        }
    }
}

/// A field with names, the first of which is the model's own.
fn names<Name: AsRef<str>>(
    name: &str,
    label: &str,
    known: &[Name],
    usual: Option<&str>,
    given: Option<&String>,
) -> Markup {
    let names = html! {
        option value="" data-usual=(name) { (usual.map_or_else(|| "default".to_owned(), |usual| format!("{usual} (default)"))) }
        (options(known.iter().map(|known| (known.as_ref(), known.as_ref())), given.map(String::as_str)))
    };
    choice(&format!("prompt-{name}"), name, label, names)
}
