//! Addresses, tokens, hosts and framing that are not what they should be, and what a page elsewhere
//! makes a browser send.

use super::caller::{
    Attack, CODING, Caller, FOREIGN, GARBAGE, LARGE, LONG, MANY, METHOD, NOWHERE, REFUSED, TOKEN, UNAUTHORIZED, attack,
    latent, upload, whole,
};
use super::wire::{CLOSED, request};

/// They lead nowhere, encoded or not.
const PATHS: &str = "\
    /v1/jobs/..%2f..%2f..%2fetc%2fpasswd /v1/jobs/%2e%2e/result /v1/jobs/%00 /v1/jobs/%zz /v1/jobs/%ff%fe \
    /v1/jobs/00000000-0000-0000-0000-000000000000 /v1/jobs/%3Cscript%3Ealert(1) /v1/jobs/x/result?sample=-1 \
    /V1/JOBS /jobs/..%2f..%2ftoken /jobs/%3Cscript%3Ealert(1)%3C%2fscript%3E /policies/%3Cscript%3Ealert(1) \
    /policies/..%2ftoken /assets/..%2f..%2f..%2fetc%2fpasswd /assets/../../etc/passwd \
    /assets/%2e%2e/%2e%2e/etc/passwd /assets//etc/passwd /assets/..%5c..%5ctoken /assets/%00 /assets/ \
    /assets/dashboard.css%00.png /.git/config /v1/../token";

/// Questions for a list of jobs that it has no answer to.
const QUESTIONS: &str =
    "limit=-1 limit=%zz limit=1e3 limit=99999999999999999999 limit= limit=1&limit=2 state=any state=%ff%fe before=xyz";

/// Names that are not the service's, some of them nearly.
const HOSTS: [&str; 12] = [
    "evil.example",
    "evil.example:7590",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost@evil.example",
    "",
    "[::1",
    "localhost:7590:evil.example",
    "localhost, evil.example",
    "evil.example\r\nHost: localhost",
    "localhost\r\nHost: evil.example",
    "\r\nHost: localhost",
];

pub fn addresses(caller: &Caller) -> Vec<Attack> {
    let mut attacks = Vec::new();
    let get = |path: &str| caller.ask(&format!("GET {path}"));
    attacks.extend(PATHS.split_whitespace().map(|path| attack(path, get(path), NOWHERE)));
    let jobs = |query: &str| get(&format!("/v1/jobs?{query}"));
    attacks.extend(QUESTIONS.split_whitespace().map(|query| attack(query, jobs(query), REFUSED)));
    attacks.push(attack("a long question", jobs(&format!("tag={}", "a".repeat(200_000))), LONG));
    for accept in [";;;,,,q=,".repeat(500), "*/*;q=NaN".into(), "\t".into()] {
        let headers = format!("{}Accept: {accept}\r\n", caller.bearer);
        attacks.push(attack(format!("Accept: {accept:.20}"), request("GET /v1/jobs", headers, ""), &[200, 400, 406]));
    }
    let lines = "BREW /v1/jobs;TRACE /v1/jobs;TRACE /;PUT /v1/jobs;PATCH /v1/jobs/x;\
        DELETE /v1/jobs;PROPFIND /;get /v1/jobs;POST /healthz;OPTIONS *";
    attacks.extend(lines.split(';').map(|line| attack(line, caller.ask(line), METHOD)));
    attacks
}

/// Callers without a token, or with another.
pub fn tokens(caller: &Caller) -> Vec<Attack> {
    let values = [
        ("empty", String::new()),
        ("a scheme alone", "Bearer ".into()),
        ("another", "Bearer wrong-horse-battery-staple".into()),
        ("its beginning", format!("Bearer {}", &TOKEN[..TOKEN.len() - 1])),
        ("more than it", format!("Bearer {TOKEN}x")),
        ("it and another", format!("Bearer {TOKEN}, Bearer x")),
        ("in capitals", format!("Bearer {}", TOKEN.to_uppercase())),
        ("long", format!("Bearer {}", "x".repeat(8000))),
        ("no ASCII", "Bearer caf\u{e9}".into()),
        ("no scheme", TOKEN.into()),
        ("another scheme", format!("Basic {TOKEN}")),
        ("a password", "Basic YWRhOnNlY3JldA==".into()),
    ];
    let job = |headers: &str| {
        request("POST /v1/jobs", format!("{headers}Content-Type: application/json\r\n"), caller.job(""))
    };
    let get = |path: &str| request(format!("GET {path}"), "", "");
    let mut attacks = vec![
        attack("token: none", job(""), UNAUTHORIZED),
        attack("token: after another", job(&format!("Authorization: Bearer x\r\n{}", caller.bearer)), &[400, 401]),
        attack("token: a cookie that is none", job("Cookie: session=x; =;;; tilewright=\r\n"), UNAUTHORIZED),
        attack("token: in the address", get(&format!("/v1/jobs?token={TOKEN}")), UNAUTHORIZED),
    ];
    attacks.extend(values.map(|(name, value)| {
        attack(format!("token: {name}"), job(&format!("Authorization: {value}\r\n")), UNAUTHORIZED)
    }));
    let closed = "/v1/jobs /v1/policies /v1/decisions /v1/events /metrics /openapi.json /v1/jobs/x/events";
    attacks.extend(closed.split(' ').map(|path| attack(format!("no token: {path}"), get(path), UNAUTHORIZED)));
    let pages = "/ /live /jobs/x /policies/fast";
    attacks.extend(pages.split(' ').map(|path| attack(format!("no token: {path}"), get(path), &[303, 401])));
    let around =
        "/assets/../v1/jobs /assets/..%2fv1/jobs /healthz/../v1/jobs //v1/jobs /v1//jobs /login/../v1/jobs /v1/jobs/";
    let accepted = &[303, 400, 401, 404];
    attacks.extend(around.split(' ').map(|path| attack(format!("no token: {path}"), get(path), accepted)));
    attacks
}

/// Heads that are no HTTP, or too much of it.
pub fn framing(caller: &Caller) -> Vec<Attack> {
    let open = format!("Host: localhost\r\nConnection: close\r\n{}", caller.bearer);
    let get = |headers: &str| format!("GET /v1/jobs HTTP/1.1\r\n{open}{headers}\r\n\r\n");
    let post = |headers: &str, body: &[u8]| {
        let head = format!("POST /v1/jobs HTTP/1.1\r\n{open}Content-Type: application/json\r\n{headers}\r\n\r\n");
        [head.as_bytes(), body].concat()
    };
    let chunks = |body: &[u8]| post("Transfer-Encoding: chunked", body);
    let chunk = [b"10000\r\n", &[b' '; 0x10000][..], b"\r\n"].concat();
    let extended = [b"2;", &[b'x'; 100_000][..], b"\r\n{}\r\n0\r\n\r\n"].concat();
    let huge = "Content-Length: 10737418240";
    vec![
        attack("TLS on the plain port", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03rubbish\r\n\r\n\r\n\r\n", GARBAGE),
        attack("HTTP/0.9", "GET /\r\n\r\n", GARBAGE),
        attack("HTTP/3.7", "GET / HTTP/3.7\r\nHost: localhost\r\n\r\n", &[400, 505, CLOSED]),
        attack("zeros", [vec![0; 4096], b"\r\n\r\n".to_vec()].concat(), GARBAGE),
        attack("another protocol", "SSH-2.0-OpenSSH_9.2\r\n\r\n", GARBAGE),
        attack("a header without a name", get(": x"), GARBAGE),
        attack("a folded header", get("X: a\r\n b"), GARBAGE),
        attack("a zero byte in a header", get("X: a\0b"), GARBAGE),
        attack("many headers", get(&"X: y\r\n".repeat(5000)), LONG),
        attack("a header past 64 KiB", get(&format!("X: {}", "y".repeat(66_000))), LONG),
        attack("a long header", get(&format!("X: {}", "y".repeat(2 << 20))), LONG),
        attack("a long name of a header", get(&format!("{}: y", "X".repeat(80_000))), LONG),
        attack("a space before the colon", post("Content-Length : 2", b"{}"), GARBAGE),
        attack("a length below zero", post("Content-Length: -2", b"{}"), GARBAGE),
        attack("a signed length", post("Content-Length: +2", b"{}"), GARBAGE),
        attack("a list of lengths", post("Content-Length: 2, 3", b"{}"), GARBAGE),
        attack("two lengths", post("Content-Length: 2\r\nContent-Length: 3", b"{}"), GARBAGE),
        attack("a length past all numbers", post("Content-Length: 99999999999999999999", b"{}"), MANY),
        attack("a length past the limit", post(huge, b""), &[413]),
        attack(
            "a length past the limit, asked first",
            post(&format!("Expect: 100-continue\r\n{huge}"), b""),
            &[413, 417],
        ),
        attack("chunks past the limit", chunks(&[&chunk.repeat(16)[..], b"0\r\n\r\n"].concat()), LARGE),
        attack("a chunk without a size", chunks(b"\r\n{}\r\n0\r\n\r\n"), GARBAGE),
        attack("a chunk below zero", chunks(b"-1\r\n{}\r\n0\r\n\r\n"), GARBAGE),
        attack("a chunk past all numbers", chunks(b"FFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n"), GARBAGE),
        attack("a chunk with a prefix", chunks(b"0x2\r\n{}\r\n0\r\n\r\n"), GARBAGE),
        attack("a chunk longer than said", chunks(b"1\r\n{}\r\n0\r\n\r\n"), GARBAGE),
        attack("a chunk with a long remark", chunks(&extended), MANY),
        attack("an unknown coding", post("Transfer-Encoding: xchunked", b"0\r\n\r\n"), CODING),
        attack("chunks within another coding", post("Transfer-Encoding: chunked, identity", b"0\r\n\r\n"), CODING),
    ]
    .into_iter()
    .chain(smuggled(caller, post))
    .collect()
}

/// Two requests in one: whichever length counts, the second one, a job as it should be, is not
/// answered.
fn smuggled(caller: &Caller, post: impl Fn(&str, &[u8]) -> Vec<u8>) -> [Attack; 3] {
    let behind = |start: &[u8]| [start, &caller.json(caller.job(""))].concat();
    let (length, coding) = ("Content-Length: 5", "Transfer-Encoding: chunked");
    [
        attack("a length, then chunks", post(&format!("{length}\r\n{coding}"), &behind(b"0\r\n\r\n")), REFUSED),
        attack("chunks, then a length", post(&format!("{coding}\r\n{length}"), &behind(b"0\r\n\r\n")), REFUSED),
        attack("more than its length", post("Content-Length: 2", &behind(b"{}")), REFUSED),
    ]
}

/// As a page sends it whose own name was made to lead here.
pub fn hosts(caller: &Caller) -> Vec<Attack> {
    let job = caller.job("");
    let with = |line: &str, hosts: &str| {
        let (bearer, length) = (&caller.bearer, job.len());
        let head = format!("{line} HTTP/1.1\r\nConnection: close\r\n{hosts}{bearer}Content-Type: application/json\r\n");
        format!("{head}Content-Length: {length}\r\n\r\n{job}")
    };
    let named = |name: &str| with("POST /v1/jobs", &format!("Host: {name}\r\n"));
    let elsewhere = with("POST http://evil.example/v1/jobs", "Host: localhost\r\n");
    let mut attacks = vec![
        attack("no host", with("POST /v1/jobs", ""), FOREIGN),
        attack("another host in the line", elsewhere, FOREIGN),
    ];
    attacks.extend(HOSTS.map(|name| attack(format!("host: {name:?}"), named(name), FOREIGN)));
    attacks
}

/// Requests that a page elsewhere can make a browser send, to a service that asks for no token.
pub fn pages(caller: &Caller) -> Vec<Attack> {
    let (job, parts) = (caller.job("").into_bytes(), whole(&upload(latent())));
    let sent: [(&str, &str, &[u8]); 5] = [
        ("POST /v1/jobs", "multipart/form-data; boundary=b", &parts),
        ("POST /v1/jobs", "text/plain", &job),
        ("POST /v1/policies/fast/pause", "text/plain", b""),
        ("POST /actions/policies/fast/pause", "application/x-www-form-urlencoded", b"form=x"),
        ("POST /actions/submit", "multipart/form-data; boundary=b", &parts),
    ];
    let origins = ["http://evil.example", "null", "http://localhost.evil.example", "http://localhost:1"];
    let sites = ["cross-site", "same-site"].map(|site| format!("Sec-Fetch-Site: {site}\r\n"));
    let mut attacks = Vec::new();
    for from in origins.map(|origin| format!("Origin: {origin}\r\n")).into_iter().chain(sites) {
        attacks.extend(sent.map(|(line, kind, body)| {
            let bytes = request(line, format!("{from}Content-Type: {kind}\r\n"), body);
            attack(format!("{line}, {kind}, {}", from.trim()), bytes, &[400, 403, 415])
        }));
    }
    let asked = "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n";
    attacks.push(attack("asked first", request("OPTIONS /v1/jobs", asked, ""), &[200, 204, 400, 403, 405]));
    attacks
}
