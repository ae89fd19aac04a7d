//! Work that can't fit: refused at once, in little memory whatever its size, before any stage runs,
//! and by a dry run with the same status and line.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use serde_json::Value;

use crate::{
    costly::measured,
    program::{Place, fixture, latent, root},
};

/// Bytes that a refusal may take beside what the smallest one does.
const MOST_BYTES: u64 = 50 << 20;

fn model(name: &str) -> String {
    root().join("examples/models").join(name).display().to_string()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A prompt's picture or clip of a size, within a limit.
fn generate(name: &str, rest: &str) -> Vec<String> {
    let mut arguments = words("generate square --device cpu --no-history --model");
    arguments.push(model(name));
    arguments.extend(words(rest));
    arguments
}

/// Each command that decides, of pictures and of clips, with what can't fit.
fn hopeless(place: &Place) -> Vec<Vec<String>> {
    let picture = place.write("picture.safetensors", latent(&[1, 16, 8, 8], 0.25));
    let clip = place.write("clip.safetensors", latent(&[1, 16, 2, 8, 8], 0.25));
    let sampled = fixture("sample-flux-diffusers");
    let start = fixture("generate-flux-image/picture.png");
    let little = "--memory-limit 64KiB";
    let on = |text: String| words(&text);
    vec![
        generate("flux-shapes", "--size 32768x32768 --memory-limit 2GiB -o x.png"),
        generate("flux-shapes", "--size 64x64 --memory-limit 1MiB -o x.png"),
        generate("flux-shapes", "--size 64x64 --batch 1024 --memory-limit 4MiB -o x.safetensors"),
        generate("flux-shapes", &format!("--image {start} --memory-limit 1MiB -o x.png")),
        generate("wan-shapes", "--size 8192x8192 --frames 81 --memory-limit 256MiB -o x.gif"),
        on(format!(
            "sample --device cpu --no-history --transformer {sampled} --conditioning {sampled}/conditioning.safetensors \
             --size 32768x32768 --memory-limit 256MiB -o x.latent"
        )),
        on(format!(
            "decode {picture} --vae {} --device cpu --no-history {little} -o x.png",
            fixture("flux-bfl/ae.safetensors")
        )),
        on(format!(
            "decode {clip} --vae {} --device cpu --no-history {little} -o x.gif",
            fixture("wan21-original/Wan2.1_VAE.safetensors")
        )),
        on(format!("encode {start} --vae {} --device cpu --no-history {little} -o x.latent", model("flux-shapes/vae"))),
        on(format!("encode {start} --vae {} --device cpu --no-history {little} -o x.latent", model("wan-shapes/vae"))),
        on(format!(
            "embed square --model {} --device cpu --no-history {little} -o x.safetensors",
            model("flux-shapes")
        )),
    ]
}

/// The line of an error.
fn line(said: &str) -> &str {
    said.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("no error: {said}"))
}

#[test]
fn a_dry_run_is_refused_as_the_run_is() {
    let place = Place::new();
    for arguments in hopeless(&place) {
        let before = place.files();
        let run = place.run(&arguments);
        let dry = place.run(&[&arguments[..], &["--dry-run".to_owned()]].concat());
        let said = String::from_utf8(run.0.stderr.clone()).unwrap();
        assert_eq!(run.0.status.code(), Some(2), "{arguments:?}: {said}");
        assert_eq!(dry.0.status.code(), Some(2), "{arguments:?}");
        assert_eq!(line(&said), line(std::str::from_utf8(&dry.0.stderr).unwrap()), "{arguments:?}");
        assert!(line(&said).contains("is too little for this") || line(&said).contains("the least is"), "{said}");
        assert!(!said.contains("text: "), "no encoder has run: {said}");
        assert_eq!(place.files(), before, "{arguments:?}");
    }
}

/// The request of a decision, but for the memory that the machine has at the moment, and the price.
fn priced(record: &Value) -> (Value, Value) {
    let mut request = record["request"].clone();
    for name in ["host_free_bytes", "memory_limit"] {
        request.as_object_mut().unwrap().remove(name);
    }
    (request, record["estimate"].clone())
}

#[test]
fn a_dry_run_prices_what_the_run_does() {
    let place = Place::new();
    let start = fixture("generate-flux-image/picture.png");
    let further = "--memory-limit 1GiB --json";
    for arguments in [
        generate("flux-shapes", &format!("--size 64x32 --steps 2 --batch 2 -o x.png {further}")),
        generate("flux-shapes", &format!("--image {start} --denoise 0.5 --steps 4 -o x.png {further}")),
        generate("wan-shapes", &format!("--size 32x32 --frames 5 --steps 2 -o x.gif {further}")),
    ] {
        let of = |report: &Value| -> Vec<(Value, Value)> {
            let stages = report["stages"].as_array().unwrap();
            stages.iter().filter(|stage| stage["stage"] != "text").map(priced).collect()
        };
        let dry = place.run(&[&arguments[..], &["--dry-run".to_owned()]].concat()).json();
        let run = place.run(&arguments).json();
        assert_eq!(dry["settings"], run["settings"], "{arguments:?}");
        assert_eq!(of(&dry), of(&run), "{arguments:?}");
    }
}

#[test]
fn a_refusal_takes_no_memory_of_the_sizes_order() {
    let place = Place::new();
    let peak = |size: &str, limit: &str, more: &str| {
        let rest = format!("--size {size} --memory-limit {limit} -o x.png {more}");
        let (said, _, bytes) = measured(&place, &generate("flux-shapes", &rest));
        assert!(line(&said).contains("is too little for this sample"), "{said}");
        bytes
    };
    for more in ["", "--dry-run"] {
        let [small, large] = [peak("64x64", "1MiB", more), peak("32768x32768", "2GiB", more)];
        println!("{more}: {} MiB, and {} MiB for the largest size", small >> 20, large >> 20);
        assert!(large < small + MOST_BYTES, "{} MiB", large >> 20);
    }
}

#[test]
fn a_picture_is_not_read_if_its_work_can_not_fit() {
    let place = Place::new();
    let of_picture = |side: u32, mut arguments: Vec<String>| {
        let name = format!("{side}.png");
        image::GrayImage::new(side, side).save(place.path(&name)).unwrap();
        arguments.iter_mut().filter(|word| *word == "PICTURE").for_each(|word| *word = name.clone());
        let (said, _, bytes) = measured(&place, &arguments);
        assert!(line(&said).contains("is too little"), "{said}");
        bytes
    };
    let vae = model("flux-shapes/vae");
    for arguments in [
        words(&format!("encode PICTURE --vae {vae} --device cpu --no-history --memory-limit 64KiB -o x.latent")),
        generate("flux-shapes", "--image PICTURE --memory-limit 1MiB -o x.png"),
        generate("flux-shapes", "--image PICTURE --memory-limit 1MiB --dry-run -o x.png"),
    ] {
        let [small, large] = [64, 8192].map(|side| of_picture(side, arguments.clone()));
        assert!(large < small + MOST_BYTES, "{arguments:?}: {} MiB, for {} MiB", large >> 20, small >> 20);
    }
}

#[test]
fn a_picture_that_is_cut_behind_its_header_is_refused_before_any_stage() {
    let place = Place::new();
    let whole = std::fs::read(fixture("generate-flux-image/picture.png")).unwrap();
    place.write("cut.png", &whole[..whole.len() / 2]);
    for more in ["", "--dry-run"] {
        let run = place.run(&generate("flux-shapes", &format!("--image cut.png -o x.png {more}")));
        run.failed(2, "cut.png");
        assert!(!run.stderr().contains("text: "), "no encoder has run: {}", run.stderr());
    }
}

#[test]
fn a_size_that_is_a_pictures_is_refused_by_its_name() {
    let place = Place::new();
    image::GrayImage::new(40000, 8).save(place.path("wide.png")).unwrap();
    let run = place.run(&generate("flux-shapes", "--image wide.png -o x.png"));
    run.failed(2, "wide.png: a size of 40000×8");
    assert!(!run.stderr().contains("--size"), "{}", run.stderr());
}

#[test]
fn pictures_of_a_clip_are_checked_before_any_is_encoded() {
    let place = Place::new();
    let whole = std::fs::read(fixture("generate-flux-image/picture.png")).unwrap();
    let folder = |name: &str, bad: &dyn Fn(&std::path::Path)| {
        std::fs::create_dir(place.path(name)).unwrap();
        for number in 0..5 {
            place.write(&format!("{name}/{number}.png"), &whole);
        }
        bad(&place.path(name).join("3.png"));
    };
    folder("cut", &|path| std::fs::write(path, &whole[..whole.len() / 2]).unwrap());
    folder("sizes", &|path| image::GrayImage::new(8, 8).save(path).unwrap());
    for name in ["cut", "sizes"] {
        for more in ["", "--dry-run"] {
            let vae = model("wan-shapes/vae");
            let rest = format!("encode {name} --vae {vae} --device cpu --no-history -o x.latent {more}");
            let run = place.run(&words(&rest));
            run.failed(2, "3.png");
            assert!(!place.path("x.latent").is_file());
        }
    }
}

#[test]
fn a_large_picture_has_its_prices_in_time_and_a_plan_within_the_limit() {
    let place = Place::new();
    let arguments = generate("flux-shapes", "--size 11584x11584 --memory-limit 2GiB --dry-run --json -o x.png");
    let report = place.run(&arguments).json();
    let stages = report["stages"].as_array().unwrap();
    let stage = |name: &str| stages.iter().find(|stage| stage["stage"] == name).unwrap();
    let Value::Object(estimate) = &stage("denoise")["estimate"] else { panic!("{report}") };
    let held = estimate["peak_bytes"].as_u64().unwrap() + estimate["weights_bytes"].as_u64().unwrap();
    assert!(held <= 2 << 30, "{estimate:?}");
    assert_eq!(stage("denoise")["fallback"], Value::Null, "the policy had an answer in time");
}

#[test]
fn work_of_hours_begins_with_a_warning() {
    let place = Place::new();
    let arguments = generate("flux-shapes", "--size 1024x1024 --steps 10000 --memory-limit 4GiB -o x.png");
    let mut child = place.command(&arguments).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    // The first line of progress comes only after the warning, if there is one.
    let heard = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let warning = { heard }.find(|line| line.starts_with("warning: this is") || line.contains("% done"));
    child.kill().unwrap();
    child.wait().unwrap();
    let warning = warning.unwrap();
    assert!(warning.starts_with("warning: this is expected to take ") && warning.contains(" h "), "{warning}");
}
