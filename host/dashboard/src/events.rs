//! What happened to the service.

use maud::{Markup, html};

use crate::facts::Overview;
use crate::frame::section;
use crate::units::{absolute, since};
use crate::words::badge;

/// How kinds of events are marked; those not named are plain.
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
pub(crate) fn events(facts: &Overview) -> Markup {
    let body = html! {
        @if facts.events.is_empty() {
            p.empty { "Nothing has happened yet. Swaps, rollbacks and refusals are told here." }
        } @else {
            ol.events {
                @for event in &facts.events {
                    li {
                        div { (since(facts.frame.now, event.time)) span.below { (absolute(event.time)) } }
                        (badge(KINDS.iter().find(|(kind, _)| *kind == event.kind).map_or("plain", |(_, look)| look), &event.kind))
                        span.what { (event.what) }
                    }
                }
            }
        }
    };
    section("events", "Events", None, body)
}
