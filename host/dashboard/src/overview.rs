//! The page at `/`, and its parts that change.

use std::time::SystemTime;

use maud::{Markup, html};
use tilewright_plan::Stage;

use crate::chart::{DURATIONS, SHARES, Title, latency, over_time};
use crate::frame::{page, section, status};
use crate::views::{Charts, OverviewPage};
use crate::{devices, events, lists, policies, routes, submit};

/// A part of the overview that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OverviewPart {
    /// Health and uptime. Pages other than the overview have this part too, by
    /// [`status_part`](crate::status_part).
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
    /// Events.
    Events,
}

impl OverviewPart {
    /// All of them, in the page's order.
    pub const ALL: [OverviewPart; 9] = [
        OverviewPart::Status,
        OverviewPart::Devices,
        OverviewPart::Running,
        OverviewPart::Queue,
        OverviewPart::Recent,
        OverviewPart::Routes,
        OverviewPart::Policies,
        OverviewPart::Charts,
        OverviewPart::Events,
    ];

    /// The element's id.
    pub const fn id(self) -> &'static str {
        match self {
            OverviewPart::Status => "status",
            OverviewPart::Devices => "devices",
            OverviewPart::Running => "running",
            OverviewPart::Queue => "queue",
            OverviewPart::Recent => "recent",
            OverviewPart::Routes => "routes",
            OverviewPart::Policies => "policies",
            OverviewPart::Charts => "charts",
            OverviewPart::Events => "events",
        }
    }

    /// The element. It reads the frame and the part's own data; `running` reads the models too, and
    /// `policies` the sources. The rest of the page's data may be empty.
    pub fn html(self, view: &OverviewPage) -> String {
        self.markup(view).into_string()
    }

    fn markup(self, view: &OverviewPage) -> Markup {
        match self {
            OverviewPart::Status => status(&view.frame),
            OverviewPart::Devices => devices::devices(&view.devices),
            OverviewPart::Running => lists::running(view),
            OverviewPart::Queue => lists::queue(view),
            OverviewPart::Recent => lists::recent(view),
            OverviewPart::Routes => routes::routes(view),
            OverviewPart::Policies => policies::policies(view),
            OverviewPart::Charts => charts(&view.charts, view.frame.now),
            OverviewPart::Events => events::events(view),
        }
    }
}

/// The page at `/`.
pub fn overview(view: &OverviewPage) -> String {
    let part = |part: OverviewPart| part.markup(view);
    let content = html! {
        h1.unseen { "Overview" }
        div.overview {
            // The form comes first for phones; wider screens have a place of its own for it.
            (submit::submit(view))
            (part(OverviewPart::Devices))
            (part(OverviewPart::Running))
            div.jobs {
                (part(OverviewPart::Queue))
                (part(OverviewPart::Recent))
            }
            (part(OverviewPart::Routes))
            (part(OverviewPart::Policies))
            (part(OverviewPart::Charts))
            (part(OverviewPart::Events))
        }
    };
    page(&view.frame, "Overview", "/", content).into_string()
}

/// The times of a stage's work.
const fn time_of(stage: Stage) -> Title {
    let name = match stage {
        Stage::Text => "Text time",
        Stage::Denoise => "Sampling time",
        Stage::Decode => "Decode time",
        Stage::Encode => "Encode time",
    };
    Title { name, unit: "per route", empty: "No job has been carried out yet." }
}

const REGRET: Title = Title {
    name: "Shadow regret",
    unit: "predicted, against the best plan",
    empty: "No shadow has been compared yet.",
};

fn charts(charts: &Charts, now: SystemTime) -> Markup {
    let body = html! {
        div.charts {
            (latency(&charts.latency))
            @if charts.work.is_empty() { (over_time(time_of(Stage::Decode), now, &[], DURATIONS)) }
            @for (stage, series) in &charts.work { (over_time(time_of(*stage), now, series, DURATIONS)) }
            (over_time(REGRET, now, &charts.regret, SHARES))
        }
    };
    section("charts", "Charts", None, body)
}
