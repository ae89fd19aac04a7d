//! Files of low-rank changes to a network's weights (LoRA): W + strength · alpha / rank · up ·
//! down, after Hu and others, "LoRA: Low-Rank Adaptation of Large Language Models" (2021).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tilewright_checkpoint::{Error as FileError, Shape, Stored};

use crate::{Checkpoint, Error, Result};

/// The part of a layer's change that a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Down,
    Up,
    Alpha,
    Weight,
    Bias,
}

/// The ends of tensors' names, by which trainers and converters call the parts of a change.
const ENDS: [(&str, Piece); 17] = [
    (".lora_A.weight", Piece::Down),
    (".lora_B.weight", Piece::Up),
    (".lora_A.default.weight", Piece::Down),
    (".lora_B.default.weight", Piece::Up),
    (".lora_A", Piece::Down),
    (".lora_B", Piece::Up),
    (".lora_down.weight", Piece::Down),
    (".lora_up.weight", Piece::Up),
    (".lora.down.weight", Piece::Down),
    (".lora.up.weight", Piece::Up),
    ("_lora.down.weight", Piece::Down),
    ("_lora.up.weight", Piece::Up),
    (".lora_linear_layer.down.weight", Piece::Down),
    (".lora_linear_layer.up.weight", Piece::Up),
    (".alpha", Piece::Alpha),
    (".diff", Piece::Weight),
    (".diff_b", Piece::Bias),
];

/// Parts of names that show another kind of change, and its name.
const REFUSED: [(&str, &str); 13] = [
    (".dora_scale", "DoRA (dora_scale)"),
    (".lora_magnitude_vector", "DoRA (lora_magnitude_vector)"),
    (".hada_w1_", "LoHa (hada_w1)"),
    (".lokr_w1", "LoKr (lokr_w1)"),
    (".lokr_w2", "LoKr (lokr_w2)"),
    (".lora_mid.", "a Tucker decomposition (lora_mid)"),
    (".oft_blocks", "OFT (oft_blocks)"),
    (".oft_diag", "OFT (oft_diag)"),
    (".boft_", "BOFT"),
    (".on_input", "IA3 (on_input)"),
    (".set_weight", "weights in place of the model's (set_weight)"),
    (".reshape_weight", "weights of another shape than the model's (reshape_weight)"),
    ("processor.qkv_lora", "XLabs' processors (qkv_lora)"),
];

/// The beginnings of names of a text encoder's layers.
const TEXT: [&str; 6] = ["lora_te", "text_encoder", "text_encoders.", "te1_", "te2_", "conditioner."];

/// The beginnings of a network's names, the longer before the shorter.
const PREFIXES: [&str; 11] = [
    "base_model.model.model.diffusion_model.",
    "base_model.model.transformer.",
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer.",
    "lora_unet__",
    "lora_unet_",
    "lora_transformer_",
    "lycoris_",
    "unet.",
];

/// The metadata in which peft's settings stand, as diffusers writes them.
const METADATA: &str = "lora_adapter_metadata";

/// peft's settings as far as they are of use here; names begin with the model's part.
#[derive(Debug, Default, Deserialize)]
struct Settings {
    #[serde(rename = "transformer.lora_alpha")]
    alpha: Option<f64>,
    #[serde(rename = "transformer.use_rslora")]
    by_root: Option<bool>,
    #[serde(rename = "transformer.alpha_pattern")]
    alphas: Option<BTreeMap<String, f64>>,
}

/// One layer's change, by the names of its tensors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    /// [rank, columns]
    pub down: Option<String>,
    /// [rows, rank]
    pub up: Option<String>,
    /// The factor over the rank.
    alpha: Option<String>,
    /// A change of the whole weight, added as it is.
    pub weight: Option<String>,
    /// A change of the bias.
    pub bias: Option<String>,
}

impl Layer {
    /// The names of its tensors.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        [&self.alpha, &self.down, &self.up, &self.weight, &self.bias].into_iter().flatten()
    }
}

/// A file of low-rank changes.
#[derive(Debug)]
pub struct Lora {
    file: Checkpoint,
    /// The factor of all changes.
    pub strength: f64,
    /// Layers by their names without a prefix.
    pub(crate) layers: BTreeMap<String, Layer>,
    /// Keys of text encoders.
    pub text_keys: usize,
    /// Keys that are no part of a change that is known.
    pub(crate) other_keys: Vec<String>,
    settings: Settings,
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
    /// Reads which layers a file changes.
    ///
    /// # Errors
    /// The file holds no such changes, or changes of another kind; a half of a change is missing.
    pub fn read(file: Checkpoint, strength: f64) -> Result<Self> {
        let unknown = |reason: String| Error::Unknown { path: file.path().to_owned(), reason };
        if let Some((name, kind)) = file.names().find_map(|name| Some((name, refused(name)?))) {
            return Err(unknown(format!("{name} is of {kind}, which is not supported: give a LoRA with up and down")));
        }
        let (mut layers, mut text_keys, mut other_keys) = (BTreeMap::<String, Layer>::new(), 0, Vec::new());
        for name in file.names() {
            if TEXT.iter().any(|start| name.starts_with(start)) {
                text_keys += 1;
                continue;
            }
            let Some((layer, piece)) = split(name) else {
                other_keys.push(name.to_owned());
                continue;
            };
            let plain = PREFIXES.iter().find_map(|prefix| layer.strip_prefix(prefix)).unwrap_or(layer);
            let layer = layers.entry(plain.to_owned()).or_default();
            let place = match piece {
                Piece::Down => &mut layer.down,
                Piece::Up => &mut layer.up,
                Piece::Alpha => &mut layer.alpha,
                Piece::Weight => &mut layer.weight,
                Piece::Bias => &mut layer.bias,
            };
            if let Some(other) = place {
                return Err(unknown(format!("{other} and {name} are the same part of one layer")));
            }
            *place = Some(name.to_owned());
        }
        if layers.is_empty() && text_keys == 0 {
            return Err(unknown("no LoRA: it has no tensor like lora_up.weight, lora_B.weight or diff".into()));
        }
        for layer in layers.values() {
            if let (Some(alone), None) | (None, Some(alone)) = (&layer.down, &layer.up) {
                return Err(unknown(format!("{alone} stands alone: a change has down and up (or A and B)")));
            }
        }
        let settings = match file.texts().get(METADATA) {
            None => Settings::default(),
            Some(text) => serde_json::from_str(text)
                .map_err(|error| unknown(format!("its metadata {METADATA} is no description of peft's ({error})")))?,
        };
        Ok(Self { strength, layers, text_keys, other_keys, settings, file })
    }

    /// The file.
    pub fn file(&self) -> &Checkpoint {
        &self.file
    }

    /// The smallest and the largest rank.
    pub fn ranks(&self) -> Option<[usize; 2]> {
        let downs = self.layers.values().filter_map(|layer| layer.down.as_ref());
        let ranks: Vec<usize> = downs.filter_map(|name| self.file.shape(name)?.first().copied()).collect();
        Some([*ranks.iter().min()?, *ranks.iter().max()?])
    }

    /// The number of layers that are changed, those of text encoders aside.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The factor of a layer's up · down: strength · alpha / rank. Without an alpha of its own, a
    /// layer has peft's, or else its rank.
    ///
    /// # Errors
    /// The alpha is no finite number, or the rank is 0.
    pub(crate) fn factor(&self, name: &str, layer: &Layer) -> Result<f64> {
        let Some(down) = &layer.down else { return Ok(self.strength) };
        let unknown = |reason: String| Error::Unknown { path: self.file.path().to_owned(), reason };
        let rank = self.file.matrix_shape(down).and_then(|shape| shape.first().copied()).unwrap_or(0) as f64;
        if rank < 1.0 {
            return Err(unknown(format!("{down} has a rank of 0")));
        }
        let (alpha, over) = match &layer.alpha {
            Some(alpha) => {
                let shape = self.file.shape(alpha).unwrap_or_default().to_vec();
                if shape.iter().product::<usize>() != 1 {
                    return Err(unknown(format!("{alpha} has shape {}, one value was expected", Shape(shape))));
                }
                let value = self.number(alpha, &shape)?;
                if !value.is_finite() {
                    return Err(unknown(format!("{alpha} is {value}: a finite number was expected")));
                }
                (value, rank)
            }
            None => {
                let settings = &self.settings;
                let own =
                    settings.alphas.iter().flatten().find(|(of, _)| name == *of || name.ends_with(&format!(".{of}")));
                let alpha = own.map(|(_, alpha)| *alpha).or(settings.alpha).unwrap_or(rank);
                (alpha, if settings.by_root == Some(true) { rank.sqrt() } else { rank })
            }
        };
        let factor = self.strength * alpha / over;
        factor.is_finite().then_some(factor).ok_or_else(|| unknown(format!("the factor of {name} is not finite")))
    }

    /// The value of a tensor that has one; some trainers store whole numbers or f64.
    fn number(&self, name: &str, shape: &[usize]) -> Result<f64> {
        let bytes = self.file.bytes(name).unwrap_or_default();
        let wide = bytes.first_chunk::<8>();
        match (self.file.find_stored(name), wide, bytes.first_chunk::<4>()) {
            (Some(Stored::F64), Some(bytes), _) => Ok(f64::from_le_bytes(*bytes)),
            (Some(Stored::I64), Some(bytes), _) => Ok(i64::from_le_bytes(*bytes) as f64),
            (Some(Stored::I32), _, Some(bytes)) => Ok(i32::from_le_bytes(*bytes).into()),
            _ => {
                let value = self.file.load(name, shape, Kind::Double, Device::Cpu)?;
                Ok(f64::try_from(&value.f_reshape([-1])?.f_get(0)?)?)
            }
        }
    }

    /// A tensor as a matrix: axes after the first are taken together. In f32, in host memory.
    ///
    /// # Errors
    /// It is stored in a type that can't be expanded.
    pub(crate) fn matrix(&self, name: &str) -> Result<Tensor> {
        let packed = self.file.matrix(name)?;
        Ok(packed.expand(0..packed.shape()[0], Kind::Float).map_err(FileError::from)?)
    }

    /// Rows and columns of a tensor as a matrix.
    pub(crate) fn shape(&self, name: &str) -> [usize; 2] {
        let shape = self.file.matrix_shape(name).unwrap_or_default();
        [shape.first().copied().unwrap_or(1), shape.iter().skip(1).product()]
    }
}

/// The kind of change that is not supported, if a name shows one.
fn refused(name: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(part, _)| name.contains(part)).map(|(_, kind)| *kind)
}

/// A tensor's layer, and the part of its change.
fn split(name: &str) -> Option<(&str, Piece)> {
    ENDS.iter().find_map(|(end, piece)| Some((name.strip_suffix(end)?, *piece)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_layer_and_part() {
        let cases = [
            (
                "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight",
                "lora_unet_double_blocks_0_img_attn_qkv",
                Piece::Down,
            ),
            ("transformer.x.to_q.lora_B.weight", "transformer.x.to_q", Piece::Up),
            ("blocks.0.ffn.0.diff_b", "blocks.0.ffn.0", Piece::Bias),
            ("blocks.0.ffn.0.diff", "blocks.0.ffn.0", Piece::Weight),
            ("a.alpha", "a", Piece::Alpha),
        ];
        for (name, layer, piece) in cases {
            assert_eq!(split(name), Some((layer, piece)));
        }
        assert_eq!(split("double_blocks.0.img_attn.qkv.weight"), None);
        assert_eq!(refused("a.dora_scale"), Some("DoRA (dora_scale)"));
        assert_eq!(refused("a.lora_A.weight"), None);
    }
}
