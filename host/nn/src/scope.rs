//! Names of weights, built up beside the layers that take them.

use std::fmt::Display;

use crate::{Ops, Result};

/// Gives weights by their names.
pub trait Source<O: Ops> {
    /// The weight of a name in the type that it is used in, with these extents.
    ///
    /// # Errors
    /// There is no such weight, it has other extents, or it can't be loaded.
    fn weight(&self, name: &str, shape: &[i64], kind: tch::Kind) -> Result<O::Weight>;
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
        Self { source: self.source, ops: self.ops, path: self.named(&part) }
    }

    /// The operations that the network is built for.
    pub fn ops(&self) -> &'a O {
        self.ops
    }

    /// A weight of convolutions and matrix products.
    ///
    /// # Errors
    /// As [`Source::weight`].
    pub fn product(&self, part: &str, shape: &[i64]) -> Result<O::Weight> {
        self.source.weight(&self.named(&part), shape, self.ops.format().convolution)
    }

    /// A weight of norms.
    ///
    /// # Errors
    /// As [`Source::weight`].
    pub fn norm(&self, part: &str, shape: &[i64]) -> Result<O::Weight> {
        self.source.weight(&self.named(&part), shape, self.ops.format().rest)
    }

    /// A weight in a type of its own.
    ///
    /// # Errors
    /// As [`Source::weight`].
    pub fn weight(&self, part: &str, shape: &[i64], kind: tch::Kind) -> Result<O::Weight> {
        self.source.weight(&self.named(&part), shape, kind)
    }

    fn named(&self, part: &impl Display) -> String {
        if self.path.is_empty() { part.to_string() } else { format!("{}.{part}", self.path) }
    }
}
