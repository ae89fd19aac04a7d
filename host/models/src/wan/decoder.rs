//! The decoder: a clip's latents in, frames out, as they are ready.

use tch::{Device, Tensor};
use tilewright_torch::{
    attention, to_layout,
    winograd::{TAPS, Winograd},
};

use super::{
    Config,
    architecture::{Kind, Layer},
    clip::{Piece, Spread},
    layers::{Attention, Causal, Doubling, Duplication, Origin, Past, UnitNorm, Work, each},
    weights::Weights,
};
use crate::{
    Checkpoint, ComputeFormat, Identity, Result,
    kl::layers::{Conv, Plain, empty},
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
        shortcut: Option<Plain>,
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

/// A step with its extents.
#[derive(Debug)]
pub(super) struct Loaded {
    pub layer: Layer,
    pub step: Step,
}

/// A WAN autoencoder's decoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    format: ComputeFormat,
    pub(super) layers: Vec<Loaded>,
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
        format: ComputeFormat,
        device: Device,
    ) -> Result<Self> {
        let weights = Weights::new(file, identity, config)?;
        weights.all_present()?;
        let loader = Loader { weights, format, device };
        let load = |layer: Layer| Ok(Loaded { step: loader.step(&layer)?, layer });
        let layers = config.layers().into_iter().map(load).collect::<Result<_>>()?;
        Ok(Self { config: config.clone(), format, layers })
    }

    /// The types and memory order that it was loaded for.
    pub fn format(&self) -> ComputeFormat {
        self.format
    }

    /// The architecture.
    pub fn config(&self) -> &Config {
        &self.config
    }
}

impl Loaded {
    /// Takes a piece through the step. Where it ends early, the piece and the past are such that it may be called again.
    pub fn run(&self, piece: &mut Piece, past: &mut Past, spread: &Spread, format: &ComputeFormat) -> Result<()> {
        let (count, _, height, width) = piece.frames.size4()?;
        let device = piece.frames.device();
        let room = |channels: i64| empty([count, channels, height, width], format, device);
        let band = spread.band_of(height);
        match &self.step {
            Step::Pointwise(conv) => piece.frames = each(conv, &piece.frames, format)?,
            Step::Convolve { norm, conv } => {
                let output = piece.hidden.take().map_or_else(|| room(conv.out()), Ok)?;
                let output = piece.hidden.insert(output);
                let (frames, done) = (&piece.frames, &mut piece.done);
                let mut work = Work { frames, output, add: false, band, done };
                conv.forward(norm.as_ref(), past, &mut work, format)?;
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
                    conv.forward(Some(norm), past, &mut work, format)?;
                    piece.convolved = true;
                }
                if let Some(shortcut) = shortcut {
                    piece.frames = each(shortcut, &piece.frames, format)?;
                }
            }
            Step::Sum { norm, conv } => {
                if let Some(hidden) = &piece.hidden {
                    let mut work =
                        Work { frames: hidden, output: &piece.frames, add: true, band, done: &mut piece.done };
                    conv.forward(Some(norm), past, &mut work, format)?;
                }
                piece.hidden = None;
            }
            Step::Attention(attention) => piece.frames = attention.forward(&piece.frames, format)?,
            Step::Double(doubling) => {
                piece.frames = doubling.forward(past, &piece.frames, format)?;
                piece.double();
            }
            Step::Upsample(Conv::Plain(conv)) => piece.frames = each(conv, &piece.frames, format)?,
            Step::Upsample(conv) => piece.frames = conv.forward(piece.frames.shallow_clone(), format)?,
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

/// Loads layers by diffusers' names from a file of any layout.
struct Loader<'a> {
    weights: Weights<'a>,
    format: ComputeFormat,
    device: Device,
}

impl Loader<'_> {
    fn step(&self, layer: &Layer) -> Result<Step> {
        let Layer { kind, name, into, out, .. } = layer;
        let (into, out) = (*into, *out);
        let causal = |name: &str| match layer.scatters() {
            true => self.scattered(name, into, out),
            false => self.causal(name, into, out),
        };
        Ok(match *kind {
            Kind::Pointwise => Step::Pointwise(self.pointwise(name, into, out, 1)?),
            Kind::Convolve { normed } => Step::Convolve {
                norm: if normed { Some(self.norm("decoder.norm_out", into, 4)?) } else { None },
                conv: causal(name)?,
            },
            Kind::Begin => Step::Begin,
            Kind::Hide { shortcut } => Step::Hide {
                norm: self.norm(&format!("{name}.norm1"), into, 4)?,
                conv: causal(&format!("{name}.conv1"))?,
                shortcut: match shortcut {
                    true => Some(self.pointwise(&format!("{name}.conv_shortcut"), into, out, 1)?),
                    false => None,
                },
            },
            Kind::Sum => Step::Sum {
                norm: self.norm(&format!("{name}.norm2"), into, 4)?,
                conv: self.causal(&format!("{name}.conv2"), into, out)?,
            },
            Kind::Attention => Step::Attention(self.attention(name, into)?),
            Kind::Double => Step::Double(Doubling { conv: self.pointwise(name, into, 2 * into, TAPS)? }),
            Kind::Upsample => Step::Upsample(self.spatial(name, into, out)?),
            Kind::End { temporal } => Step::End(Duplication::new(into as i64, out as i64, temporal, self.device)?),
        })
    }

    fn parameters(&self, name: &str, shape: &[usize]) -> Result<(Tensor, Tensor)> {
        let load = |part: &str, shape: &[usize]| {
            self.weights.load(&format!("{name}.{part}"), shape, self.format.convolution, self.device)
        };
        Ok((load("weight", shape)?, load("bias", &shape[..1])?))
    }

    fn norm(&self, name: &str, channels: usize, rank: usize) -> Result<UnitNorm> {
        let mut shape = vec![1; rank];
        shape[0] = channels;
        let gamma = self.weights.load(&format!("{name}.gamma"), &shape, self.format.rest, self.device)?;
        Ok(UnitNorm { gamma: gamma.f_reshape([channels as i64])? })
    }

    fn causal(&self, name: &str, into: usize, out: usize) -> Result<Causal> {
        let (weight, bias) = self.parameters(name, &[out, into, 3, 3, 3])?;
        if self.format.winograd(self.device) {
            return Ok(Causal::Winograd(Winograd::causal(&weight, &bias)?));
        }
        // [out, into, T, 3, 3] → [out, T · into, 3, 3]
        let (out, into) = (out as i64, into as i64);
        let weight = weight.f_permute([0, 2, 1, 3, 4])?.f_reshape([out, 3 * into, 3, 3])?;
        Ok(Causal::Plain { weight: to_layout(&weight, self.format.layout)?, bias })
    }

    fn scattered(&self, name: &str, into: usize, out: usize) -> Result<Causal> {
        let (weight, bias) = self.parameters(name, &[out, into, 3, 3, 3])?;
        let (out, into) = (out as i64, into as i64);
        // [out, into, T, 3, 3] → [T · out, into, 3, 3]
        let weight = weight.f_permute([2, 0, 1, 3, 4])?.f_reshape([3 * out, into, 3, 3])?;
        let none = Tensor::f_zeros([2 * out], (bias.f_kind()?, bias.device()))?;
        let bias = Tensor::f_cat(&[none, bias], 0)?;
        let conv = match self.format.winograd(self.device) {
            true => Conv::Winograd(Winograd::new(&weight, &bias, false)?),
            false => {
                let weight = to_layout(&weight, self.format.layout)?;
                Conv::Plain(Plain { weight, bias, padding: 1, upsample: false })
            }
        };
        Ok(Causal::Scattered { conv, out })
    }

    /// A 1×1 convolution of `taps` frames laid side by side as channels.
    fn pointwise(&self, name: &str, into: usize, out: usize, taps: usize) -> Result<Plain> {
        let (weight, bias) = self.parameters(name, &[out, into, taps, 1, 1])?;
        let weight = weight.f_permute([0, 2, 1, 3, 4])?.f_reshape([out as i64, (taps * into) as i64, 1, 1])?;
        Ok(Plain { weight: to_layout(&weight, self.format.layout)?, bias, padding: 0, upsample: false })
    }

    /// A 3×3 convolution of each frame after an upsampling by repetition.
    fn spatial(&self, name: &str, into: usize, out: usize) -> Result<Conv> {
        let (weight, bias) = self.parameters(name, &[out, into, 3, 3])?;
        if self.format.winograd(self.device) {
            return Ok(Conv::Winograd(Winograd::new(&weight, &bias, true)?));
        }
        Ok(Conv::Plain(Plain { weight: to_layout(&weight, self.format.layout)?, bias, padding: 1, upsample: true }))
    }

    fn attention(&self, name: &str, width: usize) -> Result<Attention> {
        let linear = |part: &str, out: usize| -> Result<(Tensor, Tensor)> {
            let (weight, bias) = self.parameters(&format!("{name}.{part}"), &[out, width, 1, 1])?;
            Ok((weight.f_reshape([out as i64, width as i64])?, bias))
        };
        let (query_key_value, query_key_value_bias) = linear("to_qkv", 3 * width)?;
        let (output, output_bias) = linear("proj", width)?;
        let dtype = match self.format.convolution {
            tch::Kind::BFloat16 => tilewright_plan::Dtype::Bf16,
            tch::Kind::Half => tilewright_plan::Dtype::F16,
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
