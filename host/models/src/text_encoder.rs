//! Encoders of every kind that can be run, of text and of pictures: those of a file, and the
//! network with its weights.

use std::sync::Arc;

use serde::Serialize;
use tch::{Device, Tensor};
use tilewright_checkpoint::Stored;
use tilewright_nn::{ComputeFormat, Meter, MeterTensor, Needed, Ops, TokenOps, TokenScope, Torch};

use crate::{
    Checkpoint, Error, Identity, Kind, LoadStep, Part, Result, clip, t5,
    transformer::{Layout, Residency, TransformerFile},
};

/// A kind of network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Clip,
    ClipVision,
    T5,
}

/// A sign of an encoder: the end of a tensor's name, before which its prefix stands, and a tensor
/// behind the same prefix.
struct Known(Model, Layout, &'static str, &'static str);

const KNOWN: [Known; 8] = [
    Known(
        Model::Clip,
        Layout::Diffusers,
        "encoder.layers.0.self_attn.q_proj.weight",
        "embeddings.token_embedding.weight",
    ),
    Known(Model::Clip, Layout::Original, "transformer.resblocks.0.attn.in_proj_weight", "token_embedding.weight"),
    // SigLIP's has the same names, and no class.
    Known(
        Model::ClipVision,
        Layout::Diffusers,
        "encoder.layers.0.self_attn.q_proj.weight",
        "embeddings.class_embedding",
    ),
    Known(Model::ClipVision, Layout::Original, "transformer.resblocks.0.attn.in_proj_weight", "class_embedding"),
    Known(Model::T5, Layout::Diffusers, "encoder.block.0.layer.0.SelfAttention.q.weight", "shared.weight"),
    Known(Model::T5, Layout::ComfyUi, "encoder.block.0.layer.0.SelfAttention.q.weight", "encoder.embed_tokens.weight"),
    Known(Model::T5, Layout::LlamaCpp, "enc.blk.0.attn_q.weight", "token_embd.weight"),
    Known(Model::T5, Layout::Original, "blocks.0.attn.q.weight", "token_embedding.weight"),
];

/// The part of a prefix that stands before the blocks of a CLIP encoder in transformers' names, and
/// not before its projection.
const TEXT_MODEL: &str = "text_model.";

/// The kind of an encoder: what reads its text, and what it hands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncoderKind {
    /// OpenAI's CLIP.
    Clip,
    /// OpenCLIP.
    OpenClip,
    /// T5.
    T5,
    /// UMT5.
    Umt5,
}

impl EncoderKind {
    /// The kind's name.
    pub fn name(self) -> &'static str {
        match self {
            EncoderKind::Clip => "CLIP",
            EncoderKind::OpenClip => "OpenCLIP",
            EncoderKind::T5 => "T5",
            EncoderKind::Umt5 => "UMT5",
        }
    }
}

/// An encoder's architecture.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum EncoderConfig {
    /// CLIP's.
    Clip(clip::Config),
    /// T5's or UMT5's.
    T5(t5::Config),
}

impl EncoderConfig {
    /// The kind of encoder.
    pub fn kind(&self) -> EncoderKind {
        match self {
            EncoderConfig::Clip(config) if config.quick_gelu => EncoderKind::Clip,
            EncoderConfig::Clip(_) => EncoderKind::OpenClip,
            EncoderConfig::T5(config) if config.own_distances => EncoderKind::Umt5,
            EncoderConfig::T5(_) => EncoderKind::T5,
        }
    }

    /// The published encoder that the architecture is that of, in words.
    pub fn model(&self) -> String {
        match self {
            EncoderConfig::Clip(clip::Config { hidden: 1280, blocks: 32, picture: Some(_), .. }) => {
                "CLIP ViT-H's vision".into()
            }
            EncoderConfig::Clip(clip::Config { hidden: 1024, blocks: 24, picture: Some(_), .. }) => {
                "CLIP ViT-L's vision".into()
            }
            EncoderConfig::Clip(clip::Config { hidden: 768, blocks: 12, quick_gelu: true, picture: None, .. }) => {
                "CLIP-L".into()
            }
            EncoderConfig::Clip(clip::Config { hidden: 1280, blocks: 32, picture: None, .. }) => "OpenCLIP bigG".into(),
            EncoderConfig::T5(t5::Config { hidden: 4096, blocks: 24, own_distances: false, .. }) => "T5-XXL".into(),
            EncoderConfig::T5(t5::Config { hidden: 4096, blocks: 24, own_distances: true, .. }) => "UMT5-XXL".into(),
            EncoderConfig::Clip(clip::Config { hidden, picture: Some(_), .. }) => {
                format!("CLIP's vision of width {hidden}")
            }
            other => format!("{} of width {}", other.kind().name(), other.hidden()),
        }
    }

    /// The width of tokens.
    pub fn hidden(&self) -> i64 {
        match self {
            EncoderConfig::Clip(config) => config.hidden,
            EncoderConfig::T5(config) => config.hidden,
        }
    }

    /// The tokens of the vocabulary.
    pub fn vocabulary(&self) -> i64 {
        match self {
            EncoderConfig::Clip(config) => config.vocabulary,
            EncoderConfig::T5(config) => config.vocabulary,
        }
    }

    /// The most tokens of a text, if there is such a number.
    pub fn positions(&self) -> Option<i64> {
        match self {
            EncoderConfig::Clip(config) => Some(config.positions),
            EncoderConfig::T5(_) => None,
        }
    }

    /// Blocks.
    pub fn blocks(&self) -> usize {
        match self {
            EncoderConfig::Clip(config) => config.blocks,
            EncoderConfig::T5(config) => config.blocks,
        }
    }

    fn head_width(&self) -> i64 {
        match self {
            EncoderConfig::Clip(config) => config.hidden / config.heads,
            EncoderConfig::T5(config) => config.attention / config.heads,
        }
    }

    /// The tables that a network's input is made of, which are not loaded.
    fn tables(&self) -> &'static [&'static str] {
        match self {
            EncoderConfig::Clip(_) => &["tokens.weight", "positions.weight", "class", "patches.weight"],
            EncoderConfig::T5(_) => &["tokens.weight"],
        }
    }

    /// The weights that the network needs, and the tables that its input is made of.
    ///
    /// # Errors
    /// Never: nothing is loaded.
    pub fn needed(&self) -> Result<Vec<Needed>> {
        match self {
            EncoderConfig::Clip(config) => config.needed(),
            EncoderConfig::T5(config) => config.needed(),
        }
    }
}

/// An encoder in a file, which may hold several.
#[derive(Debug)]
pub struct EncoderFile {
    file: TransformerFile,
    /// The architecture.
    pub config: EncoderConfig,
    /// Bytes of its weights as they are stored, those of its tables left out.
    pub stored_bytes: u64,
    /// The types that its weights are stored in, with their bytes, the most common first.
    pub stored_types: Vec<(Stored, u64)>,
    /// The file's tensors of each block.
    blocks: Vec<Vec<String>>,
    /// The file's tensor that projects the pooled state, and whether it is [into, out].
    projection: Option<(String, bool)>,
}

impl EncoderFile {
    /// Finds the text encoders in a file, by the tensors that tell their architectures.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is none that can be run; a tensor that an architecture is read
    /// from is missing.
    pub fn find_all(file: &Arc<Checkpoint>) -> Result<Vec<Self>> {
        let found = Self::find(file, |model| model != Model::ClipVision)?;
        if found.is_empty() {
            return Err(Error::Unknown { path: file.path().to_owned(), reason: refusal(file, "text encoder", TEXT) });
        }
        Ok(found)
    }

    /// Finds the encoder of pictures in a file.
    ///
    /// # Errors
    /// As [`Self::find_all`].
    pub fn find_vision(file: &Arc<Checkpoint>) -> Result<Self> {
        let found = Self::find(file, |model| model == Model::ClipVision)?;
        found.into_iter().next().ok_or_else(|| Error::Unknown {
            path: file.path().to_owned(),
            reason: refusal(file, "vision encoder", VISION),
        })
    }

    fn find(file: &Arc<Checkpoint>, is_wanted: impl Fn(Model) -> bool) -> Result<Vec<Self>> {
        let mut found: Vec<Self> = Vec::new();
        for Known(model, layout, mark, beside) in KNOWN.iter().filter(|known| is_wanted(known.0)) {
            let prefixes = file.names().filter_map(|name| name.strip_suffix(mark));
            let prefixes = prefixes.filter(|prefix| prefix.is_empty() || prefix.ends_with('.'));
            let mut prefixes: Vec<String> = prefixes.map(str::to_owned).collect();
            prefixes.sort();
            for prefix in prefixes {
                let is_known = found.iter().any(|known| known.file.prefix == prefix);
                if file.shape(&format!("{prefix}{beside}")).is_some() && !is_known {
                    found.push(Self::new(file.clone(), *model, *layout, prefix)?);
                }
            }
        }
        Ok(found)
    }

    fn new(checkpoint: Arc<Checkpoint>, model: Model, layout: Layout, prefix: String) -> Result<Self> {
        let rows = match model {
            Model::Clip | Model::ClipVision => clip::rows(layout),
            Model::T5 => t5::rows(layout).0,
        };
        let projection = Self::find_projection(&checkpoint, &prefix);
        let file = TransformerFile::new(checkpoint, layout, prefix, rows);
        let config = match model {
            Model::Clip => EncoderConfig::Clip(clip::Config::read(&file)?),
            Model::ClipVision => EncoderConfig::Clip(clip::Config::read_picture(&file)?),
            Model::T5 => EncoderConfig::T5(t5::Config::read(&file)?),
        };
        let mut needed = config.needed()?;
        let blocks = file.tensors_of_blocks(&needed, &[("blocks", config.blocks())]);
        needed.retain(|needed| !config.tables().contains(&needed.name.as_str()));
        Ok(Self {
            stored_bytes: file.stored_bytes(&needed),
            stored_types: file.stored_types(&needed),
            blocks,
            projection,
            file,
            config,
        })
    }

    fn find_projection(file: &Checkpoint, prefix: &str) -> Option<(String, bool)> {
        let outer = prefix.strip_suffix(TEXT_MODEL).unwrap_or(prefix);
        let linear = format!("{outer}text_projection.weight");
        let parameter = format!("{prefix}text_projection");
        match (file.shape(&linear), file.shape(&parameter)) {
            (Some(_), _) => Some((linear, false)),
            (None, Some(_)) => Some((parameter, true)),
            (None, None) => None,
        }
    }

    /// Checks that the weights are all there and can be loaded.
    ///
    /// # Errors
    /// A tensor is missing, misshapen, left over in a block, or of a type that can't be computed
    /// from.
    pub fn check(&self) -> Result<()> {
        let used = self.file.check_each(&self.config.needed()?)?;
        let start = self.block_start();
        let is_of_a_block = |name: &str| name.strip_prefix(start).is_some_and(|rest| rest.starts_with('.'));
        self.file.refuse_left_over("encoder", &used, is_of_a_block)?;
        let Some((name, _)) = &self.projection else { return Ok(()) };
        let width = self.config.hidden() as usize;
        let shape = self.file.file().matrix_shape(name).unwrap_or_default();
        if shape.len() != 2 || !shape.contains(&width) || shape.contains(&0) {
            let reason = format!("tensor {name} is {shape:?}: a side of {width} was expected");
            return Err(Error::Unknown { path: self.file.file().path().to_owned(), reason });
        }
        self.file.file().matrix(name)?;
        Ok(())
    }

    /// The beginning of the names of blocks behind the prefix.
    fn block_start(&self) -> &'static str {
        match (&self.config, self.file.layout) {
            (EncoderConfig::Clip(_), Layout::Original) => "transformer.resblocks",
            (EncoderConfig::Clip(_), _) => "encoder.layers",
            (EncoderConfig::T5(_), layout) => t5::rows(layout).1,
        }
    }

    /// The file and the names in it.
    pub fn file(&self) -> &TransformerFile {
        &self.file
    }

    /// The type that most of its bytes are stored in.
    pub fn stored(&self) -> Stored {
        self.stored_types.first().map_or(Stored::F32, |(stored, _)| *stored)
    }

    /// Bytes of memory that the network's weights are held in beside their file.
    ///
    /// # Errors
    /// Never: nothing is loaded.
    pub fn resident_bytes(&self, format: ComputeFormat, residency: Residency) -> Result<u64> {
        let width = format.convolution.elt_size_in_bytes() as u64;
        let mut needed = self.config.needed()?;
        needed.retain(|needed| !self.config.tables().contains(&needed.name.as_str()));
        let bytes = |needed: &Needed| {
            let count = needed.shapes[0].iter().product::<usize>() as u64;
            match (needed.shapes[0].len(), residency) {
                (2, Residency::Mapped | Residency::Streamed) => 0,
                (2, Residency::Packed) => self.file.stored_bytes(std::slice::from_ref(needed)),
                (2, Residency::Expanded) => count * width,
                _ => count * 4,
            }
        };
        Ok(needed.iter().map(bytes).sum())
    }

    /// The vectors of tokens of the vocabulary, [tokens, width] in f32: rows of a table that stays
    /// in its file.
    ///
    /// # Errors
    /// A number is beyond the vocabulary; the table can't be read.
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor> {
        self.file.rows_of("tokens.weight", tokens.iter().map(|token| *token as usize))
    }

    /// Adds the vectors of positions to a text's [N, tokens, width], of an encoder that has them.
    ///
    /// # Errors
    /// The text has more tokens than there are positions.
    pub fn add_positions(&self, embedded: &Tensor) -> Result<Tensor> {
        match self.config {
            EncoderConfig::Clip(_) => {
                let count = embedded.size().get(1).copied().unwrap_or_default().max(0) as usize;
                Ok(embedded.f_add(&self.file.rows_of("positions.weight", 0..count)?)?)
            }
            EncoderConfig::T5(_) => Ok(embedded.shallow_clone()),
        }
    }

    /// The tokens of pictures [N, 3, side, side], [N, tokens, width] with positions: a class, and
    /// then patch by patch.
    ///
    /// # Errors
    /// The encoder is one of text, or the pictures have other extents.
    pub fn embed_pictures(&self, pixels: &Tensor) -> Result<Tensor> {
        let EncoderConfig::Clip(clip::Config { picture: Some(picture), hidden, positions, .. }) = self.config else {
            let reason = "an encoder of text, and a picture is given".into();
            return Err(Error::Unknown { path: self.file.file().path().to_owned(), reason });
        };
        let patches = self.file.rows_of("patches.weight", 0..hidden as usize)?;
        let patches = patches.f_reshape([hidden, clip::CHANNELS, picture.patch, picture.patch])?;
        let tokens = pixels.f_conv2d(&patches, None::<&Tensor>, picture.patch, 0, 1, 1)?.f_flatten(2, -1)?;
        let class = self.file.values_of("class")?.f_reshape([1, 1, hidden])?;
        let class = class.f_expand([pixels.size()[0], 1, hidden], false)?;
        let tokens = Tensor::f_cat(&[class, tokens.f_transpose(1, 2)?], 1)?;
        Ok(tokens.f_add(&self.file.rows_of("positions.weight", 0..positions as usize)?)?)
    }

    /// True if pooled states can be projected.
    pub fn has_projection(&self) -> bool {
        self.projection.is_some()
    }

    /// Pooled states [N, width], projected, of an encoder that has a projection.
    ///
    /// # Errors
    /// The projection can't be read.
    pub fn project(&self, pooled: &Tensor) -> Result<Option<Tensor>> {
        let Some((name, is_transposed)) = &self.projection else { return Ok(None) };
        let packed = self.file.file().matrix(name)?;
        let weight = packed.expand(0..packed.shape()[0], pooled.f_kind()?)?.f_to_device(pooled.device())?;
        let weight = if *is_transposed { weight } else { weight.f_transpose(0, 1)? };
        Ok(Some(pooled.f_matmul(&weight)?))
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
    ) -> Result<LoadedEncoder> {
        let ops = Torch::new(format, device, Some(self.config.head_width()));
        let source = self.file.on((format, device, residency), self.stored_bytes, &self.blocks, step);
        let network = EncoderNetwork::build(&self.config, &TokenScope::new(&source, &ops))?;
        Ok(LoadedEncoder { ops, network })
    }

    /// The states of `samples` texts of `tokens` tokens each on a meter, which counts what they
    /// take.
    ///
    /// # Errors
    /// The architecture's widths don't go together.
    pub fn meter(
        &self,
        meter: &Meter,
        [samples, tokens]: [i64; 2],
        left_out: usize,
    ) -> Result<EncoderStates<MeterTensor>> {
        let network = EncoderNetwork::build(&self.config, &TokenScope::new(&self.file, meter))?;
        let embedded = meter.unset(&[samples, tokens, self.config.hidden()], tch::Kind::Float)?;
        network.forward(meter, embedded, left_out)
    }
}

/// The encoders that can be run.
const TEXT: &str = "CLIP's, OpenCLIP's, T5's and UMT5's can be run";
const VISION: &str = "CLIP's can be run";

/// The reason why a file holds no such encoder.
fn refusal(file: &Checkpoint, wanted: &str, known: &str) -> String {
    let parts = Part::of(file);
    if let Some(reason) = file.refusal() {
        return reason;
    }
    if !parts.is_empty() {
        return format!("{}, not a {wanted} that can be run: {known}", Part::list_names(&parts));
    }
    match Identity::of(file).kind {
        Kind::KlAutoencoder | Kind::VideoAutoencoder | Kind::TinyAutoencoder => {
            format!("a VAE, not a {wanted}: it comes after --vae")
        }
        Kind::Latent => format!("a latent, not a {wanted}"),
        Kind::Pixels => format!("raw frames, not a {wanted}"),
        Kind::Conditioning => "conditioning, which text encoders have made already: sample takes it".into(),
        Kind::Transformer | Kind::Other => {
            let first = file.names().next();
            let first =
                first.map_or_else(|| "it holds no tensors".into(), |name| format!("its first tensor is {name}"));
            format!("no {wanted} in it ({first}): {known}")
        }
    }
}

/// The states of a text's tokens, [N, tokens, width] in f32.
#[derive(Debug)]
pub struct EncoderStates<T> {
    /// The states of an encoder of CLIP's kind before the last blocks that were left out, without a
    /// norm.
    pub inner: Option<T>,
    /// After the last block and its norm.
    pub last: T,
}

/// A text encoder with its weights.
#[derive(Debug)]
enum EncoderNetwork<O: TokenOps> {
    Clip(clip::Network<O>),
    T5(t5::Network<O>),
}

impl<O: TokenOps> EncoderNetwork<O> {
    fn build(config: &EncoderConfig, scope: &TokenScope<'_, O>) -> Result<Self> {
        Ok(match config {
            EncoderConfig::Clip(config) => EncoderNetwork::Clip(clip::Network::build(config, scope)?),
            EncoderConfig::T5(config) => EncoderNetwork::T5(t5::Network::build(config, scope)?),
        })
    }

    fn forward(&self, ops: &O, embedded: O::Tensor, left_out: usize) -> Result<EncoderStates<O::Tensor>> {
        match self {
            EncoderNetwork::Clip(network) => {
                let clip::States { inner, last } = network.forward(ops, embedded, left_out)?;
                Ok(EncoderStates { inner: Some(inner), last })
            }
            EncoderNetwork::T5(network) => Ok(EncoderStates { inner: None, last: network.forward(ops, embedded)? }),
        }
    }
}

/// A text encoder on a device.
#[derive(Debug)]
pub struct LoadedEncoder {
    ops: Torch,
    network: EncoderNetwork<Torch>,
}

impl LoadedEncoder {
    /// The states of embedded texts [N, tokens, width], with positions. `left_out` blocks of an
    /// encoder of CLIP's kind come after its inner states.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included.
    pub fn states(&self, embedded: &Tensor, left_out: usize) -> Result<EncoderStates<Tensor>> {
        // The network writes over its input.
        let own = self.ops.unset(&embedded.size(), tch::Kind::Float)?;
        self.ops.copy_onto(&own, embedded)?;
        self.network.forward(&self.ops, own, left_out)
    }
}
