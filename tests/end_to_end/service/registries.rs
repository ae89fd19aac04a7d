//! Policies from registries: a server asks those that its configuration names, and is led nowhere
//! else.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
};

use serde_json::json;

use super::{jobs::config, server::Server};
use crate::program::Place;

#[test]
fn a_registry_is_asked_only_where_the_configuration_allows_it_and_nobody_is_told_what_listens_there() {
    let place = Place::new();
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listening.local_addr().unwrap().port();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    // The open port hangs up on every caller.
    std::thread::spawn(move || listening.incoming().for_each(drop));
    let registries = format!("registries = [\"127.0.0.1:{open}\", \"127.0.0.1:{closed}\"]\n");
    let server = Server::start(&place, &config("").replace("[server]\n", &format!("[server]\n{registries}")));
    let told: BTreeSet<String> = [open, closed]
        .iter()
        .flat_map(|port| {
            let body = json!({ "source": format!("oci://127.0.0.1:{port}/team/fast:1.0") });
            ["swap", "check"].map(|verb| server.post(&format!("/v1/policies/adaptive/{verb}"), &body).problem(422))
        })
        .collect();
    assert_eq!(told, BTreeSet::from(["the registry does not give this policy: the server's log says why".to_owned()]));
    let events = server.get("/v1/events").with(200).to_string();
    assert!(!events.contains("127.0.0.1"), "{events}");
    let port = other.local_addr().unwrap().port();
    for verb in ["swap", "check"] {
        let body = json!({ "source": format!("oci://127.0.0.1:{port}/team/fast:1.0") });
        let line = server.post(&format!("/v1/policies/adaptive/{verb}"), &body).problem(422);
        assert!(line.contains("the configuration allows no such registry"), "{line}");
    }
    assert_eq!(other.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody was asked");
    assert!(fs::read_to_string(place.path("server.log")).unwrap().contains(&format!("127.0.0.1:{closed}")));
}

#[test]
fn a_registry_leads_to_the_hosts_of_the_configuration_and_no_name_into_the_network_around() {
    let place = Place::new();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    other.set_nonblocking(true).unwrap();
    let elsewhere = other.local_addr().unwrap();
    let leading = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = leading.local_addr().unwrap().port();
    // Each request is led on: to another port of this machine, or to a cloud's metadata.
    std::thread::spawn(move || {
        for (number, mut stream) in leading.incoming().flatten().enumerate() {
            let to = [format!("http://{elsewhere}/"), "http://169.254.169.254/".into()][number % 2].clone();
            let _ = stream.read(&mut [0; 4096]);
            let _ =
                write!(stream, "HTTP/1.1 307 X\r\nConnection: close\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
        }
    });
    // The second is a name to all but the resolver, for which it is this machine's address.
    let registries = format!("registries = [\"127.0.0.1:{port}\", \"127.1:{port}\"]\n");
    let server = Server::start(&place, &config("").replace("[server]\n", &format!("[server]\n{registries}")));
    for registry in [format!("127.0.0.1:{port}"), format!("127.0.0.1:{port}"), format!("127.1:{port}")] {
        let body = json!({ "source": format!("oci://{registry}/team/fast:1.0") });
        let line = server.post("/v1/policies/adaptive/swap", &body).problem(422);
        assert_eq!(line, "the registry does not give this policy: the server's log says why");
    }
    assert_eq!(other.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "nobody was asked");
    let log = fs::read_to_string(place.path("server.log")).unwrap();
    for words in [
        format!("it points to http://{elsewhere}/, which is not followed: the configuration names no such registry"),
        "it points to http://169.254.169.254/, which is not followed".into(),
        "127.1 has the internal address 127.0.0.1, which is not connected to".into(),
    ] {
        assert!(log.contains(&words), "{words}: {log}");
    }
}
