//! Idempotency keys, by which a repeated submission gives the job of the first.

use std::{fs::File, io};

use sha2::{Digest, Sha256};

use super::inputs::{Input, Uploads};

/// A key together with the token that it belongs to: the same key of another token is another key.
/// All callers share their keys if no token is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(String);

/// A submission's key, and the files that came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedSubmission {
    pub key: IdempotencyKey,
    /// The digest of the files, by [`digest_uploads`].
    pub uploads: String,
}

impl IdempotencyKey {
    /// The key of a token's bearer, or of any caller if no token is asked for.
    pub fn new(token: Option<&str>, key: &str) -> Self {
        // Neither has a blank in it. Keys without a token are as earlier versions stored all keys,
        // whose owners are not known: no token has those.
        Self(token.map_or_else(|| key.to_owned(), |token| format!("{token} {key}")))
    }

    /// The key as the database has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The digest of the uploads that `is_counted`, by their names: `sha256:` and hexadecimal digits.
///
/// # Errors
/// A file can't be read.
pub fn digest_uploads(uploads: &Uploads, is_counted: impl Fn(Input) -> bool) -> io::Result<String> {
    let mut all = Sha256::new();
    for (input, upload) in uploads.iter().filter(|(input, _)| is_counted(**input)) {
        let mut own = Sha256::new();
        io::copy(&mut File::open(upload.path())?, &mut own)?;
        all.update(input.name());
        all.update([0]);
        all.update(own.finalize());
    }
    Ok(format!("sha256:{:x}", all.finalize()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::*;

    #[test]
    fn a_key_is_its_tokens_own() {
        let keys = [(None, "ci"), (None, "night"), (Some("ci"), "night"), (Some("board"), "night"), (Some("ci"), "ci")];
        let keys = keys.map(|(token, key)| IdempotencyKey::new(token, key));
        for (place, key) in keys.iter().enumerate() {
            assert!(keys[..place].iter().all(|other| other != key), "{key:?}");
        }
    }

    #[test]
    fn another_file_and_the_same_one_in_another_part_have_another_digest() {
        let upload = |bytes: &[u8]| {
            let mut file = NamedTempFile::new().unwrap();
            file.write_all(bytes).unwrap();
            file
        };
        let of = |files: &[(Input, &[u8])]| {
            let uploads = files.iter().map(|(input, bytes)| (*input, upload(bytes))).collect();
            digest_uploads(&uploads, |input| input != Input::Image).unwrap()
        };
        let (mask, noise): (&[u8], &[u8]) = (b"mask", b"noise");
        let first = of(&[(Input::Mask, mask), (Input::Noise, noise)]);
        assert_eq!(first, of(&[(Input::Mask, mask), (Input::Noise, noise), (Input::Image, mask)]));
        for other in [
            of(&[]),
            of(&[(Input::Mask, mask)]),
            of(&[(Input::Mask, noise), (Input::Noise, mask)]),
            of(&[(Input::Mask, mask), (Input::Noise, b"noise ")]),
            of(&[(Input::Latent, mask), (Input::Noise, noise)]),
        ] {
            assert_ne!(first, other);
        }
    }
}
