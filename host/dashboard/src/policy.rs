//! The page at `/policies/{name}`.

use maud::{Markup, html};

use crate::chart::latency;
use crate::frame::{page, panel, parts};
use crate::policies::{actions, origin, refusals, revisions, standing, suggestions, warnings};
use crate::units::{digest, parse, percent, since, size};
use crate::views::{DumpFile, PolicyPage, WatchdogView};
use crate::{address, phrases};

/// The page at `/policies/{name}`.
pub fn policy(view: &PolicyPage) -> String {
    let name = &view.policy.policy.name;
    page(&view.frame, name, &address::policy(name), part(view)).into_string()
}

/// The parts of the policy's page that change, each an element with its id.
pub fn policy_parts(view: &PolicyPage) -> Vec<(&'static str, String)> {
    parts(&view.frame, [("policy", part(view))])
}

fn part(view: &PolicyPage) -> Markup {
    let policy = &view.policy.policy;
    html! {
        div #policy {
            header.title {
                p.crumb { a href="/" { "Overview" } " / policy" }
                h1 { (policy.name) " " (standing(policy)) }
                p.quiet { (origin(&view.policy)) }
            }
            (panel("revisions", "revisions", "Revisions", html! {
                (warnings(policy))
                (revisions(&view.frame, policy))
                (suggestions(&view.sources))
                (actions(&view.frame, policy))
            }))
            (panel("module", "module", "In force", in_force(view)))
            (panel("watchdog", "watchdog", "Watchdog", watchdog(&view.watchdog)))
            (panel("charts", "latency", "Latency", latency(&view.latency)))
            (panel("refused", "refused", "Refused by the gate", html! {
                @if policy.refused.is_empty() { p.empty { "Nothing." } } @else { (refusals(&view.frame, policy, usize::MAX)) }
            }))
            (panel("dumps", "dumps", "Dumps", html! {
                @if view.dumps.is_empty() { p.empty { "None. What the watchdog acts on is kept here." } } @else { (dumps(view)) }
            }))
        }
    }
}

fn in_force(view: &PolicyPage) -> Markup {
    let revision = &view.policy.policy.in_force;
    html! {
        dl {
            dt { "Revision" } dd { (revision.number) ", took over " (since(view.frame.now, parse(&revision.since))) }
            dt { "Module" } dd { (revision.name) " " (revision.version) }
            dt { "Answers" } dd { (revision.stages.iter().map(|stage| stage.name()).collect::<Vec<_>>().join(", ")) }
            dt { "Digest" } dd { (digest(&revision.digest)) }
            dt { "Origin" } dd { code { (revision.origin) } }
            dt { "Settings" }
            dd {
                @if revision.settings.is_empty() { span.quiet { "its defaults" } }
                @else { ul.plain { @for (name, value) in &revision.settings { li { code { (name) "=" (value) } } } } }
            }
        }
    }
}

fn watchdog(watchdog: &WatchdogView) -> Markup {
    html! {
        p { (phrases::standing(watchdog.standing)) " " (watchdog.why) }
        p.quiet { (watchdog.rule) }
        dl { dt { "Decisions that failed or were invalid" } dd { (percent(watchdog.failed)) } }
    }
}

fn dumps(view: &PolicyPage) -> Markup {
    let row = |dump: &DumpFile| {
        html! {
            li {
                (dump.what) ": " code { (dump.path) }
                span.quiet { " " (since(view.frame.now, dump.time)) ", " (size(dump.bytes)) }
            }
        }
    };
    html! { ul.files { @for dump in &view.dumps { (row(dump)) } } }
}
