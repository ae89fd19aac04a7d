//! The encoder: picture in, latent out.

use tch::Tensor;
use tilewright_nn::{
    Ops, Scope, Torch,
    layers::{Conv, Downsample, Norm, Resnet},
};
use tilewright_plan::Dtype;

use super::{
    EncoderConfig,
    bands::Bands,
    metered,
    network::{Middle, prepare, resnets},
};
use crate::{
    Checkpoint, ComputeFormat, Destination, Error, Identity, Result,
    progress::{Progress, Step, Track},
};

#[derive(Debug)]
struct Down<O: Ops> {
    resnets: Vec<Resnet<O>>,
    downsample: Option<Downsample<O>>,
}

/// The encoder's layers, over any operations.
#[derive(Debug)]
pub(super) struct Network<O: Ops> {
    conv_in: Conv<O>,
    downs: Vec<Down<O>>,
    middle: Middle<O>,
    norm_out: Norm<O>,
    conv_out: Conv<O>,
    quant: Option<Conv<O>>,
    latent_channels: i64,
}

impl<O: Ops> Network<O> {
    /// Asks for each weight by diffusers' name.
    pub fn build(root: &Scope<'_, O>, config: &EncoderConfig) -> Result<Self> {
        let (scope, groups) = (root.at("encoder"), config.norm_groups as i64);
        let (first, middle) = (config.first_channels as i64, config.middle_channels as i64);
        let latent_channels = config.latent_channels as i64;
        let conv_in = Conv::build(&scope.at("conv_in"), config.image_channels as i64, first, 3)?;
        let mut downs = Vec::new();
        let mut into = first;
        for (index, block) in config.down_blocks.iter().enumerate() {
            let (scope, out) = (scope.at("down_blocks").at(index), block.channels as i64);
            let resnets = resnets(&scope, block.layers, [into, out], groups)?;
            if !resnets.is_empty() {
                into = out;
            }
            let downsample = || Downsample::build(&scope.at("downsamplers.0.conv"), out);
            downs.push(Down { resnets, downsample: block.downsamples.then(downsample).transpose()? });
        }
        let (layers, has_attention) = (config.middle_layers, config.middle_attention);
        let middle_block = Middle::build(&scope.at("mid_block"), middle, layers, has_attention, groups)?;
        let moments = 2 * latent_channels;
        let quant = || Conv::build(&root.at("quant_conv"), moments, moments, 1);
        Ok(Self {
            conv_in,
            downs,
            middle: middle_block,
            norm_out: Norm::build(&scope.at("conv_norm_out"), middle, groups)?,
            conv_out: Conv::build(&scope.at("conv_out"), middle, moments, 3)?,
            quant: config.quant.then(quant).transpose()?,
            latent_channels,
        })
    }

    /// Encodes pictures to the means of their latents in f32.
    pub fn forward(&self, ops: &O, pictures: O::Tensor, track: &mut Track<'_>) -> Result<O::Tensor> {
        let hidden = prepare(ops, pictures)?;
        let mut moments = match self.conv_in.is_filtered() {
            true => self.forward_fused(ops, hidden, track)?,
            false => self.layers(ops, hidden, track)?,
        };
        if let Some(quant) = &self.quant {
            moments = quant.forward(ops, moments)?;
        }
        // The other half is the variance's logarithm, which only sampling needs.
        let means = ops.contiguous(&ops.narrow(&moments, 1, 0, self.latent_channels)?)?;
        Ok(ops.to_dtype(means, Dtype::F32)?)
    }

    /// Layer by layer, from `conv_in`'s input to `conv_out`'s output.
    fn layers(&self, ops: &O, input: O::Tensor, track: &mut Track<'_>) -> Result<O::Tensor> {
        let mut hidden = self.conv_in.forward(ops, input)?;
        track(Step::Layer)?;
        for down in &self.downs {
            for resnet in &down.resnets {
                hidden = resnet.forward(ops, hidden)?;
                track(Step::Layer)?;
            }
            if let Some(downsample) = &down.downsample {
                hidden = downsample.forward(ops, hidden)?;
                track(Step::Layer)?;
            }
        }
        hidden = self.middle.forward(ops, hidden, track)?;
        hidden = self.norm_out.forward_silu(ops, &hidden)?;
        hidden = self.conv_out.forward(ops, hidden)?;
        track(Step::Layer)?;
        Ok(hidden)
    }

    /// The same with norms and activations done inside the convolutions.
    fn forward_fused(&self, ops: &O, input: O::Tensor, track: &mut Track<'_>) -> Result<O::Tensor> {
        let whole = Bands { ops, band: None, height: ops.extents(&input)?[2] };
        let mut picture = whole.convolve(&self.conv_in, input)?;
        track(Step::Layer)?;
        for down in &self.downs {
            for resnet in &down.resnets {
                picture = whole.resnet(resnet, picture, track)?;
            }
            if let Some(downsample) = &down.downsample {
                picture = whole.downsample(downsample, picture)?;
                track(Step::Layer)?;
            }
        }
        picture = whole.middle(&self.middle, picture, track)?;
        let moments = whole.norm_and_convolve(&self.norm_out, &self.conv_out, &picture, track)?;
        track(Step::Layer)?;
        Ok(moments)
    }
}

/// A KL autoencoder's encoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    ops: Torch,
    network: Network<Torch>,
    /// Each layer's share of the work.
    shares: Vec<f64>,
}

impl Encoder {
    /// Loads the weights, each copied once from the mapped file.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen, left over or of a type that can't be read, by name;
    /// libtorch's failures, out of memory included; what a listener to the load returns.
    pub fn load<'d>(
        file: &Checkpoint,
        identity: &Identity,
        config: &EncoderConfig,
        format: ComputeFormat,
        destination: impl Into<Destination<'d>>,
    ) -> Result<Self> {
        let destination = destination.into();
        let weights = config.weights(file, identity)?;
        weights.check()?;
        let ops =
            Torch::new(format, destination.device(), config.middle_attention.then_some(config.middle_channels as i64));
        let network = Network::build(&Scope::new(&weights.on(destination), &ops), config)?;
        Ok(Self { shares: metered::encoder_shares(config)?, config: config.clone(), ops, network })
    }

    /// The types and memory order that it was loaded for.
    pub fn format(&self) -> ComputeFormat {
        self.ops.format()
    }

    /// The architecture.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Encodes pictures [N, 3, H, W] in −1…1 to the means of their latents [N, C, H/s, W/s] in the
    /// autoencoder's own space, f32: the result of diffusers' `encode(…).latent_dist.mode()`.
    /// `step` is called with the share of the work that is done, after each layer; an error from it
    /// ends the encode.
    ///
    /// # Errors
    /// [`Error::Picture`] if the sides are no multiples of the scale or the channels are others;
    /// libtorch's failures, out of memory included, and the error that `step` returns.
    pub fn forward(&self, pictures: &Tensor, step: &mut dyn FnMut(f64) -> Result<()>) -> Result<Tensor> {
        self.config.check(pictures)?;
        let mut progress = Progress::new(&self.shares, step);
        let mut track = |step| progress.track(step);
        self.network.forward(&self.ops, pictures.shallow_clone(), &mut track)
    }
}

impl EncoderConfig {
    /// Checks that pictures [N, C, H, W] can be encoded.
    ///
    /// # Errors
    /// [`Error::Picture`] if they can't.
    pub fn check(&self, pictures: &Tensor) -> Result<()> {
        let refused = |reason: String| Err(Error::Picture { reason });
        let [batch, channels, height, width] = pictures.size()[..] else {
            return refused(format!(
                "a tensor of shape {:?} is no pictures: [N, C, H, W] is expected",
                pictures.size()
            ));
        };
        if channels != self.image_channels as i64 {
            return refused(format!("the picture has {channels} channels, the VAE takes {}", self.image_channels));
        }
        let scale = i64::from(self.spatial_scale());
        if batch < 1 || height < 1 || width < 1 || height % scale != 0 || width % scale != 0 {
            return refused(format!(
                "{batch} pictures of {width}×{height} pixels can't be encoded: the sides have to be multiples of {scale}"
            ));
        }
        Ok(())
    }
}
