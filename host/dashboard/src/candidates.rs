//! The plans that a policy asked the price of, beside each other.

use maud::{Markup, html};
use tilewright_plan::Candidate;

use crate::table::{Column, Row, table};
use crate::units::{count_of, size, span};
use crate::views::DecisionTrace;
use crate::work::Shown;
use crate::{address, phrases};

const COLUMNS: [Column; 4] =
    [Column::Text("Plan"), Column::Short("Time"), Column::Short("Memory"), Column::Text("Became of it")];

/// The most candidates that are shown.
const MOST: usize = 200;

/// The candidates as a table.
pub(crate) fn candidates<W: Shown>(trace: &DecisionTrace<W>) -> Markup {
    let limit = W::memory_limit(&trace.record.request);
    let costs = || {
        trace
            .candidates
            .iter()
            .filter_map(|candidate| candidate.cost.as_ref().ok().map(|cost| (W::time(cost), W::all_bytes(cost))))
    };
    let longest = costs().map(|(time, _)| time.as_secs_f64()).fold(0.0, f64::max);
    let largest = costs().map(|(_, bytes)| bytes).max().unwrap_or(0).max(limit) as f64;
    let quickest = costs().filter(|(_, bytes)| *bytes <= limit).map(|(time, _)| time).min();
    // A plan may be asked about twice; it is taken once.
    let taken = trace
        .record
        .answer
        .as_ref()
        .and_then(|answer| trace.candidates.iter().position(|candidate| W::is_same_work(&candidate.plan, answer)));
    let priced = |cost: &W::Cost| {
        let (time, bytes) = (W::time(cost), W::all_bytes(cost));
        [
            html! { (bar(time.as_secs_f64() / longest, None)) (span(time)) },
            html! { (bar(bytes as f64 / largest, Some(limit as f64 / largest))) (size(bytes)) },
            html! {
                @if bytes > limit { (phrases::badge("bad", "over the limit")) }
                @else if Some(time) == quickest { (phrases::badge("plain", "quickest that fits")) }
            },
        ]
    };
    let row = |(place, candidate): (usize, &Candidate<W>)| {
        let [time, memory, remark] = match &candidate.cost {
            Ok(cost) => priced(cost),
            Err(why) => [html! {}, html! {}, html! { span.fault { (why) } }],
        };
        let is_taken = Some(place) == taken;
        let fate = html! { @if is_taken { (phrases::badge("good", "answered")) " " } (remark) };
        Row {
            id: address::id("candidate", &place.to_string()),
            class: if is_taken { "taken" } else { "" },
            cells: vec![html! { (W::plan(&candidate.plan)) }, time, memory, fate],
        }
    };
    let rows: Vec<Row> = trace.candidates.iter().take(MOST).enumerate().map(row).collect();
    html! {
        @if rows.is_empty() {
            p.quiet { "The policy asked for no prices." }
        } @else {
            p {
                (count_of(trace.candidates.len() as u64, "plan", "plans"))
                " priced: the time and memory predicted, against a limit of " (size(limit)) "."
            }
            (table("Plans that the policy asked the price of", &COLUMNS, &rows))
            @if trace.candidates.len() > MOST { p.quiet { "The first " (MOST) " are shown." } }
        }
    }
}

/// A bar for a share of the largest value, with a mark at the limit.
pub(crate) fn bar(share: f64, limit: Option<f64>) -> Markup {
    let wide =
        |share: f64| if share.is_finite() { format!("{:.1}", share.clamp(0.0, 1.0) * 100.0) } else { "0".into() };
    html! {
        svg.bar viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true" {
            rect.rest width="100" height="4" {}
            rect.used width=(wide(share)) height="4" {}
            @if let Some(limit) = limit { rect.limit x=(wide(limit - 0.01)) width="1" height="4" {} }
        }
    }
}
