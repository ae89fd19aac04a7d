//! Prompts: weights, chunks and tokens of the bundled vocabularies, as either program reads them.
//! Each is refused in one line, or becomes chunks of one length whose ids the vocabulary has.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tilewright_tokenizer::{Encoder, Reading, Tokenizer};

fuzz_target!(|bytes: &[u8]| {
    let Ok(prompt) = str::from_utf8(bytes) else { return };
    for encoder in [Encoder::ClipL, Encoder::ClipG, Encoder::T5, Encoder::Umt5] {
        let Ok(tokenizer) = Tokenizer::bundled(encoder.family()) else { panic!("the bundled files are sound") };
        for reading in [Reading::ComfyUi, Reading::Diffusers] {
            let tokens = match encoder.tokens(&tokenizer, prompt, reading, None, None) {
                Ok(tokens) => tokens,
                Err(error) => {
                    assert_eq!(error.to_string().lines().count(), 1, "{error}");
                    continue;
                }
            };
            assert!(!tokens.chunks.is_empty());
            for chunk in &tokens.chunks {
                assert_eq!(chunk.tokens.len(), chunk.weights.len());
                assert!(chunk.end < chunk.tokens.len());
                let ids = chunk.ids().unwrap_or_default();
                assert!(ids.iter().all(|id| (*id as usize) < tokenizer.size()), "{ids:?}");
            }
        }
    }
});
