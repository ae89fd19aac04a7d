//! Layers by their names, so that what they take and what goes through them can be distinguished
//! from what others do.

use std::{borrow::Borrow, collections::HashMap};

use crate::{Error, Ops};

/// A layer of a network, by the name that its weights begin with: `up_blocks.2.resnets.1.conv1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    name: Box<str>,
    is_block: bool,
}

/// The end of a layer that a tensor is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It goes in.
    In,
    /// It comes out.
    Out,
}

/// The tensors that went into layers and came out of them, by the layers' names.
#[derive(Clone, Debug, Default)]
pub struct LayerCalls(HashMap<Box<str>, [u32; 2]>);

impl LayerCalls {
    /// The number of a layer's call, from 0, by the tensors that were at this end of it before:
    /// some layers show one end alone.
    pub fn number(&mut self, layer: &str, end: End) -> u32 {
        let of_end = usize::from(end == End::Out);
        if !self.0.contains_key(layer) {
            self.0.insert(layer.into(), [0; 2]);
        }
        let Some(count) = self.0.get_mut(layer).map(|counts| &mut counts[of_end]) else { return 0 };
        *count += 1;
        *count - 1
    }
}

impl Layer {
    pub(crate) fn new(name: &str, is_block: bool) -> Self {
        Self { name: name.into(), is_block }
    }

    /// The name; empty for a network's root.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True for a block: a group of layers that a network repeats.
    pub fn is_block(&self) -> bool {
        self.is_block
    }

    /// Runs the layer on a tensor that it takes or borrows.
    ///
    /// # Errors
    /// Those of `forward`, and of whoever captures the tensors.
    pub fn run<O: Ops, I: Borrow<O::Tensor>, E: From<Error>>(
        &self,
        ops: &O,
        input: I,
        forward: impl FnOnce(I) -> Result<O::Tensor, E>,
    ) -> Result<O::Tensor, E> {
        let _running = ops.begin(self);
        ops.see(self, End::In, input.borrow())?;
        let output = forward(input)?;
        ops.see(self, End::Out, &output)?;
        Ok(output)
    }

    /// Runs the layer, which writes its result to a tensor that exists.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_onto<O: Ops, E: From<Error>>(
        &self,
        ops: &O,
        [input, output]: [&O::Tensor; 2],
        forward: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let _running = ops.begin(self);
        ops.see(self, End::In, input)?;
        forward()?;
        Ok(ops.see(self, End::Out, output)?)
    }
}
