//! Denoisers of every kind that can be run: a file's contents, and the network with its weights.

use std::sync::Arc;

use serde::Serialize;
use tch::{Device, Kind, Tensor};
use tilewright_checkpoint::Stored;
use tilewright_nn::{ComputeFormat, Needed, TokenOps, TokenScope, Torch};
use tilewright_torch::streamed::Streamed;

use crate::{
    BeforeBlock, Checkpoint, Error, Family, Identity, LoadStep, Lora, LoraFit, Result, flux,
    parts::{Part, Role},
    transformer::{Layout, Residency, TransformerFile},
    wan,
};

/// A kind of transformer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Flux,
    Wan,
}

/// A network's name among the parts of a file, the kind that it is, and a tensor that shows the
/// prefix of its names.
struct Known(&'static str, Model, Layout, &'static str);

const KNOWN: [Known; 5] = [
    Known("Flux.1's transformer", Model::Flux, Layout::Original, "img_in.weight"),
    Known("Flux.1's transformer (diffusers)", Model::Flux, Layout::Diffusers, "x_embedder.weight"),
    // A picture's encoder beside it has a patch_embedding, too.
    Known("WAN's transformer", Model::Wan, Layout::Original, "blocks.0.self_attn.norm_k.weight"),
    Known("WAN's transformer, image to video", Model::Wan, Layout::Original, "blocks.0.self_attn.norm_k.weight"),
    Known("WAN's transformer (diffusers)", Model::Wan, Layout::Diffusers, "condition_embedder.time_proj.weight"),
];

/// A denoiser's architecture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum DenoiserConfig {
    /// Flux.1's.
    Flux(flux::Config),
    /// WAN's.
    Wan(wan::Config),
}

impl DenoiserConfig {
    /// The family whose latents it makes.
    pub fn family(&self) -> Family {
        match self {
            DenoiserConfig::Flux(_) => Family::Flux,
            // WAN 2.2's own autoencoder has 48 channels; its larger models keep that of 2.1.
            DenoiserConfig::Wan(config) if config.latent_channels == 48 => Family::Wan22,
            DenoiserConfig::Wan(_) => Family::Wan21,
        }
    }

    /// The published model that the architecture is that of, in words.
    pub fn model(&self) -> String {
        match self {
            DenoiserConfig::Flux(config) if config.guidance => "Flux.1 with guidance as an input (dev)".into(),
            DenoiserConfig::Flux(_) => "Flux.1 without guidance as an input (schnell)".into(),
            DenoiserConfig::Wan(config) => config.model(),
        }
    }

    /// Channels of a latent.
    pub fn latent_channels(&self) -> i64 {
        match self {
            DenoiserConfig::Flux(config) => config.latent_channels,
            DenoiserConfig::Wan(config) => config.latent_channels,
        }
    }

    /// Channels of a condition beside the latent: a mask's and a latent's.
    pub fn condition_channels(&self) -> i64 {
        match self {
            DenoiserConfig::Flux(_) => 0,
            DenoiserConfig::Wan(config) => config.input_channels - config.latent_channels,
        }
    }

    /// True if latents have frames.
    pub fn is_video(&self) -> bool {
        matches!(self, DenoiserConfig::Wan(_))
    }

    /// Pixels of a latent along the side of a token.
    pub fn patch(&self) -> i64 {
        2
    }

    /// The width of a head of attention.
    pub fn head_width(&self) -> i64 {
        match self {
            DenoiserConfig::Flux(config) => config.axes.iter().sum(),
            DenoiserConfig::Wan(config) => config.hidden / config.heads,
        }
    }

    /// Blocks of a pass.
    pub fn blocks(&self) -> usize {
        match self {
            DenoiserConfig::Flux(config) => config.double_blocks + config.single_blocks,
            DenoiserConfig::Wan(config) => config.blocks,
        }
    }

    /// The beginnings of blocks' names, with the blocks of each, in the order of a pass.
    fn block_names(&self) -> Vec<(&'static str, usize)> {
        match self {
            DenoiserConfig::Flux(config) => {
                vec![("double_blocks", config.double_blocks), ("single_blocks", config.single_blocks)]
            }
            DenoiserConfig::Wan(config) => vec![("blocks", config.blocks)],
        }
    }

    /// The weights that the network needs.
    ///
    /// # Errors
    /// Never: nothing is loaded.
    pub fn needed(&self) -> Result<Vec<Needed>> {
        match self {
            DenoiserConfig::Flux(config) => config.needed(),
            DenoiserConfig::Wan(config) => config.needed(),
        }
    }
}

/// A denoiser in a file.
#[derive(Debug)]
pub struct DenoiserFile {
    file: TransformerFile,
    /// The architecture.
    pub config: DenoiserConfig,
    /// Elements of its weights.
    pub parameters: u64,
    /// Bytes of its weights as they are stored.
    pub stored_bytes: u64,
    /// The types that its weights are stored in, with their bytes, the most common first.
    pub stored_types: Vec<(Stored, u64)>,
    /// The file's tensors of each block.
    blocks: Vec<Vec<String>>,
}

impl DenoiserFile {
    /// Finds the denoiser in a file, and checks that its weights are all there and can be loaded.
    ///
    /// # Errors
    /// As [`Self::find`] and [`Self::check`].
    pub fn open(file: Checkpoint) -> Result<Self> {
        let found = Self::find(file)?;
        found.check()?;
        Ok(found)
    }

    /// The same denoiser without the changes of LoRAs. Both share the file.
    #[must_use]
    pub fn without_loras(&self) -> Self {
        Self {
            file: self.file.without_loras(),
            config: self.config.clone(),
            stored_types: self.stored_types.clone(),
            blocks: self.blocks.clone(),
            ..*self
        }
    }

    /// Finds the denoiser in a file, by the tensors that tell its architecture.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is none that can be run; a tensor that the architecture is read
    /// from is missing.
    pub fn find(file: Checkpoint) -> Result<Self> {
        let unknown = |reason: String| Error::Unknown { path: file.path().to_owned(), reason };
        if let Some(reason) = file.refusal() {
            return Err(unknown(reason));
        }
        let parts = Part::of(&file);
        let part = parts.iter().find(|part| part.role == Role::Denoiser);
        let known = part.and_then(|part| KNOWN.iter().find(|Known(name, ..)| *name == part.name));
        let Some(Known(_, model, layout, mark)) = known else {
            return Err(unknown(refusal(&file, &parts)));
        };
        let within =
            |name: &&str| name.strip_suffix(mark).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'));
        let prefix = file.names().find(within).map(|name| name[..name.len() - mark.len()].to_owned());
        let prefix = prefix.ok_or_else(|| unknown(format!("a transformer without its tensor {mark}")))?;
        let renamed = |name: &str| name.starts_with(&prefix) && name.ends_with(".norm.query_norm.weight");
        let layout = match (model, layout) {
            (Model::Flux, Layout::Original) if file.names().any(renamed) => Layout::ComfyUi,
            (_, layout) => *layout,
        };
        let rows = match model {
            Model::Flux => flux::rows(layout),
            Model::Wan => wan::rows(layout),
        };
        let file = TransformerFile::new(file, layout, prefix, rows);
        let config = match model {
            Model::Flux => DenoiserConfig::Flux(flux::Config::read(&file)?),
            Model::Wan => DenoiserConfig::Wan(wan::Config::read(&file)?),
        };
        let needed = config.needed()?;
        let count = |needed: &Needed| needed.shapes[0].iter().product::<usize>() as u64;
        let blocks = file.tensors_of_blocks(&needed, &config.block_names());
        Ok(Self {
            stored_types: file.stored_types(&needed),
            blocks,
            parameters: needed.iter().map(count).sum(),
            stored_bytes: file.stored_bytes(&needed),
            file,
            config,
        })
    }

    /// Checks that the weights are all there and can be loaded.
    ///
    /// # Errors
    /// A tensor is missing, misshapen, left over, or of a type that can't be computed from.
    pub fn check(&self) -> Result<()> {
        self.file.check(&self.config.needed()?)
    }

    /// Adds a LoRA, and says how much of it fits.
    ///
    /// # Errors
    /// Nothing of it fits, or a tensor of it has another shape than the network's.
    pub fn add(&mut self, lora: Lora) -> Result<LoraFit> {
        let rows = match self.config {
            DenoiserConfig::Flux(_) => flux::rows,
            DenoiserConfig::Wan(_) => wan::rows,
        };
        self.file.add(lora, &[Layout::Original, Layout::ComfyUi, Layout::Diffusers].map(rows), &self.config.needed()?)
    }

    /// Bytes of memory that the network's weights are held in beside their file: vectors in f32,
    /// LoRAs, and matrices if they are expanded.
    ///
    /// # Errors
    /// Never: nothing is loaded.
    pub fn resident_bytes(&self, format: ComputeFormat, residency: Residency) -> Result<u64> {
        let width = format.convolution.elt_size_in_bytes() as u64;
        let bytes = |needed: &Needed| {
            let count = needed.shapes[0].iter().product::<usize>() as u64;
            match (needed.shapes[0].len(), residency) {
                (2, Residency::Mapped) => 0,
                (2, Residency::Streamed) if self.is_of_a_block(needed) => 0,
                (2, Residency::Packed | Residency::Streamed) => self.file.stored_bytes(std::slice::from_ref(needed)),
                (2, Residency::Expanded) => count * width,
                _ => count * 4,
            }
        };
        let changes = self.file.changes().elements() * width;
        Ok(self.config.needed()?.iter().map(bytes).sum::<u64>() + changes)
    }

    fn is_of_a_block(&self, needed: &Needed) -> bool {
        let (parts, _) = self.file.parts(&needed.name);
        self.blocks.iter().any(|block| parts.iter().any(|part| block.contains(part)))
    }

    /// The file.
    pub fn file(&self) -> &TransformerFile {
        &self.file
    }

    /// The type that most of its bytes are stored in.
    pub fn stored(&self) -> Stored {
        self.stored_types.first().map_or(Stored::F32, |(stored, _)| *stored)
    }

    /// True if most of its bytes are stored in a type that products can't take as it is.
    pub fn is_quantized(&self) -> bool {
        self.stored().is_quantized()
    }

    /// Bytes of each block as they are stored.
    pub fn block_bytes(&self) -> Vec<u64> {
        let bytes = |name: &String| self.file.file().bytes(name).map_or(0, |bytes| bytes.len() as u64);
        self.blocks.iter().map(|block| block.iter().map(bytes).sum()).collect()
    }

    /// Asks the system to read a block's weights ahead of their use.
    pub fn read_ahead(&self, block: usize) {
        self.blocks.get(block).into_iter().flatten().for_each(|name| self.file.file().read_ahead(name));
    }

    /// Gives the memory of a block's mapped weights back.
    pub fn give_back(&self, block: usize) {
        self.blocks.get(block).into_iter().flatten().for_each(|name| self.file.file().give_back(name));
    }

    /// Loads the network. `step` is called before each weight, with the share of the load that is
    /// done.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included; an error of `step`, which ends the load.
    pub fn load(
        &self,
        format: ComputeFormat,
        device: Device,
        residency: Residency,
        step: LoadStep<'_>,
    ) -> Result<LoadedDenoiser> {
        let ops = Torch::new(format, device, Some(self.config.head_width()));
        let source = self.file.on((format, device, residency), self.stored_bytes, &self.blocks, step);
        let network = Network::build(&self.config, &TokenScope::new(&source, &ops))?;
        Ok(LoadedDenoiser { ops, network, streams: source.into_streams() })
    }
}

/// The reason why a file can't be sampled with.
fn refusal(file: &Checkpoint, parts: &[Part]) -> String {
    let identity = Identity::of(file);
    if !parts.is_empty() {
        return format!("{}, not a transformer that can be run: Flux.1's and WAN's can", Part::list_names(parts));
    }
    match identity.kind {
        crate::Kind::KlAutoencoder | crate::Kind::VideoAutoencoder | crate::Kind::TinyAutoencoder => {
            "a VAE, not a transformer: it decodes what a transformer makes (tilewright decode)".into()
        }
        crate::Kind::Latent => "a latent, not a transformer".into(),
        crate::Kind::Pixels => "raw frames, not a transformer".into(),
        crate::Kind::Conditioning => "conditioning, not a transformer: it comes after --conditioning".into(),
        crate::Kind::Transformer | crate::Kind::Other => {
            let first =
                file.names().next().map_or("it holds no tensors".into(), |name| format!("its first tensor is {name}"));
            format!("no transformer in it ({first}): Flux.1's and WAN's can be run")
        }
    }
}

/// The inputs of a denoiser beside the latent.
#[derive(Debug)]
pub struct Inputs<'a, T> {
    /// [N, tokens, width]
    pub text: &'a T,
    /// [N, width], for Flux.
    pub pooled: Option<&'a T>,
    /// [N, tokens, width], for WAN with a picture.
    pub image: Option<&'a T>,
    /// The guidance of a network that has it as an input.
    pub guidance: Option<f32>,
}

/// Tensors that follow from the inputs and the size alone.
#[derive(Debug)]
pub enum Context<T> {
    /// Flux's.
    Flux(flux::Context<T>),
    /// WAN's.
    Wan(wan::Context<T>),
}

/// A denoiser's network.
#[derive(Debug)]
pub enum Network<O: TokenOps> {
    /// Flux.1's.
    Flux(flux::Network<O>),
    /// WAN's.
    Wan(wan::Network<O>),
}

impl<O: TokenOps> Network<O> {
    /// A network of an architecture.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    pub fn build(config: &DenoiserConfig, scope: &TokenScope<'_, O>) -> Result<Self> {
        Ok(match config {
            DenoiserConfig::Flux(config) => Network::Flux(flux::Network::build(config, scope)?),
            DenoiserConfig::Wan(config) => Network::Wan(wan::Network::build(config, scope)?),
        })
    }

    /// Embeds the inputs, for latents of frames, height and width in their own pixels.
    ///
    /// # Errors
    /// Tensors have other extents than the network's; libtorch's failures.
    pub fn prepare(&self, ops: &O, inputs: &Inputs<'_, O::Tensor>, size: [i64; 3]) -> Result<Context<O::Tensor>> {
        match self {
            Network::Flux(network) => {
                let pooled = inputs.pooled.unwrap_or(inputs.text);
                let given = flux::Conditioning { text: inputs.text, pooled, guidance: inputs.guidance };
                Ok(Context::Flux(network.prepare(ops, &given, [size[1], size[2]])?))
            }
            Network::Wan(network) => {
                let given = wan::Conditioning { text: inputs.text, image: inputs.image };
                Ok(Context::Wan(network.prepare(ops, &given, size)?))
            }
        }
    }

    /// The velocity of latents in the model's own space, in f32: [N, C, h, w] of pictures,
    /// [N, C, T, h, w] of clips. `sigmas` are one for all, or for clips one for each frame.
    /// `before_block` is called before each block with the image's tokens, and after the last one.
    ///
    /// # Errors
    /// The latents are of another size than the context; libtorch's failures; an error of
    /// `before_block`.
    pub fn forward(
        &self,
        ops: &O,
        latents: &O::Tensor,
        sigmas: &[f32],
        context: &Context<O::Tensor>,
        before_block: BeforeBlock<'_, O::Tensor>,
    ) -> Result<O::Tensor> {
        match (self, context) {
            (Network::Flux(network), Context::Flux(context)) => {
                network.forward(ops, latents, sigmas.first().copied().unwrap_or_default(), context, before_block)
            }
            (Network::Wan(network), Context::Wan(context)) => {
                network.forward(ops, latents, sigmas, context, before_block)
            }
            _ => Err(tilewright_nn::Error::Shapes {
                operation: "a transformer",
                shapes: "another transformer's conditioning".into(),
            }
            .into()),
        }
    }
}

/// A denoiser with its weights on a device.
#[derive(Debug)]
pub struct LoadedDenoiser {
    ops: Torch,
    network: Network<Torch>,
    /// The matrices of each block that are copied to the device for their turns.
    streams: Vec<Vec<Arc<Streamed>>>,
}

impl LoadedDenoiser {
    /// Queues the copies of a block's weights to the device, if they are streamed. Returns the
    /// bytes that are copied.
    ///
    /// # Errors
    /// Memory is out; a fault of the device.
    pub fn fetch(&self, block: usize) -> Result<u64> {
        let streams = self.streams.get(block).map(Vec::as_slice).unwrap_or_default();
        streams.iter().try_for_each(|streamed| streamed.fetch())?;
        Ok(streams.iter().map(|streamed| streamed.bytes()).sum())
    }

    /// Gives the device's memory of a block's streamed weights back.
    pub fn release(&self, block: usize) {
        self.streams.get(block).into_iter().flatten().for_each(|streamed| streamed.release());
    }

    /// Divides attention and feed-forward layers as a format says, of which nothing else differs
    /// from that of the load.
    pub fn divide_as(&mut self, format: &ComputeFormat) {
        self.ops.divide_as(format);
    }

    /// True if weights are copied to the device for their turns.
    pub fn is_streamed(&self) -> bool {
        self.streams.iter().any(|block| !block.is_empty())
    }

    /// As [`Network::prepare`].
    ///
    /// # Errors
    /// As [`Network::prepare`].
    pub fn prepare(&self, inputs: &Inputs<'_, Tensor>, size: [i64; 3]) -> Result<Context<Tensor>> {
        self.network.prepare(&self.ops, inputs, size)
    }

    /// As [`Network::forward`].
    ///
    /// # Errors
    /// As [`Network::forward`].
    pub fn velocity(
        &self,
        latents: &Tensor,
        sigmas: &[f32],
        context: &Context<Tensor>,
        before_block: BeforeBlock<'_, Tensor>,
    ) -> Result<Tensor> {
        Ok(self.network.forward(&self.ops, latents, sigmas, context, before_block)?.f_to_kind(Kind::Float)?)
    }
}
