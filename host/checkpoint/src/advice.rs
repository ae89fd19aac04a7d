//! Words for files that hold no weights: their format, and the remedy.

use tilewright_files::Format;

/// The message for a file that is not safetensors: its format, and the remedy.
pub fn of_format(format: Format, start: &[u8]) -> String {
    let (name, advice) = (format.name(), format.advice());
    match format {
        // A server's answer in place of a file tells the fault.
        Format::Text => format!("{name} ('{}'), not a safetensors file: {advice}", beginning(start)),
        Format::Empty => format!("{name}: {advice}"),
        _ => format!("{name}, not a safetensors file: {advice}"),
    }
}

/// A text's first line, cut short.
fn beginning(start: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(start);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let shown: String = line.chars().take(MOST).collect();
    if shown.len() < line.len() { shown + "…" } else { shown }
}
