//! The part of a profile that is kept for long: the shares of categories, without names.

use serde::{Deserialize, Serialize};

use crate::{Category, LayerRow, PartRow, Profile};

/// Letters of a name, of which a shortened profile has no more.
const LETTERS: usize = 200;

/// A stage's time by category.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileSummary {
    /// Milliseconds of the stage under the profiler.
    pub stage_ms: f64,
    /// Milliseconds of the stage without the profiler.
    pub unprofiled_ms: f64,
    /// Time with the profiler over time without it, less 1.
    pub overhead: f64,
    /// The categories, the longest first. Their times add up to the stage's.
    pub categories: Vec<CategoryShare>,
}

/// The time of a category.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CategoryShare {
    /// The category.
    pub category: Category,
    /// Milliseconds of the stage.
    pub total_ms: f64,
    /// The same over the stage's.
    pub share: f64,
}

impl Profile {
    /// The times of categories alone.
    pub fn summary(&self) -> ProfileSummary {
        let share = |row: &crate::CategoryRow| CategoryShare {
            category: row.category,
            total_ms: row.total_ms,
            share: row.share,
        };
        ProfileSummary {
            stage_ms: self.stage_ms,
            unprofiled_ms: self.unprofiled_ms,
            overhead: self.overhead,
            categories: self.categories.iter().map(share).collect(),
        }
    }

    /// The profile with at most `rows` operators, kernels, layers and parts, those with the most
    /// time, in the order that they have; names are cut after 200 letters.
    #[must_use]
    pub fn shortened(mut self, rows: usize) -> Self {
        self.operators.truncate(rows);
        self.kernels.truncate(rows);
        keep_longest(&mut self.layers, rows, |row: &LayerRow| row.total_ms);
        keep_longest(&mut self.parts, rows, |row: &PartRow| row.total_ms);
        let operators = self.operators.iter_mut().map(|row| &mut row.name);
        let kernels = self.kernels.iter_mut().map(|row| &mut row.name);
        let layers = self.layers.iter_mut().map(|row| &mut row.name);
        let parts = self.parts.iter_mut().map(|row| &mut row.name);
        operators.chain(kernels).chain(layers).chain(parts).for_each(cut);
        self
    }
}

/// Keeps the longest rows in their order.
fn keep_longest<Row>(rows: &mut Vec<Row>, most: usize, time: impl Fn(&Row) -> f64) {
    if rows.len() <= most {
        return;
    }
    let mut longest: Vec<usize> = (0..rows.len()).collect();
    longest.sort_by(|one, other| time(&rows[*other]).total_cmp(&time(&rows[*one])));
    longest.truncate(most);
    let mut place = 0..;
    rows.retain(|_| place.next().is_some_and(|place| longest.contains(&place)));
}

fn cut(name: &mut String) {
    if let Some((end, _)) = name.char_indices().nth(LETTERS) {
        name.truncate(end);
        name.push('…');
    }
}
