//! The encoder: picture in, latent out.

use tch::{Device, Tensor};

use super::{
    EncoderConfig,
    bands::Bands,
    config::names,
    layers::{Conv, Downsample, Middle, Norm, Resnet, finish, prepare},
    loader::Loader,
    progress::Progress,
};
use crate::{Checkpoint, ComputeFormat, Error, Identity, Result};

#[derive(Debug)]
struct Down {
    resnets: Vec<Resnet>,
    downsample: Option<Downsample>,
}

/// A KL autoencoder's encoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Encoder {
    config: EncoderConfig,
    format: ComputeFormat,
    conv_in: Conv,
    downs: Vec<Down>,
    middle: Middle,
    norm_out: Norm,
    conv_out: Conv,
    quant: Option<Conv>,
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
        Error::refuse_left_over(file.path(), "encoder", &EncoderConfig::left_over(file, identity))?;
        let loader = Loader::new(names(file, identity)?, config.needed(), format, device, config.norm_groups)?;
        let mut downs = Vec::new();
        for (index, block) in config.down_blocks.iter().enumerate() {
            let name = format!("encoder.down_blocks.{index}");
            let resnets = (0..block.layers).map(|layer| loader.resnet(&format!("{name}.resnets.{layer}")));
            downs.push(Down {
                resnets: resnets.collect::<Result<_>>()?,
                downsample: match block.downsamples {
                    true => Some(loader.downsample(&format!("{name}.downsamplers.0.conv"))?),
                    false => None,
                },
            });
        }
        Ok(Self {
            conv_in: loader.conv("encoder.conv_in", false)?,
            downs,
            middle: loader.middle("encoder", config.middle_layers, config.middle_attention)?,
            norm_out: loader.norm("encoder.conv_norm_out")?,
            conv_out: loader.conv("encoder.conv_out", false)?,
            quant: if config.quant { Some(loader.conv("quant_conv", false)?) } else { None },
            config: config.clone(),
            format,
        })
    }

    /// The types and memory order that it was loaded for.
    pub fn format(&self) -> ComputeFormat {
        self.format
    }

    /// The architecture.
    pub fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Encodes pictures [N, 3, H, W] in −1…1 to the means of their latents [N, C, H/s, W/s] in the autoencoder's own space, f32: what diffusers'
    /// `encode(…).latent_dist.mode()` gives. `step` is called with the share of the work that is done, after each layer; an error from it
    /// ends the encode.
    ///
    /// # Errors
    /// [`Error::Picture`] where the sides are no multiples of the scale or the channels are others; libtorch's failures, out of memory
    /// included, and what `step` returns.
    pub fn forward(&self, pictures: &Tensor, step: &mut dyn FnMut(f64) -> Result<()>) -> Result<Tensor> {
        self.config.check(pictures)?;
        let mut progress = Progress::new(self.config.layer_shares(), step);
        let format = &self.format;
        let hidden = prepare(pictures, format)?;
        let mut moments = match &self.conv_in {
            Conv::Winograd(_) => self.fused(hidden, &mut progress)?,
            Conv::Plain(_) => self.layers(hidden, &mut progress)?,
        };
        if let Some(quant) = &self.quant {
            moments = quant.forward(moments, format)?;
        }
        // The other half is the variance's logarithm, which only sampling needs.
        finish(&moments.f_narrow(1, 0, self.config.latent_channels as i64)?.f_contiguous()?)
    }

    /// Layer by layer, from what enters `conv_in` to what leaves `conv_out`.
    fn layers(&self, input: Tensor, progress: &mut Progress<'_>) -> Result<Tensor> {
        let format = &self.format;
        let mut hidden = self.conv_in.forward(input, format)?;
        progress.layer()?;
        for down in &self.downs {
            for resnet in &down.resnets {
                hidden = resnet.forward(hidden, format)?;
                progress.layer()?;
            }
            if let Some(downsample) = &down.downsample {
                hidden = downsample.forward(hidden, format)?;
                progress.layer()?;
            }
        }
        hidden = self.middle.forward(hidden, format, progress)?;
        hidden = self.norm_out.forward_silu(&hidden)?;
        hidden = self.conv_out.forward(hidden, format)?;
        progress.layer()?;
        Ok(hidden)
    }

    /// The same with norms and activations done inside the convolutions.
    fn fused(&self, input: Tensor, progress: &mut Progress<'_>) -> Result<Tensor> {
        let whole = Bands { format: self.format, band: None, height: input.size()[2] };
        let mut picture = whole.convolved(&self.conv_in, input)?;
        progress.layer()?;
        for down in &self.downs {
            for resnet in &down.resnets {
                picture = whole.resnet(resnet, picture, progress)?;
            }
            if let Some(downsample) = &down.downsample {
                picture = whole.downsample(downsample, picture)?;
                progress.layer()?;
            }
        }
        picture = whole.middle(&self.middle, picture, progress)?;
        let moments = whole.normed(&self.norm_out, &self.conv_out, &picture, progress)?;
        progress.layer()?;
        Ok(moments)
    }
}

impl EncoderConfig {
    /// Checks that pictures [N, C, H, W] can be encoded.
    ///
    /// # Errors
    /// [`Error::Picture`], where they can't.
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
