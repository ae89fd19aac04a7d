//! A file's tensors by the names that the network knows them by.

#[cfg(feature = "torch")]
mod loading;

use std::collections::BTreeMap;

use tilewright_checkpoint::{Error as FileError, Quantization, Shape};
use tilewright_nn::Needed;
use tilewright_plan::{Dtype, Model};

#[cfg(feature = "torch")]
pub use self::loading::Destination;
#[cfg(feature = "torch")]
pub(crate) use self::loading::LoadProgress;
use crate::{Checkpoint, Error, Family, Identity, Kind, Result, inspection::most_common, names::Names};

/// The most channels that a layer may have: past this a file is hostile rather than large.
const MOST_CHANNELS: usize = 1 << 13;

/// Checks the channels of layers.
///
/// # Errors
/// The reason why there can't be such a layer.
pub(crate) fn check_channels(widths: impl IntoIterator<Item = usize>) -> std::result::Result<(), String> {
    match widths.into_iter().find(|width| *width == 0 || *width > MOST_CHANNELS) {
        Some(width) => Err(format!("a layer of {width} channels is nonsense")),
        None => Ok(()),
    }
}

/// A half of an autoencoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Latents to pictures.
    Decoder,
    /// Pictures to latents.
    Encoder,
}

impl Half {
    /// The half's name in errors.
    fn name(self) -> &'static str {
        match self {
            Half::Decoder => "decoder",
            Half::Encoder => "encoder",
        }
    }

    /// The beginnings of diffusers' names of its tensors.
    fn starts(self) -> [&'static str; 2] {
        match self {
            Half::Decoder => ["decoder.", "post_quant_conv."],
            Half::Encoder => ["encoder.", "quant_conv."],
        }
    }

    /// The file's names of all tensors in this half; none if the file holds no autoencoder.
    pub fn names(self, file: &Checkpoint, identity: &Identity) -> Vec<String> {
        let known = Known::of(file, identity, identity.kind);
        known.map(|known| known.part(self).map(str::to_owned).collect()).unwrap_or_default()
    }

    /// The description of this half that policies are given: `scales` are pixels per latent pixel,
    /// and frames per latent frame.
    pub(crate) fn model(self, file: &Checkpoint, identity: &Identity, family: Family, scales: [u32; 2]) -> Model {
        let names = self.names(file, identity);
        Model {
            family: family.name().to_owned(),
            stored: most_common(file, &names).unwrap_or(Dtype::F32),
            quantized: false,
            parameter_bytes: names.iter().filter_map(|name| file.bytes(name)).map(|bytes| bytes.len() as u64).sum(),
            spatial_scale: scales[0],
            temporal_scale: scales[1],
        }
    }
}

/// A file's tensors by the names that its layout's rules give them.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    pub file: &'a Checkpoint,
    pub rules: Names,
    prefix: &'a str,
    /// diffusers' name to the file's.
    names: BTreeMap<String, &'a str>,
}

impl<'a> Known<'a> {
    /// The tensors of a file that holds an autoencoder of this kind.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it holds none.
    pub fn of(file: &'a Checkpoint, identity: &'a Identity, kind: Kind) -> Result<Self> {
        let Some(naming) = identity.naming.filter(|_| identity.kind == kind) else {
            let reason = match (kind, identity.kind) {
                (Kind::KlAutoencoder, Kind::VideoAutoencoder) => {
                    format!("a {} video autoencoder, where one of pictures is expected", identity.family)
                }
                (Kind::KlAutoencoder, _) => "no KL autoencoder".into(),
                _ => "no video autoencoder".into(),
            };
            return Err(Error::Unknown { path: file.path().to_owned(), reason });
        };
        let prefix = identity.prefix.as_str();
        let within = file.names().filter_map(|name| Some((name, name.strip_prefix(prefix)?)));
        let rules = Names::of(naming, within.clone().map(|(_, rest)| rest));
        let names = within.filter_map(|(name, rest)| Some((rules.canonical(rest)?, name))).collect();
        Ok(Self { file, rules, prefix, names })
    }

    /// As [`Self::of`], if the file has tensors of an encoder.
    ///
    /// # Errors
    /// As [`Self::of`], and [`Error::Unknown`] if it has none.
    pub fn of_encoder(file: &'a Checkpoint, identity: &'a Identity, kind: Kind) -> Result<Self> {
        let known = Self::of(file, identity, kind)?;
        if known.has("encoder") {
            return Ok(known);
        }
        let reason = "no encoder in it: only the decoder's part is there; give the whole VAE".into();
        Err(Error::Unknown { path: file.path().to_owned(), reason })
    }

    /// Some tensor's name starts with these segments.
    pub fn has(&self, start: &str) -> bool {
        let first = self.names.range(format!("{start}.")..).next();
        first.is_some_and(|(name, _)| name.strip_prefix(start).is_some_and(|rest| rest.starts_with('.')))
    }

    /// The file's names of the tensors in a half; those that the network has no place for are among
    /// them.
    fn part(&self, half: Half) -> impl Iterator<Item = &'a str> {
        let starts = half.starts().map(|start| {
            let name = self.rules.original(&format!("{start}weight"));
            name.map_or(start.to_owned(), |name| name.trim_end_matches("weight").to_owned())
        });
        let within = move |name: &&str| {
            name.strip_prefix(self.prefix).is_some_and(|rest| starts.iter().any(|start| rest.starts_with(start)))
        };
        self.file.names().filter(within)
    }

    /// The count of numbers in a row, from 0, that stand between `start` and the rest of some name.
    pub fn count(&self, start: &str) -> usize {
        (0..).take_while(|number| self.has(&format!("{start}.{number}"))).count()
    }

    /// The extent that most of these tensors have along the given axis, so that one misshapen
    /// tensor is the one that is blamed.
    pub fn extent<N: AsRef<str>>(&self, candidates: impl IntoIterator<Item = (N, usize)>) -> Option<usize> {
        let mut votes: Vec<(usize, usize)> = Vec::new();
        for (name, axis) in candidates {
            let shape = self.names.get(name.as_ref()).and_then(|name| self.file.shape(name));
            let Some(extent) = shape.and_then(|shape| shape.get(axis)) else { continue };
            match votes.iter_mut().find(|(value, _)| value == extent) {
                Some((_, count)) => *count += 1,
                None => votes.push((*extent, 1)),
            }
        }
        let most = votes.iter().map(|(_, count)| *count).max()?;
        votes.into_iter().find(|(_, count)| *count == most).map(|(value, _)| value)
    }

    /// The file's name of a needed tensor and its shape there, or its fault.
    ///
    /// # Errors
    /// [`FileError::Missing`] and [`FileError::Shape`], with the file's own name.
    pub fn locate(&self, needed: &Needed) -> Result<(&'a str, &'a [usize])> {
        let Some(name) = self.names.get(&needed.name) else {
            return Err(self.missing(&needed.name, &needed.shapes[0]));
        };
        let found = self.file.shape(name).unwrap_or_default();
        if !needed.shapes.iter().any(|shape| shape == found) {
            return Err(FileError::Shape {
                path: self.file.path().to_owned(),
                name: (*name).to_owned(),
                found: Shape(found.to_vec()),
                expected: Shape(needed.shapes[0].clone()),
            }
            .into());
        }
        Ok((name, found))
    }

    /// Output channels of a residual layer, by most of its tensors. A first convolution that is
    /// missing is said to have as many as it has inputs, and a window of this shape.
    ///
    /// # Errors
    /// [`FileError::Missing`] if the file has none of its tensors.
    pub fn resnet_channels(&self, resnet: &str, into: usize, window: &[usize]) -> Result<usize> {
        let parts = ["conv1.weight", "conv1.bias", "norm2.weight", "norm2.gamma", "conv2.weight", "conv2.bias"];
        let channels = self.extent(parts.map(|part| (format!("{resnet}.{part}"), 0)));
        channels.ok_or_else(|| self.missing(&format!("{resnet}.conv1.weight"), &[&[into, into], window].concat()))
    }

    /// A tensor is not there: the error has the name that the file would give it.
    pub fn missing(&self, canonical: &str, expected: &[usize]) -> Error {
        let name = self.rules.original(canonical).unwrap_or_else(|| canonical.to_owned());
        FileError::Missing {
            path: self.file.path().to_owned(),
            name: format!("{}{name}", self.prefix),
            expected: Shape(expected.to_vec()),
        }
        .into()
    }
}

/// A half of an autoencoder in a file, beside the weights that its network needs.
#[derive(Debug)]
pub struct Weights<'a> {
    known: Known<'a>,
    half: Half,
    needed: Vec<Needed>,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(known: Known<'a>, half: Half, needed: Vec<Needed>) -> Self {
        Self { known, half, needed }
    }

    /// The file's names in this half that the network has no place for.
    pub fn left_over(&self) -> Vec<String> {
        let is_needed = |name: &String| self.needed.iter().any(|needed| needed.name == *name);
        let prefix = self.known.prefix.len();
        let is_known = |name: &str| self.known.rules.canonical(&name[prefix..]).is_some_and(|name| is_needed(&name));
        let is_left =
            |name: &&str| !is_known(name) && !Quantization::is_beside(name) && !self.known.file.is_empty(name);
        self.known.part(self.half).filter(is_left).map(str::to_owned).collect()
    }

    /// As [`crate::HalfConfig::check_weights`].
    ///
    /// # Errors
    /// As there.
    pub fn check(&self) -> Result<()> {
        Error::refuse_left_over(self.known.file.path(), self.half.name(), &self.left_over())?;
        for needed in &self.needed {
            let (name, _) = self.known.locate(needed)?;
            if !self.known.file.can_load(name) {
                return Err(Error::stored(self.known.file, name));
            }
        }
        Ok(())
    }

    /// Tensors that are needed and whose type can't be loaded.
    pub fn uncomputable(&self) -> Vec<String> {
        let names = self.needed.iter().filter_map(|needed| self.known.names.get(&needed.name));
        names.filter(|name| !self.known.file.can_load(name)).map(|name| (*name).to_owned()).collect()
    }

    /// Tensors that are missing or misshapen, a line each.
    pub fn problems(&self) -> Vec<String> {
        let faults = self.needed.iter().filter_map(|needed| self.known.locate(needed).err());
        faults.map(|error| error.to_string()).collect()
    }
}

/// A listener to a load, which is given the share that is done, from 0 to 1. An error from it ends
/// the load.
pub type LoadStep<'s> = &'s mut dyn FnMut(f64) -> Result<()>;
