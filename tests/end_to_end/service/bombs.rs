//! Pictures of a few bytes that stand for gigabytes, in each place where the service and the
//! program take one: refused by their headers, before there are pixels.

use std::fs;

use serde_json::json;

use super::{
    pages::token,
    prompts::config,
    server::{Server, form_of},
};
use crate::{
    hostile_files::bombs,
    program::{Place, fixture},
};

/// Bytes that the service may take beside what it takes for a good picture.
const MOST_BYTES: u64 = 256 << 20;

/// The words of each refusal.
const SAID: &str = "GiB to be read, of at most 1.25 GiB: scale it down";

/// A good picture.
fn good() -> Vec<u8> {
    fs::read(fixture("text-clip-vision/64x64.png")).unwrap()
}

#[test]
fn bombs_are_refused_by_their_headers() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    let request = json!({ "model": "flux", "prompt": "a cat", "sample": { "steps": 1, "denoise": 0.9 } });
    let good = good();
    let id = server.submit_files(&request, &[("image", &good), ("mask", &good)]).with(202)["id"].clone();
    assert_eq!(server.ended(id.as_str().unwrap())["state"], "done");
    let before = server.resident_bytes();
    let mut others = Vec::new();
    for (name, bytes) in bombs::large() {
        for (files, words) in
            [(vec![("image", &*bytes)], "image: "), (vec![("image", &*good), ("mask", &*bytes)], "mask: ")]
        {
            let line = server.submit_files(&request, &files).problem(422);
            if !line.starts_with(words) || !line.contains(SAID) {
                others.push(format!("{name}: {line}"));
            }
        }
        let token = token(&server, "/prompt");
        let fields: [(&str, &[u8]); 4] =
            [("form", token.as_bytes()), ("model", b"flux"), ("prompt", b"a cat"), ("image", &bytes)];
        let (media, body) = form_of(&request, &fields);
        let answer = server.ask("POST", "/actions/submit", &[("content-type", media)], &body);
        assert!((300..500).contains(&answer.status), "{name}: {}", answer.status);
    }
    assert_eq!(others, [""; 0]);
    // Data packed beside the pixels are not unpacked, or within bounds.
    for (name, bytes) in bombs::packed().into_iter().chain(bombs::others()) {
        let answer = server.submit_files(&request, &[("image", &bytes), ("mask", &bytes)]);
        assert!([202, 422].contains(&answer.status), "{name}: {}", String::from_utf8_lossy(&answer.body));
        if answer.status == 202 {
            server.ended(answer.json()["id"].as_str().unwrap());
        }
    }
    let taken = server.resident_bytes().saturating_sub(before);
    assert!(taken < MOST_BYTES, "{taken}");
    assert_eq!(server.end(), 0);
}

#[test]
fn the_program_refuses_them_alike() {
    let place = Place::new();
    let model = fixture("generate-flux");
    place.write("good.png", good());
    let mut others = Vec::new();
    for (name, bytes) in bombs::large() {
        place.write(name, bytes);
        let words = format!("{name}: ");
        for files in [&["--image", name][..], &["--image", "good.png", "--mask", name]] {
            let generate = ["generate", "a cat", "--model", &model, "--device", "cpu", "--steps", "1", "-o", "x.png"];
            let run = place.run(&[&generate[..], files].concat());
            run.failed(2, &words);
            if !run.stderr().contains(SAID) {
                others.push(run.stderr());
            }
        }
    }
    assert_eq!(others, [""; 0]);
}
