//! A full disk: acknowledged changes hold after a restart, changes that can't be kept are refused
//! with a time to retry, and work goes on by itself as soon as there is room. On a real full disk
//! if the test may mount one, and with every write of state failing on its own.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    process::Command,
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    endurance::sized,
    jobs::{config, held, small},
    server::{Answer, HOLDING, Server},
};
use crate::{hostile::careful, program::Place};

const POLICY: &str = "[policies.own]\nsource = \"fixed\"\n[[routes]]\npolicy = \"own\"\n";

/// A separate disk of 24 MiB, in memory.
struct Mounted(PathBuf);

impl Mounted {
    /// None if the test may not mount.
    fn at(path: PathBuf) -> Option<Self> {
        fs::create_dir_all(&path).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(&path).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }

    /// Leaves no byte free.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.0.join("filler")).unwrap();
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Asserts a refusal for lack of room, with a time to retry.
#[track_caller]
fn refused(answer: &Answer) {
    let line = answer.problem(507);
    assert!(line.contains("no room"), "{line}");
    assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() > 0);
}

fn swap(server: &Server, tile: u32) -> Answer {
    server.post("/v1/policies/own/swap", &json!({ "source": "fixed", "settings": { "tile": tile } }))
}

fn own(server: &Server) -> (u64, bool) {
    let policy = server.get("/v1/policies/own").with(200);
    (policy["in_force"]["number"].as_u64().unwrap(), policy["paused"].as_bool().unwrap())
}

#[test]
fn a_full_disk_refuses_what_it_cant_keep_and_work_goes_on_once_there_is_room() {
    let place = Place::new();
    let Some(disk) = Mounted::at(place.path("data")) else {
        println!("left out: mounting a small disk takes the rights of root");
        return;
    };
    let text = config("") + POLICY;
    let request = json!({ "model": "picture", "format": "safetensors" });
    let server = Server::holding(&place, &text);
    swap(&server, 64).with(200);
    swap(&server, 72).with(200);
    let done = server.accepted(&request, &small(4, 4));
    assert_eq!(server.ended(&done)["state"], "done");
    let running = server.accepted(&held(), &small(4, 4));
    server.until(|| (server.job(&running)["state"] == "running").then_some(()));

    disk.fill();
    let ready = |server: &Server, status: u16| {
        server.until(|| Some(server.get("/readyz")).filter(|ready| ready.status == status)).json()
    };
    assert!(ready(&server, 503)["detail"].as_str().unwrap().contains("no room"));
    refused(&server.submit(&request, &small(4, 4), &[]));
    refused(&swap(&server, 80));
    for what in ["rollback", "pause"] {
        refused(&server.post(&format!("/v1/policies/own/{what}"), &json!({})));
    }
    refused(&server.ask("POST", "/v1/modules", &[("content-type", "application/wasm")], &careful("")));
    assert_eq!(own(&server), (3, false));
    // A restart finds everything as it was, on a disk that is still full.
    server.kill();
    let server = Server::start(&place, &text);
    assert_eq!(own(&server), (3, false));
    assert_eq!(server.job(&done)["state"], "done");
    ready(&server, 503);
    refused(&server.post("/v1/policies/own/rollback", &json!({})));
    thread::sleep(Duration::from_millis(500));
    assert!(["queued", "running"].contains(&server.job(&running)["state"].as_str().unwrap()), "it waits for room");

    disk.empty();
    ready(&server, 200);
    let next = server.accepted(&request, &small(4, 4));
    for id in [&running, &next] {
        assert_eq!(server.ended(id)["state"], "done");
        assert_eq!(server.get(&format!("/v1/jobs/{id}/result")).status, 200);
    }
    server.post("/v1/policies/own/rollback", &json!({})).with(200);
    server.post("/v1/policies/own/pause", &json!({})).with(200);
    server.kill();
    let server = Server::start(&place, &text);
    assert_eq!(own(&server), (2, true));
    swap(&server, 88).with(200);
    assert_eq!(own(&server).0, 4, "a swap that was refused took no number");
}

#[test]
fn a_result_larger_than_the_system_allows_fails_at_once_and_ends_no_server() {
    let place = Place::new();
    let request = json!({ "model": "picture", "format": "safetensors" });
    // Blocks of 512 bytes: 2 MiB, and the result has 3 MiB.
    let server = Server::limited(&place, &config(""), "-f 4096");
    let large = server.accepted(&request, &small(64, 64));
    let job = server.ended(&large);
    assert_eq!(job["state"], "failed", "{job}");
    let why = job["error"].as_str().unwrap();
    assert!(why.contains("result.safetensors: can't be written") && why.contains("no file may be that large"), "{why}");
    assert!(!why.contains("os error") && !why.contains("/tmp"), "{why}");
    // There is room all the same.
    let next = server.accepted(&request, &small(4, 4));
    assert_eq!(server.ended(&next)["state"], "done");
    assert_eq!(server.get("/readyz").status, 200);
    server.kill();
    let server = Server::limited(&place, &config(""), "-f 4096");
    assert_eq!(server.job(&large)["state"], "failed");
}

/// The state acknowledged in one run, one of whose writes fails.
#[derive(Default)]
struct Acknowledged {
    jobs: Vec<String>,
    cancelled: Vec<String>,
    /// The number in force, and true if paused, by the last answer; a refused change after it
    /// alters neither.
    policy: Option<(u64, bool)>,
    modules: Vec<String>,
    refusals: usize,
}

/// Sends every request that changes something.
fn through(server: &Server, request: &Value) -> Acknowledged {
    let mut known = Acknowledged::default();
    let mut is_kept = |answer: &Answer| {
        let is_refused = [503, 507].contains(&answer.status);
        assert!(is_refused || (200..300).contains(&answer.status), "{}", String::from_utf8_lossy(&answer.body));
        if is_refused {
            assert!(answer.headers.contains_key("retry-after"));
            known.refusals += 1;
            // The fault is short: soon there is room again.
            server.until(|| (server.get("/readyz").status == 200).then_some(()));
        }
        !is_refused
    };
    let (mut jobs, mut cancelled, mut modules) = (Vec::new(), Vec::new(), Vec::new());
    let submitted = server.submit(request, &small(4, 4), &[]);
    if is_kept(&submitted) {
        jobs.push(submitted.json()["id"].as_str().unwrap().to_owned());
        server.ended(&jobs[0]);
    }
    let mut policy = own(server);
    let mut asked = |path: &str, body: Value| {
        if is_kept(&server.post(&format!("/v1/policies/own/{path}"), &body)) {
            policy = own(server);
        } else {
            assert_eq!(own(server), policy, "{path}: what was refused is not in force");
        }
    };
    asked("swap", json!({ "source": "fixed", "settings": { "tile": 64 } }));
    asked("pause", json!({}));
    asked("resume", json!({}));
    asked("swap", json!({ "source": "adaptive" }));
    asked("rollback", json!({}));
    let stored = server.ask("POST", "/v1/modules", &[("content-type", "application/wasm")], &careful(""));
    if is_kept(&stored) {
        modules.push(stored.json()["digest"].as_str().unwrap().to_owned());
    }
    let submitted = server.submit(&held(), &small(4, 4), &[]);
    if is_kept(&submitted) {
        let id = submitted.json()["id"].as_str().unwrap().to_owned();
        server.until(|| (server.job(&id)["state"] != "queued").then_some(()));
        match is_kept(&server.ask("DELETE", &format!("/v1/jobs/{id}"), &[], b"")) {
            true => cancelled.push(id),
            false => jobs.push(id),
        }
    }
    // A job that waits when the server is killed.
    let submitted = server.submit(request, &small(4, 8), &[]);
    if is_kept(&submitted) {
        jobs.push(submitted.json()["id"].as_str().unwrap().to_owned());
    }
    Acknowledged { jobs, cancelled, policy: Some(policy), modules, ..known }
}

#[test]
fn every_write_of_state_fails_on_its_own_and_nothing_acknowledged_is_lost() {
    let request = json!({ "model": "picture", "format": "safetensors" });
    let text = config("") + POLICY;
    // A job that is cancelled at work is held up there; a restart lets it go on.
    let (mut refusals, mut is_reached) = (0, true);
    // Ends with the first run that the fault does not reach.
    for fault in (1_u64..).step_by(sized(1, 9)) {
        if !is_reached {
            break;
        }
        let place = Place::new();
        let asked = fault.to_string();
        let known =
            Server::try_started(&place, &text, &[("TILEWRIGHT_DISK_FAULT", asked.as_str()), HOLDING]).map(|server| {
                let known = through(&server, &request);
                server.kill();
                known
            });
        let server = Server::start(&place, &text);
        is_reached = fs::read_to_string(place.path("server.log")).unwrap().contains("(a test's)");
        let Some(known) = known else { continue };
        refusals += known.refusals;
        assert_eq!(Some(own(&server)), known.policy, "{fault}");
        for id in &known.jobs {
            let job = server.ended(id);
            assert_eq!(job["state"], "done", "{fault}: {job}");
            assert_eq!(server.get(&format!("/v1/jobs/{id}/result")).status, 200, "{fault}");
        }
        for id in &known.cancelled {
            assert_eq!(server.ended(id)["state"], "cancelled", "{fault}");
        }
        let listed = server.get("/v1/jobs").with(200)["jobs"].as_array().unwrap().len();
        assert_eq!(listed, known.jobs.len() + known.cancelled.len(), "{fault}: what was refused is not there");
        for digest in &known.modules {
            server.post("/v1/policies/own/swap", &json!({ "digest": digest })).with(200);
        }
    }
    assert!(refusals > 0);
}
