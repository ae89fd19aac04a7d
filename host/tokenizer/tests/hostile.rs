//! Prompts and vocabularies that nobody should write: no panic, no endless work, errors that say
//! what is wrong.

use proptest::prelude::*;
use tilewright_tokenizer::{Encoder, Error, Family, Gguf, MAX_TEXT_BYTES, Reading, Tokenizer, bundled_file, clean};

const ENCODERS: [Encoder; 4] = [Encoder::ClipL, Encoder::ClipG, Encoder::T5, Encoder::Umt5];

fn t5() -> Vec<u8> {
    bundled_file(Family::T5).unwrap()
}

fn read_by_all(prompt: &str) {
    for encoder in ENCODERS {
        let tokenizer = Tokenizer::bundled(encoder.family()).unwrap();
        for reading in [Reading::ComfyUi, Reading::Diffusers] {
            let known = |name: &str| Some(name.len());
            let Ok(tokens) = encoder.tokens(&tokenizer, prompt, reading, Some(&known), None) else { continue };
            for chunk in &tokens.chunks {
                assert_eq!(chunk.tokens.len(), chunk.weights.len());
                assert!(chunk.end < chunk.used && chunk.used <= chunk.tokens.len());
                assert!(chunk.weights.iter().all(|weight| weight.is_finite()));
                if encoder.family() == Family::Clip {
                    assert_eq!(chunk.tokens.len(), 77);
                }
            }
        }
    }
}

#[test]
fn a_hundred_thousand_of_anything() {
    for part in
        ["(", ")", "\\", ":", "a", "-", "猫", "\0", "&amp;", "&", " ", "\u{301}", "<|endoftext|>", "</s>", "embedding:"]
    {
        read_by_all(&part.repeat(100_000 / part.len()));
    }
}

#[test]
fn a_prompt_that_is_too_long_is_refused() {
    let clip = Tokenizer::bundled(Family::Clip).unwrap();
    let prompt = "a".repeat(MAX_TEXT_BYTES + 1);
    let error = Encoder::ClipL.tokens(&clip, &prompt, Reading::ComfyUi, None, None).unwrap_err();
    assert_eq!(error.to_string(), "the prompt has 1048577 bytes, 1048576 at most: shorten it");
}

#[test]
fn another_family_is_refused() {
    let clip = Tokenizer::bundled(Family::Clip).unwrap();
    let error = Encoder::T5.tokens(&clip, "a", Reading::ComfyUi, None, None).unwrap_err();
    assert_eq!(error.to_string(), "a prompt for T5 can't be read with the vocabulary of CLIP");
    let error = Tokenizer::from_sentencepiece(&t5(), Family::Clip, usize::MAX).unwrap_err();
    assert_eq!(error.to_string(), "spiece_model: not the vocabulary of CLIP: it has pieces, not byte pairs");
}

#[test]
fn damaged_models_are_refused_or_read() {
    let whole = t5();
    for length in (0..whole.len()).step_by(40_009) {
        let _ = Tokenizer::from_sentencepiece(&whole[..length], Family::T5, usize::MAX);
    }
    // A character map whose trie points anywhere.
    let at = whole.windows(9).position(|bytes| bytes == b"nmt_nfkc\x12").unwrap() + 16;
    for step in [3, 7, 64] {
        let mut damaged = whole.clone();
        damaged[at..].iter_mut().take(200_000).step_by(step).for_each(|byte| *byte ^= 0xa5);
        if let Ok(tokenizer) = Tokenizer::from_sentencepiece(&damaged, Family::T5, usize::MAX) {
            let _ = tokenizer.ids("ﬁne ① 猫 e\u{301} ｆｕｌｌ", Reading::ComfyUi);
        }
    }
}

#[test]
fn metadata_that_does_not_fit_is_refused() {
    let tokens = ["<pad>", "</s>", "<unk>", "a"];
    let gguf = Gguf { tokens: &tokens, scores: &[0.0; 4], token_type: &[3, 3, 2, 1], ..Gguf::default() };
    assert!(Tokenizer::from_gguf(&gguf, Family::T5, usize::MAX).is_ok());
    let message = |gguf: Gguf<'_>| Tokenizer::from_gguf(&gguf, Family::T5, usize::MAX).unwrap_err().to_string();
    assert_eq!(message(Gguf { scores: &[0.0; 3], ..gguf }), "tokenizer.ggml: 3 scores for 4 tokens");
    assert_eq!(message(Gguf { token_type: &[3, 3, 2, 9], ..gguf }), "tokenizer.ggml: token_type 9");
    assert_eq!(message(Gguf { token_type: &[], ..gguf }), "tokenizer.ggml: unknown_token_id is missing");
    assert_eq!(message(Gguf { scores: &[f32::NAN; 4], ..gguf }), "tokenizer.ggml: a piece's score is no number");
    let beyond = Gguf { unknown_token_id: Some(9), ..gguf };
    assert_eq!(message(beyond), "tokenizer.ggml: the unknown token's id is beyond the last piece");
    let other = Gguf { tokens: &["<unk>", "<s>", "</s>", "a"], ..gguf };
    assert_eq!(message(other), "tokenizer.ggml: not the vocabulary of T5: its piece 0 is not <pad>");
    let long = "x".repeat(600);
    let tokens = ["<pad>", "</s>", "<unk>", &long];
    let error = Tokenizer::from_gguf(&Gguf { tokens: &tokens, ..gguf }, Family::T5, usize::MAX).unwrap_err();
    assert!(matches!(error, Error::TooLarge { found: 600, .. }), "{error}");
}

#[test]
fn damaged_json_is_refused() {
    let message =
        |text: &str, family| Tokenizer::from_json(text.as_bytes(), family, usize::MAX).unwrap_err().to_string();
    assert_eq!(message("{}", Family::T5), "tokenizer.json: missing field `model` at line 1 column 2");
    let pieces = r#"{"model":{"vocab":[["<pad>",0.0]]}}"#;
    assert_eq!(message(pieces, Family::T5), "tokenizer.json: its model has no unk_id");
    let clip = r#"{"model":{"vocab":{"a":1},"merges":["ab"]}}"#;
    assert_eq!(message(clip, Family::Clip), "tokenizer.json: its merge 1 is none of two tokens");
    let clip = r#"{"model":{"vocab":{"a":1},"merges":["a b"]}}"#;
    assert!(message(clip, Family::Clip).starts_with("tokenizer.json: its vocabulary lacks the token "));
    let error = message(r#"{"model":{"vocab":{},"merges":[]}}"#, Family::T5);
    assert_eq!(error, "tokenizer.json: not the vocabulary of T5: it has byte pairs, not pieces");
    assert!(Tokenizer::from_json("[".repeat(100_000).as_bytes(), Family::T5, usize::MAX).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_prompt_is_read(prompt in any::<String>()) {
        read_by_all(&prompt);
    }

    #[test]
    fn any_brackets_are_read(prompt in r"([()\\:,]|1\.2|embedding:|[ab \n]|&[a-z#0-9]{1,4};){0,60}") {
        read_by_all(&prompt);
        prop_assert!(clean(&prompt).len() <= 2 * prompt.len());
    }

    #[test]
    fn any_bytes_are_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for family in [Family::Clip, Family::T5, Family::Umt5] {
            let _ = Tokenizer::from_sentencepiece(&bytes, family, usize::MAX);
            let _ = Tokenizer::from_json(&bytes, family, usize::MAX);
        }
    }
}
