//! The decoder: a clip's latents in, frames out, as they are ready.

use tch::{Device, Kind, Tensor};
use tilewright_torch::{attention, to_layout, winograd::Winograd};

use super::{
    Config,
    clip::{Piece, Spread},
    layers::{Attention, Causal, Doubling, Duplication, Origin, Past, UnitNorm, Work},
    weights::Weights,
};
use crate::{
    Checkpoint, Identity, Result,
    kl::{
        Numeric,
        layers::{Conv, Plain, empty},
    },
};

/// One step of the network. A residual layer is two: up to its first convolution, and from there on.
#[derive(Debug)]
pub(super) enum Step {
    /// Before the decoder, pixel by pixel.
    Pointwise(Plain),
    /// A convolution that stands alone.
    Convolve {
        norm: Option<UnitNorm>,
        conv: Causal,
    },
    /// A block begins whose input is added to its output.
    Begin,
    /// A residual layer's first half: the input stays, or goes through its shortcut, beside what is hidden.
    Hide {
        norm: UnitNorm,
        conv: Causal,
        shortcut: Option<Conv>,
    },
    /// Its second half, added to what stayed.
    Sum {
        norm: UnitNorm,
        conv: Causal,
    },
    Attention(Attention),
    Double(Doubling),
    /// Twice the height and width.
    Upsample(Conv),
    /// The block's input is added to its output.
    End(Duplication),
}

/// A step, and what is known of it without running it.
#[derive(Debug)]
pub(super) struct Layer {
    pub step: Step,
    /// Frames of its input per latent frame.
    pub frames: u32,
    /// Products per latent pixel and frame of its input.
    pub products: f64,
}

/// A WAN autoencoder's decoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    numeric: Numeric,
    pub(super) layers: Vec<Layer>,
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
        let weights = Weights::new(file, identity, config)?;
        let loader = Loader { weights, numeric, device };
        let mut layers = Layers { layers: Vec::new(), frames: 1, side: 1.0 };
        let (latent, middle) = (config.latent_channels, config.middle_channels);
        layers.add(Step::Pointwise(loader.pointwise("post_quant_conv", latent, latent, 1)?), latent * latent);
        let conv = loader.causal("decoder.conv_in", latent, middle)?;
        layers.add(Step::Convolve { norm: None, conv }, 27 * latent * middle);
        loader.resnet(&mut layers, "decoder.mid_block.resnets.0", middle, middle)?;
        let attention = loader.attention("decoder.mid_block.attentions.0", middle)?;
        layers.add(Step::Attention(attention), 4 * middle * middle);
        loader.resnet(&mut layers, "decoder.mid_block.resnets.1", middle, middle)?;
        for (index, block) in config.up_blocks.iter().enumerate() {
            let name = format!("decoder.up_blocks.{index}");
            if block.duplicated {
                layers.add(Step::Begin, 0);
            }
            let mut into = block.into;
            for layer in 0..block.layers {
                loader.resnet(&mut layers, &format!("{name}.resnets.{layer}"), into, block.channels)?;
                into = block.channels;
            }
            let Some(upsample) = block.upsample else { continue };
            let name = if block.duplicated { format!("{name}.upsampler") } else { format!("{name}.upsamplers.0") };
            if upsample.temporal {
                let conv = loader.doubling(&format!("{name}.time_conv"), into)?;
                layers.add(Step::Double(Doubling { conv }), 6 * into * into);
                layers.frames *= 2;
            }
            layers.side *= 2.0;
            let conv = loader.spatial(&format!("{name}.resample.1"), into, upsample.channels)?;
            layers.add(Step::Upsample(conv), 9 * into * upsample.channels);
            if block.duplicated {
                let (from, to) = (block.into as i64, upsample.channels as i64);
                layers.add(Step::End(Duplication::new(from, to, upsample.temporal, device)?), 0);
            }
        }
        let last = config.up_blocks.last().map_or(middle, |block| block.channels);
        let norm = Some(loader.norm("decoder.norm_out", last, 4)?);
        let conv = loader.causal("decoder.conv_out", last, config.out_channels)?;
        layers.add(Step::Convolve { norm, conv }, 27 * last * config.out_channels);
        Ok(Self { config: config.clone(), numeric, layers: layers.layers })
    }

    /// The types and memory order that it was loaded for.
    pub fn numeric(&self) -> Numeric {
        self.numeric
    }

    /// The architecture.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

impl Layer {
    /// Takes a piece through the step. Where it ends early, the piece and the past are such that it may be called again.
    pub fn run(&self, piece: &mut Piece, past: &mut Past, spread: &Spread, numeric: &Numeric) -> Result<()> {
        let (count, _, height, width) = piece.frames.size4()?;
        let device = piece.frames.device();
        let room = |channels: i64| empty([count, channels, height, width], numeric, device);
        let band = spread.band_of(height);
        match &self.step {
            Step::Pointwise(conv) => piece.frames = conv.forward(piece.frames.shallow_clone(), numeric)?,
            Step::Convolve { norm, conv } => {
                let output = piece.hidden.take().map_or_else(|| room(conv.out()), Ok)?;
                let output = piece.hidden.insert(output);
                let (frames, done) = (&piece.frames, &mut piece.done);
                let mut work = Work { frames, output, add: false, band, done };
                conv.forward(norm.as_ref(), past, &mut work, numeric)?;
                if let Some(output) = piece.hidden.take() {
                    piece.frames = output;
                }
            }
            Step::Begin => {
                let origins = (0..count).map(|index| -> Result<Origin> {
                    Ok(Origin { frame: piece.frames.f_narrow(0, index, 1)?, phase: 1 })
                });
                let origins = origins.collect::<Result<Vec<_>>>()?;
                // What the block adds up is written onto its input.
                let mut own = piece.frames.f_empty_like()?;
                own.f_copy_(&piece.frames)?;
                (piece.frames, piece.origins) = (own, origins);
            }
            Step::Hide { norm, conv, shortcut } => {
                let hidden = piece.hidden.take().map_or_else(|| room(conv.out()), Ok)?;
                let output = piece.hidden.insert(hidden);
                if !piece.convolved {
                    let (frames, done) = (&piece.frames, &mut piece.done);
                    let mut work = Work { frames, output, add: false, band, done };
                    conv.forward(Some(norm), past, &mut work, numeric)?;
                    piece.convolved = true;
                }
                if let Some(shortcut) = shortcut {
                    piece.frames = shortcut.forward(piece.frames.shallow_clone(), numeric)?;
                }
            }
            Step::Sum { norm, conv } => {
                if let Some(hidden) = &piece.hidden {
                    let mut work =
                        Work { frames: hidden, output: &piece.frames, add: true, band, done: &mut piece.done };
                    conv.forward(Some(norm), past, &mut work, numeric)?;
                }
                piece.hidden = None;
            }
            Step::Attention(attention) => piece.frames = attention.forward(&piece.frames, numeric)?,
            Step::Double(doubling) => {
                let first = !past.begun;
                piece.frames = doubling.forward(past, &piece.frames, numeric)?;
                piece.double_origins(first);
            }
            Step::Upsample(conv) => piece.frames = conv.forward(piece.frames.shallow_clone(), numeric)?,
            Step::End(duplication) => {
                duplication.add(&piece.origins, &piece.frames)?;
                piece.origins.clear();
            }
        }
        (piece.done, piece.convolved) = (0, false);
        piece.layer += 1;
        Ok(())
    }
}

/// The list of layers as it grows.
struct Layers {
    layers: Vec<Layer>,
    frames: u32,
    /// Pixels along a side per latent pixel.
    side: f64,
}

impl Layers {
    fn add(&mut self, step: Step, products: usize) {
        self.layers.push(Layer { step, frames: self.frames, products: products as f64 * self.side * self.side });
    }
}

/// Loads layers by diffusers' names from a file of any layout.
struct Loader<'a> {
    weights: Weights<'a>,
    numeric: Numeric,
    device: Device,
}

impl Loader<'_> {
    fn parameters(&self, name: &str, shape: &[usize]) -> Result<(Tensor, Tensor)> {
        let load = |part: &str, shape: &[usize]| {
            self.weights.load(&format!("{name}.{part}"), shape, self.numeric.convolution, self.device)
        };
        Ok((load("weight", shape)?, load("bias", &shape[..1])?))
    }

    fn norm(&self, name: &str, channels: usize, rank: usize) -> Result<UnitNorm> {
        let mut shape = vec![1; rank];
        shape[0] = channels;
        let gamma = self.weights.load(&format!("{name}.gamma"), &shape, self.numeric.rest, self.device)?;
        Ok(UnitNorm { gamma: gamma.f_reshape([channels as i64])? })
    }

    fn causal(&self, name: &str, into: usize, out: usize) -> Result<Causal> {
        let (weight, bias) = self.parameters(name, &[out, into, 3, 3, 3])?;
        if self.numeric.winograd(self.device) {
            return Ok(Causal::Winograd(Winograd::causal(&weight, &bias)?));
        }
        // [out, into, T, 3, 3] → [out, T · into, 3, 3]
        let (out, into) = (out as i64, into as i64);
        let weight = weight.f_permute([0, 2, 1, 3, 4])?.f_reshape([out, 3 * into, 3, 3])?;
        Ok(Causal::Plain { weight: to_layout(&weight, self.numeric.layout)?, bias })
    }

    /// A 1×1 convolution of `taps` frames laid side by side as channels.
    fn pointwise(&self, name: &str, into: usize, out: usize, taps: usize) -> Result<Plain> {
        let (weight, bias) = self.parameters(name, &[out, into, taps, 1, 1])?;
        let weight = weight.f_permute([0, 2, 1, 3, 4])?.f_reshape([out as i64, (taps * into) as i64, 1, 1])?;
        Ok(Plain { weight: to_layout(&weight, self.numeric.layout)?, bias, padding: 0, upsample: false })
    }

    fn doubling(&self, name: &str, channels: usize) -> Result<Plain> {
        self.pointwise(name, channels, 2 * channels, 3)
    }

    /// A 3×3 convolution of each frame after an upsampling by repetition.
    fn spatial(&self, name: &str, into: usize, out: usize) -> Result<Conv> {
        let (weight, bias) = self.parameters(name, &[out, into, 3, 3])?;
        if self.numeric.winograd(self.device) {
            return Ok(Conv::Winograd(Winograd::new(&weight, &bias, true)?));
        }
        Ok(Conv::Plain(Plain { weight: to_layout(&weight, self.numeric.layout)?, bias, padding: 1, upsample: true }))
    }

    fn resnet(&self, layers: &mut Layers, name: &str, into: usize, out: usize) -> Result<()> {
        let norm = self.norm(&format!("{name}.norm1"), into, 4)?;
        let conv = self.causal(&format!("{name}.conv1"), into, out)?;
        let shortcut = match into == out {
            true => None,
            false => Some(Conv::Plain(self.pointwise(&format!("{name}.conv_shortcut"), into, out, 1)?)),
        };
        let beside = if shortcut.is_some() { into * out } else { 0 };
        layers.add(Step::Hide { norm, conv, shortcut }, 27 * into * out + beside);
        let norm = self.norm(&format!("{name}.norm2"), out, 4)?;
        let conv = self.causal(&format!("{name}.conv2"), out, out)?;
        layers.add(Step::Sum { norm, conv }, 27 * out * out);
        Ok(())
    }

    fn attention(&self, name: &str, width: usize) -> Result<Attention> {
        let linear = |part: &str, out: usize| -> Result<(Tensor, Tensor)> {
            let (weight, bias) = self.parameters(&format!("{name}.{part}"), &[out, width, 1, 1])?;
            Ok((weight.f_reshape([out as i64, width as i64])?, bias))
        };
        let (query_key_value, query_key_value_bias) = linear("to_qkv", 3 * width)?;
        let (output, output_bias) = linear("proj", width)?;
        let dtype = match self.numeric.convolution {
            Kind::BFloat16 => tilewright_plan::Dtype::Bf16,
            Kind::Half => tilewright_plan::Dtype::F16,
            _ => tilewright_plan::Dtype::F32,
        };
        Ok(Attention {
            norm: self.norm(&format!("{name}.norm"), width, 3)?,
            query_key_value,
            query_key_value_bias,
            output,
            output_bias,
            fused: attention::fused_agrees(self.device, width as i64, dtype),
        })
    }
}
