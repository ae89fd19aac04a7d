//! Tensors of a capture beside those of another run.

use std::collections::BTreeMap;

use serde::Serialize;
use tch::{Device, Kind, Tensor};
use tilewright_capture::{Dtype, Tensor as Stored};
use tilewright_torch::{bytes_of, from_bytes, psnr};

use crate::Result;

/// The difference of a tensor from the captured one of its name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorDifference {
    /// The name.
    pub name: String,
    /// The shape then, and now; none if it is missing.
    pub captured_shape: Option<Vec<i64>>,
    /// The same of this run.
    pub shape: Option<Vec<i64>>,
    /// True if both have the same bits.
    pub is_same: bool,
    /// The largest difference of values; none if the shapes differ.
    pub largest: Option<f64>,
    /// The mean of all differences.
    pub mean: Option<f64>,
    /// The same as a ratio of the captured values' span to the noise in dB; none if there is no
    /// difference.
    pub psnr_db: Option<f64>,
    /// The largest of the captured values, whatever its sign.
    pub span: Option<f64>,
}

/// A captured tensor in host memory; none of a type that is not computed with.
pub(super) fn tensor(stored: &Stored) -> Result<Option<Tensor>> {
    let kind = match stored.dtype {
        Dtype::F32 => Kind::Float,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F16 => Kind::Half,
        Dtype::F64 => Kind::Double,
        Dtype::I64 => Kind::Int64,
        Dtype::U8 => Kind::Uint8,
        _ => return Ok(None),
    };
    let shape: Vec<i64> = stored.shape.iter().map(|&extent| extent as i64).collect();
    let tensor = from_bytes(&stored.bytes, &shape, kind, kind, Device::Cpu).map_err(tilewright_engine::Error::from)?;
    Ok(Some(tensor))
}

/// Tensors by name, of which those of a clip's frames are put together: other chunks are no
/// difference.
fn together(tensors: Vec<(String, Tensor)>) -> Result<BTreeMap<String, Tensor>> {
    let mut whole = BTreeMap::new();
    let mut clips: BTreeMap<String, BTreeMap<u32, Tensor>> = BTreeMap::new();
    for (name, tensor) in tensors {
        match name.split_once(".from_frame.").and_then(|(sample, first)| Some((sample, first.parse().ok()?))) {
            Some((sample, first)) => {
                clips.entry(format!("frames of sample {sample}")).or_default().insert(first, tensor);
            }
            None => drop(whole.insert(name, tensor)),
        }
    }
    for (name, pieces) in clips {
        let pieces: Vec<Tensor> = pieces.into_values().collect();
        whole.insert(
            name,
            Tensor::f_cat(&pieces, 0).map_err(tilewright_torch::Error::from).map_err(tilewright_engine::Error::from)?,
        );
    }
    Ok(whole)
}

/// Compares outputs with the captured ones.
pub(super) fn compare(
    captured: BTreeMap<String, Stored>,
    outputs: Vec<(String, Tensor)>,
) -> Result<Vec<TensorDifference>> {
    let mut stored = Vec::new();
    for (name, of) in captured {
        stored.extend(tensor(&of)?.map(|tensor| (name, tensor)));
    }
    let (captured, found) = (together(stored)?, together(outputs)?);
    let names = captured.keys().chain(found.keys().filter(|name| !captured.contains_key(*name)));
    let mut differences = Vec::new();
    for name in names {
        differences.push(TensorDifference::between(name, captured.get(name), found.get(name))?);
    }
    Ok(differences)
}

impl TensorDifference {
    /// The difference of a tensor from a captured one.
    pub(super) fn between(name: &str, captured: Option<&Tensor>, found: Option<&Tensor>) -> Result<Self> {
        let shape = |tensor: Option<&Tensor>| tensor.map(Tensor::size);
        let mut difference = Self {
            name: name.to_owned(),
            captured_shape: shape(captured),
            shape: shape(found),
            is_same: false,
            largest: None,
            mean: None,
            psnr_db: None,
            span: None,
        };
        if let (Some(captured), Some(found)) = (captured, found)
            && captured.size() == found.size()
        {
            difference.measure(captured, found).map_err(tilewright_engine::Error::from)?;
        }
        Ok(difference)
    }

    fn measure(&mut self, captured: &Tensor, found: &Tensor) -> tilewright_torch::Result<()> {
        self.is_same = captured.kind() == found.kind() && bytes_of(captured)? == bytes_of(found)?;
        let [wide, other] = [captured, found].map(|tensor| tensor.f_to_kind(Kind::Double));
        let (wide, other) = (wide?, other?);
        if wide.numel() == 0 {
            return Ok(());
        }
        let apart = wide.f_sub(&other)?.f_abs()?;
        self.largest = Some(apart.f_max()?.f_double_value(&[])?);
        self.mean = Some(apart.f_mean(Kind::Double)?.f_double_value(&[])?);
        self.span = Some(wide.f_abs()?.f_max()?.f_double_value(&[])?);
        self.psnr_db = Some(psnr::over_span(&other, &wide)?).filter(|psnr| psnr.is_finite());
        Ok(())
    }

    /// The largest difference over the largest captured value; infinite of values that can't be
    /// compared.
    pub fn relative(&self) -> f64 {
        match (self.is_same, self.largest, self.span) {
            (true, ..) => 0.0,
            (false, Some(largest), Some(span)) if span > 0.0 && largest.is_finite() => largest / span,
            (false, Some(0.0), _) => 0.0,
            _ => f64::INFINITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_of_values_and_shapes() {
        let (one, other) = (Tensor::from_slice(&[1.0_f32, -4.0]), Tensor::from_slice(&[1.5_f32, -4.0]));
        let same = TensorDifference::between("output", Some(&one), Some(&one)).unwrap();
        assert!(same.is_same && same.relative() == 0.0 && same.psnr_db.is_none());
        let found = TensorDifference::between("output", Some(&one), Some(&other)).unwrap();
        assert_eq!((found.largest, found.mean, found.relative()), (Some(0.5), Some(0.25), 0.125));
        let missing = TensorDifference::between("output", Some(&one), None).unwrap();
        assert!(!missing.is_same && missing.relative().is_infinite());
        let nan = Tensor::from_slice(&[f32::NAN, 0.0]);
        assert!(TensorDifference::between("output", Some(&nan), Some(&nan)).unwrap().is_same);
        assert!(TensorDifference::between("output", Some(&one), Some(&nan)).unwrap().relative().is_infinite());
    }

    #[test]
    fn frames_are_compared_however_they_were_delivered() {
        let frames = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0]).reshape([4, 1]);
        let piece = |first: i64, count: i64| (format!("0.from_frame.{first}"), frames.narrow(0, first, count));
        let whole = together(vec![piece(0, 4)]).unwrap();
        let parts = together(vec![piece(3, 1), piece(0, 1), piece(1, 2)]).unwrap();
        assert_eq!(whole, parts);
    }
}
