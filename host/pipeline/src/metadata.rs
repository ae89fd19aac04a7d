//! Texts that are written into pictures beside their pixels.

use tilewright_media::{Texts, is_keyword};

/// The keyword of the decision record among a PNG's text chunks.
pub const RECORD_KEYWORD: &str = "tilewright";

/// ComfyUI's workflow and the like, so that a picture can be dragged back into it.
#[cfg(feature = "torch")]
pub fn texts(latent: &tilewright_models::Latent) -> Texts {
    without_file_texts(latent.texts.clone())
}

/// The texts that pass from a picture or latent to another file: all but those about the file
/// itself.
pub fn without_file_texts(mut texts: Texts) -> Texts {
    texts.retain(|(name, _)| is_keyword(name) && name != "format" && name != RECORD_KEYWORD);
    texts
}
