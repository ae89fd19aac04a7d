//! Requests of strangers: every request here is refused or cut off, and afterwards the service
//! answers at once, has no job and no file more, and the same policy in force. Spoken over bare
//! sockets, since no library would send most of it.

#[path = "hostile_http/bodies.rs"]
mod bodies;
#[path = "hostile_http/caller.rs"]
mod caller;
#[path = "hostile_http/heads.rs"]
mod heads;
#[path = "hostile_http/wire.rs"]
mod wire;

use std::{
    fs,
    io::{ErrorKind, Write},
    net::{SocketAddr, TcpStream},
    os::unix::{fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use self::{
    caller::{Attack, Caller, TOKEN, UPLOAD, latent, part, upload},
    wire::{Answer, drip, exchange, is_waiting, request},
};
use super::server::Server;
use crate::program::{Place, fixture};

/// Ends a test that hangs: the longest that a caller keeps a connection open that sends a byte now
/// and then, or takes none, is far less, however busy the machine is.
const CUT_OFF: Duration = Duration::from_secs(600);

/// Texts that no answer may contain: names of files, internals of the program, the token,
/// permissions for other pages.
const NEVER: [&str; 4] = ["root:x:", "panicked", TOKEN, "access-control-allow-origin"];

const WITH_TOKEN: &str = "token-file = \"token\"";

/// A service, and what must not change in it.
struct Judge {
    address: SocketAddr,
    caller: Caller,
    data: PathBuf,
}

impl Judge {
    fn of(server: &Server, place: &Place) -> Self {
        let bearer = server.token().map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        Self {
            address: server.address(),
            caller: Caller { bearer, root: place.path("latents") },
            data: place.path("data"),
        }
    }

    fn get(&self, path: &str) -> Value {
        let answer = exchange(self.address, &self.caller.ask(&format!("GET {path}"))).unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// The number of jobs, the revision in force, and the files in the service's folder.
    fn state(&self) -> (usize, Value, Vec<PathBuf>) {
        let policy = self.get("/v1/policies/fast");
        let in_force = json!([policy["paused"], policy["in_force"]["number"], policy["in_force"]["digest"]]);
        (self.get("/v1/jobs?limit=100")["jobs"].as_array().unwrap().len(), in_force, files(&self.data))
    }

    fn is_healthy(&self) -> bool {
        let answer = exchange(self.address, &request("GET /healthz", "", ""));
        answer.is_some_and(|answer| answer.status == 200)
    }

    /// Two valid jobs: a request that is refused after them is refused for its own fault. Returns
    /// the first one's address.
    fn submit(&self) -> String {
        let [ask, _] = upload("");
        let named = part("name=\"latent\"; filename=\"../../../evil.safetensors\"", latent());
        let jobs = [self.caller.json(self.caller.job("")), self.caller.parts(&[ask, named])].map(|bytes| {
            let answer = exchange(self.address, &bytes).unwrap();
            assert_eq!(answer.status, 202, "{}", answer.text());
            let job: Value = serde_json::from_slice(&answer.body).unwrap();
            format!("/v1/jobs/{}", job["id"].as_str().unwrap())
        });
        let begun = Instant::now();
        for job in &jobs {
            while self.get(job)["state"] != "done" {
                assert!(begun.elapsed() < CUT_OFF, "{}", self.get(job));
                thread::sleep(Duration::from_millis(100));
            }
        }
        assert!(!self.data.with_file_name("evil.safetensors").exists());
        let [first, _] = jobs;
        first
    }

    /// Sends all of it, and reports everything that went wrong.
    fn hold(&self, attacks: Vec<Attack>) {
        let (before, mut wrong) = (self.state(), Vec::new());
        let mut jobs = before.0;
        for attack in attacks {
            let faults = match exchange(self.address, &attack.bytes) {
                Some(answer) => faults(&attack, &answer),
                None => vec!["no answer".to_owned()],
            };
            wrong.extend(faults.iter().map(|fault| format!("{}: {fault}", attack.name)));
            if !self.is_healthy() {
                wrong.push(format!("{}: the service is not healthy after it", attack.name));
            }
            let now = self.state().0;
            if now != jobs {
                wrong.push(format!("{}: {now} jobs after it, {jobs} before", attack.name));
                jobs = now;
            }
        }
        assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
        assert_eq!(before, self.state());
    }
}

/// The fault of an answer.
fn faults(attack: &Attack, answer: &Answer) -> Vec<String> {
    let text = answer.text();
    let lower = text.to_lowercase();
    let is_api = attack.bytes.windows(4).any(|four| four == b" /v1") && answer.status >= 400 && !answer.body.is_empty();
    let is_page = lower.contains("content-type: text/html");
    let mut faults = Vec::new();
    if !attack.accepted.contains(&answer.status) {
        faults.push(format!("none of {:?}: {text:.400}", attack.accepted));
    }
    if is_api && !lower.contains("content-type: application/problem+json") {
        faults.push(format!("told otherwise than as a problem: {text:.400}"));
    }
    if is_page && lower.contains("<script>alert") {
        faults.push("what was sent is in the page as it is".into());
    }
    if answer.body.windows(9).any(|nine| nine == b"HTTP/1.1 ") {
        faults.push(format!("answered twice: {text:.400}"));
    }
    faults.extend(NEVER.iter().filter(|word| lower.contains(**word)).map(|word| format!("answered with {word:?}")));
    faults
}

/// The files below a folder, without those that a database has beside itself while it is open.
fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    let passes = |path: &PathBuf| ["-wal", "-shm", "-journal"].iter().any(|end| path.to_string_lossy().ends_with(end));
    let mut found: Vec<_> = files.into_iter().filter(|path| !passes(path)).collect();
    found.extend(folders.iter().flat_map(|folder| self::files(folder)));
    found.sort();
    found
}

/// Puts there what paths lead to. Where this user can make no device, that path leads nowhere.
fn lay_out(root: &Path) {
    let beside = root.with_file_name("latents-beside");
    for folder in [root, &root.join("folder"), &beside] {
        fs::create_dir(folder).unwrap();
    }
    let outside = root.with_file_name("outside.safetensors");
    for file in [root.join("latent.safetensors"), beside.join("latent.safetensors"), outside.clone()] {
        fs::write(file, latent()).unwrap();
    }
    symlink(&outside, root.join("link.safetensors")).unwrap();
    symlink(root.parent().unwrap(), root.join("folder/link")).unwrap();
    symlink("loop.safetensors", root.join("loop.safetensors")).unwrap();
    // The socket's file stays when its listener goes.
    drop(UnixListener::bind(root.join("socket")).unwrap());
    assert!(Command::new("mkfifo").arg(root.join("fifo")).status().unwrap().success());
    let _ = Command::new("mknod").arg(root.join("device")).args(["c", "1", "5"]).output();
}

/// A service on a free port; `server` and `limits` are more lines of these tables.
fn start(place: &Place, server: &str, limits: &str) -> Server {
    Server::start(place, &prepared(place, server, limits))
}

/// Lays out what the service needs; gives its configuration.
fn prepared(place: &Place, server: &str, limits: &str) -> String {
    let (root, data) = (place.path("latents"), place.path("data"));
    lay_out(&root);
    place.write("token", TOKEN);
    let vae = fixture("flux-bfl/ae.safetensors");
    format!(
        r#"
[server]
listen = "127.0.0.1:0"
data = {data:?}
roots = [{root:?}]
{server}
[server.limits]
upload = "{}KiB"
requests-per-second = 100000
{limits}
[models.flux]
vae = {vae:?}
[devices.main]
device = "cpu"
threads = 1
[policies.fast]
source = "adaptive"
"#,
        UPLOAD >> 10
    )
}

#[test]
fn nothing_hostile_gets_through() {
    let place = Place::new();
    let server = start(&place, WITH_TOKEN, "");
    let judge = Judge::of(&server, &place);
    judge.submit();
    let tables = [
        bodies::paths,
        bodies::documents,
        bodies::uploads,
        bodies::latents,
        bodies::modules,
        heads::addresses,
        heads::tokens,
        heads::framing,
        heads::hosts,
    ];
    judge.hold(tables.iter().flat_map(|attacks| attacks(&judge.caller)).collect());
}

#[test]
fn a_page_elsewhere_can_not_use_a_service_without_a_token() {
    let place = Place::new();
    let server = start(&place, "", "");
    let judge = Judge::of(&server, &place);
    judge.submit();
    judge.hold([heads::pages(&judge.caller), heads::hosts(&judge.caller)].into_iter().flatten().collect());
}

#[test]
fn ranges_cost_no_more_than_the_file() {
    let place = Place::new();
    let server = start(&place, WITH_TOKEN, "");
    let judge = Judge::of(&server, &place);
    let result = judge.submit() + "/result";
    let ask = |headers: &str| {
        let headers = format!("{}{headers}", judge.caller.bearer);
        exchange(judge.address, &request(format!("GET {result}"), headers, "")).unwrap()
    };
    let whole = ask("").body.len();
    let overlapping = format!("bytes={}0-", "0-,".repeat(2000));
    let past = "bytes=99999999999999999999-";
    for range in
        ["bytes=-", "bytes=9-1", past, "bytes=-99999999999999999999", "bytes=0-0,-1", "x=0-", "bytes", &overlapping]
    {
        let answer = ask(&format!("Range: {range}\r\n"));
        assert!([200, 206, 400, 416, 431].contains(&answer.status), "{range:.40}: {}", answer.head);
        assert!(answer.body.len() <= whole + 1024, "{range:.40}: {} bytes, of {whole}", answer.body.len());
        assert!(judge.is_healthy(), "{range:.40}");
    }
}

#[test]
fn slow_callers_are_cut_off_and_hold_up_nobody() {
    let place = Place::new();
    let server = start(&place, WITH_TOKEN, "");
    let judge = Judge::of(&server, &place);
    let before = judge.state();
    let body = |kind: &str| {
        let bearer = &judge.caller.bearer;
        let head = format!("POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\n{bearer}Content-Type: {kind}\r\n");
        format!("{head}Content-Length: 100000\r\n\r\n")
    };
    let starts = [
        "GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX: ".to_owned(),
        body("application/json"),
        body("multipart/form-data; boundary=b") + "--b\r\n",
        String::new(),
    ];
    thread::scope(|scope| {
        let callers = starts.iter().cycle().take(16);
        let callers: Vec<_> =
            callers.map(|start| (start, scope.spawn(|| drip(judge.address, start.as_bytes(), CUT_OFF)))).collect();
        let left = || callers.iter().filter(|(_, caller)| !caller.is_finished()).count();
        // Answers that others get while no caller has been cut off yet.
        let mut answered = 0;
        while left() > 0 {
            assert!(judge.is_healthy());
            answered += u32::from(left() == callers.len());
            thread::sleep(Duration::from_millis(500));
        }
        assert!(answered > 0, "others are answered when the slow ones are gone");
        for (start, caller) in callers {
            assert!(caller.join().unwrap(), "still connected after {CUT_OFF:?}: {start:?}");
        }
    });
    assert_eq!(before, judge.state());
}

#[test]
fn who_never_reads_is_let_go() {
    let place = Place::new();
    let server = start(&place, WITH_TOKEN, "");
    let judge = Judge::of(&server, &place);
    let before = judge.state();
    let ask = format!("GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n{}\r\n", judge.caller.bearer);
    let asks = ask.repeat(64).into_bytes();
    let mut caller = TcpStream::connect(judge.address).unwrap();
    caller.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let begun = Instant::now();
    // When its answers fill the connection, the service reads no further question either.
    let end = loop {
        match caller.write(&asks) {
            Ok(_) => {}
            Err(error) if is_waiting(&error) => assert!(judge.is_healthy()),
            Err(error) => break error.kind(),
        }
        assert!(begun.elapsed() < CUT_OFF, "still connected after {CUT_OFF:?}");
    };
    assert!([ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&end), "{end}");
    assert_eq!(before, judge.state());
}

#[test]
fn who_holds_all_connections_and_asks_nothing_locks_nobody_out() {
    let place = Place::new();
    let server = start(&place, WITH_TOKEN, "connections = 256");
    let judge = Judge::of(&server, &place);
    let idle: Vec<_> = (0..256).map(|_| TcpStream::connect(judge.address).unwrap()).collect();
    for path in ["/readyz", "/healthz"].iter().cycle().take(8) {
        let answer = exchange(judge.address, &request(format!("GET {path}"), "", "")).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // A connection that is idle for a second gives way to a new one.
    thread::sleep(Duration::from_millis(1100));
    judge.state();
    drop(idle);
}

#[test]
fn more_connections_than_allowed_do_no_lasting_harm() {
    let place = Place::new();
    let server = start(&place, WITH_TOKEN, "connections = 16");
    let judge = Judge::of(&server, &place);
    let idle: Vec<_> = (0..64).map(|_| TcpStream::connect(judge.address)).collect();
    drop(idle);
    let begun = Instant::now();
    while !judge.is_healthy() {
        assert!(begun.elapsed() < CUT_OFF, "the connections are gone and the service is not back");
    }
    judge.state();
}

#[test]
fn more_connections_than_descriptors_lock_nobody_out() {
    let place = Place::new();
    let server = Server::limited(&place, &prepared(&place, WITH_TOKEN, ""), "-n 96");
    let judge = Judge::of(&server, &place);
    let idle: Vec<_> = (0..120).map(|_| TcpStream::connect(judge.address)).collect();
    let begun = Instant::now();
    let is_ready = || {
        let answer = exchange(judge.address, &request("GET /readyz", "", ""));
        answer.is_some_and(|answer| answer.status == 200)
    };
    while !is_ready() {
        assert!(begun.elapsed() < CUT_OFF, "nobody hears whether it is ready");
    }
    let log = fs::read_to_string(place.path("server.log")).unwrap();
    assert!(log.contains("connections: 256 don't fit among 96 descriptors"), "{log}");
    assert!(!log.contains("can't be accepted"), "{log}");
    drop(idle);
}
