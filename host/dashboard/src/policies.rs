//! Policies: their revisions, and the buttons that put one in place of another.

use maud::{Markup, html};

use crate::facts::{Frame, Overview, Place, Policy, Revision, Role};
use crate::form;
use crate::frame::section;
use crate::table::{Column, Row, table};
use crate::units::{count, counted, digest, since};
use crate::{address, words};

const COLUMNS: [Column; 7] = [
    Column::Number("Revision"),
    Column::Short("Part"),
    Column::Text("Module"),
    Column::Short("Digest"),
    Column::Short("Since"),
    Column::Number("Jobs"),
    Column::Number("Failures"),
];

/// Refusals that are shown beside a policy; its own page has them all.
const REFUSALS: usize = 2;

/// The element with the id `policies`.
pub(crate) fn policies(facts: &Overview) -> Markup {
    let body = html! {
        @if facts.policies.is_empty() { p.empty { "No policy is loaded: the native default decides for every job." } }
        (suggestions(&facts.sources))
        div.cards { @for policy in &facts.policies { (card(&facts.frame, policy)) } }
    };
    section("policies", "Policies", None, body)
}

/// What forms suggest to swap to; once on a page.
pub(crate) fn suggestions(sources: &[String]) -> Markup {
    html! { datalist #sources { @for source in sources { option value=(source) {} } } }
}

fn card(frame: &Frame, policy: &Policy) -> Markup {
    html! {
        article.policy id=(address::id("policy", &policy.name)) {
            h3 {
                a href=(address::policy(&policy.name)) { (policy.name) } " "
                (standing(policy))
            }
            p.quiet { (origin(policy)) }
            (revisions(frame, policy))
            (refusals(frame, policy, REFUSALS))
            (actions(frame, policy))
        }
    }
}

/// Whether it is asked.
pub(crate) fn standing(policy: &Policy) -> Markup {
    html! {
        @if policy.paused { (words::badge("warn", "paused")) }
        @else if policy.at(Place::InForce).is_none() { (words::badge("bad", "not loaded")) }
    }
}

/// Where it comes from and where it takes part.
pub(crate) fn origin(policy: &Policy) -> Markup {
    html! {
        "from " code { (policy.source) }
        @if !policy.routes.is_empty() { ", on " (policy.routes.join(", ")) }
        @if policy.paused { ". The native default decides until it is resumed." }
    }
}

/// The revisions as a table.
pub(crate) fn revisions(frame: &Frame, policy: &Policy) -> Markup {
    let row = |revision: &Revision| Row {
        id: address::id("revision", &format!("{} {}", policy.name, revision.number)),
        class: "",
        cells: vec![
            html! { (revision.number) },
            html! {
                (words::place(revision.place))
                @if revision.held > 0 { span.below { (counted(revision.held.into(), "job", "jobs")) " under way" } }
            },
            html! { (revision.name) " " span.quiet { (revision.version) } },
            digest(&revision.digest),
            since(frame.now, revision.since),
            html! { (count(revision.jobs)) },
            html! { (count(revision.failures)) @if revision.decisions > 0 { span.quiet { " / " (count(revision.decisions)) } } },
        ],
    };
    let rows: Vec<Row> = policy.revisions.iter().map(row).collect();
    html! {
        @if rows.is_empty() { p.empty { "No revision is loaded. Swap one in." } }
        @else { (table(&format!("Revisions of {}", policy.name), &COLUMNS, &rows)) }
    }
}

/// What the gate turned away, the newest of it.
pub(crate) fn refusals(frame: &Frame, policy: &Policy, most: usize) -> Markup {
    html! {
        @if !policy.refused.is_empty() {
            ul.refusals {
                @for refused in policy.refused.iter().take(most) {
                    li {
                        (words::badge("bad", "refused")) " " (since(frame.now, refused.time)) ", " (refused.origin)
                        @if let Some(held) = &refused.digest { " " (digest(held)) }
                        @for line in refused.why.lines() { span.below { (line) } }
                    }
                }
            }
            @if policy.refused.len() > most {
                p.quiet { "and " (counted((policy.refused.len() - most) as u64, "refusal", "refusals")) " before" }
            }
        }
    }
}

/// Swap, rollback, pause or resume.
pub(crate) fn actions(frame: &Frame, policy: &Policy) -> Markup {
    let action = |what: &str| format!("/actions{}/{what}", address::policy(&policy.name));
    let id = |what: &str| address::id(what, &policy.name);
    let (file, signature) = (id("swap-module"), id("swap-signature"));
    let (source, settings) = (id("swap-source"), id("swap-settings"));
    let fields = html! {
        p.field {
            label for=(file) { "Module " span.quiet { "a .wasm file" } }
            input id=(file) type="file" name="module" accept=".wasm,application/wasm";
        }
        p.field {
            label for=(signature) { "Its signature " span.quiet { "a .minisig file, where one is asked for" } }
            input id=(signature) type="file" name="signature" accept=".minisig";
        }
        p.field {
            label for=(source) { "or source " span.quiet { "a name that ships, sha256:… or oci://…" } }
            input id=(source) type="text" name="source" list="sources" autocomplete="off" spellcheck="false";
        }
        p.field {
            label for=(settings) { "Settings " span.quiet { "name=value, one a line" } }
            textarea id=(settings) name="settings" rows="3" autocomplete="off" spellcheck="false" {}
        }
        p.hint { "Settings alone keep the module. Those that are not given take their defaults; with none at all the same policy keeps its own. It goes through the gate first: where it is refused, nothing changes." }
        p.field { button.primary type="submit" { "Swap" } }
    };
    html! {
        @if frame.role >= Role::Operate { div.buttons {
            details.swap id=(id("swap")) {
                summary title={ "swap the policy " (policy.name) } { "Swap…" span.unseen { " the policy " (policy.name) } }
                (form::upload(&frame.form_token, &action("swap"), "fields", fields))
            }
            @if let Some(previous) = policy.at(Place::Previous) {
                @let about = format!("roll {} back to revision {}", policy.name, previous.number);
                (form::confirm(frame, &id("rollback"), &action("rollback"), &format!("Roll back to r{}", previous.number), &about))
            }
            @if policy.paused {
                (form::act(frame, &action("resume"), "Resume", &format!("resume the policy {}", policy.name)))
            } @else {
                (form::act(frame, &action("pause"), "Pause", &format!("pause the policy {}: the native default decides", policy.name)))
            }
        } }
    }
}
