//! Names of weights, built up beside the layers that take them.

use std::{
    cell::{Cell, RefCell},
    fmt::Display,
};

use tilewright_plan::Dtype;

use crate::{Layer, Meter, Ops, Result, TokenOps, TokenSource};

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
    /// Adds a weight that may be stored in any of some shapes.
    pub(crate) fn add(&self, name: &str, shapes: &[&[i64]]) {
        let extents = |shape: &&[i64]| shape.iter().map(|&extent| extent as usize).collect();
        let needed = Needed { name: name.to_owned(), shapes: shapes.iter().map(extents).collect() };
        self.needed.borrow_mut().push(needed);
    }

    /// The weights that were asked for, in order; those of matrices have two axes.
    pub fn into_needed(self) -> Vec<Needed> {
        self.needed.into_inner()
    }

    /// The bytes of the weights that were asked for from a [`Source`], in the types that they were
    /// asked for in.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }
}

impl Source<Meter> for Listing {
    fn weight(&self, name: &str, shapes: &[&[i64]], dtype: Dtype) -> Result<Vec<i64>> {
        self.add(name, shapes);
        let shape = shapes.first().map(|shape| shape.to_vec()).unwrap_or_default();
        let width = dtype.bytes();
        let bytes = shape.iter().fold(width, |bytes, &extent| bytes.saturating_mul(extent.max(0) as u64));
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        Ok(shape)
    }
}

/// A place in a network's tree of names: layers under it ask for their weights by the last part
/// alone.
pub struct Place<'a, O, S: ?Sized> {
    source: &'a S,
    ops: &'a O,
    path: String,
}

/// A place in the names of a network of pictures.
pub type Scope<'a, O> = Place<'a, O, dyn Source<O> + 'a>;

/// A place in a transformer's names.
pub type TokenScope<'a, O> = Place<'a, O, dyn TokenSource<O> + 'a>;

impl<'a, O, S: ?Sized> Place<'a, O, S> {
    /// The root of a network's names.
    pub fn new(source: &'a S, ops: &'a O) -> Self {
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

    /// The layer of this place.
    pub fn layer(&self) -> Layer {
        Layer::new(&self.path, false)
    }

    /// The block of this place: a group of layers.
    pub fn block(&self) -> Layer {
        Layer::new(&self.path, true)
    }

    fn full_name(&self, part: &impl Display) -> String {
        if self.path.is_empty() { part.to_string() } else { format!("{}.{part}", self.path) }
    }
}

impl<O: Ops> Scope<'_, O> {
    /// A weight or bias of a convolution or a matrix product, in the type that these run in.
    ///
    /// # Errors
    /// As [`Source::weight`].
    pub fn product(&self, part: &str, shape: &[i64]) -> Result<O::Weight> {
        self.weight(part, &[shape], self.ops.format().product_dtype)
    }

    /// A weight or bias of a norm, in the type that these run in.
    ///
    /// # Errors
    /// As [`Source::weight`].
    pub fn norm(&self, part: &str, shape: &[i64]) -> Result<O::Weight> {
        self.weight(part, &[shape], self.ops.format().layer_dtype)
    }

    /// A weight in the type `dtype`, stored in any of some shapes.
    ///
    /// # Errors
    /// As [`Source::weight`].
    pub fn weight(&self, part: &str, shapes: &[&[i64]], dtype: Dtype) -> Result<O::Weight> {
        self.source.weight(&self.full_name(&part), shapes, dtype)
    }
}

impl<O: TokenOps> TokenScope<'_, O> {
    /// A bias or a norm's weight, in f32: they are small, and added to sums of f32.
    ///
    /// # Errors
    /// As [`TokenSource::vector`].
    pub fn vector(&self, part: &str, shape: &[i64]) -> Result<O::Weight> {
        self.source.vector(&self.full_name(&part), shape, Dtype::F32)
    }

    /// The weight [out, into] of a linear layer.
    ///
    /// # Errors
    /// As [`TokenSource::matrix`].
    pub fn matrix(&self, part: &str, shape: [i64; 2]) -> Result<O::Matrix> {
        self.source.matrix(&self.full_name(&part), shape)
    }
}
