//! A comparison of two profiles.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::{Profile, units};

/// The differences between two profiles of one stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Milliseconds of the first stage.
    pub before_ms: f64,
    /// Milliseconds of the second one.
    pub after_ms: f64,
    /// Milliseconds that the second one takes longer; negative if it is faster.
    pub difference_ms: f64,
    /// By category, the greatest difference first.
    pub categories: Vec<DifferenceRow>,
    /// By layer, the greatest difference first.
    pub layers: Vec<DifferenceRow>,
    /// A sentence that says where most of the difference lies.
    pub sentence: String,
}

/// The times of a category or a layer in two profiles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DifferenceRow {
    /// The name of the category or the layer.
    pub name: String,
    /// Milliseconds in the first profile; 0 if it is not there.
    pub before_ms: f64,
    /// The same in the second one.
    pub after_ms: f64,
    /// Milliseconds that the second one takes longer.
    pub difference_ms: f64,
}

/// The part of a stage's time below which two are equal.
const EQUAL: f64 = 0.001;

impl Difference {
    /// The differences of the second profile from the first.
    pub fn between(before: &Profile, after: &Profile) -> Self {
        let categories = |profile: &Profile| -> Vec<(String, f64)> {
            profile.categories.iter().map(|row| (row.category.name().to_owned(), row.total_ms)).collect()
        };
        let layers = |profile: &Profile| -> Vec<(String, f64)> {
            profile.layers.iter().map(|row| (row.name.clone(), row.total_ms)).collect()
        };
        let mut difference = Self {
            before_ms: before.stage_ms,
            after_ms: after.stage_ms,
            difference_ms: after.stage_ms - before.stage_ms,
            categories: rows(categories(before), categories(after)),
            layers: rows(layers(before), layers(after)),
            sentence: String::new(),
        };
        difference.sentence = difference.sentence(&after.facts.stage);
        difference
    }

    fn sentence(&self, stage: &str) -> String {
        let Self { before_ms, after_ms, difference_ms, .. } = self;
        let times = format!("{stage} takes {} after {}", units::time(*after_ms), units::time(*before_ms));
        if difference_ms.abs() <= EQUAL * before_ms.max(*after_ms) {
            return format!("{times}: no difference");
        }
        let word = |ms: f64| if ms > 0.0 { "more" } else { "less" };
        // A category that gains what another one loses explains nothing of the whole.
        let along =
            |row: &&DifferenceRow| row.difference_ms.signum() == difference_ms.signum() && row.difference_ms != 0.0;
        let most = |rows: &[DifferenceRow]| rows.iter().find(along).map(|row| (row.name.clone(), row.difference_ms));
        let mut sentence = format!("{times}, {} {}", units::time(difference_ms.abs()), word(*difference_ms));
        if let Some((name, ms)) = most(&self.categories) {
            sentence += &format!(": most of it in {name} ({} {})", units::time(ms.abs()), word(ms));
        }
        if let Some((name, ms)) = most(&self.layers) {
            sentence += &format!(", and of the layers in {name} ({} {})", units::time(ms.abs()), word(ms));
        }
        sentence
    }
}

fn rows(before: Vec<(String, f64)>, after: Vec<(String, f64)>) -> Vec<DifferenceRow> {
    let mut rows: Vec<DifferenceRow> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for (name, ms, is_after) in before
        .into_iter()
        .map(|(name, ms)| (name, ms, false))
        .chain(after.into_iter().map(|(name, ms)| (name, ms, true)))
    {
        let index = *known.entry(name).or_insert_with_key(|name| {
            rows.push(DifferenceRow { name: name.clone(), before_ms: 0.0, after_ms: 0.0, difference_ms: 0.0 });
            rows.len() - 1
        });
        let row = &mut rows[index];
        if is_after {
            row.after_ms += ms
        } else {
            row.before_ms += ms
        }
        row.difference_ms = row.after_ms - row.before_ms;
    }
    rows.sort_by(|one, other| other.difference_ms.abs().total_cmp(&one.difference_ms.abs()));
    rows
}
