//! The places of a LoRA's layers in a network: by original names and by diffusers', with dots or
//! with underscores, and of fused matrices the rows that belong to a layer.

#[cfg(feature = "torch")]
mod factors;

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use tilewright_checkpoint::Shape;
use tilewright_nn::Needed;

use super::names::{self, Join, Row};
use crate::{
    Checkpoint, Error, Result,
    lora::{Lora, LoraFit},
};

/// A layer's weight or bias in the network.
#[derive(Clone, Debug)]
struct Place {
    /// The network's name.
    name: String,
    /// The rows that are the layer's.
    rows: Range<usize>,
    /// The layer's halves stand in the other order in the network.
    swapped: bool,
    /// The columns of a weight; 1 of a bias.
    columns: usize,
}

/// A network's layer.
#[derive(Clone, Debug, Default)]
struct Module {
    weight: Option<Place>,
    bias: Option<Place>,
}

/// The rows of each of a fused matrix's parts: equal ones. Where a feed-forward follows queries,
/// keys and values, these three are as wide as the tokens, which the columns tell.
fn part_rows(rows: usize, columns: usize, parts: usize) -> Vec<Range<usize>> {
    let each = if parts == 4 { columns.min(rows / 3) } else { rows / parts.max(1) };
    let end = |part: usize| if part == parts { rows } else { part * each };
    (0..parts).map(|part| end(part)..end(part + 1)).collect()
}

/// Every layer of a network by each name that files give it.
fn modules(layouts: &[&[Row]], needed: &[Needed]) -> HashMap<String, Module> {
    let shapes: HashMap<&str, &[usize]> =
        needed.iter().map(|needed| (needed.name.as_str(), needed.shapes[0].as_slice())).collect();
    let mut modules = HashMap::<String, Module>::new();
    for table in layouts {
        for (name, shape) in &shapes {
            let (rows, columns) = match shape[..] {
                [rows, columns] => (rows, columns),
                _ => (shape.iter().product(), 1),
            };
            // A bias is split as its matrix is.
            let of_matrix = shapes.get(name.replace(".bias", ".weight").as_str()).and_then(|shape| shape.get(1));
            let (parts, join) = names::stored_names(table, name);
            let ranges = part_rows(rows, of_matrix.copied().unwrap_or(columns), parts.len());
            for (part, rows) in parts.iter().zip(ranges) {
                let place = Place { name: (*name).to_owned(), rows, swapped: join == Join::Swapped, columns };
                let (module, is_bias) = match (part.strip_suffix(".weight"), part.strip_suffix(".bias")) {
                    (Some(module), _) => (module, false),
                    (_, Some(module)) => (module, true),
                    // A parameter of no layer, such as a modulation.
                    _ => (part.as_str(), false),
                };
                for key in [module.to_owned(), module.replace('.', "_")] {
                    let entry = modules.entry(key).or_default();
                    *(if is_bias { &mut entry.bias } else { &mut entry.weight }) = Some(place.clone());
                }
            }
        }
    }
    modules
}

/// A change of some rows of a weight.
#[derive(Debug)]
struct Change {
    /// The LoRA that it is of.
    lora: usize,
    rows: Range<usize>,
    swapped: bool,
    factor: f64,
    down: Option<String>,
    up: String,
}

/// The changes that LoRAs make to a network's weights.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    loras: Vec<Lora>,
    by_name: BTreeMap<String, Vec<Change>>,
}

impl Changes {
    /// All LoRAs.
    pub fn loras(&self) -> &[Lora] {
        &self.loras
    }

    /// The files of all LoRAs.
    pub fn files(&self) -> impl Iterator<Item = &Checkpoint> {
        self.loras.iter().map(Lora::file)
    }

    /// Adds a LoRA's changes to a network whose weights may be called by the names of `layouts`.
    ///
    /// # Errors
    /// No layer fits, or a tensor has another shape than the network's.
    pub fn add(&mut self, lora: Lora, layouts: &[&[Row]], needed: &[Needed]) -> Result<LoraFit> {
        let modules = modules(layouts, needed);
        let path = lora.file().path().to_owned();
        let index = self.loras.len();
        let (mut changes, mut fitting, mut without) = (Vec::new(), 0, lora.changes.other_keys.clone());
        let mut misfits: Option<String> = None;
        for (name, layer) in &lora.changes.layers {
            let Module { weight, bias } = modules.get(name).cloned().unwrap_or_default();
            let matrix = weight.clone().filter(|place| place.columns > 1);
            let (factor, whole) = (lora.factor(layer), lora.strength);
            let pieces = [
                (&layer.up, layer.down.as_ref(), matrix, factor),
                (&layer.up_bias, None, bias.clone(), factor),
                (&layer.weight, None, weight, whole),
                (&layer.bias, None, bias, whole),
            ];
            let before = changes.len();
            for (up, down, place, factor) in pieces {
                let (Some(up), place) = (up, place) else { continue };
                let Some(place) = place else {
                    without.extend(down.into_iter().chain([up]).cloned());
                    continue;
                };
                if let Some(fault) = misfit(&lora, up, down, &place) {
                    misfits.get_or_insert(fault);
                    without.extend(down.into_iter().chain([up]).cloned());
                    continue;
                }
                for name in down.into_iter().chain([up]) {
                    lora.check(name)?;
                }
                fitting += 1 + usize::from(down.is_some());
                let change = Change {
                    lora: index,
                    rows: place.rows.clone(),
                    swapped: place.swapped,
                    factor,
                    down: down.cloned(),
                    up: up.clone(),
                };
                changes.push((place.name, change));
            }
            // An alpha goes with its factors.
            let rest = layer.keys().filter(|key| key.ends_with(".alpha")).cloned();
            if changes.len() > before { fitting += rest.count() } else { without.extend(rest) }
        }
        let keys = fitting + without.len();
        let first_without = without.into_iter().min();
        let fit = LoraFit { fitting, keys, first_without, text_keys: lora.text_keys };
        if fitting == 0 || misfits.is_some() {
            let reason = match (&fit.first_without, misfits) {
                (_, Some(fault)) => format!("a LoRA for another model: {fitting} of its {keys} keys fit: {fault}"),
                (Some(first), None) => {
                    format!("a LoRA for another model: none of its {keys} keys fit, such as {first}")
                }
                (None, None) => "a LoRA for text encoders alone: nothing in it is the transformer's".into(),
            };
            return Err(Error::Unknown { path, reason });
        }
        for (name, change) in changes {
            self.by_name.entry(name).or_default().push(change);
        }
        self.loras.push(lora);
        Ok(fit)
    }

    /// Elements of the changes' tensors.
    pub fn elements(&self) -> u64 {
        let of = |change: &Change, name: &String| self.loras[change.lora].shape(name).iter().product::<usize>() as u64;
        let all = |change: &Change| change.down.iter().chain([&change.up]).map(|name| of(change, name)).sum::<u64>();
        self.by_name.values().flatten().map(all).sum()
    }

    /// The extents of a matrix's changes: rows, and the rank, which is 0 of a whole matrix.
    pub fn extents_of_matrix(&self, name: &str) -> Vec<[i64; 2]> {
        let extents = |change: &Change| {
            let rank = change.down.as_ref().map_or(0, |down| self.loras[change.lora].shape(down)[0]);
            [change.rows.len() as i64, rank as i64]
        };
        self.by_name.get(name).into_iter().flatten().map(extents).collect()
    }
}

/// The first of a change's tensors that has another shape than the network's, in words.
fn misfit(lora: &Lora, up: &str, down: Option<&String>, place: &Place) -> Option<String> {
    let rank = down.map(|down| lora.shape(down)[0]);
    let mut expected = vec![(up, [place.rows.len(), rank.unwrap_or(place.columns)])];
    if let (Some(down), Some(rank)) = (down, rank) {
        expected.push((down, [rank, place.columns]));
    }
    expected.into_iter().find_map(|(name, expected)| {
        let found = lora.shape(name);
        let is_vector = expected[1] == 1 && found.iter().product::<usize>() == expected[0];
        if found == expected || is_vector {
            return None;
        }
        let found = Shape(lora.file().shape(name).unwrap_or_default().to_vec());
        let expected = Shape(if expected[1] == 1 { vec![expected[0]] } else { expected.to_vec() });
        Some(format!("tensor {name} has shape {found}, {expected} expected"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_matrices_are_split_where_their_parts_meet() {
        assert_eq!(part_rows(96, 32, 3), [0..32, 32..64, 64..96]);
        assert_eq!(part_rows(224, 32, 4), [0..32, 32..64, 64..96, 96..224]);
        assert_eq!(part_rows(10, 3, 1), vec![0..10; 1]);
        assert_eq!(part_rows(0, 0, 2), [0..0, 0..0]);
    }
}
