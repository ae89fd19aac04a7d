//! Charts as SVG, coloured and dashed by class, so that they follow the page's theme. Values that
//! can't be placed are left out.

mod latency;
mod time;

use maud::{Markup, html};

pub(crate) use latency::latency;
pub(crate) use time::{DURATIONS, SHARES, over_time};

/// The drawing's width in its own units. Narrow, so that its letters can be read on a telephone.
const WIDTH: f64 = 360.0;

/// Series beyond these look like the first ones again.
const LOOKS: usize = 6;

/// A coordinate.
fn at(value: f64) -> String {
    format!("{value:.1}")
}

/// A text in a drawing, shortened to the room there is.
fn truncate(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The title of a chart, and the text in its place if it is empty.
#[derive(Clone, Copy)]
pub(crate) struct Title {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// The text shown if there are no points.
    pub(crate) empty: &'static str,
}

/// A chart with its title.
fn figure(title: Title, body: Option<Markup>) -> Markup {
    html! {
        figure.chart {
            figcaption { (title.name) " " span.quiet { (title.unit) } }
            @match body {
                Some(body) => (body),
                None => p.empty { (title.empty) },
            }
        }
    }
}

/// A series' mark: shapes differ, as colours do.
fn mark(look: usize, x: f64, y: f64) -> Markup {
    let class = format!("mark s{}", look % LOOKS);
    html! {
        @match look % LOOKS {
            0 => circle class=(class) cx=(at(x)) cy=(at(y)) r="2.6" {},
            1 => path class=(class) d=(format!("M{} {}l3.4 5.8h-6.8z", at(x), at(y - 3.6))) {},
            2 => rect class=(class) x=(at(x - 2.4)) y=(at(y - 2.4)) width="4.8" height="4.8" {},
            3 => path class={ (class) " open" } d=(format!("M{0} {1}l5 5m0 -5l-5 5", at(x - 2.5), at(y - 2.5))) {},
            4 => path class=(class) d=(format!("M{} {}l3.4 3.4l-3.4 3.4l-3.4 -3.4z", at(x), at(y - 3.4))) {},
            _ => circle class={ (class) " open" } cx=(at(x)) cy=(at(y)) r="3" {},
        }
    }
}
