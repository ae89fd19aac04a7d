//! Reloads: none lets in who was kept out, each token lasts as long as its file holds it, and no
//! error quotes a file to somebody who may not see it.

use std::fs;

use serde_json::{Value, json};

use super::{
    jobs::{config, small},
    server::{Answer, Server, form},
};
use crate::program::{Place, fixture};

const OPERATOR: &str = "the-operators-own-token";
const BUILDS: &str = "the-token-of-builds";
const BOARD: &str = "the-token-on-the-wall";

/// A configuration with three tokens, and further keys of `[server]`.
fn guarded(further: &str) -> String {
    let tokens = "token-file = \"token\"\naudit = \"audit.log\"\ntokens = [\n\
                  { name = \"ci\", role = \"submit\", file = \"ci\" },\n{ name = \"board\", role = \"read\", file = \"board\" },\n]\n";
    config("").replace("[server]\n", &format!("[server]\n{tokens}{further}"))
}

fn with_tokens() -> Place {
    let place = Place::new();
    for (file, token) in [("token", OPERATOR), ("ci", BUILDS), ("board", BOARD)] {
        place.write(file, token);
    }
    place
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn get(server: &Server, token: &str, path: &str) -> Answer {
    server.ask_as("GET", path, &[("authorization", &bearer(token))], b"")
}

fn page(server: &Server, token: &str) -> String {
    String::from_utf8(get(server, token, "/").body).unwrap()
}

fn has_fault(server: &Server) -> bool {
    !server.ask_as("GET", "/readyz", &[], b"").with(200)["detail"].is_null()
}

/// The faults of the audit's lines on reloads.
fn refused_reloads(place: &Place) -> Vec<String> {
    let lines = fs::read_to_string(place.path("audit.log")).unwrap_or_default();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let reloads = lines.filter(|line| line["method"] == "RELOAD" && line["who"] == "the server");
    reloads.map(|line| line["fault"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn no_reload_opens_a_server_to_everybody() {
    let place = with_tokens();
    // All interfaces, as a proxy in front of it would have it.
    let sound = guarded("behind-proxy = true\n").replace("127.0.0.1:0", "0.0.0.0:0");
    let server = Server::start(&place, &sound);
    let stranger = || server.ask_as("GET", "/v1/jobs", &[], b"").status;
    let cut_off = &sound[..sound.find("token-file").unwrap()];
    for (written, words) in [
        ("", "is empty"),
        ("# [server]\n", "is empty"),
        (cut_off, "names no token any more"),
        ("[server]\nlisten = \"127.0.0.1:0\"\n", "names no token any more"),
        (&config(""), "names no token any more"),
        (&config("").replace("127.0.0.1:0", "0.0.0.0:0"), "0.0.0.0:0 can be reached from other machines"),
    ] {
        let before = refused_reloads(&place).len();
        place.write("tilewright.toml", written);
        server.hang_up();
        server.until(|| refused_reloads(&place)[before..].iter().any(|line| line.contains(words)).then_some(()));
        server.until(|| has_fault(&server).then_some(()));
        assert_eq!(stranger(), 401, "{written}");
        assert!(page(&server, OPERATOR).contains(words), "the dashboard says so, too: {words}");
        get(&server, BOARD, "/v1/jobs").with(200);
        let events = get(&server, BOARD, "/v1/events").with(200).to_string();
        assert!(events.contains("reload-refused") && events.contains(words), "{events}");
        place.write("tilewright.toml", &sound);
        server.until(|| (!has_fault(&server)).then_some(()));
    }
    // The address that is listened on counts, whatever the file says; other tokens count at once.
    place.write("tilewright.toml", guarded("").replace("token-file = \"token\"\n", ""));
    server.until(|| page(&server, BUILDS).contains("server.listen, server.behind-proxy changed").then_some(()));
    server.until(|| (get(&server, OPERATOR, "/v1/jobs").status == 401).then_some(()));
    assert_eq!(stranger(), 401);
    get(&server, BUILDS, "/v1/jobs").with(200);
    let audit = fs::read_to_string(place.path("audit.log")).unwrap();
    assert!(!audit.contains("anybody"), "{audit}");
}

#[test]
fn an_empty_configuration_starts_no_server() {
    let place = Place::new();
    for text in ["", "\n# nothing yet\n"] {
        Server::refused(&place, text).failed(2, "tilewright.toml: is empty");
    }
}

#[test]
fn a_token_lasts_as_long_as_its_file_holds_it() {
    let place = with_tokens();
    let server = Server::start(&place, &guarded(""));
    let status = |token: &str| get(&server, token, "/v1/jobs").status;
    assert_eq!([OPERATOR, BUILDS, BOARD].map(status), [200; 3]);
    for (end, words) in
        [("deleted", "ci: can't be read: No such file"), ("emptied", "ci: expected a token of at least 16")]
    {
        match end {
            "deleted" => fs::remove_file(place.path("ci")).unwrap(),
            _ => drop(place.write("ci", "")),
        }
        server.until(|| (status(BUILDS) == 401).then_some(()));
        assert_eq!([OPERATOR, BOARD].map(status), [200; 2], "{end}: the others stay");
        server.until(|| page(&server, OPERATOR).contains(words).then_some(()));
        assert!(has_fault(&server) && refused_reloads(&place).last().unwrap().contains(words), "{end}");
        // The same token is good for the same again.
        place.write("ci", BUILDS);
        server.until(|| (status(BUILDS) == 200).then_some(()));
        server.until(|| (!has_fault(&server)).then_some(()));
    }
    place.write("ci", "another-token-of-builds");
    server.until(|| (status("another-token-of-builds") == 200).then_some(()));
    assert_eq!([OPERATOR, BUILDS, BOARD].map(status), [200, 401, 200]);
    // Without any token left, nobody comes in; and nobody is everybody.
    for file in ["token", "ci", "board"] {
        fs::remove_file(place.path(file)).unwrap();
    }
    let all = [OPERATOR, "another-token-of-builds", BOARD, ""];
    server.until(|| (all.map(status) == [401; 4]).then_some(()));
    assert_eq!(server.ask_as("GET", "/v1/jobs", &[], b"").status, 401);
    server.hang_up();
    place.write("token", OPERATOR);
    server.until(|| (status(OPERATOR) == 200).then_some(()));
    for said in ["server.log", "audit.log"] {
        let text = fs::read_to_string(place.path(said)).unwrap();
        assert!([OPERATOR, BUILDS, BOARD].iter().all(|token| !text.contains(token)), "{said}");
    }
}

#[test]
fn a_key_is_its_tokens_own_and_of_one_request_with_its_files() {
    let place = with_tokens();
    let server = Server::start(&place, &guarded(""));
    let submit = |token: &str, key: &str, request: &Value, latent: &[u8]| {
        let (media, body) = form(request, latent);
        let headers = [("authorization", &*bearer(token)), ("content-type", media), ("idempotency-key", key)];
        server.ask_as("POST", "/v1/jobs", &headers, &body)
    };
    let request = json!({ "model": "picture", "format": "safetensors" });
    let id = |token: &str, key: &str| submit(token, key, &request, &small(4, 4)).with(202)["id"].clone();
    let first = id(BUILDS, "night-1");
    assert_eq!(id(BUILDS, "night-1"), first);
    assert_ne!(id(OPERATOR, "night-1"), first, "another token's key");
    assert_eq!(id(OPERATOR, "night-1"), id(OPERATOR, "night-1"));
    let other = json!({ "model": "picture", "format": "png" });
    let line = submit(BUILDS, "night-1", &other, &small(4, 4)).problem(422);
    assert_eq!(line, "Idempotency-Key: was used for another request: take a new one");
    let mut latent = small(4, 4);
    *latent.last_mut().unwrap() ^= 1;
    let line = submit(BUILDS, "night-1", &request, &latent).problem(422);
    assert_eq!(line, "Idempotency-Key: was used for the same request with other files: take a new one");
    // A job of another token's key is nothing to this one's.
    submit(OPERATOR, "night-1", &request, &latent).problem(422);
    assert_ne!(submit(OPERATOR, "night-2", &request, &latent).with(202)["id"], first);
    drop(server);
    let server = Server::start(&place, &guarded(""));
    let (media, body) = form(&request, &small(4, 4));
    let again = |token: &str| {
        let headers = [("authorization", &*bearer(token)), ("content-type", media), ("idempotency-key", "night-1")];
        server.ask_as("POST", "/v1/jobs", &headers, &body).with(202)["id"].clone()
    };
    assert_eq!(again(BUILDS), first, "also after a restart");
    assert_ne!(again(OPERATOR), first);
}

#[test]
fn no_error_quotes_a_file_that_is_not_what_it_should_be() {
    const SECRET: &str = "s3cr3t-words-of-another-file";
    let place = with_tokens();
    fs::create_dir(place.path("shared")).unwrap();
    place.write("secret", SECRET);
    fs::hard_link(place.path("secret"), place.path("shared/link.safetensors")).unwrap();
    let header = |text: String| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    place.write("shared/text.toml", format!("[server]\ntoken = \"{SECRET}\"\n"));
    place.write("shared/page.html", format!("<html>{SECRET}"));
    place.write("shared/json", format!("{{\"token\": \"{SECRET}\"}}"));
    place.write("shared/header", header(format!("{{\"a\":\"{SECRET}\"}}")));
    place.write(
        "shared/type",
        header(format!("{{\"a\":{{\"dtype\":\"{SECRET}\",\"shape\":[],\"data_offsets\":[0,0]}}}}")),
    );
    place.write("shared/broken", header(format!("{{\"{SECRET}")));
    let roots = format!("roots = [{:?}]\n", place.path("shared").display().to_string());
    let flux = fixture("generate-flux");
    let text = guarded("")
        + &format!(
            "[models.flux]\ntransformer = {flux:?}\ntext-encoder = {flux:?}\nloras = \"shared\"\nvae = {:?}\n",
            format!("{flux}/vae/diffusion_pytorch_model.safetensors")
        );
    let line = text.lines().find(|line| line.starts_with("roots")).unwrap().to_owned() + "\n";
    let server = Server::start(&place, &text.replace(&line, &roots));
    let mut names: Vec<_> = fs::read_dir(place.path("shared")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), 7);
    for path in &names {
        for token in [BUILDS, OPERATOR] {
            let request = json!({ "model": "picture", "latent_path": path }).to_string();
            let headers = [("authorization", &*bearer(token)), ("content-type", "application/json")];
            let line = server.ask_as("POST", "/v1/jobs", &headers, request.as_bytes()).problem(422);
            assert!(line.starts_with("latent: ") && !line.contains("s3cr3t"), "{}: {line}", path.display());
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let sample = |field: &str| json!({ "width": 48, "height": 32, "steps": 3, "paths": { field: path } });
        let mut picture = json!({ "model": "flux", "prompt": "a cat", "sample": sample("image") });
        picture["sample"]["denoise"] = json!(0.5);
        for request in [
            json!({ "model": "flux", "sample": sample("conditioning") }),
            picture,
            json!({ "model": "flux", "prompt": "a cat", "loras": [{ "name": name }] }),
        ] {
            let headers = [("authorization", &*bearer(BUILDS)), ("content-type", "application/json")];
            let line = server.ask_as("POST", "/v1/jobs", &headers, request.to_string().as_bytes()).problem(422);
            assert!(!line.contains("s3cr3t"), "{request}: {line}");
        }
        let (media, body) = form(&json!({ "model": "picture" }), &fs::read(path).unwrap());
        let headers = [("authorization", &*bearer(BUILDS)), ("content-type", media)];
        let line = server.ask_as("POST", "/v1/jobs", &headers, &body).problem(422);
        assert!(!line.contains("s3cr3t"), "{}: {line}", path.display());
    }
    // A configuration that is another file is quoted to those who administer, and to nobody else.
    place.write("tilewright.toml", format!("{SECRET} = 1\n"));
    server.until(|| page(&server, OPERATOR).contains(SECRET).then_some(()));
    assert!(page(&server, BOARD).contains("is not what a configuration has there"));
    for path in ["/", "/v1/events", "/readyz"] {
        let seen = String::from_utf8(get(&server, BOARD, path).body).unwrap();
        assert!(!seen.contains("s3cr3t"), "{path}: {seen}");
    }
}
