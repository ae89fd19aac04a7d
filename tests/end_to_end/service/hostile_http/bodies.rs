//! Jobs and modules that are not what they should be.

use serde_json::json;

use super::caller::{
    Attack, Caller, FORBIDDEN, LARGE, MANY, MEDIA, REFUSED, UNKNOWN, UPLOAD, attack, latent, part, upload, whole,
};
use super::wire::request;
use crate::program::one_tensor;

/// Paths of all kinds; most lead to a latent that would decode.
pub fn paths(caller: &Caller) -> Vec<Attack> {
    let root = caller.root.to_str().unwrap();
    let at = |name: &str| format!("{root}/{name}");
    let outside = |name: &str| caller.root.with_file_name(name).to_str().unwrap().to_owned();
    let paths = [
        ("upwards", at("../outside.safetensors")),
        ("upwards from a folder", at("folder/../../outside.safetensors")),
        ("upwards to the top", at(&format!("{}etc/passwd", "../".repeat(32)))),
        ("upwards, encoded", at("%2e%2e/outside.safetensors")),
        ("a link out", at("link.safetensors")),
        ("a folder's link out", at("folder/link/outside.safetensors")),
        ("a link to itself", at("loop.safetensors")),
        ("beside, its name beginning alike", outside("latents-beside/latent.safetensors")),
        ("outside", outside("outside.safetensors")),
        ("the token", outside("token")),
        ("the system's", "/etc/passwd".into()),
        ("a process", "/proc/self/environ".into()),
        ("a file without end", "/dev/zero".into()),
        ("relative", "latent.safetensors".into()),
        ("a home", "~/latent.safetensors".into()),
        ("an address", format!("file://{root}/latent.safetensors")),
        ("a zero byte", at("latent.safetensors\0.png")),
        ("a FIFO", at("fifo")),
        ("a socket", at("socket")),
        ("a device", at("device")),
        ("a folder", root.to_owned()),
        ("a file as a folder", at("latent.safetensors/x")),
        ("nothing there", at("none.safetensors")),
        ("empty", String::new()),
        ("too long", at(&"a".repeat(9000))),
    ];
    let body = |path: &str| json!({ "model": "flux", "latent_path": path }).to_string();
    paths.map(|(name, path)| attack(format!("path: {name}"), caller.json(body(&path)), REFUSED)).into()
}

/// Requests for a job whose JSON is wrong, or says what can't be.
pub fn documents(caller: &Caller) -> Vec<Attack> {
    let deep = "[".repeat(50_000);
    let spoilt = caller.job(r#","tag":"?""#).bytes().map(|byte| if byte == b'?' { 0xff } else { byte }).collect();
    let whole = [
        ("empty", Vec::new()),
        ("no JSON", b"model=flux".to_vec()),
        ("null", b"null".to_vec()),
        ("a list", b"[]".to_vec()),
        ("no members", b"{}".to_vec()),
        ("no latent", br#"{"model":"flux"}"#.to_vec()),
        ("cut off", caller.job("")[..20].into()),
        ("more behind it", (caller.job("") + "{}").into()),
        ("bytes that are no text", spoilt),
        ("nested", deep.clone().into()),
        ("nested in a member", caller.job(&format!(r#","tag":{deep}"#)).into()),
    ];
    let members = [
        ("said twice", r#""model":"flux""#),
        ("unknown", r#""policy":"mine.wasm""#),
        ("an unknown format", r#""format":"exe""#),
        ("a format that is a path", r#""format":"../../png""#),
        ("an unknown device", r#""device":"../main""#),
        ("an unknown objective", r#""objective":"slowest""#),
        ("an unknown tensor", r#""tensor":"\u0000""#),
        ("a word for a truth", r#""scaled":"yes""#),
        ("memory below zero", r#""memory_limit_bytes":-1"#),
        ("memory in fractions", r#""memory_limit_bytes":1.5"#),
        ("memory past 64 bits", r#""memory_limit_bytes":18446744073709551616"#),
        ("memory past all numbers", r#""memory_limit_bytes":1e999"#),
        ("no number", r#""deadline_s":NaN"#),
        ("a deadline before", r#""deadline_s":-1"#),
        ("a deadline never", r#""deadline_s":1e308"#),
        ("a rate by zero", r#""fps":"1/0""#),
        ("a rate that is none", r#""fps":"NaN""#),
        ("a rate below zero", r#""fps":"-24""#),
        ("half a character", r#""tag":"\ud800""#),
        ("a tag with a line's end", r#""tag":"one\r\ntwo""#),
        ("a tag that moves the cursor", r#""tag":"\u001b[2J""#),
    ];
    let long = "a".repeat(10_000);
    let mut attacks: Vec<Attack> =
        whole.map(|(name, body)| attack(format!("JSON: {name}"), caller.json(body), REFUSED)).into();
    attacks.extend(members.map(|(name, member)| {
        attack(format!("member: {name}"), caller.json(caller.job(&format!(",{member}"))), REFUSED)
    }));
    attacks.extend(["tag", "device", "format", "tensor", "fps"].map(|name| {
        attack(format!("a long {name}"), caller.json(caller.job(&format!(r#","{name}":"{long}""#))), REFUSED)
    }));
    attacks.extend(["", "../flux", "flux\\u0000", "FLUX", &long].map(|model| {
        attack(format!("model: {model:.20}"), caller.json(caller.job("").replacen("flux", model, 1)), UNKNOWN)
    }));
    let kinds =
        ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "/", ";;;", "application/wasm"];
    attacks.extend(
        kinds.map(|kind| attack(format!("type: {kind}"), caller.send("POST /v1/jobs", kind, caller.job("")), MEDIA)),
    );
    let keys: [(&str, &[u8]); 4] =
        [("empty", b""), ("long", &[b'k'; 129]), ("no ASCII", b"caf\xe9"), ("a tab", b"a\tb")];
    attacks.extend(keys.map(|(name, key)| {
        let headers = [caller.bearer.as_bytes(), b"Content-Type: application/json\r\nIdempotency-Key: ", key, b"\r\n"];
        attack(format!("key: {name}"), request("POST /v1/jobs", headers.concat(), caller.job("")), REFUSED)
    }));
    let packed = format!("{}Content-Type: application/json\r\nContent-Encoding: gzip\r\n", caller.bearer);
    attacks.push(attack("packed", request("POST /v1/jobs", packed, b"\x1f\x8b\x08\0\0\0\0\0"), &[400, 415, 422]));
    attacks
}

/// Uploads whose parts are not what they should be.
pub fn uploads(caller: &Caller) -> Vec<Attack> {
    let [ask, good] = upload(latent());
    let both = whole(&[ask.clone(), good.clone()]);
    let typed = |boundary: &str| caller.send("POST /v1/jobs", &format!("multipart/form-data{boundary}"), &both);
    let cut = caller.send("POST /v1/jobs", "multipart/form-data; boundary=b", &both[..both.len() - 7]);
    let parts = |parts: &[&[u8]]| caller.parts(&[parts.concat()]);
    let nested =
        b"--b\r\nContent-Disposition: form-data; name=\"latent\"\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n";
    let long = part(&format!("name=\"request\"\r\nX: {}", "x".repeat(60_000)), "{}");
    let lines = part(&format!("name=\"request\"\r\n{}X: y", "X: y\r\n".repeat(5000)), "{}");
    let path = part("name=\"request\"", caller.job(""));
    let [job, file] = [part("name=\"job\"", "{}"), part("name=\"file\"", latent())];
    let also = part("name=\"also\"", "x");
    let nameless = part("filename=\"latent\"", latent());
    let bytes = part("name=\"request\"", b"\xff\xfe");
    [
        ("no boundary", typed(""), MEDIA),
        ("an empty boundary", typed("; boundary="), MEDIA),
        ("another boundary", typed("; boundary=c"), REFUSED),
        ("a boundary without end", typed(&format!("; boundary={}", "b".repeat(9000))), MEDIA),
        ("no end", cut, REFUSED),
        ("none", parts(&[]), REFUSED),
        ("a request alone", parts(&[&ask]), REFUSED),
        ("a latent alone", parts(&[&good]), REFUSED),
        ("two requests", parts(&[&ask, &ask, &good]), REFUSED),
        ("two latents", parts(&[&ask, &good, &good]), REFUSED),
        ("other names", parts(&[&job, &file]), REFUSED),
        ("one more", parts(&[&ask, &good, &also]), REFUSED),
        ("without a name", parts(&[&ask, &nameless]), REFUSED),
        ("two thousand", parts(&[&also.repeat(2000)]), MANY),
        ("a long header", parts(&[&long, &good]), MANY),
        ("many headers", parts(&[&lines, &good]), MANY),
        ("a path beside a file", parts(&[&path, &good]), REFUSED),
        ("parts within a part", parts(&[&ask, nested, &good]), REFUSED),
        ("a request that is no text", parts(&[&bytes, &good]), REFUSED),
    ]
    .map(|(name, bytes, accepted)| attack(format!("parts: {name}"), bytes, accepted))
    .into()
}

/// Latents that are damaged, or say of themselves what isn't so.
pub fn latents(caller: &Caller) -> Vec<Attack> {
    let header = |length: u64, text: &str| [&length.to_le_bytes()[..], text.as_bytes()].concat();
    let offsets = |offsets: &str| {
        let text = format!(r#"{{"latents":{{"dtype":"F32","shape":[1,16,1,1],"data_offsets":{offsets}}}}}"#);
        [header(text.len() as u64, &text), vec![0; 64]].concat()
    };
    let shaped = |shape: &[usize], bytes: usize| one_tensor("latents", "F32", shape, &vec![0; bytes]);
    [
        ("empty", Vec::new()),
        ("a text", b"latents".to_vec()),
        ("code", b"\x80\x02cposix\nsystem\nq\0X\x02\0\0\0idq\x01\x85q\x02Rq\x03.".to_vec()),
        ("a header past all memory", header(u64::MAX, "{}")),
        ("a header past the file", header(1 << 20, "{}")),
        ("a header that is no JSON", header(4, "{{{{")),
        ("a nested header", header(20_000, &"[".repeat(20_000))),
        ("no tensors", header(2, "{}")),
        ("a shape past the data", shaped(&[1, 16, 1 << 20, 1 << 20], 64)),
        ("a shape past all numbers", shaped(&[usize::MAX, usize::MAX, 16, 16], 64)),
        ("a shape of nothing", shaped(&[1, 16, 0, 0], 0)),
        ("a type that is none", one_tensor("latents", "F13", &[1, 16, 1, 1], &[0; 64])),
        ("data past the file", offsets("[0,18446744073709551615]")),
        ("data backwards", offsets("[64,0]")),
        ("data before the file", offsets("[-64,0]")),
        ("cut off", latent()[..latent().len() - 9].to_vec()),
    ]
    .map(|(name, bytes)| attack(format!("latent: {name}"), caller.parts(&upload(bytes)), REFUSED))
    .into()
}

/// Modules that are none, and swaps to what a caller must not reach.
pub fn modules(caller: &Caller) -> Vec<Attack> {
    let wasm = |bytes: &[u8]| caller.send("POST /v1/modules", "application/wasm", bytes);
    let swap = |body: &str| caller.send("POST /v1/policies/fast/swap", "application/json", body);
    let of = |name: &str| {
        caller.send(&format!("POST /v1/policies/{name}/swap"), "application/json", r#"{"source":"fixed"}"#)
    };
    let form = |body: &str| caller.send("POST /actions/policies/fast/pause", "application/x-www-form-urlencoded", body);
    let token = json!({ "source": caller.root.with_file_name("token") }).to_string();
    let nothing = json!({ "digest": format!("sha256:{}", "0".repeat(64)) }).to_string();
    let formless = &[303, 400, 401, 403, 422];
    vec![
        attack("module: empty", wasm(b""), REFUSED),
        attack("module: a text", wasm(b"(module)"), REFUSED),
        attack("module: a head alone", wasm(b"\0asm\x0d\0\x01\0"), REFUSED),
        attack("module: of a later version", wasm(b"\0asm\xff\xff\xff\xff"), REFUSED),
        attack("module: no policy", wasm(b"\0asm\x01\0\0\0"), REFUSED),
        attack("module: a section past its end", wasm(b"\0asm\x0d\0\x01\0\x01\xff\xff\xff\xff\x0f"), REFUSED),
        attack("module: too large", wasm(&vec![0; UPLOAD + (64 << 10)]), LARGE),
        attack("module: JSON", caller.send("POST /v1/modules", "application/json", "{}"), &[400, 415, 422]),
        attack("swap: both", swap(r#"{"source":"fixed","digest":"sha256:00"}"#), UNKNOWN),
        attack("swap: a digest that leads out", swap(r#"{"digest":"sha256:../../../../etc/passwd"}"#), UNKNOWN),
        attack("swap: a digest of nothing", swap(&nothing), UNKNOWN),
        attack("swap: a file", swap(r#"{"source":"/etc/passwd"}"#), FORBIDDEN),
        attack("swap: the token", swap(&token), FORBIDDEN),
        attack("swap: an address", swap(r#"{"source":"http://127.0.0.1:1/p.wasm"}"#), FORBIDDEN),
        attack("swap: an unknown setting", swap(r#"{"source":"adaptive","settings":{"no-such":1}}"#), REFUSED),
        attack("swap: settings that are none", swap(r#"{"source":"adaptive","settings":[[[]]]}"#), REFUSED),
        attack("swap: of nobody", of("none"), &[404]),
        attack("swap: of a path", of("..%2ffast"), UNKNOWN),
        attack("rollback: nothing before", caller.ask("POST /v1/policies/fast/rollback"), &[409]),
        attack("promote: of nobody", caller.ask("POST /v1/routes/none/canary/promote"), &[404]),
        attack("form: without its token", form(""), formless),
        attack("form: with another's", form("form=0"), formless),
    ]
}
