//! The reason for a plan, in a few words for the person who reads the decision.

use tilewright_sdk::{Kind, Objective, Plan, Space, Time};

use crate::{
    candidates::Candidate,
    contest,
    search::{Priced, Search, with_margin},
};

/// "exact bands of 128: 42 % of whole's memory for 3 % more time; best balance of 17 that fit".
pub fn of(search: &Search<'_>, best: &Priced, fitting: usize, is_leanest: bool) -> String {
    let mut words = shape(&best.plan);
    if best.plan.tile().is_some() {
        words.push_str(&against_whole(search, best));
    }
    let objective = if is_leanest { Objective::Leanest } else { search.request.objective };
    words.extend(["; ", &contest::chosen(objective, fitting)]);
    words
}

/// The plan's division of the picture and the clip, in words.
pub fn shape(plan: &Plan) -> String {
    let mut words = match plan.space {
        Space::Whole => "whole".into(),
        Space::Exact(tile) => ["exact bands of ", &tile.height.to_string()].concat(),
        Space::Blended(tile) => ["tiles of ", &tile.width.to_string(), "×", &tile.height.to_string()].concat(),
    };
    if let Time::Carried(frames) = plan.time {
        words.extend([", ", &frames.to_string(), if frames == 1 { " frame" } else { " frames" }, " at a time"]);
    }
    words
}

/// The plan's price compared with the whole picture's, in whichever precision and memory order that
/// is fastest.
fn against_whole(search: &Search<'_>, best: &Priced) -> String {
    let corrected = |candidate| {
        let correction = search.corrections.of(&Candidate::plan(candidate));
        (candidate, correction, candidate.cost.elapsed_ns as f64 * correction.time)
    };
    let quickest = search.wholes.iter().map(corrected).min_by(|(.., one), (.., other)| one.total_cmp(other));
    let Some((candidate, correction, elapsed)) = quickest else { return String::new() };
    let whole = (elapsed, candidate.cost.held() as f64 * correction.memory);
    let other = candidate.plan().precision;
    let type_of = if other == best.plan.precision { String::new() } else { [" in ", other.word()].concat() };
    let percent = |part: f64, of: f64| (100.0 * part / of.max(1.0)).round() as i64;
    let time = match percent(best.time, whole.0) - 100 {
        0 => " in the same time".into(),
        much @ 200.. => [" for ", &(1 + much / 100).to_string(), " times the time"].concat(),
        more @ 1.. => [" for ", &more.to_string(), " % more time"].concat(),
        less => [" in ", &less.unsigned_abs().to_string(), " % less time"].concat(),
    };
    let fits = with_margin(whole.1, &correction) <= search.request.limit_bytes as f64;
    let missed = match best.plan.kind() {
        Kind::Blended if !search.may_blend() => " as nothing exact fits",
        _ if fits => "",
        _ => " as whole does not fit",
    };
    [missed, ": ", &percent(best.peak, whole.1).to_string(), " % of whole's memory", &type_of, &time].concat()
}
