//! The page at `/policies/{name}`.

use maud::{Markup, html};

use crate::chart::latency;
use crate::facts::{Dump, Place, PolicyPage, Reading, Watchdog};
use crate::frame::page;
use crate::policies::{actions, origin, refusals, revisions, standing, suggestions};
use crate::table::{Column, Row, table};
use crate::units::{NONE, digest, number, since, size};
use crate::{address, words};

/// The page at `/policies/{name}`.
pub fn policy(facts: &PolicyPage) -> String {
    page(&facts.frame, &facts.policy.name, &address::policy(&facts.policy.name), part(facts)).into_string()
}

/// The part of the policy's page that changes: the element with the id `policy`.
pub fn policy_part(facts: &PolicyPage) -> String {
    part(facts).into_string()
}

fn part(facts: &PolicyPage) -> Markup {
    let policy = &facts.policy;
    html! {
        div #policy {
            header.title {
                p.crumb { a href="/" { "Overview" } " / policy" }
                h1 { (policy.name) " " (standing(policy)) }
                p.quiet { (origin(policy)) }
            }
            section.panel.revisions aria-labelledby="revisions-title" {
                h2 #revisions-title { "Revisions" }
                (revisions(&facts.frame, policy))
                (suggestions(&facts.sources))
                (actions(&facts.frame, policy))
            }
            section.panel.module aria-labelledby="module-title" {
                h2 #module-title { "In force" }
                (in_force(facts))
            }
            section.panel aria-labelledby="watchdog-title" {
                h2 #watchdog-title { "Watchdog" }
                @match &facts.watchdog { Some(held) => (watchdog(held)), None => p.empty { "Nothing watches this policy." } }
            }
            section.panel.charts aria-labelledby="latency-title" {
                h2 #latency-title { "Latency" }
                (latency(&facts.latency))
            }
            section.panel aria-labelledby="refused-title" {
                h2 #refused-title { "Refused by the gate" }
                @if policy.refused.is_empty() { p.empty { "Nothing." } } @else { (refusals(&facts.frame, policy, usize::MAX)) }
            }
            section.panel aria-labelledby="dumps-title" {
                h2 #dumps-title { "Dumps" }
                @if facts.dumps.is_empty() { p.empty { "None. What the watchdog acts on is kept here." } } @else { (dumps(facts)) }
            }
        }
    }
}

fn in_force(facts: &PolicyPage) -> Markup {
    html! {
        @match facts.policy.at(Place::InForce) {
            Some(revision) => dl {
                dt { "Revision" } dd { (revision.number) ", took over " (since(facts.frame.now, revision.since)) }
                dt { "Module" } dd { (revision.name) " " (revision.version) }
                dt { "Digest" } dd { (digest(&revision.digest)) }
                dt { "Origin" } dd { code { (revision.origin) } }
                dt { "Settings" }
                dd {
                    @if revision.settings.is_empty() { span.quiet { "its defaults" } }
                    @else { ul.plain { @for (name, value) in &revision.settings { li { code { (name) "=" (value) } } } } }
                }
            },
            None => p.empty { "No revision is in force: the native default decides. Swap one in." },
        }
    }
}

fn watchdog(watchdog: &Watchdog) -> Markup {
    const COLUMNS: [Column; 3] = [Column::Text("Watched"), Column::Number("Now"), Column::Number("Acts at")];
    let told = |value: f64, reading: &Reading| {
        if value.is_finite() {
            format!("{}\u{a0}{}", number(value), reading.unit).trim_end().to_owned()
        } else {
            NONE.into()
        }
    };
    let row = |(place, reading): (usize, &Reading)| Row {
        id: address::id("reading", &place.to_string()),
        class: "",
        cells: vec![
            html! { (reading.what) },
            html! { (told(reading.value, reading)) },
            html! { (reading.limit.map_or_else(|| NONE.to_owned(), |limit| told(limit, reading))) },
        ],
    };
    html! {
        p { (words::standing(watchdog.standing)) " " (watchdog.why) }
        p.quiet { (watchdog.rule) }
        @if !watchdog.readings.is_empty() {
            (table("What the watchdog measures", &COLUMNS, &watchdog.readings.iter().enumerate().map(row).collect::<Vec<_>>()))
        }
    }
}

fn dumps(facts: &PolicyPage) -> Markup {
    let row = |dump: &Dump| {
        html! {
            li {
                @if address::is_local(&dump.path) { a href=(dump.path) { (dump.what) } } @else { (dump.what) }
                span.quiet { " " (since(facts.frame.now, dump.time)) ", " (size(dump.bytes)) }
            }
        }
    };
    html! { ul.files { @for dump in &facts.dumps { (row(dump)) } } }
}
