//! Matrices that stay packed on a device. Their values are expanded by libtorch's operators, some
//! rows at a time, to the last bit of f32 as `shim/expand.cpp` does it: each operator rounds once.

use std::ops::Range;

use tch::{Device, Kind, Tensor};
use tilewright_kernels::{Groups, Packed, Stored, e4m3};

use crate::{
    Error, Result,
    pieces::{Operation, Pieces, part},
    scalar,
};

/// The largest value of FP8 (E4M3).
const FP8_MOST: f64 = 448.0;

/// Sides of FP8 products are multiples of this (pytorch v2.11.0,
/// aten/src/ATen/native/cuda/ScaledBlas.cpp).
const FP8_STEP: i64 = 16;

/// The values of `Iq4Nl` and `Iq4Xs` by their codes (`kvalues_iq4nl` in ggml-common.h).
const NON_LINEAR: [f32; 16] =
    [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

/// The values of `F4` (E2M1) by their codes.
const E2M1: [f32; 16] = [0., 0.5, 1., 1.5, 2., 3., 4., 6., -0., -0.5, -1., -1.5, -2., -3., -4., -6.];

/// The places of a byte's bits.
const BITS: [i32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// A matrix on a device as its file stores it.
#[derive(Debug)]
pub struct DevicePacked {
    /// [rows, bytes of a row]
    bytes: Tensor,
    stored: Stored,
    columns: i64,
    /// [rows or 1, groups, 1], in f32.
    scales: Option<Tensor>,
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
        let nothing = Tensor::f_empty([0], (Kind::Uint8, device))?;
        Ok(Self { bytes: nothing, stored: packed.stored(), columns: columns as i64, scales })
    }

    /// The same matrix with its bytes.
    pub(crate) fn with_bytes(&self, bytes: Tensor) -> Self {
        let scales = self.scales.as_ref().map(Tensor::shallow_clone);
        Self { bytes, stored: self.stored, columns: self.columns, scales }
    }

    pub(crate) fn columns(&self) -> i64 {
        self.columns
    }

    /// Rows and columns.
    pub fn shape(&self) -> [i64; 2] {
        [self.bytes.size()[0], self.columns]
    }

    /// The product [rows of `left`, rows] with FP8 operands, if the matrix is FP8 (E4M3) with one
    /// scale, and has sides that the kernels take. `left` [rows, columns] in bf16 or f16 is rounded
    /// to FP8 by one scale, that of its largest value.
    ///
    /// # Errors
    /// The device has no kernels for it; memory is out.
    pub fn multiply_fp8(&self, left: &Tensor, bias: Option<&Tensor>) -> Result<Option<Tensor>> {
        let [rows, columns] = self.shape();
        let is_plain = self.scales.as_ref().is_none_or(|scales| scales.numel() == 1);
        if self.stored != Stored::F8E4m3 || !is_plain || rows % FP8_STEP != 0 || columns % FP8_STEP != 0 {
            return Ok(None);
        }
        let weight = self.bytes.f_view_dtype(Kind::Float8e4m3fn)?.f_transpose(0, 1)?;
        let scale = match &self.scales {
            Some(scales) => scales.f_reshape([] as [i64; 0])?,
            None => scalar::full(&[], 1.0, (Kind::Float, left.device()))?,
        };
        let largest = left.f_abs()?.f_max()?.f_to_kind(Kind::Float)?;
        let of_left = scalar::clamp_min_in_place(scalar::divide(&largest, FP8_MOST)?, f64::from(f32::MIN_POSITIVE))?;
        // Division rounds, and FP8 has no infinity to go to.
        let scaled = scalar::clamp(&left.f_to_kind(Kind::Float)?.f_div(&of_left)?, -FP8_MOST, FP8_MOST)?;
        let scaled = scaled.f_to_kind(Kind::Float8e4m3fn)?;
        let bias = bias.map(|bias| bias.f_to_kind(left.f_kind()?)).transpose()?;
        let kind = left.f_kind()?;
        let multiply = |part: &Tensor| {
            Ok(part.f_internal_scaled_mm(&weight, &of_left, &scale, bias.as_ref(), None, kind, false)?)
        };
        let of_left_rows = left.size()[0];
        let operations = 2.0 * left.numel() as f64 * rows as f64;
        let pieces = Pieces::of(left.device(), kind, of_left_rows, Operation::Product(operations));
        pieces.gather(0, &scaled, &[of_left_rows, rows], multiply).map(Some)
    }

    /// Some rows, expanded: in f32 first, which is then rounded to `kind`.
    ///
    /// # Errors
    /// There are no such rows; memory is out.
    pub fn expand(&self, rows: Range<i64>, kind: Kind) -> Result<Tensor> {
        let count = rows.end - rows.start;
        let bytes = part(&self.bytes, 0, &rows)?;
        let mut values = expand(&bytes, self.stored)?.f_view([count, self.columns])?;
        if let Some(scales) = &self.scales {
            let [of_rows, groups] = [scales.size()[0], scales.size()[1]];
            let scales = if of_rows == 1 { scales.shallow_clone() } else { part(scales, 0, &rows)? };
            let _ = values.f_view([count, groups, self.columns / groups])?.f_mul_(&scales)?;
            values = values.f_view([count, self.columns])?;
        }
        Ok(values.f_to_kind(kind)?)
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

/// Blocks [blocks, bytes], and their parts as f32.
struct Blocks(Tensor);

impl Blocks {
    /// [blocks, bytes of the range]
    fn bytes(&self, range: Range<i64>) -> Result<Tensor> {
        Ok(part(&self.0, 1, &range)?.f_to_kind(Kind::Float)?)
    }

    /// Bytes with a sign.
    fn signed(&self, range: Range<i64>) -> Result<Tensor> {
        let bytes = part(&self.0, 1, &range)?.f_contiguous()?;
        Ok(bytes.f_view_dtype(Kind::Int8)?.f_to_kind(Kind::Float)?)
    }

    /// A number of 16 bits: [blocks, 1]
    fn half(&self, at: i64) -> Result<Tensor> {
        let bytes = self.0.f_narrow(1, at, 2)?.f_contiguous()?;
        Ok(bytes.f_view_dtype(Kind::Half)?.f_to_kind(Kind::Float)?)
    }

    /// 64 values of 2 bits in 16 bytes at a time: [blocks, 16, 16], from 64 bytes.
    fn pairs_of_bits(&self, range: Range<i64>) -> Result<Tensor> {
        let bytes = self.bytes(range)?;
        Ok(shifts(&bytes.f_view([-1, 2, 32])?, &[0, 2, 4, 6], 2, 2)?.f_view([-1, 16, 16])?)
    }

    /// 256 values of 4 bits, 32 low ones and then the high ones of the same bytes: [blocks, 8, 32].
    fn nibbles(&self, range: Range<i64>) -> Result<Tensor> {
        let bytes = self.bytes(range)?;
        Ok(shifts(&bytes.f_view([-1, 4, 32])?, &[0, 4], 4, 2)?.f_view([-1, 8, 32])?)
    }

    /// Scales and minima of eight parts, of 6 bits each in 12 bytes: twice [blocks, 8, 1].
    fn scales_and_minima(&self, at: i64) -> Result<[Tensor; 2]> {
        let [first, second, third] = [0, 4, 8].map(|offset| self.bytes(at + offset..at + offset + 4));
        let (first, second, third) = (first?, second?, third?);
        let join = |low: Tensor, nibble: Tensor, high: &Tensor| -> Result<Tensor> {
            let high = scalar::multiply(&bits(high, 6, 2)?, 16.0)?;
            Ok(Tensor::f_cat(&[low, nibble.f_add(&high)?], 1)?.f_view([-1, 8, 1])?)
        };
        Ok([
            join(bits(&first, 0, 6)?, bits(&third, 0, 4)?, &first)?,
            join(bits(&second, 0, 6)?, bits(&third, 4, 4)?, &second)?,
        ])
    }
}

/// `count` bits of whole numbers in f32, from a place on.
fn bits(numbers: &Tensor, from: i32, count: i32) -> Result<Tensor> {
    let shifted = match from {
        0 => numbers.shallow_clone(),
        _ => scalar::multiply(numbers, 0.5_f64.powi(from))?.f_floor_()?,
    };
    let above = scalar::multiply(&shifted, 0.5_f64.powi(count))?.f_floor_()?;
    Ok(shifted.f_sub(&scalar::multiply_in_place(above, 2.0_f64.powi(count))?)?)
}

/// `count` bits from each of some places on, along a new axis.
fn shifts(numbers: &Tensor, places: &[i32], count: i32, axis: i64) -> Result<Tensor> {
    let parts: Vec<Tensor> = places.iter().map(|place| bits(numbers, *place, count)).collect::<Result<_>>()?;
    Ok(Tensor::f_stack(&parts, axis)?)
}

/// Values of a table by their codes in f32.
fn look_up(codes: &Tensor, table: &[f32; 16]) -> Result<Tensor> {
    let table = Tensor::f_from_slice(table)?.f_to_device(codes.device())?;
    let found = table.f_index_select(0, &codes.f_reshape([-1])?.f_to_kind(Kind::Int)?)?;
    Ok(found.f_view(&codes.size()[..])?)
}

/// The values of rows of bytes, in f32 and in order.
fn expand(rows: &Tensor, stored: Stored) -> Result<Tensor> {
    let plain = |kind: Kind| -> Result<Tensor> { Ok(rows.f_contiguous()?.f_view_dtype(kind)?.f_to_kind(Kind::Float)?) };
    let of = Blocks(rows.f_reshape([-1, stored.block_bytes() as i64])?);
    // Nibbles along an axis, of which all low ones come first.
    let halves = |bytes: Tensor, axis: i64| -> Result<Tensor> {
        Ok(Tensor::f_cat(&[bits(&bytes, 0, 4)?, bits(&bytes, 4, 4)?], axis)?)
    };
    // The fifth bits of nibbles, from 32.
    let fifth = |at: i64| -> Result<Tensor> {
        let flags = shifts(&of.bytes(at..at + 4)?, &BITS, 1, 2)?.f_view([-1, 32])?;
        scalar::multiply_in_place(flags, 16.0)
    };
    Ok(match stored {
        Stored::F32 => plain(Kind::Float)?,
        Stored::F16 => plain(Kind::Half)?,
        Stored::Bf16 => plain(Kind::BFloat16)?,
        Stored::F8E4m3 => plain(Kind::Float8e4m3fn)?,
        Stored::F8E5m2 => plain(Kind::Float8e5m2)?,
        Stored::I8 => plain(Kind::Int8)?,
        Stored::F4 => {
            let bytes = rows.f_to_kind(Kind::Float)?;
            look_up(&shifts(&bytes, &[4, 0], 4, 2)?, &E2M1)?
        }
        Stored::Q4_0 => scalar::add(&halves(of.bytes(2..18)?, 1)?, -8.0)?.f_mul_(&of.half(0)?)?,
        Stored::Q4_1 => halves(of.bytes(4..20)?, 1)?.f_mul_(&of.half(0)?)?.f_add_(&of.half(2)?)?,
        Stored::Q5_0 => {
            let codes = halves(of.bytes(6..22)?, 1)?.f_add_(&fifth(2)?)?;
            scalar::add(&codes, -16.0)?.f_mul_(&of.half(0)?)?
        }
        Stored::Q5_1 => {
            let codes = halves(of.bytes(8..24)?, 1)?.f_add_(&fifth(4)?)?;
            codes.shallow_clone().f_mul_(&of.half(0)?)?.f_add_(&of.half(2)?)?
        }
        Stored::Q8_0 => of.signed(2..34)?.f_mul_(&of.half(0)?)?,
        Stored::Q2K => {
            let scales = of.bytes(0..16)?;
            let factors = bits(&scales, 0, 4)?.f_mul_(&of.half(80)?)?.f_view([-1, 16, 1])?;
            let minima = bits(&scales, 4, 4)?.f_mul_(&of.half(82)?)?.f_view([-1, 16, 1])?;
            of.pairs_of_bits(16..80)?.f_mul_(&factors)?.f_sub_(&minima)?
        }
        Stored::Q3K => {
            let low = halves(of.bytes(96..104)?, 1)?;
            let high = shifts(&of.bytes(104..108)?, &[0, 2, 4, 6], 2, 1)?.f_view([-1, 16])?;
            let scales = scalar::add(&scalar::multiply_in_place(high, 16.0)?.f_add_(&low)?, -32.0)?;
            let factors = scales.f_mul(&of.half(108)?)?.f_view([-1, 16, 1])?;
            let flags = shifts(&of.bytes(0..32)?, &BITS, 1, 1)?.f_view([-1, 16, 16])?;
            let codes = scalar::multiply_in_place(flags, 4.0)?.f_add_(&of.pairs_of_bits(32..96)?)?;
            scalar::add(&codes, -4.0)?.f_mul_(&factors)?
        }
        Stored::Q4K | Stored::Q5K => {
            let [scales, minima] = of.scales_and_minima(4)?;
            let [factor, least] = [of.half(0)?, of.half(2)?].map(|half| half.f_view([-1, 1, 1]));
            let (factors, minima) = (scales.f_mul(&factor?)?, minima.f_mul(&least?)?);
            let codes = match stored {
                Stored::Q4K => of.nibbles(16..144)?,
                _ => {
                    let flags = shifts(&of.bytes(16..48)?, &BITS, 1, 1)?;
                    scalar::multiply_in_place(flags, 16.0)?.f_add_(&of.nibbles(48..176)?)?
                }
            };
            codes.shallow_clone().f_mul_(&factors)?.f_sub_(&minima)?
        }
        Stored::Q6K => {
            let low = shifts(&of.bytes(0..128)?.f_view([-1, 2, 64])?, &[0, 4], 4, 2)?.f_view([-1, 16, 16])?;
            let high = shifts(&of.bytes(128..192)?.f_view([-1, 2, 32])?, &[0, 2, 4, 6], 2, 2)?;
            let codes = scalar::multiply_in_place(high.f_view([-1, 16, 16])?, 16.0)?.f_add_(&low)?;
            let factors = of.signed(192..208)?.f_mul_(&of.half(208)?)?.f_view([-1, 16, 1])?;
            scalar::add(&codes, -32.0)?.f_mul_(&factors)?
        }
        Stored::Iq4Nl => look_up(&halves(of.bytes(2..18)?, 1)?, &NON_LINEAR)?.f_mul_(&of.half(0)?)?,
        Stored::Iq4Xs => {
            let low = shifts(&of.bytes(4..8)?, &[0, 4], 4, 2)?.f_view([-1, 8])?;
            let high = shifts(&of.bytes(2..4)?, &[0, 2, 4, 6], 2, 2)?.f_view([-1, 8])?;
            let scales = scalar::add(&scalar::multiply_in_place(high, 16.0)?.f_add_(&low)?, -32.0)?;
            let factors = scales.f_mul(&of.half(0)?)?.f_view([-1, 8, 1])?;
            let codes = halves(of.bytes(8..136)?.f_view([-1, 8, 16])?, 2)?;
            look_up(&codes, &NON_LINEAR)?.f_mul_(&factors)?
        }
        other => return Err(Error::Torch(format!("values of {other} can't be expanded"))),
    })
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
        let found = packed.multiply_fp8(&left, Some(&bias)).unwrap().unwrap();
        assert_eq!((found.size(), found.kind()), (vec![7, rows as i64], Kind::BFloat16));
        let scale = f64::try_from(left.abs().max().to_kind(Kind::Float)).unwrap() / FP8_MOST;
        let rounded = (left.to_kind(Kind::Float) / scale).to_kind(Kind::Float8e4m3fn).to_kind(Kind::Float) * scale;
        let weight = packed.expand(0..rows as i64, Kind::Float).unwrap();
        let expected = rounded.linear(&weight, Some(&bias));
        let largest = f64::try_from(expected.abs().max()).unwrap();
        let apart = f64::try_from((found.to_kind(Kind::Float) - expected).abs().max()).unwrap();
        // The result is bf16.
        assert!(apart < largest / 200.0, "{apart} of {largest}");
        // Rows of scales, other types and odd sides are left to be expanded.
        for other in [
            matrix(vec![0.5; rows], Stored::F8E4m3, rows),
            matrix(vec![0.5], Stored::F8E5m2, rows),
            matrix(vec![0.5], Stored::F8E4m3, 20),
        ] {
            assert!(other.multiply_fp8(&left, None).unwrap().is_none());
        }
    }
}
