//! Events of the service.

use maud::{Markup, html};
use tilewright_service_api::EventBody;

use crate::frame::section;
use crate::phrases::badge;
use crate::units::{absolute, parse, since};
use crate::views::OverviewPage;

/// The looks of kinds of events; all others are plain.
const KINDS: [(&str, &str); 10] = [
    ("swapped", "good"),
    ("promoted", "good"),
    ("resumed", "good"),
    ("rolled back", "warn"),
    ("rolled-back", "warn"),
    ("paused", "warn"),
    ("stopped", "warn"),
    ("refused", "bad"),
    ("failed", "bad"),
    ("out of service", "bad"),
];

/// The element with the id `events`.
pub(crate) fn events(view: &OverviewPage) -> Markup {
    let body = html! {
        @if view.events.is_empty() {
            p.empty { "Nothing has happened yet. Swaps, rollbacks and refusals are told here." }
        } @else {
            ol.events {
                @for event in &view.events {
                    @let (time, kind) = (parse(&event.time), event.what.replace('-', " "));
                    li {
                        div { (since(view.frame.now, time)) span.below { (absolute(time)) } }
                        (badge(KINDS.iter().find(|(known, _)| *known == kind).map_or("plain", |(_, look)| look), &kind))
                        span.what { (sentence(event)) }
                    }
                }
            }
        }
    };
    section("events", "Events", None, body)
}

/// The event in a line, led by the policy and route that it concerns.
fn sentence(event: &EventBody) -> String {
    let subjects: Vec<&str> = [&event.policy, &event.route].into_iter().flatten().map(String::as_str).collect();
    if subjects.is_empty() { event.detail.clone() } else { format!("{}: {}", subjects.join(", "), event.detail) }
}
