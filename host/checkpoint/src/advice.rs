//! Words for files that hold no weights: their format, and the remedy.

use tilewright_files::Format;

/// The message for a file that is not safetensors: its format, and the remedy.
pub fn of_format(format: Format) -> String {
    let (name, advice) = (format.name(), format.advice());
    match format {
        Format::Empty => format!("{name}: {advice}"),
        _ => format!("{name}, not a safetensors file: {advice}"),
    }
}
