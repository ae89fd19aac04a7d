//! Policies: their revisions, and the buttons that put one in place of another.

use maud::{Markup, html};
use tilewright_config::Role;
use tilewright_service_api::{PolicyBody, RevisionBody};

use crate::form;
use crate::frame::section;
use crate::table::{Column, Row, table};
use crate::units::{count, count_of, digest, parse, since};
use crate::views::{OverviewPage, PageFrame, PolicyView};
use crate::{address, phrases};

const COLUMNS: [Column; 7] = [
    Column::Number("Revision"),
    Column::Short("Part"),
    Column::Text("Module"),
    Column::Short("Digest"),
    Column::Short("Since"),
    Column::Number("Jobs"),
    Column::Number("Failures"),
];

/// Refusals that are shown beside a policy; its own page shows all.
const REFUSALS: usize = 2;

/// The element with the id `policies`.
pub(crate) fn policies(view: &OverviewPage) -> Markup {
    let body = html! {
        @if view.policies.is_empty() { p.empty { "No policy is loaded: the native default decides for every job." } }
        (suggestions(&view.sources))
        div.cards { @for policy in &view.policies { (card(&view.frame, policy)) } }
    };
    section("policies", "Policies", None, body)
}

/// The suggestions for the source of a swap; once on a page.
pub(crate) fn suggestions(sources: &[String]) -> Markup {
    html! { datalist #sources { @for source in sources { option value=(source) {} } } }
}

fn card(frame: &PageFrame, view: &PolicyView) -> Markup {
    let policy = &view.policy;
    html! {
        article.policy id=(address::id("policy", &policy.name)) {
            h3 {
                a href=(address::policy(&policy.name)) { (policy.name) } " "
                (standing(policy))
            }
            p.quiet { (origin(view)) }
            (warnings(policy))
            (revisions(frame, policy))
            (refusals(frame, policy, REFUSALS))
            (actions(frame, policy))
        }
    }
}

/// A badge if the policy is paused.
pub(crate) fn standing(policy: &PolicyBody) -> Markup {
    html! { @if policy.paused { (phrases::badge("warn", "paused")) } }
}

/// The policy's source and its routes.
pub(crate) fn origin(PolicyView { policy, routes }: &PolicyView) -> Markup {
    html! {
        "from " code { (policy.source) }
        @if !routes.is_empty() { ", on " (routes.join(", ")) }
        @if policy.paused { ". The native default decides until it is resumed." }
    }
}

/// The lines about what the policy does not do where routes name it.
pub(crate) fn warnings(policy: &PolicyBody) -> Markup {
    html! {
        @if !policy.warnings.is_empty() {
            ul.refusals { @for line in &policy.warnings { li { (phrases::badge("warn", "unanswered")) " " (line) } } }
        }
    }
}

/// The revisions as a table: the one in force, the previous one, then those that drain, newest
/// first.
pub(crate) fn revisions(frame: &PageFrame, policy: &PolicyBody) -> Markup {
    let row = |revision: &RevisionBody, (kind, part): (&str, &str)| Row {
        id: address::id("revision", &format!("{} {}", policy.name, revision.number)),
        class: "",
        cells: vec![
            html! { (revision.number) },
            phrases::badge(kind, part),
            html! { (revision.name) " " span.quiet { (revision.version) } },
            digest(&revision.digest),
            since(frame.now, parse(&revision.since)),
            html! { (count(revision.jobs)) },
            html! { (count(revision.failures)) @if revision.decisions > 0 { span.quiet { " / " (count(revision.decisions)) } } },
        ],
    };
    let mut rows = vec![row(&policy.in_force, ("good", "in force"))];
    rows.extend(policy.previous.iter().map(|revision| row(revision, ("plain", "previous"))));
    rows.extend(policy.draining.iter().rev().map(|revision| row(revision, ("busy", "draining"))));
    table(&format!("Revisions of {}", policy.name), &COLUMNS, &rows)
}

/// The modules that the gate refused, the newest of them.
pub(crate) fn refusals(frame: &PageFrame, policy: &PolicyBody, most: usize) -> Markup {
    html! {
        @if !policy.refused.is_empty() {
            ul.refusals {
                @for refused in policy.refused.iter().take(most) {
                    li {
                        (phrases::badge("bad", "refused")) " " (since(frame.now, parse(&refused.time))) ", " (refused.origin)
                        @for line in refused.why.lines() { span.below { (line) } }
                    }
                }
            }
            @if policy.refused.len() > most {
                p.quiet { "and " (count_of((policy.refused.len() - most) as u64, "refusal", "refusals")) " before" }
            }
        }
    }
}

/// Swap, rollback, pause or resume.
pub(crate) fn actions(frame: &PageFrame, policy: &PolicyBody) -> Markup {
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
            @if let Some(previous) = &policy.previous {
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
