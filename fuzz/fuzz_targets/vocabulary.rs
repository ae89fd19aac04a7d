//! Vocabularies that files bring: sentencepiece models, `tokenizer.json`, `vocab.json` with
//! `merges.txt`, and GGUF's metadata. Each is refused in one line, or reads any text into ids that
//! it has.

#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use tilewright_tokenizer::{Family, Gguf, Reading, Result, Tokenizer};

/// Texts that exercise every rule: case, marks, numbers, scripts, spaces and special tokens.
const TEXTS: [&str; 5] = [
    "",
    "A Red fox's 42 dens, <extra_id_0> </s> <|endoftext|>",
    "naïve Ａ① ﬁ e\u{301} 猫 \u{200d}👩\u{200d}👧 \u{1f1e6}\u{1f1e7}",
    "  \t\n a\u{a0}\u{3000}b \u{2581}c ",
    "(a:1.2) [b] \u{0}\u{7f}\u{fffd}",
];

#[derive(Debug, Arbitrary)]
enum Source<'a> {
    Sentencepiece(&'a [u8]),
    Json(&'a [u8]),
    Merges(&'a [u8], &'a [u8]),
    Gguf { tokens: Vec<&'a str>, scores: Vec<f32>, token_type: Vec<i32>, charsmap: &'a [u8], unknown: Option<u32> },
}

#[derive(Debug, Arbitrary)]
struct Case<'a> {
    family: u8,
    rows: u16,
    text: &'a str,
    source: Source<'a>,
}

impl Case<'_> {
    fn open(&self, family: Family) -> Result<Tokenizer> {
        let rows = usize::from(self.rows);
        match &self.source {
            Source::Sentencepiece(bytes) => Tokenizer::from_sentencepiece(bytes, family, rows),
            Source::Json(bytes) => Tokenizer::from_json(bytes, family, rows),
            Source::Merges(vocabulary, merges) => Tokenizer::from_merges(vocabulary, merges),
            Source::Gguf { tokens, scores, token_type, charsmap, unknown } => {
                let gguf = Gguf {
                    tokens,
                    scores,
                    token_type,
                    precompiled_charsmap: charsmap,
                    unknown_token_id: *unknown,
                };
                Tokenizer::from_gguf(&gguf, family, rows)
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    // Real files are seeds: the first byte says what follows.
    let case = match bytes {
        [kind @ 0..=5, rest @ ..] => {
            let source = if kind % 2 == 0 { Source::Sentencepiece(rest) } else { Source::Json(rest) };
            Case { family: kind / 2, rows: u16::MAX, text: "a cat", source }
        }
        _ => match Case::arbitrary(&mut Unstructured::new(bytes)) {
            Ok(case) => case,
            Err(_) => return,
        },
    };
    let family = [Family::Clip, Family::T5, Family::Umt5][usize::from(case.family) % 3];
    let tokenizer = match case.open(family) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            return;
        }
    };
    for text in TEXTS.into_iter().chain([case.text]) {
        for reading in [Reading::ComfyUi, Reading::Diffusers] {
            if let Ok(ids) = tokenizer.ids(text, reading) {
                assert!(ids.iter().all(|id| (*id as usize) < tokenizer.size()), "{ids:?} of {}", tokenizer.size());
            }
        }
    }
});
