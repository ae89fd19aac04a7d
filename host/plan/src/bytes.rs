//! Sizes in bytes, as people write and read them.

use thiserror::Error;

/// Units that [`parse`] knows, longest suffix first so that `MiB` is not read as `B`.
const UNITS: [(&str, u64); 14] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
    ("", 1),
];

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is not a size: write a number above zero with a unit, as in 8GiB, 512MiB or 1.5GB")]
pub struct NotASize(String);

/// Reads `8GiB`, `512 MiB`, `1.5GB`, `4G` or a plain number of bytes. Letters' case does not
/// matter; `K`, `M`, `G`, `T` are powers of 1024.
///
/// # Errors
/// [`NotASize`] for anything else, and for zero or more than 2⁶³ bytes.
pub fn parse(text: &str) -> Result<u64, NotASize> {
    let refused = || NotASize(text.to_owned());
    let lower = text.trim().to_ascii_lowercase();
    let (number, scale) =
        UNITS.iter().find_map(|(unit, scale)| Some((lower.strip_suffix(unit)?, *scale))).ok_or_else(refused)?;
    let number = number.trim_end();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(refused());
    }
    let bytes = number.parse::<f64>().map_err(|_| refused())? * scale as f64;
    if !(1.0..=i64::MAX as f64).contains(&bytes) {
        return Err(refused());
    }
    Ok(bytes as u64)
}

/// Writes a size with three or four significant digits: `1.23 GiB`, `512 MiB`, `96 B`.
pub fn display(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in units {
        if value < 1000.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    match value {
        _ if unit == "B" => format!("{bytes} B"),
        v if v < 10.0 => format!("{v:.2} {unit}"),
        v if v < 100.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let cases = [
            ("8GiB", 8 << 30),
            ("512MiB", 512 << 20),
            ("512 mib", 512 << 20),
            ("1.5GB", 1_500_000_000),
            ("4G", 4 << 30),
            ("123", 123),
            ("64B", 64),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "GiB",
            "-1GiB",
            "8 apples",
            "0",
            "0GiB",
            "1e3GiB",
            "inf",
            "NaN",
            "1..2M",
            "99999999999TiB",
            "8GiBs",
            "0x10",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(display(96), "96 B");
        assert_eq!(display(512 << 20), "512 MiB");
        assert_eq!(display(1_320_702_443), "1.23 GiB");
    }
}
