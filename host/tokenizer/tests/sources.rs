//! The same vocabulary from a GGUF file's metadata and from a `tokenizer.json` reads text alike.

use base64::Engine;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tilewright_tokenizer::{Family, Gguf, Reading, Tokenizer, bundled_file};

#[path = "fixtures/read.rs"]
mod read;

/// A sentencepiece model's pieces and character map, read by hand: all in these files are short
/// fields in order.
struct Model {
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i32>,
    charsmap: Vec<u8>,
}

fn varint(bytes: &mut &[u8]) -> usize {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= usize::from(byte & 127) << shift;
        shift += 7;
        if byte < 128 {
            return value;
        }
    }
}

fn model(file: &[u8]) -> Model {
    let mut model = Model { tokens: Vec::new(), scores: Vec::new(), types: Vec::new(), charsmap: Vec::new() };
    let mut rest = file;
    while !rest.is_empty() {
        let key = varint(&mut rest);
        let length = varint(&mut rest);
        let (mut message, after) = rest.split_at(length);
        rest = after;
        if key == 0x0a {
            let (mut text, mut score, mut kind) = (String::new(), 0.0, 1);
            while !message.is_empty() {
                match varint(&mut message) {
                    0x0a => {
                        let length = varint(&mut message);
                        text = String::from_utf8(message[..length].to_vec()).unwrap();
                        message = &message[length..];
                    }
                    0x15 => {
                        score = f32::from_le_bytes(message[..4].try_into().unwrap());
                        message = &message[4..];
                    }
                    _ => kind = i32::try_from(varint(&mut message)).unwrap(),
                }
            }
            model.tokens.push(text);
            model.scores.push(score);
            model.types.push(kind);
        } else if key == 0x1a {
            while !message.is_empty() {
                let key = varint(&mut message);
                let value = varint(&mut message);
                if key & 7 == 2 {
                    if key == 0x12 {
                        model.charsmap = message[..value].to_vec();
                    }
                    message = &message[value..];
                }
            }
        }
    }
    model
}

fn compare(other: &Tokenizer, family: Family) {
    let bundled = Tokenizer::bundled(family).unwrap();
    assert_eq!(other.size(), bundled.size());
    for row in read::read("token_ids.jsonl.zst") {
        let text = row["text"].as_str().unwrap();
        for reading in [Reading::ComfyUi, Reading::Diffusers] {
            assert_eq!(other.ids(text, reading), bundled.ids(text, reading), "{text:?}");
        }
    }
}

fn check(family: Family, digest: &str, extra: usize, filling: usize) {
    let file = bundled_file(family).unwrap();
    assert_eq!(format!("{:x}", Sha256::digest(&file)), digest);
    let mut model = model(&file);
    let pieces: Vec<Value> =
        model.tokens.iter().zip(&model.scores).map(|(text, score)| json!([text, f64::from(*score)])).collect();
    let added = |kinds: &[i32]| -> Vec<Value> {
        let chosen = model.types.iter().enumerate().filter(|(_, kind)| kinds.contains(kind));
        chosen.map(|(id, _)| json!({"id": id, "content": model.tokens[id], "special": true})).collect()
    };
    let charsmap = base64::engine::general_purpose::STANDARD.encode(&model.charsmap);
    let normalizer = match model.charsmap.is_empty() {
        true => Value::Null,
        false => {
            json!({"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap}]})
        }
    };
    let unknown = model.types.iter().position(|kind| *kind == 2).unwrap();
    let file = json!({
        "added_tokens": added(&[2, 3]),
        "normalizer": normalizer,
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": pieces},
    });
    compare(&Tokenizer::from_json(&serde_json::to_vec(&file).unwrap(), family, usize::MAX).unwrap(), family);

    // llama.cpp's conversion adds the further tokens, and fills up to the embedding's rows.
    model.tokens.extend((0..extra).rev().map(|number| format!("<extra_id_{number}>")));
    model.types.resize(model.tokens.len(), 4);
    model.tokens.extend((0..filling).map(|number| format!("[PAD{number}]")));
    model.types.resize(model.tokens.len(), 5);
    model.scores.resize(model.tokens.len(), -1000.0);
    let tokens: Vec<&str> = model.tokens.iter().map(String::as_str).collect();
    let gguf = Gguf {
        tokens: &tokens,
        scores: &model.scores,
        token_type: &model.types,
        precompiled_charsmap: &model.charsmap,
        unknown_token_id: None,
    };
    compare(&Tokenizer::from_gguf(&gguf, family, usize::MAX).unwrap(), family);
}

#[test]
fn t5() {
    check(Family::T5, "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86", 100, 28);
}

#[test]
fn umt5() {
    check(Family::Umt5, "e3909a67b780650b35cf529ac782ad2b6b26e6d1f849d3fbb6a872905f452458", 300, 84);
}

#[test]
fn clip() {
    let merges = String::from_utf8(bundled_file(Family::Clip).unwrap()).unwrap();
    let mut letters: Vec<char> =
        (0x21..=0x7e).chain(0xa1..=0xac).chain(0xae..=0xff).filter_map(char::from_u32).collect();
    letters.extend((0x100..).filter_map(char::from_u32).take(256 - letters.len()));
    let ends = letters.iter().map(|letter| format!("{letter}</w>"));
    let names = letters.iter().map(char::to_string).chain(ends).chain(merges.lines().map(|line| line.replace(' ', "")));
    let tokens: serde_json::Map<String, Value> = names.enumerate().map(|(id, name)| (name, Value::from(id))).collect();
    for pairs in [false, true] {
        let merge = |line: &str| match pairs {
            true => json!(line.split(' ').collect::<Vec<_>>()),
            false => json!(line),
        };
        let file = json!({
            "added_tokens": [{"id": 49406, "content": "<|startoftext|>"}, {"id": 49407, "content": "<|endoftext|>"}],
            "model": {"type": "BPE", "vocab": tokens, "merges": merges.lines().map(merge).collect::<Vec<_>>()},
        });
        compare(
            &Tokenizer::from_json(&serde_json::to_vec(&file).unwrap(), Family::Clip, usize::MAX).unwrap(),
            Family::Clip,
        );
    }
    let mut tokens = tokens;
    tokens.extend([("<|startoftext|>".to_owned(), json!(49406)), ("<|endoftext|>".to_owned(), json!(49407))]);
    let merges = format!("#version: 0.2\n{merges}");
    let tokenizer = Tokenizer::from_merges(&serde_json::to_vec(&tokens).unwrap(), merges.as_bytes()).unwrap();
    compare(&tokenizer, Family::Clip);
    let message =
        |tokens: &str, merges: &[u8]| Tokenizer::from_merges(tokens.as_bytes(), merges).unwrap_err().to_string();
    assert!(message("[]", b"").contains("vocab.json"));
    assert!(message("{}", b"ab\n").contains("merges.txt: line 1 is none of two tokens"));
    assert!(message("{}", b"\xff").contains("merges.txt"));
    assert!(message("{}", b"").contains("lacks the token"));
}
