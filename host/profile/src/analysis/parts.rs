//! The rows of layers and of the other parts.

use std::collections::HashMap;

use super::{Analysis, Times, categories::times_of_rows, milliseconds, most};
use crate::{Category, Kind, LayerRow, Part, PartRow};

/// A row while it is counted.
struct Counted {
    part: Part,
    name: String,
    start: u64,
    calls: u64,
    nanoseconds: f64,
}

/// The times without the host's, unless there are no others.
fn without_host(times: Times) -> Times {
    let mut others = times;
    others[Category::Host as usize] = 0.0;
    if others.iter().sum::<f64>() > 0.0 { others } else { times }
}

impl Analysis<'_> {
    /// Layers and other parts but the stage, in the order of their first start.
    pub fn parts(&self) -> (Vec<LayerRow>, Vec<PartRow>) {
        let spans = self.spans();
        let mut rows: Vec<Counted> = Vec::new();
        let mut known = vec![None; self.tree.names.len()];
        // The row of the layer that a node lies within.
        let mut layers: Vec<Option<usize>> = vec![None; self.tree.nodes.len()];
        for (index, node) in self.host_nodes() {
            layers[index] = node.parent.and_then(|parent| layers[parent]);
            let event = self.tree.event(index);
            let Kind::Part(part) = event.kind else { continue };
            if part == Part::Stage {
                continue;
            }
            let place = *known[node.name].get_or_insert_with(|| {
                rows.push(Counted { part, name: event.name.clone(), start: node.start, calls: 0, nanoseconds: 0.0 });
                rows.len() - 1
            });
            let row = &mut rows[place];
            row.calls += 1;
            row.start = row.start.min(node.start);
            if node.is_outermost {
                row.nanoseconds += spans[index];
            }
            if part == Part::Layer {
                layers[index] = Some(place);
            }
        }
        let times = times_of_rows(rows.len(), &self.own_times(), |node| layers[node]);
        let mut rows: Vec<_> = rows.into_iter().zip(times).collect();
        rows.sort_by_key(|(row, _)| row.start);
        let (of_layers, of_parts): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(row, _)| row.part == Part::Layer);
        let parts = self.facts.estimated_parts.iter();
        let estimates: HashMap<(&str, bool), f64> =
            parts.map(|part| ((part.name.as_str(), part.is_block), part.total_ms)).collect();
        let layer = |(row, times): (Counted, _)| LayerRow {
            estimated_ms: estimates.get(&(row.name.as_str(), false)).copied(),
            name: row.name,
            // The time of a layer beside its operators is no reason to call it the host's.
            category: most(&without_host(times)),
            calls: row.calls,
            total_ms: milliseconds(row.nanoseconds),
        };
        let part = |(row, _): (Counted, _)| PartRow {
            part: row.part,
            estimated_ms: estimates
                .get(&(row.name.as_str(), row.part == Part::Block))
                .copied()
                .filter(|_| row.part == Part::Block),
            name: row.name,
            calls: row.calls,
            total_ms: milliseconds(row.nanoseconds),
        };
        (of_layers.into_iter().map(layer).collect(), of_parts.into_iter().map(part).collect())
    }

    /// Nanoseconds of each node: on a GPU from the start of the first kernel that was launched
    /// within it to the end of the last one.
    fn spans(&self) -> Vec<f64> {
        if !self.by_kernels {
            return self.tree.nodes.iter().map(|node| node.duration() as f64).collect();
        }
        let mut spans: Vec<Option<(u64, u64)>> = vec![None; self.tree.nodes.len()];
        let widen = |span: &mut Option<(u64, u64)>, (start, end): (u64, u64)| {
            let (from, to) = span.unwrap_or((start, end));
            *span = Some((from.min(start), to.max(end)));
        };
        for (node, launcher) in self.tree.nodes.iter().zip(&self.attribution.launchers) {
            if let Some(launcher) = launcher {
                widen(&mut spans[*launcher], (node.start, node.end));
            }
        }
        for (index, node) in self.tree.nodes.iter().enumerate().rev() {
            if let (Some(parent), Some(span)) = (node.parent, spans[index]) {
                widen(&mut spans[parent], span);
            }
        }
        spans.into_iter().map(|span| span.map_or(0.0, |(start, end)| (end - start) as f64)).collect()
    }
}
