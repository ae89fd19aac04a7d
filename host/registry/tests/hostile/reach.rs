//! Registries that lead a client elsewhere, and names that lead into the network around it.

use std::time::Duration;

use tilewright_files::digest::sha256;
use tilewright_registry::{Credentials, Error};

use super::{Answer, PATIENCE, Server, WASM, ok, with_layer};

#[test]
fn a_service_is_led_to_the_hosts_of_its_configuration_alone() {
    let store = Server::answering(|_, _| ok(WASM));
    let led_to = |to: String| {
        let server = with_layer(move || Answer::Bytes(307, vec![("Location", to.clone())], vec![]));
        move |hosts: &[&str]| server.pull_as(&server.address, hosts, &[])
    };
    let pull = led_to(format!("http://{}/store", store.address));
    assert!(matches!(pull(&[]), Err(Error::Redirect { .. })));
    assert!(store.asked().is_empty(), "nobody was asked");
    assert_eq!(pull(&[&store.address]).unwrap().wasm, WASM);
    for to in
        ["http://169.254.169.254/latest/meta-data", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "https://10.0.0.1/"]
    {
        assert!(matches!(led_to(to.to_owned())(&[]), Err(Error::Redirect { .. })), "{to}");
    }
    // A login elsewhere is a request there, too.
    let realm = format!("Bearer realm=\"http://{}/token\"", store.address);
    let server = Server::answering(move |_, _| Answer::Bytes(401, vec![("WWW-Authenticate", realm.clone())], vec![]));
    let asked = store.asked().len();
    assert!(matches!(server.pull_as(&server.address, &[], &[]), Err(Error::Redirect { .. })));
    assert_eq!(store.asked().len(), asked);
}

#[test]
fn a_name_with_an_internal_address_is_connected_to_where_it_is_named_as_internal() {
    let server = with_layer(|| ok(WASM));
    // A name to all but the resolver, for which it is this machine's address.
    let name = &*format!("127.1:{}", server.port());
    for hosts in [&[][..], &[name]] {
        match server.pull_as(name, hosts, &[]) {
            Err(Error::Internal { host, address, .. }) => {
                assert_eq!((host.as_str(), address.to_string().as_str()), ("127.1", "127.0.0.1"));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(server.asked().is_empty(), "nobody was asked");
    assert_eq!(server.pull_as(name, &[], &[name]).unwrap().wasm, WASM);
    // A redirect to such a name.
    let to = format!("http://{name}/v2/wide/blobs/{}", sha256(WASM));
    let leading = with_layer(move || Answer::Bytes(307, vec![("Location", to.clone())], vec![]));
    let asked = server.asked().len();
    assert!(matches!(leading.pull_as(&leading.address, &[name], &[]), Err(Error::Internal { .. })));
    assert_eq!(server.asked().len(), asked);
    assert_eq!(leading.pull_as(&leading.address, &[], &[name]).unwrap().wasm, WASM);
}

#[test]
fn all_requests_together_have_one_limit_of_time() {
    let server = with_layer(|| ok(WASM));
    let (client, reference) = server.client_within(Credentials::Anonymous, [PATIENCE, PATIENCE, Duration::ZERO]);
    assert!(matches!(client.pull(&reference), Err(Error::Late { within: Duration::ZERO, .. })));
    assert!(server.asked().is_empty());
}
