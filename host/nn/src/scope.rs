//! Names of weights, built up beside the layers that take them.

use std::{
    cell::{Cell, RefCell},
    fmt::Display,
};

use tilewright_plan::Dtype;

use crate::{Meter, Ops, Result};

/// Gives weights by their names.
pub trait Source<O: Ops> {
    /// The weight of a name, converted to the type that it is used in. The file may store it in any
    /// of the shapes, which all have the same number of values; it is returned in the first of
    /// them.
    ///
    /// # Errors
    /// There is no such weight, it has other extents, or it can't be loaded.
    fn weight(&self, name: &str, shapes: &[&[i64]], dtype: Dtype) -> Result<O::Weight>;
}

/// A weight that a network needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// The name in the network.
    pub name: String,
    /// The shapes that it may be stored in, the usual one first.
    pub shapes: Vec<Vec<usize>>,
}

/// A source of extents alone, which lists the weights that it is asked for.
#[derive(Debug, Default)]
pub struct Listing {
    needed: RefCell<Vec<Needed>>,
    bytes: Cell<u64>,
}

impl Listing {
    /// The weights that were asked for, in order.
    pub fn into_needed(self) -> Vec<Needed> {
        self.needed.into_inner()
    }

    /// The bytes of the weights that were asked for, in the types that they were asked for in.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }
}

impl Source<Meter> for Listing {
    fn weight(&self, name: &str, shapes: &[&[i64]], dtype: Dtype) -> Result<Vec<i64>> {
        let extents = |shape: &&[i64]| shape.iter().map(|&extent| extent as usize).collect();
        let needed = Needed { name: name.to_owned(), shapes: shapes.iter().map(extents).collect() };
        self.needed.borrow_mut().push(needed);
        let shape = shapes.first().map(|shape| shape.to_vec()).unwrap_or_default();
        let width = dtype.bytes();
        let bytes = shape.iter().fold(width, |bytes, &extent| bytes.saturating_mul(extent.max(0) as u64));
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        Ok(shape)
    }
}

/// A place in a network's tree of names: layers under it ask for their weights by the last part
/// alone.
pub struct Scope<'a, O: Ops> {
    source: &'a dyn Source<O>,
    ops: &'a O,
    path: String,
}

impl<'a, O: Ops> Scope<'a, O> {
    /// The root of a network's names.
    pub fn new(source: &'a dyn Source<O>, ops: &'a O) -> Self {
        Self { source, ops, path: String::new() }
    }

    /// The place below this one.
    pub fn at(&self, part: impl Display) -> Self {
        Self { source: self.source, ops: self.ops, path: self.full_name(&part) }
    }

    /// The operations that the network is built for.
    pub fn ops(&self) -> &'a O {
        self.ops
    }

    /// A weight or bias of a convolution or a matrix product, in the type that these run in.
    ///
    /// # Errors
    /// As [`Source::weight`].
    pub fn product(&self, part: &str, shape: &[i64]) -> Result<O::Weight> {
        self.weight(part, &[shape], self.ops.format().convolution)
    }

    /// A weight or bias of a norm, in the type that these run in.
    ///
    /// # Errors
    /// As [`Source::weight`].
    pub fn norm(&self, part: &str, shape: &[i64]) -> Result<O::Weight> {
        self.weight(part, &[shape], self.ops.format().rest)
    }

    /// A weight in the type `dtype`, stored in any of some shapes.
    ///
    /// # Errors
    /// As [`Source::weight`].
    pub fn weight(&self, part: &str, shapes: &[&[i64]], dtype: Dtype) -> Result<O::Weight> {
        self.source.weight(&self.full_name(&part), shapes, dtype)
    }

    fn full_name(&self, part: &impl Display) -> String {
        if self.path.is_empty() { part.to_string() } else { format!("{}.{part}", self.path) }
    }
}
