//! Files of models that change under a server: the job at work fails by the file's name, everything
//! else goes on, and the next job reads the files as they are then.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{jobs::small, server::Server};
use crate::{
    changing_files::{Meeting, copied, copied_folder, two_ways},
    generate::fresh_prompt,
    program::{Place, fixture, sample},
};

const FLUX: &str = "generate-flux";

/// Two models of their own folders, each with a device of its own.
fn config() -> String {
    let model = |name: &str| {
        format!(
            "[models.{name}]\ntransformer = \"{name}\"\ntext-encoder = \"{name}\"\n\
             vae = \"{name}/vae/diffusion_pytorch_model.safetensors\"\n\
             [devices.of-{name}]\ndevice = \"cpu\"\nthreads = 1\nmemory-limit = \"2GiB\"\n"
        )
    };
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\n[server.limits]\nrequests-per-second = 100000\n\
         [policies.packed]\nsource = \"fixed\"\nset = {{ weights = \"packed\" }}\n\
         [[routes]]\nstage = \"denoise\"\npolicy = \"packed\"\n[[routes]]\npolicy = \"adaptive\"\n{}{}",
        model("one"),
        model("other"),
    )
}

fn asked(model: &str) -> Value {
    json!({
        "model": model, "device": format!("of-{model}"), "prompt": fresh_prompt(), "format": "safetensors",
        "sample": { "width": 48, "height": 32, "steps": 3, "seed": 7 },
    })
}

fn submitted(server: &Server, request: &Value) -> String {
    server.post("/v1/jobs", request).with(202)["id"].as_str().unwrap().to_owned()
}

/// The pixels of a job that ends well.
#[track_caller]
fn made(place: &Place, server: &Server, id: &str) -> (Vec<usize>, Vec<f32>) {
    let job = server.ended(id);
    assert_eq!(job["state"], "done", "{job}");
    fs::write(place.path("result.safetensors"), server.get(&format!("/v1/jobs/{id}/result")).body).unwrap();
    sample(&place.path("result.safetensors"))
}

#[test]
fn a_prompts_job_fails_alone_when_a_file_of_its_model_changes() {
    let weights = [
        ("vae/diffusion_pytorch_model.safetensors", "load"),
        ("text_encoder/model.safetensors", "load"),
        ("text_encoder_2/model.safetensors", "load"),
        ("transformer/diffusion_pytorch_model.safetensors", "load"),
        ("transformer/diffusion_pytorch_model.safetensors", "step"),
        ("vae/diffusion_pytorch_model.safetensors", "step"),
    ];
    for (turn, (part, point)) in weights.into_iter().enumerate() {
        let place = Place::new();
        for model in ["one", "other"] {
            copied_folder(&fixture(FLUX), &place.path(model));
        }
        let path = Path::new("one").join(part);
        let file = place.path("").join(&path);
        let point = if point == "load" { format!("load {}", path.display()) } else { point.to_owned() };
        let mut meeting = Meeting::at(&place, &point);
        let [(name, value)] = meeting.environment();
        let server = Server::started(&place, &config(), &[(name, &value)]);
        let mut pixels = None;
        for (way, change) in two_ways(turn) {
            // Another file to the server: weights that it has already are not loaded.
            copied(&format!("{}/{part}", fixture(FLUX)), &file);
            let id = submitted(&server, &asked("one"));
            meeting.hold(|| change(&file));
            let job = server.ended(&id);
            let words = format!("{}: changed while it was in use", path.display());
            assert_eq!(job["state"], "failed", "{part} {way} at {point}: {job}");
            assert!(job["error"].as_str().unwrap().starts_with(&words), "{part} {way} at {point}: {job}");
            assert_ne!(server.get(&format!("/v1/jobs/{id}/result")).status, 200);
            made(&place, &server, &submitted(&server, &asked("other")));
            if way == "cut short" {
                let job = server.ended(&submitted(&server, &asked("one")));
                assert_eq!(job["state"], "failed", "{job}");
                assert!(job["error"].as_str().unwrap().contains(&*path.to_string_lossy()), "{job}");
            }
            copied(&format!("{}/{part}", fixture(FLUX)), &file);
            let mut request = asked("one");
            request["prompt"] = json!("a cat");
            let found = made(&place, &server, &submitted(&server, &request));
            assert!(*pixels.get_or_insert_with(|| found.clone()) == found, "{part} {way} at {point}: other pixels");
            meeting = Meeting::at(&place, &point);
        }
        fs::remove_file(place.path("meeting")).unwrap();
        assert_eq!(server.end(), 0, "{part} at {point}");
    }
}

#[test]
fn another_file_by_the_same_name_is_taken_by_the_next_job() {
    let place = Place::new();
    let vae = place.path("ae.safetensors");
    copied(&fixture("flux-bfl/ae.safetensors"), &vae);
    let config = "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\n[[routes]]\npolicy = \"fixed\"\n\
                  [devices.main]\ndevice = \"cpu\"\nmemory-limit = \"2GiB\"\n\
                  [models.a]\nvae = \"ae.safetensors\"\nfamily = \"flux\"\n";
    let meeting = Meeting::at(&place, "progress");
    let [(name, value)] = meeting.environment();
    let server = Server::started(&place, config, &[(name, &value)]);
    let request = json!({ "model": "a", "format": "safetensors" });
    let decode = || server.accepted(&request, &small(6, 6));
    let first = decode();
    // Other weights, and so other pixels: the sign of the last one.
    let mut bytes = fs::read(&vae).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 0x80;
    meeting.hold(|| {
        fs::write(place.path("new"), &bytes).unwrap();
        fs::rename(place.path("new"), &vae).unwrap();
    });
    let before = made(&place, &server, &first);
    let after = made(&place, &server, &decode());
    assert!(before != after, "the next job has the new file");
    copied(&fixture("flux-bfl/ae.safetensors"), &place.path("old"));
    fs::rename(place.path("old"), &vae).unwrap();
    assert!(made(&place, &server, &decode()) == before, "and the one after it the old one");
    assert_eq!(server.end(), 0);
}
