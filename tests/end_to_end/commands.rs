//! The commands beside `decode`.

use std::{path::Path, process::Command};

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

/// The commands of the first paragraph of examples at the end of a help.
fn first_examples(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| !line.starts_with("  tilewright "));
    lines.map_while(|line| line.strip_prefix("  ")).map(str::to_owned).collect()
}

#[test]
fn the_first_examples_of_help_work_where_nothing_is_prepared() {
    let place = Place::new();
    let program = Path::new(env!("CARGO_BIN_EXE_tilewright")).parent().unwrap().display().to_string();
    for arguments in [&["--help"][..], &["generate", "--help"]] {
        let examples = first_examples(&place.run(arguments).succeeded().stdout());
        assert!(examples.len() > 1 && examples[0].starts_with("tilewright generate '"), "{examples:?}");
        for line in examples {
            let mut command = place.command::<&str>(&[]);
            let environment: Vec<_> =
                command.get_envs().map(|(key, value)| (key.to_owned(), value.unwrap().to_owned())).collect();
            command = Command::new("bash");
            command.current_dir(place.path("")).env_clear().envs(environment);
            command.env("PATH", format!("{program}:/usr/bin:/bin")).args(["-c", &line]);
            let output = command.output().unwrap();
            assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    assert_eq!(place.files(), ["out.png", "out.webp"]);
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
