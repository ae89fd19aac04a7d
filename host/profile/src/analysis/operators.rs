//! The rows of operators and kernels, counted as `torch.profiler` counts them.

use super::{Analysis, Times, categories::times_of_rows, is_kernel, milliseconds, most};
use crate::{Category, KernelRow, Kind, OperatorRow};

impl Analysis<'_> {
    /// Operators, operations and calls by name, the longest by themselves first.
    pub fn operators(&self) -> Vec<OperatorRow> {
        let own = self.tree.self_times();
        let launched = self.launched_times();
        let mut launched_within = launched.clone();
        for (index, node) in self.tree.nodes.iter().enumerate().rev() {
            if let Some(parent) = node.parent {
                launched_within[parent] += launched_within[index];
            }
        }
        let mut rows: Vec<OperatorRow> = Vec::new();
        let mut known = vec![None; self.tree.names.len()];
        let mut of_nodes = vec![None; self.tree.nodes.len()];
        for (index, node) in self.host_nodes() {
            let event = self.tree.event(index);
            if !matches!(event.kind, Kind::Operation(..) | Kind::Operator | Kind::Call) {
                continue;
            }
            let place = *known[node.name].get_or_insert_with(|| {
                rows.push(OperatorRow {
                    name: event.name.clone(),
                    category: self.attribution.categories[index],
                    calls: 0,
                    self_ms: 0.0,
                    total_ms: 0.0,
                    device_ms: self.by_kernels.then_some(0.0),
                    device_total_ms: self.by_kernels.then_some(0.0),
                });
                rows.len() - 1
            });
            of_nodes[index] = Some(place);
            let row = &mut rows[place];
            let counted = if node.is_outermost { 1.0 } else { 0.0 };
            row.calls += 1;
            row.self_ms += milliseconds(own[index] as f64);
            row.total_ms += milliseconds(node.duration() as f64) * counted;
            row.device_ms = row.device_ms.map(|time| time + milliseconds(launched[index]));
            let within = milliseconds(launched_within[index]) * counted;
            row.device_total_ms = row.device_total_ms.map(|time| time + within);
        }
        let times = times_of_rows(rows.len(), &self.own_times(), |node| of_nodes[node]);
        for (row, times) in rows.iter_mut().zip(&times) {
            row.category = if times.iter().sum::<f64>() > 0.0 { most(times) } else { row.category };
        }
        let key = |row: &OperatorRow| [row.device_ms.unwrap_or_default(), row.self_ms];
        sort_longest_first(&mut rows, key);
        rows
    }

    /// Kernels and transfers by name, the longest first.
    pub fn kernels(&self) -> Vec<KernelRow> {
        let mut rows: Vec<(KernelRow, Times)> = Vec::new();
        let mut known = vec![None; self.tree.names.len()];
        for (index, node, event) in self.tree.iter().filter(|(_, _, event)| is_kernel(event.kind)) {
            let place = *known[node.name].get_or_insert_with(|| {
                let name = event.name.clone();
                let row = KernelRow { name, category: self.attribution.categories[index], calls: 0, total_ms: 0.0 };
                rows.push((row, [0.0; Category::ALL.len()]));
                rows.len() - 1
            });
            let (row, times) = &mut rows[place];
            row.calls += 1;
            row.total_ms += milliseconds(node.duration() as f64);
            times[self.attribution.categories[index] as usize] += node.duration() as f64;
        }
        let named = |(row, times): (KernelRow, Times)| {
            let category = if row.total_ms > 0.0 { most(&times) } else { row.category };
            KernelRow { category, ..row }
        };
        let mut rows: Vec<KernelRow> = rows.into_iter().map(named).collect();
        sort_longest_first(&mut rows, |row| [row.total_ms, 0.0]);
        rows
    }
}

fn sort_longest_first<T>(rows: &mut [T], key: impl Fn(&T) -> [f64; 2]) {
    rows.sort_by(|one, other| {
        let ([one, own], [other, others]) = (key(one), key(other));
        other.total_cmp(&one).then(others.total_cmp(&own))
    });
}
