//! The rows of categories: times, amounts and rates.

use super::{Analysis, Times, is_kernel, is_stream, milliseconds};
use crate::{
    Amount, Category, CategoryRow, Kind, Peaks,
    sweep::{Division, Lane, divide},
};

impl Analysis<'_> {
    /// The categories with time or an amount, the longest first.
    pub fn categories(&self) -> Vec<CategoryRow> {
        let Division { nanoseconds, gaps } = divide(self.tree.stage.clone(), &self.lanes());
        let amounts = self.amounts();
        let mut calls = self.calls();
        if self.by_kernels {
            calls[Category::LaunchGaps as usize] = gaps;
        }
        let mut rows: Vec<CategoryRow> = Category::ALL
            .into_iter()
            .filter(|category| nanoseconds[*category as usize] > 0.0 || !is_nothing(amounts[*category as usize]))
            .map(|category| {
                let index = category as usize;
                self.row(category, nanoseconds[index], calls[index], amounts[index])
            })
            .collect();
        rows.sort_by(|one, other| other.total_ms.total_cmp(&one.total_ms));
        rows
    }

    fn row(&self, category: Category, nanoseconds: f64, calls: u64, amount: Amount) -> CategoryRow {
        let whole = (self.tree.stage.end - self.tree.stage.start) as f64;
        let seconds = nanoseconds / 1e9;
        let rate = |amount: f64| (amount > 0.0 && seconds > 0.0).then(|| amount / seconds);
        let at_peaks = time_at_peaks(category, amount, &self.facts.peaks);
        CategoryRow {
            category,
            total_ms: milliseconds(nanoseconds),
            share: if whole > 0.0 { nanoseconds / whole } else { 0.0 },
            calls,
            operations: amount.operations,
            bytes: amount.bytes,
            operations_per_second: rate(amount.operations),
            bytes_per_second: rate(amount.bytes),
            of_roof: at_peaks.and_then(rate),
        }
    }

    /// The tracks that time is divided among. On a GPU these are the streams, and then the threads
    /// that give them work; otherwise the stage's thread, and the others while it does nothing.
    fn lanes(&self) -> Vec<Lane> {
        let Self { tree, attribution, by_kernels, .. } = self;
        let root = tree.event(tree.root).track;
        let tracks = tree.tracks.iter().filter(|(track, _)| *by_kernels || !is_stream(*track));
        tracks
            .map(|(track, range)| {
                let category = |node: usize| match (by_kernels, is_stream(*track)) {
                    (true, true) => is_kernel(tree.event(node).kind).then(|| attribution.categories[node]),
                    (true, false) => attribution.launches[node].then_some(Category::LaunchGaps),
                    (false, _) => (!attribution.is_idle(tree, node)).then(|| attribution.categories[node]),
                };
                let is_first = if *by_kernels { is_stream(*track) } else { *track == root };
                let spans = tree.intervals(range.clone());
                let spans = spans.iter().filter_map(|span| Some((span.start, span.end, category(span.node)?)));
                Lane { rank: usize::from(!is_first), spans: spans.collect() }
            })
            .collect()
    }

    /// Calls by category.
    fn calls(&self) -> [u64; Category::ALL.len()] {
        let mut calls = [0; Category::ALL.len()];
        for (index, node, event) in self.tree.iter() {
            let category = self.attribution.categories[index];
            let is_part = |node: usize| matches!(self.tree.event(node).kind, Kind::Part(_));
            let is_within = |parent: usize| !is_part(parent) && self.attribution.categories[parent] == category;
            let counts = match event.kind {
                Kind::Part(_) => false,
                kind if self.by_kernels => is_kernel(kind) && is_stream(event.track),
                kind => !is_kernel(kind) && !node.parent.is_some_and(is_within),
            };
            calls[category as usize] += u64::from(counts);
        }
        calls
    }

    /// The amounts of operations, each by the category that its time belongs to. An operation
    /// within another adds nothing: its amount is in the outer one's, if that has any.
    fn amounts(&self) -> [Amount; Category::ALL.len()] {
        let mut amounts = [Amount::default(); Category::ALL.len()];
        let mut has_amount = vec![false; self.tree.nodes.len()];
        for (index, node, event) in self.tree.iter() {
            let is_counted = node.parent.is_some_and(|parent| has_amount[parent]);
            has_amount[index] = is_counted;
            if let Kind::Operation(_, amount) = event.kind {
                let amount =
                    Amount { operations: at_least_zero(amount.operations), bytes: at_least_zero(amount.bytes) };
                has_amount[index] |= !is_nothing(amount);
                if !is_counted {
                    amounts[self.attribution.categories[index] as usize] += amount;
                }
            }
        }
        amounts
    }

    /// Nanoseconds by category of each node's own time: on a GPU that of the kernels it launched.
    pub fn own_times(&self) -> Vec<(usize, Category, f64)> {
        if self.by_kernels {
            let launched = self.attribution.launchers.iter().enumerate();
            return launched
                .filter_map(|(kernel, launcher)| {
                    let time = self.tree.nodes[kernel].duration() as f64;
                    Some(((*launcher)?, self.attribution.categories[kernel], time))
                })
                .collect();
        }
        let times = self.tree.self_times();
        self.host_nodes().map(|(node, _)| (node, self.attribution.categories[node], times[node] as f64)).collect()
    }
}

/// Adds the times of nodes to the rows that they belong to.
pub fn times_of_rows(
    rows: usize,
    times: &[(usize, Category, f64)],
    row_of: impl Fn(usize) -> Option<usize>,
) -> Vec<Times> {
    let mut of_rows = vec![Times::default(); rows];
    for (node, category, time) in times {
        if let Some(row) = row_of(*node) {
            of_rows[row][*category as usize] += time;
        }
    }
    of_rows
}

fn is_nothing(amount: Amount) -> bool {
    amount == Amount::default()
}

fn at_least_zero(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

/// Seconds that a device at its peaks needs for an amount of a category; none if no peak is known.
fn time_at_peaks(category: Category, amount: Amount, peaks: &Peaks) -> Option<f64> {
    let time = |amount: f64, peak: f64| (peak > 0.0 && peak.is_finite()).then(|| amount / peak);
    let computed = time(amount.operations, peaks.of(category));
    let moved = time(amount.bytes, peaks.bytes_per_second);
    Some(computed?.max(moved?)).filter(|time| *time > 0.0)
}

impl Peaks {
    /// The peak of a category in operations per second.
    pub const fn of(&self, category: Category) -> f64 {
        match category {
            Category::Convolution => self.convolution_operations_per_second,
            Category::Attention => self.attention_operations_per_second,
            _ => self.operations_per_second,
        }
    }
}
