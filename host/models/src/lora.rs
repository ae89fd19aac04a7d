//! Files of low-rank changes to a network's weights (LoRA): W + strength · alpha / rank · up ·
//! down, after Hu and others, "LoRA: Low-Rank Adaptation of Large Language Models" (2021).

mod folder;
mod names;
mod pattern;
mod settings;
#[cfg(feature = "torch")]
mod values;
mod written;

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;
use tilewright_checkpoint::{Shape, Stored};

use self::{
    names::{Owner, Piece, owner, refused, split},
    settings::Settings,
};
use crate::{Checkpoint, Error, Result};

/// One layer's change, by the names of its tensors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    /// [rank, columns]
    pub down: Option<String>,
    /// [rows, rank]
    pub up: Option<String>,
    /// The factor over the rank.
    alpha: Option<String>,
    /// [rows]: a change of the bias beside up · down, times the same factor.
    pub up_bias: Option<String>,
    /// A change of the whole weight, added as it is.
    pub weight: Option<String>,
    /// A change of the bias.
    pub bias: Option<String>,
    /// The factor of up · down at a strength of 1: alpha / rank.
    pub scale: f64,
}

impl Layer {
    /// The names of its tensors.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        [&self.alpha, &self.down, &self.up, &self.up_bias, &self.weight, &self.bias].into_iter().flatten()
    }
}

/// The changes to one network.
#[derive(Debug, Default)]
pub(crate) struct Half {
    /// Layers by their names without a prefix.
    pub layers: BTreeMap<String, Layer>,
    /// Keys that are no part of a change that is known.
    pub other_keys: Vec<String>,
}

impl Half {
    fn keys(&self) -> usize {
        self.layers.values().map(|layer| layer.keys().count()).sum::<usize>() + self.other_keys.len()
    }
}

/// A file of low-rank changes.
#[derive(Debug)]
pub struct Lora {
    file: Checkpoint,
    /// The settings beside the file, when they were read.
    beside: settings::State,
    /// The factor of all changes.
    pub strength: f64,
    /// The changes to the transformer, or to the first of two experts.
    pub(crate) changes: Half,
    /// The changes to the second of two experts, if the file distinguishes them.
    second: Option<Half>,
    /// Keys of text encoders.
    pub text_keys: usize,
    /// Notes on the factors of its changes.
    pub notes: Vec<String>,
}

/// The report on the keys of a file, its tensors, that have a place in a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoraFit {
    /// Keys that have a place.
    pub fitting: usize,
    /// Keys in all, those of text encoders aside.
    pub keys: usize,
    /// The first key without a place.
    pub first_without: Option<String>,
    /// Keys of text encoders, which are left out.
    pub text_keys: usize,
}

impl Lora {
    /// Opens a LoRA in a file, or in a folder as peft and diffusers save it.
    ///
    /// # Errors
    /// As [`Checkpoint::open`] and [`Self::read`]; the folder holds no LoRA, or several.
    pub fn open(path: &Path, strength: f64) -> Result<Self> {
        Self::read(Checkpoint::open(&Self::file_of(path)?)?, strength)
    }

    /// Reads which layers a file changes, and by what factors.
    ///
    /// # Errors
    /// The file holds no such changes, or changes of another kind; a half of a change is missing;
    /// what is written about its factors contradicts its tensors.
    pub fn read(file: Checkpoint, strength: f64) -> Result<Self> {
        let unknown = |reason: String| Error::Unknown { path: file.path().to_owned(), reason };
        let (mut halves, mut text_keys) = ([Half::default(), Half::default()], 0);
        for name in file.names() {
            let (layer, piece) = split(name).map_or((name, None), |(layer, piece)| (layer, Some(piece)));
            let (owner, plain) = owner(layer);
            let half = match owner {
                Owner::First => &mut halves[0],
                Owner::Second => &mut halves[1],
                Owner::Text => {
                    text_keys += 1;
                    continue;
                }
            };
            if let Some(kind) = refused(name) {
                return Err(unknown(format!(
                    "{name} is of {kind}, which is not supported: give a LoRA with up and down"
                )));
            }
            let Some(piece) = piece else {
                half.other_keys.push(name.to_owned());
                continue;
            };
            let layer = half.layers.entry(plain.to_owned()).or_default();
            let place = match piece {
                Piece::Down => &mut layer.down,
                Piece::Up => &mut layer.up,
                Piece::UpBias => &mut layer.up_bias,
                Piece::Alpha => &mut layer.alpha,
                Piece::Weight => &mut layer.weight,
                Piece::Bias => &mut layer.bias,
            };
            if let Some(other) = place {
                return Err(unknown(format!("{other} and {name} are the same part of one layer")));
            }
            *place = Some(name.to_owned());
        }
        if halves.iter().all(|half| half.layers.is_empty()) && text_keys == 0 {
            return Err(unknown("no LoRA: it has no tensor like lora_up.weight, lora_B.weight or diff".into()));
        }
        let beside = settings::State::of(file.path());
        let mut settings = Settings::read(&file).map_err(unknown)?;
        for (owner, half) in [Owner::First, Owner::Second].into_iter().zip(&mut halves) {
            for (plain, layer) in &mut half.layers {
                layer.scale = scale(&file, &mut settings, owner, plain, layer)?;
            }
        }
        let [changes, second] = halves;
        let second = (second.keys() > 0).then_some(second);
        Ok(Self { strength, changes, second, text_keys, notes: settings.into_notes(), file, beside })
    }

    /// The part of the file that is for one of two experts, by its number; all of it if the file
    /// doesn't tell them apart. None if nothing is for that expert.
    #[must_use]
    pub fn for_expert(mut self, expert: usize) -> Option<Self> {
        let Some(second) = self.second.take() else { return Some(self) };
        if expert > 0 {
            self.changes = second;
        }
        (self.changes.keys() > 0).then_some(self)
    }

    /// Keys of a second expert's layers.
    pub fn second_keys(&self) -> usize {
        self.second.as_ref().map_or(0, Half::keys)
    }

    /// The file.
    pub fn file(&self) -> &Checkpoint {
        &self.file
    }

    /// True if the file and the settings beside it are as they were, and are still in their places.
    pub fn is_current(&self) -> bool {
        self.file.is_current() && self.beside == settings::State::of(self.file.path())
    }

    /// Words that are others if the file, the settings beside it or the strength are.
    pub fn id(&self) -> String {
        format!("{:?} {:?} {}", self.file.id(), self.beside, self.strength)
    }

    /// All layers that are changed, those of text encoders aside.
    fn all_layers(&self) -> impl Iterator<Item = &Layer> {
        [Some(&self.changes), self.second.as_ref()].into_iter().flatten().flat_map(|half| half.layers.values())
    }

    /// The smallest and the largest rank.
    pub fn ranks(&self) -> Option<[usize; 2]> {
        let downs = self.all_layers().filter_map(|layer| layer.down.as_ref());
        let ranks: Vec<usize> = downs.filter_map(|name| self.file.shape(name)?.first().copied()).collect();
        Some([*ranks.iter().min()?, *ranks.iter().max()?])
    }

    /// The smallest and the largest factor of a layer's up · down at a strength of 1.
    pub fn scales(&self) -> Option<[f64; 2]> {
        let scales = || self.all_layers().filter(|layer| layer.down.is_some()).map(|layer| layer.scale);
        Some([scales().reduce(f64::min)?, scales().reduce(f64::max)?])
    }

    /// The factor that ComfyUI does not know, which reads that of a layer off its alpha alone: 1 if
    /// settings tell none, and none if no one number does for all layers, or biases go with them.
    pub fn unread_factor(&self) -> Option<f64> {
        let unread = |layer: &Layer| if layer.alpha.is_some() { 1.0 } else { layer.scale };
        let mut factors = self.all_layers().filter(|layer| layer.down.is_some()).map(unread);
        let first = factors.next().unwrap_or(1.0);
        let is_one = factors.all(|factor| factor == first);
        (is_one && self.all_layers().all(|layer| layer.up_bias.is_none())).then_some(first)
    }

    /// The number of layers that are changed, those of text encoders aside.
    pub fn layers(&self) -> usize {
        self.all_layers().count()
    }

    /// The factor of a layer's up · down.
    pub(crate) fn factor(&self, layer: &Layer) -> f64 {
        self.strength * layer.scale
    }

    /// Checks that a tensor can be read as a matrix.
    ///
    /// # Errors
    /// As [`Self::matrix`].
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        match self.file.find_stored(name) {
            Some(Stored::F64) => Ok(()),
            _ => Ok(self.file.matrix(name).map(drop)?),
        }
    }

    /// Rows and columns of a tensor as a matrix.
    pub(crate) fn shape(&self, name: &str) -> [usize; 2] {
        let shape = self.file.matrix_shape(name).unwrap_or_default();
        [shape.first().copied().unwrap_or(1), shape.iter().skip(1).product()]
    }
}

/// The factor of a layer's up · down at a strength of 1.
fn scale(file: &Checkpoint, settings: &mut Settings, owner: Owner, plain: &str, layer: &Layer) -> Result<f64> {
    let unknown = |reason: String| Error::Unknown { path: file.path().to_owned(), reason };
    let down = match (&layer.down, &layer.up) {
        (Some(down), Some(_)) => down,
        (Some(alone), None) | (None, Some(alone)) => {
            return Err(unknown(format!("{alone} stands alone: a change has down and up (or A and B)")));
        }
        (None, None) => match &layer.up_bias {
            Some(alone) => return Err(unknown(format!("{alone} stands alone: its factor is that of A and B"))),
            None => return Ok(1.0),
        },
    };
    let rank = file.matrix_shape(down).and_then(|shape| shape.first().copied()).unwrap_or(0) as f64;
    if rank < 1.0 {
        return Err(unknown(format!("{down} has a rank of 0")));
    }
    let alpha = match &layer.alpha {
        Some(name) => Some((name.as_str(), number(file, name)?)),
        None => None,
    };
    let (written, _) = split(down).unwrap_or((down, Piece::Down));
    let of = settings::Layer { written, plain, owner, down, rank, alpha };
    let scale = settings.scale(&of).map_err(unknown)?;
    scale.is_finite().then_some(scale).ok_or_else(|| unknown(format!("the factor of {plain} is not finite")))
}

/// The value of a tensor that has one; some trainers store whole numbers or f64.
fn number(file: &Checkpoint, name: &str) -> Result<f64> {
    let unknown = |reason: String| Error::Unknown { path: file.path().to_owned(), reason };
    let shape = file.shape(name).unwrap_or_default().to_vec();
    if shape.iter().product::<usize>() != 1 {
        return Err(unknown(format!("{name} has shape {}, one value was expected", Shape(shape))));
    }
    let bytes = file.bytes(name).unwrap_or_default();
    let value = match (file.find_stored(name), bytes.first_chunk::<8>(), bytes.first_chunk::<4>()) {
        (Some(Stored::F64), Some(bytes), _) => f64::from_le_bytes(*bytes),
        (Some(Stored::I64), Some(bytes), _) => i64::from_le_bytes(*bytes) as f64,
        (Some(Stored::I32), _, Some(bytes)) => i32::from_le_bytes(*bytes).into(),
        _ => {
            let values = file.values(name, &shape)?;
            values.first().copied().unwrap_or_default().into()
        }
    };
    value
        .is_finite()
        .then_some(value)
        .ok_or_else(|| unknown(format!("{name} is {value}: a finite number was expected")))
}
