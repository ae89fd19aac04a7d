//! Files of weights and latents as strangers save them: pickles, downloads that broke off, types
//! and kinds that are rare, each read as it is meant or refused by its right name.

#[path = "foreign_files/weights.rs"]
mod weights;

use std::fs;

use crate::program::{Place, Run, fixture, largest_difference};
use weights::{Weights, floats};

fn vae() -> Weights {
    Weights::read(&fixture("flux-bfl/ae.safetensors"))
}

/// The picture that a VAE decodes a fixture's latent to, in f32.
fn decoded(place: &Place, latent: &str, vae: &str) -> (Vec<usize>, Vec<f32>) {
    let options = ["--policy", "fixed", "--set", "precision=f32", "-o", "out.safetensors"];
    place.decode(&[latent, "--vae", vae], &options).succeeded();
    let sample = place.sample("out.safetensors");
    fs::remove_file(place.path("out.safetensors")).unwrap();
    sample
}

fn inspected(place: &Place, file: &str) -> String {
    place.run(&["inspect", file]).succeeded().stdout()
}

#[test]
fn pickles_decode_as_the_same_weights_in_safetensors_do() {
    let place = Place::new();
    let latent = fixture("flux-bfl/latent.safetensors");
    let expected = decoded(&place, &latent, &fixture("flux-bfl/ae.safetensors"));
    for (name, levels) in [("ae.pth", &[][..]), ("ae.ckpt", &["state_dict"]), ("ae.bin", &["module", "model"])] {
        let file = place.write(name, vae().pickled(levels));
        assert_eq!(decoded(&place, &latent, &file), expected, "{name}");
        let text = inspected(&place, &file);
        assert!(text.contains("KL autoencoder (VAE)") && text.contains("pickle"), "{text}");
    }
    let latents = place.write("latent.pt", Weights::read(&latent).pickled(&[]));
    assert_eq!(decoded(&place, &latents, &fixture("flux-bfl/ae.safetensors")), expected);
    // WAN's own file, whose latents are of another kind.
    let wan = Weights::read(&fixture("wan21-original/Wan2.1_VAE.safetensors"));
    let wan = place.write("Wan2.1_VAE.pth", wan.pickled(&[]));
    let latent = fixture("wan21-original/latent.safetensors");
    let expected = decoded(&place, &latent, &fixture("wan21-original/Wan2.1_VAE.safetensors"));
    assert_eq!(decoded(&place, &latent, &wan), expected);
}

#[test]
fn pickles_are_listed_among_models_and_found_in_folders() {
    let place = Place::new();
    fs::create_dir_all(place.path("models/vae")).unwrap();
    place.write("models/vae/ae.pth", vae().pickled(&["state_dict"]));
    place.write("models/vae/other.bin", b"some other program's");
    let report = place.run(&["models", "models", "--files", "--json"]).json();
    let files = report["files"].as_array().unwrap();
    assert_eq!(files.len(), 1, "{report}");
    assert!(files[0]["path"].as_str().unwrap().ends_with("vae/ae.pth"), "{report}");
    assert_eq!((&files[0]["name"], &files[0]["contents"][0]["part"]), (&"ae".into(), &"vae".into()), "{report}");
    fs::create_dir_all(place.path("folder")).unwrap();
    place.write("folder/diffusion_pytorch_model.bin", vae().pickled(&[]));
    let latent = fixture("flux-bfl/latent.safetensors");
    let expected = decoded(&place, &latent, &fixture("flux-bfl/ae.safetensors"));
    assert_eq!(decoded(&place, &latent, "folder"), expected);
}

#[test]
fn a_pickle_runs_nothing() {
    let place = Place::new();
    let command = format!("touch {}", place.path("ran").display());
    let call =
        [&b"\x80\x02cposix\nsystem\nX"[..], &(command.len() as u32).to_le_bytes(), command.as_bytes(), b"\x85R."]
            .concat();
    let file = place.write("x.pth", weights::archive(&[("x/data.pkl".into(), call)]));
    let latent = fixture("flux-bfl/latent.safetensors");
    for run in [place.run(&["inspect", &file]), place.decode(&[latent.as_str(), "--vae", &file], &["-o", "out.png"])] {
        run.failed(2, "posix.system is not read: of a pickle only tensors");
    }
    assert_eq!(place.files(), ["x.pth"]);
}

/// The file with zeros from its middle on.
fn broken(mut file: Vec<u8>) -> Vec<u8> {
    let half = file.len() / 2;
    file[half..].fill(0);
    file
}

#[test]
fn downloads_that_broke_off_with_the_full_length_are_named() {
    let place = Place::new();
    let read = |name: &str| fs::read(fixture(name)).unwrap();
    for (name, whole) in [
        ("vae.safetensors", read("flux-bfl/ae.safetensors")),
        ("transformer.safetensors", read("sample-wan-t2v-original/wan-tiny.safetensors")),
        ("transformer.gguf", read("lora/flux-tiny.gguf")),
        ("encoder.safetensors", read("text-clip-l-single/clip_l.safetensors")),
        ("vae.pth", vae().pickled(&[])),
    ] {
        let file = place.write(name, broken(whole));
        place.run(&["inspect", &file]).failed(2, "the download broke off");
    }
    let latent = fixture("flux-bfl/latent.safetensors");
    let run = place.decode(&[latent.as_str(), "--vae", "vae.safetensors"], &["-o", "out.png"]);
    run.failed(2, "tensors are all zero: the download broke off at byte");
}

#[test]
fn zeros_by_design_are_no_accusation() {
    let place = Place::new();
    // Adapters as they are before training, with the halves that are zero at the end.
    let half =
        |name: &str, shape: [usize; 2], value: f32| (name.to_owned(), "F32", shape.to_vec(), vec![value; 64 * 64]);
    let layer = "transformer.transformer_blocks.0.attn.to_q";
    let tensors = vec![
        half(&format!("{layer}.lora_A.weight"), [64, 64], 0.5),
        half(&format!("{layer}.lora_B.weight"), [64, 64], 0.0),
    ];
    let lora = place.write("lora.safetensors", Weights::of_floats(tensors).safetensors());
    let text = inspected(&place, &lora);
    assert!(text.contains("LoRA"), "{text}");
    // A black clip.
    let frames = vec![("sample".to_owned(), "F32", vec![1, 3, 5, 16, 16], vec![0.0; 3 * 5 * 256])];
    let frames = place.write("frames.safetensors", Weights::of_floats(frames).safetensors());
    assert!(inspected(&place, &frames).contains("raw frames"));
}

#[test]
fn wide_and_narrow_types_decode_to_their_values() {
    let place = Place::new();
    let latent = fixture("flux-bfl/latent.safetensors");
    let plain = fixture("flux-bfl/ae.safetensors");
    let expected = decoded(&place, &latent, &plain);
    let wide = place.write("f64.safetensors", vae().stored_as("F64", |value| f64::from(value).to_le_bytes().into()));
    assert_eq!(decoded(&place, &latent, &wide), expected);
    let latent_wide = Weights::read(&latent).stored_as("F64", |value| f64::from(value).to_le_bytes().into());
    let latent_wide = place.write("latent.safetensors", latent_wide);
    assert_eq!(decoded(&place, &latent_wide, &plain), expected);
    // Values of eight bits, against the same values in f32.
    let narrow = place.write("fp8.safetensors", vae().stored_as("F8_E4M3", |value| vec![weights::to_e4m3(value)]));
    let same = vae().stored_as("F32", |value| weights::of_e4m3(weights::to_e4m3(value)).to_le_bytes().into());
    let same = place.write("f32.safetensors", same);
    let (found, expected) = (decoded(&place, &latent, &narrow), decoded(&place, &latent, &same));
    assert_eq!(found.0, expected.0);
    assert!(largest_difference(&found.1, &expected.1) < 1e-6);
    assert!(!inspected(&place, &narrow).contains("can't run"));
}

/// A file of the tensors of a fixture's, changed.
fn changed(place: &Place, name: &str, change: impl Fn(&mut Weights)) -> String {
    let usual = if name.contains("flux") { "flux1-tiny" } else { "wan-tiny" };
    let mut weights = Weights::read(&fixture(&format!("{name}/{usual}.safetensors")));
    change(&mut weights);
    place.write("x.safetensors", weights.safetensors())
}

/// Every matrix of a block with other tensors in its place, by the name without `weight`.
fn requantized(weights: &mut Weights, parts: &[(&str, &str)]) {
    let is_matrix =
        |name: &str, shape: &[usize]| name.contains("blocks") && name.ends_with(".weight") && shape.len() == 2;
    let names: Vec<String> =
        weights.tensors().filter(|(name, shape)| is_matrix(name, shape)).map(|(name, _)| name.to_owned()).collect();
    for name in names {
        weights.remove(&name);
        let layer = name.strip_suffix("weight").unwrap();
        parts.iter().for_each(|(end, dtype)| weights.add(&format!("{layer}{end}"), dtype, &[64, 64]));
    }
}

#[test]
fn files_that_can_not_be_used_get_their_right_name() {
    let (flux, wan) = ("sample-flux-original", "sample-wan-i2v-original");
    let quantized = |parts: &'static [(&str, &str)]| move |weights: &mut Weights| requantized(weights, parts);
    let inputs = |width: usize| move |weights: &mut Weights| weights.replace("img_in.weight", "F16", &[128, width]);
    type Change = Box<dyn Fn(&mut Weights)>;
    let cases: Vec<(&str, Change, &str)> = vec![
        (flux, Box::new(inputs(384)), "Flux.1 Fill's transformer"),
        (flux, Box::new(inputs(128)), "Flux.1 Depth's or Canny's transformer"),
        (
            wan,
            Box::new(|weights| weights.add("img_emb.emb_pos", "F32", &[1, 514, 64])),
            "first and last frame to video",
        ),
        (
            flux,
            Box::new(quantized(&[("qweight", "I8"), ("wscales", "BF16"), ("smooth_factor", "BF16")])),
            "quantized as SVDQuant (Nunchaku)",
        ),
        (flux, Box::new(quantized(&[("weight", "I8"), ("SCB", "F32")])), "quantized as bitsandbytes' INT8"),
        (flux, Box::new(quantized(&[("weight._data", "I8"), ("weight._scale", "F32")])), "quantized as quanto"),
        (
            flux,
            Box::new(quantized(&[("weight", "U8"), ("weight_scale", "F8_E4M3"), ("weight_scale_2", "F32")])),
            "quantized as NVFP4 without ComfyUI's description",
        ),
    ];
    for (name, change, words) in cases {
        let place = Place::new();
        let file = changed(&place, name, change);
        let text = inspected(&place, &file);
        assert!(text.contains(words) && text.contains("can't run"), "{words}: {text}");
        let conditioning = fixture(&format!("{name}/conditioning.safetensors"));
        let words_of_run = ["sample", "--transformer", &file, "--conditioning", &conditioning, "--size", "64x64"];
        let run: Run = place.run(&[&words_of_run[..], &["--device", "cpu", "-o", "out.latent"]].concat());
        run.failed(2, words);
    }
}

#[test]
fn autoencoders_that_can_not_be_used_get_their_right_name() {
    type Shapes = &'static [(&'static str, &'static [usize])];
    let cases: [(Shapes, &str); 6] = [
        (
            &[("1.weight", &[64, 16, 3, 3]), ("3.conv.0.weight", &[64, 64, 3, 3]), ("19.weight", &[3, 64, 3, 3])],
            "TAEF1",
        ),
        (&[("1.weight", &[64, 4, 3, 3]), ("3.conv.0.weight", &[64, 64, 3, 3])], "TAESD's decoder"),
        (&[("decoder.layers.0.weight", &[64, 16, 3, 3]), ("decoder.layers.3.conv.0.weight", &[64, 64, 3, 3])], "TAEF1"),
        (&[("taesd_decoder.1.weight", &[64, 4, 3, 3])], "TAESD, a tiny autoencoder"),
        (&[("decoder.1.weight", &[64, 16, 3, 3]), ("decoder.3.conv.0.weight", &[64, 64, 3, 3])], "taew2_1"),
        (
            &[
                ("decoder.conv_in.conv.weight", &[128, 16, 3, 3, 3]),
                ("decoder.mid_block.attentions.0.to_q.weight", &[128, 128]),
                ("encoder.conv_in.conv.weight", &[32, 3, 3, 3, 3]),
            ],
            "HunyuanVideo's autoencoder",
        ),
    ];
    let place = Place::new();
    let latent = fixture("flux-bfl/latent.safetensors");
    for (tensors, words) in cases {
        let mut weights = Weights::default();
        tensors.iter().for_each(|(name, shape)| weights.add(name, "F16", shape));
        let file = place.write("x.safetensors", weights.safetensors());
        let text = inspected(&place, &file);
        assert!(text.contains(words), "{words}: {text}");
        let expected = if words.starts_with('H') { words } else { "a tiny autoencoder" };
        place.decode(&[latent.as_str(), "--vae", &file], &["-o", "out.png"]).failed(2, expected);
    }
}

#[test]
fn tensors_without_values_refuse_no_file() {
    let place = Place::new();
    let file = changed(&place, "sample-flux-original", |weights| {
        weights.add("ema_decay", "F32", &[0]);
        weights.add("__index_timestep_zero__", "F32", &[0]);
    });
    assert!(!inspected(&place, &file).contains("can't run"));
    let mut own = vae();
    own.add("decoder.marker", "F32", &[0, 4]);
    let own = place.write("vae.safetensors", own.safetensors());
    let latent = fixture("flux-bfl/latent.safetensors");
    let expected = decoded(&place, &latent, &fixture("flux-bfl/ae.safetensors"));
    assert_eq!(decoded(&place, &latent, &own), expected);
    let mut marked = Weights::read(&latent);
    marked.add("latent_format", "F32", &[0]);
    let marked = place.write("marked.safetensors", marked.safetensors());
    assert_eq!(decoded(&place, &marked, &own), expected);
}

#[test]
fn letters_of_a_number_in_an_inputs_name_are_the_files_own() {
    let place = Place::new();
    let values = floats(16 * 8 * 8, |place| (place % 17) as f32 / 17.0 - 0.5);
    let latents = Weights::of_floats(vec![("latent".to_owned(), "F32", vec![1, 16, 8, 8], values)]).safetensors();
    place.write("a{n}.latent", &latents);
    let vae = fixture("flux-bfl/ae.safetensors");
    let run = |output: &[&str]| place.decode(&["a{n}.latent", "--vae", &vae], output).succeeded().stdout();
    for _ in 0..2 {
        run(&[]);
        run(&["-o", "{name}-{n}.png"]);
    }
    assert_eq!(place.files(), ["a{n}-1.png", "a{n}-2.png", "a{n}.latent", "a{n}.png"]);
    fs::copy(place.path("a{n}.png"), place.path("b{n}.png")).unwrap();
    let vae = fixture("sd15-ldm/vae-ft-mse.safetensors");
    for _ in 0..2 {
        place.run(&["encode", "b{n}.png", "--vae", &vae, "--device", "cpu"]).succeeded();
    }
    assert!(place.path("b{n}.latent").is_file(), "{:?}", place.files());
}

#[test]
fn a_text_encoder_is_called_one() {
    let place = Place::new();
    for (name, words) in [
        ("text-clip-l-unprefixed/model.safetensors", "kind"),
        ("text-clip-l-single/clip_l.safetensors", "kind"),
        ("text-umt5/model.safetensors", "UMT5"),
    ] {
        let text = inspected(&place, &fixture(name));
        let kind = text.lines().find_map(|line| line.strip_prefix("kind")).unwrap();
        assert!(kind.contains("text encoder"), "{name}: {text}");
        assert!(text.contains(words) && text.contains("a vocabulary of "), "{text}");
        assert_eq!(text.contains("chunks of a prompt of 77 tokens"), name.contains("clip"), "{text}");
    }
}
