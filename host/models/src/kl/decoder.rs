//! The decoder: latent in, picture out.

use tch::{Device, Tensor};

use super::{
    Config,
    bands::Bands,
    config::names,
    layers::{Conv, Middle, Norm, Resnet, finish, prepare},
    loader::Loader,
    progress::Progress,
};
use crate::{Checkpoint, ComputeFormat, Error, Identity, Result};

#[derive(Debug)]
pub(super) struct Up {
    pub resnets: Vec<Resnet>,
    pub upsample: Option<Conv>,
}

/// A KL autoencoder's decoder, loaded for one type and memory order on one device.
#[derive(Debug)]
pub struct Decoder {
    config: Config,
    format: ComputeFormat,
    pub(super) post_quant: Option<Conv>,
    pub(super) conv_in: Conv,
    pub(super) middle: Middle,
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
        format: ComputeFormat,
        device: Device,
    ) -> Result<Self> {
        Error::refuse_left_over(file.path(), "decoder", &Config::left_over(file, identity))?;
        let loader = Loader::new(names(file, identity)?, config.needed(), format, device, config.norm_groups)?;
        let resnet = |name: String| loader.resnet(&name);
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
            middle: loader.middle("decoder", config.middle_layers, config.middle_attention)?,
            ups,
            norm_out: loader.norm("decoder.conv_norm_out")?,
            conv_out: loader.conv("decoder.conv_out", false)?,
            config: config.clone(),
            format,
        })
    }

    /// The types and memory order that it was loaded for.
    pub fn format(&self) -> ComputeFormat {
        self.format
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
        let mut progress = Progress::new(self.config.layer_shares(), step);
        let format = &self.format;
        let mut hidden = prepare(latents, format)?;
        if let Some(conv) = &self.post_quant {
            hidden = conv.forward(hidden, format)?;
        }
        if band.is_some() || matches!(self.conv_in, Conv::Winograd(_)) {
            let scale = i64::from(self.config.spatial_scale());
            let height = latents.size()[2] * scale;
            let bands = Bands { format: *format, band: band.map(i64::from), height };
            return finish(&bands.decode(self, hidden, &mut progress)?);
        }
        hidden = self.conv_in.forward(hidden, format)?;
        progress.layer()?;
        hidden = self.middle.forward(hidden, format, &mut progress)?;
        for up in &self.ups {
            for resnet in &up.resnets {
                hidden = resnet.forward(hidden, format)?;
                progress.layer()?;
            }
            if let Some(upsample) = &up.upsample {
                hidden = upsample.forward(hidden, format)?;
                progress.layer()?;
            }
        }
        hidden = self.norm_out.forward_silu(&hidden)?;
        hidden = self.conv_out.forward(hidden, format)?;
        progress.layer()?;
        finish(&hidden)
    }
}
