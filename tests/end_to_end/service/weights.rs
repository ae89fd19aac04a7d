//! Weights that a server's models share: within a budget, between devices, and given up while they
//! load.

use std::fs;

use serde_json::{Value, json};

use super::{jobs::small, prompts, server::Server};
use crate::{
    generate::fresh_prompt,
    program::{Place, fixture},
};

/// A server with these tables for models and devices.
fn config(tables: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\n[server.limits]\nrequests-per-second = 100000\n\
         [[routes]]\npolicy = \"fixed\"\n{tables}"
    )
}

/// A table for a device of the processor.
fn device(name: &str, further: &str) -> String {
    format!("[devices.{name}]\ndevice = \"cpu\"\nthreads = 1\nmemory-limit = \"2GiB\"\n{further}\n")
}

/// Copies of a small model, each a file of its own.
fn models(place: &Place, names: &[&str]) -> String {
    let copied = |name: &&str| {
        let path = place.path(&format!("{name}.safetensors"));
        fs::copy(fixture("flux-bfl/ae.safetensors"), &path).unwrap();
        format!("[models.{name}]\nvae = {:?}\nfamily = \"flux\"\n", path.display())
    };
    names.iter().map(copied).collect()
}

/// The value of a metric with all of these labels; 0 if there is none yet.
fn metric(server: &Server, name: &str, labels: &[&str]) -> u64 {
    let text = String::from_utf8(server.get("/metrics").body).unwrap();
    let line = text.lines().find(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))
            && labels.iter().all(|label| line.contains(label))
    });
    line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64)
}

fn loads(server: &Server) -> u64 {
    metric(server, "tilewright_weight_loads_total", &["device=\"cpu\""])
}

#[test]
fn two_devices_that_serve_one_model_do_not_evict_each_other() {
    let place = Place::new();
    let tables = [device("one", ""), device("other", ""), models(&place, &["a"])].concat();
    let server = Server::start(&place, &config(&tables));
    for _ in 0..4 {
        let jobs = ["one", "other"].map(|device| {
            let request = json!({ "model": "a", "device": device });
            server.accepted(&request, &small(6, 6))
        });
        for id in &jobs {
            let job = server.ended(id);
            assert_eq!(job["state"], "done", "{job}");
        }
    }
    let loads = loads(&server);
    assert!((1..=2).contains(&loads), "{loads} loads for eight jobs on two devices");
    assert_eq!(metric(&server, "tilewright_weight_evictions_total", &["device=\"cpu\""]), 0);
    assert_eq!(server.end(), 0);
}

#[test]
fn four_models_share_a_budget_for_two() {
    let place = Place::new();
    let names = ["a", "b", "c", "d"];
    // The size of one model's weights comes from the server itself.
    let tables = [device("main", ""), models(&place, &names)].concat();
    let server = Server::start(&place, &config(&tables));
    let decode = |server: &Server, name: &str| {
        let id = server.accepted(&json!({ "model": name }), &small(4, 4));
        let job = server.ended(&id);
        assert_eq!(job["state"], "done", "{job}");
    };
    let idle = |server: &Server| metric(server, "tilewright_weight_bytes", &["device=\"cpu\"", "state=\"idle\""]);
    decode(&server, "a");
    let one = idle(&server);
    assert!(one > 100_000, "{one}");
    assert_eq!(server.end(), 0);

    let budget = one * 5 / 2;
    let tables = [device("main", &format!("weights-memory = \"{budget}B\"")), models(&place, &names)].concat();
    let server = Server::start(&place, &config(&tables));
    for name in names {
        decode(&server, name);
        assert!(idle(&server) <= budget);
    }
    assert_eq!((loads(&server), idle(&server)), (4, 2 * one));
    // c and d are there; a is not, and takes the room of d, which was used before c.
    for name in ["c", "d", "d", "c"] {
        decode(&server, name);
    }
    assert_eq!(loads(&server), 4);
    decode(&server, "a");
    decode(&server, "c");
    assert_eq!((loads(&server), idle(&server)), (5, 2 * one));
    decode(&server, "d");
    assert_eq!(loads(&server), 6);
    assert_eq!(metric(&server, "tilewright_weight_evictions_total", &["device=\"cpu\""]), 4);
    assert_eq!(server.end(), 0);
}

#[test]
fn jobs_from_prompts_load_each_network_once() {
    let place = Place::new();
    let server = Server::start(&place, &prompts::config());
    let make = || {
        let sample = json!({ "width": 48, "height": 32, "steps": 2, "seed": 3 });
        // A conditioning that is kept would leave the encoders out.
        let request = json!({ "model": "flux", "prompt": fresh_prompt(), "sample": sample });
        let job = server.ended(server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap());
        assert_eq!(job["state"], "done", "{job}");
    };
    make();
    assert_eq!(loads(&server), 4, "two encoders, the transformer and the decoder");
    make();
    assert_eq!(loads(&server), 4);
    assert_eq!(metric(&server, "tilewright_weight_hits_total", &["device=\"cpu\""]), 4);
    assert_eq!(metric(&server, "tilewright_weight_evictions_total", &["device=\"cpu\""]), 0);
    assert_eq!(server.end(), 0);
}

#[test]
fn a_job_that_is_cancelled_while_weights_load_ends_and_leaves_nothing() {
    let place = Place::new();
    let tables = [device("main", ""), models(&place, &["slow", "other"])].concat();
    // A test holds the load up: how long a disk takes is nothing to rely on.
    let environment = [("TILEWRIGHT_SLOW_LOAD_MS", "50")];
    let server = Server::started(&place, &config(&tables), &environment);
    let id = server.accepted(&json!({ "model": "slow" }), &small(8, 8));
    server.until(|| (server.job(&id)["loading"].as_f64()? > 0.0).then_some(()));
    assert_eq!(server.ask("DELETE", &format!("/v1/jobs/{id}"), &[], b"").status / 100, 2);
    let job = server.ended(&id);
    assert_eq!(job["state"], "cancelled", "{job}");
    assert_eq!(loads(&server), 0);
    for state in ["idle", "leased"] {
        let state = format!("state=\"{state}\"");
        assert_eq!(metric(&server, "tilewright_weight_bytes", &["device=\"cpu\"", &state]), 0);
    }
    // The device goes on with the next job.
    let next = server.accepted(&json!({ "model": "other" }), &small(4, 4));
    assert_eq!(server.ended(&next)["state"], "done");
    assert_eq!(server.end(), 0);
}

#[test]
fn limits_count_weights_for_one_job_or_for_every_job_of_a_device() {
    let place = Place::new();
    let tables = [device("aside", ""), device("within", "count-weights = true"), models(&place, &["a"])].concat();
    let server = Server::start(&place, &config(&tables));
    let request = |device: &str| json!({ "model": "a", "device": device });
    let mut asked = request("aside");
    asked["count_weights"] = json!(true);
    let peak = |request: &Value, counts: Option<bool>| {
        let id = server.accepted(request, &small(4, 4));
        assert_eq!(server.ended(&id)["state"], "done");
        let record = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
        assert_eq!(record["request"]["limit_counts_weights"].as_bool(), counts, "{record}");
        record["estimate"]["peak_bytes"].as_u64().unwrap()
    };
    let aside = peak(&request("aside"), None);
    let within = peak(&asked, Some(true));
    assert!(within > aside + 100_000, "{within} {aside}");
    assert_eq!(peak(&request("within"), Some(true)), within);
    // The least that fits is told with the weights.
    asked["memory_limit_bytes"] = json!(1);
    let refused = server.submit(&asked, &small(4, 4), &[]).problem(422);
    assert!(refused.ends_with("weights included"), "{refused}");
    assert_eq!(server.end(), 0);
}
