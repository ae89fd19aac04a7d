//! LoRAs of jobs: those that a model's configuration offers, by name.

use std::fs;

use serde_json::{Value, json};

use super::{
    prompts::{by_hand, config, made},
    server::Server,
};
use crate::generate::{fresh_prompt, lora};
use crate::program::{Place, fixture};

/// The configuration of prompts, with a folder of LoRAs for the model of pictures.
fn with_loras(place: &Place) -> String {
    let loras = place.path("loras");
    fs::create_dir_all(loras.join("styles")).unwrap();
    fs::write(loras.join("styles/ink.safetensors"), lora(0.3)).unwrap();
    fs::write(loras.join("oil.safetensors"), lora(-0.2)).unwrap();
    fs::write(loras.join("broken.safetensors"), b"no LoRA").unwrap();
    config().replacen("[models.flux]\n", &format!("[models.flux]\nloras = {loras:?}\n"), 1)
}

fn asked(prompt: &str, loras: &Value) -> Value {
    json!({
        "model": "flux", "prompt": prompt, "format": "safetensors", "loras": loras,
        "sample": { "width": 48, "height": 32, "steps": 3, "seed": 5 },
    })
}

#[test]
fn a_lora_is_asked_for_by_name_and_gives_the_pixels_of_the_command_line() {
    let place = Place::new();
    let server = Server::start(&place, &with_loras(&place));
    let prompt = fresh_prompt();
    let pixels = |loras: &Value| {
        let id = server.post("/v1/jobs", &asked(&prompt, loras)).with(202)["id"].as_str().unwrap().to_owned();
        (made(&place, &server, &id), server.job(&id)["request"]["loras"].clone())
    };
    let hand = |loras: &[&str]| {
        let folder = fixture("generate-flux");
        let words = ["generate", &*prompt, "--model", &folder, "--size", "48x32", "--steps", "3", "--seed", "5"];
        let further = ["--device", "cpu", "--policy", "denoise=fixed", "--no-history", "-o", "hand.safetensors"];
        let loras = loras.iter().flat_map(|lora| ["--lora", *lora]);
        let words: Vec<String> = words.into_iter().chain(further).chain(loras).map(str::to_owned).collect();
        by_hand(&place, &words)
    };
    let two = json!([{ "name": "styles/ink", "strength": 0.5 }, { "name": "oil" }]);
    let (both, told) = pixels(&two);
    assert!(both == hand(&["loras/styles/ink.safetensors:0.5", "loras/oil.safetensors"]), "other pixels");
    let names: Vec<(&Value, &Value)> =
        told.as_array().unwrap().iter().map(|lora| (&lora["name"], &lora["strength"])).collect();
    assert_eq!(names, [(&json!("styles/ink"), &json!(0.5)), (&json!("oil"), &json!(1.0))]);
    let (plain, told) = pixels(&json!([]));
    assert!(plain == hand(&[]) && plain != both && told.is_null(), "{told}");
    // A file that has changed is taken as it is now.
    fs::write(place.path("loras/new.safetensors"), lora(0.7)).unwrap();
    fs::rename(place.path("loras/new.safetensors"), place.path("loras/oil.safetensors")).unwrap();
    let (changed, _) = pixels(&two);
    assert!(changed == hand(&["loras/styles/ink.safetensors:0.5", "loras/oil.safetensors"]) && changed != both);
    // The settings beside a file count as the file does.
    let peft = place.path("loras/peft");
    fs::create_dir(&peft).unwrap();
    fs::write(peft.join("adapter_model.safetensors"), lora(0.3)).unwrap();
    let by_alpha = [2, 6].map(|alpha| {
        let settings = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": alpha, "target_modules": ["to_q"] });
        fs::write(peft.join("adapter_config.json"), settings.to_string()).unwrap();
        let (made, told) = pixels(&json!([{ "name": "peft" }]));
        assert!(made == hand(&["loras/peft"]), "alpha {alpha}: other pixels than by hand");
        assert_eq!(told[0]["name"], "peft");
        made.1
    });
    assert!(by_alpha[0] != by_alpha[1]);
    assert_eq!(
        server.get("/v1/models").with(200)["models"][0]["loras"],
        json!(["broken", "oil", "peft", "styles/ink"])
    );
    assert_eq!(server.end(), 0);
}

#[test]
fn a_lora_that_is_not_offered_or_does_not_fit_is_refused() {
    let place = Place::new();
    let server = Server::start(&place, &with_loras(&place));
    let refused = |request: &Value| server.post("/v1/jobs", request).problem(422);
    let one = |name: &str| asked("a cat", &json!([{ "name": name }]));
    let mut clip = one("oil");
    clip["model"] = json!("wan");
    let many = asked("a cat", &Value::from(vec![json!({ "name": "oil" }); 17]));
    let decode = json!({ "model": "flux", "loras": [{ "name": "oil" }] });
    for (line, words) in [
        (
            refused(&one("styles/inc")),
            "offers no 'styles/inc' (did you mean styles/ink?): there are broken, oil, styles/ink",
        ),
        (refused(&one("../oil")), "offers no '../oil'"),
        (refused(&one("/etc/passwd")), "offers no '/etc/passwd'"),
        (refused(&one("broken")), "loras: broken"),
        (refused(&asked("a cat", &json!([{ "name": "oil", "expert": 1 }]))), "is for expert 1, and model flux has 1"),
        (refused(&clip), "model wan offers none: name their folder in its configuration"),
        (refused(&many), "loras: expected at most 16"),
        (refused(&decode), "loras: expected a prompt or a sample with them"),
    ] {
        assert!(line.contains(words), "{line}");
        assert!(!line.contains(&place.path("loras").display().to_string()), "a path of the server is told: {line}");
    }
    assert_eq!(server.end(), 0);
}
