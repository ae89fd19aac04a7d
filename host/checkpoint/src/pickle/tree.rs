//! The tensors of a pickle by name: a dict of them, perhaps below others such as `state_dict`.

use std::collections::BTreeMap;

use super::{
    machine::{Id, Pickled, Value},
    tensor::Tensor,
};
use crate::contents::MOST_TENSORS;

/// Keys of dicts below which a network's weights stand, the first before the others: PyTorch
/// Lightning's and most trainers', those of averaged weights, DeepSpeed's.
const LEVELS: [&str; 6] = ["state_dict", "params_ema", "params", "model_state_dict", "module", "model"];

/// The name of a tensor that was saved alone.
const ALONE: &str = "tensor";

/// The longest part of a tensor's name, in bytes.
const LONGEST_KEY: usize = 4096;

/// Dicts and lists within each other.
const DEEPEST: usize = 16;

/// The most values that are looked at: one object may stand in many places.
const MOST_VISITS: usize = 1 << 20;

/// The most bytes of all names together.
const MOST_BYTES: usize = 64 << 20;

/// A tensor, below the keys that lead to it.
struct Found<'p, 'a> {
    path: Vec<String>,
    tensor: &'p Tensor<'a>,
}

/// The tensors by name. Where dicts stand in each other, those of weights count alone.
///
/// # Errors
/// One line: there are none, or more than any model has.
pub fn tensors<'p, 'a>(pickled: &'p Pickled<'a>) -> Result<BTreeMap<String, &'p Tensor<'a>>, String> {
    let mut walk = Walk { pickled, visits: 0, bytes: 0, found: Vec::new() };
    walk.visit(pickled.root(), &mut Vec::new())?;
    let mut found = walk.found;
    if found.is_empty() {
        return Err("a pickle without tensors".into());
    }
    while let Some(level) = level(&found) {
        found.retain(|of| of.path.len() > 1 && of.path[0] == level);
        found.iter_mut().for_each(|of| drop(of.path.remove(0)));
    }
    if found.len() > MOST_TENSORS {
        return Err(format!("{} tensors: at most {MOST_TENSORS} are read", found.len()));
    }
    let mut tensors = BTreeMap::new();
    for Found { path, tensor } in found {
        let name = if path.is_empty() { ALONE.to_owned() } else { path.join(".") };
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(format!("two tensors are called {name}"));
        }
    }
    Ok(tensors)
}

/// The key of the outermost dict below which the weights stand; none if they stand in it.
fn level(found: &[Found<'_, '_>]) -> Option<String> {
    let is_below = |key: &str| found.iter().any(|of| of.path.len() > 1 && of.path[0] == key);
    if let Some(key) = LEVELS.into_iter().find(|key| is_below(key)) {
        return Some(key.to_owned());
    }
    let first = found.first().filter(|of| of.path.len() > 1)?.path[0].clone();
    found.iter().all(|of| of.path.len() > 1 && of.path[0] == first).then_some(first)
}

struct Walk<'p, 'a> {
    pickled: &'p Pickled<'a>,
    visits: usize,
    /// Bytes of the names that were found.
    bytes: usize,
    found: Vec<Found<'p, 'a>>,
}

impl Walk<'_, '_> {
    fn visit(&mut self, id: Id, path: &mut Vec<String>) -> Result<(), String> {
        self.visits += 1;
        if self.visits > MOST_VISITS {
            return Err(format!("a pickle of more than {MOST_VISITS} values: no model has so many"));
        }
        let pickled = self.pickled;
        match pickled.value(id) {
            Value::Tensor(tensor) => {
                self.bytes += path.iter().map(String::len).sum::<usize>();
                if self.bytes > MOST_BYTES {
                    return Err(format!("more than {MOST_BYTES} bytes of names: no model has so many"));
                }
                self.found.push(Found { path: path.clone(), tensor });
                Ok(())
            }
            // Values below go round in a circle, or are no weights.
            Value::Dict(_) | Value::List(_) | Value::Tuple(_) if path.len() >= DEEPEST => Ok(()),
            Value::Dict(pairs) => pairs.iter().try_for_each(|(key, of)| self.descend(pickled.value(*key), *of, path)),
            Value::List(items) | Value::Tuple(items) => items
                .iter()
                .enumerate()
                .try_for_each(|(index, of)| self.descend(&Value::Integer(index as i64), *of, path)),
            _ => Ok(()),
        }
    }

    fn descend(&mut self, key: &Value<'_>, of: Id, path: &mut Vec<String>) -> Result<(), String> {
        let key = match key {
            Value::Text(text) if text.len() > LONGEST_KEY => return Ok(()),
            Value::Text(text) => (*text).to_owned(),
            Value::Integer(number) => number.to_string(),
            // Keys of other kinds lead to no weights.
            _ => return Ok(()),
        };
        path.push(key);
        let outcome = self.visit(of, path);
        path.pop();
        outcome
    }
}
