//! `tilewright demo`: pictures and clips of the models that come along, each by this program in a
//! process of its own, with the command that makes it.

use std::{
    env,
    ffi::OsString,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    args::Demo,
    failure::{Failure, Outcome},
    printer,
    tell::tell,
};

/// The places of what comes along, from the program's folder: of an installed program, and of one
/// that was built here.
const EXAMPLES: [&str; 2] = ["../examples", "../../examples"];

/// The folders of a search for models, for the commands of the demonstration.
const MODELS: &str = "TILEWRIGHT_MODELS";

/// A file of what comes along, in an argument.
const BUNDLED: &str = "examples/";

/// A file that is made, in an argument.
const MADE: &str = "out/";

/// Something that is shown: what it is, its command, and its arguments.
type Shown = (&'static str, &'static str, &'static [&'static str]);

const SHOWN: [Shown; 5] = [
    (
        "a picture of a prompt",
        "generate",
        &["a red circle on a blue square", "--model", "flux-shapes", "-o", "out/prompt.png", "--explain"],
    ),
    (
        "a clip of a prompt",
        "generate",
        &["a green triangle moving left", "--model", "wan-shapes", "-o", "out/prompt.webp"],
    ),
    (
        "the whole picture of a latent",
        "decode",
        &[
            "examples/latents/astronaut.latent",
            "--vae",
            "examples/models/flux-tiny/ae.safetensors",
            "--record",
            "out/astronaut.jsonl",
            "-o",
            "out/astronaut.png",
            "--explain",
        ],
    ),
    (
        "the same in less than half of the memory",
        "decode",
        &[
            "examples/latents/astronaut.latent",
            "--vae",
            "examples/models/flux-tiny/ae.safetensors",
            "--record",
            "out/astronaut.jsonl",
            "-o",
            "out/astronaut-tiled.png",
            "--memory-limit",
            "80MiB",
            "--explain-image",
            "out/astronaut-tiles.png",
        ],
    ),
    (
        "a clip of a latent, its first frame ahead of the others",
        "decode",
        &[
            "examples/latents/shapes.latent",
            "--vae",
            "examples/models/wan-tiny/Wan2.1_VAE.safetensors",
            "--record",
            "out/shapes.jsonl",
            "-o",
            // Every player plays an MP4, and an animated WebP needs no ffmpeg.
            "out/shapes.mp4|out/shapes.webp",
            "--preview",
            "out/shapes-first.png",
            "--explain",
        ],
    ),
];

/// The summary: each file that was made.
const RESULTS: [(&str, &str); 5] = [
    ("the prompts:", "out/prompt.png"),
    ("", "out/prompt.webp"),
    ("the picture:", "out/astronaut.png"),
    ("its tiles:", "out/astronaut-tiles.png"),
    ("the clip:", "out/shapes.mp4|out/shapes.webp"),
];

/// Runs the commands one after the other; the first one that fails ends it.
pub fn run(arguments: &Demo) -> Outcome {
    let program = env::current_exe().map_err(Failure::work)?;
    let examples = find(&program, arguments.examples.as_deref())?;
    fs::create_dir_all(&arguments.output)
        .map_err(|error| Failure::input(format!("{}: can't be made: {error}", arguments.output.display())))?;
    let has_ffmpeg = Command::new("ffmpeg").arg("-version").output().is_ok_and(|run| run.status.success());
    let place = |argument: &str| place(argument, &examples, &arguments.output, has_ffmpeg);
    for (what, command, words) in SHOWN {
        let words: Vec<OsString> = words.iter().map(|word| place(word)).collect();
        let shown: Vec<String> = words.iter().map(|word| shown(&word.to_string_lossy())).collect();
        tell!("");
        tell!("{what}:");
        tell!("  tilewright {command} {}", shown.join(" "));
        let mut run = Command::new(&program);
        run.arg(command).args(words).env(MODELS, examples.join("models"));
        let status = run.status().map_err(|error| Failure::work(format!("{}: {error}", program.display())))?;
        if !status.success() {
            return Err(Failure::work(format!("the demonstration ended there: {command} {status}")));
        }
    }
    let mut stdout = printer::stdout();
    writeln!(stdout)?;
    for (of, made) in RESULTS {
        writeln!(stdout, "{of:<13}{}", place(made).to_string_lossy())?;
    }
    Ok(())
}

/// The folder of what comes along with a program, if no other one is named.
fn find(program: &Path, named: Option<&Path>) -> Outcome<PathBuf> {
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = match named {
        Some(named) => vec![named.to_owned()],
        None => EXAMPLES.map(|examples| folder.join(examples)).to_vec(),
    };
    let found = places.iter().find(|examples| examples.is_dir());
    let found = found.and_then(|examples| examples.canonicalize().ok());
    found.ok_or_else(|| {
        let place = &places[0];
        Failure::work(format!(
            "{}: what the demonstration shows is not there: install tilewright-engine",
            place.display()
        ))
    })
}

/// An argument with the paths of what comes along and of what is made; of two names the first one
/// with ffmpeg.
fn place(argument: &str, examples: &Path, output: &Path, has_ffmpeg: bool) -> OsString {
    let argument = match argument.split_once('|') {
        Some((with, without)) => {
            if has_ffmpeg {
                with
            } else {
                without
            }
        }
        None => argument,
    };
    let below = [(BUNDLED, examples), (MADE, output)];
    let found = below.iter().find_map(|(start, folder)| Some(folder.join(argument.strip_prefix(start)?)));
    found.map_or_else(|| argument.into(), PathBuf::into_os_string)
}

/// An argument as a shell takes it.
fn shown(argument: &str) -> String {
    if argument.contains(' ') { format!("\"{argument}\"") } else { argument.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_comes_along() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let words = || SHOWN.iter().flat_map(|(_, _, words)| words.iter());
        let bundled: Vec<_> = words().filter(|word| word.starts_with(BUNDLED)).collect();
        assert!(bundled.len() >= 6 && bundled.iter().all(|word| root.join(word).is_file()), "{bundled:?}");
        for (_, _, words) in SHOWN {
            let model = words.iter().position(|word| *word == "--model").map(|at| words[at + 1]);
            assert!(model.is_none_or(|model| root.join("examples/models").join(model).join("transformer").is_dir()));
        }
        for (_, made) in RESULTS {
            assert!(words().any(|word| *word == made), "{made}");
        }
    }

    #[test]
    fn what_is_shown_is_found_where_it_is_named() {
        let place = tempfile::tempdir().unwrap();
        let examples = place.path().canonicalize().unwrap();
        let elsewhere = place.path().join("target/debug/tilewright");
        assert_eq!(find(&elsewhere, Some(&examples)).ok(), Some(examples.clone()));
        assert!(find(&elsewhere, Some(&examples.join("missing"))).is_err() && find(&elsewhere, None).is_err());
    }

    #[test]
    fn paths_are_put_in_place() {
        let of = |argument: &str, has_ffmpeg| place(argument, Path::new("/e"), Path::new("o"), has_ffmpeg);
        assert_eq!(of("examples/a b.latent", true), "/e/a b.latent");
        assert_eq!(
            (of("out/x.mp4|out/x.webp", true), of("out/x.mp4|out/x.webp", false)),
            ("o/x.mp4".into(), "o/x.webp".into())
        );
        assert_eq!((of("--vae", true), shown("a b")), ("--vae".into(), "\"a b\"".to_owned()));
    }
}
