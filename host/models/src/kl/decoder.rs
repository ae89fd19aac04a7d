//! The decoder: latent in, picture out.

use tch::{Device, Kind, Tensor};
use tilewright_plan::{Layout, Precision};
use tilewright_torch::{
    attention, to_layout,
    winograd::{self, Winograd},
};

use super::{
    Config,
    bands::Bands,
    config::{Names, Needed},
    layers::{Attention, Conv, Linear, Norm, Plain, Resnet, finish, prepare},
};
use crate::{Checkpoint, Error, Identity, Result};

/// The types and memory order that a network is loaded for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numeric {
    /// Of convolutions and matrix products.
    pub convolution: Kind,
    /// Of norms and sums, and of what is handed from layer to layer.
    pub rest: Kind,
    /// Memory order between layers.
    pub layout: Layout,
}

impl Numeric {
    /// What a plan asks for.
    ///
    /// # Errors
    /// For types that nothing is computed in.
    pub fn new(precision: Precision, layout: Layout) -> Result<Self> {
        let convolution = tilewright_torch::kind(precision.dtype())?;
        let rest = match precision {
            Precision::Uniform(_) => convolution,
            Precision::Mixed(_) => Kind::Float,
        };
        Ok(Self { convolution, rest, layout })
    }

    /// Whether 3×3 convolutions run by Winograd's filtering.
    pub fn winograd(&self, device: Device) -> bool {
        let wanted = Self { convolution: Kind::Float, rest: Kind::Float, layout: Layout::ChannelsLast };
        *self == wanted && device == Device::Cpu && winograd::available()
    }
}

#[derive(Debug)]
pub(super) struct Up {
    pub resnets: Vec<Resnet>,
    pub upsample: Option<Conv>,
}

/// A KL autoencoder's decoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    numeric: Numeric,
    pub(super) post_quant: Option<Conv>,
    pub(super) conv_in: Conv,
    pub(super) middle: Vec<Resnet>,
    pub(super) attention: Option<Attention>,
    pub(super) ups: Vec<Up>,
    pub(super) norm_out: Norm,
    pub(super) conv_out: Conv,
}

impl Decoder {
    /// Loads the weights, each copied once from the mapped file.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen, left over or of a type that can't be read, by name; libtorch's failures, out of memory
    /// included.
    pub fn load(
        file: &Checkpoint,
        identity: &Identity,
        config: &Config,
        numeric: Numeric,
        device: Device,
    ) -> Result<Self> {
        let left = Config::left_over(file, identity);
        if let Some(name) = left.first() {
            let more = if left.len() > 1 { format!(" (and {} more)", left.len() - 1) } else { String::new() };
            return Err(Error::LeftOver { path: file.path().to_owned(), name: name.clone(), more });
        }
        let loader = Loader {
            names: Names::new(file, identity)?,
            needed: config.needed(),
            numeric,
            device,
            groups: config.norm_groups,
        };
        // All shapes before any weight is copied.
        for needed in &loader.needed {
            Config::locate(&loader.names, needed)?;
        }
        let resnet = |name: String| loader.resnet(&name);
        let middle = (0..config.middle_layers)
            .map(|layer| resnet(format!("decoder.mid_block.resnets.{layer}")))
            .collect::<Result<_>>()?;
        let mut ups = Vec::new();
        for (index, block) in config.up_blocks.iter().enumerate() {
            let name = format!("decoder.up_blocks.{index}");
            let resnets =
                (0..block.layers).map(|layer| resnet(format!("{name}.resnets.{layer}"))).collect::<Result<_>>()?;
            let upsample = match block.upsamples {
                true => Some(loader.conv(&format!("{name}.upsamplers.0.conv"), true)?),
                false => None,
            };
            ups.push(Up { resnets, upsample });
        }
        Ok(Self {
            post_quant: if config.post_quant { Some(loader.conv("post_quant_conv", false)?) } else { None },
            conv_in: loader.conv("decoder.conv_in", false)?,
            middle,
            attention: if config.middle_attention {
                Some(loader.attention("decoder.mid_block.attentions.0", config)?)
            } else {
                None
            },
            ups,
            norm_out: loader.norm("decoder.conv_norm_out")?,
            conv_out: loader.conv("decoder.conv_out", false)?,
            config: config.clone(),
            numeric,
        })
    }

    /// The types and memory order that it was loaded for.
    pub fn numeric(&self) -> Numeric {
        self.numeric
    }

    /// The architecture.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Decodes latents [N, C, h, w] in the autoencoder's own space to pictures [N, 3, h·s, w·s] in about −1…1, unclamped, f32.
    ///
    /// With `band` the picture goes through the network in bands of so many output rows: the result is that of the whole, with norms of the
    /// whole picture, but the upsampled pictures are never held: each is computed twice, band by band. `step` is called
    /// with the share of the work that is done, after each layer or band; an error from it ends the decode.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included, and what `step` returns.
    pub fn forward(
        &self,
        latents: &Tensor,
        band: Option<u32>,
        step: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<Tensor> {
        let mut progress = Progress { shares: self.config.layer_shares(), layer: 0, done: 0.0, step };
        let numeric = &self.numeric;
        let mut hidden = prepare(latents, numeric)?;
        if let Some(conv) = &self.post_quant {
            hidden = conv.forward(hidden, numeric)?;
        }
        if band.is_some() || matches!(self.conv_in, Conv::Winograd(_)) {
            let scale = i64::from(self.config.spatial_scale());
            let bands = Bands { decoder: self, band: band.map(i64::from), height: latents.size()[2] * scale };
            return finish(&bands.forward(hidden, &mut progress)?);
        }
        hidden = self.conv_in.forward(hidden, numeric)?;
        progress.layer()?;
        for (index, resnet) in self.middle.iter().enumerate() {
            hidden = resnet.forward(hidden, numeric)?;
            progress.layer()?;
            if let (0, Some(attention)) = (index, &self.attention) {
                hidden = attention.forward(hidden, numeric)?;
                progress.layer()?;
            }
        }
        for up in &self.ups {
            for resnet in &up.resnets {
                hidden = resnet.forward(hidden, numeric)?;
                progress.layer()?;
            }
            if let Some(upsample) = &up.upsample {
                hidden = upsample.forward(hidden, numeric)?;
                progress.layer()?;
            }
        }
        hidden = self.norm_out.forward_silu(&hidden)?;
        hidden = self.conv_out.forward(hidden, numeric)?;
        progress.layer()?;
        finish(&hidden)
    }
}

/// Tells how much of a decode is done.
pub(super) struct Progress<'a> {
    shares: Vec<f64>,
    layer: usize,
    done: f64,
    step: &'a mut dyn FnMut(f64) -> Result<()>,
}

impl Progress<'_> {
    fn share(&self) -> f64 {
        self.shares.get(self.layer).copied().unwrap_or(0.0)
    }

    /// Part of the layer at hand is done.
    pub fn within(&mut self, part: f64) -> Result<()> {
        let done = self.done + part * self.share();
        (self.step)(done.min(1.0))
    }

    /// The layer at hand is done.
    pub fn layer(&mut self) -> Result<()> {
        self.done += self.share();
        self.layer += 1;
        (self.step)(self.done.min(1.0))
    }
}

/// Loads layers by diffusers' names from a file of any layout.
struct Loader<'a> {
    names: Names<'a>,
    needed: Vec<Needed>,
    numeric: Numeric,
    device: Device,
    groups: usize,
}

impl Loader<'_> {
    fn tensor(&self, name: &str, kind: Kind) -> Result<Tensor> {
        let needed = self.needed.iter().find(|needed| needed.name == name);
        let needed =
            needed.ok_or_else(|| tilewright_torch::Error::Torch(format!("{name} is not in the network's own list")))?;
        let (name, shape) = Config::locate(&self.names, needed)?;
        self.names.file.load(&name, &shape, kind, self.device)
    }

    fn conv(&self, name: &str, upsample: bool) -> Result<Conv> {
        let weight = self.tensor(&format!("{name}.weight"), self.numeric.convolution)?;
        let bias = self.tensor(&format!("{name}.bias"), self.numeric.convolution)?;
        let padding = weight.size4()?.2 / 2;
        if padding > 0 && self.numeric.winograd(self.device) {
            return Ok(Conv::Winograd(Winograd::new(&weight, &bias, upsample)?));
        }
        Ok(Conv::Plain(Plain { weight: to_layout(&weight, self.numeric.layout)?, bias, padding, upsample }))
    }

    fn norm(&self, name: &str) -> Result<Norm> {
        let load = |part: &str| self.tensor(&format!("{name}.{part}"), self.numeric.rest);
        Ok(Norm { weight: load("weight")?, bias: load("bias")?, groups: self.groups as i64 })
    }

    fn resnet(&self, name: &str) -> Result<Resnet> {
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
        let weight = self.tensor(&format!("{name}.weight"), self.numeric.convolution)?;
        let width = width as i64;
        Ok(Linear {
            weight: weight.f_reshape([width, width])?,
            bias: self.tensor(&format!("{name}.bias"), self.numeric.convolution)?,
        })
    }

    fn attention(&self, name: &str, config: &Config) -> Result<Attention> {
        let width = config.middle_channels;
        let linear = |part: &str| self.linear(&format!("{name}.{part}"), width);
        let dtype = match self.numeric.convolution {
            Kind::BFloat16 => tilewright_plan::Dtype::Bf16,
            Kind::Half => tilewright_plan::Dtype::F16,
            _ => tilewright_plan::Dtype::F32,
        };
        Ok(Attention {
            norm: self.norm(&format!("{name}.group_norm"))?,
            query: linear("to_q")?,
            key: linear("to_k")?,
            value: linear("to_v")?,
            output: linear("to_out.0")?,
            fused: attention::fused_agrees(self.device, width as i64, dtype),
        })
    }
}
