//! LoRAs of samples: agreement with diffusers, experts, files that do not fit.

use super::*;

#[test]
fn loras_agree_with_diffusers_on_packed_weights_too() {
    let cases: Vec<Value> = list("lora_cases.json").into_iter().filter(|case| !case["latent_max"].is_null()).collect();
    assert!(cases.len() >= 6);
    cases.iter().map(Case::new).for_each(|case| agrees(&case));
}

#[test]
fn loras_are_checked_and_what_does_not_fit_is_said() {
    let place = Place::new();
    let flux = case("flux-original");
    let lora = |name: &str| fixture(&format!("lora/{name}.safetensors"));
    let refused = [
        (lora("refuse-sdxl"), "a LoRA for another model: none of its 6 keys fit"),
        (lora("refuse-dora"), "DoRA (dora_scale), which is not supported"),
        (lora("wan-kohya"), "a LoRA for another model"),
        (format!("{}:nan", lora("flux-peft")), "FILE:STRENGTH"),
        (format!("{}@low", lora("flux-peft")), "there is one transformer"),
        ("nowhere.safetensors:0.5".into(), "nowhere.safetensors: can't be read"),
        (flux.arguments[4].clone(), "no LoRA"),
    ];
    for (file, words) in refused {
        flux.run(&place, &["--lora", &file, "-o", "out.latent"]).failed(2, words);
        assert!(place.files().is_empty());
    }
    let small = case("flux-diffusers");
    let run = small.run(&place, &["--lora", &lora("flux-kohya-clip"), "-o", "out.latent"]);
    run.succeeded();
    assert!(run.stderr().contains("6 keys are a text encoder's"), "{}", run.stderr());
    let partial = Case::new(list("lora_cases.json").iter().find(|case| case["name"] == "wan-partial").unwrap());
    let run = partial.run(&place, &["-o", "part.latent"]);
    run.succeeded();
    assert!(run.stderr().contains("4 of its 9 keys have no place in the transformer"), "{}", run.stderr());
    // A LoRA of one expert leaves the other as it is.
    let experts = case("wan22-t2v-experts");
    let with = |name: &str, more: &[&str]| {
        experts.run(&place, &[&["-o", name], more].concat()).succeeded();
        tensor(&place.path(name), "latent").1
    };
    let wan = lora("wan-kohya");
    let (both, high) = (format!("{wan}:0.5"), format!("{wan}:0.5@high"));
    let low = format!("{wan}:0.5@low");
    let together = with("a.safetensors", &["--lora", &both]);
    assert_eq!(together, with("b.safetensors", &["--lora", &high, "--lora", &low]));
    assert_ne!(together, with("c.safetensors", &["--lora", &high]));
    assert_ne!(with("d.safetensors", &[]), with("e.safetensors", &["--lora", &low]));
}

#[test]
fn a_lora_for_both_experts_goes_to_both_and_one_in_a_folder_is_found() {
    let place = Place::new();
    let both = fixture("lora-settings/experts/pytorch_lora_weights.safetensors");
    let experts = case("wan22-t2v-experts");
    let with = |lora: &[&str]| {
        let loras = lora.iter().flat_map(|lora| ["--lora", *lora]);
        let run = experts.run(&place, &[&["-o", "out.safetensors"], &loras.collect::<Vec<_>>()[..]].concat());
        run.succeeded();
        assert!(!run.stderr().contains("keys"), "{}", run.stderr());
        tensor(&place.path("out.safetensors"), "latent").1
    };
    let (high, low) = (format!("{both}@high"), format!("{both}@low"));
    let together = with(&[&both]);
    assert_eq!(together, with(&[&high, &low]));
    let [none, high, low] = [with(&[]), with(&[&high]), with(&[&low])];
    assert!([&none, &high, &low].iter().all(|other| **other != together) && high != low && none != low);
    // One transformer leaves the second half out, and refuses a file that holds it alone.
    let alone = case("wan-t2v-original");
    let run = alone.run(&place, &["--lora", &both, "-o", "one.safetensors"]);
    run.succeeded();
    assert!(run.stderr().contains("keys are for a second expert (transformer_2) and left out"), "{}", run.stderr());
    let bytes = fs::read(&both).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let renamed =
        String::from_utf8(bytes[8..8 + length].to_vec()).unwrap().replace("\"transformer.", "\"text_encoder.");
    let renamed = [&(renamed.len() as u64).to_le_bytes()[..], renamed.as_bytes(), &bytes[8 + length..]].concat();
    let second = place.write("second.safetensors", renamed);
    alone.run(&place, &["--lora", &second, "-o", "x.safetensors"]).failed(2, "for the expert of low noise alone");
    let run = experts.run(&place, &["--lora", &format!("{second}@high"), "-o", "x.safetensors"]);
    run.failed(2, "its keys are for the other one");
    // A folder, as peft saves it.
    let flux = case("flux-diffusers");
    let folder = fixture("lora-settings/peft");
    for (lora, output) in
        [(&folder, "a.safetensors"), (&format!("{folder}/adapter_model.safetensors"), "b.safetensors")]
    {
        flux.run(&place, &["--lora", &format!("{lora}:0.5"), "-o", output]).succeeded();
    }
    let [a, b] = ["a.safetensors", "b.safetensors"].map(|name| tensor(&place.path(name), "latent").1);
    assert_eq!(a, b);
    let text = place.run(&["inspect", &folder]).succeeded().stdout();
    assert!(text.contains("of rank 2, times 3"), "{text}");
}
