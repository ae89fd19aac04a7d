//! Expansion of packed values by a device's operators: shifts and masks of bytes, and then one
//! operator from codes and scales to the wanted type.
//!
//! Every product of scales and a code is exact in f32: the 11 bits of a block's scale, 7 of a
//! part's and 6 of a code are no more than its 24. So is a product less an offset of whole codes;
//! less a minimum it rounds once. The values are therefore those of `shim/expand.cpp` to the last
//! bit, but for the sign of zeros, whether or not a device fuses the operator's product and sum.

use std::ops::Range;

use tch::{Device, Kind, Tensor};
use tilewright_kernels::Stored;

use crate::{Error, Result, pieces::part, scalar};

/// The values of `Iq4Nl` and `Iq4Xs` by their codes (`kvalues_iq4nl` in ggml-common.h).
const NON_LINEAR: [f32; 16] =
    [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

/// The values of `F4` (E2M1) by their codes.
const E2M1: [f32; 16] = [0., 0.5, 1., 1.5, 2., 3., 4., 6., -0., -0.5, -1., -1.5, -2., -3., -4., -6.];

/// Operands of bytes that operators read from the device's memory, by their places.
const BYTES: [u8; 20] = [1, 2, 4, 8, 16, 8, 4, 2, 3, 12, 48, 192, 16, 4, 252, 248, 255, 254, 15, 63];

/// Masks of single bits, and the factors that make sixteen of each.
const BITS: Range<i64> = 0..4;
const BITS_TO_16: Range<i64> = 4..8;

/// Masks of pairs of bits, and the factors that make codes times 16 of the first two.
const PAIRS: Range<i64> = 8..12;
const TWO_PAIRS: Range<i64> = 8..10;
const PAIRS_TO_16: Range<i64> = 12..14;

/// The factors that make -4 of single bits, modulo 256, times 1 and 4 in turn as pairs under two
/// masks are.
const BITS_TO_MINUS_4: Range<i64> = 14..18;

/// Single numbers.
const TWO: Range<i64> = 1..2;
const FOUR: Range<i64> = 2..3;
const LOW_4: Range<i64> = 18..19;
const LOW_6: Range<i64> = 19..20;
const BITS_4_AND_5: Range<i64> = 10..11;

/// Operands in f32: the signs of a scale and of a minimum that is subtracted, and what turns pairs
/// under masks into codes.
const FACTORS: [f32; 6] = [1., -1., 1., 0.25, 0.0625, 0.015625];
const SIGNS: Range<i64> = 0..2;
const QUARTERS: Range<i64> = 2..6;
const TWO_QUARTERS: Range<i64> = 2..4;

/// Operands that stay on a device with a matrix.
#[derive(Debug)]
pub(super) struct Operands {
    bytes: Tensor,
    factors: Tensor,
    /// [256, 2]: the values of each byte's two codes, the one that comes first in a row first.
    pairs: Option<Tensor>,
}

impl Operands {
    /// The operands of a type, on a device.
    pub fn new(stored: Stored, device: Device) -> Result<Self> {
        let pairs = |table: &[f32; 16], shifts: [usize; 2]| -> Vec<f32> {
            (0..256).flat_map(|byte: usize| shifts.map(|shift| table[byte >> shift & 15])).collect()
        };
        let pairs = match stored {
            Stored::F4 => Some(pairs(&E2M1, [4, 0])),
            Stored::Iq4Nl | Stored::Iq4Xs => Some(pairs(&NON_LINEAR, [0, 4])),
            _ => None,
        };
        let place = |all: &[f32]| Tensor::f_from_slice(all)?.f_to_device(device);
        Ok(Self {
            bytes: Tensor::f_from_slice(&BYTES)?.f_to_device(device)?,
            factors: place(&FACTORS)?,
            pairs: pairs.map(|all| place(&all)?.f_view([256, 2])).transpose()?,
        })
    }

    pub fn shallow_clone(&self) -> Self {
        let Self { bytes, factors, pairs } = self;
        let pairs = pairs.as_ref().map(Tensor::shallow_clone);
        Self { bytes: bytes.shallow_clone(), factors: factors.shallow_clone(), pairs }
    }

    /// Values of rows of bytes in blocks, in order: a tensor of as many values, in a type.
    pub fn expand(&self, rows: &Tensor, stored: Stored, kind: Kind) -> Result<Tensor> {
        let bytes = rows.f_reshape([-1, stored.block_bytes() as i64])?;
        let blocks = Blocks { bytes, operands: self, kind };
        match stored {
            Stored::Q8_0 => values(kind, &blocks.signed(2..34)?, &blocks.halves(0, 1)?.f_to_kind(Kind::Float)?, None),
            Stored::Q4_0 => blocks.simple(None, 2, Offset::Codes(8.0)),
            Stored::Q4_1 => blocks.simple(None, 4, Offset::Stored),
            Stored::Q5_0 => blocks.simple(Some(2), 6, Offset::Codes(16.0)),
            Stored::Q5_1 => blocks.simple(Some(4), 8, Offset::Stored),
            Stored::Q2K => blocks.q2_k(),
            Stored::Q3K => blocks.q3_k(),
            Stored::Q4K => blocks.q4_k(),
            Stored::Q5K => blocks.q5_k(),
            Stored::Q6K => blocks.q6_k(),
            Stored::F4 => blocks.look_up(0..1),
            Stored::Iq4Nl => blocks.iq4_nl(),
            Stored::Iq4Xs => blocks.iq4_xs(),
            other => Err(Error::Torch(format!("values of {other} can't be expanded"))),
        }
    }
}

/// Codes times factors, plus offsets, in a type: each f32 but the codes, and rounded once to it.
fn values(kind: Kind, codes: &Tensor, factors: &Tensor, offsets: Option<&Tensor>) -> Result<Tensor> {
    let output = Tensor::f_empty(codes.size(), (kind, codes.device()))?;
    Ok(match offsets {
        None => codes.f_mul_out(&output, factors)?,
        Some(offsets) => offsets.f_addcmul_out(&output, codes, factors)?,
    })
}

/// The offset of a block's values.
enum Offset {
    /// Codes less a number.
    Codes(f64),
    /// A number of the block beside its scale.
    Stored,
}

/// Blocks [blocks, bytes].
struct Blocks<'a> {
    bytes: Tensor,
    operands: &'a Operands,
    kind: Kind,
}

impl Blocks<'_> {
    fn count(&self) -> i64 {
        self.bytes.size()[0]
    }

    /// [blocks, bytes of the range]
    fn part(&self, range: Range<i64>) -> Result<Tensor> {
        part(&self.bytes, 1, &range)
    }

    /// The same as [blocks, rows, the rest].
    fn rows(&self, range: Range<i64>, rows: i64) -> Result<Tensor> {
        Ok(self.part(range)?.f_view([self.count(), rows, -1])?)
    }

    /// Bytes with a sign.
    fn signed(&self, range: Range<i64>) -> Result<Tensor> {
        Ok(self.part(range)?.f_view_dtype(Kind::Int8)?)
    }

    /// Numbers of 16 bits: [blocks, count]. Blocks of an even number of bytes need no copy.
    fn halves(&self, at: i64, count: i64) -> Result<Tensor> {
        Ok(self.part(at..at + 2 * count)?.f_view_dtype(Kind::Half)?)
    }

    /// Operands of bytes along the axis that `after` others follow.
    fn operand(&self, places: Range<i64>, after: usize) -> Result<Tensor> {
        along(&part(&self.operands.bytes, 0, &places)?, after)
    }

    /// Operands in f32, likewise.
    fn factor(&self, places: Range<i64>, after: usize) -> Result<Tensor> {
        along(&part(&self.operands.factors, 0, &places)?, after)
    }

    /// The low and then the high half of each byte, along a new axis.
    fn nibbles(&self, bytes: &Tensor, axis: i64) -> Result<Tensor> {
        let mut shape = bytes.size();
        shape.insert(axis as usize, 2);
        let nibbles = Tensor::f_empty(shape, (Kind::Uint8, bytes.device()))?;
        let (low, high) = (nibbles.f_select(axis, 0)?, nibbles.f_select(axis, 1)?);
        let _ = bytes.f_bitwise_and_tensor_out(&low, &self.operand(LOW_4, 0)?)?;
        let _ = bytes.f_bitwise_right_shift_tensor_out(&high, &self.operand(FOUR, 0)?)?;
        Ok(nibbles)
    }

    /// The bits of each byte under each of some masks, along a new axis.
    fn masked(&self, bytes: &Tensor, axis: i64, masks: Range<i64>) -> Result<Tensor> {
        let after = bytes.dim() - axis as usize;
        Ok(bytes.f_unsqueeze(axis)?.f_bitwise_and_tensor(&self.operand(masks, after)?)?)
    }

    /// Adds bits under masks to codes of the same number, each with the factor of its mask. The
    /// masks lie along the axis that `after` others follow.
    fn join(&self, codes: &Tensor, bits: &Tensor, factors: Range<i64>, after: usize) -> Result<()> {
        let factors = self.operand(factors, after)?;
        let _ = codes.f_view_as(bits)?.f_addcmul_(bits, &factors)?;
        Ok(())
    }

    /// Adds 16 times the pairs of bits of some bytes to codes: the first two pairs of each byte,
    /// and the others beside them.
    fn join_pairs(&self, codes: &Tensor, bytes: &Tensor, axis: i64) -> Result<()> {
        let bits = self.masked(&self.nibbles(bytes, axis)?, axis + 1, TWO_PAIRS)?;
        self.join(codes, &bits, PAIRS_TO_16, bytes.dim() - axis as usize)
    }

    /// Adds the fifth bits, four of each half of a byte, to codes.
    fn join_fifth(&self, codes: &Tensor, bytes: &Tensor, axis: [i64; 2]) -> Result<()> {
        let bits = self.masked(&self.nibbles(bytes, axis[0])?, axis[1], BITS)?;
        self.join(codes, &bits, BITS_TO_16, bytes.dim() + 1 - axis[1] as usize)
    }

    /// 32 values of 4 bits, or of 5 with the bits at `fifth`.
    fn simple(&self, fifth: Option<i64>, at: i64, offset: Offset) -> Result<Tensor> {
        let codes = self.nibbles(&self.part(at..at + 16)?, 1)?;
        if let Some(at) = fifth {
            self.join_fifth(&codes, &self.part(at..at + 4)?, [2, 3])?;
        }
        let shape = [-1, 1, 1];
        let (factors, offsets) = match offset {
            Offset::Codes(number) => {
                let factors = self.halves(0, 1)?.f_to_kind(Kind::Float)?.f_view(shape)?;
                let offsets = scalar::multiply(&factors, -number)?;
                (factors, offsets)
            }
            Offset::Stored => {
                let both = self.halves(0, 2)?.f_to_kind(Kind::Float)?;
                (both.f_select(1, 0)?.f_view(shape)?, both.f_select(1, 1)?.f_view(shape)?)
            }
        };
        values(self.kind, &codes, &factors, Some(&offsets))
    }

    /// The scale of a block and its minimum's, which is negative: [blocks, 2].
    fn scale_and_minimum(&self, at: i64) -> Result<Tensor> {
        Ok(self.halves(at, 2)?.f_mul(&self.factor(SIGNS, 0)?)?)
    }

    /// Scales and negative minima of eight parts, of 6 bits each in 12 bytes:
    /// [blocks, 2, scales or minima, 4].
    fn scales_and_minima(&self) -> Result<Tensor> {
        let (first, last) = (self.rows(4..12, 2)?, self.part(12..16)?);
        let codes = Tensor::f_empty([self.count(), 2, 2, 4], (Kind::Uint8, self.bytes.device()))?;
        let _ = first.f_bitwise_and_tensor_out(&codes.f_select(1, 0)?, &self.operand(LOW_6, 0)?)?;
        let mut second = codes.f_select(1, 1)?;
        let _ = first.f_bitwise_right_shift_tensor_out(&second, &self.operand(TWO, 0)?)?;
        let _ = second.f_bitwise_and_tensor_(&self.operand(BITS_4_AND_5, 0)?)?;
        let _ = second.f_bitwise_or_tensor_(&self.nibbles(&last, 1)?)?;
        Ok(codes.f_mul(&self.scale_and_minimum(0)?.f_view([-1, 1, 2, 1])?)?)
    }

    /// 256 values of 2 bits, in sixteen parts.
    fn q2_k(&self) -> Result<Tensor> {
        let scale = self.scale_and_minimum(80)?.f_unsqueeze(-1)?;
        let scales = self.nibbles(&self.part(0..16)?, 1)?.f_mul(&scale)?;
        let of = |place: i64| scales.f_select(1, place)?.f_view([-1, 2, 4, 2, 1]);
        let factors = of(0)?.f_mul(&self.factor(QUARTERS, 2)?)?;
        let codes = self.masked(&self.rows(16..80, 2)?, 2, PAIRS)?.f_view([-1, 2, 4, 2, 16])?;
        values(self.kind, &codes, &factors, Some(&of(1)?))
    }

    /// 256 values of 3 bits, in sixteen parts.
    fn q3_k(&self) -> Result<Tensor> {
        let scales = self.nibbles(&self.part(96..104)?, 1)?;
        self.join_pairs(&scales, &self.part(104..108)?, 1)?;
        // Under the second mask a pair is four times its code, and so is the third bit beside it,
        // which takes four from a code where it is not set.
        let scale = self.halves(108, 1)?.f_mul(&self.factor(TWO_QUARTERS, 0)?)?.f_view([-1, 1, 1, 2, 1])?;
        let factors = scales_about_32(&scales.f_view([-1, 2, 2, 2, 2])?, &scale)?.f_unsqueeze(-1)?;
        let codes = self.masked(&self.nibbles(&self.rows(32..96, 2)?, 2)?, 3, TWO_PAIRS)?;
        let unset = self.masked(&self.nibbles(&self.part(0..32)?.f_bitwise_not()?, 1)?, 2, BITS)?;
        self.join(&codes, &unset, BITS_TO_MINUS_4, 1)?;
        let codes = codes.f_view_dtype(Kind::Int8)?.f_view([-1, 2, 2, 2, 2, 16])?;
        values(self.kind, &codes, &factors, None)
    }

    /// 256 values of 4 bits, in eight parts.
    fn q4_k(&self) -> Result<Tensor> {
        self.in_eight_parts(&self.nibbles(&self.rows(16..144, 4)?, 2)?)
    }

    /// 256 values of 5 bits, in eight parts.
    fn q5_k(&self) -> Result<Tensor> {
        let codes = self.nibbles(&self.rows(48..176, 4)?, 2)?;
        self.join_fifth(&codes, &self.part(16..48)?, [1, 2])?;
        self.in_eight_parts(&codes)
    }

    fn in_eight_parts(&self, codes: &Tensor) -> Result<Tensor> {
        let scales = self.scales_and_minima()?;
        let of = |place: i64| scales.f_select(2, place)?.f_unsqueeze(-1);
        values(self.kind, &codes.f_view([-1, 2, 4, 32])?, &of(0)?, Some(&of(1)?))
    }

    /// 256 values of 6 bits, in sixteen parts.
    fn q6_k(&self) -> Result<Tensor> {
        let codes = self.nibbles(&self.rows(0..128, 2)?, 2)?;
        self.join_pairs(&codes, &self.rows(128..192, 2)?, 2)?;
        let scale = self.halves(208, 1)?.f_to_kind(Kind::Float)?;
        let factors = self.signed(192..208)?.f_mul(&scale)?.f_unsqueeze(-1)?;
        let offsets = scalar::multiply(&factors, -32.0)?;
        values(self.kind, &codes.f_view([-1, 16, 16])?, &factors, Some(&offsets))
    }

    /// The values of the codes in some bytes, two of each: [blocks, bytes, 2].
    fn look_up(&self, range: Range<i64>) -> Result<Tensor> {
        let pairs = self.operands.pairs.as_ref().ok_or_else(|| Error::Torch("a type without a table".into()))?;
        let codes = self.part(range)?.f_to_kind(Kind::Int)?;
        let found = pairs.f_to_kind(self.kind)?.f_index_select(0, &codes.f_view([-1])?)?;
        Ok(found.f_view([codes.size()[0], codes.size()[1], 2])?)
    }

    fn iq4_nl(&self) -> Result<Tensor> {
        let scale = self.halves(0, 1)?.f_to_kind(Kind::Float)?.f_unsqueeze(-1)?;
        values(self.kind, &self.look_up(2..18)?.f_transpose(1, 2)?, &scale, None)
    }

    fn iq4_xs(&self) -> Result<Tensor> {
        let scales = self.nibbles(&self.part(4..8)?, 2)?;
        self.join_pairs(&scales, &self.part(2..4)?, 2)?;
        let scale = self.halves(0, 1)?.f_to_kind(Kind::Float)?;
        let scales = scales_about_32(&scales.f_view([-1, 8])?, &scale)?.f_view([-1, 8, 1, 1])?;
        let found = self.look_up(8..136)?.f_view([-1, 8, 16, 2])?.f_transpose(2, 3)?;
        values(self.kind, &found, &scales, None)
    }
}

/// Scales of 6 bits, of which 32 stands for none, times that of the block.
fn scales_about_32(codes: &Tensor, scale: &Tensor) -> Result<Tensor> {
    Ok(scalar::multiply(scale, -32.0)?.f_addcmul(codes, scale)?)
}

/// Numbers along the axis that `after` others follow.
fn along(numbers: &Tensor, after: usize) -> Result<Tensor> {
    let mut shape = vec![1; after + 1];
    shape[0] = -1;
    Ok(numbers.f_view(&shape[..])?)
}
