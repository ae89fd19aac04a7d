//! Parts that decoder and encoder share.

use tilewright_nn::{
    Ops, Scope,
    layers::{Attention, Resnet},
};

use crate::{
    Result,
    progress::{Step, Track},
};

/// The middle block: residual layers, and an attention after the first.
#[derive(Debug)]
pub(super) struct Middle<O: Ops> {
    pub resnets: Vec<Resnet<O>>,
    pub attention: Option<Attention<O>>,
}

impl<O: Ops> Middle<O> {
    /// The middle block of a decoder or an encoder.
    pub fn build(scope: &Scope<'_, O>, channels: i64, layers: usize, has_attention: bool, groups: i64) -> Result<Self> {
        let attention = || Attention::build(&scope.at("attentions.0"), channels, groups);
        Ok(Self {
            resnets: resnets(scope, layers, [channels; 2], groups)?,
            attention: has_attention.then(attention).transpose()?,
        })
    }

    pub fn forward(&self, ops: &O, mut hidden: O::Tensor, track: &mut Track<'_>) -> Result<O::Tensor> {
        for (index, resnet) in self.resnets.iter().enumerate() {
            hidden = resnet.forward(ops, hidden)?;
            track(Step::Layer)?;
            if let (0, Some(attention)) = (index, &self.attention) {
                hidden = attention.forward(ops, hidden)?;
                track(Step::Layer)?;
            }
        }
        Ok(hidden)
    }
}

/// A block's residual layers, of which the first may change the channels.
pub(super) fn resnets<O: Ops>(
    scope: &Scope<'_, O>,
    layers: usize,
    [into, out]: [i64; 2],
    groups: i64,
) -> Result<Vec<Resnet<O>>> {
    let resnet = |layer| {
        let into = if layer == 0 { into } else { out };
        Ok(Resnet::build(&scope.at("resnets").at(layer), into, out, groups)?)
    };
    (0..layers).map(resnet).collect()
}

/// An input in the type and the memory order of the first layer.
pub(super) fn prepare<O: Ops>(ops: &O, input: O::Tensor) -> Result<O::Tensor> {
    let input = ops.to_dtype(input, ops.format().layer_dtype)?;
    Ok(ops.to_memory_order(&input)?)
}
