//! A server's day in little: crashes, too many callers, and policies that come and go under load.
//! At full size with `TILEWRIGHT_ENDURANCE=full`.

use std::{
    collections::{BTreeMap, HashMap},
    env, fs,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Value, json};

use super::{
    jobs::{config, held, small},
    server::Server,
};
use crate::{
    hostile::guest,
    program::{Place, root},
};

fn is_full() -> bool {
    env::var("TILEWRIGHT_ENDURANCE").is_ok_and(|size| size == "full")
}

/// At full size, or as small as every run of the tests can bear.
pub fn sized(full: usize, small: usize) -> usize {
    if is_full() { full } else { small }
}

fn quantile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// The values of a result, without the decision's record beside them, whose times differ.
fn values(result: &[u8]) -> Vec<u8> {
    safetensors::SafeTensors::deserialize(result).unwrap().tensor("sample").unwrap().data().to_vec()
}

#[test]
fn every_accepted_job_ends_once_whatever_kills_the_server() {
    let (kills, jobs) = (sized(10, 3), sized(100, 24));
    let place = Place::new();
    let text = config("queue = 1000") + "[[routes]]\npolicy = \"fixed\"\n";
    let request = json!({ "model": "picture", "format": "safetensors" });
    let mut server = Server::start(&place, &text);
    // The right results, by their size.
    let sizes = [4, 8, 12];
    let right: Vec<Vec<u8>> = sizes
        .iter()
        .map(|&size| {
            let id = server.accepted(&request, &small(size, size));
            assert_eq!(server.ended(&id)["state"], "done");
            values(&server.get(&format!("/v1/jobs/{id}/result")).body)
        })
        .collect();
    let mut accepted: BTreeMap<usize, String> = BTreeMap::new();
    let mut killed = 0;
    for job in 0..jobs {
        let latent = small(sizes[job % 3], sizes[job % 3]);
        // A caller without an answer asks again with the same key, and has one job.
        let key = format!("job-{job}");
        loop {
            let (media, body) = super::server::form(&request, &latent);
            let headers = [("content-type", media), ("idempotency-key", key.as_str())];
            match server.try_ask("POST", "/v1/jobs", &headers, &body) {
                Ok(answer) => {
                    accepted.insert(job, answer.with(202)["id"].as_str().unwrap().to_owned());
                    break;
                }
                Err(_) => server = Server::start(&place, &text),
            }
        }
        if job * kills / jobs >= killed && job > 0 {
            killed += 1;
            // At another moment of a job's life each time.
            thread::sleep(Duration::from_millis(7 * (killed as u64 % 5)));
            server.kill();
            server = Server::start(&place, &text);
        }
    }
    assert!(killed >= kills, "{killed}");
    for (job, id) in &accepted {
        let ended = server.ended(id);
        assert_eq!(ended["state"], "done", "{ended}");
        let result = server.get(&format!("/v1/jobs/{id}/result"));
        assert!(result.status == 200 && values(&result.body) == right[job % 3], "job {job} came out otherwise");
    }
    let listed = server.get("/v1/jobs?limit=500").with(200)["jobs"].as_array().unwrap().len();
    assert_eq!(listed, jobs + sizes.len(), "each was accepted once");
    let folders = fs::read_dir(place.path("data/jobs")).unwrap().count();
    assert_eq!(folders, listed, "and nothing else was left");
}

#[test]
fn too_many_callers_are_told_at_once_and_accepted_jobs_end() {
    // As many as the queue takes, and twenty times as many beside them.
    let (queue, callers, each) = (8, 10, sized(160, 17));
    let place = Place::new();
    let server = Server::holding(&place, &(config(&format!("queue = {queue}")) + "[[routes]]\npolicy = \"fixed\"\n"));
    let request = json!({ "model": "picture", "format": "safetensors" });
    let latent = small(16, 16);
    // The device is held up, so that how many it takes meanwhile is no matter of its speed.
    let running = server.accepted(&held(), &small(4, 4));
    server.until(|| (server.job(&running)["state"] == "running").then_some(()));
    let (accepted, refusals, health) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                for _ in 0..each {
                    let asked = Instant::now();
                    let answer = server.submit(&request, &latent, &[]);
                    match answer.status {
                        202 => accepted.lock().unwrap().push(answer.json()["id"].as_str().unwrap().to_owned()),
                        429 => {
                            assert!(answer.headers.contains_key("retry-after"));
                            refusals.lock().unwrap().push(asked.elapsed().as_secs_f64());
                        }
                        other => panic!("{other}: {}", String::from_utf8_lossy(&answer.body)),
                    }
                    let asked = Instant::now();
                    server.get("/healthz").with(200);
                    health.lock().unwrap().push(asked.elapsed().as_secs_f64());
                }
            });
        }
    });
    let (accepted, mut refusals) = (accepted.into_inner().unwrap(), refusals.into_inner().unwrap());
    let mut health = health.into_inner().unwrap();
    println!(
        "{} accepted, {} refused; refusals p99 {:.1} ms, health p50 {:.1} ms, p99 {:.1} ms of {}",
        accepted.len(),
        refusals.len(),
        1e3 * quantile(&mut refusals, 0.99),
        1e3 * quantile(&mut health, 0.5),
        1e3 * quantile(&mut health, 0.99),
        health.len()
    );
    assert_eq!((accepted.len(), refusals.len()), (queue, callers * each - queue), "while the first one is at work");
    assert_eq!(server.job(&running)["state"], "running");
    server.ask("DELETE", &format!("/v1/jobs/{running}"), &[], b"").with(200);
    for id in &accepted {
        assert_eq!(server.ended(id)["state"], "done");
    }
}

/// Changes of the revision in force: when each was asked for, when it was answered, and the
/// revision that was in force then.
#[derive(Default)]
struct InForce(Mutex<Vec<(Instant, Instant, u64)>>);

impl InForce {
    /// Adds the revisions that the watchdog put in force without a request: each from some moment
    /// after the change before it until it was reported.
    fn hear(&self, server: &Server) {
        let mut changes = self.0.lock().unwrap();
        let (now, clock) = (Instant::now(), SystemTime::now());
        for event in server.get("/v1/events?limit=500").with(200)["events"].as_array().unwrap() {
            if event["what"] == "watchdog-rolled-back" {
                let told = humantime::parse_rfc3339(event["time"].as_str().unwrap()).unwrap();
                let told = now - clock.duration_since(told).unwrap();
                let before = changes.iter().map(|(_, answered, _)| *answered).filter(|answered| *answered < told);
                let before = before.max().unwrap_or(told);
                changes.push((before, told, event["revision"].as_u64().unwrap()));
            }
        }
        changes.sort_unstable();
    }

    /// True if a revision may have been in force at some moment between two: from the request for
    /// it until the next one was answered.
    fn may_have_been(&self, revision: u64, from: Instant, to: Instant) -> bool {
        let changes = self.0.lock().unwrap();
        changes.iter().enumerate().any(|(place, (asked, _, number))| {
            let until = changes.get(place + 1).map(|(_, answered, _)| *answered);
            *number == revision && *asked <= to && until.is_none_or(|until| until >= from)
        })
    }
}

/// Follows a job to its end, which has to be a good one.
fn done(server: &Server, id: &str) {
    let (name, job) = server.followed(id).pop().unwrap();
    assert_eq!((name.as_str(), &job["state"]), ("end", &json!("done")), "{job}");
}

#[test]
fn policies_come_and_go_under_load_and_no_job_is_lost() {
    let (jobs, clients, swaps) = (sized(10_000, 160), sized(16, 4), sized(200, 24));
    let place = Place::new();
    let server = Server::start(
        &place,
        &(config("queue = 1000") + "[policies.own]\nsource = \"fixed\"\n[[routes]]\npolicy = \"own\"\n"),
    );
    let request = json!({ "model": "picture", "format": "safetensors" });
    let latent = small(2, 2);
    let decision_us = |ids: &[String]| -> Vec<f64> {
        ids.iter()
            .map(|id| 1e3 * server.get(&format!("/v1/jobs/{id}/decision")).with(200)["decision_ms"].as_f64().unwrap())
            .collect()
    };
    let quiet: Vec<String> = (0..sized(500, 40))
        .map(|_| {
            let id = server.accepted(&request, &latent);
            done(&server, &id);
            id
        })
        .collect();
    let mut quiet_us = decision_us(&quiet);
    let resident_before = server.resident_bytes();

    let broken =
        [b"\0asm\x01\0\0\0rubbish".to_vec(), guest("", "(unreachable)"), fs::read(root().join("Cargo.toml")).unwrap()];
    let in_force = InForce::default();
    in_force.0.lock().unwrap().push((Instant::now(), Instant::now(), server.in_force("own")));
    let (left, found) = (AtomicUsize::new(jobs), Mutex::new(Vec::new()));
    let mut swap_ms = Vec::new();
    let (mut swapped, mut refused, mut rolled_back) = (0, 0, 0);
    thread::scope(|scope| {
        for client in 0..clients {
            let (server, request, latent, left, found) = (&server, &request, &latent, &left, &found);
            scope.spawn(move || {
                let request = {
                    let mut request = request.clone();
                    request["tag"] = format!("client-{client}").into();
                    request
                };
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                    let sent = Instant::now();
                    let answer = server.submit(&request, latent, &[]).with(202);
                    let id = answer["id"].as_str().unwrap().to_owned();
                    found.lock().unwrap().push((
                        sent,
                        Instant::now(),
                        id.clone(),
                        answer["revision"].as_u64().unwrap(),
                    ));
                    done(server, &id);
                }
            });
        }
        let changing = scope.spawn(|| {
            let change = |path: &str, body: &Value| {
                let asked = Instant::now();
                let answer = server.post(path, body);
                if answer.status == 200 {
                    in_force.0.lock().unwrap().push((
                        asked,
                        Instant::now(),
                        answer.json()["in_force"]["number"].as_u64().unwrap(),
                    ));
                }
                (answer.status, asked.elapsed())
            };
            for turn in 0..swaps {
                let pause = Duration::from_millis(sized(40, 15) as u64);
                thread::sleep(pause);
                match turn % 20 {
                    3 | 8 | 13 | 18 | 19 => {
                        let module = &broken[turn % broken.len()];
                        let stored = server.ask("POST", "/v1/modules", &[("content-type", "application/wasm")], module);
                        let refusal = match stored.status {
                            201 => change("/v1/policies/own/swap", &json!({ "digest": stored.json()["digest"] })).0,
                            status => status,
                        };
                        assert_eq!(refusal, 422);
                        refused += 1;
                    }
                    6 | 16 => {
                        assert_eq!(change("/v1/policies/own/rollback", &json!({})).0, 200);
                        rolled_back += 1;
                    }
                    _ => {
                        let (status, took) = change(
                            "/v1/policies/own/swap",
                            &json!({ "source": "fixed", "settings": { "tile": 64 + 8 * turn } }),
                        );
                        assert_eq!(status, 200);
                        swap_ms.push(1e3 * took.as_secs_f64());
                        swapped += 1;
                    }
                }
            }
        });
        changing.join().unwrap();
    });
    let found = found.into_inner().unwrap();
    assert_eq!(found.len(), jobs, "every job was accepted");
    in_force.hear(&server);
    let wrong =
        found.iter().filter(|(sent, answered, _, revision)| !in_force.may_have_been(*revision, *sent, *answered));
    let wrong = wrong.count();
    assert_eq!(wrong, 0, "of {jobs} were given a revision that was not in force");
    let mut names: HashMap<String, usize> = HashMap::new();
    let ids: Vec<String> = found.iter().map(|(_, _, id, _)| id.clone()).collect();
    for id in &ids {
        let job = server.job(id);
        assert_eq!(job["state"], "done");
        *names.entry(job["digest"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(names.len(), 1, "no broken module was ever in force: {names:?}");
    let resident_after = server.resident_bytes();
    let mut loaded_us = decision_us(&ids);
    let growth = resident_after.saturating_sub(resident_before) as f64 / f64::from(1 << 20);
    println!(
        "{jobs} jobs, {clients} clients, {swapped} swaps, {refused} broken, {rolled_back} rollbacks; decision p99 quiet {:.1} µs, under load {:.1} µs; \
         swap p50 {:.1} ms, p99 {:.1} ms; resident {growth:+.1} MiB",
        quantile(&mut quiet_us, 0.99),
        quantile(&mut loaded_us, 0.99),
        quantile(&mut swap_ms, 0.5),
        quantile(&mut swap_ms, 0.99)
    );
    assert!(growth < 160.0, "{growth:.1} MiB more than before");

    let mut first_ms: Vec<f64> = (0..sized(200, 5))
        .map(|turn| {
            let asked = Instant::now();
            let replacement = json!({ "source": "fixed", "settings": { "tile": 128 + 8 * turn } });
            let swapped = server.post("/v1/policies/own/swap", &replacement).with(200);
            let id = server.accepted(&request, &latent);
            done(&server, &id);
            let elapsed = asked.elapsed();
            assert_eq!(server.job(&id)["revision"], swapped["in_force"]["number"]);
            1e3 * elapsed.as_secs_f64()
        })
        .collect();
    println!(
        "swap call to the end of the first job under it, over HTTP: p50 {:.1} ms, p99 {:.1} ms",
        quantile(&mut first_ms, 0.5),
        quantile(&mut first_ms, 0.99)
    );
    assert_eq!(fs::read_dir(place.path("data/incoming")).unwrap().count(), 0);
}
