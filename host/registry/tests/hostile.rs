//! A registry that lies, stalls, floods and misdirects. Each attack ends in an error of one line,
//! in bounded time and memory.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tilewright_files::digest::sha256;
use tilewright_registry::{ArtifactInfo, Client, Credentials, Error, Limits, Pulled, Reach, Reference, SIGNATURE};

#[path = "hostile/reach.rs"]
mod reach;

const WASM: &[u8] = b"\0asm as far as a registry knows";

/// Ends a test that hangs, and nothing else.
const PATIENCE: Duration = Duration::from_secs(600);

/// A received request: its first line, and its authorization header.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    line: String,
    authorization: Option<String>,
}

enum Answer {
    Bytes(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// The head of an answer, and then the same bytes for ever.
    Endless(&'static str),
    /// A byte now and then, for ever.
    Drip,
    /// Nothing at all.
    Silence,
    /// These bytes, whether valid HTTP or not.
    Raw(&'static [u8]),
}

/// A server on a port of its own; it ends with the test.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<ReceivedRequest>>>,
    ends: Arc<AtomicBool>,
}

impl Server {
    fn answering(answer: impl Fn(&ReceivedRequest, &str) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, ends) = (Arc::<Mutex<Vec<ReceivedRequest>>>::default(), Arc::<AtomicBool>::default());
        let (log, ended, own, answer) = (asked.clone(), ends.clone(), address.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (log, ended, own, answer) = (log.clone(), ended.clone(), own.clone(), answer.clone());
                // The client notices a failed connection.
                thread::spawn(move || serve(stream, &log, &ended, |asked| answer(asked, &own)));
            }
        });
        Self { address, asked, ends }
    }

    /// A client that waits longer than any answer takes on a machine that is busy.
    fn client(&self, credentials: Credentials) -> (Client, Reference) {
        self.client_within(credentials, [PATIENCE; 3])
    }

    /// One with these limits of time: to connect, between two pieces, and for the whole.
    fn client_within(&self, credentials: Credentials, [connect, pause, whole]: [Duration; 3]) -> (Client, Reference) {
        let reference: Reference = format!("{}/wide:1", self.address).parse().unwrap();
        let limits = Limits { manifest_bytes: 64 << 10, policy_bytes: 1 << 20, connect, pause, whole };
        (Client::new(&reference, credentials, false, Reach::User, limits).unwrap(), reference)
    }

    /// A service's pull by this name of the server, if these hosts are named in its configuration.
    fn pull_as(&self, name: &str, hosts: &[&str], internal: &[&str]) -> Result<Pulled, Error> {
        let reference: Reference = format!("{name}/wide:1").parse().unwrap();
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let reach = Reach::Named { hosts: owned(hosts), internal: owned(internal) };
        let limits = Limits { connect: PATIENCE, pause: PATIENCE, whole: PATIENCE, ..Limits::default() };
        Client::new(&reference, Credentials::Anonymous, true, reach, limits).unwrap().pull(&reference)
    }

    fn port(&self) -> &str {
        self.address.rsplit(':').next().unwrap()
    }

    fn pull(&self) -> Result<Pulled, Error> {
        let (client, reference) = self.client(Credentials::Anonymous);
        client.pull(&reference)
    }

    /// The same with little patience.
    fn pull_soon(&self) -> Result<Pulled, Error> {
        let limits = [500, 500, 1500].map(Duration::from_millis);
        let (client, reference) = self.client_within(Credentials::Anonymous, limits);
        client.pull(&reference)
    }

    fn asked(&self) -> Vec<ReceivedRequest> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

fn serve(
    stream: TcpStream,
    log: &Mutex<Vec<ReceivedRequest>>,
    ended: &AtomicBool,
    answer: impl Fn(&ReceivedRequest) -> Answer,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    let mut asked = ReceivedRequest { line: String::new(), authorization: None };
    let mut length = 0;
    reader.read_line(&mut asked.line)?;
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let (name, value) = header.trim().split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "authorization" => asked.authorization = Some(value.trim().to_owned()),
            "content-length" => length = value.trim().parse().unwrap_or(0),
            _ => {}
        }
    }
    std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
    log.lock().unwrap().push(asked.clone());
    match answer(&asked) {
        Answer::Bytes(status, headers, body) => {
            write!(stream, "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {}\r\n", body.len())?;
            for (name, value) in headers {
                write!(stream, "{name}: {value}\r\n")?;
            }
            stream.write_all(b"\r\n")?;
            stream.write_all(&body)
        }
        Answer::Endless(head) => {
            stream.write_all(head.as_bytes())?;
            while !ended.load(Ordering::Relaxed) {
                stream.write_all(&[b'x'; 64 << 10])?;
            }
            Ok(())
        }
        Answer::Drip => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            while !ended.load(Ordering::Relaxed) {
                stream.write_all(b"x")?;
                thread::sleep(Duration::from_millis(100));
            }
            Ok(())
        }
        Answer::Silence => {
            while !ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        }
        Answer::Raw(bytes) => stream.write_all(bytes),
    }
}

/// A manifest of one layer.
fn manifest(digest: &str, size: usize) -> Vec<u8> {
    let config = sha256(b"{}");
    format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
            "config":{{"mediaType":"application/vnd.wasm.config.v0+json","digest":"{config}","size":2}},
            "layers":[{{"mediaType":"application/wasm","digest":"{digest}","size":{size},
                        "urls":["http://127.0.0.1:1/elsewhere"]}}],
            "annotations":{{"{SIGNATURE}":"a signature"}}}}"#
    )
    .into_bytes()
}

fn good_manifest() -> Answer {
    Answer::Bytes(200, vec![], manifest(&sha256(WASM), WASM.len()))
}

fn ok(body: &[u8]) -> Answer {
    Answer::Bytes(200, vec![], body.to_vec())
}

/// A good manifest, and this for the layer.
fn with_layer(answer: impl Fn() -> Answer + Send + Sync + 'static) -> Server {
    Server::answering(move |asked, _| if asked.line.contains("/manifests/") { good_manifest() } else { answer() })
}

#[test]
fn an_honest_registry_is_understood() {
    let pulled = with_layer(|| ok(WASM)).pull().unwrap();
    assert_eq!(pulled.wasm, WASM);
    assert_eq!(pulled.signature.as_deref(), Some("a signature"));
    assert_eq!(pulled.digest, sha256(&manifest(&sha256(WASM), WASM.len())));
}

#[test]
fn what_is_not_what_its_digest_says_is_refused() {
    let other: Vec<u8> = WASM.iter().rev().copied().collect();
    let wrong_layer = with_layer(move || ok(&other));
    assert!(matches!(wrong_layer.pull(), Err(Error::Digest { what: "policy", .. })));
    let short = with_layer(|| ok(&WASM[1..]));
    assert!(matches!(short.pull(), Err(Error::Digest { what: "policy", .. })));

    let headed = Server::answering(|_, _| {
        let lie = vec![("Docker-Content-Digest", sha256(b"another manifest"))];
        Answer::Bytes(200, lie, manifest(&sha256(WASM), WASM.len()))
    });
    assert!(matches!(headed.pull(), Err(Error::Digest { what: "manifest", .. })));

    // A pinned reference: only the manifest of this digest is accepted, whatever the registry says.
    let server = with_layer(|| ok(WASM));
    let (client, _) = server.client(Credentials::Anonymous);
    let pinned: Reference = format!("{}/wide:1@{}", server.address, sha256(b"the one")).parse().unwrap();
    assert!(matches!(client.pull(&pinned), Err(Error::Digest { what: "manifest", .. })));
    let asked = server.asked();
    assert!(asked.len() == 1 && asked[0].line.contains(&sha256(b"the one")), "{asked:?}");
}

#[test]
fn nothing_is_read_beyond_its_limit() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n";
    const PLAIN: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    const LONG: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 999999999999\r\n\r\n";
    for head in [CHUNKED, PLAIN, LONG] {
        let endless = Server::answering(move |_, _| Answer::Endless(head));
        assert!(matches!(endless.pull(), Err(Error::TooLarge { what: "manifest", most: 65536, .. })), "{head}");
        let endless = with_layer(move || Answer::Endless(head));
        assert!(matches!(endless.pull(), Err(Error::TooLarge { what: "policy", .. })), "{head}");
    }
    // One byte more than the manifest says is too many, although there would be room.
    let more = with_layer(|| ok(&[WASM, b"!"].concat()));
    assert!(matches!(more.pull(), Err(Error::TooLarge { what: "policy", .. })));
    // A layer whose stated size is too large is not even requested.
    let large = Server::answering(|_, _| Answer::Bytes(200, vec![], manifest(&sha256(WASM), 2 << 20)));
    assert!(matches!(large.pull(), Err(Error::TooLarge { what: "policy", most: 1_048_576, .. })));
    assert_eq!(large.asked().len(), 1);
    // Errors and tokens have a limit, too; and headers.
    let endless = Server::answering(|_, _| Answer::Endless("HTTP/1.1 500 X\r\nConnection: close\r\n\r\n"));
    assert!(matches!(endless.pull(), Err(Error::Answer { status: 500, .. })));
    let token = Server::answering(|asked, own| match asked.line.contains("/token") {
        true => Answer::Endless(PLAIN),
        false => Answer::Bytes(401, vec![("WWW-Authenticate", format!("Bearer realm=\"http://{own}/token\""))], vec![]),
    });
    assert!(matches!(token.pull(), Err(Error::TooLarge { what: "token", .. })));
    let headers = Server::answering(|_, _| Answer::Endless("HTTP/1.1 200 OK\r\nX: "));
    assert!(matches!(headers.pull(), Err(Error::Transport { .. })));
}

#[test]
fn nobody_is_waited_for_without_end() {
    for answer in [|| Answer::Silence, || Answer::Drip] {
        // Neither answer ever ends by itself.
        let server = Server::answering(move |_, _| answer());
        assert!(matches!(server.pull_soon(), Err(Error::Late { .. })));
        let server = with_layer(answer);
        // The slow policy exceeds its length after some bytes, if the time isn't up before.
        assert!(matches!(server.pull_soon(), Err(Error::Late { .. } | Error::TooLarge { .. })));
    }
}

#[test]
fn nonsense_is_an_error_of_one_line() {
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n{}\r\n\r\n{{}}", "X: y\r\n".repeat(2000));
    let answers: Vec<&'static [u8]> = vec![
        b"",
        b"\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}{}{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 999 \xff\xfe\r\n\r\n",
        b"HTTP/1.1 204 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
        b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm=\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 401 No\r\nWWW-Authenticate: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        long.leak().as_bytes(),
    ];
    for bytes in answers {
        let server = Server::answering(move |_, _| Answer::Raw(bytes));
        let error = server.pull().unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(!error.is_empty());
    }
    // JSON as deep as it gets.
    let deep = Server::answering(|_, _| ok("[".repeat(60_000).as_bytes()));
    assert!(matches!(deep.pull(), Err(Error::NotAPolicy { .. })));
}

#[test]
fn redirects_are_followed_so_far_and_no_further() {
    let store = Server::answering(|_, _| ok(WASM));
    let there = format!("http://{}/store", store.address);
    let server = with_layer(move || Answer::Bytes(307, vec![("Location", there.clone())], vec![]));
    let (client, reference) = server.client(Credentials::Basic { user: "ada".into(), password: "secret".into() });
    assert_eq!(client.pull(&reference).unwrap().wasm, WASM);
    assert!(store.asked().iter().all(|asked| asked.authorization.is_none()));

    for to in ["http://registry.example/x", "ftp://127.0.0.1/x", "//127.0.0.1/x", "gopher:x", "http://a@127.0.0.1/", ""]
    {
        let server = with_layer(move || Answer::Bytes(302, vec![("Location", to.into())], vec![]));
        assert!(matches!(server.pull(), Err(Error::Redirect { .. })), "{to}");
    }
    let circle =
        Server::answering(|_, _| Answer::Bytes(302, vec![("Location", "/v2/wide/manifests/1".into())], vec![]));
    assert!(matches!(circle.pull(), Err(Error::Redirect { .. })));
    assert_eq!(circle.asked().len(), 6);
}

#[test]
fn credentials_go_to_who_may_have_them_alone() {
    let ada = || Credentials::Basic { user: "ada".into(), password: "secret".into() };
    // base64 of ada:secret
    let basic = "Basic YWRhOnNlY3JldA==";
    let challenge = |text: String| Answer::Bytes(401, vec![("WWW-Authenticate", text)], b"{}".to_vec());

    let wants_basic = Server::answering(move |asked, _| match &asked.authorization {
        Some(given) if given == "Basic YWRhOnNlY3JldA==" && asked.line.contains("manifests") => good_manifest(),
        Some(_) => ok(WASM),
        None => challenge("Basic realm=\"x\"".into()),
    });
    let (client, reference) = wants_basic.client(ada());
    assert_eq!(client.pull(&reference).unwrap().wasm, WASM);
    assert!(matches!(wants_basic.pull(), Err(Error::Denied { .. })), "nobody has nothing to say");

    let wants_token = Server::answering(move |asked, own| match &asked.authorization {
        _ if asked.line.contains("/token") => ok(br#"{"token":"t0ken"}"#),
        Some(given) if given == "Bearer t0ken" && asked.line.contains("manifests") => good_manifest(),
        Some(_) => ok(WASM),
        None => challenge(format!("Bearer realm=\"http://{own}/token\",service=\"a b\"")),
    });
    let (client, reference) = wants_token.client(ada());
    assert_eq!(client.pull(&reference).unwrap().wasm, WASM);
    let asked = wants_token.asked();
    let token = asked.iter().find(|asked| asked.line.contains("/token")).unwrap();
    assert!(token.line.contains("scope=repository%3Awide%3Apull&service=a%20b "), "{}", token.line);
    assert_eq!(token.authorization.as_deref(), Some(basic));
    assert_eq!(asked.len(), 4, "the token serves for the layer, too: {asked:?}");

    // A realm without TLS elsewhere would get the password.
    let leaking = Server::answering(move |_, _| challenge("Bearer realm=\"http://elsewhere.example/token\"".into()));
    let (client, reference) = leaking.client(ada());
    assert!(matches!(client.pull(&reference), Err(Error::Redirect { .. })));

    // Refused again: reported, not retried for ever.
    let never = Server::answering(move |_, _| challenge("Basic realm=\"x\"".into()));
    let (client, reference) = never.client(ada());
    assert!(matches!(client.pull(&reference), Err(Error::Denied { .. })));
    assert_eq!(never.asked().len(), 2);

    // A token that is not a valid header.
    let broken = Server::answering(move |asked, own| match asked.line.contains("/token") {
        true => ok(br#"{"token":"a\r\nX-Injected: b"}"#),
        false => challenge(format!("Bearer realm=\"http://{own}/token\"")),
    });
    assert!(matches!(broken.pull(), Err(Error::Transport { .. })));
}

#[test]
fn an_upload_goes_where_the_registry_is() {
    let push = |server: &Server| {
        let (client, reference) = server.client(Credentials::Basic { user: "ada".into(), password: "secret".into() });
        client.push(&reference, WASM, &ArtifactInfo { name: "wide".into(), ..ArtifactInfo::default() }, None)
    };
    for to in ["http://elsewhere.example/upload", "", "nowhere"] {
        let server = Server::answering(move |asked, _| match asked.line.split(' ').next() {
            Some("POST") => Answer::Bytes(202, vec![("Location", to.into())], vec![]),
            Some("HEAD") => Answer::Bytes(404, vec![], vec![]),
            _ => Answer::Bytes(201, vec![], vec![]),
        });
        assert!(matches!(push(&server), Err(Error::Redirect { .. })), "{to}");
    }
    let lying = Server::answering(|asked, _| match asked.line.split(' ').next() {
        Some("HEAD") => Answer::Bytes(200, vec![], vec![]),
        _ => Answer::Bytes(201, vec![("Docker-Content-Digest", sha256(b"another"))], vec![]),
    });
    assert!(matches!(push(&lying), Err(Error::Digest { .. })));
    let full = Server::answering(|_, _| {
        Answer::Bytes(507, vec![], br#"{"errors":[{"code":"FULL","message":"no room"}]}"#.to_vec())
    });
    assert!(push(&full).unwrap_err().to_string().contains("no room"));
}
