//! Conditionings that are kept, so that a prompt is encoded once.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use sha2::{Digest, Sha256};
use tilewright_files::UserFolder;
use tilewright_outputs::OwnFolder;
use tilewright_plan::PolicyIdentity;

use super::{Conditioning, TextRequest, encoders};
use crate::{Error, Result, sample::check_conditioning};

/// The folder within the user's cache.
const FOLDER: &str = "conditioning";

/// The version of kept conditionings: a change of it makes all of them again.
const VERSION: u8 = 2;

/// The most bytes that are kept.
const MOST_BYTES: u64 = 1 << 30;

/// The ending of conditionings' files.
const ENDING: &str = ".safetensors";

/// The endings of files that a conditioning depends on.
const READ: [&str; 9] = ["safetensors", "gguf", "pth", "pt", "bin", "ckpt", "json", "model", "txt"];

/// A folder of kept conditionings.
#[derive(Debug)]
pub struct KeptConditionings(OwnFolder);

impl KeptConditionings {
    /// Opens the folder in the user's cache; none if there is no cache.
    ///
    /// # Errors
    /// It can't be made, or is somebody else's.
    pub fn open() -> io::Result<Option<Self>> {
        let Some(cache) = UserFolder::Cache.path() else { return Ok(None) };
        fs::create_dir_all(&cache)?;
        Ok(Some(Self(OwnFolder::open(&cache.join(FOLDER))?)))
    }

    /// The kept conditioning of a request to the encoders at these paths, if there is a sound one.
    ///
    /// # Errors
    /// An encoder's file is not there.
    pub(super) fn find(
        &self,
        paths: &[PathBuf],
        request: &TextRequest<'_>,
        policy: &PolicyIdentity,
    ) -> Result<(String, Option<PathBuf>)> {
        let key = key(paths, request, policy)?;
        let path = self.0.path().join(format!("{key}{ENDING}"));
        Ok((key, Some(path).filter(|path| is_sound(path))))
    }

    /// Keeps a conditioning by its key, and returns its path. The oldest ones go if they become
    /// too many.
    ///
    /// # Errors
    /// It can't be written, or is not finite.
    pub(super) fn keep(&self, key: &str, conditioning: &Conditioning) -> Result<PathBuf> {
        let (name, new) = (format!("{key}{ENDING}"), format!("{key}.{}.new", std::process::id()));
        let path = self.0.path().join(&name);
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| Error::Write { path: path.clone(), source };
        let bytes = conditioning.bytes().map_err(failed)?;
        self.0.replace(&name, &new, &bytes).map_err(|error| failed(error.into()))?;
        // A fault of the tidying leaves more than is wanted, and harms nothing else.
        if let Err(error) = self.tidy(&name) {
            tracing::warn!(%error, "kept conditionings can't be tidied");
        }
        Ok(path)
    }

    fn tidy(&self, newest: &str) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, String)> = Vec::new();
        for name in self.0.names()? {
            let Some(name) = name.to_str().filter(|name| name.ends_with(ENDING) && *name != newest) else { continue };
            let facts = self.0.path().join(name).symlink_metadata()?;
            files.push((facts.modified()?, facts.len(), name.to_owned()));
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, size, name) in files {
            if bytes <= MOST_BYTES {
                break;
            }
            self.0.remove(&name)?;
            bytes -= size;
        }
        Ok(())
    }
}

/// True of a kept file that can be used. A damaged one is made again: no fault of the prompt's.
fn is_sound(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let checked = check_conditioning(path);
    checked.inspect_err(|error| tracing::warn!(%error, "a kept conditioning is damaged, and is made again")).is_ok()
}

/// The settings of a policy that change the bits of a conditioning.
const OF_BITS: [&str; 2] = ["precision", "place"];

/// A digest of all that a conditioning follows from: prompts, the way that they are read, the
/// policy that decides of types, and the encoders' files as the file system identifies them.
fn key(paths: &[PathBuf], request: &TextRequest<'_>, policy: &PolicyIdentity) -> Result<String> {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    };
    let settings = OF_BITS.map(|name| policy.settings.get(name).map(ToString::to_string).unwrap_or_default());
    let tokens = request.tokens;
    add(&format!("{VERSION} {} {tokens:?} {} {}", request.convention, policy.digest, settings.join(" ")));
    request.prompts.iter().for_each(|prompt| add(prompt));
    let mut files: Vec<String> = Vec::new();
    for path in paths {
        for (file, folders) in encoders::files(path) {
            let all =
                [file].into_iter().chain(folders).chain(request.embeddings.map(|folder| folder.path().to_owned()));
            for path in all {
                describe(&path, &mut files)?;
            }
        }
    }
    files.sort();
    files.dedup();
    files.iter().for_each(|file| add(file));
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The facts of a file, or of each file of weights and settings in a folder.
fn describe(path: &Path, files: &mut Vec<String>) -> Result<()> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let paths = match path.is_dir() {
        true => fs::read_dir(path).map_err(failed)?.flatten().map(|entry| entry.path()).collect(),
        // A folder of a tokenizer need not be there.
        false if path.extension().is_none() && !path.exists() => Vec::new(),
        false => vec![path.to_owned()],
    };
    for path in paths {
        let is_read = path.extension().is_some_and(|ending| READ.iter().any(|known| ending == *known));
        if is_read || path.is_file() && path.extension().is_none() {
            let facts = tilewright_files::facts(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
            let modified = facts.modified().ok();
            files.push(format!("{} {} {} {modified:?} {}", facts.dev(), facts.ino(), facts.len(), path.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tch::Tensor;
    use tilewright_plan::{Objective, Value};
    use tilewright_sampling::Convention;

    use super::*;

    fn request(prompts: &[String], convention: Convention) -> TextRequest<'_> {
        TextRequest {
            prompts,
            convention,
            tokens: None,
            embeddings: None,
            memory_limit: 1,
            objective: Objective::Balanced,
        }
    }

    fn policy(precision: &str, tile: i64) -> PolicyIdentity {
        let settings =
            [("precision".into(), Value::Text(precision.into())), ("tile".into(), Value::Integer(tile))].into();
        PolicyIdentity { name: "p".into(), version: "1".into(), digest: "sha256:00".into(), settings }
    }

    #[test]
    fn a_key_changes_with_prompt_settings_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t5.safetensors");
        fs::write(&file, "weights").unwrap();
        let prompts = |text: &str| [text.to_owned()];
        let (cat, dog) = (prompts("cat"), prompts("dog"));
        let auto = policy("auto", 1);
        let paths = [file.clone()];
        let by = |request: &TextRequest<'_>, policy: &PolicyIdentity| key(&paths, request, policy).unwrap();
        let of = |request: &TextRequest<'_>| by(request, &auto);
        let first = of(&request(&cat, Convention::ComfyUi));
        assert_eq!(first, of(&TextRequest { memory_limit: 2, ..request(&cat, Convention::ComfyUi) }));
        assert_ne!(first, of(&request(&dog, Convention::ComfyUi)));
        assert_ne!(first, of(&request(&cat, Convention::Diffusers)));
        assert_eq!(first, by(&request(&cat, Convention::ComfyUi), &policy("auto", 2)));
        assert_ne!(first, by(&request(&cat, Convention::ComfyUi), &policy("bf16", 1)));
        fs::write(&file, "other weights").unwrap();
        assert_ne!(first, of(&request(&cat, Convention::ComfyUi)));
        let none = [folder.path().join("none.safetensors")];
        assert!(key(&none, &request(&cat, Convention::ComfyUi), &auto).is_err());
    }

    #[test]
    fn what_is_not_finite_is_not_kept_and_what_is_damaged_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t5.safetensors");
        fs::write(&file, "weights").unwrap();
        let kept = KeptConditionings(OwnFolder::open(&folder.path().join("kept")).unwrap());
        let (paths, cat, policy) = ([file], ["cat".to_owned()], policy("auto", 1));
        let found = || kept.find(&paths, &request(&cat, Convention::ComfyUi), &policy).unwrap();
        let conditioning = |text: f32, pooled: f32| Conditioning {
            text: Tensor::from_slice(&[1.0, text]).reshape([1, 1, 2]),
            pooled: Some(Tensor::from_slice(&[pooled]).reshape([1, 1])),
            image: None,
            condition: None,
            texts: Vec::new(),
        };
        let (key, none) = found();
        assert_eq!(none, None);
        for [text, pooled] in [[f32::NAN, 1.0], [f32::INFINITY, 1.0], [1.0, f32::NEG_INFINITY]] {
            kept.keep(&key, &conditioning(text, pooled)).unwrap_err();
            assert_eq!(found().1, None, "{text} {pooled}");
        }
        let path = kept.keep(&key, &conditioning(2.0, 3.0)).unwrap();
        let whole = fs::read(&path).unwrap();
        assert_eq!(found().1.as_ref(), Some(&path));
        // As another version may have left it.
        let mut spoilt = whole.clone();
        let at = spoilt.len() - 4;
        spoilt[at..].copy_from_slice(&f32::NAN.to_le_bytes());
        for damaged in [&spoilt[..], &whole[..at], b""] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(found().1, None, "{} bytes", damaged.len());
            kept.keep(&key, &conditioning(2.0, 3.0)).unwrap();
            assert_eq!(found().1.as_ref(), Some(&path));
        }
    }
}
