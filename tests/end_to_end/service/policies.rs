//! Policies come and go under the server: swapped by hand, by file and by configuration, rolled
//! back by hand and by the watchdog.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use super::{
    jobs::{config, small},
    server::Server,
};
use crate::{
    hostile::{careful, guest},
    program::{Place, root},
};

/// A guest that does well but for pictures of this width, which it traps on.
pub fn trapping_at(width: u32) -> Vec<u8> {
    careful(&format!("(if (i32.eq (i32.load offset=100 (local.get 0)) (i32.const {width})) (then (unreachable)))"))
}

/// A policy of the project's, as a file: what ships is known by name and passes no gate.
fn shipped_file(name: &str) -> Vec<u8> {
    fs::read(root().join(format!("target/policies/{name}.wasm"))).unwrap()
}

fn with_route(route: &str) -> String {
    config("") + route
}

fn kinds(server: &Server) -> Vec<String> {
    let events = server.get("/v1/events?limit=500").with(200);
    events["events"].as_array().unwrap().iter().map(|event| event["what"].as_str().unwrap().to_owned()).collect()
}

fn decoded(server: &Server, model: &str, latent: &[u8]) -> Value {
    let id = server.accepted(&json!({ "model": model, "format": "safetensors" }), latent);
    let job = server.ended(&id);
    assert_eq!(job["state"], "done", "{job}");
    job
}

#[test]
fn settings_are_changed_on_the_policys_page() {
    let place = Place::new();
    let server = Server::start(&place, &(config("") + "[policies.own]\nsource = \"fixed\"\n"));
    let page = String::from_utf8(server.get("/policies/own").body).unwrap();
    let token = page.split("name=\"form\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let swap = |module: &str, source: &str, settings: &str| {
        let field = |name: &str, value: &str| {
            format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let file = "--edge\r\nContent-Disposition: form-data; name=\"module\"; filename=\"\"\r\n\r\n".to_owned();
        let fields =
            [field("form", token), file + module + "\r\n", field("source", source), field("settings", settings)];
        let body = fields.concat() + "--edge--\r\n";
        let media = [("content-type", "multipart/form-data; boundary=edge")];
        let answer = server.ask("POST", "/actions/policies/own/swap", &media, body.as_bytes());
        assert_eq!(answer.status, 303);
        // The result is shown on the page, not in the address.
        let location = answer.headers["location"].to_str().unwrap().to_owned();
        assert!(location.strip_prefix("/?notice=").unwrap().bytes().all(|byte| byte.is_ascii_hexdigit()), "{location}");
        let page = String::from_utf8(server.get(&location).body).unwrap();
        page.split("id=\"notice\"").nth(1).unwrap().split("</div>").next().unwrap().to_owned()
    };
    assert!(swap("", "", "tile = 64\r\noverlap=8\r\n").contains("notice good"));
    let in_force = server.get("/v1/policies/own").with(200)["in_force"].clone();
    assert_eq!((&in_force["number"], &in_force["name"]), (&json!(2), &json!("fixed")));
    assert_eq!((&in_force["settings"]["tile"], &in_force["settings"]["overlap"]), (&json!("64"), &json!(8)));
    for (module, source, settings, words) in [
        ("", "", "", "choose"),
        ("", "", "tile", "name=value"),
        ("", "", "tile=none", "tile"),
        ("", "", "nothing=1", "nothing"),
        ("rubbish", "fixed", "", "give a file or a source, not both"),
        ("", "sha256:00", "", "64 hexadecimal digits"),
    ] {
        let told = swap(module, source, settings);
        assert!(told.contains("notice bad") && told.contains(words), "{module} {source} {settings}: {told}");
    }
    assert_eq!(server.in_force("own"), 2);
    // An address made by others puts no words there.
    let page = String::from_utf8(server.get("/?notice=good%3ACall%20this%20number").body).unwrap();
    assert!(!page.contains("Call this number") && !page.contains("id=\"notice\""));
}

#[test]
fn a_policy_is_swapped_and_rolled_back_from_the_command_line() {
    let place = Place::new();
    let server = Server::start(&place, &with_route("[[routes]]\npolicy = \"adaptive\"\n"));
    let first = decoded(&server, "picture", &small(4, 4));
    assert_eq!((first["policy"].as_str(), first["revision"].as_u64()), (Some("adaptive"), Some(1)));
    let policy = |arguments: &[&str]| place.run(&[&["policy"], arguments, &["--server", &server.url()]].concat());
    let swapped =
        policy(&["swap", "adaptive", "fixed", "--set", "tile=64", "--set", "space=blended", "--set", "overlap=16"]);
    let text = swapped.succeeded().stdout();
    assert!(text.contains("in force") && text.contains("2: fixed") && text.contains("previous"), "{text}");
    let second = decoded(&server, "picture", &small(16, 16));
    assert_eq!(second["revision"], 2);
    let record = server.get(&format!("/v1/jobs/{}/decision", second["id"].as_str().unwrap())).with(200);
    assert_eq!(
        (record["policy"]["name"].as_str(), record["plan"]["space"]["height"].as_u64()),
        (Some("fixed"), Some(64)),
        "{record}"
    );
    // A file is uploaded, and passes the gate there.
    let file = place.write("own.wasm", careful(""));
    assert_eq!(policy(&["swap", "adaptive", &file, "--json"]).json()["in_force"]["number"], 3);
    assert_eq!(policy(&["rollback", "adaptive", "--json"]).json()["in_force"]["number"], 2);
    policy(&["rollback", "adaptive"]).failed(2, "no previous revision");
    policy(&["swap", "adaptive", "nonsense"]).failed(2, "unknown policy 'nonsense'");
    policy(&["swap", "nobody", "fixed"]).failed(2, "no policy 'nobody' is in service: there are adaptive");
    let broken = place.write("broken.wasm", b"\0asm\x01\0\0\0rubbish");
    policy(&["swap", "adaptive", &broken]).failed(2, "not a module that can be run here");
    let trapping = place.write("trap.wasm", guest("", "(unreachable)"));
    policy(&["swap", "adaptive", &trapping]).failed(2, "fails");
    policy(&["swap", "adaptive", "fixed", "--set", "tile=none"]).failed(2, "tile");
    assert_eq!(server.in_force("adaptive"), 2);
    assert_eq!(kinds(&server)[..1], ["refused"]);
}

#[test]
fn blended_tiles_are_allowed_by_a_job_a_route_or_the_server() {
    let tiling = "[policies.tiling]\nsource = \"comfyui\"\nset = { tile = 64, overlap = 16, tiled = true }\n";
    let route = |more: &str| format!("{tiling}[[routes]]\npolicy = \"tiling\"\n{more}");
    let decide = |server: &Server, more: Value| {
        let mut request = json!({ "model": "picture" });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let id = server.accepted(&request, &small(16, 16));
        assert_eq!(server.ended(&id)["state"], "done");
        let record = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
        let is_blended = record["plan"]["space"]["kind"] == "blended";
        assert_eq!(record["request"]["allows_blended"].as_bool(), Some(is_blended), "{record}");
        is_blended
    };
    let place = Place::new();
    let server = Server::start(&place, &with_route(&route("")));
    assert!(!decide(&server, json!({})));
    assert!(decide(&server, json!({ "allow": ["blended"] })));
    assert!(!decide(&server, json!({ "allow": ["encode.blended"] })));
    let refused =
        server.submit(&json!({ "model": "picture", "allow": ["reuse=0.2"] }), &small(16, 16), &[]).problem(422);
    assert!(refused.contains("allow: reuse is for samples and prompts"), "{refused}");
    let refused = server.submit(&json!({ "model": "picture", "allow": ["tiles"] }), &small(16, 16), &[]).problem(422);
    assert!(refused.starts_with("allow[0]: "), "{refused}");
    assert_eq!(server.end(), 0);
    let place = Place::new();
    let server = Server::start(&place, &with_route(&route("allow = [\"blended\"]\n")));
    assert!(decide(&server, json!({})));
    assert_eq!(server.end(), 0);
}

#[test]
fn a_file_that_changes_takes_over_through_the_gate_and_a_broken_one_never_does() {
    let place = Place::new();
    place.write("own.wasm", careful(""));
    let server =
        Server::start(&place, &with_route("[policies.own]\nsource = \"./own.wasm\"\n[[routes]]\npolicy = \"own\"\n"));
    assert_eq!(decoded(&server, "picture", &small(4, 4))["revision"], 1);
    place.write("next.wasm", trapping_at(424_242));
    fs::rename(place.path("next.wasm"), place.path("own.wasm")).unwrap();
    server.until(|| (server.in_force("own") == 2).then_some(()));
    place.write("own.wasm", b"\0asm\x01\0\0\0rubbish");
    server.until(|| kinds(&server).contains(&"refused".to_owned()).then_some(()));
    let policy = server.get("/v1/policies/own").with(200);
    assert_eq!((policy["in_force"]["number"].as_u64(), policy["previous"]["number"].as_u64()), (Some(2), Some(1)));
    assert!(policy["refused"][0]["why"].as_str().unwrap().contains("own.wasm"), "{policy}");
    assert_eq!(decoded(&server, "picture", &small(4, 4))["revision"], 2);
    // After a restart the same revision is in force, and the file that was refused is not.
    server.kill();
    let server =
        Server::start(&place, &with_route("[policies.own]\nsource = \"./own.wasm\"\n[[routes]]\npolicy = \"own\"\n"));
    assert_eq!(server.in_force("own"), 2);
    assert_eq!(server.get("/v1/policies/own").with(200)["previous"]["number"], 1);
}

#[test]
fn the_configuration_is_read_anew_and_a_broken_one_changes_nothing() {
    let place = Place::new();
    let text = |route: &str| with_route(route);
    let server = Server::start(&place, &text("[[routes]]\npolicy = \"adaptive\"\n"));
    place.write(
        "tilewright.toml",
        text("[[routes]]\ntag = \"mine\"\npolicy = \"comfyui\"\n[[routes]]\npolicy = \"fixed\"\n"),
    );
    server.until(|| (server.get("/v1/routes").with(200)["routes"].as_array().unwrap().len() == 2).then_some(()));
    let tagged = server.accepted(&json!({ "model": "picture", "tag": "mine" }), &small(4, 4));
    let tagged = server.ended(&tagged);
    assert_eq!((tagged["route"].as_str(), tagged["policy"].as_str()), (Some("route-1"), Some("comfyui")));
    assert_eq!(decoded(&server, "picture", &small(4, 4))["policy"], "fixed");
    place.write("tilewright.toml", text("[[routes]]\npolicy = \"nobody\"\n"));
    let ready = server.until(|| Some(server.get("/readyz").with(200)).filter(|ready| !ready["detail"].is_null()));
    assert!(ready["detail"].as_str().unwrap().contains("not in force"), "{ready}");
    assert!(kinds(&server).contains(&"reload-refused".to_owned()));
    assert!(String::from_utf8(server.get("/").body).unwrap().contains("nobody"), "the dashboard says so, too");
    assert_eq!(decoded(&server, "picture", &small(4, 4))["policy"], "fixed");
    place.write("tilewright.toml", text("[[routes]]\npolicy = \"gfx1151\"\n"));
    server.until(|| server.get("/readyz").with(200)["detail"].is_null().then_some(()));
    assert_eq!(decoded(&server, "picture", &small(4, 4))["policy"], "gfx1151");
}

#[test]
fn a_paused_policy_is_not_asked() {
    let place = Place::new();
    let server = Server::start(&place, &with_route("[[routes]]\npolicy = \"adaptive\"\n"));
    let reason = || {
        let id = decoded(&server, "picture", &small(4, 4))["id"].as_str().unwrap().to_owned();
        server.get(&format!("/v1/jobs/{id}/decision")).with(200)["fallback"]["detail"].as_str().map(str::to_owned)
    };
    assert_eq!(reason(), None);
    assert_eq!(server.post("/v1/policies/adaptive/pause", &json!({})).with(200)["paused"], true);
    assert_eq!(reason().as_deref(), Some("policy adaptive is paused"));
    server.post("/v1/policies/adaptive/resume", &json!({})).with(200);
    assert_eq!(reason(), None);
}

#[test]
fn the_watchdog_takes_back_what_fails_with_a_dump_that_can_be_replayed() {
    let place = Place::new();
    let server = Server::start(&place, &with_route("[[routes]]\npolicy = \"fixed\"\n"));
    // Narrower than any request of the golden set, drawn ones included.
    let module = place.write("trap.wasm", trapping_at(56));
    place.run(&["policy", "swap", "fixed", &module, "--server", &server.url()]).succeeded();
    assert_eq!(server.in_force("fixed"), 2);
    // It does well for others, and every job gets its picture.
    decoded(&server, "picture", &small(4, 4));
    for _ in 0..3 {
        assert_eq!(server.in_force("fixed"), 2);
        decoded(&server, "picture", &small(4, 7));
    }
    server.until(|| (server.in_force("fixed") == 1).then_some(()));
    assert_eq!(kinds(&server)[0], "watchdog-rolled-back");
    let events = server.get("/v1/events").with(200);
    let detail = events["events"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("3 failed or invalid answers in a row"), "{detail}");
    let dump = fs::read_dir(place.path("data/dumps")).unwrap().next().unwrap().unwrap().path();
    let lines = fs::read_to_string(&dump).unwrap();
    assert_eq!(lines.matches("\"reason\":\"trap\",").count() % 3, 0, "{lines}");
    assert_eq!(lines.lines().count(), 4, "every job under the revision");
    let replayed = place.run(&["policy", "replay", dump.to_str().unwrap(), "--policy", &module, "--json"]).json();
    assert_eq!(replayed["totals"]["different"], 0, "{replayed}");
    assert!(replayed["totals"]["equal"].as_u64().unwrap() >= 4, "{replayed}");
}

#[test]
fn the_watchdog_takes_back_what_is_clearly_slower() {
    let place = Place::new();
    let server =
        Server::start(&place, &with_route("[policies.own]\nsource = \"fixed\"\n[[routes]]\npolicy = \"own\"\n"));
    let latent = small(16, 16);
    let swap = |settings: Value| {
        let swapped = server.post("/v1/policies/own/swap", &json!({ "source": "fixed", "settings": settings }));
        swapped.with(200)["in_force"]["number"].as_u64().unwrap()
    };
    // A machine that is busy during the eight and quiet afterwards hides the difference: then anew.
    let is_taken_back = || {
        let quick = swap(json!({ "space": "whole" }));
        (0..8).for_each(|_| drop(decoded(&server, "picture", &latent)));
        // A sixteenth of the picture at a time, each with as much overlap as there may be.
        swap(json!({ "space": "blended", "tile": 64, "overlap": 16, "batch": 1 }));
        (0..40).any(|_| {
            decoded(&server, "picture", &latent);
            server.in_force("own") == quick
        })
    };
    assert!((0..20).any(|_| is_taken_back()), "{}", server.get("/v1/policies/own").with(200));
    let why = server.get("/v1/events").with(200)["events"][0]["detail"].as_str().unwrap().to_owned();
    assert!(why.contains("worse than the revision before"), "{why}");
}

#[test]
fn a_canary_takes_its_share_and_is_promoted_or_stopped_by_the_rule() {
    let route = |psnr: &str, set: &str| {
        format!(
            "[policies.new]\nsource = \"fixed\"\nset = {{ {set} }}\n\
             [[routes]]\npolicy = \"fixed\"\ncanary = {{ policy = \"new\", share = 0.5, sample = 0.5, psnr = {psnr} }}\n"
        )
    };
    let canary = |server: &Server| server.get("/v1/routes").with(200)["routes"][0]["canary"].clone();
    let place = Place::new();
    // The canary's pictures are the incumbent's but for rounding.
    let server =
        Server::start(&place, &with_route(&route("45.0", "space = \"exact\", tile = 128, precision = \"f32\"")));
    let mut taken = BTreeSet::new();
    for job in 0..400 {
        let job = (job, decoded(&server, "picture", &small(16, 16)));
        if job.1["canary"] == true {
            assert_eq!(job.1["policy"], "new");
            taken.insert(job.0);
        }
        if canary(&server)["state"] != "trial" {
            break;
        }
    }
    let ended = canary(&server);
    assert!(ended["state"] != "trial" && taken.len() >= 10, "{ended}");
    assert!(ended["least_psnr"].is_null() || ended["least_psnr"].as_f64().unwrap() > 60.0, "{ended}");
    assert!(taken.iter().all(|job| job % 2 == 1), "every other job: {taken:?}");
    let promoted = ended["state"] == "promoted";
    assert_eq!(server.in_force("fixed"), if promoted { 2 } else { 1 });

    // Nothing is that exact: the first sample stops it.
    let place = Place::new();
    let server = Server::start(&place, &with_route(&route("300.0", "space = \"blended\", tile = 64, overlap = 16")));
    decoded(&server, "picture", &small(16, 16));
    assert_eq!(decoded(&server, "picture", &small(16, 16))["canary"], true);
    let ended = canary(&server);
    assert_eq!(ended["state"], "stopped", "{ended}");
    assert!(ended["why"].as_str().unwrap().contains("of 300 dB at least"), "{ended}");
    assert!((0..4).all(|_| decoded(&server, "picture", &small(4, 4))["canary"] == false));
    // It stays stopped after a restart, with the counts that it had.
    let text = fs::read_to_string(place.path("tilewright.toml")).unwrap();
    let ended = canary(&server);
    assert_eq!((&ended["jobs"], &ended["samples"]), (&json!(1), &json!(1)));
    server.kill();
    let server = Server::start(&place, &text);
    assert_eq!(canary(&server), ended);
    server.post("/v1/routes/route-1/canary/promote", &json!({})).problem(409);
}

#[test]
fn counts_go_on_after_a_restart() {
    let place = Place::new();
    let set = "space = \"exact\", tile = 128, precision = \"f32\"";
    let text = with_route(&format!(
        "[policies.new]\nsource = \"fixed\"\nset = {{ {set} }}\n\
         [[routes]]\npolicy = \"fixed\"\ncanary = {{ policy = \"new\", share = 0.5, sample = 0.5, psnr = 45.0 }}\n"
    ));
    let mut server = Server::start(&place, &text);
    let counts = |server: &Server| {
        let of = |policy: &str| {
            let in_force = server.get(&format!("/v1/policies/{policy}")).with(200)["in_force"].clone();
            (in_force["jobs"].clone(), in_force["decisions"].clone(), in_force["failures"].clone())
        };
        (server.get("/v1/routes").with(200)["routes"][0]["canary"].clone(), of("fixed"), of("new"))
    };
    for _ in 0..6 {
        decoded(&server, "picture", &small(16, 16));
    }
    let before = counts(&server);
    assert_eq!((&before.0["jobs"], &before.0["state"]), (&json!(3), &json!("trial")), "{before:?}");
    assert!(before.0["samples"].as_u64().unwrap() >= 1 && before.0["comparison"]["jobs"] == 3, "{before:?}");
    assert_eq!((&before.1.0, &before.2.0), (&json!(3), &json!(3)), "{before:?}");
    // After a kill, and after an end in good order.
    server.kill();
    server = Server::start(&place, &text);
    assert_eq!(counts(&server), before);
    let page = String::from_utf8(server.get("/").body).unwrap().replace('\u{a0}', " ");
    assert!(page.contains("50 % of jobs, 3 so far"), "{page}");
    assert_eq!(server.end(), 0);
    server = Server::start(&place, &text);
    assert_eq!(counts(&server), before);
    for _ in 0..2 {
        decoded(&server, "picture", &small(16, 16));
    }
    let after = counts(&server);
    assert_eq!((&after.0["jobs"], &after.0["comparison"]["jobs"]), (&json!(4), &json!(4)), "{after:?}");
    assert_eq!((&after.1.0, &after.2.0), (&json!(4), &json!(4)), "{after:?}");
    // Another revision begins anew.
    server.post("/v1/policies/new/swap", &json!({ "source": "adaptive" })).with(200);
    decoded(&server, "picture", &small(16, 16));
    decoded(&server, "picture", &small(16, 16));
    assert_eq!(counts(&server).0["jobs"], 1);
}

#[test]
fn a_shadow_is_asked_beside_and_changes_nothing() {
    let place = Place::new();
    let server = Server::start(&place, &with_route("[[routes]]\npolicy = \"fixed\"\nshadow = \"adaptive\"\n"));
    let shadow = server.get("/v1/routes").with(200)["routes"][0]["shadow"].clone();
    assert!(shadow["asked"] == 0 && shadow["revision"].is_null(), "{shadow}");
    for _ in 0..5 {
        assert_eq!(decoded(&server, "picture", &small(16, 16))["policy"], "fixed");
    }
    let shadow = server.until(|| {
        let shadow = server.get("/v1/routes").with(200)["routes"][0]["shadow"].clone();
        (shadow["asked"].as_u64() == Some(5)).then_some(shadow)
    });
    assert_eq!((shadow["policy"].as_str(), shadow["failed"].as_u64()), (Some("adaptive"), Some(0)), "{shadow}");
    assert_eq!(shadow["revision"], 1);
    assert!(
        shadow["predicted_gain"].as_f64().unwrap() > 0.0 && shadow["regrets"].as_array().unwrap().len() == 5,
        "{shadow}"
    );
}

#[test]
fn modules_are_stored_checked_and_never_taken_for_what_they_are_not() {
    let place = Place::new();
    let server = Server::start(&place, &with_route("[[routes]]\npolicy = \"adaptive\"\n"));
    let upload = |bytes: &[u8]| server.ask("POST", "/v1/modules", &[("content-type", "application/wasm")], bytes);
    let stored = upload(&shipped_file("comfyui")).with(201);
    assert_eq!((stored["name"].as_str(), stored["verdict"]["passes"].as_bool()), (Some("comfyui"), Some(true)));
    let digest = stored["digest"].as_str().unwrap();
    let verdict = server.post("/v1/policies/adaptive/check", &json!({ "digest": digest })).with(200);
    assert_eq!(verdict["passes"], true);
    assert_eq!(server.in_force("adaptive"), 1, "asked about is not put in force");
    let failing = upload(&guest("", "(unreachable)")).with(201);
    assert_eq!(failing["verdict"]["passes"], false);
    let line = server.post("/v1/policies/adaptive/swap", &json!({ "digest": failing["digest"] })).problem(422);
    assert!(line.contains("POST /v1/policies/NAME/check") && !line.contains("tilewright policy"), "{line}");
    for (body, words) in [
        (json!({ "source": digest }), "source: a stored module is named by digest"),
        (json!({ "digest": "sha256:00" }), "digest: expected sha256: and 64 hexadecimal digits"),
    ] {
        let line = server.post("/v1/policies/adaptive/swap", &body).problem(422);
        assert!(line.contains(words), "{line}");
    }
    let line = server.ask("PUT", &format!("/v1/modules/{digest}/signature"), &[], b"nonsense").problem(422);
    assert!(
        line.contains("the signature: it is not a minisign signature") && !line.contains("require-signed"),
        "{line}"
    );
    upload(b"(module)").problem(422);
    server.ask("POST", "/v1/modules", &[("content-type", "text/plain")], b"\0asm").problem(415);
    assert_eq!(server.in_force("adaptive"), 1);
}

#[test]
fn where_signatures_are_required_nothing_unsigned_is_compiled() {
    let place = Place::new();
    place.run(&["policy", "keygen", "ada", "--no-password"]).succeeded();
    let key = fs::read_to_string(place.path("ada.pub")).unwrap().lines().nth(1).unwrap().to_owned();
    let trusted = format!("[policies]\nrequire-signed = true\n[[policies.trusted]]\nname = \"Ada\"\nkey = {key:?}\n");
    let server = Server::start(&place, &(config("") + &trusted));
    let upload = |bytes: &[u8], headers: &[(&str, &str)]| {
        let media = [("content-type", "application/wasm")];
        server.ask("POST", "/v1/modules", &[&media, headers].concat(), bytes)
    };
    let stored = || place.path("data/modules").read_dir().unwrap().count();
    let before = stored();
    // The bytes are not even checked to be a module.
    for bytes in [&b"\0asm\x01\0\0\0rubbish"[..], b"(module)", &careful("")] {
        let line = upload(bytes, &[]).problem(422);
        assert!(line.contains("it is not signed"), "{line}");
    }
    assert_eq!(stored(), before, "nothing is kept of it");
    let file = place.write("own.wasm", careful(""));
    place.run(&["policy", "swap", "adaptive", &file, "--server", &server.url()]).failed(2, "it is not signed");
    place.run(&["policy", "sign", &file, "--key", "ada.key"]).succeeded();
    place.run(&["policy", "swap", "adaptive", &file, "--server", &server.url()]).succeeded();
    assert_eq!(server.in_force("adaptive"), 2);
    // A signature of another file does not count, and does not replace a valid one.
    let other = place.write("other.wasm", trapping_at(424_242));
    place.run(&["policy", "sign", &other, "--key", "ada.key"]).succeeded();
    let digest = server.get("/v1/policies/adaptive").with(200)["in_force"]["digest"].as_str().unwrap().to_owned();
    let wrong = fs::read(place.path("other.wasm.minisig")).unwrap();
    let line = server.ask("PUT", &format!("/v1/modules/{digest}/signature"), &[], &wrong).problem(422);
    assert!(line.contains("it is not what Ada signed"), "{line}");
    let nowhere = format!("/v1/modules/sha256:{}/signature", "0".repeat(64));
    server.ask("PUT", &nowhere, &[], &wrong).problem(404);
    assert!(upload(&careful(""), &[("module-signature", "???")]).problem(400).contains("Module-Signature"));
    // Shipped policies need none.
    server.post("/v1/policies/adaptive/swap", &json!({ "source": "fixed" })).with(200);
}

#[test]
fn a_clip_takes_a_new_revision_at_its_next_chunk_where_the_route_says_so() {
    let place = Place::new();
    let route = "[policies.own]\nsource = \"fixed\"\nset = { time = \"carried\", chunk = 1 }\n\
                 [[routes]]\npolicy = \"own\"\ntake-over = \"next-chunk\"\n";
    let server = Server::start(&place, &with_route(route));
    // Long enough for a swap in the middle.
    let latent = crate::program::latent(&[1, 16, 13, 16, 16], 0.1);
    let by_hand = server.accepted(&json!({ "model": "clip", "format": "safetensors" }), &latent);
    assert_eq!(server.ended(&by_hand)["state"], "done");
    let id = server.accepted(&json!({ "model": "clip", "format": "safetensors" }), &latent);
    server.until(|| (server.job(&id)["progress"].as_f64().unwrap_or(0.0) > 0.15).then_some(()));
    let other = json!({ "source": "fixed", "settings": { "time": "carried", "chunk": 2 } });
    server.post("/v1/policies/own/swap", &other).with(200);
    assert_eq!(server.ended(&id)["state"], "done");
    let record = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
    let notes = record["adjusted"].to_string();
    assert!(notes.contains("revision 2 took over from 1 in the middle of the work"), "{record}");
    let result = |id: &str| server.get(&format!("/v1/jobs/{id}/result")).body;
    fs::write(place.path("one.safetensors"), result(&by_hand)).unwrap();
    fs::write(place.path("other.safetensors"), result(&id)).unwrap();
    let (one, other) = (place.sample("one.safetensors").1, place.sample("other.safetensors").1);
    assert!(crate::program::largest_difference(&one, &other) <= 1e-5);
    // A clip that several revisions decided counts for none.
    assert_eq!(server.get("/v1/policies/own").with(200)["in_force"]["jobs"], 0);
}
