//! The timeline: parts, operators and kernels over the stage's time, as SVG that fits its window.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::style::mark;
use crate::{Category, Kind, Part, Track, attribution::Attribution, tree::Tree, units};

/// Events that are drawn, the longest ones: more would cover each other.
const MOST: usize = 3000;

/// Tracks that are drawn of threads and streams.
const TRACKS: usize = 24;

/// Pixels of a lane, its name included, and of the axis.
const LANE: usize = 34;
const BAR: usize = 18;
const AXIS: usize = 22;

/// The share of the width from which a name is written into its bar.
const NAMED: f64 = 0.04;

/// Quarters of the stage with a tick each.
const TICKS: u32 = 4;

/// A row of bars.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Part(u8, &'static str),
    Track(Track),
}

impl Lane {
    fn name(self) -> String {
        match self {
            Lane::Part(_, name) => format!("{name}s"),
            Lane::Track(Track::Thread(thread)) => format!("thread {thread}"),
            Lane::Track(Track::Stream { device, stream }) => format!("GPU {device} stream {stream}"),
        }
    }
}

/// The drawing, and the number of events that are left out.
pub fn draw(tree: &Tree<'_>) -> (Markup, usize) {
    let attribution = Attribution::of(tree);
    let whole = (tree.stage.end - tree.stage.start).max(1) as f64;
    let tracks: Vec<Track> = tree.tracks.iter().map(|(track, _)| *track).take(TRACKS).collect();
    let lane_of = |index: usize| {
        let (node, event) = (&tree.nodes[index], tree.event(index));
        match event.kind {
            Kind::Part(Part::Stage) => None,
            Kind::Part(part) => Some(Lane::Part(part as u8, part.name())),
            Kind::Call => None,
            _ => {
                let is_same = |parent: usize| {
                    !matches!(tree.event(parent).kind, Kind::Part(_))
                        && attribution.categories[parent] == attribution.categories[index]
                };
                let is_shown = !node.parent.is_some_and(is_same) && tracks.binary_search(&event.track).is_ok();
                is_shown.then_some(Lane::Track(event.track))
            }
        }
    };
    let mut shown: Vec<(usize, Lane)> =
        (0..tree.nodes.len()).filter_map(|index| Some((index, lane_of(index)?))).collect();
    let left_out = shown.len().saturating_sub(MOST);
    if left_out > 0 {
        shown.select_nth_unstable_by_key(MOST, |(index, _)| std::cmp::Reverse(tree.nodes[*index].duration()));
        shown.truncate(MOST);
        // The inner ones are drawn over the outer ones.
        shown.sort_unstable_by_key(|(index, _)| *index);
    }
    let mut lanes: BTreeMap<Lane, usize> = shown.iter().map(|(_, lane)| (*lane, 0)).collect();
    for (place, top) in lanes.values_mut().enumerate() {
        *top = AXIS + place * LANE;
    }
    let height = AXIS + lanes.len() * LANE;
    let percent = |share: f64| format!("{:.3}%", share * 100.0);
    let bar = |(index, lane): &(usize, Lane)| {
        let (node, event) = (&tree.nodes[*index], tree.event(*index));
        let (start, share) = ((node.start - tree.stage.start) as f64 / whole, node.duration() as f64 / whole);
        let (letters, colour, ink) = match lane {
            Lane::Part(..) => ("", "#e8eef4", "#222"),
            Lane::Track(_) => mark(attribution.categories[*index]),
        };
        let time = units::time(node.duration() as f64 / 1e6);
        let words = match lane {
            Lane::Part(..) => format!("{}: {time}", event.name),
            Lane::Track(_) => format!("{}: {time}, {}", event.name, attribution.categories[*index].name()),
        };
        html! {
            svg x=(percent(start)) y=(lanes[lane] + LANE - BAR - 2) width=(percent(share.max(0.0005))) height=(BAR) {
                title { (words) }
                rect width="100%" height="100%" fill=(colour) {}
                @if share >= NAMED {
                    text x="4" y="13" fill=(ink) { @if !letters.is_empty() { (letters) " " } (event.name) }
                }
            }
        }
    };
    let ticks = (0..=TICKS).map(|tick| f64::from(tick) / f64::from(TICKS));
    let drawing = html! {
        svg.timeline height=(height) role="img" aria-label="Timeline of parts, operators and kernels; the tables have its times" {
            @for tick in ticks {
                line.rule x1=(percent(tick)) x2=(percent(tick)) y1=(AXIS - 6) y2=(height) {}
                @let anchor = if tick == 0.0 { "start" } else if tick == 1.0 { "end" } else { "middle" };
                text.lane x=(percent(tick)) y="11" text-anchor=(anchor) { (units::time(whole * tick / 1e6)) }
            }
            @for (lane, top) in &lanes { text.lane x="0" y=(top + 11) { (lane.name()) } }
            @for event in &shown { (bar(event)) }
        }
    };
    (drawing, left_out)
}

/// The categories that a profile has, for a legend.
pub fn legend(categories: impl Iterator<Item = Category>) -> Markup {
    html! { p { @for category in categories { (super::style::swatch(category)) (category.name()) " \u{2003}" } } }
}
