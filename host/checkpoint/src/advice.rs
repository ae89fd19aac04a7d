//! Words for files that hold no weights: their format, and the remedy.

use std::path::Path;

use tilewright_files::Format;

/// The message for a file that is not safetensors: its format, and the remedy.
pub fn of_format(format: Format, path: &Path, start: &[u8]) -> String {
    let (name, advice) = (format.name(), format.advice());
    match format {
        Format::Pickle | Format::PickleInZip => {
            let command = conversion(path, &path.with_extension("safetensors"));
            format!("{name}, not safetensors: {advice}: {command}")
        }
        // A server's answer in place of a file tells the fault.
        Format::Text => format!("{name} ('{}'), not a safetensors file: {advice}", beginning(start)),
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

/// The shell command that makes a safetensors file of a pickle without running code in it. Weights
/// may stand under `state_dict`; tied ones share memory, which safetensors can't express.
pub fn conversion(from: &Path, to: &Path) -> String {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    format!(
        "python3 -c \"import sys, torch, safetensors.torch as s; d = torch.load(sys.argv[1], map_location='cpu', weights_only=True); \
         d = d.get('state_dict', d); \
         s.save_file({{k: v.clone().contiguous() for k, v in d.items() if hasattr(v, 'clone')}}, sys.argv[2])\" {} {}",
        quoted(from),
        quoted(to)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conversion_can_be_pasted_into_a_shell() {
        let command = conversion(Path::new("a b/it's.pth"), Path::new("out.safetensors"));
        assert!(command.starts_with("python3 -c \"import sys, torch"), "{command}");
        assert!(command.contains("weights_only=True"), "{command}");
        assert!(command.ends_with(r#"sys.argv[2])" 'a b/it'\''s.pth' 'out.safetensors'"#), "{command}");
        // Nothing within the double quotes is the shell's.
        assert_eq!(command.matches('"').count(), 2, "{command}");
        assert!(!command.contains(['$', '`', '!']), "{command}");
    }
}
