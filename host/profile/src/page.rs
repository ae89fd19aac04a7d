//! Pages for people: facts, tables, a roofline and a timeline in one HTML file that loads nothing.

mod roofline;
mod style;
mod timeline;

use std::path::Path;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use tilewright_outputs::write_whole;
use tilewright_plot::CHART_STYLE;

use crate::{
    Profile, Recording, Result,
    error::write_error,
    text::{self, Table},
    tree::Tree,
    units,
};

/// Width and height of the roofline in pixels, for wide windows and for narrow ones.
const ROOFLINES: [(&str, f64, f64); 2] = [("wide", 960.0, 420.0), ("narrow", 480.0, 400.0)];

/// Rows of the tables of operators, kernels, layers and parts; the profile as JSON has all.
const ROWS: usize = 200;

/// Writes the stages as one page. An older file is replaced once all is written.
///
/// # Errors
/// [`Error::Stages`](crate::Error::Stages) if a recording is not of one stage,
/// [`Error::Write`](crate::Error::Write) if the file can't be written.
pub fn write_page(path: &Path, stages: &[(Profile, Recording)]) -> Result<()> {
    write_whole(path, page(stages)?.as_bytes()).map_err(write_error(path))
}

fn page(stages: &[(Profile, Recording)]) -> Result<String> {
    let names: Vec<&str> = stages.iter().map(|(profile, _)| profile.facts.stage.as_str()).collect();
    let title = format!("Profile: {}", names.join(", "));
    let sections =
        stages.iter().map(|(profile, recording)| section(profile, recording)).collect::<Result<Vec<Markup>>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(style::STYLE)) (PreEscaped(CHART_STYLE)) }
            }
            body {
                h1 { (title) }
                @if names.len() > 1 {
                    nav aria-label="Stages" {
                        @for (index, name) in names.iter().enumerate() { a href={ "#stage-" (index) } { (name) } " " }
                    }
                }
                @for (index, section) in sections.iter().enumerate() { section id={ "stage-" (index) } { (section) } }
            }
        }
    };
    Ok(page.into_string() + "\n")
}

fn section(profile: &Profile, recording: &Recording) -> Result<Markup> {
    let (timeline, left_out) = timeline::draw(&Tree::of(recording, &profile.facts.stage)?);
    let roofline = roofline::chart(profile);
    let categories = || profile.categories.iter().map(|row| row.category);
    let tables = [
        ("Operators", text::operators(profile, ROWS), profile.operators.len()),
        ("Kernels", text::kernels(profile, ROWS), profile.kernels.len()),
        ("Layers", text::layers(profile, ROWS), profile.layers.len()),
        ("Parts", text::parts(profile, ROWS), profile.parts.len()),
    ];
    Ok(html! {
        h2 { (profile.facts.stage) ": " (units::time(profile.stage_ms)) }
        dl { @for (name, value) in facts(profile) { dt { (name) } dd { (value) } } }
        @for note in &profile.notes { p.note { (note) } }
        @if !profile.advice.is_empty() {
            h3 { "Advice" }
            ul { @for line in &profile.advice { li { (line) } } }
        }
        h3 { "Categories" }
        (table("Categories", &text::categories(profile), &categories().map(style::swatch).collect::<Vec<_>>()))
        @for (class, width, height) in ROOFLINES {
            @if let Some(svg) = roofline.svg(width, height) {
                div class=(class) { h3 { "Roofline" } (svg) }
            }
        }
        h3 { "Timeline" }
        (timeline::legend(categories()))
        div.scroll tabindex="0" role="region" aria-label="Timeline" { (timeline) }
        @if left_out > 0 { p.note { "The " (left_out) " shortest events are left out; the trace has all." } }
        @for (name, rows, all) in tables.iter().filter(|(_, rows, _)| !rows.rows.is_empty()) {
            details open[*name == "Operators"] {
                summary { (name) @if *all > ROWS { ", " (ROWS) " of " (all) } }
                (table(name, rows, &[]))
            }
        }
    })
}

/// A table that scrolls by itself. `marks` stand before the first cells of rows.
fn table(name: &str, table: &Table, marks: &[Markup]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(name) {
            table {
                thead { tr { @for heading in &table.headings { th scope="col" { (heading) } } } }
                tbody {
                    @for (index, row) in table.rows.iter().enumerate() {
                        tr {
                            @for (column, cell) in row.iter().enumerate() {
                                td { @if column == 0 { @if let Some(mark) = marks.get(index) { (mark) } } (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The facts that are worth a line.
fn facts(profile: &Profile) -> Vec<(&'static str, String)> {
    let facts = &profile.facts;
    let [unprofiled, profiled] = facts.compared_ms.map(units::time);
    let overhead = units::percent(profile.overhead);
    let peaks = format!(
        "{} of products, {} of convolutions, {} of attention, {} of memory",
        units::operation_rate(facts.peaks.operations_per_second),
        units::operation_rate(facts.peaks.convolution_operations_per_second),
        units::operation_rate(facts.peaks.attention_operations_per_second),
        units::byte_rate(facts.peaks.bytes_per_second),
    );
    let mut lines = vec![
        ("device", facts.device.clone()),
        ("request", facts.request.clone()),
        ("policy", facts.policy.clone()),
        ("plan", facts.plan.clone()),
        ("measured peaks", peaks),
        ("overhead", format!("{overhead}: {} took {unprofiled}, profiled {profiled}", facts.compared)),
        ("unprofiled", units::time(profile.unprofiled_ms)),
    ];
    lines.extend(facts.estimated_ms.map(|ms| ("estimate", units::time(ms))));
    lines.retain(|(_, value)| !value.is_empty());
    lines
}
