//! The work of a GPU that expands packed values before it multiplies by them.

use serde::{Deserialize, Serialize};
use tilewright_plan::Dtype;

use crate::{Scaling, Stored};

/// An expansion of rows in one go: the operators that are launched, and the bytes that they read
/// and write for each value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expansion {
    /// The number of operators.
    pub launches: u32,
    /// Bytes per value.
    pub value_bytes: f64,
}

/// A type that is stored in blocks or by codes: launches, bytes per value without the result, and
/// the times that a result's bytes are written or read.
type Row = (Stored, u32, f64, f64);

/// Every such type, as `device_packed/expansion.rs` of `tilewright-torch` expands it.
const ROWS: [Row; 13] = [
    (Stored::F4, 3, 2.5 + 2.0, 1.0),
    (Stored::Q4_0, 5, 118.0 / 32.0, 1.0),
    (Stored::Q4_1, 4, 116.0 / 32.0, 1.0),
    (Stored::Q5_0, 9, 270.0 / 32.0, 1.0),
    (Stored::Q5_1, 8, 268.0 / 32.0, 1.0),
    (Stored::Q8_0, 2, 42.0 / 32.0, 1.0),
    (Stored::Q2K, 7, 1076.0 / 256.0, 1.0),
    (Stored::Q3K, 18, 2482.0 / 256.0, 1.0),
    (Stored::Q4K, 11, 1020.0 / 256.0, 1.0),
    (Stored::Q5K, 15, 2236.0 / 256.0, 1.0),
    (Stored::Q6K, 10, 2522.0 / 256.0, 1.0),
    (Stored::Iq4Nl, 5, 154.0 / 32.0, 3.0),
    (Stored::Iq4Xs, 13, 1268.0 / 256.0, 3.0),
];

impl Expansion {
    /// The expansion of a type, with scales beside it or without, to the type of products. Rows in
    /// that type, without scales, are taken as they are.
    pub fn of(stored: Stored, scales: Scaling, dtype: Dtype) -> Self {
        let width = dtype.bytes() as f64;
        let has_scales = scales != Scaling::None;
        let scaling = if has_scales { (1, 2.0 * width) } else { (0, 0.0) };
        if let Some((_, launches, read, results)) = ROWS.iter().find(|row| row.0 == stored) {
            return Self { launches: launches + scaling.0, value_bytes: read + results * width + scaling.1 };
        }
        if stored.dtype() == Some(dtype) && !has_scales {
            return Self::default();
        }
        let plain = (stored.block_bytes() / stored.block_values()) as f64 + width;
        match stored {
            // FP8 is converted before it is multiplied.
            Stored::F8E4m3 | Stored::F8E5m2 => Self { launches: 1 + scaling.0, value_bytes: plain + scaling.1 },
            _ => Self { launches: 1, value_bytes: plain },
        }
    }
}

/// The speed of expansions on a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpansionRate {
    /// Bytes read and written per second by operators on large tensors.
    pub bytes_per_second: f64,
    /// Seconds of an operator on a small tensor.
    pub seconds_per_launch: f64,
}

impl ExpansionRate {
    /// The rate through the times of two expansions of one type, of so few values that launches
    /// count alone, and of many.
    pub fn through(expansion: Expansion, few_seconds: f64, (values, many_seconds): (f64, f64)) -> Self {
        let bytes = expansion.value_bytes * values;
        // Noise: the larger expansion counts.
        let moving = if many_seconds > few_seconds { many_seconds - few_seconds } else { many_seconds };
        Self {
            bytes_per_second: bytes / moving.max(1e-9),
            seconds_per_launch: few_seconds / f64::from(expansion.launches.max(1)),
        }
    }

    /// Seconds of an expansion of values in a number of goes.
    pub fn seconds(&self, expansion: Expansion, values: f64, goes: f64) -> f64 {
        let launching = f64::from(expansion.launches) * goes * self.seconds_per_launch;
        launching + expansion.value_bytes * values / self.bytes_per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_values_take_few_bytes_and_their_own_type_none() {
        let bytes = |stored, scales| Expansion::of(stored, scales, Dtype::Bf16).value_bytes;
        for stored in [Stored::Q8_0, Stored::Q4K] {
            assert!(bytes(stored, Scaling::None) <= 8.0, "{stored}");
        }
        for stored in [Stored::Q2K, Stored::Q3K, Stored::Q5K, Stored::Q6K] {
            assert!(bytes(stored, Scaling::None) <= 12.0, "{stored}");
        }
        assert_eq!(Expansion::of(Stored::Bf16, Scaling::None, Dtype::Bf16), Expansion::default());
        assert_eq!(bytes(Stored::F16, Scaling::None), 4.0);
        assert_eq!(bytes(Stored::F8E4m3, Scaling::None), 3.0);
        assert_eq!(bytes(Stored::F8E4m3, Scaling::One), 7.0);
        assert_eq!(bytes(Stored::I8, Scaling::Several), 3.0);
    }

    #[test]
    fn a_rate_goes_through_what_was_measured() {
        let known = ExpansionRate { bytes_per_second: 3e12, seconds_per_launch: 4e-6 };
        let expansion = Expansion::of(Stored::Q4K, Scaling::None, Dtype::Bf16);
        let [few, many] = [0.0, 1e7].map(|values| known.seconds(expansion, values, 1.0));
        let found = ExpansionRate::through(expansion, few, (1e7, many));
        assert!((found.bytes_per_second / known.bytes_per_second - 1.0).abs() < 1e-9);
        assert!((found.seconds_per_launch / known.seconds_per_launch - 1.0).abs() < 1e-9);
        // Many values in less time than few are noise.
        assert!(ExpansionRate::through(expansion, 1.0, (1e7, 0.5)).bytes_per_second > 0.0);
    }
}
