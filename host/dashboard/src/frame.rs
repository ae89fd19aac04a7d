//! The frame around every page: head, header, notice, footer.

use maud::{DOCTYPE, Markup, Render, html};

use crate::assets;
use crate::units::{between, coarse};
use crate::views::{Health, PageFrame, Tone};
use crate::{form, phrases};

/// The links of the header: an address on the overview, and its name.
const PLACES: [(&str, &str); 9] = [
    ("/prompt", "Prompt"),
    ("/#submit", "New job"),
    ("/jobs", "Jobs"),
    ("/#running", "Running"),
    ("/#queue", "Queue"),
    ("/#routes", "Routes"),
    ("/#policies", "Policies"),
    ("/#charts", "Charts"),
    ("/#events", "Events"),
];

/// A whole page. `path` is its own, for live updates; pages without one load no script.
pub(crate) fn document(title: &str, live: Option<&str>, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Tilewright" }
                link rel="icon" type="image/svg+xml" href=(assets::address("tile.svg"));
                link rel="stylesheet" href=(assets::address("dashboard.css"));
                @if live.is_some() { script src=(assets::address("dashboard.js")) defer {} }
            }
            body data-page=[live] { (body) }
        }
    }
}

/// A page with the header that all but the sign-in have.
pub(crate) fn page(frame: &PageFrame, title: &str, path: &str, content: Markup) -> Markup {
    let sign_out = html! { button.plain type="submit" { "Sign out" } };
    let body = html! {
        a.skip href="#main" { "Skip to the content" }
        header.top {
            (brand())
            nav aria-label="Sections" {
                ul { @for (address, name) in PLACES { li { a href=(address) { (name) } } } }
            }
            div.state {
                p #connection role="status" data-live="live" data-lost="connection lost, retrying" {}
                (status(frame))
                @if frame.has_token { (form::post(&frame.form_token, "/actions/logout", "act", sign_out)) }
            }
        }
        main #main tabindex="-1" {
            @if let Some(notice) = &frame.notice {
                @let role = if notice.tone == Tone::Bad { "alert" } else { "status" };
                div #notice class={ "notice " (phrases::tone(notice.tone)) } role=(role) {
                    @for line in notice.text.lines() { p { (line) } }
                }
            }
            noscript { p.notice.plain { "This page does not renew itself without scripts: reload it to see what changed." } }
            (content)
        }
        footer {
            p { "Tilewright " (frame.version) }
            ul {
                li { a href="/openapi.json" { "API" } }
                li { a href="/metrics" { "Metrics" } }
                li { a href="/v1/decisions" { "Decisions" } }
            }
        }
    };
    document(title, Some(path), body)
}

/// A page without the header, in the middle of the window.
pub(crate) fn standalone(title: &str, version: &str, content: Markup) -> Markup {
    let body = html! {
        div.alone {
            header { (brand()) }
            main #main { (content) }
            footer { p { "Tilewright " (version) } }
        }
    };
    document(title, None, body)
}

fn brand() -> Markup {
    html! {
        a.brand href="/" {
            svg viewBox="0 0 20 20" aria-hidden="true" {
                rect x="1" y="1" width="8" height="8" rx="1.5" {}
                rect x="11" y="1" width="8" height="8" rx="1.5" {}
                rect x="1" y="11" width="8" height="8" rx="1.5" {}
                rect.next x="11.75" y="11.75" width="6.5" height="6.5" rx="1" {}
            }
            "Tilewright"
        }
    }
}

/// Health and uptime: the element with the id `status`.
pub(crate) fn status(frame: &PageFrame) -> Markup {
    html! {
        p #status {
            (phrases::health(&frame.health))
            @if let Health::Degraded(why) = &frame.health { span.why { (why) } }
            span.quiet { "up " (coarse(between(frame.started, frame.now))) }
        }
    }
}

/// The parts of a page that change, each with the id of its element: health and uptime, which every
/// page has, and its own.
pub(crate) fn parts<const N: usize>(
    frame: &PageFrame,
    own: [(&'static str, Markup); N],
) -> Vec<(&'static str, String)> {
    [("status", status(frame))].into_iter().chain(own).map(|(id, part)| (id, part.into_string())).collect()
}

/// A part of a page with its heading.
pub(crate) fn section(id: &str, title: &str, count: Option<usize>, content: Markup) -> Markup {
    html! {
        section.panel id=(id) aria-labelledby={ (id) "-title" } tabindex="-1" {
            h2 id={ (id) "-title" } {
                (title)
                @if let Some(count) = count { " " span.count { (count) } }
            }
            (content)
        }
    }
}

/// A part of a page that no link leads to, with its heading. `class` says its place.
pub(crate) fn panel(class: &str, id: &str, title: impl Render, content: Markup) -> Markup {
    html! {
        section class={ "panel " (class) } aria-labelledby={ (id) "-title" } {
            h2 id={ (id) "-title" } { (title) }
            (content)
        }
    }
}
