//! The dashboard's pages: what they tell of jobs and policies, and the page for prompts.

use std::fs;

use serde_json::json;

use super::{
    prompts::config,
    server::{Answer, Server},
};
use crate::{
    generate::{fresh_prompt, lora},
    hostile::careful,
    program::Place,
};

fn page(server: &Server, path: &str) -> String {
    let answer = server.get(path);
    assert_eq!(answer.status, 200, "{path}");
    String::from_utf8(answer.body).unwrap()
}

/// The token that the forms of a page carry.
pub fn token(server: &Server, path: &str) -> String {
    let page = page(server, path);
    page.split("name=\"form\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

/// Sends the form for prompts as browsers do.
fn send(server: &Server, fields: &[(&str, &str)]) -> Answer {
    let token = token(server, "/prompt");
    let field = |(name, value): &(&str, &str)| {
        format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let body = [("form", &*token)].iter().chain(fields).map(field).collect::<String>() + "--edge--\r\n";
    let media = [("content-type", "multipart/form-data; boundary=edge")];
    server.ask("POST", "/actions/submit", &media, body.as_bytes())
}

/// The page that an answer leads to.
fn location(answer: &Answer) -> String {
    assert_eq!(answer.status, 303, "{}", String::from_utf8_lossy(&answer.body));
    answer.headers["location"].to_str().unwrap().to_owned()
}

/// The id of the job that an answer leads to.
fn sent(answer: &Answer) -> String {
    location(answer).strip_prefix("/prompt?job=").expect("the page of a prompt's job").to_owned()
}

/// The value of a field.
fn value<'a>(page: &'a str, id: &str) -> Option<&'a str> {
    let field = page.split(&format!("<input id=\"{id}\"")).nth(1)?.split('>').next()?;
    field.split(" value=\"").nth(1)?.split('"').next()
}

/// The fields of the form for prompts with their values, as a browser sends them.
fn fields_of(page: &str) -> Vec<(String, String)> {
    let form = page.split("id=\"prompt\"").nth(1).unwrap().split("</form>").next().unwrap();
    let plain =
        |text: &str| text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let attribute = |tag: &str, name: &str| Some(plain(tag.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?));
    let mut fields = Vec::new();
    for part in form.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap();
        let name = attribute(tag, "name");
        match (tag.split(' ').next().unwrap(), name) {
            ("input", Some(name)) if attribute(tag, "type").as_deref() != Some("file") => {
                fields.push((name, attribute(tag, "value").unwrap_or_default()));
            }
            ("textarea", Some(name)) => fields.push((name, plain(text.trim_start_matches('\n')))),
            ("select", Some(name)) => fields.push((name, String::new())),
            ("option", None) if tag.split(' ').any(|word| word == "selected") => {
                fields.last_mut().unwrap().1 = attribute(tag, "value").unwrap();
            }
            _ => {}
        }
    }
    fields.retain(|(name, _)| name != "form");
    fields
}

const SMALL: [(&str, &str); 5] = [("model", "flux"), ("width", "48"), ("height", "32"), ("steps", "2"), ("format", "")];

#[test]
fn a_prompts_job_under_way_says_by_which_plan() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    let request = json!({
        "model": "flux", "prompt": fresh_prompt(),
        "sample": { "width": 64, "height": 64, "steps": 10_000, "seed": 7 },
    });
    let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    let path = format!("/jobs/{id}");
    let found = server.until(|| {
        let found = page(&server, &path);
        let is_running = !found.contains("queued</span>");
        assert!(!is_running || !found.contains("ot decided yet"), "{found}");
        found.contains("Under way: denoise").then_some(()).and_then(|()| found.contains("decided by").then_some(found))
    });
    assert!(found.contains("/policies/own\">own</a>"), "the policy of the stage at work: {found}");
    assert!(found.contains("How it was decided"), "the text stage has ended, and is told of: {found}");
    server.ask("DELETE", &format!("/v1/jobs/{id}"), &[], b"").with(200);
    server.ended(&id);
    assert!(!page(&server, &path).contains("Under way"));
}

#[test]
fn a_policy_that_does_not_answer_a_routes_stage_is_warned_of() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    let warnings = || server.get("/v1/policies/own").with(200)["warnings"].clone();
    assert_eq!(warnings(), json!([]));
    let file = place.write("own.wasm", careful(""));
    let swap = |module: &str| place.run(&["policy", "swap", "own", module, "--server", &server.url()]);
    let swapped = swap(&file);
    swapped.succeeded();
    let line =
        "policy own (guest) does not answer the stage denoise of route route-1: the native default decides there";
    assert!(swapped.stderr().contains(&format!("warning: {line}\n")), "{}", swapped.stderr());
    assert_eq!(warnings(), json!([line]));
    assert_eq!(server.get("/v1/policies/own").with(200)["in_force"]["stages"], json!(["decode", "encode"]));
    for path in ["/", "/policies/own"] {
        assert!(page(&server, path).contains(line), "{path}");
    }
    let event = server.get("/v1/events").with(200)["events"][0]["detail"].as_str().unwrap().to_owned();
    assert!(event.contains(line), "{event}");
    // The warning is true: the native default decides.
    let request = json!({ "model": "flux", "prompt": "a cat", "sample": { "width": 32, "height": 32, "steps": 1 } });
    let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id)["state"], "done");
    let records = server.get(&format!("/v1/jobs/{id}/decision")).with(200)["stages"].clone();
    let sample = records.as_array().unwrap().iter().find(|record| record["stage"] == "denoise").unwrap();
    assert_eq!(sample["fallback"]["reason"], "not-answered", "{sample}");
    swap("fixed").succeeded();
    assert_eq!(warnings(), json!([]));
    // The page's own form tells of it, too.
    let digest = server.get("/v1/policies/own").with(200)["previous"]["digest"].as_str().unwrap().to_owned();
    let token = token(&server, "/policies/own");
    let body = format!(
        "--edge\r\nContent-Disposition: form-data; name=\"form\"\r\n\r\n{token}\r\n\
         --edge\r\nContent-Disposition: form-data; name=\"source\"\r\n\r\n{digest}\r\n--edge--\r\n"
    );
    let media = [("content-type", "multipart/form-data; boundary=edge")];
    let answer = server.ask("POST", "/actions/policies/own/swap", &media, body.as_bytes());
    let told = page(&server, &location(&answer));
    let told = told.split("id=\"notice\"").nth(1).unwrap().split("</div>").next().unwrap();
    assert!(told.contains("own was swapped") && told.contains(&format!("warning: {line}")), "{told}");
}

#[test]
fn each_stage_has_a_chart_of_its_times() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    let request =
        json!({ "model": "flux", "prompt": fresh_prompt(), "sample": { "width": 32, "height": 32, "steps": 1 } });
    let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id)["state"], "done");
    let page = page(&server, "/");
    let chart = |name: &str| {
        let rest = page.split(&format!("{name} <span")).nth(1).unwrap_or_else(|| panic!("no {name}: {page}"));
        rest.split("</figure>").next().unwrap().to_owned()
    };
    // Samples are on the first route, the rest on the second.
    for (name, own, other) in [
        ("Decode time", "route-2", "route-1"),
        ("Sampling time", "route-1", "route-2"),
        ("Text time", "route-2", "route-1"),
    ] {
        let chart = chart(name);
        assert!(chart.contains(own) && !chart.contains(other), "{name}: {chart}");
    }
}

#[test]
fn a_prompts_page_makes_a_picture_and_leads_to_the_next() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    let empty = page(&server, "/prompt");
    assert!(empty.contains("What you make appears here") && empty.contains("placeholder=\"random\""), "{empty}");
    let prompt = format!("{} <b>\"bold\"</b> & more", fresh_prompt());
    let escaped = prompt.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    let asked = [("prompt", &*prompt), ("seed", ""), ("sampler", "heun"), ("scheduler", "karras"), ("cfg", "")];
    let id = sent(&send(&server, &[&SMALL[..], &asked].concat()));
    assert_eq!(server.ended(&id)["state"], "done");
    // The picture comes first, with its prompt and the seed that was taken.
    let shown = page(&server, &format!("/prompt?job={id}"));
    let (large, rest) = shown.split_once("id=\"prompt\"").unwrap();
    assert!(large.contains(&format!("src=\"/v1/jobs/{id}/result?sample=0\"")) && large.contains(&escaped), "{large}");
    let seed: u64 = large.split("seed ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(!shown.contains("<b>"), "a prompt makes no markup");
    // The job's request stays in the form, but for the seed: the next picture is another one.
    assert!(rest.contains(&format!("\n{escaped}</textarea>")), "{rest}");
    assert_eq!((value(rest, "prompt-width"), value(rest, "prompt-seed")), (Some("48"), None));
    // It can be varied, with its seed.
    let varied = page(&server, &format!("/prompt?from={id}"));
    assert_eq!(value(&varied, "prompt-seed"), Some(&*seed.to_string()));
    for chosen in ["heun", "karras"] {
        assert!(varied.contains(&format!("<option value=\"{chosen}\" selected>")), "{varied}");
    }
    // Again is the same with another seed.
    let media = [("content-type", "application/x-www-form-urlencoded")];
    let form = format!("form={}", token(&server, "/prompt"));
    let again = sent(&server.ask("POST", &format!("/actions/jobs/{id}/again"), &media, form.as_bytes()));
    assert_ne!(again, id);
    assert_eq!(server.ended(&again)["state"], "done");
    let varied_again = page(&server, &format!("/prompt?from={again}"));
    assert_ne!(value(&varied_again, "prompt-seed"), Some(&*seed.to_string()));
    assert!(varied_again.contains(&escaped) && value(&varied_again, "prompt-steps") == Some("2"), "{varied_again}");
    // A seed that is given is kept: the same picture.
    let result = |id: &str| server.get(&format!("/v1/jobs/{id}/result")).body;
    let number = seed.to_string();
    let same = sent(&send(&server, &[&SMALL[..], &asked[..1], &[("seed", &number)], &asked[2..]].concat()));
    assert_eq!(server.ended(&same)["state"], "done");
    let pixels = |id: &str| {
        fs::write(place.path("one.png"), result(id)).unwrap();
        image::open(place.path("one.png")).unwrap().into_rgb8()
    };
    assert!(pixels(&same) == pixels(&id) && pixels(&again) != pixels(&id));
    // Each is in the gallery and in the lists of jobs, small.
    for path in ["/prompt", "/jobs", "/"] {
        let found = page(&server, path);
        for id in [&id, &again, &same] {
            assert!(found.contains(&format!("src=\"/jobs/{id}/thumbnail\"")), "{path}: {found}");
        }
        assert!(found.contains(&escaped), "{path}");
    }
    let thumbnail = server.get(&format!("/jobs/{id}/thumbnail"));
    assert_eq!((thumbnail.status, &thumbnail.headers["content-type"]), (200, &"image/png".parse().unwrap()));
    assert!(thumbnail.body.starts_with(b"\x89PNG"));
    assert_eq!(server.get(&format!("/jobs/{}/thumbnail", id.replace(|c: char| c.is_ascii_digit(), "0"))).status, 404);
    let found = server.get("/v1/jobs?q=%3Cb%3E").with(200)["jobs"].as_array().unwrap().len();
    assert_eq!(found, 3, "prompts are searched");
    assert_eq!(server.end(), 0);
}

/// A form that is filled in from a job and sent as it is makes the same again, whatever the job
/// asked for.
#[test]
fn a_varied_job_keeps_all_that_was_asked_for() {
    let place = Place::new();
    fs::create_dir(place.path("loras")).unwrap();
    fs::write(place.path("loras/ink.safetensors"), lora(0.3)).unwrap();
    let loras = format!("[models.flux]\nloras = {:?}\n", place.path("loras"));
    let server = Server::start(&place, &config().replacen("[models.flux]\n", &loras, 1));
    let plain = json!({ "model": "flux", "prompt": fresh_prompt(), "sample": { "steps": 2 } });
    let asked = json!({
        "model": "flux", "prompt": format!("{} \"a\" & <b>", fresh_prompt()), "negative_prompt": "fog", "text_tokens": 40,
        "objective": "leanest", "allow": ["blended"], "deadline_s": 600, "format": "webp",
        "loras": [{ "name": "ink", "strength": -0.25 }],
        "sample": {
            "width": 48, "height": 32, "seed": [18_446_744_073_709_551_615_u64, 7], "sigmas": [1.0, 0.4, 0.0],
            "shift": 2.5, "as": "diffusers", "cfg": 2.0, "sampler": "euler",
        },
    });
    for request in [plain, asked] {
        let id = server.post("/v1/jobs", &request).with(202)["id"].as_str().unwrap().to_owned();
        assert_eq!(server.ended(&id)["state"], "done", "{}", server.job(&id));
        let fields = fields_of(&page(&server, &format!("/prompt?from={id}")));
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        let answer = send(&server, &fields);
        let led = location(&answer);
        assert!(led.starts_with("/prompt?job="), "{}", page(&server, &led));
        let same = sent(&answer);
        let told = |id: &str| {
            let mut told = server.ended(id)["request"].clone();
            // The seed that was a default is in the form.
            told.as_object_mut().unwrap().remove("defaults");
            told
        };
        assert_eq!(told(&same), told(&id));
        assert_eq!(server.job(&same)["format"], server.job(&id)["format"]);
        // The request of the latent's own decode, in the last stage's record.
        let asked = |id: &str| {
            let stages = server.get(&format!("/v1/jobs/{id}/decision")).with(200)["stages"].clone();
            let request = &stages.as_array().unwrap().last().unwrap()["request"];
            assert!(request["objective"].is_string() && request["allows_blended"].is_boolean(), "{request}");
            (request["objective"].clone(), request["allows_blended"].clone())
        };
        assert_eq!(asked(&same), asked(&id));
        // And what only the form's hidden part has.
        let rest = |id: &str| {
            let fields = fields_of(&page(&server, &format!("/prompt?from={id}")));
            fields.into_iter().find(|(name, _)| name == "rest").map(|(_, rest)| rest)
        };
        assert_eq!(rest(&same), rest(&id));
        assert_eq!(rest(&id).is_some_and(|rest| rest.contains("\"deadline_s\":600")), request["allow"].is_array());
    }
    assert_eq!(server.end(), 0);
}

/// The picture that one began with is kept with the job: made again, it begins with it, too.
#[test]
fn a_picture_that_began_with_another_is_made_again() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    image::RgbImage::from_pixel(48, 32, image::Rgb([200, 40, 90])).save(place.path("start.png")).unwrap();
    let start = fs::read(place.path("start.png")).unwrap();
    let request = json!({
        "model": "flux", "prompt": fresh_prompt(), "sample": { "steps": 4, "denoise": 0.5, "seed": 3 },
    });
    let id = server.submit_files(&request, &[("image", &start)]).with(202)["id"].as_str().unwrap().to_owned();
    assert_eq!(server.ended(&id)["state"], "done");
    let media = [("content-type", "application/x-www-form-urlencoded")];
    let form = format!("form={}", token(&server, "/prompt"));
    let again = sent(&server.ask("POST", &format!("/actions/jobs/{id}/again"), &media, form.as_bytes()));
    let job = server.ended(&again);
    assert_eq!((&job["state"], &job["width"]), (&json!("done"), &json!(48)), "{job}");
    let stages = server.get(&format!("/v1/jobs/{again}/decision")).with(200)["stages"].clone();
    assert!(stages.as_array().unwrap().iter().any(|record| record["stage"] == "encode"), "{stages}");
    let result = |id: &str| server.get(&format!("/v1/jobs/{id}/result")).body;
    assert!(result(&again) != result(&id), "another seed");
    // A form has no file in it: it asks for the picture, without which it is refused.
    let varied = page(&server, &format!("/prompt?from={id}"));
    assert_eq!((value(&varied, "prompt-denoise"), value(&varied, "prompt-steps")), (Some("0.5"), Some("4")));
    assert!(varied.contains("It had a picture: choose it again."), "{varied}");
    let fields = fields_of(&varied);
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
    let refused = page(&server, &location(&send(&server, &fields)));
    assert!(refused.contains("sample.denoise: expected an image with it"), "{refused}");
}

#[test]
fn a_prompt_that_is_refused_is_in_its_form_again() {
    let place = Place::new();
    let server = Server::start(&place, &config());
    let asked = [("model", "flux"), ("prompt", "a long <story>"), ("width", "33"), ("height", "32"), ("seed", "5")];
    let path = location(&send(&server, &asked));
    let number = path.strip_prefix("/prompt?notice=").expect("the form");
    assert!(number.bytes().all(|byte| byte.is_ascii_hexdigit()), "{path}");
    let found = page(&server, &path);
    assert!(found.contains("notice bad") && found.contains("33"), "{found}");
    assert!(found.contains("\na long &lt;story&gt;</textarea>"), "{found}");
    assert_eq!((value(&found, "prompt-width"), value(&found, "prompt-seed")), (Some("33"), Some("5")));
    // Nothing came of it, and a form of another site's does nothing at all.
    assert_eq!(server.get("/v1/jobs").with(200)["jobs"], json!([]));
    let media = [("content-type", "application/x-www-form-urlencoded")];
    assert_eq!(server.ask("POST", "/actions/jobs/1/again", &media, b"form=guessed").status, 403);
}
