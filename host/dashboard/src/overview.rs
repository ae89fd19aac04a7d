//! The page at `/`, and its parts that change while one looks.

use std::time::SystemTime;

use maud::{Markup, html};

use crate::chart::{DURATIONS, SHARES, Title, latency, over_time};
use crate::facts::{Charts, Overview};
use crate::frame::{page, section, status};
use crate::{devices, events, lists, policies, routes, submit};

/// A part of the overview that changes while one looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Health and uptime. Pages other than the overview have this part too, by [`status_part`](crate::status_part).
    Status,
    /// Devices and their memory.
    Devices,
    /// Jobs that run, with their tiles.
    Running,
    /// Jobs that wait.
    Queue,
    /// Jobs that ended.
    Recent,
    /// Routes with shadow and canary.
    Routes,
    /// Policies and their revisions.
    Policies,
    /// Charts.
    Charts,
    /// What happened.
    Events,
}

impl Part {
    /// All of them, in the page's order.
    pub const ALL: [Part; 9] = [
        Part::Status,
        Part::Devices,
        Part::Running,
        Part::Queue,
        Part::Recent,
        Part::Routes,
        Part::Policies,
        Part::Charts,
        Part::Events,
    ];

    /// The element's id.
    pub const fn id(self) -> &'static str {
        match self {
            Part::Status => "status",
            Part::Devices => "devices",
            Part::Running => "running",
            Part::Queue => "queue",
            Part::Recent => "recent",
            Part::Routes => "routes",
            Part::Policies => "policies",
            Part::Charts => "charts",
            Part::Events => "events",
        }
    }

    /// The element. Reads the frame and what the part is of: `running` the models too, `policies` the sources; the rest of the facts may
    /// be empty.
    pub fn html(self, facts: &Overview) -> String {
        self.markup(facts).into_string()
    }

    fn markup(self, facts: &Overview) -> Markup {
        match self {
            Part::Status => status(&facts.frame),
            Part::Devices => devices::devices(&facts.devices),
            Part::Running => lists::running(facts),
            Part::Queue => lists::queue(facts),
            Part::Recent => lists::recent(facts),
            Part::Routes => routes::routes(facts),
            Part::Policies => policies::policies(facts),
            Part::Charts => charts(&facts.charts, facts.frame.now),
            Part::Events => events::events(facts),
        }
    }
}

/// The page at `/`.
pub fn overview(facts: &Overview) -> String {
    let part = |part: Part| part.markup(facts);
    let content = html! {
        h1.unseen { "Overview" }
        div.overview {
            // The form comes first for phones; wider screens have a place of its own for it.
            (submit::submit(facts))
            (part(Part::Devices))
            (part(Part::Running))
            div.jobs {
                (part(Part::Queue))
                (part(Part::Recent))
            }
            (part(Part::Routes))
            (part(Part::Policies))
            (part(Part::Charts))
            (part(Part::Events))
        }
    };
    page(&facts.frame, "Overview", "/", content).into_string()
}

const DECODE: Title = Title { name: "Decode time", unit: "per route", empty: "No job has been decoded yet." };

const REGRET: Title = Title {
    name: "Shadow regret",
    unit: "predicted, against the best plan",
    empty: "No shadow has been compared yet.",
};

fn charts(charts: &Charts, now: SystemTime) -> Markup {
    let body = html! {
        div.charts {
            (latency(&charts.latency))
            (over_time(DECODE, now, &charts.decode, DURATIONS))
            (over_time(REGRET, now, &charts.regret, SHARES))
        }
    };
    section("charts", "Charts", None, body)
}
