//! The files of a new project, embedded in the program, and their placeholders.

use super::{Language, ProjectError};

/// A file's path in the project and its text.
pub(super) type File = (&'static str, String);

/// The contract, as every project contains it.
const CONTRACT: &str = include_str!("../../../../wit/policy.wit");

/// The workspace's own manifest, for the version of wit-bindgen that the SDK is written for.
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");

macro_rules! files {
    ($folder:literal: $($path:literal = $file:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!("../../templates/", $folder, "/", $file)))),+]
    };
}

macro_rules! sdk {
    ($($file:literal),+ $(,)?) => {
        &[$((concat!("sdk/src/", $file), include_str!(concat!("../../../../policies/sdk/src/", $file)))),+]
    };
}

const RUST: &[(&str, &str)] = files!["rust":
    "Cargo.toml" = "Cargo.toml",
    ".gitignore" = "gitignore",
    "README.md" = "README.md",
    "src/lib.rs" = "src/lib.rs",
    "src/sample.rs" = "src/sample.rs",
    "src/tests.rs" = "src/tests.rs",
    "sdk/Cargo.toml" = "sdk/Cargo.toml",
];

/// The SDK's own sources, so that a project builds without anything being published.
const SDK: &[(&str, &str)] = sdk![
    "arena.rs",
    "bindings.rs",
    "denoise.rs",
    "denoise/settings.rs",
    "description.rs",
    "export.rs",
    "host.rs",
    "lib.rs",
    "options.rs",
    "text.rs",
    "vae.rs",
    "words.rs",
];

/// The paths of the contract in the SDK's bindings: in the checkout, and in a project.
const CONTRACT_PATH: [&str; 2] = ["\"../../wit\"", "\"wit\""];

const C: &[(&str, &str)] = files!["c":
    ".gitignore" = "gitignore",
    "README.md" = "README.md",
    "decide.c" = "decide.c",
    "sample.c" = "sample.c",
    "test.c" = "test.c",
    "sdk/tilewright.h" = "sdk/tilewright.h",
    "sdk/glue.c" = "sdk/glue.c",
    "sdk/memory.c" = "sdk/memory.c",
    "sdk/freestanding/stdlib.h" = "sdk/freestanding/stdlib.h",
    "sdk/freestanding/string.h" = "sdk/freestanding/string.h",
];

const PYTHON: &[(&str, &str)] = files!["python":
    ".gitignore" = "gitignore",
    "README.md" = "README.md",
    "app.py" = "app.py",
    "requirements.txt" = "requirements.txt",
    "sample.py" = "sample.py",
    "test_app.py" = "test_app.py",
];

const JS: &[(&str, &str)] = files!["js":
    ".gitignore" = "gitignore",
    "README.md" = "README.md",
    "package.json" = "package.json",
    "policy.js" = "policy.js",
    "rules.js" = "rules.js",
    "rules.test.js" = "rules.test.js",
    "sample.js" = "sample.js",
];

/// Every file of a new project.
pub(super) fn files(language: Language, name: &str) -> Result<Vec<File>, ProjectError> {
    let (template, contract_at) = match language {
        Language::Rust => (RUST, "sdk/wit/policy.wit"),
        Language::C => (C, "sdk/policy.wit"),
        Language::Python => (PYTHON, "wit/policy.wit"),
        Language::Js => (JS, "wit/policy.wit"),
    };
    let mut files: Vec<File> = template.iter().map(|(path, text)| (*path, fill_placeholders(text, name))).collect();
    files.push((contract_at, CONTRACT.to_owned()));
    match language {
        Language::Rust => {
            files.extend(SDK.iter().map(|(path, text)| (*path, text.replace(CONTRACT_PATH[0], CONTRACT_PATH[1]))));
        }
        Language::C => files.extend(bindings_for_c()?),
        Language::Python | Language::Js => {}
    }
    Ok(files)
}

/// A template's text with its `{{…}}` filled in.
fn fill_placeholders(text: &str, name: &str) -> String {
    text.replace("{{name}}", name)
        // npm allows no capitals.
        .replace("{{name_lower}}", &name.to_ascii_lowercase())
        .replace("{{sdk_version}}", env!("CARGO_PKG_VERSION"))
        .replace("{{wit_bindgen}}", version_of("wit-bindgen"))
        .replace("{{dlmalloc}}", version_of("dlmalloc"))
}

/// The version after `NAME =` in the workspace's manifest.
fn version_of(name: &str) -> &'static str {
    let version = |line: &'static str| line.strip_prefix(name)?.strip_prefix(" = ");
    WORKSPACE.lines().find_map(version).unwrap_or("\"*\"")
}

/// `contract.h` and `contract.c`, by wit-bindgen.
fn bindings_for_c() -> Result<Vec<File>, ProjectError> {
    let failed = |error: anyhow::Error| ProjectError::Bindings { detail: format!("{error:#}") };
    let mut resolve = wit_parser::Resolve::default();
    let package = resolve.push_str("policy.wit", CONTRACT).map_err(failed)?;
    let world = resolve.select_world(&[package], Some("policy")).map_err(failed)?;
    let options = wit_bindgen_c::Opts {
        rename_world: Some("contract".into()),
        // The build adds the contract's section itself.
        no_object_file: true,
        ..wit_bindgen_c::Opts::default()
    };
    let mut generated = wit_bindgen_core::Files::default();
    options.build().generate(&mut resolve, world, &mut generated).map_err(failed)?;
    let text = |name: &str| {
        let bytes = generated.iter().find(|(known, _)| *known == name).map(|(_, bytes)| bytes.to_vec());
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        text.ok_or_else(|| ProjectError::Bindings { detail: format!("wit-bindgen made no {name}") })
    };
    Ok(vec![("sdk/contract.h", text("contract.h")?), ("sdk/contract.c", text("contract.c")?)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_fill_in() {
        for language in [Language::Rust, Language::C, Language::Python, Language::Js] {
            let files = files(language, "My-Rule").unwrap();
            for (path, text) in &files {
                assert!(
                    !text.contains("{{") || !text.contains("}}") || path.starts_with("sdk/src"),
                    "{language}: {path}"
                );
                assert!(text.ends_with('\n'), "{language}: {path}");
            }
            let names = files.iter().filter(|(_, text)| text.contains("My-Rule")).count();
            assert!(names >= 2, "{language} says its name in {names} files");
        }
    }

    #[test]
    fn the_sdk_goes_along_whole_and_finds_the_contract() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies/sdk/src");
        let of = |inner: &str| {
            let entries = std::fs::read_dir(folder.join(inner)).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name.ends_with(".rs"))
                .map(|name| format!("sdk/src/{inner}{name}"))
                .collect::<Vec<_>>()
        };
        let mut sources = [of(""), of("denoise/")].concat();
        sources.sort();
        assert_eq!(sources, SDK.iter().map(|(path, _)| *path).collect::<Vec<_>>());
        let bindings = files(Language::Rust, "p").unwrap();
        let (_, bindings) = bindings.iter().find(|(path, _)| *path == "sdk/src/bindings.rs").unwrap();
        assert!(bindings.contains("path: \"wit\""), "{bindings}");
        assert!(version_of("wit-bindgen").contains("realloc") && version_of("dlmalloc").contains("0.2"));
    }
}
