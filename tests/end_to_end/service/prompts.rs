//! Jobs from a prompt: the pixels of the command line, stage by stage, whatever ends the server.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};

use super::{endurance::sized, server::Server};
use crate::generate::fresh_prompt;
use crate::program::{Place, Run, fixture, largest_difference, sample};

pub fn config() -> String {
    let model = |name: &str| {
        let folder = fixture(&format!("generate-{name}"));
        format!(
            "[models.{name}]\ntransformer = {folder:?}\ntext-encoder = {folder:?}\nvae = {:?}\n",
            format!("{folder}/vae/diffusion_pytorch_model.safetensors")
        )
    };
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ndata = \"data\"\n[server.limits]\nrequests-per-second = 100000\nqueue = 1000\n\
         {}{}[devices.main]\ndevice = \"cpu\"\nmemory-limit = \"2GiB\"\n\
         [policies.own]\nsource = \"fixed\"\n[[routes]]\nstage = \"denoise\"\npolicy = \"own\"\n\
         [[routes]]\npolicy = \"adaptive\"\n",
        model("flux"),
        model("wan"),
    )
}

/// A request, and the arguments of the command that makes the same.
fn asked(model: &str, prompt: &str, seed: u64) -> (Value, Vec<String>) {
    let is_video = model == "wan";
    let mut request = json!({
        "model": model, "prompt": prompt, "format": "safetensors",
        "sample": { "width": 48, "height": 32, "steps": 3, "seed": seed },
    });
    let folder = fixture(&format!("generate-{model}"));
    let mut words = vec!["generate", prompt, "--model", &folder, "--size", "48x32", "--steps", "3", "--device", "cpu"];
    words.extend(["--policy", "denoise=fixed", "--no-history"]);
    if is_video {
        request["negative_prompt"] = json!("bad cat");
        request["sample"]["frames"] = json!(5);
        words.extend(["--negative", "bad cat", "--frames", "5"]);
    }
    let seed = seed.to_string();
    words.extend(["--seed", &seed, "-o", "hand.safetensors"]);
    (request, words.into_iter().map(str::to_owned).collect())
}

pub fn by_hand(place: &Place, words: &[String]) -> (Vec<usize>, Vec<f32>) {
    place.run(words).succeeded();
    place.sample("hand.safetensors")
}

pub fn made(place: &Place, server: &Server, id: &str) -> (Vec<usize>, Vec<f32>) {
    let job = server.ended(id);
    assert_eq!(job["state"], "done", "{job}");
    fs::write(place.path("result.safetensors"), server.get(&format!("/v1/jobs/{id}/result")).body).unwrap();
    sample(&place.path("result.safetensors"))
}

fn decision(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/jobs/{id}/decision")).with(200)
}

fn stages_of(server: &Server, id: &str) -> Vec<String> {
    let name = |record: &Value| record["stage"].as_str().unwrap().to_owned();
    decision(server, id)["stages"].as_array().unwrap().iter().map(name).collect()
}

/// The plans of a job's stages.
fn plans_of(server: &Server, id: &str) -> String {
    let stages = decision(server, id)["stages"].as_array().unwrap().clone();
    let plan = |record: &Value| format!("{}: {}", record["stage"], record["plan"]);
    stages.iter().map(plan).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_prompt_becomes_the_pixels_of_the_command_line() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    for model in ["flux", "wan"] {
        let (request, words) = asked(model, &format!("a (red:1.3) cat, {}", fresh_prompt()), 7);
        let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
        assert!(made(&place, &server, &id) == by_hand(&place, &words), "{model}: other pixels");
        let job = server.job(&id);
        assert_eq!((&job["stage"], &job["steps"], &job["at"]), (&json!("generate"), &json!(3), &Value::Null), "{job}");
        let decision = decision(&server, &id);
        let stages = stages_of(&server, &id);
        let encoders = if model == "flux" { 2 } else { 1 };
        assert_eq!(stages, [&["text"; 2][..encoders], &["denoise", "decode"]].concat(), "{decision}");
        let page = String::from_utf8(server.get(&format!("/jobs/{id}")).body).unwrap();
        assert_eq!(page.matches("How it was decided").count(), encoders + 2, "{page}");
        let names = fs::read_dir(place.path(&format!("data/jobs/{id}"))).unwrap();
        let names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(names, ["result.safetensors"]);
    }
    let stages = server.get("/v1/models").with(200);
    assert_eq!(stages["models"][0]["stages"], json!(["decode", "encode", "denoise", "generate"]));
    let page = String::from_utf8(server.get("/prompt").body).unwrap();
    assert!(page.contains("name=\"prompt\"") && page.contains("<option value=\"wan\" "), "{page}");
    // The form's fields, as a browser sends them; an empty one counts for nothing.
    let empty = json!({ "model": "flux", "prompt": "" });
    let mut plain = empty.clone();
    plain["sample"] = json!({ "width": 32, "height": 32, "steps": 1 });
    let id = server.post("/v1/jobs", &plain).with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id)["results"][0]["content_type"], "image/png");
    assert_eq!(server.end(), 0);
}

/// `model` in the configuration is what `generate --model` takes; parts beside it go first.
#[test]
fn a_model_is_named_as_on_the_command_line() {
    let place = Place::new();
    let folder = fixture("generate-flux");
    fs::create_dir(place.path("models")).unwrap();
    std::os::unix::fs::symlink(&folder, place.path("models/tiny")).unwrap();
    let models = "[models.named]\nmodel = \"tiny\"\n[models.relative]\nmodel = \"models/tiny\"\n\
                  [models.part]\nmodel = \"tiny\"\nvae = \"models/tiny/vae\"\ntext-encoder = \"models/tiny\"\n\
                  [models.decoder]\nvae = \"models/tiny/vae\"\n[devices.main]";
    let text = config().replace("[devices.main]", models);
    let folders = place.path("models").display().to_string();
    let server = Server::started(&place, &text, &[("TILEWRIGHT_MODELS", &folders)]);
    let (mut request, _) = asked("flux", "a cat", 7);
    let mut pixels = Vec::new();
    for model in ["flux", "named", "relative", "part"] {
        request["model"] = json!(model);
        let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
        pixels.push(made(&place, &server, &id));
    }
    assert!(pixels.iter().all(|one| *one == pixels[0]));
    let listed = server.get("/v1/models").with(200);
    let decoder = listed["models"].as_array().unwrap().iter().find(|model| model["name"] == "decoder").unwrap().clone();
    assert_eq!(decoder["stages"], json!(["decode", "encode"]), "{decoder}");
    assert_eq!(server.end(), 0);

    let checked = |text: &str| {
        place.write("tilewright.toml", text);
        let mut command = place.command(&["config", "check", "--config", "tilewright.toml"]);
        Run(command.env("TILEWRIGHT_MODELS", &folders).output().unwrap())
    };
    let said = checked(&text).succeeded().stdout();
    assert!(said.contains("part: text encoders (") && said.contains("named: flux transformer ("), "{said}");
    let wrong = text.replace("model = \"tiny\"", "model = \"tine\"");
    let line = wrong.lines().position(|line| line == "model = \"tine\"").unwrap() + 1;
    checked(&wrong).failed(
        2,
        &format!("tilewright.toml:{line}: tine: no such file, and no model of that name (did you mean tiny?)"),
    );
    // Parts that don't belong together are found before a job has them.
    let two = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[models.two]\nmodel = {:?}\nvae = {:?}\n",
        fixture("generate-flux"),
        fixture("generate-wan/vae/diffusion_pytorch_model.safetensors")
    );
    checked(&two).failed(2, "tilewright.toml:5: ");
    Server::refused(&place, &two).failed(2, "tilewright.toml:5: ");
    let refused = Server::refused(&place, "[server]\nlisten = \"127.0.0.1:0\"\n[models.a]\nmodel = \"nowhere\"\n");
    refused.failed(2, "tilewright.toml:4: nowhere: no such file, and no model of that name");
    fs::create_dir(place.path("alone")).unwrap();
    fs::copy(format!("{folder}/transformer/diffusion_pytorch_model.safetensors"), place.path("alone/x.safetensors"))
        .unwrap();
    fs::copy(format!("{folder}/transformer/config.json"), place.path("alone/config.json")).unwrap();
    let refused = Server::refused(&place, "[server]\nlisten = \"127.0.0.1:0\"\n[models.a]\nmodel = \"alone\"\n");
    refused.failed(2, "and no file that was found is one: give the configuration's text-encoder");
}

#[test]
fn what_is_no_prompts_job_is_refused() {
    let place = Place::new();
    let text = config() + &format!("[models.bare]\nvae = {:?}\n", fixture("flux-bfl/model.safetensors"));
    let text = text.replace("flux-bfl/model.safetensors", "generate-flux/vae/diffusion_pytorch_model.safetensors");
    let server = Server::start(&place, &text);
    let refused = |change: &dyn Fn(&mut Value)| {
        let (mut request, _) = asked("flux", "a cat", 1);
        change(&mut request);
        server.post("/v1/jobs", &request).problem(422)
    };
    for (line, words) in [
        (refused(&|request| request["model"] = json!("bare")), "has no text-encoder"),
        (refused(&|request| request["scaled"] = json!(true)), "scaled: is for decodes"),
        (refused(&|request| request["format"] = json!("mp4")), "format: a picture can't be written as video"),
        (refused(&|request| request["format"] = json!("latent")), "format: latent is for samples and encodes"),
        (refused(&|request| request["sample"]["width"] = json!(33)), "33"),
        (
            refused(&|request| request["sample"] = json!({ "end_step": 2, "leftover_noise": true })),
            "sample.leftover_noise: is for samples",
        ),
        (refused(&|request| request["prompt"] = json!("a".repeat(100_001))), "prompt: expected at most 100000"),
        (refused(&|request| drop(request.as_object_mut().unwrap().remove("prompt"))), "conditioning: expected a file"),
        (refused(&|request| request["memory_limit_bytes"] = json!(1)), "memory_limit_bytes"),
    ] {
        assert!(line.contains(words), "{line}");
    }
    let (request, _) = asked("flux", "a cat", 1);
    let line = server.submit_files(&request, &[("latent", b"x")]).problem(422);
    assert!(line.contains("latent: a prompt is the whole input"), "{line}");
}

/// Faults of a prompt are named as on the command line, and spoil nothing for others.
#[test]
fn weights_beyond_numbers_and_prompts_that_are_too_long_are_said() {
    let place = Place::new();
    let text = config().replace("memory-limit = \"2GiB\"", "memory-limit = \"256MiB\"");
    let server = Server::start(&place, &text);
    let ended = |prompt: &str| {
        let (mut request, _) = asked("flux", prompt, 1);
        request["sample"]["width"] = json!(32);
        let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
        server.ended(&id)
    };
    let prompt = fresh_prompt();
    for _ in 0..2 {
        let job = ended(&format!("a (cat:1e38), {prompt}"));
        let line = job["error"].as_str().unwrap_or_default();
        assert!(line.starts_with("the prompt's weight 1e38 of \"cat\", at character 4, is too large"), "{job}");
    }
    let job = ended(&"red fox, ".repeat(9000));
    let line = job["error"].as_str().unwrap_or_default();
    assert!(line.starts_with("the prompt is too long: it has ") && line.contains("shorten it"), "{job}");
    assert_eq!(ended(&prompt)["state"], "done");
}

/// A route of text encoders has a policy of its own, which is swapped, watched and recorded as any
/// other.
#[test]
fn encoders_are_run_as_their_routes_policy_says() {
    let place = Place::new();
    let text = config().replace(
        "[policies.own]",
        "[policies.words]\nsource = \"fixed\"\nset = { precision = \"mixed-bf16\" }\n\
         [[routes]]\nname = \"words\"\nstage = \"text\"\nfamily = \"flux\"\npolicy = \"words\"\n[policies.own]",
    );
    let mut server = Server::start(&place, &text);
    let (mut request, mut words) = asked("flux", &fresh_prompt(), 7);
    let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    words.extend(["--policy", "text=fixed", "--set", "text.precision=mixed-bf16"].map(str::to_owned));
    assert!(made(&place, &server, &id) == by_hand(&place, &words), "other pixels");
    let records = decision(&server, &id)["stages"].as_array().unwrap().clone();
    for record in &records[..2] {
        assert_eq!(record["policy"]["name"], "fixed", "{record}");
        assert_eq!(record["plan"]["precision"], json!({ "dtype": "bf16", "kind": "mixed" }), "{record}");
        assert!(record["outcome"]["peak_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{record}");
    }
    assert_eq!(records[3]["policy"]["name"], "adaptive");
    let page = String::from_utf8(server.get(&format!("/jobs/{id}")).body).unwrap();
    assert!(page.contains("words") && page.contains("mixed bf16, weights as stored"), "{page}");
    let counted = "tilewright_text_seconds_count{canary=\"false\",policy=\"words\",revision=\"1\",route=\"words\"} 2";
    let metrics = String::from_utf8(server.get("/metrics").body).unwrap();
    assert!(metrics.contains(counted), "{metrics}");
    // Clips are of another family, and go to the next route.
    let (clip, _) = asked("wan", &fresh_prompt(), 7);
    let clip = server.post("/v1/jobs", &clip).with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&clip)["state"], "done");
    assert_eq!(decision(&server, &clip)["stages"][0]["policy"]["name"], "adaptive");
    // The next job has the new revision.
    server.post("/v1/policies/words/swap", &json!({ "settings": { "precision": "f32" } })).with(200);
    request["prompt"] = json!(fresh_prompt());
    let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id)["state"], "done");
    assert_eq!(decision(&server, &id)["stages"][0]["plan"]["precision"], json!({ "dtype": "f32", "kind": "uniform" }));
    // Conditionings that are kept need no encoder.
    let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id)["state"], "done");
    assert_eq!(stages_of(&server, &id), ["denoise", "decode"]);
    server.kill();
    server = Server::start(&place, &text);
    assert_eq!(stages_of(&server, &id), ["denoise", "decode"]);
    assert_eq!(server.end(), 0);
}

/// Jobs of two models with swaps and kills, 200, 20 and 5 at full size: none is lost, none ends
/// twice, and each has the pixels of the command line. No stage has a policy that learns: after
/// enough jobs its plans may be others than the command's, and round otherwise.
#[test]
fn prompts_survive_kills_and_swaps_to_the_same_pixels() {
    const KINDS: u64 = 4;
    let (jobs, swaps, kills) = (sized(200, 90), sized(20, 9), sized(5, 3));
    let place = Place::new();
    let config = config().replace("policy = \"adaptive\"", "policy = \"own\"");
    let right: Vec<[(Vec<usize>, Vec<f32>); 2]> = (0..KINDS)
        .map(|seed| {
            ["flux", "wan"].map(|model| {
                let words = asked(model, &format!("a cat {seed}"), seed).1;
                let words: Vec<String> = words.iter().map(|word| word.replace("denoise=fixed", "fixed")).collect();
                by_hand(&place, &words)
            })
        })
        .collect();
    let mut server = Server::start(&place, &config);
    let mut accepted: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    let mut ends: BTreeMap<String, String> = BTreeMap::new();
    for round in 0..kills {
        for turn in 0..jobs / kills {
            let number = (round * (jobs / kills) + turn) as u64;
            let (seed, kind) = (number % KINDS, usize::from(number % 5 == 4));
            let (request, _) = asked(["flux", "wan"][kind], &format!("a cat {seed}"), seed);
            let key = format!("key-{number}");
            let headers = [("content-type", "application/json"), ("idempotency-key", &*key)];
            let send = || server.ask("POST", "/v1/jobs", &headers, request.to_string().as_bytes());
            let id = send().with(202)["id"].as_str().unwrap().to_owned();
            // Asked for again, it is the same job.
            assert_eq!(send().json()["id"], *id);
            accepted.insert(id, (seed, kind));
            if turn % (jobs / swaps) == 0 {
                // Divisions that change no bits.
                let settings = json!({ "ahead": (number / 10) % 2 });
                let swap = json!({ "source": "fixed", "settings": settings });
                server.post("/v1/policies/own/swap", &swap).with(200);
            }
        }
        // In the middle of the work.
        let done = |server: &Server| accepted.keys().filter(|id| server.job(id)["state"] == "done").count();
        let before = done(&server);
        server.until(|| (done(&server) > before || before == accepted.len()).then_some(()));
        for id in accepted.keys() {
            let job = server.job(id);
            if let Some(finished) = job["finished"].as_str() {
                let known = ends.entry(id.clone()).or_insert_with(|| finished.to_owned());
                assert_eq!(known, finished, "{id} ended twice");
            }
        }
        server.kill();
        server = Server::start(&place, &config);
    }
    for (id, (seed, kind)) in &accepted {
        let found = made(&place, &server, id);
        let expected = &right[*seed as usize][*kind];
        assert!(
            found == *expected,
            "{id}: pixels that differ by {} at most, by the plans {}",
            largest_difference(&found.1, &expected.1),
            plans_of(&server, id)
        );
        if let Some(finished) = ends.get(id) {
            assert_eq!(server.job(id)["finished"], **finished, "{id} ended twice");
        }
    }
    assert_eq!(accepted.len(), jobs);
}

/// A picture that begins with another one has the pixels of the command line, its encode a route
/// and a record as any other stage.
#[test]
fn a_picture_may_begin_with_another() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    let gradient = |x: u32, y: u32| image::Rgb([(x * 5) as u8, (y * 7) as u8, 90]);
    // Not a multiple of what the vae takes: the middle counts.
    image::RgbImage::from_fn(50, 35, gradient).save(place.path("start.png")).unwrap();
    image::RgbImage::from_fn(50, 35, |x, _| image::Rgb([if x < 25 { 255 } else { 0 }; 3]))
        .save(place.path("mask.png"))
        .unwrap();
    let (start, mask) = (fs::read(place.path("start.png")).unwrap(), fs::read(place.path("mask.png")).unwrap());
    let prompt = fresh_prompt();
    let request = json!({
        "model": "flux", "prompt": prompt, "format": "safetensors",
        "sample": { "steps": 5, "seed": 3, "denoise": 0.6 },
    });
    let folder = fixture("generate-flux");
    let words = ["generate", &*prompt, "--model", &folder, "--steps", "5", "--seed", "3", "--denoise", "0.6"];
    let further = ["--device", "cpu", "--policy", "denoise=fixed", "--no-history", "-o", "hand.safetensors"];
    for (files, own) in [
        (vec![("image", &*start)], vec!["--image", "start.png"]),
        (vec![("image", &*start), ("mask", &*mask)], vec!["--image", "start.png", "--mask", "mask.png"]),
    ] {
        let id = server.submit_files(&request, &files).with(202)["id"].as_str().unwrap().to_owned();
        let words: Vec<String> = words.iter().chain(&own).chain(&further).map(|word| (*word).to_owned()).collect();
        assert!(made(&place, &server, &id) == by_hand(&place, &words), "{own:?}: other pixels");
        let stages = stages_of(&server, &id);
        assert!(stages.ends_with(&["encode", "denoise", "decode"].map(str::to_owned)), "{stages:?}");
        let job = server.job(&id);
        assert_eq!((&job["width"], &job["height"]), (&json!(48), &json!(32)), "{job}");
        let told = (&job["request"]["image"], &job["request"]["mask"]);
        assert_eq!(told, (&json!(true), &if files.len() > 1 { json!(true) } else { Value::Null }), "{job}");
        let names = fs::read_dir(place.path(&format!("data/jobs/{id}"))).unwrap();
        let names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(names.iter().all(|name| ["result.safetensors", "image", "mask"].contains(&&**name)), "{names:?}");
    }
    let refused = |request: &Value, files: &[(&str, &[u8])]| server.submit_files(request, files).problem(422);
    let mut sized = request.clone();
    sized["sample"]["width"] = json!(48);
    let clip = json!({ "model": "wan", "prompt": prompt });
    let plain = json!({ "model": "flux", "prompt": prompt });
    // Damage behind the header is found only in a picture whose work fits.
    let hopeless = json!({ "model": "flux", "prompt": prompt, "memory_limit_bytes": 1 });
    let (cut, cut_mask) = (&start[..start.len() - 40], &mask[..mask.len() - 40]);
    for (line, words) in [
        (refused(&sized, &[("image", &start)]), "sample.width: a picture to begin with has its size"),
        (refused(&clip, &[("image", &start)]), "image: model wan makes clips"),
        (refused(&plain, &[("image", b"no picture")]), "image: "),
        (refused(&plain, &[("image", &start[..60])]), "image: "),
        (refused(&plain, &[("image", cut)]), "image: "),
        (refused(&plain, &[("image", &start), ("mask", cut_mask)]), "mask: "),
        (refused(&hopeless, &[("image", cut)]), "memory_limit_bytes: 1 B is too little"),
        (refused(&hopeless, &[("image", &start), ("mask", cut_mask)]), "memory_limit_bytes: 1 B is too little"),
        (refused(&plain, &[("mask", &mask)]), "mask: expected an image with it"),
        (refused(&request, &[]), "sample.denoise: expected an image with it"),
        (refused(&plain, &[("image", &start), ("mask", b"no picture")]), "mask: "),
    ] {
        assert!(line.contains(words) && !line.contains("incoming"), "{line}");
    }
    assert_eq!(server.end(), 0);
}
