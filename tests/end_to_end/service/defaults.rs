//! Jobs from a prompt as the command line makes them: by the model's own defaults, with the same
//! words in their pictures, and shown to whoever may see the job.

use std::fs;

use serde_json::{Value, json};

use super::server::Server;
use crate::program::{Place, fixture, root, texts};

const PROMPT: &str = "a red circle on a blue square";

fn bundled(name: &str) -> String {
    root().join("examples/models").join(name).display().to_string()
}

/// A configuration of models: each its name, its transformer, its text encoders and its folder.
fn config(models: &[(&str, String, Vec<String>, String)]) -> String {
    let models = models.iter().map(|(name, transformer, text, folder)| {
        format!(
            "[models.{name}]\ntransformer = {transformer:?}\ntext-encoder = {text:?}\nvae = {:?}\n",
            format!("{folder}/vae/diffusion_pytorch_model.safetensors")
        )
    });
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\n[server.limits]\nrequests-per-second = 100000\n\
         {}[devices.main]\ndevice = \"cpu\"\nmemory-limit = \"2GiB\"\n",
        models.collect::<String>()
    )
}

/// A model by its pipeline's folder.
fn whole(name: &'static str, folder: String) -> (&'static str, String, Vec<String>, String) {
    (name, folder.clone(), vec![folder.clone()], folder)
}

fn submit(server: &Server, request: &Value) -> Value {
    server.post("/v1/jobs", request).with(202)
}

/// The settings that the command line would take.
fn by_hand(place: &Place, model: &str, more: &[&str]) -> Value {
    let words =
        ["generate", PROMPT, "--model", model, "--device", "cpu", "--dry-run", "--json", "-o", "dry.safetensors"];
    place.run(&[&words[..], more].concat()).json()["settings"].clone()
}

/// The settings of a job in the names of the command line's report.
fn of_job(job: &Value) -> Value {
    let mut settings = job["request"].clone();
    let object = settings.as_object_mut().unwrap();
    for name in ["prompt", "negative_prompt", "text_tokens", "fps", "parts", "defaults"] {
        object.remove(name);
    }
    let convention = object.remove("as").unwrap();
    object.insert("convention".into(), convention);
    for name in ["sigmas", "guidance", "reuse", "shift", "scheduler"] {
        object.entry(name).or_insert(Value::Null);
    }
    settings
}

/// However the model is named in the configuration, and whatever is asked for beside.
#[test]
fn each_bundled_model_has_the_pixels_of_the_command_line_by_its_defaults() {
    let place = Place::new();
    let flux = bundled("flux-shapes");
    let part = |name: &str| format!("{flux}/{name}");
    let server = Server::start(
        &place,
        &config(&[
            whole("painter", flux.clone()),
            whole("animator", bundled("wan-shapes")),
            ("parts", part("transformer"), vec![part("text_encoder"), part("text_encoder_2")], flux.clone()),
            (
                "files",
                part("transformer/diffusion_pytorch_model.safetensors"),
                vec![part("text_encoder/model.safetensors"), part("text_encoder_2/model.safetensors")],
                flux.clone(),
            ),
        ]),
    );
    let ask = |model: &str, sample: Value| json!({ "model": model, "prompt": PROMPT, "format": "safetensors", "sample": sample });
    for (model, bundled, size) in [("painter", "flux-shapes", 128), ("animator", "wan-shapes", 64)] {
        let job = submit(&server, &ask(model, json!({ "seed": 3 })));
        let id = job["id"].as_str().unwrap();
        assert_eq!((&job["width"], &job["steps"]), (&json!(size), &json!(12)), "{job}");
        assert_eq!(of_job(&job), by_hand(&place, bundled, &["--seed", "3"]), "{job}");
        assert_eq!((&job["request"]["text_tokens"], &job["request"]["prompt"]), (&json!(24), &json!(PROMPT)), "{job}");
        let ended = server.ended(id);
        assert_eq!(ended["state"], "done", "{ended}");
        fs::write(place.path("job.safetensors"), server.get(&format!("/v1/jobs/{id}/result")).body).unwrap();
        let words = ["generate", PROMPT, "--model", bundled, "--seed", "3", "--device", "cpu", "--no-history"];
        place.run(&[&words[..], &["-o", "hand.safetensors"]].concat()).succeeded();
        assert!(place.sample("job.safetensors") == place.sample("hand.safetensors"), "{model}: other pixels");
    }
    for model in ["parts", "files"] {
        let job = submit(&server, &ask(model, json!({ "seed": 3 })));
        assert_eq!(of_job(&job), by_hand(&place, "flux-shapes", &["--seed", "3"]), "{job}");
        let digests = |job: &Value| -> Vec<Value> {
            job["request"]["parts"].as_array().unwrap().iter().map(|part| part["digest"].clone()).collect()
        };
        let first = submit(&server, &ask("painter", json!({ "steps": 1 })));
        assert_eq!(digests(&job), digests(&first));
    }
    // A setting that is asked for counts, and the rest is named as default.
    let mut request = ask("painter", json!({ "width": 64, "height": 32, "sampler": "heun", "cfg": 1.5, "steps": 2 }));
    request["text_tokens"] = json!(40);
    let job = submit(&server, &request);
    let more = ["--size", "64x32", "--sampler", "heun", "--cfg", "1.5", "--steps", "2", "--text-tokens", "40"];
    assert_eq!(of_job(&job), by_hand(&place, "flux-shapes", &more), "{job}");
    assert_eq!(job["request"]["text_tokens"], 40);
    let defaults: Vec<&str> =
        job["request"]["defaults"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    for (name, is_default) in [
        ("seeds", true),
        ("scheduler", true),
        ("shift", true),
        ("width", false),
        ("cfg", false),
        ("text_tokens", false),
    ] {
        assert_eq!(defaults.contains(&name), is_default, "{name}: {defaults:?}");
    }
    let models = server.get("/v1/models").with(200);
    let own = models["models"].as_array().unwrap().iter().find(|model| model["name"] == "painter").unwrap();
    assert_eq!((&own["defaults"]["width"], &own["defaults"]["steps"]), (&json!(128), &json!(12)), "{own}");
    let wrong = |change: Value, field: &str| {
        let mut request = ask("painter", json!({}));
        for (name, value) in change.as_object().unwrap() {
            request[name] = value.clone();
        }
        let line = server.post("/v1/jobs", &request).problem(422);
        assert!(line.starts_with(&format!("{field}: ")), "{line}");
    };
    wrong(json!({ "sample": { "width": 33, "height": 32 } }), "sample.width");
    wrong(json!({ "sample": { "width": 32, "height": 33 } }), "sample.height");
    wrong(json!({ "sample": { "frames": 9 } }), "sample.frames");
    wrong(json!({ "sample": { "shift": -1.0 } }), "sample.shift");
    wrong(json!({ "sample": { "reuse": 7.0 } }), "sample.reuse");
    wrong(json!({ "sample": { "guidance": 3.0 } }), "sample.guidance");
    wrong(json!({ "text_tokens": 2 }), "text_tokens");
    assert_eq!(server.end(), 0);
}

/// The texts of a picture are those of the command line, and it is made again from them.
#[test]
fn a_jobs_picture_tells_how_it_was_made() {
    let place = Place::new();
    let server = Server::start(&place, &config(&[whole("painter", bundled("flux-shapes"))]));
    let request = json!({
        "model": "painter", "prompt": PROMPT, "negative_prompt": "bad", "sample": { "seed": 3, "steps": 2 },
    });
    let id = submit(&server, &request)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id)["state"], "done");
    fs::write(place.path("job.png"), server.get(&format!("/v1/jobs/{id}/result")).body).unwrap();
    let words = ["generate", PROMPT, "--negative", "bad", "--seed", "3", "--steps", "2", "--device", "cpu"];
    place.run(&[&words[..], &["--no-history", "-o", "hand.png"]].concat()).succeeded();
    let [job, hand] = ["job.png", "hand.png"].map(|name| texts(&place.path(name)));
    assert_eq!(job["parameters"], hand["parameters"].replace("Model: flux-shapes", "Model: painter"));
    for keyword in ["workflow", "prompt"] {
        let [job, hand] = [&job, &hand].map(|texts| serde_json::from_str::<Value>(&texts[keyword]).unwrap());
        let sampler =
            |graph: &Value| graph.as_object().unwrap().values().find(|node| node["class_type"] == "KSampler").cloned();
        if keyword == "prompt" {
            assert_eq!(sampler(&job), sampler(&hand));
        }
    }
    place.run(&["generate", "--like", "job.png", "--device", "cpu", "-o", "again.png"]).succeeded();
    let pixels = |name: &str| image::open(place.path(name)).unwrap().into_rgb8().into_raw();
    assert!(pixels("job.png") == pixels("hand.png") && pixels("again.png") == pixels("job.png"));
    let told = place.run(&["inspect", "job.png", "--json"]).json();
    assert_eq!((&told["parameters"]["seed"], &told["parameters"]["model"]), (&json!(3), &json!("painter")));
    let page = String::from_utf8(server.get(&format!("/jobs/{id}")).body).unwrap();
    for words in [PROMPT, "<dt>Seed</dt><dd>3", "euler", "flux-shapes/transformer"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert_eq!(server.end(), 0);
}

/// Nobody else reads a prompt: not without a token, nor in metrics, events and the log.
#[test]
fn a_prompt_is_told_to_whoever_may_see_the_job_alone() {
    let place = Place::new();
    place.write("token", "a-token-of-24-characters");
    let text = config(&[whole("cat", fixture("generate-flux"))]);
    let server = Server::start(&place, &text.replace("data = \"data\"\n", "data = \"data\"\ntoken-file = \"token\"\n"));
    let secret = "a cat that nobody knows of";
    let request = json!({
        "model": "cat", "prompt": secret, "format": "png",
        "sample": { "width": 32, "height": 32, "steps": 1, "seed": "random" },
    });
    let job = submit(&server, &request);
    let id = job["id"].as_str().unwrap();
    let ended = server.ended(id);
    assert_eq!((&ended["state"], &ended["request"]), (&json!("done"), &job["request"]), "{ended}");
    let seed = ended["request"]["seeds"][0].as_u64().unwrap();
    // The seed that was drawn makes the same picture, and the next one is another.
    let mut again = request.clone();
    again["sample"]["seed"] = json!(seed);
    let second = submit(&server, &again)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&second)["state"], "done");
    let picture = |id: &str| {
        let bytes = server.get(&format!("/v1/jobs/{id}/result")).body;
        image::load_from_memory(&bytes).unwrap().into_rgb8().into_raw()
    };
    assert!(picture(id) == picture(&second));
    assert_ne!(submit(&server, &request)["request"]["seeds"][0].as_u64(), Some(seed), "drawn anew");
    let is_told = |body: &[u8]| String::from_utf8_lossy(body).contains(secret);
    for path in [format!("/v1/jobs/{id}"), "/v1/jobs".to_owned(), format!("/jobs/{id}")] {
        assert!(is_told(&server.get(&path).body), "{path}");
        let answer = server.ask_as("GET", &path, &[], b"");
        assert!(answer.status != 200 && !is_told(&answer.body), "{path}: {}", answer.status);
    }
    for path in ["/metrics", "/v1/events", "/v1/policies", "/v1/routes"] {
        assert!(!is_told(&server.get(path).body), "{path}");
    }
    assert_eq!(server.end(), 0);
    assert!(!is_told(&fs::read(place.path("server.log")).unwrap()));
}
