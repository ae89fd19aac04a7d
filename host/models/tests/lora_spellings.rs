//! The spellings of a LoRA's alpha and rank, in the header and beside the file: what counts, what
//! is said, and what is refused.

#![cfg(feature = "torch")]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tilewright_models::{Error, Lora};

/// Names and shapes of f64 tensors, and texts, as a safetensors file.
fn write(path: &Path, tensors: &[(&str, &[usize], f64)], texts: &Value) {
    let (mut header, mut data) = (json!({ "__metadata__": texts }), Vec::<u8>::new());
    for (name, shape, value) in tensors {
        let start = data.len();
        (0..shape.iter().product()).for_each(|_| data.extend(value.to_le_bytes()));
        header[*name] = json!({"dtype": "F64", "shape": shape, "data_offsets": [start, data.len()]});
    }
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    std::fs::write(path, bytes).unwrap();
}

/// A layer of rank 2 behind a prefix.
fn write_layer(path: &Path, prefix: &str, texts: &Value) {
    let [down, up] = ["A", "B"].map(|of| format!("{prefix}blocks.0.attn1.to_q.lora_{of}.weight"));
    write(path, &[(&down, &[2, 4], 0.5), (&up, &[4, 2], 0.25)], texts);
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// The one factor of a LoRA, and what is said.
fn scale(lora: Result<Lora, Error>) -> Result<(f64, String), String> {
    let lora = lora.map_err(|error| error.to_string())?;
    let [least, most] = lora.scales().unwrap();
    assert_eq!(least, most);
    Ok((least, lora.notes.join("; ")))
}

#[test]
fn one_complete_pair_counts_in_every_spelling() {
    let place = Place::new();
    let file = place.path("x.safetensors");
    let json = |value: Value| json!({ "format": "pt", "lora_adapter_metadata": value.to_string() });
    let cases = [
        ("transformer.", json!({"lora_alpha": "6", "rank": "2"}), 3.0),
        ("transformer.", json!({"lora_alpha": "6.0", "r": " 2 "}), 3.0),
        ("", json!({"lora_alpha": "6", "lora_rank": "2"}), 3.0),
        ("transformer.", json!({"transformer.lora_alpha": "6", "transformer.r": "2"}), 3.0),
        ("diffusion_model.", json!({"transformer.lora_alpha": "6", "transformer.r": "2"}), 3.0),
        ("base_model.model.", json!({"base_model.model.lora_alpha": "6", "base_model.model.r": "2"}), 3.0),
        ("transformer.", json!({"ss_network_alpha": "6", "ss_network_dim": "2"}), 3.0),
        ("transformer.", json!({"network_alpha": "6", "network_dim": "2"}), 3.0),
        ("transformer.", json!({"lora_alpha": "1", "ss_network_alpha": "6", "ss_network_dim": "2"}), 3.0),
        ("transformer.", json!({"alpha": "6", "rank": "2", "use_rslora": "True"}), 6.0 / 2_f64.sqrt()),
        ("transformer.", json(json!({"transformer.lora_alpha": 6, "transformer.r": 2})), 3.0),
        ("transformer.", json(json!({"lora_alpha": 6, "r": 2, "alpha_pattern": null})), 3.0),
        ("", json(json!({"lora_alpha": 6, "r": 2, "peft_type": "LORA"})), 3.0),
        ("", json(json!({"lora_alpha": 6, "r": 4, "rank_pattern": {"to_[qk]": 2}})), 3.0),
        (
            "",
            json(json!({"lora_alpha": 1, "r": 2, "alpha_pattern": {"to_k": 2, "^blocks\\..*to_q": 6, "to_q": 9}})),
            3.0,
        ),
        (
            "base_model.model.",
            json(json!({"lora_alpha": 1, "r": 2, "alpha_pattern": {"^blocks.0.attn1.to_q": 6}})),
            3.0,
        ),
        (
            "transformer_2.",
            json(json!({"transformer_2.lora_alpha": 6, "transformer_2.r": 2, "transformer.lora_alpha": 8})),
            3.0,
        ),
        ("", json!({"format": "pt", "lora_adapter_metadata": ""}), 1.0),
        ("", json!({"format": "pt"}), 1.0),
    ];
    for (prefix, texts, expected) in cases {
        write_layer(&file, prefix, &texts);
        let (found, said) = scale(Lora::open(&file, 1.0)).unwrap_or_else(|error| panic!("{texts}: {error}"));
        assert!((found - expected).abs() < 1e-9 && said.is_empty(), "{texts}: {found}, {said:?}");
    }
}

#[test]
fn contradictions_are_said_and_those_that_diffusers_and_peft_refuse_are_refused() {
    let place = Place::new();
    let file = place.path("x.safetensors");
    let peft = |value: Value| json!({ "lora_adapter_metadata": value.to_string() });
    // A factor that stands here counts, and the words are a note; without it the file is refused.
    let cases = [
        (json!({"lora_alpha": "6"}), Some(1.0), "lora_alpha 6 in its header stands without its rank"),
        (
            json!({"lora_alpha": "6", "rank": "4"}),
            Some(1.0),
            "lora_alpha in its header says a rank of 4, and blocks.0.attn1.to_q.lora_A.weight has 2",
        ),
        (
            json!({"lora_alpha": "6", "rank": "2", "ss_network_alpha": "1", "ss_network_dim": "2"}),
            Some(3.0),
            "lora_alpha in its header makes the factor 3, and ss_network_alpha in its header 0.5: the first counts",
        ),
        (
            json!({"lora_alpha": "1", "rank": "2", "lora_adapter_metadata": json!({"lora_alpha": 6, "r": 2}).to_string()}),
            Some(3.0),
            "lora_adapter_metadata in its header makes the factor 3, and lora_alpha in its header 0.5",
        ),
        (
            json!({
                "lora_alpha": "1", "rank": "2",
                "lora_adapter_metadata": json!({"transformer.lora_alpha": 6, "transformer.r": 2}).to_string()
            }),
            Some(3.0),
            "lora_adapter_metadata in its header makes the factor 3, and lora_alpha in its header 0.5",
        ),
        (json!({"lora_alpha": "six", "rank": "2"}), Some(1.0), "is \"six\", which is no number: it doesn't count"),
        (json!({"lora_alpha": "1e400", "rank": "2"}), Some(1.0), "is \"1e400\", which is no number"),
        (peft(json!({"lora_alpha": "six", "r": 2})), None, "is \"six\", which is no number"),
        (peft(json!([1, 2])), None, "is no description of peft's (it has no settings by name)"),
        (peft(json!({"transformer_2.lora_alpha": 6, "transformer_2.r": 2})), Some(1.0), "is for another part"),
        (peft(json!({"lora_alpha": 6, "r": 4})), None, "says a rank of 4, and blocks.0.attn1.to_q.lora_A.weight has 2"),
        // peft's own rank is 8 where none is written.
        (peft(json!({"lora_alpha": 6})), None, "says a rank of 8"),
        (peft(json!({"lora_alpha": 6, "r": 2, "use_dora": true})), None, "DoRA (use_dora), which is not supported"),
        (peft(json!({"lora_alpha": 6, "r": 2, "peft_type": "LOHA"})), None, "LOHA, which is not supported"),
        (peft(json!({"lora_alpha": 6, "r": 2, "init_lora_weights": "pissa_niter_4"})), None, "pissa_niter_4"),
        (peft(json!({"lora_alpha": 6, "r": 2, "alpha_pattern": {"to_(q": 1}})), None, "to_(q"),
        (peft(json!({"lora_alpha": 6, "r": 2, "alpha_pattern": {"to_q": "much"}})), None, "has no number for \"to_q\""),
        (json!({"lora_adapter_metadata": "{not json"}), None, "is no description of peft's"),
    ];
    for (texts, expected, words) in cases {
        write_layer(&file, "", &texts);
        let said = match (scale(Lora::open(&file, 1.0)), expected) {
            (Ok((found, said)), Some(expected)) if found == expected => said,
            (Err(error), None) if error.starts_with(&file.display().to_string()) => error,
            (found, _) => panic!("{texts}: {found:?}"),
        };
        assert!(said.contains(words) && !said.contains('\n'), "{texts}: {said}");
    }
}

#[test]
fn alphas_of_layers_go_before_the_header_and_must_agree_with_pefts_settings() {
    let place = Place::new();
    let file = place.path("x.safetensors");
    let read = |alpha: f64, texts: Value| {
        let tensors: [(&str, &[usize], f64); 3] = [
            ("x.to_q.lora_A.weight", &[2, 4], 0.5),
            ("x.to_q.lora_B.weight", &[4, 2], 0.5),
            ("x.to_q.alpha", &[], alpha),
        ];
        write(&file, &tensors, &texts);
        scale(Lora::open(&file, 1.0))
    };
    let peft = |alpha: f64| json!({"lora_adapter_metadata": json!({"lora_alpha": alpha, "r": 2}).to_string()});
    assert_eq!(read(6.0, json!({})), Ok((3.0, String::new())));
    assert_eq!(read(6.0, peft(6.0)), Ok((3.0, String::new())));
    // ComfyUI reads alphas of layers, and no settings.
    let unread = || Lora::open(&file, 1.0).unwrap().unread_factor();
    assert_eq!(unread(), Some(1.0));
    let error = read(6.0, peft(1.0)).unwrap_err();
    assert!(error.contains("x.to_q.alpha makes the factor 3, and lora_adapter_metadata in its header 0.5"), "{error}");
    let (found, said) = read(6.0, json!({"ss_network_alpha": "1", "ss_network_dim": "2"})).unwrap();
    assert!(found == 3.0 && said.contains("the first counts"), "{found} {said}");
    // A file that was made smaller keeps the header of the larger one.
    assert_eq!(read(6.0, json!({"ss_network_alpha": "1", "ss_network_dim": "64"})), Ok((3.0, String::new())));
    assert_eq!(read(6.0, json!({"ss_network_alpha": "1", "ss_network_dim": "Dynamic"})), Ok((3.0, String::new())));
}

#[test]
fn the_configuration_beside_a_file_is_read_where_it_is_the_files() {
    let place = Place::new();
    let open = |name: &str| scale(Lora::open(&place.path(name), 1.0));
    let config = place.path("adapter_config.json");
    let named = "adapter_model.safetensors";
    std::fs::write(&config, r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["to_q"]}"#).unwrap();
    write_layer(&place.path("style.safetensors"), "base_model.model.", &json!({"format": "pt"}));
    assert_eq!(open("style.safetensors"), Ok((3.0, String::new())));
    assert_eq!(open(""), Ok((3.0, String::new())));
    let file = Lora::file_of(&place.path("")).unwrap();
    assert_eq!((Lora::settings_of(&file), &file), (Some(config.clone()), &place.path("style.safetensors")));
    write_layer(&place.path("other.safetensors"), "", &json!({}));
    let (found, said) = open("style.safetensors").unwrap();
    assert!(
        found == 1.0 && said.contains("adapter_config.json beside it is not read: 2 files lie there"),
        "{found} {said}"
    );
    assert!(open("").unwrap_err().contains("2 of .safetensors"));
    // Beside a file that has peft's name, it is that one's.
    write_layer(&place.path(named), "base_model.model.", &json!({}));
    for name in ["", named] {
        assert_eq!(open(name), Ok((3.0, String::new())));
    }
    assert_eq!(open("other.safetensors"), Ok((1.0, String::new())));
    std::fs::write(&config, "{\"r\": 2,").unwrap();
    let error = open("").unwrap_err();
    assert!(error.contains("adapter_config.json beside it can't be read") && !error.contains('\n'), "{error}");
    // A folder of diffusers' is found by its file's name, too.
    let saved = place.path("saved");
    std::fs::create_dir(&saved).unwrap();
    write_layer(&saved.join("pytorch_lora_weights.safetensors"), "", &json!({"lora_alpha": "4", "rank": "2"}));
    write_layer(&saved.join("checkpoint.safetensors"), "", &json!({}));
    assert_eq!(open("saved"), Ok((2.0, String::new())));
    std::fs::create_dir(place.path("empty")).unwrap();
    assert!(open("empty").unwrap_err().contains("a folder without"));
}

#[test]
fn halves_for_two_experts_are_told_apart() {
    let place = Place::new();
    let file = place.path("x.safetensors");
    let names = |prefix: &str| ["A", "B"].map(|of| format!("{prefix}.blocks.0.attn1.to_q.lora_{of}.weight"));
    let ([a, b], [c, d]) = (names("transformer"), names("transformer_2"));
    let [text, _] = names("text_encoder");
    let tensors: [(&str, &[usize], f64); 5] =
        [(&a, &[2, 4], 0.5), (&b, &[4, 2], 0.5), (&c, &[3, 4], 0.5), (&d, &[4, 3], 0.5), (&text, &[2, 4], 0.5)];
    write(
        &file,
        &tensors,
        &json!({"transformer.lora_alpha": "6", "transformer.r": "2", "transformer_2.lora_alpha": "6", "transformer_2.r": "3"}),
    );
    let open = || Lora::open(&file, 1.0).unwrap();
    assert_eq!((open().layers(), open().second_keys(), open().text_keys), (2, 2, 1));
    assert_eq!((open().scales(), open().ranks()), (Some([2.0, 3.0]), Some([2, 3])));
    assert_eq!((open().unread_factor(), open().for_expert(0).unwrap().unread_factor()), (None, Some(3.0)));
    assert_eq!(open().for_expert(0).unwrap().ranks(), Some([2, 2]));
    assert_eq!(open().for_expert(1).unwrap().ranks(), Some([3, 3]));
    // One half alone is for its expert; one that is told apart by nothing is for both.
    write(&file, &tensors[2..4], &json!({}));
    assert!(open().for_expert(0).is_none());
    assert_eq!(open().for_expert(1).unwrap().ranks(), Some([3, 3]));
    write(&file, &tensors[..2], &json!({}));
    assert!([0, 1].into_iter().all(|expert| open().for_expert(expert).is_some()));
}
