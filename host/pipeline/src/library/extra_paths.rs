//! ComfyUI's `extra_model_paths.yaml`: further folders with models, in sections such as one for
//! each program that they are shared with. It is read as ComfyUI's `utils/extra_config.py` reads
//! it, and what can't be read is left out with a warning.

use std::{
    env, fmt,
    path::{Component, Path, PathBuf},
};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use super::walk::Inode;

/// The name of the file, which stands beside ComfyUI's `main.py`.
pub(super) const FILE: &str = "extra_model_paths.yaml";

/// Keys of a section that name no folders of models.
const BASE: &str = "base_path";
const IS_DEFAULT: &str = "is_default";
const NO_MODELS: [&str; 3] = ["configs", "custom_nodes", "download_model_base"];

/// Words for true in YAML 1.1, beside `true`.
const TRUE: [&str; 2] = ["yes", "on"];

/// The most bytes of the file, the most parts of it (aliases replayed), and the most folders.
const MOST_BYTES: u64 = 256 << 10;
const MOST_NODES: usize = 10_000;
const MOST_ALIASES: usize = 256;
const MOST_FOLDERS: usize = 256;

/// The deepest nesting: a section holds lists at most.
const DEEPEST: usize = 16;

/// A folder that ComfyUI searches beside its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExtraFolder {
    /// The folder.
    pub path: PathBuf,
    /// True if it is searched before ComfyUI's own.
    pub is_default: bool,
}

/// The folders that a file names, as far as they are there and not below `own`, in the order in
/// which they are searched.
pub(super) fn folders(file: &Path, own: &Path) -> Vec<ExtraFolder> {
    let text = tilewright_files::read_text(file, MOST_BYTES).map_err(|error| format!("can't be read ({error})"));
    let sections = match text.and_then(|text| parse(&text)) {
        Ok(sections) => sections,
        Err(reason) => {
            tracing::warn!("{}: {reason}: its folders are left out", file.display());
            return Vec::new();
        }
    };
    let variable = |name: &str| env::var(name).ok();
    let named = resolve(&sections, file.parent().unwrap_or(Path::new("")), &variable);
    let own = own.canonicalize().ok();
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for folder in named {
        let (Some(inode), Ok(real)) = (Inode::of(&folder.path), folder.path.canonicalize()) else {
            tracing::info!("{}: {}: no such folder", file.display(), folder.path.display());
            continue;
        };
        let is_own = own.as_ref().is_some_and(|own| real.starts_with(own));
        if !is_own && folder.path.is_dir() && !seen.contains(&inode) {
            seen.push(inode);
            let is_plain = !folder.path.components().any(|part| part == Component::ParentDir);
            let path = if is_plain { folder.path.components().collect() } else { real };
            found.push(ExtraFolder { path, ..folder });
        }
    }
    if found.len() > MOST_FOLDERS {
        tracing::warn!("{}: names {} folders: those after {MOST_FOLDERS} are left out", file.display(), found.len());
        found.truncate(MOST_FOLDERS);
    }
    found
}

/// A reader of the environment's variables.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A node of the file.
#[derive(Debug, PartialEq)]
enum Node {
    Pairs(Vec<(String, Node)>),
    Texts(Vec<String>),
    Flag(bool),
    Nothing,
}

impl Node {
    /// True for a flag that is set, as PyYAML reads it.
    fn is_true(&self) -> bool {
        match self {
            Node::Flag(flag) => *flag,
            Node::Texts(texts) => matches!(&texts[..], [text] if TRUE.contains(&text.to_lowercase().as_str())),
            Node::Pairs(_) | Node::Nothing => false,
        }
    }
}

/// The sections of a text.
fn parse(text: &str) -> Result<Vec<(String, Node)>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * MOST_NODES,
            max_nodes: MOST_NODES,
            max_aliases: MOST_ALIASES,
            max_anchors: MOST_ALIASES,
            max_merge_keys: MOST_ALIASES,
            max_documents: 1,
            max_depth: DEEPEST,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MOST_NODES,
            max_replay_stack_depth: DEEPEST,
        },
        // As PyYAML has it. A folder may be called `y` or `n`, which are flags in YAML 1.1.
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        strict_booleans: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options(text, options) {
        Ok(Node::Pairs(sections)) => Ok(sections),
        Ok(Node::Nothing) => Ok(Vec::new()),
        Ok(Node::Texts(_) | Node::Flag(_)) => Err("holds no sections".into()),
        Err(error) => {
            let words: Vec<String> = error.to_string().split_whitespace().map(str::to_owned).collect();
            Err(format!("no sound YAML ({})", words.join(" ")))
        }
    }
}

/// The folders that sections name. `beside` is the file's folder, and `variable` gives the values
/// of the environment.
fn resolve(sections: &[(String, Node)], beside: &Path, variable: Variable<'_>) -> Vec<ExtraFolder> {
    let (mut first, mut after) = (Vec::new(), Vec::new());
    for (_, section) in sections {
        let Node::Pairs(values) = section else { continue };
        let value = |wanted: &str| values.iter().find(|(key, _)| key == wanted).map(|(_, value)| value);
        let base = match value(BASE) {
            Some(Node::Texts(texts)) => texts.first().map(|text| beside.join(expand(text, variable))),
            _ => None,
        };
        let is_default = value(IS_DEFAULT).is_some_and(Node::is_true);
        let folders = values.iter().filter_map(|(key, value)| match value {
            Node::Texts(texts) if key != BASE && !NO_MODELS.contains(&key.as_str()) => Some(texts),
            _ => None,
        });
        for line in folders.flatten().flat_map(|text| text.lines()).map(str::trim).filter(|line| !line.is_empty()) {
            let at = |line: &str| base.as_deref().unwrap_or(beside).join(home(line, variable));
            let whole = at(line);
            // In a block of lines YAML knows no comments, but people do.
            let path = match line.split_once(" #") {
                Some((before, _)) if !whole.is_dir() => at(before.trim_end()),
                _ => whole,
            };
            if is_default { first.push(path) } else { after.push(path) }
        }
    }
    // Each default goes before those that were named until then.
    let of = |is_default| move |path| ExtraFolder { path, is_default };
    first.into_iter().rev().map(of(true)).chain(after.into_iter().map(of(false))).collect()
}

/// A path with the home folder in the place of `~`.
fn home(path: &str, variable: Variable<'_>) -> String {
    match path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        Some(rest) => variable("HOME").map_or_else(|| path.to_owned(), |home| format!("{home}{rest}")),
        None => path.to_owned(),
    }
}

/// A path with the home folder and the values of `$NAME` and `${NAME}`, where they have one.
fn expand(path: &str, variable: Variable<'_>) -> String {
    let path = home(path, variable);
    let mut pieces = path.split('$');
    let mut expanded = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let braced = piece.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let (name, rest) = braced.unwrap_or_else(|| {
            let end = piece.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(piece.len());
            piece.split_at(end)
        });
        match variable(name) {
            Some(value) => expanded.extend([value.as_str(), rest]),
            None => expanded.extend(["$", piece]),
        }
    }
    expanded
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("sections with folders")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut pairs: Vec<(String, Node)> = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, Node>()? {
                    match pairs.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, earlier)) => *earlier = value,
                        None => pairs.push((key, value)),
                    }
                }
                Ok(Node::Pairs(pairs))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
                let mut texts = Vec::new();
                while let Some(node) = list.next_element()? {
                    if let Node::Texts(more) = node {
                        texts.extend(more);
                    }
                }
                Ok(Node::Texts(texts))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
                Ok(Node::Texts(vec![text.to_owned()]))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Node, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Node, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Node, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_bool<E: Error>(self, flag: bool) -> Result<Node, E> {
                Ok(Node::Flag(flag))
            }

            fn visit_unit<E: Error>(self) -> Result<Node, E> {
                Ok(Node::Nothing)
            }

            fn visit_none<E: Error>(self) -> Result<Node, E> {
                Ok(Node::Nothing)
            }
        }

        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn variable(name: &str) -> Option<String> {
        let known = [("HOME", "/home/ada"), ("DISK", "/mnt/disk")];
        known.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    /// The folders that a file in `/comfy` names, defaults with a star.
    fn named(text: &str) -> Vec<String> {
        let found = resolve(&parse(text).unwrap(), Path::new("/comfy"), &variable);
        let star = |is_default| if is_default { " *" } else { "" };
        found.into_iter().map(|found| format!("{}{}", found.path.display(), star(found.is_default))).collect()
    }

    #[test]
    fn folders_are_those_that_comfyui_searches() {
        let text = r#"
#a comment
comfyui:
     base_path: ~/shared/
     is_default: true
     checkpoints: models/checkpoints/
     text_encoders: |
          models/text_encoders/
          models/clip/  # legacy location still supported

     configs: models/configs
a111:
     base_path: ${DISK}/webui
     loras: |
          models/Lora
          models/LyCORIS
     vae: /elsewhere/vae
others:
     diffusion_models: >-
          flux
     unet: ['one', "two"]
     custom_nodes: nodes
     clip_vision:
nothing:
a_text: words
"#;
        let expected = [
            "/home/ada/shared/models/clip/ *",
            "/home/ada/shared/models/text_encoders/ *",
            "/home/ada/shared/models/checkpoints/ *",
            "/mnt/disk/webui/models/Lora",
            "/mnt/disk/webui/models/LyCORIS",
            "/elsewhere/vae",
            "/comfy/flux",
            "/comfy/one",
            "/comfy/two",
        ];
        assert_eq!(named(text), expected);
        // Relative bases start from the file's folder, and what has no value stays as it is.
        assert_eq!(named("a:\n  base_path: ../x\n  vae: y"), ["/comfy/../x/y"]);
        assert_eq!(named("a:\n  base_path: $NOWHERE/$DISK/x\n  vae: y"), ["/comfy/$NOWHERE//mnt/disk/x/y"]);
        assert_eq!(named("a:\n  vae: ~/y\n  loras: ~ada/y"), ["/home/ada/y", "/comfy/~ada/y"]);
        // Anchors and merged keys, as PyYAML takes them; the last of two keys counts.
        assert_eq!(named("a: &a\n  base_path: /x\n  vae: y\nb:\n  <<: *a\n  vae: z"), ["/x/y", "/x/z"]);
        assert_eq!(named("a:\n  vae: y\n  vae: z"), ["/comfy/z"]);
        for empty in ["", "# nothing", "---\n", "a:", "a: {}", "~"] {
            assert_eq!(named(empty), [""; 0], "{empty:?}");
        }
    }

    #[test]
    fn folders_that_are_there_and_new_are_taken_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["comfy/models/vae", "a/vae", "a/loras"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        std::os::unix::fs::symlink(at("a/vae"), at("a/other")).unwrap();
        fs::write(at("a/file"), "").unwrap();
        let text = "x:\n  base_path: ../a\n  vae: |\n    vae\n    other\n    missing\n    file\n\
                    y:\n  is_default: yes\n  base_path: ../a\n  loras: loras\n\
                    z:\n  vae: models/vae\n";
        fs::write(at("comfy").join(FILE), text).unwrap();
        let found = folders(&at("comfy").join(FILE), &at("comfy/models"));
        let found: Vec<(PathBuf, bool)> =
            found.into_iter().map(|folder| (folder.path.canonicalize().unwrap(), folder.is_default)).collect();
        let real = |name: &str| at(name).canonicalize().unwrap();
        assert_eq!(found, [(real("a/loras"), true), (real("a/vae"), false)]);
        fs::write(at("comfy").join(FILE), vec![b' '; MOST_BYTES as usize + 1]).unwrap();
        assert_eq!(folders(&at("comfy").join(FILE), &at("comfy/models")), []);
    }

    #[test]
    fn hostile_files_are_refused_in_one_line() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..40 {
            let aliases = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        let merged: String =
            (1..2000).map(|key| format!("k{key}: &k{key}\n  <<: *k{}\n  x{key}: y\n", key - 1)).collect();
        let cases = [
            bomb,
            format!("k0: &k0\n  x: y\n{merged}"),
            "[".repeat(200_000),
            "{a: ".repeat(50_000),
            "- ".repeat(100_000),
            "b: 1\n".repeat(40_000),
            "a: *nothing".into(),
            "a: &a [*a]".into(),
            "- a list".into(),
            "words".into(),
            "a: \"open".into(),
            "a:\n\tvae: x".into(),
            "a: [".into(),
            "--- a\n--- b\n".into(),
            "\u{0}".into(),
        ];
        for text in cases {
            match parse(&text) {
                Err(reason) => assert!(!reason.contains('\n') && reason.len() < 400, "{reason}"),
                Ok(read) => panic!("{text:.60}: {:.200}", format!("{read:?}")),
            }
        }
    }
}
