//! The encoder: a clip's frames in, latent frames out, a few at a time.

use tch::{Device, Kind, Tensor};
use tilewright_torch::to_layout;

use super::{
    EncoderConfig, EncoderState,
    encoder_layers::{Attention, Average, Causal, Conv, Downsample, Norm, Past, Resnet, fused, patches},
    weights::Weights,
};
use crate::{Checkpoint, ComputeFormat, Error, Identity, Result};

#[derive(Debug)]
struct Down {
    resnets: Vec<Resnet>,
    downsample: Option<Downsample>,
    average: Option<Average>,
}

/// A WAN autoencoder's encoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    format: ComputeFormat,
    device: Device,
    conv_in: Causal,
    downs: Vec<Down>,
    before: Resnet,
    attention: Attention,
    after: Resnet,
    norm_out: Norm,
    conv_out: Causal,
    /// The means' rows of `quant_conv`: the deviations are not computed.
    quant: Conv,
}

impl Encoder {
    /// Loads the weights, each copied once from the mapped file.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen, left over or of a type that can't be read, by name; libtorch's failures, out of memory
    /// included.
    pub fn load(
        file: &Checkpoint,
        identity: &Identity,
        config: &EncoderConfig,
        format: ComputeFormat,
        device: Device,
    ) -> Result<Self> {
        let weights = Weights::of_encoder(file, identity, config, device)?;
        weights.all_present()?;
        let loader = Loader { weights, format };
        let mut downs = Vec::new();
        for (index, block) in config.down_blocks.iter().enumerate() {
            let name = format!("encoder.down_blocks.{index}");
            let into = |layer| if layer == 0 { block.into } else { block.channels };
            let resnets = (0..block.layers)
                .map(|layer| loader.resnet(&format!("{name}.resnets.{layer}"), into(layer), block.channels))
                .collect::<Result<_>>()?;
            let end = format!("{name}.downsampler");
            let width = block.channels;
            let downsample = match block.downsample {
                Some(downsample) => Some(Downsample {
                    space: loader.conv(&format!("{end}.resample.1"), width, width, 3, 2)?,
                    time: match downsample.temporal {
                        true => Some(loader.causal(&format!("{end}.time_conv"), width, width, 1)?),
                        false => None,
                    },
                }),
                None => None,
            };
            let average = block.averaged.then(|| Average {
                channels: width as i64,
                time: if block.downsample.is_some_and(|downsample| downsample.temporal) { 2 } else { 1 },
                space: if block.downsample.is_some() { 2 } else { 1 },
            });
            downs.push(Down { resnets, downsample, average });
        }
        let (middle, latent) = (config.middle_channels(), config.latent_channels);
        let attention = "encoder.mid_block.attentions.0";
        Ok(Self {
            conv_in: loader.causal("encoder.conv_in", config.first_channels, config.in_channels, 3)?,
            downs,
            before: loader.resnet("encoder.mid_block.resnets.0", middle, middle)?,
            attention: Attention {
                norm: loader.norm(&format!("{attention}.norm"), middle)?,
                mixed: loader.conv(&format!("{attention}.to_qkv"), 3 * middle, middle, 1, 1)?,
                output: loader.conv(&format!("{attention}.proj"), middle, middle, 1, 1)?,
                fused: fused(device, middle, &format),
            },
            after: loader.resnet("encoder.mid_block.resnets.1", middle, middle)?,
            norm_out: loader.norm("encoder.norm_out", middle)?,
            conv_out: loader.causal("encoder.conv_out", 2 * latent, middle, 3)?,
            quant: loader.means("quant_conv", latent)?,
            config: config.clone(),
            format,
            device,
        })
    }

    /// The architecture.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// The types and memory order that it was loaded for.
    pub fn format(&self) -> ComputeFormat {
        self.format
    }

    /// Before the first frame of a clip.
    pub fn begin(&self) -> EncoderState {
        EncoderState::default()
    }

    /// Encodes the next frames of a clip, [1, C, T, H, W] in −1…1, to the means of latent frames [1, z, t, h, w], f32, in the autoencoder's own space.
    /// The first frame of the clip comes alone and gives one; each later push is of a multiple of [`EncoderConfig::temporal_scale`] frames and
    /// gives one for so many. However a clip is divided into pushes, the network sees as many frames at once and gives the same.
    ///
    /// `step` is called with the share of the push that is done; an error from it ends the encode. After an error the state is spent.
    ///
    /// # Errors
    /// [`Error::Clip`] where the frames don't fit, libtorch's failures, out of memory included, and what `step` returns.
    pub fn push(
        &self,
        state: &mut EncoderState,
        frames: &Tensor,
        step: &mut dyn FnMut(f64) -> Result<()>,
    ) -> Result<Tensor> {
        let count = self.check(state, frames)?;
        // [T, C, H, W]
        let frames = frames.f_squeeze_dim(0)?.f_transpose(0, 1)?;
        let chunk = if state.size.is_none() { 1 } else { i64::from(self.config.temporal_scale()) };
        state.size = Some([frames.size()[2], frames.size()[3]]);
        let chunks = count / chunk;
        let mut latents = Vec::new();
        for index in 0..chunks {
            let part = frames.f_narrow(0, index * chunk, chunk)?.f_to_device(self.device)?;
            let mut within = |share: f64| step((index as f64 + share) / chunks as f64);
            latents.push(self.forward(&mut state.past, &part, &mut within)?);
        }
        Ok(Tensor::f_cat(&latents, 0)?.f_transpose(0, 1)?.f_unsqueeze(0)?.f_contiguous()?)
    }

    /// How many frames there are, where they are right.
    fn check(&self, state: &EncoderState, frames: &Tensor) -> Result<i64> {
        let refused = |reason: String| Err(Error::Clip { reason });
        let size = frames.size();
        let &[1, channels, count, height, width] = size.as_slice() else {
            return refused(format!("frames of shape {size:?}: one clip is [1, C, T, H, W]"));
        };
        if channels != self.config.image_channels as i64 {
            return refused(format!("pictures of {channels} channels: {} expected", self.config.image_channels));
        }
        self.config.check_size(height, width)?;
        match state.size {
            None if count != 1 => refused(format!("{count} frames at first: the first one comes alone")),
            Some(size) if size != [height, width] => {
                refused(format!("frames of {width}×{height} pixels after those of {}×{}", size[1], size[0]))
            }
            Some(_) if count == 0 || count % i64::from(self.config.temporal_scale()) != 0 => {
                refused(format!("{count} frames: a multiple of {} expected", self.config.temporal_scale()))
            }
            _ => Ok(count),
        }
    }

    /// Some frames [T, C, H, W] through all layers.
    fn forward(&self, past: &mut Past, frames: &Tensor, step: &mut dyn FnMut(f64) -> Result<()>) -> Result<Tensor> {
        let format = &self.format;
        past.rewind();
        let shares = self.config.layer_shares();
        let (mut layer, mut done) = (0, 0.0);
        let mut finished = || {
            done += shares.get(layer).copied().unwrap_or(0.0);
            layer += 1;
            step(f64::min(done, 1.0))
        };
        let frames = patches(&frames.f_to_kind(format.rest)?, self.config.patch as i64)?;
        let mut hidden = self.conv_in.forward(frames, past, format)?;
        finished()?;
        for down in &self.downs {
            let shortcut = down.average.map(|average| average.forward(&hidden)).transpose()?;
            for resnet in &down.resnets {
                hidden = resnet.forward(hidden, past, format)?;
                finished()?;
            }
            if let Some(downsample) = &down.downsample {
                hidden = downsample.forward(hidden, past, format)?;
                finished()?;
            }
            if let Some(shortcut) = shortcut {
                hidden = hidden.f_add(&shortcut)?;
            }
        }
        hidden = self.before.forward(hidden, past, format)?;
        finished()?;
        hidden = self.attention.forward(hidden, format)?;
        hidden = self.after.forward(hidden, past, format)?;
        finished()?;
        hidden = self.norm_out.forward_silu(&hidden, format)?;
        hidden = self.conv_out.forward(hidden, past, format)?;
        let means = self.quant.forward(&hidden, format)?.f_to_kind(Kind::Float)?;
        finished()?;
        Ok(means)
    }
}

fn of(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&extent| extent as i64).collect()
}

/// Loads layers by diffusers' names.
struct Loader<'a> {
    weights: Weights<'a>,
    format: ComputeFormat,
}

impl Loader<'_> {
    fn tensors(&self, name: &str, shape: &[usize]) -> Result<(Tensor, Tensor)> {
        let load = |part: &str, shape: &[usize]| {
            self.weights.load(&format!("{name}.{part}"), &of(shape), self.format.convolution)
        };
        Ok((load("weight", shape)?, load("bias", &shape[..1])?))
    }

    /// A convolution of one frame, whatever number of dimensions its weight has in the file.
    fn conv(&self, name: &str, out: usize, into: usize, side: usize, stride: i64) -> Result<Conv> {
        let (weight, bias) = self.tensors(name, &[out, into, side, side])?;
        // Where it halves, the rim is put there before.
        let padding = if stride == 1 { side as i64 / 2 } else { 0 };
        Ok(Conv { weight: to_layout(&weight, self.format.layout)?, bias, stride, padding })
    }

    fn causal(&self, name: &str, out: usize, into: usize, side: usize) -> Result<Causal> {
        let (weight, bias) = self.tensors(name, &[out, into, 3, side, side])?;
        let tap = |time| -> Result<Tensor> { Ok(to_layout(&weight.f_select(2, time)?, self.format.layout)?) };
        let taps = [tap(0)?, tap(1)?, tap(2)?];
        let conv = Conv { weight: taps[2].shallow_clone(), bias, stride: 1, padding: side as i64 / 2 };
        Ok(Causal { taps, conv })
    }

    /// The first half of the outputs of a 1×1×1 convolution.
    fn means(&self, name: &str, latent: usize) -> Result<Conv> {
        let (weight, bias) = self.tensors(name, &[2 * latent, 2 * latent, 1, 1])?;
        let half = |tensor: &Tensor| tensor.f_narrow(0, 0, latent as i64);
        let weight = to_layout(&half(&weight)?, self.format.layout)?;
        Ok(Conv { weight, bias: half(&bias)?, stride: 1, padding: 0 })
    }

    fn norm(&self, name: &str, channels: usize) -> Result<Norm> {
        let gamma = self.weights.load(&format!("{name}.gamma"), &of(&[1, channels, 1, 1]), Kind::Float)?;
        Ok(Norm { gamma: gamma.f_mul_scalar((channels as f64).sqrt())? })
    }

    fn resnet(&self, name: &str, into: usize, out: usize) -> Result<Resnet> {
        Ok(Resnet {
            norm1: self.norm(&format!("{name}.norm1"), into)?,
            conv1: self.causal(&format!("{name}.conv1"), out, into, 3)?,
            norm2: self.norm(&format!("{name}.norm2"), out)?,
            conv2: self.causal(&format!("{name}.conv2"), out, out, 3)?,
            shortcut: match into != out {
                true => Some(self.conv(&format!("{name}.conv_shortcut"), out, into, 1, 1)?),
                false => None,
            },
        })
    }
}
