//! Scales beside quantized weights, in the ways in which ComfyUI's files note them: a JSON of each
//! layer, the file's metadata, or the names of older files.

use std::collections::BTreeMap;

use serde::Deserialize;
use tilewright_files::json_fault;
use tilewright_kernels::{Groups, Packed, Scales, Scaling, Stored};

use crate::{Checkpoint, Error, Result, error::Shape};

/// The key of the metadata that describes all layers.
const METADATA: &str = "_quantization_metadata";

/// The end of the name of a layer's own description: JSON in bytes.
const DESCRIPTION: &str = ".comfy_quant";

/// The most bytes of a layer's description.
const MOST_BYTES: usize = 1 << 12;

/// The end of the name of the tensor that marks a file of older scales.
const OLD_MARK: &str = "scaled_fp8";

/// Ends of names of tensors that stand beside a quantized weight and are no weights themselves.
const BESIDE: [&str; 7] =
    [".comfy_quant", ".weight_scale", ".weight_scale_2", ".input_scale", ".scale_weight", ".scale_input", OLD_MARK];

/// Ends of names that tell a quantization that can't be expanded, and its name; the first that is
/// there counts.
const REFUSED: [(&str, &str); 10] = [
    (".wscales", "SVDQuant (Nunchaku)"),
    (".smooth_factor", "SVDQuant (Nunchaku)"),
    (".qweight", "GPTQ or AWQ"),
    (".quant_state.bitsandbytes__nf4", "bitsandbytes' NF4"),
    (".quant_state.bitsandbytes__fp4", "bitsandbytes' FP4"),
    (".SCB", "bitsandbytes' INT8"),
    ("._data", "quanto"),
    ("._scale", "quanto"),
    (".pre_quant_scale", "a format whose inputs are scaled (pre_quant_scale)"),
    (".weight_codebook", "asym_w4a8_int8"),
];

/// The end of the name of nvfp4's factor for all, and the words for a file that has it without
/// saying in which order its other scales lie.
const BLOCK_FACTOR: &str = ".weight_scale_2";
const UNDESCRIBED: &str = "NVFP4 without ComfyUI's description of it (comfy_quant)";

/// The formats of ComfyUI that can be expanded: name, stored type, and the scales' kind.
const FORMATS: [(&str, Stored, ScaleKind); 5] = [
    ("float8_e4m3fn", Stored::F8E4m3, ScaleKind::Factor),
    ("float8_e5m2", Stored::F8E5m2, ScaleKind::Factor),
    ("int8_tensorwise", Stored::I8, ScaleKind::Factor),
    ("mxfp8", Stored::F8E4m3, ScaleKind::Powers),
    ("nvfp4", Stored::F4, ScaleKind::Blocks),
];

/// Values of a group: of mxfp8 and of nvfp4.
const POWER_GROUP: usize = 32;
const BLOCK_GROUP: usize = 16;

/// The scales of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScaleKind {
    /// One factor for all, or one for each row.
    Factor,
    /// Powers of two for groups of 32.
    Powers,
    /// E4M3 for groups of 16, and one factor for all.
    Blocks,
}

/// A layer's description.
#[derive(Clone, Debug, Deserialize)]
struct Description {
    format: Option<String>,
    #[serde(default)]
    convrot: bool,
    params: Option<Parameters>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Parameters {
    #[serde(default)]
    convrot: bool,
}

/// The layers that a file describes as quantized.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Quantization {
    layers: BTreeMap<String, Description>,
}

impl Quantization {
    /// Reads the descriptions of a file's layers.
    ///
    /// # Errors
    /// A description is no sound JSON, or the file is quantized in a way that can't be expanded.
    pub(crate) fn read(file: &Checkpoint) -> Result<Self> {
        let mut found = Self::default();
        if let Some(text) = file.texts().get(METADATA) {
            found = serde_json::from_str(text).map_err(|error| Error::Format {
                path: file.path().to_owned(),
                reason: format!(
                    "its metadata {METADATA} is no description of quantized layers ({})",
                    json_fault(&error)
                ),
            })?;
        }
        for name in file.names() {
            let Some(layer) = name.strip_suffix(DESCRIPTION) else { continue };
            let refused = |reason: String| Error::Quantized { path: file.path_of(name), name: name.to_owned(), reason };
            let bytes = file.bytes(name).filter(|bytes| bytes.len() <= MOST_BYTES).unwrap_or_default();
            let description = serde_json::from_slice(bytes)
                .map_err(|error| refused(format!("is no description of a quantized layer ({})", json_fault(&error))))?;
            found.layers.insert(layer.to_owned(), description);
        }
        Ok(found)
    }

    /// The description of a layer. The file's metadata may leave a prefix out.
    fn of(&self, layer: &str) -> Option<&Description> {
        self.layers.get(layer).or_else(|| {
            let mut rest = layer;
            while let Some((_, after)) = rest.split_once('.') {
                if let Some(found) = self.layers.get(after) {
                    return Some(found);
                }
                rest = after;
            }
            None
        })
    }

    /// True for tensors that describe quantized weights and are none themselves.
    pub fn is_beside(name: &str) -> bool {
        BESIDE.iter().any(|end| name.ends_with(end))
    }
}

impl Checkpoint {
    /// The way that the file is quantized, if it can't be expanded.
    pub fn refused_quantization(&self) -> Option<&'static str> {
        let is_undescribed =
            |name: &str| name.strip_suffix(BLOCK_FACTOR).is_some_and(|layer| self.quantization().of(layer).is_none());
        if self.names().any(is_undescribed) {
            return Some(UNDESCRIBED);
        }
        let mut rows = REFUSED.iter();
        rows.find(|(end, _)| self.names().any(|name| name.ends_with(end))).map(|(_, how)| *how)
    }

    /// The same in words: the fault, and what to do.
    pub fn refusal(&self) -> Option<String> {
        let how = self.refused_quantization()?;
        Some(format!("quantized as {how}, which is not supported: give a file of bf16, FP8 or GGUF"))
    }

    /// The shape of a matrix: that of its tensor, whose rows of 4-bit values stand in half as many
    /// bytes.
    pub fn matrix_shape(&self, name: &str) -> Option<Vec<usize>> {
        let mut shape = self.shape(name)?.to_vec();
        let is_narrow = self.find_stored(name) == Some(Stored::U8)
            && name.strip_suffix(".weight").and_then(|layer| self.quantization().of(layer)).is_some();
        if let (true, Some(last)) = (is_narrow, shape.last_mut()) {
            *last *= 2;
        }
        Some(shape)
    }

    /// The type that the values of a matrix are expanded from, and the scales beside it.
    pub fn stored_matrix(&self, name: &str) -> Option<(Stored, Scaling)> {
        let stored = self.find_stored(name)?;
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let by_shape = |name: &str| match self.shape(name).map(|shape| shape.iter().product::<usize>()) {
            None => Scaling::None,
            Some(1) => Scaling::One,
            Some(_) => Scaling::Several,
        };
        let Some(description) = self.quantization().of(layer) else {
            return Some((stored, self.undescribed_scale(layer).map_or(Scaling::None, |name| by_shape(&name))));
        };
        let row = FORMATS.iter().find(|row| Some(row.0) == description.format.as_deref());
        Some(match row {
            Some((_, stored, ScaleKind::Factor)) => (*stored, by_shape(&format!("{layer}.weight_scale"))),
            Some((_, stored, _)) => (*stored, Scaling::Several),
            None => (stored, Scaling::Several),
        })
    }

    /// A matrix as it stands in the file, with the scales beside it; axes after the first are taken
    /// together.
    ///
    /// # Errors
    /// There is no such tensor, it is quantized in a way that can't be expanded, or its scales are
    /// missing or unsound.
    pub fn matrix(&self, name: &str) -> Result<Packed> {
        let refused = |reason: String| Error::Quantized { path: self.path_of(name), name: name.to_owned(), reason };
        let (Some(shape), Some(stored)) = (self.matrix_shape(name), self.find_stored(name)) else {
            return Err(self.missing(name, &[]));
        };
        let [rows, columns] = [shape.first().copied().unwrap_or(1), shape.iter().skip(1).product()];
        if rows == 0 || columns == 0 {
            return Err(refused(format!("has shape {}, which is empty", Shape(shape))));
        }
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let (stored, scales) = match self.quantization().of(layer) {
            Some(description) => self.described(layer, description, stored, [rows, columns]).map_err(refused)?,
            None => (stored, self.undescribed(layer, stored, rows).map_err(refused)?),
        };
        if !Packed::expands(stored) {
            return Err(refused(format!(
                "is stored as {stored}, which can't be expanded: give a file of f32, f16, bf16, FP8, or GGUF's Q and IQ4 types"
            )));
        }
        let bytes = self.shared_bytes(name).ok_or_else(|| refused("lies outside of its file".into()))?;
        Packed::new(bytes, stored, [rows, columns], scales).map_err(|error| refused(error.to_string()))
    }

    /// A tensor that is no matrix as it stands in the file: its last axis is a row.
    ///
    /// # Errors
    /// There is no such tensor, or its type can't be expanded.
    pub fn packed_vector(&self, name: &str) -> Result<Packed> {
        let refused = |reason: String| Error::Quantized { path: self.path_of(name), name: name.to_owned(), reason };
        let (Some(shape), Some(stored)) = (self.shape(name), self.find_stored(name)) else {
            return Err(self.missing(name, &[]));
        };
        let columns = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().product::<usize>() / columns.max(1);
        let bytes = self.shared_bytes(name).ok_or_else(|| refused("lies outside of its file".into()))?;
        Packed::new(bytes, stored, [rows, columns], Scales::default()).map_err(|error| refused(error.to_string()))
    }

    /// The multiple that rows and columns of a matrix are padded to, if its format has one
    /// (comfy-kitchen 0.2.40, `MXFP8Layout` and `NVFP4Layout`).
    pub fn padding(&self, name: &str) -> Option<usize> {
        let layer = name.strip_suffix(".weight")?;
        match self.quantization().of(layer)?.format.as_deref()? {
            "mxfp8" => Some(POWER_GROUP),
            "nvfp4" => Some(BLOCK_GROUP),
            _ => None,
        }
    }

    fn described(
        &self,
        layer: &str,
        description: &Description,
        stored: Stored,
        [rows, columns]: [usize; 2],
    ) -> std::result::Result<(Stored, Scales), String> {
        let format = description.format.as_deref().ok_or("is quantized in no named format")?;
        if description.convrot || description.params.as_ref().is_some_and(|params| params.convrot) {
            return Err(format!(
                "is quantized as {format} with rotated inputs (convrot), which is not supported: give another file"
            ));
        }
        let row = FORMATS.iter().find(|(name, ..)| *name == format);
        let (_, expected, kind) = *row.ok_or_else(|| {
            let names: Vec<&str> = FORMATS.iter().map(|row| row.0).collect();
            format!("is quantized as {format}, which is not supported: {} are", names.join(", "))
        })?;
        let is_stored = stored == expected || kind == ScaleKind::Blocks && stored == Stored::U8;
        if !is_stored {
            return Err(format!("is described as {format} and stored as {stored}"));
        }
        let scale = format!("{layer}.weight_scale");
        let scales = match kind {
            ScaleKind::Factor => Scales { factors: self.factors(&scale, rows)?, groups: None },
            ScaleKind::Powers => {
                let codes = self.codes(&scale, [rows, columns], POWER_GROUP)?;
                if codes.contains(&u8::MAX) {
                    return Err(format!("has scales that are not finite, in {scale}"));
                }
                Scales { factors: Vec::new(), groups: Some(Groups { codes, values: POWER_GROUP, powers: true }) }
            }
            ScaleKind::Blocks => {
                let codes = self.codes(&scale, [rows, columns], BLOCK_GROUP)?;
                // E4M3's only values that are not finite.
                if codes.iter().any(|code| code & 0x7f == 0x7f) {
                    return Err(format!("has scales that are not finite, in {scale}"));
                }
                Scales {
                    factors: self.factors(&format!("{layer}{BLOCK_FACTOR}"), 1)?,
                    groups: Some(Groups { codes, values: BLOCK_GROUP, powers: false }),
                }
            }
        };
        Ok((expected, scales))
    }

    /// Scales by the names of older files, or of newer ones that describe nothing.
    fn undescribed(&self, layer: &str, stored: Stored, rows: usize) -> std::result::Result<Scales, String> {
        let Some(name) = &self.undescribed_scale(layer) else { return Ok(Scales::default()) };
        match stored {
            Stored::F8E4m3 | Stored::F8E5m2 | Stored::I8 => {
                Ok(Scales { factors: self.factors(name, rows)?, groups: None })
            }
            _ => Err(format!("has scales in {name} and is stored as {stored}, in no format that is described")),
        }
    }

    /// The name of the scale of a layer that nothing describes, if the file has it.
    fn undescribed_scale(&self, layer: &str) -> Option<String> {
        let names = [format!("{layer}.scale_weight"), format!("{layer}.weight_scale")];
        names.into_iter().find(|name| self.shape(name).is_some())
    }

    /// One factor, or one for each row.
    fn factors(&self, name: &str, rows: usize) -> std::result::Result<Vec<f32>, String> {
        let shape = self.shape(name).ok_or_else(|| format!("lacks its scale, {name}"))?.to_vec();
        let count: usize = shape.iter().product();
        let is_rows = matches!(shape[..], [of] | [of, 1] if of == rows);
        if count != 1 && !is_rows {
            return Err(format!("has scales of shape {shape:?} in {name}: one, or one for each row, were expected"));
        }
        let factors = self.values(name, &shape).map_err(|error| error.to_string())?;
        match factors.iter().all(|factor| factor.is_finite()) {
            true => Ok(factors),
            false => Err(format!("has scales that are not finite, in {name}")),
        }
    }

    /// Codes of groups in rows, from the tiles of 128 by 4 that cuBLAS has them in (`to_blocked` in
    /// comfy-kitchen 0.2.40, `float_utils.py`).
    fn codes(&self, name: &str, [rows, columns]: [usize; 2], group: usize) -> std::result::Result<Vec<u8>, String> {
        let shape = self.shape(name).ok_or_else(|| format!("lacks its scales, {name}"))?;
        let bytes = self.bytes(name).unwrap_or_default();
        if columns % group != 0 {
            return Err(format!("has rows of {columns} values: groups of {group} were expected"));
        }
        let across = columns / group;
        let (tall, wide) = (rows.next_multiple_of(128), across.next_multiple_of(4));
        if bytes.len() != tall * wide {
            return Err(format!("has scales of shape {shape:?} in {name}: [{tall}, {wide}] were expected"));
        }
        let place = |row: usize, group: usize| {
            let tile = row / 128 * (wide / 4) + group / 4;
            tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + group % 4
        };
        let places = (0..rows).flat_map(|row| (0..across).map(move |group| (row, group)));
        Ok(places.map(|(row, group)| bytes[place(row, group)]).collect())
    }
}
