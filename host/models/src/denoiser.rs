//! Denoisers of every kind that can be run: a file's contents, and the network with its weights.
//!
//! A denoiser is a folder of this crate, a line of the list below, and for each layout a row in
//! parts.rs, whose name is that of the [`Sign`]'s part. The folder gives its `Config`, an
//! [`Architecture`]; its `Network` and `Context`; and the `SIGNS` of its files.

#[cfg(feature = "torch")]
mod loaded;

use tilewright_nn::TokenOps;
use tilewright_wording::Setting;

#[cfg(feature = "torch")]
pub use self::loaded::LoadedDenoiser;
#[cfg(all(test, feature = "torch"))]
use crate::own;
use crate::{
    BeforeBlock, Checkpoint, EncoderKind, Error, Identity, Lora, LoraFit, Result, flux,
    identify::first_tensor,
    network_file::{AnyConfig, NetworkConfig, NetworkFile, networks},
    parts::{Part, Role},
    published::Facts,
    transformer::{Layout, Row, TransformerFile},
    wan,
};

/// A sign of a denoiser in a file.
pub(crate) struct Sign {
    /// The name of its row in parts.rs, letter for letter.
    pub part: &'static str,
    /// The layout of its names.
    pub layout: Layout,
    /// A tensor that shows the prefix of its names.
    pub mark: &'static str,
    /// The end of the name of another tensor with that prefix, without which the sign is not this
    /// layout's.
    pub companion: Option<&'static str>,
}

impl Sign {
    /// The prefix of the denoiser's names, if the file has the sign.
    fn prefix(&self, file: &Checkpoint) -> Option<String> {
        let prefix = file.names().find_map(|name| {
            name.strip_suffix(self.mark).filter(|prefix| prefix.is_empty() || prefix.ends_with('.'))
        })?;
        let is_there = |end: &str| file.names().any(|name| name.starts_with(prefix) && name.ends_with(end));
        self.companion.is_none_or(is_there).then(|| prefix.to_owned())
    }
}

/// A denoiser's architecture: the facts that its folder gives.
pub trait Architecture: NetworkConfig {
    /// The published model that it is that of, in words.
    fn model(&self) -> String;

    /// The extents of the network, in words.
    fn shape(&self) -> String;

    /// The facts that running it takes.
    fn facts(&self) -> Facts;

    /// The kinds of its text encoders, in their order, with the widths of their states.
    fn text_encoders(&self) -> Vec<(EncoderKind, i64)>;
}

/// A row of the list: a denoiser's name, the signs of its files, the names of its weights, and the
/// reader of its architecture.
struct Listed {
    /// In words, with an apostrophe: "Flux.1's".
    name: &'static str,
    signs: &'static [Sign],
    rows: fn(Layout) -> &'static [Row],
    read: fn(&TransformerFile) -> Result<DenoiserConfig>,
}

/// Lists the denoisers that can be run, by their folders.
macro_rules! denoisers {
    ($($(#[$only:meta])* $Name:ident = $folder:ident),* $(,)?) => {
        const LIST: &[Listed] = &[$($(#[$only])* Listed {
            name: $folder::NAME,
            signs: $folder::SIGNS,
            rows: $folder::rows,
            read: |file| Ok(DenoiserConfig::$Name($folder::Config::read(file)?)),
        }),*];

        networks! {
            /// A denoiser's architecture.
            #[derive(PartialEq, Eq)]
            DenoiserConfig: Architecture,
            /// A denoiser's network.
            #[expect(missing_docs, reason = "the folders' own pages say what they are")]
            Network,
            $($(#[$only])* $Name = $folder),*
        }

        /// Tensors that follow from the inputs and the size alone.
        #[derive(Debug)]
        #[expect(missing_docs, reason = "the folders' own pages say what they are")]
        pub enum Context<T> {
            $($(#[$only])* $Name($folder::Context<T>)),*
        }

        impl<O: TokenOps> Network<O> {
            /// Embeds the inputs, for latents of frames, height and width in their own pixels.
            ///
            /// # Errors
            /// Tensors have other extents than the network's; libtorch's failures.
            pub fn prepare(
                &self,
                ops: &O,
                inputs: &Inputs<'_, O::Tensor>,
                size: [i64; 3],
            ) -> Result<Context<O::Tensor>> {
                Ok(match self {
                    $($(#[$only])* Network::$Name(network) => Context::$Name(network.prepare(ops, inputs, size)?)),*
                })
            }

            /// The velocity of latents in the model's own space, in f32: [N, C, h, w] of pictures,
            /// [N, C, T, h, w] of clips. `sigmas` are one for all, or for clips one for each frame.
            /// `before_block` is called before each block with the image's tokens, and after the
            /// last one.
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
                    $($(#[$only])* (Network::$Name(network), Context::$Name(context)) => {
                        network.forward(ops, latents, sigmas, context, before_block)
                    })*
                    #[allow(unreachable_patterns, reason = "a list of one has no other")]
                    _ => Err(tilewright_nn::Error::Shapes {
                        operation: "a transformer",
                        shapes: "another transformer's conditioning".into(),
                    }
                    .into()),
                }
            }
        }
    };
}

denoisers! {
    Flux = flux,
    Wan = wan,
    #[cfg(all(test, feature = "torch"))]
    Own = own,
}

/// A denoiser in a file.
pub type DenoiserFile = NetworkFile<DenoiserConfig>;

impl NetworkFile<DenoiserConfig> {
    /// Finds the denoiser in a file, and checks that its weights are all there and can be loaded.
    ///
    /// # Errors
    /// As [`Self::find`] and [`Self::check`].
    pub fn open(file: Checkpoint) -> Result<Self> {
        let found = Self::find(file)?;
        found.check()?;
        Ok(found)
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
        let Some(part) = parts.iter().find(|part| part.role == Role::Denoiser) else {
            return Err(unknown(refusal(&file, &parts)));
        };
        let signs = LIST.iter().flat_map(|listed| listed.signs.iter().map(move |sign| (listed, sign)));
        let mut signs = signs.filter(|(_, sign)| sign.part == part.name).peekable();
        let Some((_, Sign { mark, .. })) = signs.peek() else {
            return Err(unknown(refusal(&file, &parts)));
        };
        let missing = format!("a transformer without its tensor {mark}");
        let found = signs.find_map(|(listed, sign)| Some((listed, sign.layout, sign.prefix(&file)?)));
        let Some((listed, layout, prefix)) = found else { return Err(unknown(missing)) };
        let file = TransformerFile::new(file, layout, prefix, listed.rows);
        let config = (listed.read)(&file)?;
        Self::new(file, config)
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
        self.file.add(lora, &self.config.needed()?)
    }
}

/// The makers' names of the denoisers that can be run, as in "Flux.1's and WAN's".
fn names() -> String {
    let names: Vec<&str> = LIST.iter().map(|listed| listed.name).collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The reason why a file can't be sampled with.
fn refusal(file: &Checkpoint, parts: &[Part]) -> String {
    let identity = Identity::of(file);
    if !parts.is_empty() {
        return format!("{}, not a transformer that can be run: {} can", Part::list_names(parts), names());
    }
    match identity.kind {
        crate::Kind::KlAutoencoder | crate::Kind::VideoAutoencoder | crate::Kind::TinyAutoencoder => {
            "a VAE, not a transformer: it decodes what a transformer makes".into()
        }
        crate::Kind::Latent => "a latent, not a transformer".into(),
        crate::Kind::Pixels => "raw frames, not a transformer".into(),
        crate::Kind::Conditioning => format!("conditioning, not a transformer: give it as {}", Setting::Conditioning),
        crate::Kind::Transformer | crate::Kind::Other => {
            format!("no transformer in it ({}): {} can be run", first_tensor(file), names())
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
