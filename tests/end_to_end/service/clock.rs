//! Jobs across changes of the machine's clock: a year forward and an hour back, by a hook of the
//! server's own, since the machine's clock is nothing to change.

use std::thread;

use serde_json::{Value, json};

use super::{
    jobs::{config, held, small},
    server::{HOLDING, Server},
};
use crate::program::Place;

const HOUR: i64 = 60 * 60;
const YEAR: i64 = 365 * 24 * HOUR;

/// Sets the server's wall clock ahead by some seconds.
fn set_ahead(place: &Place, seconds: i64) {
    // In one step: the server may be reading it.
    place.write("ahead.new", seconds.to_string());
    std::fs::rename(place.path("ahead.new"), place.path("ahead")).unwrap();
}

fn started(place: &Place) -> Server {
    let ahead = place.path("ahead").display().to_string();
    Server::started(place, &config(""), &[HOLDING, ("TILEWRIGHT_CLOCK_AHEAD", &ahead)])
}

fn running(server: &Server, id: &str) {
    server.until(|| (server.job(id)["state"] == "running").then_some(()));
}

fn expires() -> Value {
    json!({ "model": "picture", "deadline_s": 1 })
}

#[test]
fn jobs_that_wait_or_are_at_work_know_nothing_of_a_jump() {
    let place = Place::new();
    let server = started(&place);
    let at_work = server.accepted(&held(), &small(4, 4));
    running(&server, &at_work);
    let waiting = server.accepted(&json!({ "model": "picture", "format": "safetensors" }), &small(4, 4));
    let mut accepted = vec![at_work.clone(), waiting.clone()];
    let events = thread::scope(|scope| {
        let follower = scope.spawn(|| server.followed(&waiting));
        for seconds in [YEAR, -HOUR] {
            set_ahead(&place, seconds);
            // The end shows that deadlines were looked at since, and that a second is one.
            let late = server.accepted(&expires(), &small(4, 4));
            assert_eq!(server.ended(&late)["state"], "expired", "{seconds}");
            accepted.push(late);
            assert_eq!([&at_work, &waiting].map(|id| server.job(id)["state"].clone()), ["running", "queued"]);
        }
        server.ask("DELETE", &format!("/v1/jobs/{at_work}"), &[], b"").with(200);
        follower.join().unwrap()
    });
    let (name, last) = events.last().unwrap();
    assert_eq!((name.as_str(), &last["state"]), ("end", &json!("done")), "{events:?}");
    let listed = server.get("/v1/jobs").with(200);
    let listed: Vec<&str> = listed["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert!(listed.iter().rev().eq(accepted.iter()), "newest first: {listed:?}, accepted {accepted:?}");
    for id in &accepted {
        let job = server.job(id);
        let [created, started, finished] = ["created", "started", "finished"].map(|time| job[time].as_str());
        let times: Vec<&str> = [created, started, finished].into_iter().flatten().collect();
        assert!(times.is_sorted(), "none goes back, whatever the clock does: {job}");
    }
}

#[test]
fn a_deadline_that_is_kept_across_a_restart_is_no_longer_than_it_was() {
    let place = Place::new();
    let server = started(&place);
    let at_work = server.accepted(&held(), &small(4, 4));
    running(&server, &at_work);
    let late = server.accepted(&expires(), &small(4, 4));
    server.kill();
    set_ahead(&place, -2 * HOUR);
    let server = started(&place);
    assert_eq!(server.ended(&late)["state"], "expired", "not in two hours");
    let after = server.accepted(&expires(), &small(4, 4));
    assert!(after > late, "{after} after {late}");
    running(&server, &at_work);
    server.ask("DELETE", &format!("/v1/jobs/{at_work}"), &[], b"").with(200);
    assert_eq!(server.ended(&at_work)["state"], "cancelled");
}
