//! The kinds of work on a page: what is shown of their requests, plans, prices and outcomes.

use std::time::Duration;

use maud::{Markup, html};
use tilewright_plan::{
    AnyPlan, Capabilities, Cost, Denoise, DenoiseCapabilities, DenoiseCost, DenoiseOutcome, DenoisePlan,
    DenoiseRequest, Dtype, Outcome, Plan, Request, Text, TextCapabilities, TextCost, TextOutcome, TextPlan,
    TextRequest, Vae, Work, of_any,
};

use crate::phrases;
use crate::units::{count, count_of, extent, number, percent, size, span};

/// A kind of work that pages show.
pub(crate) trait Shown: Work {
    /// The name of the time that prices and outcomes are compared by.
    const TIME: &'static str;

    /// The work in a line.
    fn work(request: &Self::Request) -> String;

    /// The model in a line.
    fn model(request: &Self::Request) -> String;

    /// True if the limit counts the weights.
    fn counts_weights(_: &Self::Request) -> bool {
        true
    }

    /// Names and values, in the order of the record.
    fn capabilities(of: &Self::Capabilities) -> Vec<(&'static str, String)>;

    /// A plan in a line.
    fn plan(plan: &Self::Plan) -> String;

    /// The time of an outcome that is compared with a price's.
    fn measured_time(outcome: &Self::Outcome) -> Duration {
        Duration::try_from_secs_f64(Self::measured(outcome)[0]).unwrap_or_default()
    }

    /// Further facts of a price.
    fn about_cost(cost: &Self::Cost) -> Markup;

    /// Further facts of an outcome.
    fn about_outcome(outcome: &Self::Outcome) -> Markup;
}

fn names(dtypes: &[Dtype]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(",")
}

/// Names and values of capabilities, after the types.
macro_rules! facts {
    ($of:ident: $($fact:ident),*) => {
        vec![("dtypes", names(&$of.dtypes)), $((stringify!($fact), $of.$fact.to_string())),*]
    };
}

impl Shown for Vae {
    const TIME: &'static str = "Time";

    fn work(request: &Request) -> String {
        let work = extent(request.width, request.height, request.frames, request.batch);
        let allowed = if request.allows_blended { ", blended tiles allowed" } else { "" };
        format!("{work}, {}{allowed}", phrases::objective(request.objective))
    }

    fn model(request: &Request) -> String {
        let model = &request.model;
        let quantized = if model.quantized { ", quantized" } else { "" };
        format!("{}, {}{quantized}, {} of weights", model.family, model.stored, size(model.parameter_bytes))
    }

    fn counts_weights(request: &Request) -> bool {
        request.limit_counts_weights
    }

    fn capabilities(of: &Capabilities) -> Vec<(&'static str, String)> {
        facts!(of: tile_unit, tile_least, batch_most, exact, carried, offload, prefetch_most)
    }

    fn plan(plan: &Plan) -> String {
        phrases::plan(plan)
    }

    fn about_cost(cost: &Cost) -> Markup {
        html! {
            (count_of(cost.tiles.into(), "tile", "tiles")) ", " (count_of(cost.shapes.into(), "shape", "shapes"))
            ", " (number(cost.rework)) " times the output computed."
        }
    }

    fn about_outcome(outcome: &Outcome) -> Markup {
        html! {
            "Weights were read in " (span(outcome.load)) ". The pool served " (count(outcome.pool.hits))
            " requests and asked the system for " (count(outcome.pool.misses)) "; it held "
            (size(outcome.pool.held_bytes)) " at the end."
        }
    }
}

impl Shown for Denoise {
    const TIME: &'static str = "Time of a step";

    fn work(request: &DenoiseRequest) -> String {
        let work = extent(request.width, request.height, request.frames, request.batch);
        let passes = count_of(request.passes.into(), "pass", "passes");
        let steps = count_of(request.steps.into(), "step", "steps");
        format!("latent of {work}, {steps} of {}, {passes}, {}", request.sampler, phrases::objective(request.objective))
    }

    fn model(request: &DenoiseRequest) -> String {
        let model = &request.model;
        let experts = if model.experts > 1 { format!(", {} experts", model.experts) } else { String::new() };
        format!(
            "{}{experts}, {} of weights in {}, {}",
            model.family,
            size(model.stored_bytes),
            model.stored,
            count_of(model.blocks.into(), "block", "blocks")
        )
    }

    fn capabilities(of: &DenoiseCapabilities) -> Vec<(&'static str, String)> {
        facts!(of: fp8_products, int8_products, fused_attention, queries_least, ahead_most, parts_most, reuse_most)
    }

    fn plan(plan: &DenoisePlan) -> String {
        Self::without_reason(plan).to_string()
    }

    fn about_cost(cost: &DenoiseCost) -> Markup {
        html! { (size(cost.weights_bytes)) " of weights, " (size(cost.moved_bytes)) " read again in each step." }
    }

    fn about_outcome(outcome: &DenoiseOutcome) -> Markup {
        html! {
            (span(outcome.elapsed)) " in all; weights were read in " (span(outcome.load)) ", and " (size(outcome.moved_bytes))
            " again meanwhile. The pool served " (count(outcome.pool.hits)) " requests and asked the system for "
            (count(outcome.pool.misses)) "."
            @if outcome.reused > 0 {
                " Earlier work served " (count_of(outcome.reused.into(), "run", "runs")) " of the network once more, over changes of up to "
                (percent(outcome.reuse_deviation)) "."
            }
        }
    }
}

impl Shown for Text {
    const TIME: &'static str = "Time";

    fn work(request: &TextRequest) -> String {
        let texts = count_of(request.tokens.len() as u64, "text", "texts");
        let tokens = count_of(request.all_tokens(), "token", "tokens");
        format!("{texts} of {tokens} in all, {}", phrases::objective(request.objective))
    }

    fn model(request: &TextRequest) -> String {
        let model = &request.model;
        let stored: Vec<&str> = model.stored_types.iter().map(|stored| stored.name.as_str()).collect();
        let blocks = count_of(model.blocks.into(), "block", "blocks");
        format!("{}, {} of weights in {}, {blocks}", model.kind, size(model.parameter_bytes), stored.join(", "))
    }

    fn capabilities(of: &TextCapabilities) -> Vec<(&'static str, String)> {
        let words = |words: Vec<String>| words.join(",");
        vec![
            ("dtypes", names(&of.dtypes)),
            ("places", words(of.places.iter().map(ToString::to_string).collect())),
            ("weights", words(of.weights.iter().map(|form| form.to_string()).collect())),
            ("kept", of.kept.to_string()),
        ]
    }

    fn plan(plan: &TextPlan) -> String {
        Self::without_reason(plan).to_string()
    }

    fn about_cost(cost: &TextCost) -> Markup {
        html! { (size(cost.weights_bytes)) " of weights, loaded in " (span(cost.load)) "." }
    }

    fn about_outcome(outcome: &TextOutcome) -> Markup {
        html! {
            "Weights were read in " (span(outcome.load)) ". The pool served " (count(outcome.pool.hits))
            " requests and asked the system for " (count(outcome.pool.misses)) "."
        }
    }
}

/// A plan of any kind of work in a line.
pub(crate) fn any_plan(plan: &AnyPlan) -> String {
    of_any!(plan, plan: W => W::plan(plan))
}
