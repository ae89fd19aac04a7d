//! Digests.

pub use tilewright_files::digest::sha256 as of;

/// Whether this is how a SHA-256 digest is written.
pub fn is_sha256(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}
