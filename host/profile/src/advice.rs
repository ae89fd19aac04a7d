//! Advice by rules: what takes long, and the setting that may help. Settings are those of plans.

use tilewright_wording::Setting;

use crate::{
    Category::{self, Attention, Convolution, Copies, Expansion, Gemm, Host, LaunchGaps, Layout},
    LayerRow, Profile,
    units::percent,
};

/// A line that is given where it applies.
struct Rule {
    applies: fn(&Profile) -> bool,
    words: fn(&Profile) -> String,
}

/// The share of GEMM that is worth a word, and those of others.
const MANY_PRODUCTS: f64 = 0.5;
const MUCH_EXPANSION: f64 = 0.2;
const MANY_GAPS: f64 = 0.2;
const MUCH_OF_THE_HOST: f64 = 0.25;
const MANY_COPIES: f64 = 0.1;
const MUCH_ATTENTION: f64 = 0.1;
const MUCH_CONVOLUTION: f64 = 0.2;

/// The mean time of a kernel below which its launch costs about as much.
const SMALL_KERNEL_MS: f64 = 0.01;

/// The share of the roof below which convolutions are slow.
const FAR_BELOW_ROOF: f64 = 0.3;

/// Layers that are named.
const NAMED: usize = 3;

/// Every rule, the most rewarding first.
const RULES: &[Rule] = &[
    Rule {
        applies: |profile| profile.share(Gemm) > MANY_PRODUCTS && profile.facts.in_f32,
        words: |profile| format!("{}, in f32: try {}", takes(profile, Gemm), set(profile, "precision=bf16")),
    },
    Rule {
        applies: |profile| {
            profile.share(Gemm) > MANY_PRODUCTS && !profile.facts.in_f32 && largest(profile, Gemm).next().is_some()
        },
        words: |profile| {
            let layers = largest(profile, Gemm).take(NAMED);
            let share = |layer: &LayerRow| percent(layer.total_ms / profile.stage_ms);
            let named: Vec<String> = layers.map(|layer| format!("{} ({})", layer.name, share(layer))).collect();
            format!("{}: the most in {}", takes(profile, Gemm), named.join(", "))
        },
    },
    Rule {
        applies: |profile| profile.share(Expansion) > MUCH_EXPANSION && has_packed_weights(profile),
        words: |profile| {
            let set = set(profile, "weights=expanded");
            format!("{}: if expanded weights fit, try {set}", takes(profile, Expansion))
        },
    },
    Rule {
        applies: |profile| has_pieces(profile) && profile.facts.stage == DENOISE,
        words: |profile| {
            let set = set(profile, "attention=fused");
            format!("{}, in pieces: if the device has a fused kernel, try {set}", takes(profile, Attention))
        },
    },
    Rule {
        applies: |profile| has_pieces(profile) && profile.facts.stage != DENOISE,
        words: |profile| {
            format!("{}, in pieces: a device with a fused kernel for it would be faster", takes(profile, Attention))
        },
    },
    Rule {
        applies: |profile| has_small_kernels(profile) && profile.share(LaunchGaps) > MANY_GAPS,
        words: |profile| {
            let of_stage = match profile.facts.stage.as_str() {
                DENOISE => format!("more samples at once, as by {}", set(profile, "guidance=together")),
                TEXT => "more texts at once".to_owned(),
                _ => {
                    let larger = by_hand(profile, &["space=exact", "tile=1024", "batch=4"]);
                    format!("larger tiles, more of them at once, as by {larger}, or layout=channels-last")
                }
            };
            format!("{}, between kernels of less than 10 µs: try {of_stage}", takes(profile, LaunchGaps))
        },
    },
    Rule {
        applies: |profile| profile.share(Host) > MUCH_OF_THE_HOST,
        words: |profile| {
            let waits = if profile.facts.on_gpu { " while the GPU waits" } else { "" };
            let cause = match is_streamed(profile) {
                true => format!("weights come too late; if they fit, try {}", set(profile, "ahead=all")),
                false => "the trace shows what it does".to_owned(),
            };
            format!("{}{waits}: {cause}", takes(profile, Host))
        },
    },
    Rule {
        applies: |profile| {
            let below = profile.category(Convolution).and_then(|row| row.of_roof);
            let is_far = below.is_some_and(|share| share < FAR_BELOW_ROOF);
            profile.facts.on_gpu && profile.share(Convolution) > MUCH_CONVOLUTION && is_far && is_vae(profile)
        },
        words: |profile| {
            let below = profile.category(Convolution).and_then(|row| row.of_roof).unwrap_or_default();
            let smaller = by_hand(profile, &["space=exact", "tile=512"]);
            let layout = by_hand(profile, &["layout=channels-last"]);
            format!(
                "{} at {} of the device's peak: MIOpen or cuDNN may lack a fast kernel for this size; try {smaller}, or \
                 another memory order, as by {layout}",
                takes(profile, Convolution),
                percent(below)
            )
        },
    },
    Rule {
        applies: |profile| profile.share(Copies) > MANY_COPIES && is_mixed(profile),
        words: |profile| {
            let set = set(profile, "precision=bf16");
            format!("{}: one type for all needs fewer than a mixed one; try {set}", takes(profile, Copies))
        },
    },
    Rule {
        applies: |profile| profile.share(Copies) > MANY_COPIES && !is_mixed(profile) && has_weights_as_stored(profile),
        words: |profile| {
            let set = set(profile, "weights=expanded");
            format!("{}: if weights fit in the type of products, try {set}", takes(profile, Copies))
        },
    },
    Rule {
        applies: |profile| profile.share(Layout) > MANY_COPIES && is_vae(profile),
        words: |profile| {
            let set = by_hand(profile, &["layout=channels-last"]);
            format!("{}: another memory order may need fewer; try {set}, or channels-first", takes(profile, Layout))
        },
    },
    Rule {
        applies: |profile| profile.share(Layout) > MANY_COPIES && !is_vae(profile),
        words: |profile| format!("{}: the table of operators shows which", takes(profile, Layout)),
    },
];

/// The stages whose settings differ from a decode's.
const DENOISE: &str = "denoise";
const TEXT: &str = "text";

/// The lines of the rules that apply.
pub fn of(profile: &Profile) -> Vec<String> {
    RULES.iter().filter(|rule| (rule.applies)(profile)).map(|rule| (rule.words)(profile)).collect()
}

/// The beginning of a line: `matrix products take 62.0 % of the time`.
fn takes(profile: &Profile, category: Category) -> String {
    let (what, verb) = match category {
        Gemm => ("matrix products", "take"),
        Convolution => ("convolutions", "take"),
        Category::Norm => ("norms", "take"),
        Attention => ("attention", "takes"),
        Category::Elementwise => ("operations on single values", "take"),
        Copies => ("copies and conversions", "take"),
        Layout => ("changes of memory order", "take"),
        Expansion => ("expansion of packed weights", "takes"),
        LaunchGaps => ("launches", "take"),
        Host => ("the host", "takes"),
    };
    format!("{what} {verb} {} of the time", percent(profile.share(category)))
}

/// A setting of the stage, as a user gives it.
fn set(profile: &Profile, setting: &str) -> String {
    format!("{} {}.{setting}", Setting::Set, profile.facts.stage)
}

/// Settings that only the policy `fixed` has.
fn by_hand(profile: &Profile, settings: &[&str]) -> String {
    let settings: Vec<String> = settings.iter().map(|setting| set(profile, setting)).collect();
    format!("{} {}=fixed {}", Setting::Policy, profile.facts.stage, settings.join(" "))
}

fn is_vae(profile: &Profile) -> bool {
    ![DENOISE, TEXT].contains(&profile.facts.stage.as_str())
}

/// True for the stages whose weights can be held expanded.
fn has_packed_weights(profile: &Profile) -> bool {
    !is_vae(profile)
}

fn has_pieces(profile: &Profile) -> bool {
    profile.facts.manual_attention && profile.share(Attention) > MUCH_ATTENTION
}

/// True if weights come while a sample runs, as a plan's words say.
fn is_streamed(profile: &Profile) -> bool {
    profile.facts.stage == DENOISE && profile.facts.plan.contains(", read ")
}

fn is_mixed(profile: &Profile) -> bool {
    profile.facts.plan.contains("mixed")
}

/// True if weights are converted where they are used, as a plan's words say.
fn has_weights_as_stored(profile: &Profile) -> bool {
    has_packed_weights(profile) && profile.facts.plan.contains("weights as stored")
}

fn has_small_kernels(profile: &Profile) -> bool {
    let (calls, time) =
        profile.kernels.iter().fold((0, 0.0), |(calls, time), row| (calls + row.calls, time + row.total_ms));
    calls > 0 && time / (calls as f64) < SMALL_KERNEL_MS
}

/// Layers of a category, the longest first.
fn largest(profile: &Profile, category: Category) -> impl Iterator<Item = &LayerRow> {
    let mut layers: Vec<&LayerRow> = profile.layers.iter().filter(|layer| layer.category == category).collect();
    layers.sort_by(|one, other| other.total_ms.total_cmp(&one.total_ms));
    layers.into_iter()
}
