//! Phrases: a route's conditions, a plan, a state.

use maud::{Markup, html};
use tilewright_config::{Between, Conditions};
use tilewright_plan::{Objective, Plan, Release, Space, Time};
use tilewright_service_api::{GridUnit, JobState};

use crate::grid::Grid;
use crate::units::{count, count_of};
use crate::views::{Health, Standing, Tone};

/// A word in a box. Its mark differs by kind, so that nothing depends on colour.
pub(crate) fn badge(kind: &str, word: &str) -> Markup {
    let mark = match kind {
        "good" => "✓",
        "bad" => "✕",
        "busy" => "▸",
        "warn" => "!",
        _ => "·",
    };
    html! { span class={ "badge " (kind) } { span.mark aria-hidden="true" { (mark) } (word) } }
}

pub(crate) fn state(state: JobState) -> Markup {
    let (kind, word) = match state {
        JobState::Queued => ("plain", "queued"),
        JobState::Running => ("busy", "running"),
        JobState::Done => ("good", "done"),
        JobState::Failed => ("bad", "failed"),
        JobState::Cancelled => ("plain", "cancelled"),
        JobState::Expired => ("warn", "expired"),
    };
    badge(kind, word)
}

pub(crate) fn standing(standing: Standing) -> Markup {
    let (kind, word) = match standing {
        Standing::Gathering => ("plain", "gathering"),
        Standing::Good => ("good", "good"),
        Standing::Poor => ("warn", "poor"),
        Standing::Stopped => ("bad", "stopped"),
        Standing::Promoted => ("good", "promoted"),
    };
    badge(kind, word)
}

pub(crate) fn health(health: &Health) -> Markup {
    let (kind, word) = match health {
        Health::Ready => ("good", "ready"),
        Health::Degraded(_) => ("warn", "degraded"),
        Health::Draining => ("busy", "draining"),
    };
    badge(kind, word)
}

pub(crate) const fn tone(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Bad => "bad",
    }
}

pub(crate) const fn objective(objective: Objective) -> &'static str {
    match objective {
        Objective::Fastest => "fastest",
        Objective::Balanced => "balanced",
        Objective::Leanest => "leanest",
    }
}

/// The conditions of a route, a phrase each; one phrase if it takes every job.
pub(crate) fn conditions(conditions: &Conditions) -> Vec<String> {
    let stages: Vec<String> = conditions.stage.iter().map(|stage| format!("{stage:?}").to_lowercase()).collect();
    let lists = [
        ("stage ", &stages),
        ("family ", &conditions.family),
        ("model ", &conditions.model),
        ("on ", &conditions.arch),
        ("device ", &conditions.device),
        ("tagged ", &conditions.tag),
    ];
    let mut phrases: Vec<String> = Vec::new();
    for (word, names) in lists {
        if !names.is_empty() {
            phrases.push(format!("{word}{}", names.join(" or ")));
        }
    }
    if let Some(is_quantized) = conditions.quantized {
        phrases.push(if is_quantized { "quantized weights" } else { "weights that are not quantized" }.into());
    }
    phrases.extend(range(conditions.pixels, "pixel", "pixels"));
    phrases.extend(range(conditions.frames, "frame", "frames"));
    if phrases.is_empty() {
        phrases.push("every job".into());
    }
    phrases
}

fn range(between: Option<Between>, one: &str, many: &str) -> Option<String> {
    match between.map(|between| (between.from, between.to))? {
        (None, None) => None,
        (Some(from), Some(to)) if from == to => Some(count_of(from, one, many)),
        (Some(from), Some(to)) => Some(format!("{} to {}", count(from), count_of(to, one, many))),
        (Some(from), None) => Some(format!("{} or more", count_of(from, one, many))),
        (None, Some(to)) => Some(format!("at most {}", count_of(to, one, many))),
    }
}

/// A plan in a line: differences from the plainest plan alone.
pub(crate) fn plan(plan: &Plan) -> String {
    let mut parts = vec![match plan.space {
        Space::Whole => "in one piece".to_owned(),
        space => space.to_string(),
    }];
    match plan.time {
        Time::Whole => {}
        Time::Carried { frames } => parts.push(format!("chunks of {frames}, carried")),
        Time::Blended { frames, overlap } => parts.push(format!("chunks of {frames}, {overlap} blended")),
    }
    parts.push(plan.precision.to_string());
    if plan.batch > 1 {
        parts.push(format!("{} together", plan.batch));
    }
    parts.push(plan.layout.to_string());
    match plan.release {
        Release::Keep => parts.push("keeps memory".into()),
        Release::AtEnd => {}
        Release::EachStep => parts.push("releases at each step".into()),
    }
    if plan.offload {
        parts.push("offloads".into());
    }
    if plan.prefetch > 0 {
        parts.push(format!("{} ahead", plan.prefetch));
    }
    parts.extend(plan.options.iter().map(|(name, value)| format!("{name}={value}")));
    parts.join(" · ")
}

/// The number of finished parts, and of all.
pub(crate) fn pieces(grid: &Grid) -> String {
    let (one, many) = match grid.unit {
        GridUnit::Tile => ("tile", "tiles"),
        GridUnit::Band => ("band", "bands"),
        GridUnit::Chunk => ("chunk", "chunks"),
        GridUnit::Pass => ("pass", "passes"),
        GridUnit::Step => ("step", "steps"),
    };
    format!("{} of {}", count(grid.done.min(grid.total).into()), count_of(grid.total.into(), one, many))
}

#[cfg(test)]
mod tests {
    use tilewright_plan::{Dtype, Layout, Precision, Tile};

    use super::*;

    #[test]
    fn conditions_are_told_in_words() {
        assert_eq!(conditions(&Conditions::default()), ["every job"]);
        let some = Conditions {
            family: vec!["wan-2.1".into(), "wan-2.2".into()],
            arch: vec!["gfx1151".into()],
            quantized: Some(false),
            pixels: Some(Between { from: None, to: Some(2_000_000) }),
            frames: Some(Between { from: Some(2), to: None }),
            ..Conditions::default()
        };
        let phrases = conditions(&some).join(", ").replace(['\u{a0}', '\u{202f}'], " ");
        assert_eq!(
            phrases,
            "family wan-2.1 or wan-2.2, on gfx1151, weights that are not quantized, at most 2 000 000 pixels, 2 frames or more"
        );
        assert_eq!(range(Some(Between { from: Some(1), to: Some(1) }), "frame", "frames").unwrap(), "1\u{a0}frame");
        assert_eq!(
            range(Some(Between { from: Some(1), to: Some(9) }), "frame", "frames").unwrap(),
            "1 to 9\u{a0}frames"
        );
    }

    #[test]
    fn plans_are_told_in_a_line_and_compared_without_their_reasons() {
        let one = Plan {
            space: Space::Blended(Tile { height: 512, width: 768, overlap: 64 }),
            time: Time::Carried { frames: 8 },
            batch: 2,
            precision: Precision::Mixed(Dtype::Bf16),
            layout: Layout::ChannelsLast,
            release: Release::EachStep,
            offload: true,
            prefetch: 1,
            reason: "so".into(),
            ..Plan::plain()
        };
        assert_eq!(
            plan(&one),
            "blended 768×512/64 · chunks of 8, carried · mixed bf16 · 2 together · channels-last · releases at each step · offloads · 1 ahead"
        );
    }
}
