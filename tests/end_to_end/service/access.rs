//! Who comes in from where: loopback by default, tokens, TLS and clients' certificates.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::json;

use super::{jobs::config, server::Server};
use crate::program::{Place, Run};

/// An authority, and a certificate of it for a server on this machine and one for a client, as files.
fn certificates(place: &Place) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name.push(DnType::CommonName, "An authority");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    place.write("ca.pem", authority.pem());
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
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
