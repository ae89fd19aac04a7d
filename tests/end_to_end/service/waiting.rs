//! Jobs that only wait: nothing of their pictures' size is in memory until their turn comes.

use serde_json::json;

use super::server::{HELD, HOLDING, Server};
use crate::program::{Place, root};

/// Bytes that the service may grow by for what waits.
const MOST_BYTES: u64 = 64 << 20;

#[test]
fn prompts_of_the_largest_size_wait_in_no_memory() {
    let place = Place::new();
    let model = root().join("examples/models/flux-shapes");
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\n[server.limits]\nrequests-per-second = 100000\ndeadline = \"30d\"\n\
         [models.painter]\ntransformer = {0:?}\ntext-encoder = [{0:?}]\nvae = \"{1}/vae/diffusion_pytorch_model.safetensors\"\n\
         [devices.main]\ndevice = \"cpu\"\nmemory-limit = \"8GiB\"\n",
        model,
        model.display()
    );
    let server = Server::started(&place, &config, &[HOLDING]);
    let ask = |sides: u32, tag: &str| {
        let sample = json!({ "width": sides, "height": sides, "steps": 1 });
        json!({ "model": "painter", "prompt": "a circle", "tag": tag, "sample": sample })
    };
    let submitted = |request| server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    let at_work = submitted(ask(64, HELD));
    server.until(|| (server.job(&at_work)["state"] == "running").then_some(()));
    // The first inspection reads of the model what stays.
    submitted(ask(64, "small"));
    let before = server.resident_bytes();
    let waiting: Vec<String> = (0..4).map(|_| submitted(ask(11584, "large"))).collect();
    let grown = server.resident_bytes().saturating_sub(before);
    println!("{} KiB for four jobs", grown >> 10);
    assert!(grown < MOST_BYTES, "{} MiB", grown >> 20);
    for id in &waiting {
        assert_eq!(server.job(id)["state"], "queued");
        server.ask("DELETE", &format!("/v1/jobs/{id}"), &[], b"").with(200);
    }
    server.ask("DELETE", &format!("/v1/jobs/{at_work}"), &[], b"").with(200);
}
