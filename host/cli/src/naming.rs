//! Names of a command's outputs: given by the user, or derived from the inputs.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use tilewright_media::{NUMBER, Numbering, STANDARD, find_number};

use crate::{
    failure::{Failure, Outcome},
    inputs::Input,
};

/// Placeholder for the input's name.
const NAME: &str = "{name}";

/// The rule that names outputs.
#[derive(Debug)]
pub enum Naming {
    /// After their inputs, in this folder; an empty path is the current folder.
    Inside(PathBuf),
    /// This path, with `{name}` in it replaced.
    As(PathBuf),
}

impl Naming {
    /// Reads `output`; for several inputs it is a folder, unless `{name}` or `{n}` in its name
    /// distinguishes the outputs.
    pub fn of(output: Option<&Path>, inputs: &[Input], several: bool) -> Outcome<Self> {
        let Some(output) = output else {
            if inputs.iter().any(Input::is_standard) {
                return Err(Failure::input(
                    "-o is needed: standard input has no name that an output could be called after",
                ));
            }
            return Ok(Naming::Inside(PathBuf::new()));
        };
        if !several || is_pattern(output) {
            return Ok(Naming::As(output.to_owned()));
        }
        let refused = |reason: &str| Err(Failure::input(format!("{}: {reason}", output.display())));
        let slash = ends_in_slash(output);
        match () {
            () if output.as_os_str() == STANDARD => {
                refused("standard output takes one: for several give a folder, or a name with {name} or {n} in it")
            }
            () if !slash && !output.is_dir() && output.extension().is_some() => {
                refused("one name for several: give a folder (a name that ends in /), or {name} or {n} in the name")
            }
            () => Ok(Naming::Inside(output.to_owned())),
        }
    }

    /// The naming of outputs that are files, as all but clips are: a folder, or a name that ends in
    /// `/`, is the folder of the outputs, even if there is only one.
    #[must_use]
    pub fn of_files(self) -> Self {
        match self {
            Naming::As(path)
                if path.as_os_str() != STANDARD && !is_pattern(&path) && (ends_in_slash(&path) || path.is_dir()) =>
            {
                Naming::Inside(path)
            }
            naming => naming,
        }
    }

    /// The output path of an input; `ending` is used if the name is derived from the input's.
    pub fn path(&self, input: &Input, ending: &str) -> PathBuf {
        let stem = stem(input);
        match self {
            Naming::Inside(folder) => {
                let mut name = stem.to_owned();
                name.push(format!(".{ending}"));
                folder.join(name)
            }
            Naming::As(path) => match path.file_name().map(|name| insert_name(name, stem)) {
                Some(mut name) => {
                    if ends_in_slash(path) {
                        name.push("/");
                    }
                    path.with_file_name(name)
                }
                None => path.clone(),
            },
        }
    }

    /// The place of the number in the output path of an input: `{n}` in the name that the user
    /// gave. In the input's own name it is no more than letters.
    pub fn numbering(&self, input: &Input) -> Numbering {
        let name = match self {
            Naming::Inside(_) => return Numbering::At(None),
            Naming::As(path) => path.file_name().unwrap_or_default(),
        };
        let before = find_number(name).map(|at| OsStr::from_bytes(&name.as_bytes()[..at]));
        Numbering::At(before.map(|before| insert_name(before, stem(input)).len()))
    }

    /// True if each output has a number of its own.
    pub fn is_numbered(&self) -> bool {
        matches!(self, Naming::As(path) if path.file_name().and_then(find_number).is_some())
    }

    /// Refuses two inputs with the same output. Names with `{n}` always differ.
    pub fn check(&self, inputs: &[Input], ending: &str) -> Outcome {
        let mut taken: HashMap<PathBuf, &str> = HashMap::new();
        for input in inputs {
            let path = self.path(input, ending);
            if path.as_os_str() == STANDARD || self.is_numbered() {
                continue;
            }
            if let Some(other) = taken.insert(path.clone(), &input.shown) {
                let (path, shown) = (path.display(), &input.shown);
                return Err(Failure::input(format!(
                    "{path}: {other} and {shown} would both be written to it: decode them apart, or give {NUMBER} in the name"
                )));
            }
        }
        Ok(())
    }

    /// Makes the outputs' folder if it is missing; its parent must exist. Returns the folder if it
    /// was made.
    pub fn make_folder(&self) -> Outcome<Option<&Path>> {
        match self {
            Naming::Inside(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                let failed = |error| Failure::input(format!("{}: can't be made: {error}", folder.display()));
                fs::create_dir(folder).map_err(failed)?;
                Ok(Some(folder))
            }
            _ => Ok(None),
        }
    }
}

/// The name that outputs are called after.
fn stem(input: &Input) -> &OsStr {
    input.stem.as_deref().unwrap_or("standard-input".as_ref())
}

/// True if the name distinguishes the outputs of several inputs.
fn is_pattern(output: &Path) -> bool {
    let name = output.file_name().unwrap_or_default();
    name.to_string_lossy().contains(NAME) || find_number(name).is_some()
}

fn ends_in_slash(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// The name with the input's in the place of `{name}`; its other bytes stay, whether they are UTF-8
/// or not.
fn insert_name(name: &OsStr, stem: &OsStr) -> OsString {
    let (mut rest, mut bytes) = (name.as_bytes(), Vec::new());
    while let Some(at) = rest.windows(NAME.len()).position(|part| part == NAME.as_bytes()) {
        bytes.extend_from_slice(&rest[..at]);
        bytes.extend_from_slice(stem.as_bytes());
        rest = &rest[at + NAME.len()..];
    }
    bytes.extend_from_slice(rest);
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::list_inputs;

    fn inputs(names: &[&str]) -> Vec<Input> {
        list_inputs(&names.iter().map(PathBuf::from).collect::<Vec<_>>(), "latents", None).unwrap()
    }

    #[test]
    fn one_is_named_as_asked_and_several_after_their_inputs() {
        let one = inputs(&["far/v1.5.latent"]);
        let path = |output: Option<&str>| {
            let naming = Naming::of(output.map(Path::new), &one, false).unwrap();
            naming.path(&one[0], "png").display().to_string()
        };
        assert_eq!(path(None), "v1.5.png");
        assert_eq!(path(Some("a.webp")), "a.webp");
        assert_eq!(path(Some("out/{name}-{n}.png")), "out/v1.5-{n}.png");
        assert_eq!(path(Some("{name}/")), "v1.5/");
        let two = inputs(&["a.latent", "far/b.latent"]);
        let paths = |output: Option<&str>| {
            let naming = Naming::of(output.map(Path::new), &two, true).unwrap();
            two.iter().map(|input| naming.path(input, "png").display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(paths(None), ["a.png", "b.png"]);
        assert_eq!(paths(Some("out")), ["out/a.png", "out/b.png"]);
        assert_eq!(paths(Some("{name}.jpg")), ["a.jpg", "b.jpg"]);
        for output in ["a.png", "-"] {
            assert!(Naming::of(Some(Path::new(output)), &two, true).is_err(), "{output}");
        }
    }

    #[test]
    fn the_letters_of_a_number_in_an_inputs_name_are_no_number() {
        let one = inputs(&["a{n}.latent"]);
        let at = |output: Option<&str>| {
            let naming = Naming::of(output.map(Path::new), &one, false).unwrap();
            (naming.path(&one[0], "png").display().to_string(), naming.numbering(&one[0]))
        };
        assert_eq!(at(None), ("a{n}.png".into(), Numbering::At(None)));
        assert_eq!(at(Some("{name}.png")), ("a{n}.png".into(), Numbering::At(None)));
        assert_eq!(at(Some("{n}/{name}.png")), ("{n}/a{n}.png".into(), Numbering::At(None)));
        assert_eq!(at(Some("{name}-{n}.png")), ("a{n}-{n}.png".into(), Numbering::At(Some(5))));
        assert_eq!(at(Some("{n}-{name}.png")), ("{n}-a{n}.png".into(), Numbering::At(Some(0))));
        let two = inputs(&["x/a{n}.latent", "y/a{n}.latent"]);
        let naming = Naming::of(Some(Path::new("out/")), &two, true).unwrap();
        assert!(naming.check(&two, "png").is_err());
    }

    #[test]
    fn a_name_that_is_not_utf_8_stays_as_it_is() {
        let odd = |text: &[u8]| PathBuf::from(OsStr::from_bytes(text));
        let one = list_inputs(&[odd(b"in/\xff.latent")], "latents", None).unwrap();
        let path = |output: Option<&[u8]>| {
            let output = output.map(odd);
            Naming::of(output.as_deref(), &one, false).unwrap().path(&one[0], "png")
        };
        assert_eq!(path(Some(b"z\xfe.png")), odd(b"z\xfe.png"));
        assert_eq!(path(Some(b"z\xfe-{name}-{name}.png")), odd(b"z\xfe-\xff-\xff.png"));
        assert_eq!(path(None), odd(b"\xff.png"));
    }

    #[test]
    fn a_folder_takes_one_file_as_it_takes_several() {
        let one = inputs(&["far/a.latent"]);
        let folder = tempfile::tempdir().unwrap();
        let path = |output: &str| {
            let naming = Naming::of(Some(Path::new(output)), &one, false).unwrap().of_files();
            naming.path(&one[0], "png").display().to_string()
        };
        assert_eq!(path("new/"), "new/a.png");
        let there = folder.path().display().to_string();
        assert_eq!(path(&there), format!("{there}/a.png"));
        for output in ["b.png", "-", "{n}/"] {
            assert_eq!(path(output), output);
        }
    }

    #[test]
    fn two_inputs_of_one_name_are_refused_unless_numbers_tell_them_apart() {
        let two = inputs(&["a/x.latent", "b/x.latent"]);
        let check = |output: &str| Naming::of(Some(Path::new(output)), &two, true).unwrap().check(&two, "png");
        let error = check("out/").unwrap_err().to_string();
        assert!(error.starts_with("out/x.png: a/x.latent and b/x.latent would both be written to it"), "{error}");
        assert!(check("{name}-{n}.png").is_ok() && check("{name}.png").is_err());
    }
}
