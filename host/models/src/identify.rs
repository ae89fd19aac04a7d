//! The identity of a file, by the names and shapes of its tensors and never by its own name.

use serde::Serialize;

use crate::{
    Checkpoint, Error, Result,
    names::Naming,
    parts::{Part, Role},
};

tilewright_plan::names! {
    /// A family of models that share an autoencoder's latent space.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Family {
        /// Stable Diffusion 1 and 2.
        Sd = "sd",
        /// Stable Diffusion XL.
        Sdxl = "sdxl",
        /// Stable Diffusion 3 and 3.5.
        Sd3 = "sd3",
        /// Flux.1, and the models that use its autoencoder.
        Flux = "flux",
        /// A KL autoencoder of no known family.
        Kl = "kl",
        /// WAN 2.1 and Qwen-Image.
        #[serde(rename = "wan-2.1")]
        Wan21 = "wan-2.1",
        /// WAN 2.2.
        #[serde(rename = "wan-2.2")]
        Wan22 = "wan-2.2",
    }
}

/// Beginnings of names beside the autoencoder in a whole checkpoint, and the family that they show.
const NEIGHBOURS: [(&str, Family); 5] = [
    ("conditioner.embedders.", Family::Sdxl),
    ("cond_stage_model.", Family::Sd),
    ("model.diffusion_model.joint_blocks.", Family::Sd3),
    ("model.diffusion_model.double_blocks.", Family::Flux),
    ("model.diffusion_model.label_emb.", Family::Sdxl),
];

tilewright_plan::from_name!(Family, "family", "one of ");

impl Family {
    /// The published scaling and shift of its latents, if there are such: a model's latent is
    /// (z − shift) · scaling of the autoencoder's. The constants are those of the published
    /// configurations (diffusers' `config.json` of each model).
    pub fn scaling(self) -> Option<(f64, f64)> {
        match self {
            Family::Sd => Some((0.18215, 0.0)),
            Family::Sdxl => Some((0.13025, 0.0)),
            Family::Sd3 => Some((1.5305, 0.0609)),
            Family::Flux => Some((0.3611, 0.1159)),
            Family::Kl | Family::Wan21 | Family::Wan22 => None,
        }
    }

    /// The family whose published scaling factor this is.
    pub(crate) fn with_scaling(factor: f64) -> Option<Self> {
        let is_own = |family: &Self| family.scaling().is_some_and(|(known, _)| (known - factor).abs() < 1e-6);
        Self::ALL.into_iter().find(is_own)
    }
}

tilewright_plan::names! {
    /// The layout of a file: the tensors' names and their nesting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum FileLayout {
        /// diffusers' names.
        Diffusers = "diffusers",
        /// The original names (LDM, BFL).
        Ldm = "ldm",
        /// The original names inside a whole checkpoint, under a prefix.
        Checkpoint = "checkpoint",
        /// WAN's original names.
        WanOriginal = "wan-original",
        /// One of the kinds that are recognised but not read.
        Other = "other",
    }
}

/// The kind of contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A KL autoencoder with a decoder that can be run.
    KlAutoencoder,
    /// A causal video autoencoder.
    VideoAutoencoder,
    /// A tiny autoencoder (TAESD, TAEHV).
    TinyAutoencoder,
    /// A latent.
    Latent,
    /// Raw frames, as `decode` writes them and `encode` reads them.
    Pixels,
    /// Conditioning: tensors that text encoders hand to a transformer.
    Conditioning,
    /// A transformer that latents are sampled with, or would be if it could be run.
    Transformer,
    /// Something else.
    Other,
}

/// The identity of a file's contents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Identity {
    /// The kind of contents.
    pub kind: Kind,
    /// The layout.
    pub layout: FileLayout,
    /// The prefix of every name of the autoencoder's tensors.
    pub prefix: String,
    /// The family, as far as names and shapes tell.
    pub family: Family,
    /// Other families with the same names and shapes.
    pub or_family: Option<Family>,
    #[serde(skip)]
    pub(crate) naming: Option<Naming>,
}

/// The name of a tensor that gives a latent away.
const LATENT: &str = "latent_tensor";

/// The name of a tensor that gives conditioning away.
const CONDITIONING: &str = "prompt_embeds";

/// The name and the channels of the tensor that raw frames are in.
const FRAMES: (&str, usize) = ("sample", 3);

/// The most tensors that a file of latents holds.
const MOST_LATENTS: usize = 8;

/// The beginnings of a KL autoencoder's names behind the prefix, and the naming that each shows.
const KL_PARTS: [(&str, Naming); 8] = [
    ("decoder.up_blocks.", Naming::Diffusers),
    ("decoder.mid_block.", Naming::Diffusers),
    ("decoder.up.", Naming::Ldm),
    ("decoder.mid.", Naming::Ldm),
    ("encoder.down_blocks.", Naming::Diffusers),
    ("encoder.mid_block.", Naming::Diffusers),
    ("encoder.down.", Naming::Ldm),
    ("encoder.mid.", Naming::Ldm),
];

/// The prefix and naming of a KL autoencoder's tensor in the part `decoder.` or `encoder.`.
fn kl(name: &str, part: &str) -> Option<(String, Naming)> {
    let at = name.find(part).filter(|at| *at == 0 || name.as_bytes()[at - 1] == b'.')?;
    let (prefix, rest) = name.split_at(at);
    KL_PARTS.iter().find(|(start, _)| rest.starts_with(start)).map(|(_, naming)| (prefix.to_owned(), *naming))
}

/// True if every tensor has a latent's axes, and a name of its own rather than a layer's.
fn is_latents(file: &Checkpoint) -> bool {
    let plain = |name: &str| !name.contains('.') && file.shape(name).is_some_and(|shape| matches!(shape.len(), 4 | 5));
    (1..=MOST_LATENTS).contains(&file.names().len()) && file.names().all(plain)
}

/// True if the only tensor is one of raw frames.
fn is_frames(file: &Checkpoint) -> bool {
    let (name, channels) = FRAMES;
    let shaped = |shape: &[usize]| matches!(shape.len(), 4 | 5) && shape[1] == channels;
    file.names().len() == 1 && file.shape(name).is_some_and(shaped)
}

/// The beginnings of names in WAN's original layout, behind the prefix; no other network has such.
const WAN_PARTS: [&str; 6] = [
    "decoder.middle.",
    "decoder.upsamples.",
    "decoder.head.",
    "encoder.middle.",
    "encoder.downsamples.",
    "encoder.head.",
];

/// The places of WAN's norms in diffusers' layout, whose parameter is called `gamma`.
const WAN_NORMS: [&str; 4] = ["decoder.mid_block.", "decoder.up_blocks.", "encoder.mid_block.", "encoder.down_blocks."];

/// The prefix and layout of a WAN autoencoder's tensor.
fn wan(name: &str) -> Option<(&str, FileLayout)> {
    let at = ["decoder.", "encoder."].iter().filter_map(|part| name.find(part)).min()?;
    if at > 0 && name.as_bytes()[at - 1] != b'.' {
        return None;
    }
    let (prefix, rest) = name.split_at(at);
    if WAN_PARTS.iter().any(|part| rest.starts_with(part)) {
        return Some((prefix, FileLayout::WanOriginal));
    }
    let norm = rest.ends_with(".gamma") && WAN_NORMS.iter().any(|part| rest.starts_with(part));
    norm.then_some((prefix, FileLayout::Diffusers))
}

impl Identity {
    /// The identity of a file. Never fails: a file of no known kind is [`Kind::Other`].
    pub fn of(file: &Checkpoint) -> Self {
        if let Some((prefix, layout)) = file.names().find_map(wan) {
            let rest = file.names().filter_map(|name| name.strip_prefix(prefix));
            let naming = Naming::of_wan(layout == FileLayout::WanOriginal, rest);
            return Self {
                kind: Kind::VideoAutoencoder,
                layout,
                prefix: prefix.to_owned(),
                family: if naming.is_wan22() { Family::Wan22 } else { Family::Wan21 },
                or_family: None,
                naming: Some(naming),
            };
        }
        let parts = Part::of(file);
        let other_autoencoder = parts.iter().find(|part| part.role == Role::Autoencoder);
        let mark = match other_autoencoder {
            Some(part) if part.name.contains("tiny") => Some(Kind::TinyAutoencoder),
            Some(_) => Some(Kind::Other),
            None => file.shape(LATENT).map(|_| Kind::Latent),
        };
        let other = Self {
            kind: mark.unwrap_or(match () {
                () if is_frames(file) => Kind::Pixels,
                () if is_latents(file) => Kind::Latent,
                () if file.shape(CONDITIONING).is_some() => Kind::Conditioning,
                () if parts.iter().any(|part| part.role == Role::Denoiser) => Kind::Transformer,
                () => Kind::Other,
            }),
            layout: FileLayout::Other,
            prefix: String::new(),
            family: Family::Kl,
            or_family: None,
            naming: None,
        };
        if mark.is_some() {
            return other;
        }
        // Any tensor of the decoder gives its prefix and naming away; `conv_in` alone may be the
        // one that is missing. If the encoder is alone, its tensors tell as much.
        let found = ["decoder.", "encoder."].into_iter().find_map(|part| file.names().find_map(|name| kl(name, part)));
        let Some((prefix, naming)) = found else {
            return other;
        };
        let layout = match naming {
            Naming::Diffusers => FileLayout::Diffusers,
            _ if prefix.is_empty() => FileLayout::Ldm,
            _ => FileLayout::Checkpoint,
        };
        let (family, or_family) = family(file, &prefix);
        Self { kind: Kind::KlAutoencoder, layout, prefix, family, or_family, naming: Some(naming) }
    }

    /// The same, or the reason why the file is no autoencoder whose decoder can be run.
    ///
    /// # Errors
    /// [`Error::Unknown`], which names the file's contents.
    pub fn of_decoder(file: &Checkpoint) -> Result<Self> {
        let identity = Self::of(file);
        let reason = match identity.kind {
            Kind::KlAutoencoder | Kind::VideoAutoencoder if identity.has_decoder(file) => return Ok(identity),
            Kind::KlAutoencoder | Kind::VideoAutoencoder => {
                "a VAE's encoder alone: the decoder is in another file, or in that of the whole VAE".into()
            }
            Kind::TinyAutoencoder => "a tiny autoencoder: only KL and WAN autoencoders can be decoded with".into(),
            Kind::Latent => "a latent, not a VAE: the latent comes first, the VAE after --vae".into(),
            Kind::Pixels => "raw frames, not a VAE: give the file of the VAE".into(),
            Kind::Conditioning => "conditioning, not a VAE: give the file of the VAE".into(),
            Kind::Transformer | Kind::Other if file.refusal().is_some() => file.refusal().unwrap_or_default(),
            Kind::Transformer | Kind::Other if !Part::of(file).is_empty() => format!(
                "{}, not a VAE that can be decoded with: give the file of a KL or WAN VAE, or a checkpoint that contains one",
                Part::list_names(&Part::of(file))
            ),
            Kind::Transformer | Kind::Other => format!(
                "no VAE's decoder in it ({}): give the file of the VAE or a checkpoint that contains one",
                first_tensor(file)
            ),
        };
        Err(Error::Unknown { path: file.path().to_owned(), reason })
    }

    /// Checks the family that the user gave; names and shapes that fit none may be of any family
    /// with the same kind of autoencoder.
    ///
    /// # Errors
    /// [`Error::Unknown`] if the file is certainly of another family.
    pub fn check_family(&self, file: &Checkpoint, said: Family) -> Result<()> {
        let fits = match self.family {
            Family::Kl => !matches!(said, Family::Wan21 | Family::Wan22),
            family => said == family || self.or_family == Some(said),
        };
        if fits {
            return Ok(());
        }
        let or = self.or_family.map_or_else(String::new, |other| format!(" or {other}"));
        let reason = format!(
            "is of the family {}{or}, as its tensors show, not of {said}: leave the family out, or give the file that you mean",
            self.family
        );
        Err(Error::Unknown { path: file.path().to_owned(), reason })
    }

    /// True if the file has tensors of the autoencoder's decoder.
    pub fn has_decoder(&self, file: &Checkpoint) -> bool {
        let start = format!("{}decoder.", self.prefix);
        file.names().any(|name| name.starts_with(&start))
    }
}

/// The first tensor of a file, in words: it shows what was given.
pub(crate) fn first_tensor(file: &Checkpoint) -> String {
    file.names().next().map_or("it holds no tensors".into(), |name| format!("its first tensor is {name}"))
}

/// The family by its neighbours in a whole checkpoint, or else by the latent's channels.
fn family(file: &Checkpoint, prefix: &str) -> (Family, Option<Family>) {
    let neighbour = NEIGHBOURS.iter().find(|(start, _)| file.names().any(|name| name.starts_with(start)));
    if let Some((_, family)) = neighbour.filter(|_| !prefix.is_empty()) {
        return (*family, None);
    }
    let of_decoder = file.shape(&format!("{prefix}decoder.conv_in.weight")).and_then(|shape| shape.get(1).copied());
    // The encoder gives a mean and a variance for each channel.
    let of_encoder = || Some(file.shape(&format!("{prefix}encoder.conv_out.weight"))?.first()? / 2);
    let channels = of_decoder.or_else(of_encoder);
    let quantized = file.shape(&format!("{prefix}post_quant_conv.weight")).is_some();
    match (channels, quantized) {
        (Some(4), _) => (Family::Sd, Some(Family::Sdxl)),
        (Some(16), false) => (Family::Flux, Some(Family::Sd3)),
        _ => (Family::Kl, None),
    }
}
