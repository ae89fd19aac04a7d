//! Ends that come soon: a cancellation and a deadline within an operation of each stage, work that
//! is refused because it can't be done in time, and what a job says after a kill.

use std::{fs, thread, time::Duration};

use serde_json::{Value, json};

use super::{
    jobs::{self, held, small},
    prompts::config,
    server::{HOLDING, HOLDING_WITHIN, Server},
};
use crate::{generate::fresh_prompt, program::Place};

/// A prompt's request whose work is held up within an operation of a stage. No encoder has read the
/// prompt before.
fn within(stage: &str, side: u32) -> Value {
    json!({
        "model": "flux", "prompt": fresh_prompt(), "format": "safetensors", "tag": format!("within-{stage}"),
        "sample": { "width": side, "height": side, "steps": 3, "seed": 7 },
    })
}

/// The times that a server has held work up.
fn holds(place: &Place) -> usize {
    fs::read_to_string(place.path("server.log")).unwrap().matches("held up within an operation").count()
}

#[test]
fn a_job_ends_within_an_operation_of_any_stage_when_it_is_cancelled_or_its_deadline_passes() {
    let place = Place::new();
    let server = Server::started(&place, &config(), &[HOLDING_WITHIN]);
    image::RgbImage::from_pixel(48, 32, image::Rgb([200, 40, 90])).save(place.path("start.png")).unwrap();
    let start = fs::read(place.path("start.png")).unwrap();
    let id_of = |answer: super::server::Answer| answer.with(202)["id"].as_str().unwrap().to_owned();
    for (before, stage) in ["text", "encode", "denoise", "decode"].into_iter().enumerate() {
        // The first step of a large picture, whose attention alone would take seconds.
        let mut request = within(stage, if stage == "denoise" { 2048 } else { 48 });
        let id = match stage {
            "encode" => {
                request["sample"] = json!({ "steps": 3, "seed": 7, "denoise": 0.5 });
                id_of(server.submit_files(&request, &[("image", &start)]))
            }
            _ => id_of(server.post("/v1/jobs", &request)),
        };
        server.until(|| (holds(&place) > before).then_some(()));
        let job = server.job(&id);
        assert_eq!((&job["state"], &job["at"]), (&json!("running"), &json!(stage)), "{job}");
        server.ask("DELETE", &format!("/v1/jobs/{id}"), &[], b"").with(200);
        let job = server.ended(&id);
        assert_eq!((&job["state"], &job["error"]), (&json!("cancelled"), &Value::Null), "{job}");
    }
    let mut late = within("denoise", 48);
    late["deadline_s"] = json!(2);
    let late = server.ended(&id_of(server.post("/v1/jobs", &late)));
    let line = "its deadline passed during the sampling";
    assert_eq!((&late["state"], &late["error"]), (&json!("expired"), &json!(line)), "{late}");
    // The device goes on with the next job.
    let mut next = within("nothing", 48);
    next["tag"] = Value::Null;
    assert_eq!(server.ended(&id_of(server.post("/v1/jobs", &next)))["state"], "done");
    assert_eq!(server.end(), 0);
}

#[test]
fn work_that_can_not_be_done_in_time_is_refused_at_once_with_both_times() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    let mut request = within("nothing", 1024);
    request["sample"]["steps"] = json!(10_000);
    request["deadline_s"] = json!(1);
    let line = server.post("/v1/jobs", &request).problem(422);
    assert!(line.starts_with("deadline_s: the job is expected to take "), "{line}");
    assert!(line.contains(" and 1 s are allowed: allow more, or ask for a smaller size or fewer steps"), "{line}");
    assert_eq!(server.get("/v1/jobs").with(200)["jobs"], json!([]), "nothing is kept");
    // A deadline that little work can keep to is no reason to refuse it.
    request["sample"] = json!({ "width": 48, "height": 32, "steps": 1 });
    request["deadline_s"] = json!(600);
    let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id)["state"], "done");
}

#[test]
fn a_deadline_that_passes_while_the_server_is_down_says_so() {
    let place = Place::new();
    let text = jobs::config("");
    // On a busy machine a deadline may pass before the job is at work: a later one serves then.
    let killed = [2, 20, 200].into_iter().find_map(|deadline_s| {
        let server = Server::started(&place, &text, &[HOLDING]);
        let mut request = held();
        request["deadline_s"] = json!(deadline_s);
        let id = server.accepted(&request, &small(4, 4));
        let state = server.until(|| Some(server.job(&id)["state"].clone()).filter(|state| state != "queued"));
        if state != "running" {
            return None;
        }
        server.kill();
        thread::sleep(Duration::from_secs(deadline_s));
        let ended = Server::started(&place, &text, &[]).ended(&id);
        assert_eq!(ended["state"], "expired", "{ended}");
        let line = ended["error"].as_str().unwrap().to_owned();
        (line != "its deadline passed during the decode").then_some(line)
    });
    assert_eq!(killed.unwrap(), "its deadline passed while the server was down, during the decode");
}
