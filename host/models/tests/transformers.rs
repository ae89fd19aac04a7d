//! Flux and WAN against diffusers (`tests/fixtures/make_transformer_fixtures.py`): one forward, and
//! four steps of Euler. The same with LoRAs, and on GGUF files (`make_lora_fixtures.py`), and with
//! LoRAs whose factors stand in settings (`make_lora_settings_fixtures.py`).

#![cfg(feature = "torch")]

use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tilewright_fixtures::fixture;
use tilewright_models::{
    BlockChoice, Checkpoint, ComputeFormat, DenoiserFile, Error, Inputs, LoadedDenoiser, Lora, LoraFit,
    transformer::Residency,
};

fn list(file: &str, what: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture(file)).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all[what].as_array().unwrap().clone()
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn open(path: &Value) -> Checkpoint {
    Checkpoint::open(&fixture(path.as_str().unwrap())).unwrap()
}

fn tensor(file: &Checkpoint, name: &str) -> Option<Tensor> {
    let shape = file.shape(name)?.to_vec();
    Some(file.load(name, &shape, Kind::Float, Device::Cpu).unwrap())
}

/// A case's networks and inputs.
struct Case {
    high: LoadedDenoiser,
    low: Option<LoadedDenoiser>,
    boundary: f64,
    conditioning: Checkpoint,
    guidance: Option<f32>,
    noise: Tensor,
    held: Option<[Tensor; 2]>,
}

impl Case {
    fn new(case: &Value, residency: Residency) -> Self {
        let load = |path: &Value, expert: usize| {
            let mut file = DenoiserFile::open(open(path)).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(Some(file.parameters), case["parameters"].as_u64(), "{}", case["name"]);
            for lora in case["loras"].as_array().into_iter().flatten() {
                let path = fixture(lora["path"].as_str().unwrap());
                let opened = Lora::open(&path, lora["strength"].as_f64().unwrap()).unwrap();
                assert!(opened.notes.is_empty(), "{}: {:?}", case["name"], opened.notes);
                let fit = file.add(opened.for_expert(expert).unwrap());
                let fit = fit.unwrap_or_else(|error| panic!("{}: {error}", case["name"]));
                if lora["keys_in_file"].is_null() {
                    assert_eq!((fit.fitting, fit.first_without), (fit.keys, None), "{}", case["name"]);
                    continue;
                }
                let count = |what: &str| lora[what].as_u64().unwrap() as usize;
                let without = strings(&lora["keys_that_do_not_fit"]);
                let expected = LoraFit {
                    fitting: count("keys_that_fit"),
                    keys: count("keys_in_file") - count("keys_of_text_encoders"),
                    first_without: without.into_iter().min().map(str::to_owned),
                    text_keys: count("keys_of_text_encoders"),
                };
                assert_eq!(fit, expected, "{}", case["name"]);
            }
            let mut last = 0.0;
            let network = file.load(ComputeFormat::single(), Device::Cpu, residency, &mut |share| {
                assert!((last..1.0).contains(&share), "{share} after {last}");
                last = share;
                Ok(())
            });
            assert!(last > 0.5, "{last}");
            let cancelled =
                file.load(ComputeFormat::single(), Device::Cpu, residency, &mut |share| match share > 0.3 {
                    true => Err(Error::Cancelled),
                    false => Ok(()),
                });
            assert!(matches!(cancelled, Err(Error::Cancelled)));
            network.unwrap()
        };
        let held = case["held"].as_str().map(|_| open(&case["held"]));
        Self {
            high: load(&case["transformer"], 0),
            low: case["low_noise"].as_str().map(|_| load(&case["low_noise"], 1)),
            boundary: case["boundary"].as_f64().unwrap_or(0.0),
            conditioning: open(&case["conditioning"]),
            guidance: case["guidance"].as_f64().map(|guidance| guidance as f32),
            noise: tensor(&open(&case["noise"]), "noise").unwrap(),
            held: held.map(|held| ["given", "mask"].map(|name| tensor(&held, name).unwrap())),
        }
    }

    fn velocity(&self, latents: &Tensor, sigma: f64) -> Tensor {
        let network = self.low.as_ref().filter(|_| sigma < self.boundary).unwrap_or(&self.high);
        let of = |name: &str| tensor(&self.conditioning, name);
        let (text, pooled, image) = (of("prompt_embeds").unwrap(), of("pooled_prompt_embeds"), of("image_embeds"));
        let inputs = Inputs { text: &text, pooled: pooled.as_ref(), image: image.as_ref(), guidance: self.guidance };
        let size = latents.size();
        let frames = if size.len() == 5 { size[2] } else { 1 };
        let context = network.prepare(&inputs, [frames, size[size.len() - 2], size[size.len() - 1]]).unwrap();
        let input = match of("condition") {
            Some(condition) => Tensor::cat(&[latents, &condition], 1),
            None => latents.shallow_clone(),
        };
        // A frame that is held has no noise.
        let mut sigmas = vec![sigma as f32; if self.held.is_some() { frames as usize } else { 1 }];
        if self.held.is_some() {
            sigmas[0] = 0.0;
        }
        let mut blocks = 0;
        let velocity = network.velocity(&input, &sigmas, &context, &mut |block, tokens| {
            assert_eq!((block, tokens.dim()), (blocks, 3));
            blocks += 1;
            Ok(BlockChoice::Run)
        });
        assert!(blocks > 0);
        velocity.unwrap()
    }

    /// Latents with the held frame in its place.
    fn with_held(&self, latents: Tensor) -> Tensor {
        match &self.held {
            Some([given, mask]) => (mask.ones_like() - mask) * given + mask * latents,
            None => latents,
        }
    }

    fn sample(&self, sigmas: &[f64]) -> Tensor {
        let mut latents = self.noise.shallow_clone();
        for pair in sigmas.windows(2) {
            let velocity = self.velocity(&self.with_held(latents.shallow_clone()), pair[0]);
            latents += velocity * (pair[1] - pair[0]);
        }
        self.with_held(latents)
    }
}

/// The largest difference as a share of what is allowed.
fn share(found: &Tensor, expected: &Tensor, tolerance: f64) -> f64 {
    assert_eq!(found.size(), expected.size());
    let difference = f64::try_from((found - expected).abs().max()).unwrap();
    difference / (tolerance * f64::try_from(expected.abs().max()).unwrap().max(1.0))
}

#[test]
fn every_case_agrees_with_diffusers() {
    let _no_grad = tch::no_grad_guard();
    let cases = list("transformer_cases.json", "cases");
    assert!(cases.len() >= 12);
    for residency in [Residency::Mapped, Residency::Packed, Residency::Expanded] {
        for case in &cases {
            let sigmas: Vec<f64> =
                case["sigmas"].as_array().unwrap().iter().map(|sigma| sigma.as_f64().unwrap()).collect();
            let reference = open(&case["reference"]);
            let of = Case::new(case, residency);
            let velocity = of.velocity(&of.with_held(of.noise.shallow_clone()), sigmas[0]);
            let velocity = share(&velocity, &tensor(&reference, "velocity").unwrap(), 1e-4);
            let sample = share(&of.sample(&sigmas), &tensor(&reference, "sample").unwrap(), 1e-4);
            println!("{} {residency:?}: velocity {velocity:.3}, sample {sample:.3} of the tolerance", case["name"]);
            assert!(velocity < 1.0 && sample < 1.0, "{}: {velocity} and {sample} of the tolerance", case["name"]);
        }
    }
}

#[test]
fn loras_in_every_layout_lead_where_diffusers_and_comfyui_say() {
    let _no_grad = tch::no_grad_guard();
    let cases = list("lora_cases.json", "cases");
    assert!(cases.len() >= 25);
    for residency in [Residency::Mapped, Residency::Packed, Residency::Expanded] {
        for case in &cases {
            let sigma = case["sigmas"][0].as_f64().unwrap();
            let of = Case::new(case, residency);
            let expected = tensor(&open(&case["reference"]), "velocity").unwrap();
            let found = share(&of.velocity(&of.noise, sigma), &expected, 1e-4);
            println!("{} {residency:?}: velocity {found:.3} of the tolerance", case["name"]);
            assert!(found < 1.0, "{}: {found} of the tolerance", case["name"]);
        }
    }
}

#[test]
fn factors_in_settings_lead_where_diffusers_and_peft_do() {
    let _no_grad = tch::no_grad_guard();
    let cases = list("lora_settings_cases.json", "cases");
    assert!(cases.len() >= 9);
    for residency in [Residency::Packed, Residency::Expanded] {
        for case in &cases {
            let of = Case::new(case, residency);
            let expected = tensor(&open(&case["reference"]), "velocity").unwrap();
            let found = share(&of.velocity(&of.noise, case["sigmas"][0].as_f64().unwrap()), &expected, 1e-4);
            println!("{} {residency:?}: velocity {found:.3} of the tolerance", case["name"]);
            assert!(found < 1.0, "{}: {found} of the tolerance", case["name"]);
        }
    }
}

#[test]
fn each_expert_gets_its_own_half_of_a_file_for_both() {
    let _no_grad = tch::no_grad_guard();
    let text = std::fs::read_to_string(fixture("lora_settings_cases.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let case = &all["experts"];
    let (of, reference) = (Case::new(case, Residency::Mapped), open(&case["reference"]));
    for (name, step) in [("velocity", 0), ("low", 2)] {
        let sigma = case["sigmas"][step].as_f64().unwrap();
        assert_eq!(sigma < of.boundary, name == "low");
        let found = share(&of.velocity(&of.noise, sigma), &tensor(&reference, name).unwrap(), 1e-4);
        assert!(found < 1.0, "{name}: {found} of the tolerance");
    }
}

#[test]
fn loras_that_cannot_be_applied_are_refused_by_name() {
    let refusals = list("lora_cases.json", "refusals");
    assert!(refusals.len() >= 10);
    for refusal in refusals {
        let path = fixture(refusal["path"].as_str().unwrap());
        let mut file = DenoiserFile::open(open(&refusal["transformer"])).unwrap();
        let lora = Checkpoint::open(&path).map_err(Into::into).and_then(|file| Lora::read(file, 1.0));
        let error = lora.and_then(|lora| file.add(lora)).unwrap_err().to_string();
        println!("{error}");
        assert!(error.starts_with(&path.display().to_string()) && !error.contains('\n'), "{error}");
        let at_fault = strings(&refusal["keys_at_fault"]);
        let is_named = at_fault.iter().any(|key| error.contains(key));
        let other_model = error.contains("a LoRA for another model: none of its");
        assert!(is_named || other_model, "{}: {error} names none of {at_fault:?}", refusal["name"]);
    }
}
