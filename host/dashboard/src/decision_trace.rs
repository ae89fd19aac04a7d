//! The trace of a decision, in order: the request, the route and policy, the plans priced, the
//! answer, the changes by the host's checks, and the outcome.

use std::time::Duration;

use maud::{Markup, html};
use tilewright_plan::{Capabilities, FailedAttempt, LogLevel, Record};
use tilewright_service_api::Job;

use crate::candidates::candidates;
use crate::routes::policy;
use crate::table::{Column, Row, table};
use crate::units::{NONE, count, count_of, decibels, digest, extent, number, percent, size, span};
use crate::views::{DecisionTrace, IncumbentDecode};
use crate::{address, phrases};

/// The section with the trace.
pub(crate) fn decision_trace(job: &Job, trace: &DecisionTrace) -> Markup {
    let record = &trace.record;
    html! {
        section.panel.story aria-labelledby="story-title" {
            h2 #story-title { "How it was decided" }
            ol.steps {
                (step("Asked", request(record)))
                (step("Route and policy", route_choice(trace)))
                (step("Weighed", candidates(trace)))
                @if !trace.log.is_empty() { (step("Logged by the policy", log(trace))) }
                (step("Answered", answer(record)))
                @if !record.attempts.is_empty() { (step("Tried and failed", attempts(&record.attempts))) }
                (step("Estimated and measured", measurements(record)))
                @if let Some(compared) = &trace.incumbent { (step("Compared", incumbent(compared))) }
            }
            details.record id=(address::id("record", &job.id)) {
                summary { "The record as JSON" }
                pre tabindex="0" { code { (trace.json) } }
            }
        }
    }
}

fn step(title: &str, content: Markup) -> Markup {
    html! { li { h3 { (title) } (content) } }
}

fn request(record: &Record) -> Markup {
    let (request, model, device) = (&record.request, &record.request.model, &record.device);
    html! {
        dl {
            dt { "Work" }
            dd { (extent(request.width, request.height, request.frames, request.batch)) ", " (phrases::objective(request.objective)) }
            dt { "Model" }
            dd {
                (model.family) ", " (model.stored) @if model.quantized { ", quantized" }
                ", " (size(model.parameter_bytes)) " of weights"
            }
            dt { "Device" }
            dd {
                (device.name) ", " (device.arch) ", " (size(device.free_bytes)) " of " (size(device.total_bytes)) " free"
                @if device.unified { ", shared with the host" }
            }
            dt { "Memory limit" } dd { (size(request.memory_limit)) @if request.limit_counts_weights { ", weights included" } }
            @if let Some(of) = &record.capabilities {
                dt { "Capabilities" }
                dd { ul.plain { @for (name, value) in capabilities(of) { li { code { (name) "=" (value) } } } } }
            }
            @if !request.hints.is_empty() {
                dt { "Hints" }
                dd { ul.plain { @for hint in &request.hints { li { code { (hint.name) "=" (hint.value) } } } } }
            }
        }
    }
}

/// Names and values, in the order of the record.
fn capabilities(of: &Capabilities) -> [(&'static str, String); 8] {
    [
        ("dtypes", of.dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(",")),
        ("tile_unit", of.tile_unit.to_string()),
        ("tile_least", of.tile_least.to_string()),
        ("batch_most", of.batch_most.to_string()),
        ("exact", of.exact.to_string()),
        ("carried", of.carried.to_string()),
        ("offload", of.offload.to_string()),
        ("prefetch_most", of.prefetch_most.to_string()),
    ]
}

fn route_choice(trace: &DecisionTrace) -> Markup {
    let (chosen, identity) = (&trace.chosen, &trace.record.policy);
    html! {
        p {
            "Route " strong { (chosen.route) } " took the job (" (phrases::conditions(&chosen.conditions).join(", ")) "). "
            @match chosen.canary {
                Some(share) => { "The job fell into the canary’s share of " (percent(share)) ": " },
                None => "There decides ",
            }
            (policy(&chosen.policy, Some(chosen.revision)))
            @if chosen.paused { ", but it is paused and was not asked" }
            "."
        }
        dl {
            dt { "Module" } dd { (identity.name) " " (identity.version) " " (digest(&identity.digest)) }
            @if !identity.settings.is_empty() {
                dt { "Settings" }
                dd { ul.plain { @for (name, value) in &identity.settings { li { code { (name) "=" (value) } } } } }
            }
        }
    }
}

fn log(trace: &DecisionTrace) -> Markup {
    html! {
        ol.log {
            @for line in &trace.log {
                @let (class, word) = match line.level {
                    LogLevel::Debug => ("debug", "debug"),
                    LogLevel::Info => ("info", "info"),
                    LogLevel::Warn => ("warn", "warn"),
                };
                li class=(class) { span.level { (word) } (line.message) }
            }
        }
    }
}

fn answer(record: &Record) -> Markup {
    html! {
        @match &record.answer {
            Some(answer) => {
                p.plan { (phrases::plan(answer)) }
                @if !answer.reason.is_empty() { blockquote { p { (answer.reason) } } }
            },
            None => p { "The policy gave no answer." },
        }
        @if let Some(fallback) = &record.fallback {
            p.fault { (phrases::badge("bad", "fallback")) " The native default stood in (" (fallback.reason) "): " (fallback.detail) }
        }
        @if record.adjusted.is_empty() {
            @if record.fallback.is_none() { p.quiet { "Carried out as it was answered." } }
        } @else {
            p { "Changed by the host’s checks:" }
            ul { @for line in &record.adjusted { li { (line) } } }
        }
        @if record.answer.as_ref().is_none_or(|answer| !answer.is_same_work(&record.plan)) {
            p { "Carried out: " span.plan { (phrases::plan(&record.plan)) } }
        }
        p.quiet { "Decided in " (span(record.decision)) ", with " (count(record.fuel)) " fuel." }
    }
}

fn attempts(attempts: &[FailedAttempt]) -> Markup {
    html! {
        ol.attempts {
            @for attempt in attempts {
                li {
                    span.plan { (phrases::plan(&attempt.plan)) }
                    span.below.fault { (attempt.failure) }
                    @if let Some(fallback) = &attempt.fallback {
                        span.below { "by the native default (" (fallback.reason) "): " (fallback.detail) }
                    }
                    @for line in &attempt.adjusted { span.below { (line) } }
                }
            }
        }
        p.quiet { "Then the policy was asked again, and told of it." }
    }
}

fn measurements(record: &Record) -> Markup {
    const COLUMNS: [Column; 4] =
        [Column::Text("What"), Column::Number("Estimated"), Column::Number("Measured"), Column::Number("Ratio")];
    let ratio = |measured: f64, estimated: f64| {
        if estimated > 0.0 && measured.is_finite() {
            format!("×{}", number(measured / estimated))
        } else {
            NONE.into()
        }
    };
    let (cost, outcome) = (record.estimate.as_ref(), record.outcome.as_ref());
    let row = |what: &str, estimated: Option<(String, f64)>, found: Option<(String, f64)>| Row {
        id: address::id("measure", what),
        class: "",
        cells: vec![
            html! { (what) },
            html! { (estimated.as_ref().map_or(NONE, |(words, _)| words)) },
            html! { (found.as_ref().map_or(NONE, |(words, _)| words)) },
            html! { (estimated.zip(found).map_or_else(|| NONE.to_owned(), |((_, estimated), (_, found))| ratio(found, estimated))) },
        ],
    };
    let time = |time: Duration| (span(time), time.as_secs_f64());
    let memory = |bytes: u64| (size(bytes), bytes as f64);
    let rows = [
        row("Time", cost.map(|cost| time(cost.elapsed)), outcome.map(|outcome| time(outcome.elapsed))),
        row("Peak memory", cost.map(|cost| memory(cost.peak_bytes)), outcome.map(|outcome| memory(outcome.peak_bytes))),
    ];
    html! {
        @if cost.is_none() && outcome.is_none() {
            p.empty { "Nothing could be estimated, and nothing was measured." }
        } @else {
            (table("Estimated and measured", &COLUMNS, &rows))
            @if let Some(cost) = cost {
                p.quiet {
                    (count_of(cost.tiles.into(), "tile", "tiles")) ", " (count_of(cost.shapes.into(), "shape", "shapes"))
                    ", " (number(cost.rework)) " times the output computed."
                }
            }
            @match outcome {
                Some(outcome) => p.quiet {
                    "Weights were read in " (span(outcome.load)) ". The pool served " (count(outcome.pool.hits))
                    " requests and asked the system for " (count(outcome.pool.misses)) "; it held "
                    (size(outcome.pool.held_bytes)) " at the end."
                    @if record.own_outcome().is_none() { " The time is not this plan’s alone." }
                },
                None => p.quiet { "Not measured." },
            }
        }
    }
}

fn incumbent(incumbent: &IncumbentDecode) -> Markup {
    const COLUMNS: [Column; 5] = [
        Column::Text("Policy"),
        Column::Text("Plan"),
        Column::Number("Time"),
        Column::Number("Memory"),
        Column::Number("PSNR"),
    ];
    let record = &incumbent.record;
    let row = Row {
        id: address::id("compared", "incumbent"),
        class: "",
        cells: vec![
            html! { (policy(&record.policy.name, Some(incumbent.revision))) span.below { "incumbent" } },
            html! { (phrases::plan(&record.plan)) },
            html! {
                @match (&record.outcome, &record.estimate) {
                    (Some(outcome), _) => { (span(outcome.elapsed)) span.below { "measured" } },
                    (None, Some(cost)) => { (span(cost.elapsed)) span.below { "estimated" } },
                    (None, None) => (NONE),
                }
            },
            html! {
                @match (&record.outcome, &record.estimate) {
                    (Some(outcome), _) => (size(outcome.peak_bytes)),
                    (None, Some(cost)) => (size(cost.peak_bytes)),
                    (None, None) => (NONE),
                }
            },
            html! { (decibels(incumbent.psnr)) },
        ],
    };
    table("The incumbent's decision", &COLUMNS, &[row])
}
