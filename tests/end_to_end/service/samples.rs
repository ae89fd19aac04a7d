//! Samples as jobs: the bits of the command line, steps that are followed and kept, policies that
//! take over between them.

use std::fs;

use serde_json::{Value, json};

use super::server::{HOLDING_WITHIN, Server};
use crate::{
    encode::tensor,
    program::{Place, fixture},
};

/// Steps enough for something to happen in the middle.
const MANY: u32 = 200;

/// Milliseconds that a server waits after each step where a sample has to be under way: on a fast
/// machine it would be done before anybody looks.
const SLOW: (&str, &str) = ("TILEWRIGHT_SLOW_STEP_MS", "25");

fn flux(name: &str) -> String {
    fixture(&format!("sample-flux-original/{name}"))
}

fn config(route: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\nroots = [{:?}]\n\
         [server.limits]\nrequests-per-second = 100000\n\
         [models.flux]\ntransformer = {:?}\n[models.wan]\ntransformer = {:?}\nvae = {:?}\n\
         [devices.main]\ndevice = \"cpu\"\nmemory-limit = \"2GiB\"\n{route}",
        tilewright_fixtures::folder().display(),
        flux("flux1-tiny.safetensors"),
        fixture("sample-wan-t2v-original/wan-tiny.safetensors"),
        fixture("wan21-original/Wan2.1_VAE.safetensors"),
    )
}

fn request(steps: u32) -> Value {
    json!({
        "model": "flux",
        "sample": { "width": 64, "height": 48, "steps": steps, "seed": 7, "sampler": "euler_ancestral" }
    })
}

fn conditioning() -> Vec<u8> {
    fs::read(flux("conditioning.safetensors")).unwrap()
}

#[track_caller]
fn accepted(server: &Server, request: &Value, files: &[(&str, &[u8])]) -> String {
    server.submit_files(request, files).with(202)["id"].as_str().unwrap().to_owned()
}

/// A file with the tensor `noise`, of zeros.
fn noise(shape: [usize; 4]) -> Vec<u8> {
    let bytes = 4 * shape.iter().product::<usize>();
    let header = json!({ "noise": { "dtype": "F32", "shape": shape, "data_offsets": [0, bytes] } }).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; bytes]].concat()
}

/// The latents of a job that is done.
fn latents(place: &Place, server: &Server, id: &str) -> (Vec<usize>, Vec<f32>) {
    let job = server.ended(id);
    assert_eq!(job["state"], "done", "{job}");
    fs::write(place.path("result.safetensors"), server.get(&format!("/v1/jobs/{id}/result")).body).unwrap();
    tensor(&place.path("result.safetensors"), "latent")
}

/// The same sample from the command line.
fn by_hand(place: &Place, steps: u32) -> (Vec<usize>, Vec<f32>) {
    let (transformer, conditioning) = (flux("flux1-tiny.safetensors"), flux("conditioning.safetensors"));
    let steps = steps.to_string();
    let arguments = ["sample", "--device", "cpu", "--no-history", "--transformer", &transformer, "--size", "64x48"];
    let more = ["--conditioning", &conditioning, "--steps", &steps, "--seed", "7", "--sampler", "euler_ancestral"];
    place.run(&[&arguments[..], &more, &["-o", "hand.safetensors"]].concat()).succeeded();
    tensor(&place.path("hand.safetensors"), "latent")
}

#[test]
fn a_sample_has_the_bits_of_the_command_line_and_its_steps_are_told() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let expected = by_hand(&place, 6);
    let uploaded = accepted(&server, &request(6), &[("conditioning", &conditioning())]);
    let mut by_path = request(6);
    by_path["sample"]["paths"] = json!({ "conditioning": flux("conditioning.safetensors") });
    let by_path = server.post("/v1/jobs", &by_path).with(202)["id"].as_str().unwrap().to_owned();
    let events = server.followed(&uploaded);
    for id in [&uploaded, &by_path] {
        assert!(latents(&place, &server, id) == expected, "other bits");
        let job = server.job(id);
        assert_eq!((&job["stage"], &job["steps"], &job["width"]), (&json!("denoise"), &json!(6), &json!(64)), "{job}");
        let record = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
        assert_eq!((&record["stage"], &record["policy"]["name"]), (&json!("denoise"), &json!("adaptive")));
        assert!(record["outcome"]["step_ms"].as_f64().unwrap() > 0.0, "{record}");
        let page = String::from_utf8(server.get(&format!("/jobs/{id}")).body).unwrap();
        assert!(page.contains("Time of a step") && page.contains("6 steps"), "{page}");
        // Neither its files nor its last step are needed any more.
        let names = fs::read_dir(place.path(&format!("data/jobs/{id}"))).unwrap();
        let names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(names, ["result.safetensors"]);
    }
    let steps: Vec<&Value> = events.iter().filter(|(name, _)| name == "step").map(|(_, data)| data).collect();
    assert!(steps.iter().all(|step| step["steps"] == 6), "{steps:?}");
    assert!(steps.iter().filter_map(|step| step["step"].as_u64()).is_sorted(), "{steps:?}");
    let metrics = String::from_utf8(server.get("/metrics").body).unwrap();
    let counted = "tilewright_sample_step_seconds_count{canary=\"false\",policy=\"adaptive\",revision=\"1\",route=\"default\"} 12";
    assert!(metrics.contains(counted), "{metrics}");
    let models = server.get("/v1/models").with(200);
    assert_eq!(models["models"][0]["stages"], json!(["denoise"]));
    assert_eq!(models["models"][1]["stages"], json!(["decode", "encode", "denoise"]));
    assert_eq!(server.end(), 0);
}

#[test]
fn a_policy_takes_over_between_two_steps_where_the_route_says_so() {
    let place = Place::new();
    let route = "[policies.own]\nsource = \"fixed\"\n\
                 [[routes]]\nstage = \"denoise\"\npolicy = \"own\"\ntake-over = \"next-chunk\"\n";
    let server = Server::started(&place, &config(route), &[SLOW]);
    let expected = by_hand(&place, MANY);
    let id = accepted(&server, &request(MANY), &[("conditioning", &conditioning())]);
    let step = |id: &str| server.job(id)["sampling"]["step"].as_u64().unwrap_or(0);
    server.until(|| (step(&id) >= 10).then_some(()));
    let other = json!({ "source": "fixed", "settings": { "feed-forward": "2" } });
    server.post("/v1/policies/own/swap", &other).with(200);
    let (shape, found) = latents(&place, &server, &id);
    let record = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
    assert!(record["adjusted"].to_string().contains("revision 2 took over from 1"), "{record}");
    assert_eq!((&record["plan"]["feed_forward"], &record["attempts"]), (&json!(2), &json!([])), "{record}");
    assert_eq!(shape, expected.0);
    let largest = expected.1.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
    assert!(crate::program::largest_difference(&found, &expected.1) <= 1e-3 * largest);
    // A sample that several revisions decided counts for none.
    assert_eq!(server.get("/v1/policies/own").with(200)["in_force"]["jobs"], 0);
    let steps = server.get("/metrics").body;
    let steps = String::from_utf8(steps).unwrap();
    for revision in ["1", "2"] {
        let series =
            format!("tilewright_sample_step_seconds_count{{canary=\"false\",policy=\"own\",revision=\"{revision}\"");
        assert!(steps.contains(&series), "{steps}");
    }
}

#[test]
fn a_sample_goes_on_from_its_last_step_whatever_ended_the_server() {
    let place = Place::new();
    let expected = by_hand(&place, MANY);
    let mut server = Server::started(&place, &config(""), &[SLOW]);
    let id = accepted(&server, &request(MANY), &[("conditioning", &conditioning())]);
    let mut last = 0;
    for _ in 0..4 {
        let reached = server.until(|| {
            let job = server.job(&id);
            let step = job["sampling"]["step"].as_u64().unwrap_or(0);
            (step >= last + 5 || job["state"] == "done").then_some(step)
        });
        server.kill();
        last = reached.max(last);
        server = Server::started(&place, &config(""), &[SLOW]);
    }
    assert!(latents(&place, &server, &id) == expected, "other bits");
    let record = server.get(&format!("/v1/jobs/{id}/decision")).with(200);
    assert!(record["resumed_frames"].as_u64().unwrap() >= last, "{record}");
}

#[test]
fn a_sample_under_way_has_a_preview_where_it_was_asked_for() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let mut request = request(9000);
    request["model"] = json!("wan");
    request["sample"]["frames"] = json!(5);
    request["sample"]["preview"] = json!(true);
    request["sample"]["sampler"] = json!("euler");
    let conditioning = fs::read(fixture("sample-wan-t2v-original/conditioning.safetensors")).unwrap();
    let id = accepted(&server, &request, &[("conditioning", &conditioning)]);
    server.until(|| {
        let job = server.job(&id);
        assert!(job["error"].is_null(), "{job}");
        (job["sampling"]["preview"] == true).then_some(())
    });
    let preview = server.get(&format!("/v1/jobs/{id}/preview"));
    assert_eq!((preview.status, &preview.body[1..4]), (200, &b"PNG"[..]));
    let page = String::from_utf8(server.get(&format!("/jobs/{id}")).body).unwrap();
    assert!(page.contains("/preview?step="), "{page}");
    server.ask("DELETE", &format!("/v1/jobs/{id}"), &[], b"").with(200);
    server.ended(&id);
    server.get(&format!("/v1/jobs/{id}/preview")).problem(404);
    request["model"] = json!("flux");
    let line = server.submit_files(&request, &[("conditioning", &conditioning)]).problem(422);
    assert!(line.contains("sample.preview: model flux has no vae"), "{line}");
}

#[test]
fn a_sample_ends_within_a_step_when_it_is_cancelled_or_its_deadline_passes() {
    let place = Place::new();
    let server = Server::started(&place, &config(""), &[HOLDING_WITHIN]);
    let cancelled = accepted(&server, &request(9000), &[("conditioning", &conditioning())]);
    let mut late = request(9);
    (late["deadline_s"], late["tag"]) = (json!(2), json!("within-denoise"));
    server.until(|| (server.job(&cancelled)["sampling"]["step"].as_u64()? > 2).then_some(()));
    server.ask("DELETE", &format!("/v1/jobs/{cancelled}"), &[], b"").with(200);
    assert_eq!(server.ended(&cancelled)["state"], "cancelled");
    let late = accepted(&server, &late, &[("conditioning", &conditioning())]);
    let late = server.ended(&late);
    assert_eq!((&late["state"], &late["results"]), (&json!("expired"), &json!([])), "{late}");
    let folder = place.path(&format!("data/jobs/{cancelled}"));
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "nothing of it stays");
}

#[test]
fn a_sample_whose_steps_are_reused_ends_within_a_step_too() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    // All within the part of the way where outputs are reused.
    let sigmas: Vec<f64> = (0..10_000).map(|step| 0.7 - 1e-5 * f64::from(step)).collect();
    let sample = json!({ "width": 64, "height": 48, "batch": 64, "sigmas": sigmas, "reuse": 3.0 });
    let request = json!({ "model": "flux", "sample": sample });
    let id = accepted(&server, &request, &[("conditioning", &conditioning())]);
    server.until(|| (server.job(&id)["sampling"]["step"].as_u64()? > 9).then_some(()));
    server.ask("DELETE", &format!("/v1/jobs/{id}"), &[], b"").with(200);
    let last = std::cell::Cell::new(0);
    server.until(|| {
        let job = server.job(&id);
        last.set(job["sampling"]["step"].as_u64().unwrap_or(last.get()));
        (job["state"] == "cancelled").then_some(())
    });
    assert!(last.get() < 5000, "it went on to step {}", last.get());
}

#[test]
fn what_can_not_be_sampled_is_refused_with_a_line() {
    let place = Place::new();
    let server = Server::start(&place, &config(""));
    let given = conditioning();
    let (flux, latent) = (("conditioning", &given[..]), fs::read(fixture("flux-bfl/latent.safetensors")).unwrap());
    let wan = fs::read(fixture("sample-wan-t2v-original/conditioning.safetensors")).unwrap();
    let with = |fields: Value| {
        let mut request = request(4);
        for (name, value) in fields.as_object().unwrap() {
            request["sample"][name] = value.clone();
        }
        request
    };
    let of = |name: &str, value: Value| {
        let mut request = request(4);
        request[name] = value;
        request
    };
    let many = noise([2000, 16, 2, 2]);
    type Refused<'a> = (Value, Vec<(&'a str, &'a [u8])>, &'a str);
    let refused: Vec<Refused<'_>> = vec![
        (request(4), vec![], "conditioning: expected a file"),
        (request(4), vec![("conditioning", b"nothing")], "conditioning"),
        (request(4), vec![("conditioning", &wan)], "another model's conditioning"),
        (with(json!({ "steps": 0 })), vec![flux], "steps"),
        (with(json!({ "width": 63 })), vec![flux], "multiples of"),
        (with(json!({ "width": null })), vec![flux], "give both"),
        (with(json!({ "width": 32768, "height": 32768, "batch": 1024 })), vec![flux], "at most 33554432"),
        (with(json!({ "batch": 100_000 })), vec![flux], "1 to 1024 samples"),
        (with(json!({ "sampler": "eular" })), vec![flux], "did you mean euler?"),
        (with(json!({ "scheduler": "simpel" })), vec![flux], "simple"),
        (with(json!({ "sigmas": [0.5, 0.9, 0.0], "steps": null })), vec![flux], "sigma"),
        (with(json!({ "sigmas": [1.0, 0.0] })), vec![flux], "give one of them"),
        (with(json!({ "cfg": 2.0 })), vec![flux, ("negative", &wan)], "negative"),
        (with(json!({ "cfg": 2.0 })), vec![flux], "sample.cfg: expected a negative conditioning with it"),
        (request(4), vec![flux, ("negative", &given)], "negative: expected sample.cfg with it"),
        (with(json!({ "denoise": 0.5 })), vec![flux], "sample.denoise: expected a latent"),
        (with(json!({ "no_add_noise": true })), vec![flux], "sample.no_add_noise: expected a latent"),
        (with(json!({ "leftover_noise": true })), vec![flux], "expected sample.end_step"),
        (with(json!({ "guidance": 1e300 })), vec![flux], "guidance that is not finite"),
        (with(json!({ "reuse": 1e300 })), vec![flux], "at most 3"),
        (with(json!({ "sigmas": [0.5, 0.499_999_999, 0.0], "steps": null })), vec![flux], "sigma"),
        (with(json!({ "width": null, "height": null })), vec![flux, ("noise", &many)], "at most 1024 are made at once"),
        (with(json!({ "as": "webui" })), vec![flux], "comfyui or diffusers"),
        (of("model", json!("wan")), vec![flux], "conditioning"),
        (of("fps", json!("24")), vec![flux], "fps: is for decodes"),
        (of("format", json!("png")), vec![flux], "a sample is a latent"),
        (of("memory_limit_bytes", json!(1024)), vec![flux], "too little for this sample"),
        (json!({ "model": "flux" }), vec![("latent", &latent)], "flux has no vae"),
        (json!({ "model": "wan" }), vec![("latent", &latent), flux], "is for samples"),
        (json!({ "model": "wan", "format": "latent" }), vec![("latent", &latent)], "latent"),
    ];
    for (request, files, words) in refused {
        let line = server.submit_files(&request, &files).problem(422);
        assert!(line.contains(words) && line.lines().count() == 1, "{request}: {line}");
        assert!(!line.contains("--") && !line.contains("/tmp") && !line.contains("fixtures"), "{line}");
    }
    let outside = json!({ "model": "flux", "sample": { "paths": { "conditioning": "/etc/passwd" } } });
    assert!(server.post("/v1/jobs", &outside).problem(422).starts_with("sample.paths.conditioning: not a file below"));
    assert_eq!(server.get("/v1/jobs").with(200)["jobs"], json!([]));
    assert_eq!(fs::read_dir(place.path("data/jobs")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(place.path("data/incoming")).unwrap().count(), 0);
}
