//! The types of values in bodies, by PyTorch's names.

use half::{bf16, f16};

/// The type of a tensor's values, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Single precision.
    Float32,
    /// Half precision.
    Float16,
    /// The upper half of single precision.
    BFloat16,
    /// Bytes, as pictures have them.
    UInt8,
}

impl Element {
    /// Each with its name and its bytes.
    const ALL: [(Self, &'static str, usize); 4] = [
        (Self::Float32, "float32", 4),
        (Self::Float16, "float16", 2),
        (Self::BFloat16, "bfloat16", 2),
        (Self::UInt8, "uint8", 1),
    ];

    /// The names of those that latents and pictures can have.
    pub const REALS: &'static str = "float32, float16 or bfloat16";

    /// The type of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(element, ..)| *element)
    }

    /// PyTorch's name.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Bytes of a value.
    pub fn bytes(self) -> usize {
        self.entry().2
    }

    fn entry(self) -> &'static (Self, &'static str, usize) {
        Self::ALL.iter().find(|(element, ..)| *element == self).unwrap_or(&Self::ALL[0])
    }

    /// The values of bytes. A part of a value at the end is left out.
    pub fn read(self, bytes: &[u8]) -> Vec<f32> {
        let pair = |bytes: &[u8]| [bytes[0], bytes[1]];
        match self {
            Self::Float32 => {
                let four = |bytes: &[u8]| [bytes[0], bytes[1], bytes[2], bytes[3]];
                bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(four(bytes))).collect()
            }
            Self::Float16 => bytes.chunks_exact(2).map(|bytes| f16::from_le_bytes(pair(bytes)).to_f32()).collect(),
            Self::BFloat16 => bytes.chunks_exact(2).map(|bytes| bf16::from_le_bytes(pair(bytes)).to_f32()).collect(),
            Self::UInt8 => bytes.iter().map(|byte| f32::from(*byte)).collect(),
        }
    }

    /// The bytes of values, each rounded to the nearest.
    pub fn write(self, values: impl Iterator<Item = f32>) -> Vec<u8> {
        match self {
            Self::Float32 => values.flat_map(f32::to_le_bytes).collect(),
            Self::Float16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
            Self::BFloat16 => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
            Self::UInt8 => values.map(|value| value.round_ties_even().clamp(0.0, 255.0) as u8).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_near_as_their_type_has_them() {
        let values = [0.0_f32, -1.0, 0.1, 65504.0];
        for (element, bytes, expected) in [
            (Element::Float32, 16, values),
            (Element::Float16, 8, [0.0, -1.0, 0.099_975_586, 65504.0]),
            (Element::BFloat16, 8, [0.0, -1.0, 0.100_097_656, 65536.0]),
            (Element::UInt8, 4, [0.0, 0.0, 0.0, 255.0]),
        ] {
            let written = element.write(values.into_iter());
            assert_eq!((written.len(), element.read(&written)), (bytes, expected.to_vec()), "{element:?}");
            assert_eq!(Element::named(element.name()), Some(element));
        }
        // As NumPy and PyTorch round.
        assert_eq!(Element::UInt8.write([0.5, 1.5, 2.5].into_iter()), [0, 2, 2]);
        assert_eq!(Element::named("float64"), None);
    }
}
