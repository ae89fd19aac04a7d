//! Figures with their units, for people.

/// A time: `812 µs`, `12.3 ms`, `4.56 s`.
pub fn time(ms: f64) -> String {
    match ms.abs() {
        size if size == 0.0 || !size.is_finite() => "0 ms".to_owned(),
        size if size < 1.0 => format!("{} µs", digits(ms * 1e3)),
        size if size < 1e4 => format!("{} ms", digits(ms)),
        _ => format!("{} s", digits(ms / 1e3)),
    }
}

/// A share in percent: `12.3 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A rate of operations: `1.23 TFLOP/s`.
pub fn operation_rate(per_second: f64) -> String {
    with_prefix(per_second, "FLOP/s")
}

/// A rate of bytes: `456 GB/s`.
pub fn byte_rate(per_second: f64) -> String {
    with_prefix(per_second, "B/s")
}

/// A number of operations: `1.23 TFLOP`.
pub fn operations(count: f64) -> String {
    with_prefix(count, "FLOP")
}

/// A number of bytes: `456 MB`.
pub fn bytes(count: f64) -> String {
    with_prefix(count, "B")
}

/// Powers of a thousand, the largest first.
const PREFIXES: &[(f64, &str)] = &[(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];

fn with_prefix(value: f64, unit: &str) -> String {
    let prefix = PREFIXES.iter().find(|(size, _)| value.abs() >= *size);
    let (size, prefix) = prefix.copied().unwrap_or((1.0, ""));
    format!("{} {prefix}{unit}", digits(value / size))
}

/// Three digits.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!(
            [0.0, 0.0123, 12.345, 9999.0, 12_345.0].map(time),
            ["0 ms", "12.3 µs", "12.3 ms", "9999 ms", "12.3 s"]
        );
        assert_eq!([1.5e9, 2.0e13].map(operation_rate), ["1.50 GFLOP/s", "20.0 TFLOP/s"]);
        assert_eq!(
            (byte_rate(4.56e11), bytes(12.0), operations(7e6)),
            ("456 GB/s".into(), "12.0 B".into(), "7.00 MFLOP".into())
        );
        assert_eq!(percent(0.1234), "12.3 %");
    }
}
