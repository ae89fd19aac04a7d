//! Matrices that stay packed on a device. Their values are expanded by libtorch's operators, some
//! rows at a time.

mod expansion;

use std::ops::Range;

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{FP8_SIDES, Groups, Packed, Stored, e4m3, expanded_rows};

use self::expansion::Operands;
use crate::{
    Error, Result, dtype,
    pieces::{Operation, Pieces, part},
    scalar,
};

/// The largest value of FP8 (E4M3).
const FP8_MOST: f64 = 448.0;

/// A matrix on a device as its file stores it.
#[derive(Debug)]
pub struct DevicePacked {
    /// [rows, bytes of a row]
    bytes: Tensor,
    stored: Stored,
    columns: i64,
    /// [rows or 1, groups, 1], in f32.
    scales: Option<Tensor>,
    /// The operands of an expansion, if values are stored in blocks or by codes.
    operands: Option<Operands>,
}

/// The type of values that are stored one by one; none if they are stored in blocks or by codes.
fn single_values(stored: Stored) -> Option<Kind> {
    match stored {
        Stored::F32 => Some(Kind::Float),
        Stored::F16 => Some(Kind::Half),
        Stored::Bf16 => Some(Kind::BFloat16),
        Stored::F8E4m3 => Some(Kind::Float8e4m3fn),
        Stored::F8E5m2 => Some(Kind::Float8e5m2),
        Stored::I8 => Some(Kind::Int8),
        _ => None,
    }
}

impl DevicePacked {
    /// Copies a matrix to a device.
    ///
    /// # Errors
    /// Memory is out.
    pub fn new(packed: &Packed, device: Device) -> Result<Self> {
        let (form, host) = Self::apart(packed, device)?;
        Ok(Self { bytes: host.f_to_device(device)?, ..form })
    }

    /// A matrix whose bytes [rows, bytes of a row] stay in host memory, and what is on the device
    /// of it.
    pub(crate) fn apart(packed: &Packed, device: Device) -> Result<(Self, Tensor)> {
        let host = Tensor::f_from_slice(packed.bytes())?.f_view([packed.shape()[0] as i64, -1])?;
        Ok((Self::form(packed, device)?, host))
    }

    /// The part of a matrix that is on the device although its bytes are not.
    pub(crate) fn form(packed: &Packed, device: Device) -> Result<Self> {
        let [_, columns] = packed.shape();
        let scales = match scales(packed) {
            None => None,
            Some((values, shape)) => Some(Tensor::f_from_slice(&values)?.f_view(shape)?.f_to_device(device)?),
        };
        let bytes = Tensor::f_empty([0], (Kind::Uint8, device))?;
        let stored = packed.stored();
        let operands = match single_values(stored) {
            Some(_) => None,
            None => Some(Operands::new(stored, device)?),
        };
        Ok(Self { bytes, stored, columns: columns as i64, scales, operands })
    }

    /// The same matrix with its bytes.
    pub(crate) fn with_bytes(&self, bytes: Tensor) -> Self {
        let scales = self.scales.as_ref().map(Tensor::shallow_clone);
        let operands = self.operands.as_ref().map(Operands::shallow_clone);
        Self { bytes, stored: self.stored, columns: self.columns, scales, operands }
    }

    pub(crate) fn columns(&self) -> i64 {
        self.columns
    }

    /// Rows and columns.
    pub fn shape(&self) -> [i64; 2] {
        [self.bytes.size()[0], self.columns]
    }

    /// True if the matrix is FP8 (E4M3) with one scale, and has sides that the kernels of FP8 take.
    pub fn has_fp8_operands(&self) -> bool {
        let is_plain = self.scales.as_ref().is_none_or(|scales| scales.numel() == 1);
        self.stored == Stored::F8E4m3 && is_plain && self.shape().iter().all(|side| side % FP8_SIDES == 0)
    }

    /// The product [rows of `left`, rows] with FP8 operands, if the matrix has them. `left` [rows,
    /// columns] in bf16 or f16 is rounded to FP8 by one scale, that of its largest value. Sums are
    /// in f32, or in fewer bits (`use_fast_accum` of `_scaled_mm`).
    ///
    /// # Errors
    /// The device has no kernels for it; memory is out.
    pub fn multiply_fp8(&self, left: &Tensor, bias: Option<&Tensor>, quick_sums: bool) -> Result<Option<Tensor>> {
        if !self.has_fp8_operands() {
            return Ok(None);
        }
        let [rows, _] = self.shape();
        let weight = self.bytes.f_view_dtype(Kind::Float8e4m3fn)?.f_transpose(0, 1)?;
        let scale = match &self.scales {
            Some(scales) => scales.f_reshape([] as [i64; 0])?,
            None => scalar::full(&[], 1.0, (Kind::Float, left.device()))?,
        };
        let largest = scalar::largest(left)?;
        // Zeros divided by a scale of zero would be NaN.
        let of_left = scalar::multiply_add(&largest, 1.0 / FP8_MOST, f64::from(f32::MIN_POSITIVE))?;
        // One operator: the quotient is f32, and is rounded to the type of the output. A quotient
        // beyond the largest value by its own rounding still goes to that value.
        let scaled = Tensor::f_empty(left.size(), (Kind::Float8e4m3fn, left.device()))?;
        let scaled = left.f_div_out(&scaled, &of_left.f_unsqueeze(0)?)?;
        let bias = bias.map(|bias| bias.f_to_kind(left.f_kind()?)).transpose()?;
        let kind = left.f_kind()?;
        let multiply = |part: &Tensor| {
            Ok(part.f_internal_scaled_mm(&weight, &of_left, &scale, bias.as_ref(), None, kind, quick_sums)?)
        };
        let of_left_rows = left.size()[0];
        let operations = 2.0 * left.numel() as f64 * rows as f64;
        let pieces = Pieces::of(left.device(), kind, of_left_rows, Operation::Product(operations));
        pieces.gather(0, &scaled, &[of_left_rows, rows], multiply).map(Some)
    }

    /// All rows, expanded, some at a time.
    ///
    /// # Errors
    /// Memory is out.
    pub fn expand_all(&self, kind: Kind) -> Result<Tensor> {
        let [rows, columns] = self.shape();
        if self.scales.is_none() && single_values(self.stored) == Some(kind) {
            return self.expand(0..rows, kind);
        }
        let all = Tensor::f_empty([rows, columns], (kind, self.bytes.device()))?;
        let step = dtype(kind).map_or(1, |dtype| expanded_rows(columns, dtype));
        for start in (0..rows).step_by(step as usize) {
            let of = start..rows.min(start + step);
            part(&all, 0, &of)?.f_copy_(&self.expand(of, kind)?)?;
        }
        Ok(all)
    }

    /// Some rows, expanded: in f32, and rounded once to `kind`. Rows that are stored in that type
    /// are no copy.
    ///
    /// # Errors
    /// There are no such rows; memory is out.
    pub fn expand(&self, rows: Range<i64>, kind: Kind) -> Result<Tensor> {
        let shape = [rows.end - rows.start, self.columns];
        let bytes = part(&self.bytes, 0, &rows)?;
        let scales = self.scales.as_ref().map(|scales| match scales.size()[0] {
            1 => Ok(scales.shallow_clone()),
            _ => part(scales, 0, &rows),
        });
        let scales = scales.transpose()?;
        let values = match (single_values(self.stored), &self.operands) {
            (Some(of), _) => {
                let values = bytes.f_view_dtype(of)?;
                // FP8 is exact in each type of products, and is multiplied in none.
                let is_multiplied = !matches!(of, Kind::Float8e4m3fn | Kind::Float8e5m2);
                match &scales {
                    Some(scales) if is_multiplied => {
                        let output = Tensor::f_empty(shape, (kind, values.device()))?;
                        let groups = |tensor: &Tensor| tensor.f_view([shape[0], scales.size()[1], -1]);
                        return Ok(groups(&values)?.f_mul_out(&groups(&output)?, scales)?.f_view(shape)?);
                    }
                    _ => values.f_to_kind(kind)?,
                }
            }
            (None, Some(operands)) => operands.expand(&bytes, self.stored, kind)?,
            (None, None) => return Err(Error::Torch(format!("values of {} without operands", self.stored))),
        };
        if let Some(scales) = &scales {
            let _ = values.f_view([shape[0], scales.size()[1], -1])?.f_mul_(scales)?;
        }
        Ok(values.f_view(shape)?)
    }
}

/// The factors of a matrix's values in f32, and their shape.
fn scales(packed: &Packed) -> Option<(Vec<f32>, [i64; 3])> {
    let scales = packed.scales();
    let factor = |row: usize| match scales.factors.len() {
        0 => 1.0,
        1 => scales.factors[0],
        _ => scales.factors[row],
    };
    let [rows, columns] = packed.shape();
    match &scales.groups {
        Some(Groups { codes, values, powers }) => {
            let groups = columns / values;
            let of_code = |code: u8| if *powers { power(code) } else { e4m3(code) };
            let all = codes.iter().enumerate().map(|(index, code)| of_code(*code) * factor(index / groups)).collect();
            Some((all, [rows as i64, groups as i64, 1]))
        }
        None if scales.factors.is_empty() => None,
        None => Some((scales.factors.clone(), [scales.factors.len() as i64, 1, 1])),
    }
}

/// A power of two by its code (E8M0).
fn power(code: u8) -> f32 {
    if code == u8::MAX { f32::NAN } else { 2.0_f64.powi(i32::from(code) - 127) as f32 }
}

#[cfg(test)]
mod tests {
    use tilewright_kernels::Scales;

    use super::*;

    #[test]
    fn fp8_products_are_those_of_the_rounded_operands() {
        let (rows, columns) = (32, 48);
        let codes: Vec<u8> =
            (0..rows * columns).map(|index| (index * 37 % 120) as u8 | (index as u8 & 1) << 7).collect();
        let matrix = |scales: Vec<f32>, stored, rows: usize| {
            let bytes = codes[..rows * columns].to_vec().into();
            let packed = Packed::new(bytes, stored, [rows, columns], Scales { factors: scales, groups: None }).unwrap();
            DevicePacked::new(&packed, Device::Cpu).unwrap()
        };
        let packed = matrix(vec![0.5], Stored::F8E4m3, rows);
        let left = (Tensor::arange(7 * columns as i64, (Kind::Float, Device::Cpu)) * 0.37).sin().reshape([7, -1]) * 3.0;
        let left = left.to_kind(Kind::BFloat16);
        let bias = Tensor::arange(rows as i64, (Kind::Float, Device::Cpu));
        let found = packed.multiply_fp8(&left, Some(&bias), false).unwrap().unwrap();
        assert_eq!((found.size(), found.kind()), (vec![7, rows as i64], Kind::BFloat16));
        let scale = f64::try_from(left.abs().max().to_kind(Kind::Float)).unwrap() / FP8_MOST;
        let rounded = (left.to_kind(Kind::Float) / scale).to_kind(Kind::Float8e4m3fn).to_kind(Kind::Float) * scale;
        let weight = packed.expand(0..rows as i64, Kind::Float).unwrap();
        let expected = rounded.linear(&weight, Some(&bias));
        let largest = f64::try_from(expected.abs().max()).unwrap();
        let apart = f64::try_from((found.to_kind(Kind::Float) - expected).abs().max()).unwrap();
        // The result is bf16.
        assert!(apart < largest / 200.0, "{apart} of {largest}");
        let zeros = packed.multiply_fp8(&left.zeros_like(), None, false).unwrap().unwrap();
        assert_eq!(f64::try_from(zeros.abs().max().to_kind(Kind::Float)).unwrap(), 0.0);
        // Rows of scales, other types and odd sides are left to be expanded.
        for other in [
            matrix(vec![0.5; rows], Stored::F8E4m3, rows),
            matrix(vec![0.5], Stored::F8E5m2, rows),
            matrix(vec![0.5], Stored::F8E4m3, 20),
        ] {
            assert!(other.multiply_fp8(&left, None, false).unwrap().is_none());
        }
    }
}
