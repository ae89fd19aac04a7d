//! A decision's whole story, in the order in which it came about: what was asked, who was to decide and why, what they weighed, what they
//! answered, what the host made of it, and what came of that.

use std::time::Duration;

use maud::{Markup, html};
use tilewright_plan::{Capabilities, FailedAttempt, LogLevel, Record};

use crate::candidates::candidates;
use crate::facts::{Comparison, Job, Story};
use crate::routes::policy;
use crate::table::{Column, Row, table};
use crate::units::{NONE, count, counted, decibels, digest, extent, number, percent, size, span};
use crate::{address, words};

/// The section with the story.
pub(crate) fn story(job: &Job, story: &Story) -> Markup {
    let record = &story.record;
    html! {
        section.panel.story aria-labelledby="story-title" {
            h2 #story-title { "How it was decided" }
            ol.steps {
                (step("Asked", asked(record)))
                (step("Route and policy", chosen(story)))
                (step("Weighed", candidates(story)))
                @if !story.log.is_empty() { (step("Logged by the policy", log(story))) }
                (step("Answered", answered(record)))
                @if !record.attempts.is_empty() { (step("Tried and failed", attempts(&record.attempts))) }
                (step("Estimated and measured", measured(record)))
                @if !story.comparisons.is_empty() { (step("Compared", comparisons(&story.comparisons))) }
            }
            details.record id=(address::id("record", &job.id)) {
                summary { "The record as JSON" }
                pre tabindex="0" { code { (story.json) } }
            }
        }
    }
}

fn step(title: &str, content: Markup) -> Markup {
    html! { li { h3 { (title) } (content) } }
}

fn asked(record: &Record) -> Markup {
    let (request, model, device) = (&record.request, &record.request.model, &record.device);
    html! {
        dl {
            dt { "Work" }
            dd { (extent(request.width, request.height, request.frames, request.batch)) ", " (words::objective(request.objective)) }
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
            dt { "Memory limit" } dd { (size(request.memory_limit)) }
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

fn chosen(story: &Story) -> Markup {
    let (chosen, identity) = (&story.chosen, &story.record.policy);
    html! {
        p {
            "Route " strong { (chosen.route) } " took the job (" (words::conditions(&chosen.conditions).join(", ")) "). "
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

fn log(story: &Story) -> Markup {
    html! {
        ol.log {
            @for line in &story.log {
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

fn answered(record: &Record) -> Markup {
    html! {
        @match &record.answer {
            Some(answer) => {
                p.plan { (words::plan(answer)) }
                @if !answer.reason.is_empty() { blockquote { p { (answer.reason) } } }
            },
            None => p { "The policy gave no answer." },
        }
        @if let Some(fallback) = &record.fallback {
            p.fault { (words::badge("bad", "fallback")) " The native default stood in (" (fallback.reason) "): " (fallback.detail) }
        }
        @if record.adjusted.is_empty() {
            @if record.fallback.is_none() { p.quiet { "Carried out as it was answered." } }
        } @else {
            p { "Changed by the host’s checks:" }
            ul { @for line in &record.adjusted { li { (line) } } }
        }
        @if record.answer.as_ref().is_none_or(|answer| !words::is_same(answer, &record.plan)) {
            p { "Carried out: " span.plan { (words::plan(&record.plan)) } }
        }
        p.quiet { "Decided in " (span(record.decision)) ", with " (count(record.fuel)) " fuel." }
    }
}

fn attempts(attempts: &[FailedAttempt]) -> Markup {
    html! {
        ol.attempts {
            @for attempt in attempts {
                li {
                    span.plan { (words::plan(&attempt.plan)) }
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

fn measured(record: &Record) -> Markup {
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
                    (counted(cost.tiles.into(), "tile", "tiles")) ", " (counted(cost.shapes.into(), "shape", "shapes"))
                    ", " (number(cost.rework)) " times the output computed."
                }
            }
            @match outcome {
                Some(outcome) => p.quiet {
                    "Weights were read in " (span(outcome.load)) ". The pool served " (count(outcome.pool.hits))
                    " requests and asked the system for " (count(outcome.pool.misses)) "; it held "
                    (size(outcome.pool.held_bytes)) " at the end."
                    @if record.measured().is_none() { " The time is not this plan’s alone." }
                },
                None => p.quiet { "Not measured." },
            }
        }
    }
}

fn comparisons(comparisons: &[Comparison]) -> Markup {
    const COLUMNS: [Column; 5] = [
        Column::Text("Policy"),
        Column::Text("Plan"),
        Column::Number("Time"),
        Column::Number("Memory"),
        Column::Number("PSNR"),
    ];
    let row = |(place, held): (usize, &Comparison)| Row {
        id: address::id("compared", &place.to_string()),
        class: "",
        cells: vec![
            html! { (policy(&held.policy, Some(held.revision))) span.below { (held.role) } },
            html! {
                @match &held.plan { Some(plan) => (words::plan(plan)), None => "no answer" }
                @if !held.remark.is_empty() { span.below { (held.remark) } }
            },
            html! {
                @match (&held.outcome, &held.estimate) {
                    (Some(outcome), _) => { (span(outcome.elapsed)) span.below { "measured" } },
                    (None, Some(cost)) => { (span(cost.elapsed)) span.below { "estimated" } },
                    (None, None) => (NONE),
                }
            },
            html! {
                @match (&held.outcome, &held.estimate) {
                    (Some(outcome), _) => (size(outcome.peak_bytes)),
                    (None, Some(cost)) => (size(cost.peak_bytes)),
                    (None, None) => (NONE),
                }
            },
            html! { (held.psnr.map_or_else(|| NONE.to_owned(), decibels)) },
        ],
    };
    table("What others would have decided", &COLUMNS, &comparisons.iter().enumerate().map(row).collect::<Vec<_>>())
}
