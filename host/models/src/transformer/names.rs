//! The names of transformers' weights in each file layout. A network asks for weights by the
//! original names, with matrices that are multiplied by the same tokens taken together; a layout is
//! a table of the file's tensors that each of these is made of.

/// The way in which a network's weight is made of a file's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// Their rows, one tensor below the other.
    Rows,
    /// The second half of its rows, then the first.
    Swapped,
}

/// A network's weight and the file's tensors that it is made of. `{i}` stands for a block's number
/// and `{p}` for `weight` or `bias`.
#[derive(Debug)]
pub(crate) struct Row(pub &'static str, pub &'static [&'static str], pub Join);

tilewright_plan::names! {
    /// The layout of a transformer's file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Layout {
        /// The authors' names, which GGUF files have, too.
        Original = "original",
        /// The authors' names as ComfyUI saves them.
        ComfyUi = "ComfyUI",
        /// diffusers' and transformers' names.
        Diffusers = "diffusers",
        /// llama.cpp's names, of text encoders in GGUF files.
        LlamaCpp = "llama.cpp",
    }
}

/// The file's tensors that a network's weight is made of; without a row, the one of the same name.
pub(crate) fn stored_names(rows: &[Row], name: &str) -> (Vec<String>, Join) {
    for Row(pattern, files, join) in rows {
        let Some(captured) = capture(pattern, name) else { continue };
        let fill = |file: &&str| {
            let [number, parameter] = &captured;
            file.replace("{i}", number).replace("{p}", parameter)
        };
        return (files.iter().map(fill).collect(), *join);
    }
    (vec![name.to_owned()], Join::Rows)
}

/// The number and the parameter of a name that fits a pattern.
fn capture(pattern: &str, name: &str) -> Option<[String; 2]> {
    let mut captured = [String::new(), String::new()];
    let mut segments = name.split('.');
    for expected in pattern.split('.') {
        let segment = segments.next()?;
        match expected {
            "{i}" => captured[0] = segment.to_owned(),
            "{p}" if matches!(segment, "weight" | "bias") => captured[1] = segment.to_owned(),
            _ if expected == segment => {}
            _ => return None,
        }
    }
    segments.next().is_none().then_some(captured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_by_the_table() {
        let rows = [
            Row("a.{i}.qkv.{p}", &["b.{i}.q.{p}", "b.{i}.k.{p}"], Join::Rows),
            Row("last.{p}", &["end.{p}"], Join::Swapped),
        ];
        assert_eq!(stored_names(&rows, "a.7.qkv.bias"), (vec!["b.7.q.bias".into(), "b.7.k.bias".into()], Join::Rows));
        assert_eq!(stored_names(&rows, "last.weight"), (vec!["end.weight".into()], Join::Swapped));
        for other in ["a.7.qkv.scale", "a.7.qkv", "a.7.qkv.bias.more", "other"] {
            assert_eq!(stored_names(&rows, other), (vec![other.to_owned()], Join::Rows));
        }
    }
}
