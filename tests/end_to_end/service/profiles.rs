//! Profiled jobs: where their time went is in the job, in a trace and on a page, as long as the job
//! is kept.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::{Value, json};

use super::{
    jobs::{config, small},
    prompts,
    server::{HOLDING_WITHIN, Server},
};
use crate::program::{Place, Run};

/// Milliseconds that a server waits after each step, so that somebody can look between two.
const SLOW: (&str, &str) = ("TILEWRIGHT_SLOW_STEP_MS", "100");

/// The stages of a job's profile. The categories of each add up to it.
#[track_caller]
fn stages_of(job: &Value) -> Vec<String> {
    let stages = job["profile"].as_array().unwrap_or_else(|| panic!("no profile: {job}"));
    let name = |profile: &Value| {
        let whole = profile["stage_ms"].as_f64().unwrap();
        let rows = profile["categories"].as_array().unwrap();
        let total: f64 = rows.iter().map(|row| row["total_ms"].as_f64().unwrap()).sum();
        assert!(whole > 0.0 && (total / whole - 1.0).abs() < 1e-6, "{total} of {whole}");
        let shares: f64 = rows.iter().map(|row| row["share"].as_f64().unwrap()).sum();
        assert!((shares - 1.0).abs() < 1e-6, "{shares}");
        assert!(profile["unprofiled_ms"].as_f64().unwrap() > 0.0 && profile["overhead"].is_f64(), "{profile}");
        for list in ["operators", "kernels", "layers", "parts"] {
            assert!(profile[list].as_array().unwrap().len() <= 50, "{list}");
        }
        profile["facts"]["stage"].as_str().unwrap().to_owned()
    };
    stages.iter().map(name).collect()
}

/// The names of a kind of ranges in a job's trace, in order.
fn ranges(server: &Server, id: &str, part: &str) -> Vec<String> {
    let answer = server.get(&format!("/v1/jobs/{id}/profile"));
    let trace = answer.with(200);
    assert_eq!(answer.headers["content-type"], "application/json");
    let events = trace["traceEvents"].as_array().unwrap();
    let of_part = events.iter().filter(|event| event["ph"] == "X" && event["args"]["part"] == part);
    of_part.map(|event| event["name"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn submitted(server: &Server, request: &Value) -> String {
    server.post("/v1/jobs", request).with(202)["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_profiled_decode_says_where_its_time_went_for_as_long_as_it_is_kept() {
    let place = Place::new();
    let tiled = config("")
        + "[policies.tiled]\nsource = \"fixed\"\nset = { space = \"blended\", tile = 32, overlap = 8 }\n\
           [[routes]]\ntag = \"tiled\"\npolicy = \"tiled\"\n[[routes]]\npolicy = \"adaptive\"\n";
    let mut server = Server::start(&place, &tiled);
    let request = json!({ "model": "picture", "tag": "tiled", "allow": ["blended"], "profile": true });
    let id = server.accepted(&request, &small(12, 12));
    let job = server.ended(&id);
    assert_eq!((job["state"].as_str(), stages_of(&job)), (Some("done"), vec!["decode".to_owned()]), "{job}");
    assert_eq!(ranges(&server, &id, "stage"), ["decode"]);
    let (tiles, plan) = (ranges(&server, &id, "tile"), server.get(&format!("/v1/jobs/{id}/decision")).with(200));
    assert!(tiles.len() > 1, "{tiles:?}: {}", plan);
    assert!(!ranges(&server, &id, "layer").is_empty());

    let address = format!("/v1/jobs/{id}/profile?format=html");
    let page = server.get(&address);
    assert_eq!((page.status, &page.headers["content-type"]), (200, &"text/html; charset=utf-8".parse().unwrap()));
    assert!(page.headers["content-security-policy"].to_str().unwrap().contains("style-src 'unsafe-inline'"));
    let html = String::from_utf8(page.body).unwrap();
    assert!(html.contains("Timeline") && html.contains("Categories") && !html.contains("<script"), "{html}");
    let tag = page.headers["etag"].to_str().unwrap();
    assert_eq!(server.ask("GET", &address, &[("if-none-match", tag)], b"").status, 304);
    let own = String::from_utf8(server.get(&format!("/jobs/{id}")).body).unwrap();
    assert!(
        own.contains("Where the time went") && own.contains(&format!("/v1/jobs/{id}/profile?format=json")),
        "{own}"
    );

    // Only for those who asked, and only where it was asked for.
    let plain = server.accepted(&json!({ "model": "picture" }), &small(4, 4));
    assert_eq!(server.ended(&plain).get("profile"), None);
    let refused = server.get(&format!("/v1/jobs/{plain}/profile")).problem(404);
    assert!(refused.contains("submit it with profile"), "{refused}");
    server.get(&format!("/v1/jobs/{}/profile", plain.replace('0', "1"))).problem(404);
    server.get(&format!("/v1/jobs/{id}/profile?format=pdf")).problem(400);
    let listed = server.get("/v1/jobs").with(200);
    assert!(listed["jobs"].as_array().unwrap().iter().all(|job| job.get("profile").is_none()), "{listed}");

    let folder = place.path(&format!("data/jobs/{id}/profile"));
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let mut names: Vec<_> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["3-decode-0.profile.json", "page.html", "trace.json"], "the events are gone");

    // The history has a summary.
    let mut command = place.command(&["history", "--json"]);
    let history = Run(command.env("TILEWRIGHT_HISTORY", place.path("data/history.sqlite")).output().unwrap());
    let rows: Vec<Value> =
        history.succeeded().stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), rows[0].get("profile")), (2, None));
    assert_eq!(rows[1]["profile"]["stage_ms"], job["profile"][0]["stage_ms"]);

    server.kill();
    server = Server::start(&place, &tiled);
    assert_eq!(server.job(&id)["profile"], job["profile"]);
    assert_eq!(ranges(&server, &id, "stage"), ["decode"]);
    // As the clean-up does it.
    fs::remove_dir_all(place.path(&format!("data/jobs/{id}"))).unwrap();
    server.get(&format!("/v1/jobs/{id}/profile")).problem(404);
    server.get(&address).problem(404);
    assert_eq!(server.job(&id)["profile"], json!([]));
}

#[test]
fn every_stage_of_a_prompt_is_profiled_and_outlives_the_server() {
    let place = Place::new();
    let mut server = Server::started(&place, &prompts::config(), &[SLOW]);
    let request = json!({
        "model": "flux", "prompt": format!("a cat, {}", crate::generate::fresh_prompt()), "format": "safetensors",
        "sample": { "width": 48, "height": 32, "steps": 3, "seed": 7 },
    });
    let mut profiled = request.clone();
    profiled["profile"] = json!(true);
    let id = submitted(&server, &profiled);
    let early = server.get(&format!("/v1/jobs/{id}/profile")).problem(404);
    assert!(early.contains("has not ended"), "{early}");
    server.until(|| {
        let job = server.job(&id);
        (job["profile"].as_array().unwrap().len() == 2 && job["at"] == "denoise").then_some(())
    });
    server.kill();
    server = Server::started(&place, &prompts::config(), &[SLOW]);
    let pixels = prompts::made(&place, &server, &id);
    let stages = ["text", "text", "denoise", "decode"];
    assert_eq!(stages_of(&server.job(&id)), stages);
    assert_eq!(ranges(&server, &id, "stage"), stages);
    assert!(ranges(&server, &id, "step").contains(&"step 3".to_owned()));

    server.kill();
    server = Server::start(&place, &prompts::config());
    assert_eq!(stages_of(&server.job(&id)), stages);
    assert_eq!(ranges(&server, &id, "stage"), stages);
    let plain = submitted(&server, &request);
    assert!(prompts::made(&place, &server, &plain) == pixels, "a profile changes no pixels");
}

#[test]
fn a_profiled_sample_has_a_range_for_each_step() {
    let place = Place::new();
    let server = Server::start(&place, &prompts::config());
    let request = json!({
        "model": "wan", "prompt": "a cat", "profile": true, "format": "webp",
        "sample": { "width": 48, "height": 32, "frames": 5, "steps": 3, "seed": 7 },
    });
    let id = submitted(&server, &request);
    assert_eq!(server.ended(&id)["state"], "done");
    assert_eq!(ranges(&server, &id, "step"), ["step 1", "step 2", "step 3"]);
    assert!(!ranges(&server, &id, "chunk").is_empty());
}

#[test]
fn a_job_that_waits_for_the_profiler_can_be_cancelled() {
    let place = Place::new();
    let two = config("") + "[devices.other]\ndevice = \"cpu\"\nmemory-limit = \"2GiB\"\n";
    let server = Server::started(&place, &two, &[HOLDING_WITHIN]);
    let asked = |device: &str, tag: &str| {
        let request = json!({ "model": "picture", "profile": true, "device": device, "tag": tag });
        server.accepted(&request, &small(4, 4))
    };
    let first = asked("main", "within-decode");
    server
        .until(|| (server.job(&first)["progress"].is_f64() && !server.job(&first)["attempt"].is_null()).then_some(()));
    let second = asked("other", "waits");
    server.until(|| (server.job(&second)["state"] == "running").then_some(()));
    server.ask("DELETE", &format!("/v1/jobs/{second}"), &[], b"").with(200);
    let job = server.ended(&second);
    assert_eq!((&job["state"], &job["profile"]), (&json!("cancelled"), &json!([])), "{job}");
    server.get(&format!("/v1/jobs/{second}/profile")).problem(404);
    assert_eq!(server.job(&first)["state"], "running");
    server.ask("DELETE", &format!("/v1/jobs/{first}"), &[], b"").with(200);
    assert_eq!(server.ended(&first)["state"], "cancelled");
}
