//! The types that files store values in, quantized ones among them.

use std::fmt;

use tilewright_plan::Dtype;

/// A type that a file stores values in. Quantized types store a block of values at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the table of names says what each is")]
pub enum Stored {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F64,
    C64,
    F32,
    F16,
    Bf16,
    F8E4m3,
    F8E5m2,
    F8E8m0,
    F8E4m3fnuz,
    F8E5m2fnuz,
    F6E2m3,
    F6E3m2,
    F4,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
}

use Stored::*;

/// A type, its name, and the values and bytes of a block.
type Row = (Stored, &'static str, usize, usize);

/// Every type, in the order of the enum. Names and blocks are those of safetensors and of GGUF
/// (ggml's `ggml-common.h`).
const ROWS: [Row; 34] = [
    (Bool, "bool", 1, 1),
    (U8, "u8", 1, 1),
    (I8, "i8", 1, 1),
    (U16, "u16", 1, 2),
    (I16, "i16", 1, 2),
    (U32, "u32", 1, 4),
    (I32, "i32", 1, 4),
    (U64, "u64", 1, 8),
    (I64, "i64", 1, 8),
    (F64, "f64", 1, 8),
    (C64, "c64", 1, 8),
    (F32, "f32", 1, 4),
    (F16, "f16", 1, 2),
    (Bf16, "bf16", 1, 2),
    (F8E4m3, "f8_e4m3", 1, 1),
    (F8E5m2, "f8_e5m2", 1, 1),
    (F8E8m0, "f8_e8m0", 1, 1),
    (F8E4m3fnuz, "f8_e4m3fnuz", 1, 1),
    (F8E5m2fnuz, "f8_e5m2fnuz", 1, 1),
    (F6E2m3, "f6_e2m3", 4, 3),
    (F6E3m2, "f6_e3m2", 4, 3),
    (F4, "f4", 2, 1),
    (Q4_0, "q4_0", 32, 18),
    (Q4_1, "q4_1", 32, 20),
    (Q5_0, "q5_0", 32, 22),
    (Q5_1, "q5_1", 32, 24),
    (Q8_0, "q8_0", 32, 34),
    (Q2K, "q2_k", 256, 84),
    (Q3K, "q3_k", 256, 110),
    (Q4K, "q4_k", 256, 144),
    (Q5K, "q5_k", 256, 176),
    (Q6K, "q6_k", 256, 210),
    (Iq4Nl, "iq4_nl", 32, 18),
    (Iq4Xs, "iq4_xs", 256, 136),
];

impl Stored {
    /// True of a type that products can't take as it is.
    pub const fn is_quantized(self) -> bool {
        !matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Every type.
    pub fn all() -> impl Iterator<Item = Self> {
        ROWS.into_iter().map(|row| row.0)
    }

    /// The type's name, in lower case, as facts and records have it. Displayed it is as files spell
    /// it, in upper case.
    pub const fn name(self) -> &'static str {
        ROWS[self as usize].1
    }

    /// The values of a block.
    pub const fn block_values(self) -> usize {
        ROWS[self as usize].2
    }

    /// The bytes of a block.
    pub const fn block_bytes(self) -> usize {
        ROWS[self as usize].3
    }

    /// The bytes of a tensor of a `shape`; none if its rows are no whole blocks, or if there are
    /// more bytes than any memory has.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        let values = shape.iter().try_fold(1_usize, |product, extent| product.checked_mul(*extent))?;
        if shape.last().copied().unwrap_or(1) % self.block_values() != 0 {
            return None;
        }
        (values / self.block_values()).checked_mul(self.block_bytes())
    }

    /// The type in the words of plans, of those that are computed in.
    pub const fn computable(self) -> Option<Dtype> {
        match self {
            F32 | F16 | Bf16 => self.dtype(),
            _ => None,
        }
    }

    /// The type in the words of plans; none if these have none for it.
    pub const fn dtype(self) -> Option<Dtype> {
        match self {
            F32 => Some(Dtype::F32),
            F16 => Some(Dtype::F16),
            Bf16 => Some(Dtype::Bf16),
            F8E4m3 => Some(Dtype::F8E4m3),
            F8E5m2 => Some(Dtype::F8E5m2),
            I8 | Q8_0 | Q6K | Q5_0 | Q5_1 | Q5K => Some(Dtype::I8),
            F4 | Q4_0 | Q4_1 | Q4K | Q3K | Q2K | Iq4Nl | Iq4Xs => Some(Dtype::I4),
            _ => None,
        }
    }

    /// True if matrices of the type can be multiplied in 8-bit integers, as
    /// `shim/product_int8.cpp` of `tilewright-torch` does.
    pub const fn suits_int8_products(self) -> bool {
        matches!(self, I8 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4K | Q5K | Q6K | Iq4Nl | Iq4Xs)
    }

    /// True if values have to be expanded before anything is computed from them.
    pub const fn is_packed(self) -> bool {
        self.computable().is_none()
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().to_ascii_uppercase())
    }
}

/// The value of an FP8 code of 4 bits of exponent and 3 of mantissa (Micikevicius and others, "FP8
/// Formats for Deep Learning", 2022, table 1).
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-6),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_order_of_the_enum() {
        for (index, row) in ROWS.iter().enumerate() {
            assert_eq!(row.0 as usize, index, "{}", row.1);
        }
        assert_eq!(Stored::Iq4Xs as usize + 1, ROWS.len());
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(Stored::Q4K.bytes(&[3, 512]), Some(3 * 2 * 144));
        assert_eq!(Stored::Q4K.bytes(&[512, 3]), None);
        assert_eq!(Stored::Q8_0.bytes(&[usize::MAX, 32]), None);
        assert_eq!(Stored::F32.bytes(&[]), Some(4));
        assert_eq!(Stored::F32.bytes(&[0, 7]), Some(0));
    }
}
