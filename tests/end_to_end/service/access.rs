//! Access from elsewhere: loopback by default, tokens, TLS and clients' certificates.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::json;

use super::{jobs::config, server::Server};
use crate::program::{Place, Run};

/// An authority, and a certificate of it for a server on this machine and one for a client, as
/// files.
fn certificates(place: &Place) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(DnType::CommonName, "An authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    place.write("ca.pem", authority.pem());
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("A {name}"));
        let certificate = params.signed_by(&key, &authority).unwrap();
        place.write(&format!("{name}.pem"), certificate.pem());
        place.write(&format!("{name}.key"), key.serialize_pem());
        place.write(&format!("{name}-both.pem"), certificate.pem() + &key.serialize_pem());
    }
}

fn rolled_back(place: &Place, server: &Server, further: &[&str]) -> Run {
    let url = format!("https://127.0.0.1:{}", server.address().port());
    place.run(&[&["policy", "rollback", "adaptive", "--server", &url], further].concat())
}

#[test]
fn tls_keeps_out_who_shows_no_certificate_where_one_is_asked_for() {
    let place = Place::new();
    certificates(&place);
    let tls = "[server.tls]\ncertificate = \"server.pem\"\nkey = \"server.key\"\n";
    let server = Server::start(&place, &(config("") + tls));
    // It comes through to the server, which has nothing to roll back to.
    rolled_back(&place, &server, &["--ca", "ca.pem"]).failed(2, "no previous revision");
    rolled_back(&place, &server, &[]).failed(1, "is 'tilewright serve' running there?");
    drop(server);
    let server = Server::start(&place, &(config("") + tls + "clients = \"ca.pem\"\n"));
    rolled_back(&place, &server, &["--ca", "ca.pem", "--certificate", "client-both.pem"])
        .failed(2, "no previous revision");
    rolled_back(&place, &server, &["--ca", "ca.pem"]).failed(1, "127.0.0.1");
}

#[test]
fn a_token_is_asked_for_and_told_to_nobody() {
    let place = Place::new();
    let token = "a-token-that-nobody-guesses";
    place.write("token", format!("{token}\n"));
    let server = Server::start(&place, &config("").replace("[server]\n", "[server]\ntoken-file = \"token\"\n"));
    server.get("/v1/jobs").with(200);
    server.ask("GET", "/v1/jobs", &[("host", "evil.example")], b"").problem(421);
    server.ask("POST", "/v1/jobs", &[("origin", "https://evil.example")], b"").problem(403);
    let url = server.url();
    place.run(&["policy", "rollback", "adaptive", "--server", &url]).failed(2, "a token is asked for");
    place
        .run(&["policy", "rollback", "adaptive", "--server", &url, "--token-file", "token"])
        .failed(2, "no previous revision");
    server.post("/v1/policies/adaptive/swap", &json!({ "source": "fixed" })).with(200);
    let metrics = String::from_utf8(server.get("/metrics").body).unwrap();
    for reason in ["host", "site", "token"] {
        let line = format!("tilewright_requests_turned_away_total{{reason=\"{reason}\"}} 1\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    for said in ["server.log", "data/rollout.json"] {
        assert!(!fs::read_to_string(place.path(said)).unwrap().contains(token), "{said}");
    }
}

#[test]
fn each_token_does_what_its_role_allows_and_changes_have_a_line() {
    let place = Place::new();
    for (file, token) in
        [("token", "the-operators-own-token"), ("ci", "the-token-of-builds"), ("board", "the-token-on-the-wall")]
    {
        place.write(file, token);
    }
    let tokens = "token-file = \"token\"\naudit = \"audit.log\"\ntokens = [\n\
                  { name = \"ci\", role = \"submit\", file = \"ci\" },\n{ name = \"board\", role = \"read\", file = \"board\" },\n]\n";
    let server = Server::start(&place, &config("").replace("[server]\n", &format!("[server]\n{tokens}")));
    let ask = |token: &str, method: &str, path: &str| {
        let bearer = format!("Bearer {token}");
        let (media, body) = super::server::form(&json!({ "model": "picture" }), &super::jobs::small(4, 4));
        server.ask_as(method, path, &[("authorization", &bearer), ("content-type", media)], &body)
    };
    let (operator, ci, board) = ("the-operators-own-token", "the-token-of-builds", "the-token-on-the-wall");
    for token in [operator, ci, board] {
        ask(token, "GET", "/v1/jobs").with(200);
        assert_eq!(ask(token, "GET", "/metrics").status, 200);
    }
    ask("somebody-elses-token", "GET", "/v1/jobs").problem(401);
    let refused = ask(board, "POST", "/v1/jobs").problem(403);
    assert_eq!(refused, "the token 'board' is good for read, and this takes one for submit");
    let job = ask(ci, "POST", "/v1/jobs").with(202)["id"].as_str().unwrap().to_owned();
    ask(board, "DELETE", &format!("/v1/jobs/{job}")).problem(403);
    ask(ci, "POST", "/v1/policies/adaptive/pause").problem(403);
    ask(ci, "POST", "/v1/modules").problem(403);
    ask(operator, "POST", "/v1/policies/adaptive/pause").with(200);
    let lines = fs::read_to_string(place.path("audit.log")).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = lines
        .iter()
        .map(|line| (line["who"].as_str().unwrap(), line["method"].as_str().unwrap(), line["status"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("board", "POST", 403),
        ("ci", "POST", 202),
        ("board", "DELETE", 403),
        ("ci", "POST", 403),
        ("ci", "POST", 403),
        ("token-file", "POST", 200),
    ];
    assert_eq!(told, expected);
    assert_eq!((&lines[1]["made"], &lines[1]["address"]), (&json!(format!("/v1/jobs/{job}")), &json!("127.0.0.1")));
    let log = fs::read_to_string(place.path("server.log")).unwrap();
    assert_eq!(log.matches("tilewright::audit").count(), expected.len());
    // A renewed token counts at once, and the old one no longer.
    place.write("ci", "another-token-of-builds");
    server.until(|| (ask("another-token-of-builds", "GET", "/v1/jobs").status == 200).then_some(()));
    ask(ci, "GET", "/v1/jobs").problem(401);
    for said in ["server.log", "audit.log"] {
        let text = fs::read_to_string(place.path(said)).unwrap();
        assert!([operator, ci, board, "another-token-of-builds"].iter().all(|token| !text.contains(token)), "{said}");
    }
}

#[test]
fn the_audit_has_what_an_action_came_to_and_the_page_says_it() {
    let place = Place::new();
    let text = config("").replace("[server]\n", "[server]\naudit = \"audit.log\"\n");
    let server = Server::start(&place, &(text + "[policies.own]\nsource = \"fixed\"\n"));
    let page = |path: &str| String::from_utf8(server.get(path).body).unwrap();
    let overview = page("/policies/own");
    let token = overview.split("name=\"form\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let media = [("content-type", "application/x-www-form-urlencoded")];
    let actions = [
        ("policies/own/pause", 200, "own is paused"),
        ("policies/own/resume", 200, "own is asked again"),
        ("policies/own/rollback", 409, "no previous revision"),
        ("policies/nix/pause", 404, "nix"),
        ("policies/own/frobnicate", 404, ""),
        ("routes/nix/frobnicate", 404, ""),
    ];
    for (path, _, words) in actions {
        let answer = server.ask("POST", &format!("/actions/{path}"), &media, format!("form={token}").as_bytes());
        if words.is_empty() {
            assert_eq!(answer.status, 404, "{path}");
            continue;
        }
        assert_eq!(answer.status, 303, "{path}");
        let told = page(answer.headers["location"].to_str().unwrap());
        let notice = told.split("id=\"notice\"").nth(1).unwrap().split("</div>").next().unwrap();
        assert!(notice.contains(words), "{path}: {notice}");
    }
    let lines = fs::read_to_string(place.path("audit.log")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let statuses: Vec<_> = lines
        .map(|line| {
            assert!(line["made"].is_null(), "{line}");
            line["status"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(statuses, actions.map(|(_, status, _)| status));
}

#[test]
fn a_renewed_certificate_counts_without_a_restart_and_says_who_came() {
    let place = Place::new();
    certificates(&place);
    let tls = "[server.tls]\ncertificate = \"server.pem\"\nkey = \"server.key\"\nclients = \"ca.pem\"\n";
    let config = config("").replace("[server]\n", "[server]\naudit = \"audit.log\"\n") + tls;
    let server = Server::start(&place, &config);
    let come = || rolled_back(&place, &server, &["--ca", "ca.pem", "--certificate", "client-both.pem"]);
    come().failed(2, "no previous revision");
    let line = fs::read_to_string(place.path("audit.log")).unwrap();
    assert!(line.contains("\"certificate\":\"CN=A client\""), "{line}");
    let log = || fs::read_to_string(place.path("server.log")).unwrap();
    // A certificate without its key changes nothing.
    place.write("server.pem", fs::read(place.path("client.pem")).unwrap());
    server.until(|| log().contains("new certificates don't serve").then_some(()));
    come().failed(2, "no previous revision");
    // Another authority, and all the certificates that it signs.
    certificates(&place);
    server.until(|| log().contains("certificates were read anew").then_some(()));
    server.until(|| come().stderr().contains("no previous revision").then_some(()));
}

#[test]
fn nobody_listens_to_the_world_unguarded() {
    let place = Place::new();
    place.write("token", "0123456789abcdef");
    place.write("short", "0123456789");
    let listening = |server: &str| config("").replace("listen = \"127.0.0.1:0\"\n", server);
    for (server, words) in [
        ("listen = \"0.0.0.0:0\"\n", "can be reached from other machines"),
        ("listen = \"[::]:0\"\n", "can be reached from other machines"),
        ("listen = \"0.0.0.0:0\"\ntoken-file = \"token\"\n", "behind-proxy"),
        ("listen = \"127.0.0.1:0\"\ntoken-file = \"short\"\n", "at least 16"),
        ("listen = \"127.0.0.1:0\"\ntoken-file = \"missing\"\n", "missing"),
    ] {
        Server::refused(&place, &listening(server)).failed(2, words);
    }
    place.write("tilewright.toml", config(""));
    let elsewhere = place.run(&["serve", "--config", "tilewright.toml", "--listen", "0.0.0.0:0"]);
    elsewhere.failed(2, "can be reached from other machines");
}
