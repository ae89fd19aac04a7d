//! The section of a profiled job: where its stages spent their time, and the ways to the trace and
//! the page that have it all.

use maud::{Markup, html};
use tilewright_profile::{Category, CategoryRow, Profile};
use tilewright_service_api::Job;

use crate::address;
use crate::candidates::bar;
use crate::frame::panel;
use crate::table::{Column, Row, table};
use crate::units::{NONE, count, milliseconds, percent};
use crate::views::JobPage;

const COLUMNS: [Column; 5] = [
    Column::Text("Category"),
    Column::Short("Time"),
    Column::Number("Share"),
    Column::Number("Of the roof"),
    Column::Number("Calls"),
];

/// The section, of a job that was to be profiled.
pub(crate) fn profile(view: &JobPage) -> Markup {
    let job = &view.job.job;
    let Some(stages) = &job.profile else { return html! {} };
    let content = html! {
        @if view.has_trace { (links(job)) }
        @if stages.is_empty() {
            p.empty {
                @if job.state.is_end() { "It ended before a stage of it did." }
                @else { "It is told here when a stage has ended. The work is rehearsed first, to warm up and to measure what the profiler costs." }
            }
        }
        @for (place, stage) in stages.iter().enumerate() { (of_stage(place, stage)) }
    };
    panel("story", "profile", "Where the time went", content)
}

fn links(job: &Job) -> Markup {
    html! {
        ul.files {
            li { a href=(address::profile(&job.id, "html")) { "Open the profile" } " " span.quiet { "roofline, timeline, operators, layers" } }
            li { a href=(address::profile(&job.id, "json")) download { "Save the trace" } " " span.quiet { "for ui.perfetto.dev and chrome://tracing" } }
        }
    }
}

fn of_stage(place: usize, profile: &Profile) -> Markup {
    let facts = &profile.facts;
    let rows: Vec<Row> = profile.categories.iter().map(|category| row(place, category)).collect();
    html! {
        h3 { (facts.stage) ": " (milliseconds(profile.unprofiled_ms)) }
        p {
            (milliseconds(profile.stage_ms)) " under the profiler, " (milliseconds(profile.unprofiled_ms)) " without it: of "
            (facts.compared) ", its overhead is " (percent(profile.overhead)) "."
            @if let Some(estimated) = facts.estimated_ms { " The estimate was " (milliseconds(estimated)) "." }
        }
        @for note in &profile.notes { p.quiet { (note) } }
        (table(&format!("Categories of {}", facts.stage), &COLUMNS, &rows))
        @if !profile.advice.is_empty() { ul.advice { @for line in &profile.advice { li { (line) } } } }
    }
}

fn row(place: usize, row: &CategoryRow) -> Row {
    Row {
        id: address::id(&format!("profile-{place}"), row.category.name()),
        class: "",
        cells: vec![
            html! { (words(row.category)) },
            html! { (bar(row.share, None)) (milliseconds(row.total_ms)) },
            html! { (percent(row.share)) },
            html! { (row.of_roof.map_or_else(|| NONE.to_owned(), percent)) },
            html! { (count(row.calls)) },
        ],
    }
}

/// A category as people say it.
const fn words(category: Category) -> &'static str {
    match category {
        Category::Gemm => "Products of matrices",
        Category::Convolution => "Convolutions",
        Category::Norm => "Norms",
        Category::Attention => "Attention",
        Category::Elementwise => "Value by value",
        Category::Copies => "Copies and casts",
        Category::Layout => "Changes of layout",
        Category::Expansion => "Expansion of packed weights",
        Category::LaunchGaps => "Gaps between launches",
        Category::Host => "Host",
    }
}
