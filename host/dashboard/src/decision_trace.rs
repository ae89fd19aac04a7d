//! The trace of a decision, in order: the request, the route and policy, the plans priced, the
//! answer, the changes by the host's checks, and the outcome.

use std::time::Duration;

use maud::{Markup, html};
use tilewright_plan::{FailedAttempt, LogLevel, Record, of_any};
use tilewright_service_api::Job;

use crate::candidates::candidates;
use crate::routes::policy;
use crate::table::{Column, Row, table};
use crate::units::{NONE, count, decibels, digest, number, percent, size, span};
use crate::views::{AnyTrace, DecisionTrace, IncumbentRun};
use crate::work::Shown;
use crate::{address, phrases};

/// The section with the trace of a job's stage, by its number.
pub(crate) fn any_trace(job: &Job, stage: usize, trace: &AnyTrace) -> Markup {
    of_any!(trace, trace => decision_trace(job, stage, trace))
}

fn decision_trace<W: Shown>(job: &Job, stage: usize, trace: &DecisionTrace<W>) -> Markup {
    let record = &trace.record;
    let heading = if stage == 0 { "story-title".to_owned() } else { format!("story-title-{stage}") };
    let about = if stage == 0 { "record".to_owned() } else { format!("record-{stage}") };
    html! {
        section.panel.story aria-labelledby=(heading) {
            h2 id=(heading) { "How it was decided" }
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
            details.record id=(address::id(&about, &job.id)) {
                summary { "The record as JSON" }
                pre tabindex="0" { code { (trace.json) } }
            }
        }
    }
}

fn step(title: &str, content: Markup) -> Markup {
    html! { li { h3 { (title) } (content) } }
}

fn request<W: Shown>(record: &Record<W>) -> Markup {
    let device = &record.device;
    let (limit, counts_weights) = (W::memory_limit(&record.request), W::counts_weights(&record.request));
    let hints = W::hints(&record.request);
    html! {
        dl {
            dt { "Work" } dd { (W::work(&record.request)) }
            dt { "Model" } dd { (W::model(&record.request)) }
            dt { "Device" }
            dd {
                (device.name) ", " (device.arch) ", " (size(device.free_bytes)) " of " (size(device.total_bytes)) " free"
                @if device.unified { ", shared with the host" }
            }
            dt { "Memory limit" } dd { (size(limit)) @if counts_weights { ", weights included" } }
            @if let Some(of) = &record.capabilities {
                dt { "Capabilities" }
                dd { ul.plain { @for (name, value) in W::capabilities(of) { li { code { (name) "=" (value) } } }
                    @for option in W::offered_options(of) { li { code { (option.name) } ": " (option.summary) } } } }
            }
            @if !hints.is_empty() {
                dt { "Hints" }
                dd { ul.plain { @for hint in hints { li { code { (hint.name) "=" (hint.value) } } } } }
            }
        }
    }
}

fn route_choice<W: Shown>(trace: &DecisionTrace<W>) -> Markup {
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

fn log<W: Shown>(trace: &DecisionTrace<W>) -> Markup {
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

fn answer<W: Shown>(record: &Record<W>) -> Markup {
    html! {
        @match &record.answer {
            Some(answer) => {
                p.plan { (W::plan(answer)) }
                @if !W::reason(answer).is_empty() { blockquote { p { (W::reason(answer)) } } }
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
        @if record.answer.as_ref().is_none_or(|answer| !W::is_same_work(answer, &record.plan)) {
            p { "Carried out: " span.plan { (W::plan(&record.plan)) } }
        }
        p.quiet { "Decided in " (span(record.decision)) ", with " (count(record.fuel)) " fuel." }
    }
}

fn attempts<W: Shown>(attempts: &[FailedAttempt<W>]) -> Markup {
    html! {
        ol.attempts {
            @for attempt in attempts {
                li {
                    span.plan { (W::plan(&attempt.plan)) }
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

fn measurements<W: Shown>(record: &Record<W>) -> Markup {
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
        row(W::TIME, cost.map(|cost| time(W::time(cost))), outcome.map(|outcome| time(W::measured_time(outcome)))),
        row(
            "Peak memory",
            cost.map(|cost| memory(W::all_bytes(cost))),
            outcome.map(|outcome| memory(W::all_measured(outcome))),
        ),
    ];
    html! {
        @if cost.is_none() && outcome.is_none() {
            p.empty { "Nothing could be estimated, and nothing was measured." }
        } @else {
            (table("Estimated and measured", &COLUMNS, &rows))
            @if let Some(cost) = cost { p.quiet { (W::about_cost(cost)) } }
            @match outcome {
                Some(outcome) => p.quiet {
                    (W::about_outcome(outcome))
                    @if record.own_outcome().is_none() { " The time is not this plan’s alone." }
                },
                None => p.quiet { "Not measured." },
            }
        }
    }
}

fn incumbent<W: Shown>(incumbent: &IncumbentRun<W>) -> Markup {
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
            html! { (W::plan(&record.plan)) },
            html! {
                @match (&record.outcome, &record.estimate) {
                    (Some(outcome), _) => { (span(W::measured_time(outcome))) span.below { "measured" } },
                    (None, Some(cost)) => { (span(W::time(cost))) span.below { "estimated" } },
                    (None, None) => (NONE),
                }
            },
            html! {
                @match (&record.outcome, &record.estimate) {
                    (Some(outcome), _) => (size(W::all_measured(outcome))),
                    (None, Some(cost)) => (size(W::all_bytes(cost))),
                    (None, None) => (NONE),
                }
            },
            html! { (decibels(incumbent.psnr)) },
        ],
    };
    table("The incumbent's decision", &COLUMNS, &[row])
}
