//! The commands beside `decode`.

use crate::program::{Place, bundled, fixture};

#[test]
fn help_is_as_published() {
    let place = Place::new();
    for (name, arguments) in [
        ("help", &["--help"][..]),
        ("help-decode", &["decode", "--help"]),
        ("help-encode", &["encode", "--help"]),
        ("help-generate", &["generate", "--help"]),
        ("help-embed", &["embed", "--help"]),
        ("help-sample", &["sample", "--help"]),
        ("policy-list", &["policy", "list"]),
    ] {
        let run = place.run(arguments);
        insta::assert_snapshot!(name, run.succeeded().stdout());
    }
}

#[test]
fn every_shipped_policy_can_be_looked_into() {
    let place = Place::new();
    let list = place.run(&["policy", "list", "--json"]).json();
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|policy| policy["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"]);
    for name in names {
        let report = place.run(&["policy", "inspect", name, "--json"]).json();
        assert_eq!(report["name"], name);
        assert_eq!(report["contract"], "0.2.0");
        let stages = match name {
            "gfx1151" => &["decode", "denoise"][..],
            "adaptive" | "fixed" => &["decode", "encode", "denoise", "text"],
            _ => &["decode", "encode", "denoise"],
        };
        assert_eq!(report["stages"], serde_json::json!(stages));
        for field in ["version", "summary", "settings", "digest", "imports", "limits"] {
            assert!(!report[field].is_null(), "{name} has no {field}: {report}");
        }
        let text = place.run(&["policy", "inspect", name]).succeeded().stdout();
        assert!(text.contains("sha256:") && text.contains("0.2.0") && text.contains(&stages.join(", ")), "{text}");
    }
}

#[test]
fn inspect_says_what_a_file_is() {
    let place = Place::new();
    let report = place.run(&["inspect", &fixture("flux-bfl/ae.safetensors"), "--json"]).json();
    assert_eq!(report["kind"], "kl-autoencoder");
    assert_eq!(report["layout"], "ldm");
    assert_eq!(report["decoder"]["missing"], serde_json::json!([]));
    let [latent, _, vae] = bundled();
    assert_eq!(place.run(&["inspect", &latent, "--json"]).json()["kind"], "latent");
    let text = place.run(&["inspect", &vae]).succeeded().stdout();
    assert!(text.contains("flux") && text.contains("16 latent channels"), "{text}");
    place.run(&["inspect", "nowhere"]).failed(2, "nowhere");
}

#[test]
fn the_device_is_described_and_measured() {
    let report = Place::new().run(&["device", "--device", "cpu", "--json"]).json();
    assert_eq!(report["device"]["backend"], "cpu");
    assert!(report["speeds"].as_array().unwrap().iter().any(|speed| speed["dtype"] == "f32"));
    assert!(
        report["attention"]
            .as_array()
            .unwrap()
            .iter()
            .any(|tried| tried["width"] == 512 && tried["fused_is_right"] == true)
    );
    assert!(report["system"]["total_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn completions_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(Place::new().run(&["completions", shell]).succeeded().stdout().contains("decode"), "{shell}");
    }
}
