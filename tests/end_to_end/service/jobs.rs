//! Jobs: what is submitted comes out as the program itself decodes it, can be followed, cancelled
//! and fetched, and outlives the server.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::TcpStream,
    thread,
};

use serde_json::{Value, json};

use super::server::{HELD, Server};
use crate::program::{Place, fixture, largest_difference, latent, sample};

/// A model of pictures, one of clips, and a folder of latents that paths may lead into.
pub fn config(further: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\nroots = [{:?}]\n\
         [server.limits]\nrequests-per-second = 100000\n{further}\n\
         [models.picture]\nvae = {:?}\n[models.clip]\nvae = {:?}\n[devices.main]\ndevice = \"cpu\"\nmemory-limit = \"2GiB\"\n",
        tilewright_fixtures::folder().display(),
        fixture("flux-bfl/ae.safetensors"),
        fixture("wan21-original/Wan2.1_VAE.safetensors"),
    )
}

/// A picture's latent: 32 × 32 pixels per 4 × 4.
pub fn small(height: usize, width: usize) -> Vec<u8> {
    latent(&[1, 16, height, width], 0.25)
}

#[test]
fn a_path_and_an_upload_come_out_as_the_program_decodes_them() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let path = fixture("flux-bfl/latent.safetensors");
    let request = json!({ "model": "picture", "latent_path": path, "format": "safetensors" });
    let answer = server.post("/v1/jobs", &request);
    let id = answer.with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(answer.headers["location"], format!("/v1/jobs/{id}").as_str());
    let uploaded = server
        .accepted(&json!({ "model": "picture", "format": "safetensors", "tag": "upload" }), &fs::read(&path).unwrap());
    let by_hand = place.decode(
        &[path, "--vae".into(), fixture("flux-bfl/ae.safetensors")],
        &["-o", "hand.safetensors", "--no-history"],
    );
    by_hand.succeeded();
    let (shape, expected) = place.sample("hand.safetensors");
    for id in [&id, &uploaded] {
        let job = server.ended(id);
        assert_eq!(job["state"], "done", "{job}");
        assert_eq!((job["width"].as_u64(), job["policy"].as_str()), (Some(shape[3] as u64), Some("adaptive")));
        let result = server.get(&format!("/v1/jobs/{id}/result"));
        assert_eq!((result.status, result.body.len() as u64), (200, job["results"][0]["bytes"].as_u64().unwrap()));
        fs::write(place.path("result.safetensors"), &result.body).unwrap();
        let (found, values) = sample(&place.path("result.safetensors"));
        assert_eq!(found, shape);
        assert!(largest_difference(&values, &expected) <= 1e-5);
        let record = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
        assert_eq!(record["policy"]["name"], "adaptive");
        assert!(record["outcome"]["elapsed_ms"].as_f64().unwrap() > 0.0);
    }
    let listed = server.get("/v1/jobs?tag=upload").with(200);
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(server.get("/v1/decisions?policy=adaptive").with(200)["decisions"].as_array().unwrap().len(), 2);
    assert!(!place.path("data/jobs").join(&id).join("latent").exists(), "nobody needs it any more");
    assert_eq!(server.end(), 0);
}

#[test]
fn a_clip_can_be_followed_chunk_by_chunk_and_is_whole() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let path = fixture("wan21-original-17/latent.safetensors");
    let request = json!({ "model": "clip", "latent_path": path, "format": "webp" });
    let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    let events = server.followed(&id);
    let names: BTreeSet<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains("end") && events.last().unwrap().0 == "end", "{names:?}");
    let (_, end) = events.last().unwrap();
    assert_eq!((end["state"].as_str(), end["frames"].as_u64()), (Some("done"), Some(17)), "{end}");
    let shares: Vec<f64> =
        events.iter().filter(|(name, _)| name == "progress").map(|(_, data)| data["share"].as_f64().unwrap()).collect();
    assert!(shares.is_sorted() && shares.iter().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
    let mut of_attempts = events.iter().filter(|(name, _)| ["plan", "progress"].contains(&name.as_str()));
    assert!(of_attempts.all(|(_, data)| data["attempt"] == 1), "{events:?}");
    let result = server.get(&format!("/v1/jobs/{id}/result"));
    assert_eq!((result.headers["content-type"].to_str().unwrap(), &result.body[8..12]), ("image/webp", &b"WEBP"[..]));
}

#[test]
fn a_batch_has_a_result_each() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let id = server.accepted(&json!({ "model": "picture" }), &latent(&[3, 16, 4, 4], 0.5));
    let job = server.ended(&id);
    assert_eq!((job["state"].as_str(), job["results"].as_array().unwrap().len()), (Some("done"), 3), "{job}");
    for sample in 0..3 {
        let result = server.get(&format!("/v1/jobs/{id}/result?sample={sample}"));
        assert_eq!((result.status, &result.body[1..4]), (200, &b"PNG"[..]));
    }
    server.get(&format!("/v1/jobs/{id}/result?sample=3")).problem(404);
    let part = |range: &str| server.ask("GET", &format!("/v1/jobs/{id}/result"), &[("range", range)], b"");
    let (found, bytes) = (part("bytes=1-3"), job["results"][0]["bytes"].as_u64().unwrap());
    assert_eq!((found.status, &found.body[..]), (206, &b"PNG"[..]));
    assert_eq!(found.headers["content-range"], format!("bytes 1-3/{bytes}").as_str());
    assert_eq!(found.headers["content-type"], "image/png");
    let beyond = part(&format!("bytes={bytes}-"));
    assert!(beyond.problem(416).contains(&format!("no such part of {bytes} bytes")));
    assert_eq!(beyond.headers["content-range"], format!("bytes */{bytes}").as_str());
}

#[test]
fn what_makes_no_sense_is_refused_with_a_line_and_nothing_is_kept() {
    let place = Place::new();
    let server = Server::start(&place, &config("upload = \"64KiB\""));
    let good = small(4, 4);
    for (request, latent, status, words) in [
        (json!({ "model": "nope" }), &good[..], 422, "there are clip, picture"),
        (json!({ "model": "picture", "device": "gpu" }), &good, 422, "there are main"),
        (json!({ "model": "picture", "format": "mp4" }), &good, 422, "can't be written as video"),
        (json!({ "model": "picture", "format": "bmp" }), &good, 422, "format: 'bmp' is not known: there are png, jpg"),
        (json!({ "model": "picture", "tag": "a b" }), &good, 422, "tag: expected"),
        (json!({ "model": "picture", "deadline_s": 0 }), &good, 422, "deadline_s: expected at least 1"),
        (json!({ "model": "picture", "deadline_s": 3601 }), &good, 422, "deadline_s: expected at most 3600"),
        (json!({ "model": "picture", "memory_limit_bytes": 1 }), &good, 422, "memory_limit_bytes: 1 B is too little"),
        (
            json!({ "model": "clip", "format": "webp", "memory_limit_bytes": 1 }),
            &latent(&[1, 16, 2, 4, 4], 0.0),
            422,
            "the least is",
        ),
        (json!({ "model": "picture", "what": 1 }), &good, 422, "what: there is no such field: there are model"),
        (json!({ "model": "clip" }), &latent(&[1, 4, 4, 4], 0.0), 422, "channels"),
        (json!({ "model": "picture" }), b"rubbish", 422, "latent:"),
        (json!({ "model": "picture" }), &latent(&[1, 16, 64, 64], 0.0), 413, "is taken"),
        (json!({ "model": "picture", "latent_path": "/etc/passwd" }), &good, 422, "leave the path out"),
    ] {
        let line = server.submit(&request, latent, &[]).problem(status);
        assert!(line.contains(words), "{words}: {line}");
        assert!(!line.contains("/tmp"), "paths of the server are nobody's business: {line}");
    }
    let outside = server.post("/v1/jobs", &json!({ "model": "picture", "latent_path": "/etc/passwd" }));
    assert!(outside.problem(422).contains("below one of the configured roots"));
    assert_eq!(server.get("/v1/jobs").with(200)["jobs"].as_array().unwrap().len(), 0);
    assert_eq!(fs::read_dir(place.path("data/jobs")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(place.path("data/incoming")).unwrap().count(), 0);
}

#[test]
fn what_is_not_there_is_told_with_its_line_before_anything_is_served() {
    let place = Place::new();
    let root = tilewright_fixtures::folder().display().to_string();
    for (from, line) in [(root.as_str(), 4), (&fixture("flux-bfl/ae.safetensors"), 9)] {
        let text = config("").replace(&format!("\"{from}\""), "\"missing\"");
        let words = format!("tilewright.toml:{line}: ");
        Server::refused(&place, &text).failed(2, &words);
        place.run(&["--config", "tilewright.toml", "config", "check"]).failed(2, &words);
    }
    let text = config("[policies.own]\nsource = \"./missing.wasm\"\n");
    Server::refused(&place, &text).failed(2, "tilewright.toml:8: ");
}

#[test]
fn jobs_are_searched_filtered_and_paged() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let ids: Vec<String> = (0..5)
        .map(|number| {
            let tag = if number % 2 == 0 { "Night-shift" } else { "day" };
            server.accepted(&json!({ "model": "picture", "tag": tag, "format": "jpg" }), &small(4, 4))
        })
        .collect();
    ids.iter().for_each(|id| drop(server.ended(id)));
    let listed = |query: &str| -> (Vec<String>, Option<String>) {
        let page = server.get(&format!("/v1/jobs?{query}")).with(200);
        let jobs = page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned());
        (jobs.collect(), page["next"].as_str().map(str::to_owned))
    };
    let newest: Vec<String> = ids.iter().rev().cloned().collect();
    let night: Vec<String> = ids.iter().rev().step_by(2).cloned().collect();
    for (query, expected) in [
        ("", newest.clone()),
        ("state=done&model=picture&device=main&policy=adaptive&route=default&q=jpg", newest.clone()),
        ("q=night", night.clone()),
        (&format!("q={}", ids[1]), vec![ids[1].clone()]),
        ("model=clip", vec![]),
        ("state=failed", vec![]),
        ("q=nothing%20like%20it", vec![]),
    ] {
        assert_eq!(listed(query), (expected, None), "{query}");
    }
    for query in ["", "q=picture"] {
        let mut all = Vec::new();
        let mut before = String::new();
        loop {
            let (page, next) = listed(&format!("limit=2&{query}{before}"));
            assert!(page.len() <= 2);
            all.extend(page);
            let Some(next) = next else { break };
            before = format!("&before={next}");
        }
        assert_eq!(all, newest, "{query}");
    }
    let long = "q".repeat(65);
    assert!(server.get(&format!("/v1/jobs?q={long}")).problem(400).contains("q: expected at most 64 characters"));
    for path in ["jobs", "decisions"] {
        assert!(server.get(&format!("/v1/{path}?before=xyz")).problem(400).contains("before: expected a job's id"));
    }
    let page = String::from_utf8(server.get("/jobs?q=night&state=done").body).unwrap();
    let created = server.job(&ids[0])["created"].as_str().unwrap()[..19].to_owned() + "Z";
    assert!(page.contains(&format!("datetime=\"{created}\"")) && page.matches("href=\"/jobs/").count() == 3, "{page}");
}

#[test]
fn the_same_key_gives_the_same_job() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let submit = |key: &str| {
        server.submit(&json!({ "model": "picture" }), &small(4, 4), &[("idempotency-key", key)]).with(202)["id"].clone()
    };
    let first = submit("a-1");
    assert_eq!((submit("a-1") == first, submit("a-2") == first), (true, false));
    server.ended(first.as_str().unwrap());
    assert_eq!(submit("a-1"), first, "also after its end");
    assert_eq!(server.get("/v1/jobs").with(200)["jobs"].as_array().unwrap().len(), 2);
}

/// A request for work that a server started by [`Server::holding`] is at until it is ended.
pub fn held() -> Value {
    json!({ "model": "picture", "format": "safetensors", "tag": HELD })
}

#[test]
fn jobs_can_be_cancelled_wherever_they_are_and_pass_their_deadline() {
    let place = Place::new();
    let server = Server::holding(&place, &config(""));
    let request = json!({ "model": "picture", "format": "safetensors" });
    let running = server.accepted(&held(), &small(4, 4));
    server.until(|| (server.job(&running)["state"] == "running").then_some(()));
    let waiting = server.accepted(&request, &small(4, 4));
    let late = server.accepted(&json!({ "model": "picture", "deadline_s": 1 }), &small(4, 4));
    assert_eq!(server.job(&waiting)["position"], 0);
    let cancel = |id: &str| server.ask("DELETE", &format!("/v1/jobs/{id}"), &[], b"");
    assert_eq!(cancel(&waiting).with(200)["state"], "cancelled");
    assert_eq!(server.ended(&late)["state"], "expired", "while it waits");
    assert_eq!(server.job(&running)["state"], "running");
    cancel(&running).with(200);
    assert_eq!(server.ended(&running)["state"], "cancelled");
    let mut late = held();
    late["deadline_s"] = 1.into();
    assert_eq!(server.ended(&server.accepted(&late, &small(4, 4)))["state"], "expired", "at work");
    assert!(cancel(&running).problem(409).contains("cancelled"));
    assert!(server.get(&format!("/v1/jobs/{running}/result")).problem(409).contains("cancelled"));
    cancel("nothing").problem(404);
    let after = server.accepted(&request, &small(4, 4));
    assert_eq!(server.ended(&after)["state"], "done");
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let place = Place::new();
    let server = Server::holding(&place, &config("queue = 2"));
    let request = json!({ "model": "picture" });
    let running = server.accepted(&held(), &small(4, 4));
    server.until(|| (server.job(&running)["state"] == "running").then_some(()));
    let waiting = [server.accepted(&request, &small(4, 4)), server.accepted(&request, &small(4, 4))];
    let refused = server.submit(&request, &small(4, 4), &[]);
    refused.problem(429);
    assert!(refused.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    server.ask("DELETE", &format!("/v1/jobs/{running}"), &[], b"").with(200);
    for id in &waiting {
        assert_eq!(server.ended(id)["state"], "done");
    }
    server.accepted(&request, &small(4, 4));
}

#[test]
fn whoever_follows_is_let_go_when_the_server_ends() {
    let place = Place::new();
    let server = Server::holding(&place, &config(""));
    let id = server.accepted(&held(), &small(4, 4));
    server.until(|| (server.job(&id)["state"] == "running").then_some(()));
    let mut follower = TcpStream::connect(server.address()).unwrap();
    write!(follower, "GET /v1/jobs/{id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = [0; 4096];
    let begun = follower.read(&mut text).unwrap();
    assert!(String::from_utf8_lossy(&text[..begun]).starts_with("HTTP/1.1 200"));
    let followed = thread::spawn(move || {
        let mut rest = Vec::new();
        follower.read_to_end(&mut rest).map(|_| rest)
    });
    assert_eq!(server.end(), 0);
    let rest = followed.join().unwrap().unwrap();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.ends_with("0\r\n\r\n"), "cut off: {rest}");
    assert!(!rest.contains("event: end"), "the job had ended before anybody was let go: {rest}");
}

#[test]
fn what_was_accepted_is_done_after_a_restart_and_results_go_in_time() {
    let place = Place::new();
    let server = Server::holding(&place, &config(""));
    let request = json!({ "model": "picture", "format": "safetensors" });
    let done = server.accepted(&request, &small(4, 4));
    server.ended(&done);
    let running = server.accepted(&held(), &small(4, 4));
    server.until(|| (server.job(&running)["state"] == "running").then_some(()));
    let waiting = server.accepted(&request, &small(4, 8));
    server.kill();
    let server = Server::holding(&place, &config(""));
    assert_eq!(server.job(&done)["state"], "done");
    server.ask("DELETE", &format!("/v1/jobs/{running}"), &[], b"").with(200);
    assert_eq!(server.ended(&waiting)["state"], "done");
    assert_eq!(server.get(&format!("/v1/jobs/{waiting}/result")).status, 200);
}

#[test]
fn two_servers_do_not_share_a_folder_and_a_killed_one_leaves_no_lock() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let second = Place::new();
    let same = config("").replace("data = \"data\"", &format!("data = {:?}", place.path("data")));
    let (folder, process) = (place.path("data"), server.process());
    let words = format!("{}: another server works here (process {process}): stop it, or give", folder.display());
    Server::refused(&second, &same).failed(1, &words);
    // The first one is none the worse, and its folder is free as soon as it is gone, however.
    let request = json!({ "model": "picture", "format": "safetensors" });
    let done = server.accepted(&request, &small(4, 4));
    assert_eq!(server.ended(&done)["state"], "done");
    server.kill();
    let other = Server::start(&second, &same);
    assert_eq!(other.job(&done)["state"], "done");
}
