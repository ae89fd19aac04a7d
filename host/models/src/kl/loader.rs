//! Weights from a file to layers.

use tch::{Device, Kind, Tensor};
use tilewright_torch::{attention, to_layout, winograd::Winograd};

use super::{
    config::Names,
    layers::{Attention, Conv, Downsample, Linear, Middle, Norm, Plain, Resnet},
};
use crate::{ComputeFormat, Result, known::Needed};

/// Loads layers by diffusers' names from a file of any layout.
pub(super) struct Loader<'a> {
    names: Names<'a>,
    needed: Vec<Needed>,
    format: ComputeFormat,
    device: Device,
    groups: usize,
}

impl<'a> Loader<'a> {
    /// Checks all shapes and types before any weight is copied.
    pub fn new(
        names: Names<'a>,
        needed: Vec<Needed>,
        format: ComputeFormat,
        device: Device,
        groups: usize,
    ) -> Result<Self> {
        names.all_loadable(&needed)?;
        Ok(Self { names, needed, format, device, groups })
    }

    fn tensor(&self, name: &str, kind: Kind) -> Result<Tensor> {
        let needed = self.needed.iter().find(|needed| needed.name == name);
        let needed =
            needed.ok_or_else(|| tilewright_torch::Error::Torch(format!("{name} is not in the network's own list")))?;
        let (name, shape) = self.names.locate(needed)?;
        self.names.file.load(name, shape, kind, self.device)
    }

    pub fn conv(&self, name: &str, upsample: bool) -> Result<Conv> {
        let weight = self.tensor(&format!("{name}.weight"), self.format.convolution)?;
        let bias = self.tensor(&format!("{name}.bias"), self.format.convolution)?;
        let padding = weight.size4()?.2 / 2;
        if padding > 0 && self.format.winograd(self.device) {
            return Ok(Conv::Winograd(Winograd::new(&weight, &bias, upsample)?));
        }
        Ok(Conv::Plain(Plain { weight: to_layout(&weight, self.format.layout)?, bias, padding, upsample }))
    }

    pub fn norm(&self, name: &str) -> Result<Norm> {
        let load = |part: &str| self.tensor(&format!("{name}.{part}"), self.format.rest);
        Ok(Norm { weight: load("weight")?, bias: load("bias")?, groups: self.groups as i64 })
    }

    pub fn resnet(&self, name: &str) -> Result<Resnet> {
        let shortcut = format!("{name}.conv_shortcut");
        let has_shortcut = self.needed.iter().any(|needed| needed.name.strip_suffix(".weight") == Some(&shortcut));
        Ok(Resnet {
            norm1: self.norm(&format!("{name}.norm1"))?,
            conv1: self.conv(&format!("{name}.conv1"), false)?,
            norm2: self.norm(&format!("{name}.norm2"))?,
            conv2: self.conv(&format!("{name}.conv2"), false)?,
            shortcut: if has_shortcut { Some(self.conv(&shortcut, false)?) } else { None },
        })
    }

    fn linear(&self, name: &str, width: usize) -> Result<Linear> {
        let weight = self.tensor(&format!("{name}.weight"), self.format.convolution)?;
        let width = width as i64;
        Ok(Linear {
            weight: weight.f_reshape([width, width])?,
            bias: self.tensor(&format!("{name}.bias"), self.format.convolution)?,
        })
    }

    /// A 3×3 convolution of stride 2.
    pub fn downsample(&self, name: &str) -> Result<Downsample> {
        let weight = self.tensor(&format!("{name}.weight"), self.format.convolution)?;
        let bias = self.tensor(&format!("{name}.bias"), self.format.convolution)?;
        Ok(Downsample { weight: to_layout(&weight, self.format.layout)?, bias })
    }

    /// The middle block of the network `decoder` or `encoder`.
    pub fn middle(&self, network: &str, layers: usize, attention: bool) -> Result<Middle> {
        let name = format!("{network}.mid_block");
        Ok(Middle {
            resnets: (0..layers).map(|layer| self.resnet(&format!("{name}.resnets.{layer}"))).collect::<Result<_>>()?,
            attention: if attention { Some(self.attention(&format!("{name}.attentions.0"))?) } else { None },
        })
    }

    fn attention(&self, name: &str) -> Result<Attention> {
        let norm = self.norm(&format!("{name}.group_norm"))?;
        let width = norm.weight.size()[0] as usize;
        let linear = |part: &str| self.linear(&format!("{name}.{part}"), width);
        let dtype = match self.format.convolution {
            Kind::BFloat16 => tilewright_plan::Dtype::Bf16,
            Kind::Half => tilewright_plan::Dtype::F16,
            _ => tilewright_plan::Dtype::F32,
        };
        Ok(Attention {
            norm,
            query: linear("to_q")?,
            key: linear("to_k")?,
            value: linear("to_v")?,
            output: linear("to_out.0")?,
            fused: attention::fused_agrees(self.device, width as i64, dtype),
        })
    }
}
