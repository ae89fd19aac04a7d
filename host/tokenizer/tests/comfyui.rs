//! Chunks against those of ComfyUI's own tokenizers (`fixtures/comfyui.py`), for 375 prompts with
//! weights and embeddings.

use std::sync::Arc;

use serde_json::Value;
use tilewright_tokenizer::{Encoder, Reading, Token, Tokenizer};

#[path = "fixtures/read.rs"]
mod read;

/// The embeddings that the fixture's prompts can name.
fn vectors(name: &str) -> Option<usize> {
    let known = [("one", 1), ("three", 3), ("long", 12), ("longest", 90), ("comma,", 2), ("dir/sub", 2), ("猫", 2)];
    known.iter().find(|(known, _)| *known == name).map(|(_, vectors)| *vectors)
}

/// A chunk of the fixture, unpacked.
fn unpacked(chunk: &Value) -> (Vec<Token>, Vec<f32>) {
    let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let token = |value: &Value| match value {
        Value::Array(embedding) => {
            Token::Embedding { name: Arc::from(embedding[0].as_str().unwrap()), vector: number(&embedding[1]) }
        }
        id => Token::Id(u32::try_from(id.as_u64().unwrap()).unwrap()),
    };
    let mut tokens: Vec<Token> = chunk["tokens"].as_array().unwrap().iter().map(token).collect();
    let mut weights = Vec::new();
    for run in chunk["weights"].as_array().unwrap() {
        weights.resize(weights.len() + number(&run[1]), run[0].as_f64().unwrap() as f32);
    }
    let length = number(&chunk["length"]);
    tokens.resize(length, tokens.last().unwrap().clone());
    weights.resize(length, *weights.last().unwrap());
    (tokens, weights)
}

fn check(encoder: Encoder, name: &str) {
    let tokenizer = Tokenizer::bundled(encoder.family()).unwrap();
    let rows = read::read("comfyui.jsonl.zst");
    assert_eq!(rows.len(), 375);
    for row in rows {
        let prompt = row["prompt"].as_str().unwrap();
        let tokens = encoder.tokens(&tokenizer, prompt, Reading::ComfyUi, Some(&vectors), None).unwrap();
        let expected: Vec<_> = row[name].as_array().unwrap().iter().map(unpacked).collect();
        assert_eq!(tokens.chunks.len(), expected.len(), "{prompt:?}");
        for (chunk, (tokens, weights)) in tokens.chunks.iter().zip(expected) {
            assert_eq!(chunk.tokens, tokens, "{prompt:?}");
            assert_eq!(chunk.weights, weights, "{prompt:?}");
        }
    }
}

#[test]
fn clip_l() {
    check(Encoder::ClipL, "l");
}

#[test]
fn clip_g() {
    check(Encoder::ClipG, "g");
}

#[test]
fn t5() {
    check(Encoder::T5, "t5xxl");
}

#[test]
fn umt5() {
    check(Encoder::Umt5, "umt5xxl");
}
