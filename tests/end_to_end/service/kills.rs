//! The server is killed again and again amid swaps, with jobs pinned to revisions that are long
//! gone: no number stands for two revisions, every job is decided as it was accepted, and every
//! answer stays true. At full size with `TILEWRIGHT_ENDURANCE=full`.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    endurance::sized,
    jobs::{config, held, small},
    server::{HOLDING, Server, form},
};
use crate::program::Place;

/// The revision behind a number: the module and its settings.
type Meaning = (String, Value);

/// All answers, from every server process.
#[derive(Default)]
struct Answers {
    numbers: Mutex<BTreeMap<u64, Meaning>>,
    /// Jobs, each with the number and the module that it was accepted under.
    jobs: Mutex<Vec<(String, u64, String)>>,
    /// The number in force by the last answer, and true if a change was asked for since and not
    /// answered.
    in_force: Mutex<(Option<u64>, bool)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl Answers {
    /// Notes a revision from an answer or a record; its number must stand for no other.
    fn hear(&self, number: u64, digest: &Value, settings: &Value) {
        let found = (digest.as_str().unwrap().to_owned(), settings.clone());
        let mut numbers = lock(&self.numbers);
        let known = numbers.entry(number).or_insert_with(|| found.clone());
        assert_eq!(*known, found, "number {number} stands for two revisions");
    }

    fn hear_policy(&self, policy: &Value) {
        let draining = policy["draining"].as_array().unwrap().iter();
        for revision in [&policy["in_force"], &policy["previous"]].into_iter().chain(draining) {
            if !revision.is_null() {
                self.hear(number_of(revision), &revision["digest"], &revision["settings"]);
            }
        }
    }
}

fn number_of(revision: &Value) -> u64 {
    revision["number"].as_u64().unwrap()
}

/// Swaps, each to settings of its own, with a rollback now and then.
fn change(server: &Server, answers: &Answers, turn: usize) -> Result<(), ureq::Error> {
    let post = |path: &str, body: &Value| {
        let body = body.to_string();
        server.try_ask("POST", path, &[("content-type", "application/json")], body.as_bytes())
    };
    lock(&answers.in_force).1 = true;
    let answer = if turn % 9 == 8 {
        post("/v1/policies/own/rollback", &json!({}))?
    } else {
        let settings = json!({ "tile": 64 + 8 * (turn % 50), "overlap": 1 + (turn / 50) % 30 });
        post("/v1/policies/own/swap", &json!({ "source": "fixed", "settings": settings }))?
    };
    if answer.status == 200 {
        let policy = answer.json();
        answers.hear_policy(&policy);
        *lock(&answers.in_force) = (Some(number_of(&policy["in_force"])), false);
    } else {
        assert_eq!(answer.status, 409, "{}", String::from_utf8_lossy(&answer.body));
        lock(&answers.in_force).1 = false;
    }
    Ok(())
}

fn submit(server: &Server, answers: &Answers, request: &Value, latent: &[u8]) -> Result<(), ureq::Error> {
    let (media, body) = form(request, latent);
    let answer = server.try_ask("POST", "/v1/jobs", &[("content-type", media)], &body)?;
    let job = answer.with(202);
    let text = |name: &str| job[name].as_str().unwrap().to_owned();
    lock(&answers.jobs).push((text("id"), job["revision"].as_u64().unwrap(), text("digest")));
    Ok(())
}

#[test]
fn no_number_is_used_twice_and_every_job_is_decided_as_it_was_accepted() {
    let kills = sized(100, 5);
    let place = Place::new();
    let text = config("queue = 2000") + "[policies.own]\nsource = \"fixed\"\n[[routes]]\npolicy = \"own\"\n";
    let request = json!({ "model": "picture", "format": "safetensors" });
    let latents = [small(2, 2), small(24, 24), small(4, 4)];
    let (answers, turns) = (Answers::default(), AtomicUsize::new(0));
    let mut pinned = 0;
    for kill in 0..kills {
        // Every other time a job is held up at work, so that others wait for it while revisions go.
        let holds = kill % 2 == 0;
        let server = if holds { Server::holding(&place, &text) } else { Server::start(&place, &text) };
        let policy = server.get("/v1/policies/own").with(200);
        answers.hear_policy(&policy);
        let now = number_of(&policy["in_force"]);
        {
            let mut in_force = lock(&answers.in_force);
            let (answered, was_asked) = *in_force;
            assert!(
                was_asked || answered.is_none_or(|answered| answered == now),
                "{answered:?} was in force, not {now}"
            );
            *in_force = (Some(now), false);
        }
        let jobs = server.get("/v1/jobs?limit=500").with(200);
        let is_pinned = |job: &&Value| {
            ["queued", "running"].contains(&job["state"].as_str().unwrap()) && job["revision"].as_u64() != Some(now)
        };
        pinned += jobs["jobs"].as_array().unwrap().iter().filter(is_pinned).count();
        if holds {
            submit(&server, &answers, &held(), &latents[0]).unwrap();
        }
        let is_over = AtomicBool::new(false);
        let goes_on = || !is_over.load(Ordering::Relaxed);
        thread::scope(|scope| {
            scope.spawn(|| {
                while goes_on() && change(&server, &answers, turns.fetch_add(1, Ordering::Relaxed)).is_ok() {
                    thread::sleep(Duration::from_millis(5));
                }
            });
            scope.spawn(|| {
                for latent in latents.iter().cycle() {
                    if !goes_on() || submit(&server, &answers, &request, latent).is_err() {
                        return;
                    }
                    thread::sleep(Duration::from_millis(25));
                }
            });
            // At a different moment each time, of a swap or of a restart's recovery, after a few
            // jobs and as many changes.
            let before = lock(&answers.jobs).len();
            server.until(|| (lock(&answers.jobs).len() > before + 2).then_some(()));
            let before = turns.load(Ordering::Relaxed);
            server.until(|| (turns.load(Ordering::Relaxed) > before + 2).then_some(()));
            thread::sleep(Duration::from_millis(37 * (kill as u64 % 11)));
            server.kill_now();
            is_over.store(true, Ordering::Relaxed);
        });
    }
    let server = Server::start(&place, &text);
    answers.hear_policy(&server.get("/v1/policies/own").with(200));
    let jobs = std::mem::take(&mut *lock(&answers.jobs));
    let numbers: usize = lock(&answers.numbers).len();
    for (id, revision, digest) in &jobs {
        let job = server.ended(id);
        assert_eq!(job["state"], "done", "{job}");
        assert_eq!((job["revision"].as_u64(), job["digest"].as_str()), (Some(*revision), Some(digest.as_str())));
        let record = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
        let policy = &record["policy"];
        answers.hear(*revision, &policy["digest"], &policy["settings"]);
    }
    println!(
        "{kills} kills, {} changes, {numbers} numbers, {} jobs, {pinned} pinned",
        turns.load(Ordering::Relaxed),
        jobs.len()
    );
    assert!(pinned > 0 && numbers > kills / 2 && jobs.len() > kills, "{pinned} {numbers} {}", jobs.len());
}

#[test]
fn attempts_that_kills_cut_off_dont_fail_a_job() {
    let kills = sized(40, 4);
    let place = Place::new();
    let text = config("") + "[[routes]]\npolicy = \"fixed\"\n";
    let mut server = Server::holding(&place, &text);
    let id = server.accepted(&held(), &small(4, 4));
    for _ in 0..kills {
        server.until(|| (server.job(&id)["state"] == "running").then_some(()));
        server.kill();
        server = Server::holding(&place, &text);
    }
    server.kill();
    assert_eq!(Server::start(&place, &text).ended(&id)["state"], "done");
}

#[test]
fn a_job_that_crashes_the_server_every_time_is_given_up_and_others_are_done() {
    let place = Place::new();
    let text = config("") + "[[routes]]\npolicy = \"fixed\"\n";
    let crashing = || Server::try_started(&place, &text, &[("TILEWRIGHT_CRASH_AT", "bad"), HOLDING]);
    let request = |tag: &str| json!({ "model": "picture", "format": "safetensors", "tag": tag });
    let mut server = crashing().unwrap();
    let long = server.accepted(&held(), &small(4, 4));
    let bad = server.accepted(&request("bad"), &small(4, 4));
    let good = server.accepted(&request("good"), &small(4, 4));
    server.ask("DELETE", &format!("/v1/jobs/{long}"), &[], b"").with(200);
    let mut crashes = 0;
    let ended = loop {
        match server.try_job(&bad) {
            Some(job) if job["state"] == "failed" => break job,
            Some(_) => thread::sleep(Duration::from_millis(20)),
            None => {
                // The next one may crash before it listens.
                server = loop {
                    crashes += 1;
                    assert!(crashes < 10, "it is tried for ever");
                    if let Some(started) = crashing() {
                        break started;
                    }
                };
            }
        }
    };
    assert_eq!(crashes, 3);
    assert!(ended["error"].as_str().unwrap().contains("the server crashed 3 times during this job"), "{ended}");
    assert_eq!(server.ended(&good)["state"], "done");
    assert_eq!(server.ended(&long)["state"], "cancelled");
}
