//! A transformer's weights in a file, by the names that its network knows them by.

#[cfg(feature = "torch")]
mod loading;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tilewright_checkpoint::{Checkpoint, Error as FileError, Quantization, Shape, Stored};
use tilewright_kernels::{INT8_COLUMNS, Packed};
use tilewright_nn::{Meter, MeterMatrix, Needed, PackedRows, TokenSource};
use tilewright_plan::Dtype;

use super::{
    changes::Changes,
    names::{self, Join, Layout, Row},
};
use crate::{
    Error, Result,
    lora::{Lora, LoraFit},
};

/// The most blocks of a transformer: past this a file is hostile rather than large.
const MOST_BLOCKS: usize = 1 << 10;

/// The beginnings of the names of other networks in whole checkpoints.
const OTHERS: [&str; 6] =
    ["vae", "first_stage_model", "text_encoders", "cond_stage_model", "conditioner", "clip_vision"];

/// The widest layer: products of two such widths are far from overflowing.
pub(crate) const MOST_WIDTH: usize = 1 << 20;

/// The place of weights while they wait for their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// In their file, as it stores them: the system's page cache keeps what it has room for.
    Mapped,
    /// On the device, as the file stores them.
    Packed,
    /// As the file stores them: those of blocks in host memory, copied to the device for their
    /// turns, and the rest on the device.
    Streamed,
    /// On the device, in the type of products.
    Expanded,
}

/// A transformer in a file: its tensors by the network's names.
#[derive(Debug)]
pub struct TransformerFile {
    file: Arc<Checkpoint>,
    /// The layout of its names.
    pub layout: Layout,
    /// The prefix of every name.
    pub prefix: String,
    /// The table of names of a layout.
    rows: fn(Layout) -> &'static [Row],
    changes: Changes,
}

impl TransformerFile {
    pub(crate) fn new(
        file: impl Into<Arc<Checkpoint>>,
        layout: Layout,
        prefix: String,
        rows: fn(Layout) -> &'static [Row],
    ) -> Self {
        Self { file: file.into(), layout, prefix, rows, changes: Changes::default() }
    }

    /// The file.
    pub fn file(&self) -> &Checkpoint {
        &self.file
    }

    /// Checks that the file and those of its LoRAs are as they were when they were opened.
    ///
    /// # Errors
    /// As [`Checkpoint::check_unchanged`].
    pub fn check_unchanged(&self) -> Result<()> {
        Ok([self.file()].into_iter().chain(self.changes.files()).try_for_each(Checkpoint::check_unchanged)?)
    }

    /// True if the file, and those of LoRAs, are as they were, and are still in their places.
    pub fn is_current(&self) -> bool {
        self.file.is_current() && self.loras().iter().all(Lora::is_current)
    }

    /// The LoRAs.
    pub fn loras(&self) -> &[Lora] {
        self.changes.loras()
    }

    /// The same file without the changes of LoRAs.
    #[must_use]
    pub fn without_loras(&self) -> Self {
        Self::new(self.file.clone(), self.layout, self.prefix.clone(), self.rows)
    }

    /// Adds a LoRA's changes, whose layers may be called by the names of any layout.
    ///
    /// # Errors
    /// As [`Changes::add`].
    pub(crate) fn add(&mut self, lora: Lora, needed: &[Needed]) -> Result<LoraFit> {
        let layouts = [Layout::Original, Layout::ComfyUi, Layout::Diffusers];
        self.changes.add(lora, &layouts.map(self.rows), needed)
    }

    /// The changes that LoRAs make.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The file's tensors that a weight is made of.
    pub(crate) fn stored_names(&self, name: &str) -> (Vec<String>, Join) {
        let (parts, join) = names::stored_names((self.rows)(self.layout), name);
        (parts.into_iter().map(|part| format!("{}{part}", self.prefix)).collect(), join)
    }

    /// The shape of a weight: as many rows as its parts have together. None if one is missing.
    pub(crate) fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let (parts, _) = self.stored_names(name);
        let mut shapes = parts.iter().map(|part| self.file.matrix_shape(part));
        let mut shape = shapes.next()??;
        for other in shapes {
            let rows = shape.first_mut()?;
            *rows = rows.checked_add(*other?.first()?)?;
        }
        Some(shape)
    }

    /// An extent of a weight: a width of the network's.
    ///
    /// # Errors
    /// The weight is missing, or no network is so wide.
    pub(crate) fn extent(&self, name: &str, axis: usize) -> Result<i64> {
        let extent = self.shape(name).and_then(|shape| shape.get(axis).copied());
        let extent = extent.ok_or_else(|| self.missing(name, &[]))?;
        if (1..=MOST_WIDTH).contains(&extent) {
            return Ok(extent as i64);
        }
        let name = self.stored_names(name).0.into_iter().next().unwrap_or_default();
        let reason = format!("tensor {name} is {extent} wide: 1 to {MOST_WIDTH} were expected");
        Err(Error::Unknown { path: self.file.path().to_owned(), reason })
    }

    /// The error of a file whose tensors are no network of the kind that its names show.
    pub(crate) fn refuse(&self, kind: &str, reason: String) -> Error {
        Error::File(FileError::Format { path: self.file.path().to_owned(), reason: format!("no {kind}: {reason}") })
    }

    fn missing(&self, name: &str, expected: &[usize]) -> Error {
        let (parts, _) = self.stored_names(name);
        let name = parts.into_iter().find(|part| self.file.shape(part).is_none()).unwrap_or_else(|| name.to_owned());
        let path = self.file.path().to_owned();
        FileError::Missing { path, name, expected: Shape(expected.to_vec()) }.into()
    }

    /// The number of blocks whose names begin so in the file: one more than the highest number.
    ///
    /// # Errors
    /// There are more than any transformer has.
    pub(crate) fn blocks(&self, start: &str) -> Result<usize> {
        let start = format!("{}{start}.", self.prefix);
        let numbers = self.file.names().filter_map(|name| name.strip_prefix(&start)?.split('.').next()?.parse().ok());
        let count = numbers.max().map_or(0, |number: usize| number.saturating_add(1));
        if count > MOST_BLOCKS {
            let reason = format!("a transformer of {count} blocks: at most {MOST_BLOCKS} are read");
            return Err(Error::Unknown { path: self.file.path().to_owned(), reason });
        }
        Ok(count)
    }

    /// Bytes of the network's weights as they are stored.
    pub fn stored_bytes(&self, needed: &[Needed]) -> u64 {
        let parts = needed.iter().flat_map(|needed| self.stored_names(&needed.name).0);
        parts.filter_map(|part| self.file.bytes(&part)).map(|bytes| bytes.len() as u64).sum()
    }

    /// The types that the network's weights are stored in, with their bytes, the most common first.
    pub(crate) fn stored_types(&self, needed: &[Needed]) -> Vec<(Stored, u64)> {
        let mut counts: BTreeMap<Stored, u64> = BTreeMap::new();
        for part in needed.iter().flat_map(|needed| self.stored_names(&needed.name).0) {
            if let (Some(stored), Some(bytes)) = (self.file.find_stored(&part), self.file.bytes(&part)) {
                *counts.entry(stored).or_default() += bytes.len() as u64;
            }
        }
        let mut types: Vec<(Stored, u64)> = counts.into_iter().collect();
        types.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        types
    }

    /// The file's tensors of each block, in the order that a pass goes through them; `starts` are
    /// the beginnings of the network's names of blocks, with the blocks of each.
    pub(crate) fn tensors_of_blocks(&self, needed: &[Needed], starts: &[(&str, usize)]) -> Vec<Vec<String>> {
        let all: usize = starts.iter().map(|(_, count)| count).sum();
        let mut blocks = vec![Vec::new(); all];
        for Needed { name, .. } in needed {
            let mut first = 0;
            for (start, count) in starts {
                let number = name.strip_prefix(start).and_then(|rest| rest.strip_prefix('.'));
                let number = number.and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
                if let Some(block) = number.and_then(|number| blocks.get_mut(first + number)) {
                    block.extend(self.stored_names(name).0);
                }
                first += count;
            }
        }
        blocks
    }

    /// Checks, before anything is decided or loaded, that the weights can be loaded.
    ///
    /// # Errors
    /// A tensor is missing, misshapen, left over, or quantized in a way that can't be expanded.
    pub fn check(&self, needed: &[Needed]) -> Result<()> {
        let used = self.check_each(needed)?;
        // Beside a transformer without a prefix other networks may stand in a whole checkpoint. A
        // tensor of no such network is a part of a transformer that is another than this one.
        let is_other = |name: &str| name.split_once('.').is_some_and(|(first, _)| OTHERS.contains(&first));
        self.refuse_left_over("transformer", &used, |name| !self.prefix.is_empty() || !is_other(name))
    }

    /// Checks that the weights can be loaded; gives the file's tensors that they are made of.
    ///
    /// # Errors
    /// As [`Self::check`], with no tensor left over.
    pub(crate) fn check_each(&self, needed: &[Needed]) -> Result<BTreeSet<String>> {
        if let Some(reason) = self.file.refusal() {
            return Err(Error::Unknown { path: self.file.path().to_owned(), reason });
        }
        let mut used = BTreeSet::new();
        for Needed { name, shapes } in needed {
            let expected = &shapes[0];
            let found = self.shape(name).ok_or_else(|| self.missing(name, expected))?;
            let (parts, join) = self.stored_names(name);
            let fits = match expected.len() {
                2 => fits_matrix(&found, expected) || self.are_padded(&parts, expected),
                // Some writers of GGUF leave leading axes of 1 out.
                _ => without_ones(&found) == without_ones(expected),
            };
            if !fits || join == Join::Swapped && expected[0] % 2 != 0 {
                return Err(FileError::Shape {
                    path: self.file.path().to_owned(),
                    name: parts.first().cloned().unwrap_or_default(),
                    found: Shape(found),
                    expected: Shape(expected.clone()),
                }
                .into());
            }
            for part in &parts {
                match expected.len() {
                    2 => drop(self.file.matrix(part)?),
                    _ => self.check_vector(part)?,
                }
            }
            used.extend(parts);
        }
        Ok(used)
    }

    /// Refuses a file in which tensors are left over that are a network's own: another computes
    /// with them.
    ///
    /// # Errors
    /// There are such tensors.
    pub(crate) fn refuse_left_over(
        &self,
        what: &'static str,
        used: &BTreeSet<String>,
        is_own: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let is_left =
            |name: &&str| !used.contains(*name) && !Quantization::is_beside(name) && !self.file.is_empty(name);
        let own = self.file.names().filter(|name| name.strip_prefix(&self.prefix).is_some_and(&is_own));
        let left: Vec<String> = own.filter(is_left).map(str::to_owned).collect();
        Error::refuse_left_over(self.file.path(), what, &left)
    }

    /// True if the parts of a matrix, which are equal, are stored with rows and columns beyond
    /// their own, up to whole tiles of their format.
    fn are_padded(&self, parts: &[String], expected: &[usize]) -> bool {
        let is_padded = |part: &String| {
            let Some(tile) = self.file.padding(part) else { return false };
            let own = [expected[0] / parts.len(), expected[1]];
            self.file.matrix_shape(part) == Some(own.map(|extent| extent.next_multiple_of(tile)).to_vec())
        };
        expected[0].is_multiple_of(parts.len()) && parts.iter().all(is_padded)
    }

    fn check_vector(&self, part: &str) -> Result<()> {
        match self.file.find_stored(part) {
            Some(stored) if stored.computable().is_some() => Ok(()),
            // Files that were cast as a whole have their vectors in the narrow type, too.
            Some(stored) if Packed::expands_alone(stored) => {
                self.file.packed_vector(part).map(drop).map_err(Error::from)
            }
            _ => Err(Error::stored(&self.file, part)),
        }
    }
}

/// True if a shape is that of a matrix, which may be stored as a convolution's window.
fn fits_matrix(found: &[usize], expected: &[usize]) -> bool {
    let flat = |shape: &[usize]| [shape.first().copied().unwrap_or(1), shape.iter().skip(1).product()];
    flat(found) == flat(expected)
}

fn without_ones(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|extent| *extent != 1).collect()
}

/// The extents alone, with the changes that LoRAs make.
impl TokenSource<Meter> for TransformerFile {
    fn vector(&self, _: &str, shape: &[i64], _: Dtype) -> tilewright_nn::Result<Vec<i64>> {
        Ok(shape.to_vec())
    }

    fn matrix(&self, name: &str, shape: [i64; 2]) -> tilewright_nn::Result<MeterMatrix> {
        let (parts, join) = self.stored_names(name);
        let stored = parts.iter().filter_map(|part| self.file.matrix_shape(part)?.first().copied()).max();
        let halves = if join == Join::Swapped { 2 } else { 1 };
        let most = stored.map_or(shape[0], |rows| rows as i64) / halves;
        let pieces = parts.len() as u64 * halves as u64;
        // As the matrices are multiplied that are loaded from here.
        let has_integers = |part: &String| {
            let stored = self.file.find_stored(part);
            stored.is_some_and(Stored::suits_int8_products) && shape[1] % INT8_COLUMNS as i64 == 0
        };
        let integers = [true, false].map(|wanted| parts.iter().any(|part| has_integers(part) == wanted));
        let changes = self.changes.extents_of_matrix(name);
        let each = shape[0] / parts.len().max(1) as i64;
        let packed = parts.iter().filter_map(|part| {
            let (stored, scaling) = self.file.stored_matrix(part)?;
            Some(PackedRows { rows: each, stored, scaling })
        });
        Ok(MeterMatrix {
            extents: shape,
            piece: most.min(shape[0]),
            pieces,
            integers,
            packed: packed.collect(),
            changes,
        })
    }
}
