//! Sampling: agreement with diffusers' transformers, what is written, what is refused.

#[path = "sample/divisions.rs"]
mod divisions;
#[path = "sample/loras.rs"]
mod loras;
#[path = "sample/preview.rs"]
mod preview;

use std::{fs, path::Path};

use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;

use crate::{
    encode::tensor,
    program::{Place, Run, bundled, fixture, largest_difference, root},
};

/// A case of diffusers', and the arguments that ask for it.
struct Case {
    name: String,
    arguments: Vec<String>,
    reference: String,
}

fn list(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(fixture(file)).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all["cases"].as_array().unwrap().clone()
}

fn cases() -> Vec<Case> {
    list("transformer_cases.json").iter().map(Case::new).collect()
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}

impl Case {
    fn new(case: &Value) -> Self {
        let path = |key: &str| case[key].as_str().map(fixture);
        let mut arguments = vec!["sample".to_owned(), "--device".into(), "cpu".into()];
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                arguments.extend([name.to_owned(), value]);
            }
        };
        for key in ["transformer", "low_noise"] {
            option("--transformer", path(key));
        }
        for lora in case["loras"].as_array().into_iter().flatten() {
            option("--lora", Some(format!("{}:{}", fixture(lora["path"].as_str().unwrap()), lora["strength"])));
        }
        option("--conditioning", path("conditioning"));
        option("--boundary", case["boundary"].as_f64().map(|boundary| boundary.to_string()));
        option("--guidance", case["guidance"].as_f64().map(|guidance| guidance.to_string()));
        let sigmas: Vec<String> = case["sigmas"].as_array().unwrap().iter().map(Value::to_string).collect();
        option("--sigmas", Some(sigmas.join(",")));
        // By the seed where nothing else gives the shape; from a file where a latent is held.
        match path("held") {
            Some(_) => option("--noise", path("noise")),
            None => {
                option("--seed", Some(case["seed"].to_string()));
                option("--size", Some(format!("{}x{}", case["width"], case["height"])));
                option("--batch", Some(case["batch"].to_string()));
                let is_clip = case["family"].as_str().unwrap().starts_with("wan");
                option("--frames", is_clip.then(|| case["frames"].to_string()));
            }
        }
        Self { name: case["name"].as_str().unwrap().into(), arguments, reference: path("reference").unwrap() }
    }

    fn run(&self, place: &Place, more: &[&str]) -> Run {
        let more = more.iter().map(|&argument| argument.to_owned());
        place.run(&self.arguments.iter().cloned().chain(more).collect::<Vec<_>>())
    }
}

/// Values of a file of f32 tensors.
fn write(path: &Path, tensors: &[(&str, Vec<usize>, Vec<f32>)]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(.., values)| values.iter().flat_map(|value| value.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes);
    let views =
        views.map(|((name, shape, _), bytes)| (*name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The latents of the held frames' case, with zeros behind the first frame, and its mask.
fn held(place: &Place, case: &Case) -> [String; 4] {
    let folder = Path::new(&case.reference).parent().unwrap();
    let (given, values) = tensor(&folder.join("held.safetensors"), "latent");
    let (mask, shares) = tensor(&folder.join("held.safetensors"), "mask");
    let [samples, channels, _, height, width] = given[..] else { panic!("{given:?}") };
    let (frames, plane) = (mask[2], height * width);
    let mut all = vec![0.0; samples * channels * frames * plane];
    for row in 0..samples * channels {
        all[row * frames * plane..][..plane].copy_from_slice(&values[row * plane..][..plane]);
    }
    write(&place.path("first.safetensors"), &[("latent", vec![samples, channels, frames, height, width], all)]);
    write(&place.path("mask.safetensors"), &[("mask", mask, shares)]);
    ["--latent", "first.safetensors", "--mask", "mask.safetensors"].map(str::to_owned)
}

/// Runs a case and compares the latent with the reference's.
fn agrees(case: &Case) {
    let place = Place::new();
    let held = if case.name.ends_with("held") { held(&place, case).to_vec() } else { Vec::new() };
    let held: Vec<&str> = held.iter().map(String::as_str).collect();
    let run = case.run(&place, &[&held[..], &["-o", "out.safetensors"]].concat());
    run.succeeded();
    let (shape, found) = tensor(&place.path("out.safetensors"), "latent");
    let (expected_shape, expected) = tensor(case.reference.as_ref(), "latent");
    assert_eq!(shape, expected_shape, "{}", case.name);
    let most = expected.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
    let difference = largest_difference(&found, &expected);
    assert!(f64::from(difference) <= 1e-4 * f64::from(most), "{}: {difference} of {most}", case.name);
}

#[test]
fn every_case_agrees_with_diffusers() {
    let cases = cases();
    assert!(cases.len() >= 12);
    cases.iter().for_each(agrees);
}

/// Products in 8-bit integers round activations, and nothing else: about as far from f32 as bf16.
#[test]
fn products_in_integers_are_near_those_in_f32() {
    let place = Place::new();
    let transformer = fixture("lora/flux-tiny.gguf");
    let conditioning = fixture("sample-flux-original/conditioning.safetensors");
    let sampled = |settings: &[&str]| {
        let mut words =
            vec!["sample", "--device", "cpu", "--transformer", &transformer, "--conditioning", &conditioning];
        words.extend(["--size", "128x96", "--steps", "4", "--policy", "fixed", "--json", "-o", "out.safetensors"]);
        words.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
        let run = place.run(&words);
        let (record, (_, latent)) = (run.json(), tensor(&place.path("out.safetensors"), "latent"));
        fs::remove_file(place.path("out.safetensors")).unwrap();
        (record, latent)
    };
    let (record, exact) = sampled(&["precision=f32"]);
    if record["capabilities"]["int8_products"] == false {
        // Products that a processor has not are brought into bounds, with a note.
        let (record, latent) = sampled(&["precision=f32", "products=int8"]);
        assert!(record["adjusted"].to_string().contains("INT8 needs a processor that has it"), "{record}");
        assert!(latent == exact);
        return;
    }
    let rms = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    let apart = |latent: &[f32]| {
        rms(&mut latent.iter().zip(&exact).map(|(one, other)| one - other)) / rms(&mut exact.iter().copied())
    };
    let (record, integers) = sampled(&["precision=f32", "products=int8"]);
    assert_eq!(record["plan"]["products"], "int8", "{record}");
    let (_, narrow) = sampled(&["precision=bf16"]);
    let (_, both) = sampled(&["precision=mixed-bf16", "products=int8"]);
    let shares = [apart(&integers), apart(&narrow), apart(&both)];
    println!("INT8 {:.2e}, bf16 {:.2e}, INT8 beside mixed bf16 {:.2e}", shares[0], shares[1], shares[2]);
    assert!(shares[0] > 0.0 && shares.iter().all(|share| *share < 0.03), "{shares:?}");
}

#[test]
fn estimates_are_what_is_held() {
    let place = Place::new();
    let folder = |name: &str| fixture(&format!("{name}/conditioning.safetensors"));
    let file = |name: &str, file: &str| fixture(&format!("{name}/{file}.safetensors"));
    let flux = "sample-flux-diffusers";
    let wan = "sample-wan-t2v-original";
    let networks = [
        (file(flux, "diffusion_pytorch_model"), folder(flux), vec![]),
        (file("sample-flux-original-schnell", "flux1-tiny"), folder("sample-flux-original-schnell"), vec![]),
        (fixture("lora/flux-tiny.gguf"), folder("sample-flux-original"), vec![]),
        (
            fixture("lora/flux-tiny.gguf"),
            folder("sample-flux-original"),
            vec!["--lora".to_owned(), file("lora", "flux-peft"), "--batch".into(), "2".into()],
        ),
        (file(wan, "wan-tiny"), folder(wan), vec!["--frames".to_owned(), "9".into()]),
        (
            file("sample-ti2v-original", "wan-tiny"),
            folder("sample-ti2v-original"),
            vec![
                "--frames".into(),
                "5".into(),
                "--cfg".into(),
                "3".into(),
                "--negative".into(),
                folder("sample-ti2v-original"),
            ],
        ),
    ];
    let mut combinations = 0;
    // Each network and each precision with both ways to hold the weights, in turns.
    for (number, (transformer, conditioning, more)) in networks.iter().enumerate() {
        let precisions = [
            ("f32", "precision"),
            ("bf16", "precision"),
            ("mixed-bf16", "precision"),
            ("f16", "precision"),
            ("f32", "int8"),
            ("bf16", "int8"),
        ];
        for (index, (precision, products)) in precisions.into_iter().enumerate() {
            if products == "int8" && !transformer.ends_with(".gguf") {
                continue;
            }
            let ways = [("packed", "256x192", "2"), ("expanded", "160x224", "1")];
            let (weights, size, steps) = ways[(number + index) % 2];
            let (precision, weights) = (format!("precision={precision}"), format!("weights={weights}"));
            let products = format!("products={products}");
            let arguments = ["sample", "--device", "cpu", "--transformer", transformer, "--conditioning", conditioning]
                .into_iter()
                .chain(["--size", size, "--steps", steps, "--json", "-o", "out.latent"])
                .chain(["--set", &precision, "--set", &weights, "--set", &products])
                .chain(more.iter().map(String::as_str));
            let arguments: Vec<_> = arguments.collect();
            let mut commands = vec![place.command(&arguments)];
            if precision.ends_with("bf16") {
                // As on a processor without products in bf16.
                commands.push(place.command(&arguments));
                commands[1].env("ONEDNN_MAX_CPU_ISA", "AVX2");
            }
            for mut command in commands {
                let record = Run(command.output().unwrap()).json();
                let bytes = |value: &Value| value["peak_bytes"].as_f64().unwrap();
                let share = bytes(&record["estimate"]) / bytes(&record["outcome"]);
                println!("{transformer} {precision} {weights} {products} {size}: {share:.4}");
                assert!(
                    (0.98..1.05).contains(&share),
                    "{transformer} {precision} {weights} {products} {size} {more:?}: {share}"
                );
                combinations += 1;
            }
        }
    }
    assert!(combinations >= 30);
}

#[test]
fn steps_that_a_sampler_makes_no_numbers_of_are_refused_before_they_run() {
    let place = Place::new();
    let Case { arguments, .. } = case("wan-t2v-original");
    let given = arguments.iter().position(|argument| argument == "--sigmas").unwrap();
    let arguments = [&arguments[..given], &arguments[given + 2..]].concat();
    let steps = ["--steps", "1000", "--sampler", "uni_pc", "--scheduler", "simple", "-o", "out.latent"];
    let run = place.run(&[&arguments[..], &steps.map(str::to_owned)[..]].concat());
    run.failed(2, "uni_pc comes to no numbers in step 3 of 1000: sigmas 1 and 2 are both 1");
    assert!(place.files().is_empty());
}

#[test]
fn a_sample_is_decoded_as_it_stands_and_the_record_says_how_it_was_made() {
    let place = Place::new();
    let case = case("flux-original");
    let run = case.run(&place, &["-o", "out.latent", "--json", "--record", "r.jsonl", "--set", "denoise.ahead=2"]);
    let record = run.json();
    assert_eq!(record["stage"], "denoise");
    assert_eq!(record["outputs"][0], "out.latent");
    assert_eq!(record["plan"]["ahead"], 2);
    let schema = fs::read_to_string(root().join("host/plan/denoise-record.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let errors: Vec<String> = schema.iter_errors(&record).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let outcome = &record["outcome"];
    assert!(outcome["step_ms"].as_f64().unwrap() > 0.0 && outcome["moved_bytes"].as_u64().unwrap() > 0, "{outcome}");
    let kept: Value = serde_json::from_str(&fs::read_to_string(place.path("r.jsonl")).unwrap()).unwrap();
    assert_eq!(kept["request"], record["request"]);
    let [_, option, vae] = bundled();
    place.run(&["decode", "out.latent", &option, &vae, "-o", "out.png"]).succeeded();
    assert!(image::open(place.path("out.png")).unwrap().width() > 0);
}

#[test]
fn samples_are_in_the_history_and_what_is_expected_follows_them() {
    let place = Place::new();
    let case = case("flux-original");
    let sample = |more: &[&str]| case.run(&place, &[&["-o", "out.latent", "--json"], more].concat()).json();
    let first = sample(&[]);
    assert!(first["expected"].is_null() && first["estimate"]["step_ms"].as_f64().unwrap() > 0.0, "{first}");
    let second = sample(&["--dry-run"]);
    let [expected, measured] = [&second["expected"], &first["outcome"]].map(|of| of["step_ms"].as_f64().unwrap());
    assert!((expected / measured - 1.0).abs() < 1e-6, "{expected} {measured}");
    assert!(sample(&["--no-history", "--dry-run"])["expected"].is_null());
    let listed = place.run(&["history", "--json"]).succeeded().stdout();
    let listed: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((listed.len(), &listed[0]["stage"]), (1, &"denoise".into()));
    let table = place.run(&["history"]).succeeded().stdout();
    assert!(table.contains("latent, ") && table.contains("adaptive"), "{table}");
}

#[test]
fn a_sample_s_decisions_are_made_again_from_its_record() {
    let place = Place::new();
    let case = case("flux-original");
    let record = ["--record", "r.jsonl", "--record", "full"];
    for policy in ["adaptive", "comfyui", "diffusers", "gfx1151", "fixed"] {
        case.run(&place, &[&["-o", "out.latent", "--policy", policy], &record[..]].concat()).succeeded();
    }
    let replayed = place.run(&["policy", "replay", "r.jsonl", "--json"]).json();
    let totals = &replayed["totals"];
    assert_eq!(
        (&totals["records"], &totals["calls"], &totals["equal"]),
        (&5.into(), &10.into(), &10.into()),
        "{replayed}"
    );
    // A record that was changed is found out.
    let text = fs::read_to_string(place.path("r.jsonl")).unwrap();
    fs::write(place.path("changed.jsonl"), text.replace("\"weights\":\"packed\"", "\"weights\":\"expanded\"")).unwrap();
    place.run(&["policy", "replay", "changed.jsonl"]).failed(1, "differ from the record");
    let other = place.run(&["policy", "replay", "r.jsonl", "--policy", "fixed", "--json"]).json();
    assert_eq!(
        (&other["totals"]["decisions"], &other["decisions"][4]["verdict"]),
        (&5.into(), &"same".into()),
        "{other}"
    );
}

#[test]
fn every_way_to_run_a_sample_gives_the_same() {
    let case = case("wan-i2v-original");
    let place = Place::new();
    let sample = |name: &str, more: &[&str]| {
        case.run(&place, &[&["-o", name], more].concat()).succeeded();
        tensor(&place.path(name), "latent").1
    };
    let plain = sample("a.safetensors", &[]);
    let streamed = sample("b.safetensors", &["--set", "ahead=1"]);
    assert_eq!(plain, streamed, "weights that are read again are the same");
    let expanded = sample("c.safetensors", &["--set", "weights=expanded"]);
    assert!(largest_difference(&plain, &expanded) < 1e-4);
    let narrow = sample("d.safetensors", &["--set", "precision=mixed-bf16"]);
    let difference = largest_difference(&plain, &narrow);
    assert!(difference > 1e-5 && difference < 0.2, "{difference}");
    // Guidance away from the same conditioning leads nowhere else.
    let negative = &case.arguments[case.arguments.iter().position(|of| of == "--conditioning").unwrap() + 1];
    for order in ["guidance=in-turn", "guidance=together"] {
        let guided = sample("e.safetensors", &["--negative", negative, "--cfg", "3", "--set", order]);
        assert!(largest_difference(&plain, &guided) < 1e-4, "{order}");
    }
}

#[test]
fn a_pipelines_folder_names_the_boundary_of_its_experts() {
    let (place, case) = (Place::new(), case("wan22-t2v-experts"));
    let at = |name: &str| case.arguments.iter().position(|of| of == name);
    let mut rest = case.arguments.clone();
    rest.drain(at("--boundary").unwrap()..at("--boundary").unwrap() + 2);
    for folder in ["transformer", "transformer_2"] {
        let of = rest.iter().position(|of| of == "--transformer").unwrap();
        let file = rest.drain(of..of + 2).nth(1).unwrap();
        fs::create_dir_all(place.path("pipeline").join(folder)).unwrap();
        fs::copy(file, place.path("pipeline").join(folder).join("diffusion_pytorch_model.safetensors")).unwrap();
    }
    let sample = |boundary: Option<f64>, more: &[&str]| {
        let text = serde_json::json!({ "_class_name": "WanPipeline", "boundary_ratio": boundary }).to_string();
        fs::write(place.path("pipeline/model_index.json"), text).unwrap();
        let more = [&["--transformer", "pipeline", "-o", "out.safetensors"], more].concat();
        place.run(&rest.iter().map(String::as_str).chain(more).collect::<Vec<_>>()).succeeded();
        tensor(&place.path("out.safetensors"), "latent").1
    };
    let named = sample(Some(0.3), &[]);
    assert_eq!(named, sample(None, &["--boundary", "0.3"]));
    assert_eq!(named, sample(Some(0.9), &["--boundary", "0.3"]));
    assert_ne!(named, sample(None, &[]), "WAN's own");
}

#[test]
fn shards_without_an_index_are_taken_where_all_are_there() {
    let place = Place::new();
    let case = case("flux-original");
    let of = case.arguments.iter().position(|of| of == "--transformer").unwrap();
    let whole = fs::read(&case.arguments[of + 1]).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let mut names = tensors.names();
    names.sort();
    let write = |name: &str, names: &[&str]| {
        let of = names.iter().map(|name| (*name, tensors.tensor(name).unwrap()));
        fs::write(place.path(name), safetensors::serialize(of, None).unwrap()).unwrap();
    };
    let [first, second] = [1, 2].map(|number| format!("model/flux-0000{number}-of-00002.safetensors"));
    let sample = |transformer: &str| {
        let mut arguments = case.arguments.clone();
        arguments[of + 1] = transformer.into();
        arguments.extend(["-o".into(), "out.safetensors".into()]);
        place.run(&arguments)
    };
    sample(&case.arguments[of + 1]).succeeded();
    let expected = tensor(&place.path("out.safetensors"), "latent").1;

    fs::create_dir(place.path("model")).unwrap();
    write(&first, &names[..20]);
    for path in [&first, "model"] {
        sample(path)
            .failed(2, "one of 2 shards, of which flux-00002-of-00002.safetensors is missing: download it, too");
    }
    write(&second, &names[20..]);
    for path in [&first, &second, "model"] {
        sample(path).succeeded();
        assert_eq!(tensor(&place.path("out.safetensors"), "latent").1, expected, "{path}");
    }
    let listed = place.run(&["models", "model", "--json"]).json();
    assert_eq!((&listed["models"][0]["name"], listed["files"].as_array().unwrap().len()), (&"flux".into(), 1));
    // A tensor that is in both, or in none.
    write(&second, &names[19..]);
    sample(&second).failed(2, &format!("tensor {} is in this shard and in model/flux-00001-of-00002", names[19]));
    write(&second, &names[21..]);
    sample(&second).failed(2, "missing");
}

#[test]
fn what_does_not_go_together_is_refused_in_one_line() {
    let (flux, wan) = (case("flux-original"), case("wan-t2v-original"));
    let of =
        |case: &Case, name: &str| case.arguments[case.arguments.iter().position(|of| of == name).unwrap() + 1].clone();
    let (transformer, conditioning) = (of(&flux, "--transformer"), of(&flux, "--conditioning"));
    let [latent, _, vae] = bundled();
    let place = Place::new();
    let (shape, pooled) = tensor(conditioning.as_ref(), "pooled_prompt_embeds");
    let mut text = vec![0.0; 32];
    text[7] = f32::NAN;
    let tensors = [("prompt_embeds", vec![1, 1, 32], text), ("pooled_prompt_embeds", shape, pooled)];
    write(&place.path("nan.safetensors"), &tensors);
    write(&place.path("mask.safetensors"), &[("mask", vec![1, 1, 3, 3], vec![1.0; 9])]);
    let (shape, _) = tensor(latent.as_ref(), "latent_tensor");
    let mut bytes = vec![0.0; shape[2] * shape[3]];
    bytes[1] = 255.0;
    write(&place.path("bytes.safetensors"), &[("mask", vec![1, 1, shape[2], shape[3]], bytes)]);
    let cases: [(&[&str], &str); 17] = [
        (&["--transformer", &vae, "--conditioning", &conditioning, "--size", "64x64"], "a VAE, not a transformer"),
        (
            &["--transformer", &latent, "--conditioning", &conditioning, "--size", "64x64"],
            "a latent, not a transformer",
        ),
        (
            &["--transformer", &conditioning, "--conditioning", &conditioning, "--size", "64x64"],
            "conditioning, not a transformer",
        ),
        (
            &["--transformer", "nowhere.gguf", "--conditioning", &conditioning, "--size", "64x64"],
            "nowhere.gguf: can't be read",
        ),
        (
            &["--transformer", &transformer, "--conditioning", &of(&wan, "--conditioning"), "--size", "64x64"],
            "another model's conditioning",
        ),
        (
            &["--transformer", &transformer, "--conditioning", &transformer, "--size", "64x64"],
            "no tensor prompt_embeds in it",
        ),
        (
            &["--transformer", &transformer, "--conditioning", "nan.safetensors", "--size", "64x64"],
            "1 values that are NaN",
        ),
        (
            &["--transformer", &transformer, "--conditioning", &conditioning, "--size", "60x64"],
            "multiples of 8 pixels, as 64×64",
        ),
        (
            &["--transformer", &transformer, "--conditioning", &conditioning, "--size", "64x64", "--frames", "5"],
            "this transformer makes pictures",
        ),
        (&["--transformer", &transformer, "--conditioning", &conditioning], "no size: give --size or --latent"),
        (
            &[
                "--transformer",
                &transformer,
                "--conditioning",
                &conditioning,
                "--size",
                "64x64",
                "--sigmas",
                "1,0.5,0.6",
            ],
            "sigma 3 is 0.6 after 0.5",
        ),
        (
            &[
                "--transformer",
                &transformer,
                "--conditioning",
                &conditioning,
                "--latent",
                &latent,
                "--mask",
                "mask.safetensors",
            ],
            "a mask of [1, 1, 3, 3]",
        ),
        (
            &[
                "--transformer",
                &transformer,
                "--conditioning",
                &conditioning,
                "--latent",
                &latent,
                "--mask",
                "bytes.safetensors",
            ],
            "bytes.safetensors: a mask of 0…255: values in 0…1 were expected",
        ),
        (
            &["--transformer", &transformer, "--conditioning", &conditioning, "--size", "64x64", "--boundary", "0.9"],
            "a boundary between two experts",
        ),
        (
            &[
                "--transformer",
                &transformer,
                "--transformer",
                &of(&wan, "--transformer"),
                "--conditioning",
                &conditioning,
                "--size",
                "64x64",
            ],
            "of another architecture than",
        ),
        (
            &["--transformer", &transformer, "--conditioning", &conditioning, "--size", "64x64", "--set", "tile=3"],
            "has no setting 'tile'",
        ),
        (
            &[
                "--transformer",
                &transformer,
                "--conditioning",
                &conditioning,
                "--size",
                "64x64",
                "--memory-limit",
                "64KiB",
            ],
            "a memory limit of 64.0 KiB is too little",
        ),
    ];
    let before = place.files();
    for (arguments, words) in cases {
        let run = place.run(&[&["sample", "--device", "cpu", "-o", "out.latent"], arguments].concat());
        run.failed(2, words);
        assert_eq!(place.files(), before, "{arguments:?} left something");
    }
}

#[test]
fn quantized_transformers_agree_with_diffusers_however_weights_are_held() {
    let cases: Vec<Case> = list("quantized_sample_cases.json").iter().map(Case::new).collect();
    assert!(cases.len() >= 6);
    let ways: [&[&str]; 3] = [&[], &["--set", "weights=expanded"], &["--set", "ahead=1"]];
    for case in &cases {
        for way in ways {
            let more = way.iter().map(|&word| word.to_owned());
            let arguments = case.arguments.iter().cloned().chain(more).collect();
            agrees(&Case { name: format!("{} {way:?}", case.name), arguments, reference: case.reference.clone() });
        }
    }
}
