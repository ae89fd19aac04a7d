//! The tensors that go into text encoders and come out of them, and the store of their weights.

use std::collections::{HashMap, hash_map::Entry};

use tch::Tensor;
use tilewright_engine::{Texts, WeightStore};
use tilewright_tokenizer::{Chunk, Token};

use super::{Purpose, TextEncoder, TextEncoders};
use crate::{
    PartIdentity, Result,
    text::{EmbeddingFolder, LEFT_OUT, TextRequest, conditioning::IDENTITIES},
};

impl Purpose {
    /// The states of encoders, several of them side by side: as many tokens as all have, since
    /// ComfyUI cuts the longer ones.
    pub(in crate::text) fn join(self, mut texts: Vec<Tensor>) -> Result<Tensor> {
        match texts.len() {
            1 => Ok(texts.remove(0)),
            _ => {
                let least = texts.iter().map(|text| text.size()[1]).min().unwrap_or(0);
                let cut = texts.iter().map(|text| text.f_narrow(1, 0, least));
                Ok(Tensor::f_cat(&cut.collect::<std::result::Result<Vec<_>, _>>()?, 2)?)
            }
        }
    }
}

impl TextEncoder {
    /// The vectors of a chunk's tokens with their positions, [1, tokens, width]. Padding that the
    /// encoder's mask hides is left out: nothing depends on it.
    pub fn embed(&self, chunk: &Chunk, embeddings: Option<&EmbeddingFolder>) -> Result<Tensor> {
        let tokens = &chunk.tokens[..self.tokens_run(chunk)];
        let ids: Vec<u32> = tokens
            .iter()
            .map(|token| match token {
                Token::Id(id) => *id,
                Token::Embedding { .. } => 0,
            })
            .collect();
        let embedded = self.file.embed(&ids)?;
        let mut found: HashMap<&str, Tensor> = HashMap::new();
        for (place, token) in tokens.iter().enumerate() {
            let Token::Embedding { name, vector } = token else { continue };
            let vectors = match found.entry(name) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => {
                    let vectors = embeddings.map(|folder| folder.of(self).find(name)).transpose()?.flatten();
                    place.insert(vectors.ok_or_else(|| self.refused(format!("the embedding {name} is gone")))?)
                }
            };
            embedded.f_get(place as i64)?.f_copy_(&vectors.f_get(*vector as i64)?)?;
        }
        Ok(self.file.add_positions(&embedded.f_unsqueeze(0)?)?)
    }

    /// The encoder with embedded texts, as a job takes them.
    pub fn texts<'a>(&'a self, embedded: &'a [Tensor]) -> Texts<'a> {
        Texts { encoder: &self.file, weights: &self.weights, embedded, left_out: LEFT_OUT }
    }

    /// States with zeros for the padding that was left out.
    pub fn with_padding(&self, states: &Tensor, tokens: usize) -> Result<Tensor> {
        let missing = tokens as i64 - states.size()[1];
        if missing <= 0 {
            return Ok(states.shallow_clone());
        }
        Ok(states.f_constant_pad_nd([0, 0, 0, missing])?)
    }
}

impl TextEncoders {
    /// Leases weights from this store, which other models may share: policies may keep encoders
    /// loaded where it has room.
    #[must_use]
    pub fn sharing(mut self, weights: &WeightStore) -> Self {
        self.encoders.iter_mut().for_each(|encoder| encoder.weights = weights.clone());
        self
    }

    /// The texts of a conditioning's file.
    pub(in crate::text) fn texts(&self, request: &TextRequest<'_>) -> Vec<(String, String)> {
        let prompt = match request.prompts {
            [one] => one.clone(),
            several => serde_json::to_string(several).unwrap_or_default(),
        };
        let names: Vec<String> = self
            .models()
            .into_iter()
            .map(|(model, path)| format!("{model} ({})", path.file_name().unwrap_or_default().to_string_lossy()))
            .collect();
        let files = self.encoders.iter().map(|encoder| PartIdentity::of(encoder.file.file().file()));
        let identities = files.collect::<Result<Vec<_>>>().ok().and_then(|all| serde_json::to_string(&all).ok());
        let texts = [
            ("prompt", prompt),
            ("text_encoders", names.join(", ")),
            (IDENTITIES, identities.unwrap_or_default()),
            ("as", request.convention.to_string()),
        ];
        texts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }
}
