//! Results as they are fetched: whole, in parts, again, slowly, and while they are deleted.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    thread,
};

use serde_json::json;

use super::{
    jobs::{config, small},
    server::{Answer, Server},
};
use crate::program::Place;

/// Bytes of a result that no socket's buffer holds.
const LARGE: usize = 64 << 20;

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place / 251 + place * 7) as u8).collect()
}

/// The id of a picture's job that is done.
fn done(server: &Server) -> String {
    let id = server.accepted(&json!({ "model": "picture" }), &small(4, 4));
    assert_eq!(server.ended(&id)["state"], "done");
    id
}

/// A job that is done, with a large file in the place of its result.
fn large(place: &Place, server: &Server, bytes: &[u8]) -> String {
    let id = done(server);
    fs::write(place.path(&format!("data/jobs/{id}/result.png")), bytes).unwrap();
    id
}

/// A connection on which a result begins to arrive, and its first bytes.
fn begun(server: &Server, id: &str) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let request = format!("GET /v1/jobs/{id}/result HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains(&format!("content-length: {LARGE}\r\n")), "{head}");
    let mut first = vec![0; 64 << 10];
    stream.read_exact(&mut first).unwrap();
    (stream, first)
}

#[test]
fn results_and_thumbnails_are_known_again_by_their_tags() {
    let place = Place::new();
    let mut server = Server::start(&place, &config(""));
    let id = done(&server);
    let other = done(&server);
    for (path, has_parts) in [(format!("/v1/jobs/{id}/result"), true), (format!("/jobs/{id}/thumbnail"), false)] {
        let ask = |method: &str, headers: &[(&str, &str)]| server.ask(method, &path, headers, b"");
        let header = |answer: &Answer, name: &str| answer.headers[name].to_str().unwrap().to_owned();
        let whole = ask("GET", &[]);
        let (tag, date) = (header(&whole, "etag"), header(&whole, "last-modified"));
        assert!(tag.starts_with('"') && tag.contains(&id), "{tag}");
        assert_ne!(server.get(&path.replace(&id, &other)).headers["etag"], *tag);
        let head = ask("HEAD", &[("range", "bytes=0-1")]);
        assert_eq!((head.status, header(&head, "etag"), head.body.len()), (200, tag.clone(), 0), "{path}");
        assert_eq!(header(&head, "content-length"), whole.body.len().to_string());
        for (headers, status, bytes) in [
            (&[("if-none-match", &*tag)][..], 304, 0),
            (&[("if-none-match", "\"other\", *")], 304, 0),
            (&[("if-modified-since", &date)], 304, 0),
            (&[("if-none-match", "\"other\""), ("if-modified-since", &date)], 200, whole.body.len()),
            (&[("if-match", &tag), ("range", "rows=0-1")], 200, whole.body.len()),
            (&[("range", "bytes=0-1,4-5")], 200, whole.body.len()),
            (&[("if-range", "\"other\""), ("range", "bytes=0-1")], 200, whole.body.len()),
        ] {
            for method in ["GET", "HEAD"] {
                let answer = ask(method, headers);
                let expected = if method == "GET" { bytes } else { 0 };
                assert_eq!((answer.status, answer.body.len()), (status, expected), "{method} {path} {headers:?}");
                assert_eq!((header(&answer, "etag"), header(&answer, "last-modified")), (tag.clone(), date.clone()));
                assert!(header(&answer, "cache-control").contains("immutable"), "{headers:?}");
            }
        }
        ask("GET", &[("if-match", "\"other\"")]).problem(412);
        if has_parts {
            for validator in [&tag, &date] {
                let part = ask("GET", &[("if-range", validator), ("range", "bytes=1-3")]);
                assert_eq!((part.status, &part.body[..]), (206, &b"PNG"[..]));
                assert_eq!(header(&part, "etag"), tag);
            }
            assert!(ask("GET", &[("range", "bytes=-0")]).problem(416).contains("there is no such part"));
        }
    }
    let tag = server.get(&format!("/v1/jobs/{id}/result")).headers["etag"].clone();
    server.kill();
    server = Server::start(&place, &config(""));
    assert_eq!(server.get(&format!("/v1/jobs/{id}/result")).headers["etag"], tag);
}

#[test]
fn what_is_deleted_while_it_is_fetched_arrives_whole() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let bytes = pattern(LARGE);
    let id = large(&place, &server, &bytes);
    let (mut stream, mut received) = begun(&server, &id);
    // As the clean-up does it.
    fs::remove_dir_all(place.path(&format!("data/jobs/{id}"))).unwrap();
    server.get(&format!("/v1/jobs/{id}/result")).problem(410);
    stream.read_to_end(&mut received).unwrap();
    assert!(received == bytes, "{} bytes", received.len());
    done(&server);
}

#[test]
fn a_thumbnail_of_what_is_deleted_is_a_picture_or_nothing() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    for _ in 0..20 {
        let id = done(&server);
        let folder = place.path(&format!("data/jobs/{id}"));
        let answers = thread::scope(|scope| {
            let asked = [(); 3].map(|()| scope.spawn(|| server.get(&format!("/jobs/{id}/thumbnail"))));
            // A thumbnail that comes into being makes the folder one that is not empty.
            while folder.exists() {
                let _ = fs::remove_dir_all(&folder);
            }
            asked.map(|asked| asked.join().unwrap())
        });
        for answer in answers {
            match answer.status {
                200 => drop(image::load_from_memory(&answer.body).unwrap()),
                _ => drop(answer.problem(404)),
            }
        }
        assert!(!folder.exists());
        server.get(&format!("/jobs/{id}/thumbnail")).problem(404);
    }
    done(&server);
}

#[test]
fn slow_readers_of_large_results_hold_up_no_job_and_take_no_memory() {
    let place = Place::new();
    let server = Server::start(&place, &config("queue = 1000"));
    let bytes = pattern(LARGE);
    let id = large(&place, &server, &bytes);
    let before = server.resident_bytes();
    let readers: Vec<_> = (0..8).map(|_| begun(&server, &id)).collect();
    let jobs: Vec<String> = (0..40).map(|_| server.accepted(&json!({ "model": "picture" }), &small(4, 4))).collect();
    for id in &jobs {
        assert_eq!(server.ended(id)["state"], "done");
    }
    // Eight results in memory would be twice that.
    let taken = server.resident_bytes().saturating_sub(before);
    assert!(taken < 4 * LARGE as u64, "{taken}");
    for (mut stream, mut received) in readers {
        // A reader that took none for a minute is cut off.
        let _ = stream.read_to_end(&mut received);
        assert!(bytes.starts_with(&received), "{} bytes, and others than the result's", received.len());
    }
}
