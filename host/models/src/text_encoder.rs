//! Encoders of every kind that can be run, of text and of pictures: those of a file, and the
//! network with its weights.
//!
//! An encoder is a folder of this crate and a line of the list below. The folder gives its
//! `Config`, an [`EncoderArchitecture`]; its `Network`; and the `SIGNS` and `PUBLISHED` encoders of
//! its kind.

#[cfg(feature = "torch")]
mod loaded;

use std::sync::Arc;
use tilewright_wording::Setting;

use serde::Serialize;
use tilewright_nn::{Meter, MeterTensor, TokenOps, TokenScope};
use tilewright_plan::Dtype;

#[cfg(feature = "torch")]
pub use self::loaded::LoadedEncoder;
use crate::{
    Checkpoint, Error, Identity, Kind, Part, Result, clip,
    identify::first_tensor,
    network_file::{AnyConfig, NetworkConfig, NetworkFile, networks},
    t5,
    transformer::{Layout, Row, TransformerFile},
};

/// A sign of an encoder in a file: the end of a tensor's name, before which its prefix stands, and
/// another tensor with the same prefix.
pub(crate) struct Sign {
    /// True of an encoder of pictures.
    pub is_vision: bool,
    /// The layout of its names.
    pub layout: Layout,
    /// The end of the name.
    pub mark: &'static str,
    /// The other tensor's name without the prefix.
    pub companion: &'static str,
}

/// The part of a prefix that stands before the blocks of a CLIP encoder in transformers' names, and
/// not before its projection.
const TEXT_MODEL: &str = "text_model.";

tilewright_plan::names! {
    /// The kind of an encoder: what reads its text, and what it hands on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum EncoderKind {
        /// OpenAI's CLIP.
        Clip = "CLIP",
        /// OpenCLIP.
        OpenClip = "OpenCLIP",
        /// T5.
        T5 = "T5",
        /// UMT5.
        Umt5 = "UMT5",
    }
}

impl EncoderKind {
    /// The file in which its published encoder of text is found, if it has one of its own.
    pub fn file(self) -> Option<&'static str> {
        published().find(|known| known.kind == self && !known.is_vision).and_then(|known| known.file)
    }
}

/// A published encoder.
#[derive(Clone, Copy, Debug)]
pub struct PublishedEncoder {
    /// The kind.
    pub kind: EncoderKind,
    /// True of an encoder of pictures.
    pub is_vision: bool,
    /// The width of tokens.
    pub width: i64,
    /// Blocks.
    pub blocks: usize,
    /// The name by which policies know it.
    pub id: &'static str,
    /// The name in words.
    pub name: &'static str,
    /// The file in which ComfyUI's users have it, if it has one of its own.
    pub file: Option<&'static str>,
}

impl PublishedEncoder {
    /// The published encoder of a kind and width, if there is one.
    pub fn of_width(kind: EncoderKind, width: i64) -> Option<&'static Self> {
        published().find(|known| (known.kind, known.is_vision, known.width) == (kind, false, width))
    }

    /// The published encoder of pictures of a width, if there is one.
    pub fn of_vision(width: i64) -> Option<&'static Self> {
        published().find(|known| known.is_vision && known.width == width)
    }
}

/// The published encoders of all folders.
fn published() -> impl Iterator<Item = &'static PublishedEncoder> {
    LIST.iter().flat_map(|listed| listed.published)
}

/// An encoder's architecture: the facts that its folder gives.
pub trait EncoderArchitecture: NetworkConfig {
    /// The kind of encoder.
    fn kind(&self) -> EncoderKind;

    /// The input, if it encodes pictures.
    fn picture(&self) -> Option<clip::Picture> {
        None
    }

    /// The width of tokens.
    fn hidden(&self) -> i64;

    /// The tokens of the vocabulary.
    fn vocabulary(&self) -> i64;

    /// The most tokens of a text, if there is such a number: their vectors are added to the
    /// tokens'.
    fn positions(&self) -> Option<i64> {
        None
    }

    /// The extents of the network, in words.
    fn shape(&self) -> String;

    /// The beginning of the names of blocks behind the prefix.
    fn block_start(&self, layout: Layout) -> &'static str;
}

/// A row of the list: the signs of an encoder's files, the names of its weights, the reader of its
/// architecture, and the encoders of its kind that are published.
struct Listed {
    signs: &'static [Sign],
    rows: fn(Layout) -> &'static [Row],
    read: fn(&TransformerFile, bool) -> Result<EncoderConfig>,
    published: &'static [PublishedEncoder],
}

/// Lists the encoders that can be run, by their folders.
macro_rules! encoders {
    ($($Name:ident = $folder:ident),* $(,)?) => {
        const LIST: &[Listed] = &[$(Listed {
            signs: $folder::SIGNS,
            rows: $folder::rows,
            read: |file, is_vision| Ok(EncoderConfig::$Name($folder::Config::read(file, is_vision)?)),
            published: $folder::PUBLISHED,
        }),*];

        networks! {
            /// An encoder's architecture.
            #[derive(PartialEq)]
            EncoderConfig: EncoderArchitecture,
            /// An encoder's network.
            EncoderNetwork,
            $($Name = $folder),*
        }

        impl<O: TokenOps> EncoderNetwork<O> {
            fn forward(&self, ops: &O, embedded: O::Tensor, left_out: usize) -> Result<EncoderStates<O::Tensor>> {
                match self {
                    $(Self::$Name(network) => network.forward(ops, embedded, left_out)),*
                }
            }
        }
    };
}

encoders! {
    Clip = clip,
    T5 = t5,
}

impl EncoderConfig {
    /// The published encoder that the architecture is that of, if it is one.
    fn published(&self) -> Option<&'static PublishedEncoder> {
        let own = (self.kind(), self.picture().is_some(), self.hidden(), self.blocks());
        published().find(|known| (known.kind, known.is_vision, known.width, known.blocks) == own)
    }

    /// The published encoder that the architecture is that of, or its kind and width, in words.
    pub fn model(&self) -> String {
        match (self.published(), self.picture()) {
            (Some(known), _) => known.name.to_owned(),
            (None, Some(_)) => format!("CLIP's vision of width {}", self.hidden()),
            (None, None) => format!("{} of width {}", self.kind().name(), self.hidden()),
        }
    }

    /// The same as policies know it.
    pub fn id(&self) -> String {
        match self.published() {
            Some(known) => known.id.to_owned(),
            None => {
                let vision = if self.picture().is_some() { "-vision" } else { "" };
                format!("{}{vision}-{}", self.kind().name().to_lowercase(), self.hidden())
            }
        }
    }
}

/// An encoder in a file, which may hold several.
pub type EncoderFile = NetworkFile<EncoderConfig>;

impl NetworkFile<EncoderConfig> {
    /// Finds the text encoders in a file, by the tensors that tell their architectures.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is none that can be run; a tensor that an architecture is read
    /// from is missing.
    pub fn find_all(file: &Arc<Checkpoint>) -> Result<Vec<Self>> {
        let found = Self::find_of(file, false)?;
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
        let found = Self::find_of(file, true)?;
        found.into_iter().next().ok_or_else(|| Error::Unknown {
            path: file.path().to_owned(),
            reason: refusal(file, "vision encoder", VISION),
        })
    }

    fn find_of(file: &Arc<Checkpoint>, is_vision: bool) -> Result<Vec<Self>> {
        let mut found: Vec<Self> = Vec::new();
        let signs = LIST.iter().flat_map(|listed| listed.signs.iter().map(move |sign| (listed, sign)));
        for (listed, Sign { layout, mark, companion, .. }) in signs.filter(|(_, sign)| sign.is_vision == is_vision) {
            let prefixes = file.names().filter_map(|name| name.strip_suffix(mark));
            let prefixes = prefixes.filter(|prefix| prefix.is_empty() || prefix.ends_with('.'));
            let mut prefixes: Vec<String> = prefixes.map(str::to_owned).collect();
            prefixes.sort();
            for prefix in prefixes {
                let is_known = found.iter().any(|known| known.file.prefix == prefix);
                if file.shape(&format!("{prefix}{companion}")).is_some() && !is_known {
                    let named = TransformerFile::new(file.clone(), *layout, prefix, listed.rows);
                    let config = (listed.read)(&named, is_vision)?;
                    found.push(Self::new(named, config)?);
                }
            }
        }
        Ok(found)
    }

    /// The file's tensor that projects the pooled state, and whether it is [into, out].
    fn projection(&self) -> Option<(String, bool)> {
        let (file, prefix) = (self.file.file(), &self.file.prefix);
        let outer = prefix.strip_suffix(TEXT_MODEL).unwrap_or(prefix);
        let (linear, parameter) = (format!("{outer}text_projection.weight"), format!("{prefix}text_projection"));
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
        let start = self.config.block_start(self.file.layout);
        let is_of_a_block = |name: &str| name.strip_prefix(start).is_some_and(|rest| rest.starts_with('.'));
        self.file.refuse_left_over("encoder", &used, is_of_a_block)?;
        let Some((name, _)) = &self.projection() else { return Ok(()) };
        let width = self.config.hidden() as usize;
        let shape = self.file.file().matrix_shape(name).unwrap_or_default();
        if shape.len() != 2 || !shape.contains(&width) || shape.contains(&0) {
            let reason = format!("tensor {name} is {shape:?}: a side of {width} was expected");
            return Err(Error::Unknown { path: self.file.file().path().to_owned(), reason });
        }
        self.file.file().matrix(name)?;
        Ok(())
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
        let network = self.config.build(&TokenScope::new(&self.file, meter))?;
        let embedded = meter.unset(&[samples, tokens, self.config.hidden()], Dtype::F32)?;
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
            format!("a VAE, not a {wanted}: give it as {}", Setting::Vae)
        }
        Kind::Latent => format!("a latent, not a {wanted}"),
        Kind::Pixels => format!("raw frames, not a {wanted}"),
        Kind::Conditioning => "conditioning, which text encoders have made already: sample takes it".into(),
        Kind::Transformer | Kind::Other => format!("no {wanted} in it ({}): {known}", first_tensor(file)),
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
