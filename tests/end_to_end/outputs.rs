//! Outputs: files that they never replace, their names, standard input and output, several files in
//! one call, and failures.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Stdio,
};

use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use serde_json::Value;

use crate::program::{Place, Run, bundled, fixture, latent, root};

pub const WORKFLOW: &str = r#"{"nodes":[{"title":"日本"}]}"#;
pub const PROMPT: &str = r#"{"3":{"class_type":"KSampler"}}"#;

/// A latent of 64 by 64 pixels as ComfyUI saves it, with its workflow.
pub fn small() -> Vec<u8> {
    let values: Vec<u8> = (0..1024).flat_map(|place: u32| ((place % 17) as f32 / 17.0 - 0.5).to_le_bytes()).collect();
    let texts = [("workflow", WORKFLOW), ("prompt", PROMPT)].map(|(name, text)| (name.to_owned(), text.to_owned()));
    let tensors = [
        ("latent_tensor", TensorView::new(Dtype::F32, vec![1, 16, 8, 8], &values).unwrap()),
        ("latent_format_version_0", TensorView::new(Dtype::F32, vec![0], &[]).unwrap()),
    ];
    safetensors::serialize(tensors, Some(texts.into_iter().collect())).unwrap()
}

pub fn vae() -> String {
    bundled()[2].clone()
}

pub fn decode(place: &Place, latents: &[&str], options: &[&str]) -> Run {
    let vae = vae();
    place.decode(&[latents, &["--vae", &vae]].concat(), &[options, &["--no-history"]].concat())
}

/// A PNG's header and pixels.
pub fn png(path: &Path) -> png::Reader<std::io::BufReader<File>> {
    png::Decoder::new(std::io::BufReader::new(File::open(path).unwrap())).read_info().unwrap()
}

/// Every file's contents.
fn contents(place: &Place) -> BTreeMap<String, Vec<u8>> {
    place.files().into_iter().map(|name| (name.clone(), fs::read(place.path(&name)).unwrap_or_default())).collect()
}

#[test]
fn an_output_never_replaces_an_input() {
    let place = Place::new();
    place.write("a.latent", small());
    fs::copy(vae(), place.path("vae.safetensors")).unwrap();
    fs::write(place.path("config.json"), "{}").unwrap();
    fs::write(place.path("p.wasm"), wat::parse_str("(component)").unwrap()).unwrap();
    fs::write(place.path("p.wasm.minisig"), "signature").unwrap();
    fs::write(place.path("config.toml"), "").unwrap();
    fs::write(place.path("photo.png"), "photo").unwrap();
    fs::write(place.path("records.jsonl"), "").unwrap();
    fs::hard_link(place.path("vae.safetensors"), place.path("hard.png")).unwrap();
    symlink("a.latent", place.path("soft.png")).unwrap();
    fs::hard_link(place.path("a.latent"), place.path("page.html")).unwrap();
    symlink("photo.png", place.path("photo.latent")).unwrap();
    let before = contents(&place);
    let commands: [(&str, &str); 15] = [
        ("decode a.latent --vae vae.safetensors -o vae.safetensors", "is the VAE, which is read"),
        ("decode a.latent --vae vae.safetensors -o hard.png", "is the VAE, which is read"),
        ("decode a.latent --vae vae.safetensors -o soft.png", "is the latent, which is read"),
        ("decode a.latent --vae vae.safetensors -o ./soft.png --format webp", "is the latent, which is read"),
        ("decode a.latent --vae vae.safetensors -o x.png --record a.latent", "is the latent, which is read"),
        ("decode a.latent --vae vae.safetensors -o x.png --record config.json", "is the VAE's config.json"),
        ("decode a.latent --vae vae.safetensors -o x.png --explain-image hard.png", "is the VAE, which is read"),
        ("decode a.latent --vae vae.safetensors -o x.png --preview soft.png", "is the latent, which is read"),
        ("decode a.latent --vae vae.safetensors -o x.png --policy ./p.wasm --record p.wasm", "is the policy, which"),
        ("decode a.latent --vae vae.safetensors -o x.png --policy ./p.wasm --record p.wasm.minisig", "signature"),
        ("decode a.latent --vae vae.safetensors -o x.png --config config.toml --record config.toml", "configuration"),
        ("encode photo.png --vae vae.safetensors -o photo.latent", "is the input, which is read"),
        ("encode photo.png --vae vae.safetensors --record photo.png", "is the input, which is read"),
        ("bench a.latent --vae vae.safetensors --plot page.html", "is the latent, which is read"),
        ("policy table records.jsonl -o records.jsonl", "is a source, which is read"),
    ];
    for (command, words) in commands {
        let run = place.run(&command.split(' ').collect::<Vec<_>>());
        run.failed(2, words);
        assert!(run.stderr().contains("another name"), "{}", run.stderr());
        assert_eq!(contents(&place), before, "{command}");
    }
    let history = place.history().display().to_string();
    place
        .run(&["decode", "a.latent", "--vae", "vae.safetensors", "-o", "x.png", "--record", &history])
        .failed(2, "history");
    assert!(!place.history().exists());
}

#[test]
fn what_signs_and_builds_replaces_no_input_either() {
    let place = Place::new();
    fs::write(place.path("secret"), "password\n").unwrap();
    fs::rename(place.path("secret"), place.path("me.pub")).unwrap();
    place
        .run(&["policy", "keygen", "me", "--force", "--password-file", "me.pub"])
        .failed(2, "is the password, which is read");
    fs::write(place.path("p.wasm"), wat::parse_str("(component)").unwrap()).unwrap();
    fs::write(place.path("p.wasm.minisig"), "a key").unwrap();
    place.run(&["policy", "sign", "p.wasm", "--key", "p.wasm.minisig"]).failed(2, "is the secret key, which is read");
    place.run(&["policy", "new", "mine"]).succeeded();
    let source = fs::read(place.path("mine/src/lib.rs")).unwrap();
    place.run(&["policy", "build", "mine", "-o", "mine/src/lib.rs"]).failed(2, "is a file other than a policy");
    assert_eq!(fs::read(place.path("mine/src/lib.rs")).unwrap(), source);
    fs::write(place.path("w.safetensors"), "mine").unwrap();
    fs::set_permissions(place.path("w.safetensors"), fs::Permissions::from_mode(0o444)).unwrap();
    for command in ["bench weights sd -o w.safetensors", "bench latent --size 64x64 -o w.safetensors"] {
        place.run(&command.split(' ').collect::<Vec<_>>()).failed(2, "is write-protected");
    }
    assert_eq!(fs::read_to_string(place.path("w.safetensors")).unwrap(), "mine");
}

#[test]
fn two_outputs_are_two_files() {
    let place = Place::new();
    place.write("a.latent", small());
    symlink(".", place.path("here")).unwrap();
    for (options, words) in [
        (&["-o", "x.png", "--record", "x.png"][..], "is given as --record and as -o"),
        (&["-o", "x.png", "--explain-image", "here/x.png"], "one file can't be both"),
        (&["-o", "x.png", "--record", "y.png", "--explain-image", "./y.png"], "one file can't be both"),
        (&["--record", "a.png"], "one file can't be both"),
    ] {
        let run = decode(&place, &["a.latent"], options);
        assert_eq!(run.0.status.code(), Some(2), "{options:?}: {}", run.stderr());
        assert!(run.stderr().contains("one file can't be both"), "{words}: {}", run.stderr());
        assert_eq!(place.files(), ["a.latent", "here"], "{options:?}");
    }
    // The names of a batch are known only after the latent is read.
    place.write("two.latent", latent(&[2, 16, 8, 8], 0.5));
    decode(&place, &["two.latent"], &["-o", "x.png", "--record", "x-02.png"]).failed(2, "one file can't be both");
    assert_eq!(place.files(), ["a.latent", "here", "two.latent"]);
}

#[test]
fn what_is_protected_or_no_file_is_left_and_a_link_is_followed() {
    let place = Place::new();
    place.write("a.latent", small());
    fs::write(place.path("protected.png"), "mine").unwrap();
    fs::set_permissions(place.path("protected.png"), fs::Permissions::from_mode(0o444)).unwrap();
    symlink("nowhere.png", place.path("dangling.png")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe.png")).status().unwrap().success());
    let mut cases = vec![
        ("protected.png", "is write-protected"),
        ("dangling.png", "is a link to nothing"),
        ("pipe.png", "is a pipe"),
    ];
    fs::write(place.path("foreign.png"), "theirs").unwrap();
    // Only root can give a file away.
    if std::os::unix::fs::chown(place.path("foreign.png"), Some(12_345), None).is_ok() {
        cases.push(("foreign.png", "belongs to another user (user 12345)"));
    }
    let before = place.files();
    for (name, words) in cases {
        for option in ["-o", "--explain-image", "--record"] {
            let options = if option == "-o" { vec!["-o", name] } else { vec!["-o", "x.png", option, name] };
            decode(&place, &["a.latent"], &options).failed(2, words);
            assert_eq!(place.files(), before, "{option} {name}");
        }
    }
    assert_eq!(fs::read_to_string(place.path("protected.png")).unwrap(), "mine");

    fs::create_dir(place.path("far")).unwrap();
    fs::write(place.path("far/real.png"), "old").unwrap();
    symlink("far/real.png", place.path("link.png")).unwrap();
    decode(&place, &["a.latent"], &["-o", "link.png"]).succeeded();
    assert!(fs::symlink_metadata(place.path("link.png")).unwrap().is_symlink());
    assert_eq!(image::open(place.path("far/real.png")).unwrap().width(), 64);
    assert_eq!(fs::read_dir(place.path("far")).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn outputs_are_numbered_or_left_and_named_in_json() {
    let place = Place::new();
    place.write("a.latent", small());
    place.write("two.latent", latent(&[2, 16, 8, 8], 0.5));
    let outputs = |run: &Run| run.json()["outputs"].clone();
    for expected in ["out-1.png", "out-2.png"] {
        let run = decode(&place, &["a.latent"], &["-o", "out-{n}.png", "--json"]);
        assert_eq!(outputs(&run), serde_json::json!([expected]));
    }
    let run = decode(&place, &["two.latent"], &["-o", "out-{n}.png", "--json", "--explain-image", "t.png"]);
    assert_eq!(outputs(&run), serde_json::json!(["out-3.png", "out-4.png", "t.png"]));
    let run = decode(&place, &["two.latent"], &["-o", "b.png", "--json"]);
    assert_eq!(outputs(&run), serde_json::json!(["b-01.png", "b-02.png"]));
    assert_eq!(outputs(&decode(&place, &["a.latent"], &["--dry-run", "--json"])), serde_json::json!([]));

    let before = contents(&place);
    for (name, output) in [("a.latent", "out-1.png"), ("two.latent", "b.png")] {
        decode(&place, &[name], &["-o", output, "--no-clobber"]).failed(2, "stands there already");
        assert_eq!(contents(&place), before);
    }
    decode(&place, &["a.latent"], &["-o", "c.png", "--no-clobber"]).succeeded();
}

#[test]
fn standard_input_and_output_take_one_picture() {
    let place = Place::new();
    let vae = vae();
    let arguments = ["decode", "-", "--vae", &vae, "--device", "cpu", "--no-history", "-o", "-"];
    let piped = |arguments: &[&str], input: &[u8], output: Stdio| {
        let mut command = place.command(arguments);
        let mut program = command.stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped()).spawn().unwrap();
        // The program may refuse without reading.
        let _ = program.stdin.take().unwrap().write_all(input);
        Run(program.wait_with_output().unwrap())
    };
    let run = piped(&arguments, &small(), Stdio::piped());
    assert!(run.0.status.success(), "{}", run.stderr());
    assert_eq!(image::load_from_memory_with_format(&run.0.stdout, image::ImageFormat::Png).unwrap().width(), 64);
    assert!(run.stderr().contains("standard output"), "{}", run.stderr());
    let quiet = piped(&[&arguments[..], &["--quiet"]].concat(), &small(), Stdio::piped());
    assert!(quiet.0.status.success() && quiet.0.stdout.starts_with(b"\x89PNG"));
    let said = quiet.stderr();
    assert!(said.lines().all(|line| line.starts_with("warning: standard input: values of ")), "{said}");
    let run = piped(&[&arguments[..], &["--format", "webp"]].concat(), &small(), Stdio::piped());
    assert!(run.0.stdout.starts_with(b"RIFF"), "{}", run.stderr());

    // The output serves as an input again.
    let picture = piped(&arguments, &small(), Stdio::piped()).0.stdout;
    let encode = ["encode", "-", "--vae", &vae, "--device", "cpu", "--no-history", "-o", "-"];
    let run = piped(&encode, &picture, Stdio::piped());
    assert!(run.0.status.success(), "{}", run.stderr());
    assert_eq!(
        SafeTensors::deserialize(&run.0.stdout).unwrap().tensor("latent_tensor").unwrap().shape(),
        [1, 16, 8, 8]
    );

    piped(&arguments, b"nonsense", Stdio::piped()).failed(2, "standard input: ");
    piped(&[&arguments[..], &["--json"]].concat(), &small(), Stdio::piped())
        .failed(2, "standard output is the picture");
    piped(&arguments[..7], &small(), Stdio::piped()).failed(2, "-o is needed");
    piped(&["decode", "-", "-", "--vae", &vae], &small(), Stdio::piped()).failed(2, "given twice");

    // A full disk and a reader that has gone are failures, and nothing is left.
    let full = File::options().write(true).open("/dev/full").unwrap();
    piped(&arguments, &small(), full.into()).failed(1, "standard output: can't be written");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    piped(&arguments, &small(), writer.into()).failed(1, "standard output: can't be written");
    assert!(place.files().is_empty());
}

#[test]
fn standard_output_has_several_names_and_other_streams_are_refused_by_theirs() {
    let place = Place::new();
    place.write("a.latent", small());
    let (vae, model) = (vae(), fixture("generate-flux"));
    let run = |words: &[&str]| place.run(&[words, &["--device", "cpu"]].concat());
    let decode = ["decode", "a.latent", "--vae", &vae, "--no-history", "-o"];
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/../dev/stdout"] {
        let run = run(&[&decode[..], &[name]].concat());
        run.succeeded();
        assert!(run.0.stdout.starts_with(b"\x89PNG"), "{name}");
        assert!(run.stderr().contains("standard output"), "{name}: {}", run.stderr());
    }
    // A file behind it is written as the shell has opened it.
    let file = File::create(place.path("x.png")).unwrap();
    let status = place.command(&[&decode[..], &["/dev/stdout"]].concat()).stdout(file).stderr(Stdio::null()).status();
    assert!(status.unwrap().success() && image::open(place.path("x.png")).unwrap().width() == 64);
    let encode = ["encode", "x.png", "--vae", &vae, "--no-history", "-o"];
    assert!(run(&[&encode[..], &["/dev/stdout"]].concat()).0.stdout.windows(13).any(|text| text == b"latent_tensor"));
    let generate = ["generate", "a cat", "--model", &model, "--size", "32x32", "--steps", "1", "-o"];
    assert!(run(&[&generate[..], &["/dev/stdout"]].concat()).0.stdout.starts_with(b"\x89PNG"));

    // Nothing waits for the other end of a pipe, and no node is replaced by a file.
    assert!(std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    symlink("pipe", place.path("link")).unwrap();
    place.write("records.jsonl", "");
    let embed = ["embed", "a cat", "--text-encoder", &model, "-o"];
    let bench = ["bench", "latent", "--size", "64x64", "-o"];
    let table = ["policy", "table", "records.jsonl", "-o"];
    let [record, shown] = ["--record", "--explain-image"].map(|option| [&decode[..], &["y.png", option]].concat());
    let before = place.files();
    let refused = |command: &[&str], name: &str, words: &str| {
        place.run(&[command, &[name]].concat()).failed(2, &format!("{name}: {words}"));
        assert_eq!(place.files(), before, "{command:?} {name}");
    };
    for (name, noun) in [
        ("pipe", "is a pipe"),
        ("link", "is a pipe"),
        ("/dev/null", "is a device"),
        ("/dev/full", "is a device"),
        ("/dev/stderr", "is a name of what this process has open"),
        ("/dev/fd/3", "is a name of what this process has open"),
        ("/proc/self/fd/2", "is a name of what this process has open"),
    ] {
        refused(&decode, name, &format!("{noun}, not a file: give another name, or - and send standard output there"));
    }
    for command in [&encode[..], &generate, &embed, &bench, &table, &record, &shown] {
        refused(command, "pipe", "is a pipe, not a file: give another name");
    }
    let kind = fs::symlink_metadata(place.path("pipe")).unwrap().file_type();
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind));
    // Commands that write files alone say so.
    for command in [&bench[..], &table, &record, &shown] {
        place.run(&[command, &["/dev/stdout"]].concat()).failed(2, "not a file: give another name");
    }
    place.run(&[&embed[..], &["/dev/stdout"]].concat()).failed(2, "/dev/stdout: ");
}

#[test]
fn a_file_behind_standard_input_or_output_is_an_input_too() {
    let place = Place::new();
    place.write("a.safetensors", latent(&[1, 16, 8, 8], 0.5));
    place.write("a.png", "a picture");
    for name in ["a.safetensors", "a.png"] {
        fs::hard_link(place.path(name), place.path(&format!("hard-{name}"))).unwrap();
    }
    let before = contents(&place);
    let vae = vae();
    let run = |command: &str, from: Stdio, to: Stdio| {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        arguments.extend(["--vae", &vae, "--device", "cpu", "--no-history"]);
        Run(place.command(&arguments).stdin(from).stdout(to).output().unwrap())
    };
    for (input, command, words) in [
        ("a.safetensors", "decode - -o a.safetensors", "a.safetensors: is the latent, which is read"),
        ("a.safetensors", "decode - -o hard-a.safetensors", "hard-a.safetensors: is the latent, which is read"),
        ("a.safetensors", "decode - -o x.png --record a.safetensors", "give --record another name"),
        ("a.png", "encode - -o a.png --format safetensors", "a.png: is the input, which is read"),
        ("a.png", "encode - -o hard-a.png --format latent", "hard-a.png: is the input, which is read"),
    ] {
        run(command, File::open(place.path(input)).unwrap().into(), Stdio::piped()).failed(2, words);
        assert_eq!(contents(&place), before, "{command}");
    }
    let to = |name: &str| File::options().create(true).append(true).open(place.path(name)).unwrap();
    for (command, output) in [("decode a.safetensors -o -", "a.safetensors"), ("encode a.png -o -", "hard-a.png")] {
        run(command, Stdio::null(), to(output).into()).failed(2, "standard output: is the ");
        assert_eq!(contents(&place), before, "{command}");
    }
    let from = File::open(place.path("a.safetensors")).unwrap();
    run("decode - -o -", from.into(), to("x.png").into()).succeeded();
    assert_eq!(image::open(place.path("x.png")).unwrap().width(), 64);
}

#[test]
fn numbered_outputs_replace_none_of_another_latent() {
    let place = Place::new();
    fs::create_dir(place.path("in")).unwrap();
    place.write("in/a-01.safetensors", latent(&[1, 16, 8, 8], 0.5));
    place.write("in/a.safetensors", latent(&[2, 16, 8, 8], 0.25));
    place.write("in/b.safetensors", latent(&[1, 16, 8, 8], 0.5));
    let clash = "out/a-01.png: is written twice by -o: give names that differ; in/a.safetensors is left; 1 of 3 were";
    decode(&place, &["in"], &["-o", "out/", "--dry-run"]).failed(2, clash);
    assert_eq!(place.files(), ["in"]);
    decode(&place, &["in"], &["-o", "out/"]).failed(2, clash);
    assert_eq!(fs::read_dir(place.path("out")).unwrap().count(), 1);
    decode(&place, &["in/a-01.safetensors"], &["-o", "alone.png"]).succeeded();
    let pixels = |name: &str| image::open(place.path(name)).unwrap().to_rgb8();
    assert_eq!(pixels("out/a-01.png"), pixels("alone.png"));
    // The other way round.
    let turned = ["in/a.safetensors", "in/a-01.safetensors"];
    decode(&place, &turned, &["-o", "turned/"]).failed(2, "in/a-01.safetensors is left; 1 of 2 were decoded");
    assert_eq!(fs::read_dir(place.path("turned")).unwrap().count(), 2);
    // Free numbers never clash.
    decode(&place, &["in"], &["-o", "all-{n}.png"]).succeeded();
    assert!(place.path("all-4.png").is_file());
}

#[test]
fn a_dry_run_refuses_what_the_work_would() {
    let place = Place::new();
    place.write("a.latent", small());
    place.write("b.latent", small());
    place.write("old.png", "old");
    place.write("old.latent", "old");
    place.write("photo.png", "a picture");
    let before = contents(&place);
    for (options, words) in [
        (&["-o", "x.bmp"][..], "unknown output ending"),
        (&["-o", "x.mp4"], "a picture can't be written as video"),
        (&["-o", "nowhere/x.png"], "nowhere: can't be written"),
        (&["-o", "x.png", "--quality", "5"], "--quality is for .jpg"),
        (&["-o", "old.png", "--no-clobber"], "stands there already"),
        (&["-o", "x.png", "--explain-image", "t.bmp"], "unknown output ending"),
    ] {
        for dry_run in [&["--dry-run"][..], &[]] {
            decode(&place, &["a.latent"], &[options, dry_run].concat()).failed(2, words);
            assert_eq!(contents(&place), before, "{options:?} {dry_run:?}");
        }
    }
    let vae = vae();
    for (options, words) in [
        (&["-o", "x.bmp"][..], "unknown output ending"),
        (&["-o", "nowhere/x.latent"], "nowhere: can't be written"),
        (&["-o", "old.latent", "--no-clobber"], "stands there already"),
    ] {
        for dry_run in [&["--dry-run"][..], &[]] {
            let fixed = ["encode", "photo.png", "--vae", &vae, "--device", "cpu", "--no-history"];
            place.run(&[&fixed[..], options, dry_run].concat()).failed(2, words);
            assert_eq!(contents(&place), before, "{options:?} {dry_run:?}");
        }
    }
    // A folder that the work would make is not made, and no fault.
    decode(&place, &["a.latent", "b.latent"], &["-o", "new/", "--dry-run"]).succeeded();
    decode(&place, &["a.latent", "b.latent"], &["-o", "nowhere/new/", "--dry-run"]).failed(2, "nowhere");
    decode(&place, &["a.latent", "b.latent"], &["-o", "old.png/", "--dry-run"]).failed(2, "old.png");
    assert_eq!(contents(&place), before);
}

#[test]
fn several_latents_share_the_weights_and_one_that_fails_stops_none() {
    let place = Place::new();
    fs::create_dir(place.path("in")).unwrap();
    for name in ["in/a.latent", "in/c.latent"] {
        place.write(name, small());
    }
    place.write("in/b.latent", "nonsense");
    place.write("in/notes.txt", "");
    let fixed = ["--policy", "fixed", "--set", "space=whole", "--set", "precision=f32"];
    let run = decode(&place, &["in"], &[&fixed[..], &["-o", "out", "--json"]].concat());
    run.failed(1, "1 of 3 could not be decoded: in/b.latent");
    assert_eq!(fs::read_dir(place.path("out")).unwrap().count(), 2);
    let records: Vec<Value> = run.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        records.iter().map(|record| &record["outputs"]).collect::<Vec<_>>(),
        [&serde_json::json!(["out/a.png"]), &serde_json::json!(["out/c.png"])]
    );
    let load = |record: &Value| record["outcome"]["load_ms"].as_f64().unwrap();
    assert!(load(&records[0]) > 0.0);
    assert_eq!(load(&records[1]), 0.0, "the weights are loaded once: {}", records[1]);

    let two = ["in/a.latent", "in/c.latent"];
    decode(&place, &two, &["-o", "all/", "--format", "jpg"]).succeeded();
    assert!(place.path("all/a.jpg").is_file() && place.path("all/c.jpg").is_file());
    // One goes there, too, whether the folder is there or made.
    decode(&place, &two[..1], &["-o", "all"]).succeeded();
    decode(&place, &two[..1], &["-o", "one/"]).succeeded();
    assert!(place.path("all/a.png").is_file() && place.path("one/a.png").is_file());
    fs::remove_dir_all(place.path("one")).unwrap();
    decode(&place, &two, &["-o", "{name}-{n}.png"]).succeeded();
    decode(&place, &two, &["-o", "all-{n}.webp"]).succeeded();
    let mut expected =
        ["a-1.png", "all", "all-1.webp", "all-2.webp", "c-1.png", "in", "out"].map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(place.files(), expected);

    for (latents, options, words) in [
        (&two[..], &["-o", "x.png"][..], "one name for several"),
        (&two, &["-o", "-"], "standard output takes one"),
        (&["in/a.latent", "./in/a.latent"], &["-o", "new/"], "would both be written to it"),
        (&two, &["-o", "new/", "--explain-image", "t.png"], "--explain-image is one file"),
        (&two, &["-o", "{name}.latent"], "unknown output ending"),
        (&["all"], &["-o", "new/"], "a folder that holds no latents"),
    ] {
        decode(&place, latents, options).failed(2, words);
        assert_eq!(place.files(), expected, "{options:?}");
    }
    // If no picture could be written, no folder stays.
    decode(&place, &["in/b.latent", "in/b.latent"], &["-o", "{name}-{n}.png"]).failed(1, "2 of 2 could not be decoded");
    place.write("d.latent", "nonsense");
    decode(&place, &["in/b.latent", "d.latent"], &["-o", "new"]).failed(1, "2 of 2");
    assert!(!place.path("new").exists());
}

#[test]
fn several_pictures_are_encoded_and_a_folder_of_them() {
    let place = Place::new();
    fs::create_dir(place.path("in")).unwrap();
    let photograph = image::open(root().join("examples/latents/astronaut.png")).unwrap();
    photograph.resize_exact(64, 64, image::imageops::FilterType::Nearest).save(place.path("in/a.png")).unwrap();
    fs::copy(place.path("in/a.png"), place.path("in/b.png")).unwrap();
    place.write("in/bad.png", "no picture");
    let vae = vae();
    let encode = |arguments: &[&str]| {
        place.run(&[&["encode"], arguments, &["--vae", &vae, "--device", "cpu", "--no-history"]].concat())
    };
    encode(&["in", "-o", "latents"]).failed(1, "1 of 3 could not be encoded: in/bad.png");
    assert!(place.path("latents/a.latent").is_file() && place.path("latents/b.latent").is_file());
    encode(&["in/a.png", "-o", "one/"]).succeeded();
    assert!(place.path("one/a.latent").is_file());
    encode(&["in/a.png", "in/b.png", "-o", "{name}-{n}.safetensors"]).succeeded();
    assert!(place.path("a-1.safetensors").is_file() && place.path("b-1.safetensors").is_file());
    encode(&["in/a.png", "-o", "a-1.safetensors", "--no-clobber"]).failed(2, "stands there already");
}

#[test]
fn a_disk_that_takes_no_more_leaves_nothing_half_written() {
    let place = Place::new();
    // 2.4 MB of pictures.
    place.write("a.latent", latent(&[12, 16, 16, 16], 0.5));
    place.write("old.safetensors", "what stood there");
    for name in ["old.safetensors", "new.safetensors", "{n}.safetensors", "-"] {
        let program = place.command::<&str>(&[]);
        let mut command = std::process::Command::new("/bin/sh");
        command.current_dir(program.get_current_dir().unwrap()).env_clear();
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        // Files of at most 2 MiB, which policies fit: writing more fails, as on a full disk.
        command.args(["-c", "trap '' XFSZ; ulimit -f 4096; exec \"$@\"", "sh"]).arg(program.get_program());
        command.args(["decode", "a.latent", "--vae", &vae(), "--device", "cpu", "--no-history", "-o", name]);
        command.args(["--format", "safetensors"]);
        Run(command.output().unwrap()).failed(1, "can't be written");
        assert_eq!(place.files(), ["a.latent", "old.safetensors"], "{name}");
    }
    assert_eq!(fs::read_to_string(place.path("old.safetensors")).unwrap(), "what stood there");
}

#[test]
fn a_resumed_decode_follows_no_link_that_was_planted() {
    let clip = ["wan21-original-17/latent.safetensors", "wan21-original/Wan2.1_VAE.safetensors"].map(fixture);
    let [latent, vae] = clip.each_ref().map(String::as_str);
    for name in ["lock", "job.json", "frames-0.f32", "plan.json"] {
        let place = Place::new();
        place.write("victim", "precious");
        fs::create_dir(place.path("x.gif.partial")).unwrap();
        symlink("../victim", place.path("x.gif.partial").join(name)).unwrap();
        let run = place.decode(&[latent, "--vae", vae], &["-o", "x.gif", "--resume", "--no-history"]);
        run.failed(2, "is a link, which is not followed");
        assert_eq!(fs::read_to_string(place.path("victim")).unwrap(), "precious", "{name}");
        assert_eq!(place.files(), ["victim", "x.gif.partial"]);
    }
    let place = Place::new();
    fs::create_dir(place.path("elsewhere")).unwrap();
    symlink("elsewhere", place.path("x.gif.partial")).unwrap();
    let run = place.decode(&[latent, "--vae", vae], &["-o", "x.gif", "--resume", "--no-history"]);
    run.failed(2, "not a folder of this program's");
    assert_eq!(fs::read_dir(place.path("elsewhere")).unwrap().count(), 0);
    // Numbered names have no earlier decode to go on from.
    place
        .decode(&[latent, "--vae", vae], &["-o", "x-{n}.gif", "--resume"])
        .failed(2, "--resume finds an earlier decode");
}

#[test]
fn clips_are_numbered_and_left_as_pictures_are() {
    let place = Place::new();
    let clip = ["wan21-original-17/latent.safetensors", "wan21-original/Wan2.1_VAE.safetensors"].map(fixture);
    let [latent, vae] = clip.each_ref().map(String::as_str);
    let decode = |options: &[&str]| place.decode(&[latent, "--vae", vae], &[options, &["--no-history"]].concat());
    for _ in 0..2 {
        decode(&["-o", "clip-{n}.webp"]).succeeded();
        decode(&["-o", "frames-{n}/", "--bits", "16"]).succeeded();
    }
    assert_eq!(place.files(), ["clip-1.webp", "clip-2.webp", "frames-1", "frames-2"]);
    assert_eq!(png(&place.path("frames-2/frame-000017.png")).info().bit_depth, png::BitDepth::Sixteen);
    for output in ["clip-1.webp", "frames-1/"] {
        decode(&["-o", output, "--no-clobber"]).failed(2, "stands there already");
    }
    decode(&["-o", "frames-1/", "--preview", "frames-1/frame-000003.png"]).failed(2, "one file can't be both");
    let run =
        place.command(&["decode", latent, "--vae", vae, "--device", "cpu", "-o", "-", "--format", "gif"]).output();
    let run = Run(run.unwrap());
    assert!(run.0.status.success() && run.0.stdout.starts_with(b"GIF89a"), "{}", run.stderr());
    decode(&["-o", "-"]).failed(2, "say with --format");
    decode(&["-o", "x.gif", "--dry-run", "--preview", "x.jpg"]).failed(2, "a preview is a .png");
}
