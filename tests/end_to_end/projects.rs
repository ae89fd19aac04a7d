//! Policies of one's own: a project is begun, its own test passes, it is built, looked into, and
//! decides a decode, in every language.
//!
//! The tool-chains are those that `cargo xtask test` lays out in `.tools`. A language whose
//! tool-chain is missing fails, unless TILEWRIGHT_WITHOUT_C, TILEWRIGHT_WITHOUT_PYTHON or
//! TILEWRIGHT_WITHOUT_JS says that it is not to be tested.

use std::{
    env, fs,
    ops::Range,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    program::{Place, Run, bundled, fixture, root, smaller},
    registry::Registry,
};

/// The folders of cargo and rustup, if not in the home folder.
const HOMES: [(&str, &str); 2] = [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")];

/// True if a language is to be tested.
fn wanted(language: &str) -> bool {
    let variable = format!("TILEWRIGHT_WITHOUT_{language}");
    let without = env::var_os(&variable).is_some();
    if without {
        println!("not tested: {variable} is set");
    }
    !without
}

/// Lets a command find the tool-chains: those of `.tools` before the machine's, and nothing by
/// network.
pub fn with_tools(command: &mut Command) {
    let tools = root().join(".tools");
    let machine = env::var_os("PATH").unwrap_or_default();
    let own = [tools.join("python/bin"), tools.join("js/node_modules/.bin")];
    let path = env::join_paths(own.into_iter().chain(env::split_paths(&machine))).unwrap();
    command.env("PATH", path).env("PYTHONPATH", tools.join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("CARGO_NET_OFFLINE", "true");
    let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    for (variable, folder) in HOMES {
        command.env(variable, env::var_os(variable).map_or_else(|| home.join(folder), PathBuf::from));
    }
    // Which toolchain of Rust runs this is settled already, and so is the one that its rustup would
    // choose.
    if let Some(toolchain) = env::var_os("RUSTUP_TOOLCHAIN") {
        command.env("RUSTUP_TOOLCHAIN", toolchain);
    }
    // One for all test runs: building twice should cost once. What `policy build` makes stays in
    // the project all the same.
    let zig = Path::new(env!("CARGO_TARGET_TMPDIR")).join("projects-zig");
    command.env("CARGO_TARGET_DIR", kept_target("projects-rust")).env("ZIG_GLOBAL_CACHE_DIR", zig);
}

/// A `target` for Rust projects that lasts: the crates which the SDK needs are compiled once for
/// all test runs. Projects have outputs of one name, so two that are built side by side need one
/// each.
pub fn kept_target(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&target).unwrap();
    target
}

fn keep_target(project: &Path, name: &str) {
    symlink(kept_target(name), project.join("target")).unwrap();
}

fn run(place: &Place, arguments: &[&str]) -> Run {
    let mut command = place.command(arguments);
    with_tools(&mut command);
    Run(command.output().unwrap())
}

/// Runs what the project's README says, in the project.
fn in_project(place: &Place, line: &str) -> Run {
    let mut command = Command::new("sh");
    command.args(["-ec", line]).current_dir(place.path("mine"));
    with_tools(&mut command);
    Run(command.output().unwrap())
}

/// Begins a project in a language, which has these files among others.
fn begun(language: &str, files: &[&str]) -> Place {
    let place = Place::new();
    let created = place.run(&["policy", "new", "mine", "--lang", language, "--json"]).json();
    assert_eq!(created["name"], "mine");
    for file in files {
        assert!(place.path("mine").join(file).is_file(), "{file}: {created}");
    }
    place
}

/// Builds the project, which has to end well, and looks into what came of it with what the build
/// says that it needs.
fn built(place: &Place) -> (Value, Vec<String>) {
    let built = run(place, &["policy", "build", "mine", "--json"]).json();
    assert_eq!(built["policy"]["name"], "mine", "{built}");
    assert!(built["bytes"].as_u64().unwrap() <= built["made_bytes"].as_u64().unwrap() + 20480, "{built}");
    let grants = built["grants"].as_array().unwrap().iter();
    let grants: Vec<String> = grants.flat_map(|grant| grant.as_str().unwrap().split(' ').map(str::to_owned)).collect();
    println!(
        "{} by {}: {} bytes of {}, built in {} ms, loaded in {} ms, with {grants:?}",
        built["language"], built["tool"], built["bytes"], built["made_bytes"], built["build_ms"], built["load_ms"]
    );
    let inspected =
        place.run(&[&["policy", "inspect", "mine/mine.wasm", "--json"], &strs(&grants)[..]].concat()).json();
    assert_eq!(inspected["digest"], built["policy"]["digest"]);
    assert_eq!(inspected["kind"], "component");
    assert_eq!(inspected["settings"][0]["name"], "tile", "{inspected}");
    let imports = inspected["imports"].as_array().unwrap();
    assert!(imports.iter().all(|import| import.as_str().unwrap().starts_with("tilewright:")), "{inspected}");
    (built, grants)
}

fn strs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Decodes a latent under the project's policy: whole with much memory, in tiles with little, and
/// by its own answer every time.
fn decodes(place: &Place, grants: &[String]) {
    let inputs = smaller(place);
    for (limit, space) in [("8GiB", "whole"), ("10MiB", "blended")] {
        let options = ["--policy", "mine/mine.wasm", "--set", "tile=256", "--memory-limit", limit, "--json"];
        let options = [&options[..], &["-o", "out.png"], &strs(grants)].concat();
        let record = place.decode(&inputs, &options).json();
        assert_eq!(record["fallback"], Value::Null, "{record}");
        assert_eq!(record["answer"]["space"]["kind"], space, "{record}");
        println!("{limit}: decided in {} ms with {} fuel", record["decision_ms"], record["fuel"]);
        assert!(place.path("out.png").is_file());
    }
    let wrong = [&["--policy", "mine/mine.wasm", "--set", "tile=100", "-o", "no.png"], &strs(grants)[..]].concat();
    place.decode(&inputs, &wrong).failed(2, "256 to 4096");
}

/// A new project decides samples as well: with all weights at once, and with as little as it can.
fn samples(place: &Place, grants: &[String]) {
    let [transformer, conditioning] = ["flux1-tiny.safetensors", "conditioning.safetensors"]
        .map(|file| fixture(&format!("sample-flux-original/{file}")));
    let sample = |more: &[&str]| {
        let given = ["sample", "--device", "cpu", "--transformer", &transformer, "--conditioning", &conditioning];
        let asked = ["--size", "64x64", "--steps", "2", "--batch", "2", "--policy", "mine/mine.wasm", "--json"];
        let record = place.run(&[&given[..], &asked, more, &strs(grants)].concat()).json();
        assert_eq!(record["fallback"], Value::Null, "{record}");
        assert_eq!(record["adjusted"], serde_json::json!([]), "{record}");
        record["answer"].clone()
    };
    let answer = sample(&["-o", "out.latent"]);
    assert_eq!((&answer["ahead"], &answer["precision"]["dtype"]), (&Value::Null, &"f32".into()), "{answer}");
    assert!(place.path("out.latent").is_file());
    let leanest = sample(&["--objective", "leanest", "--dry-run", "-o", "out.latent"]);
    assert_eq!((&leanest["ahead"], &leanest["samples"]), (&0.into(), &1.into()), "{leanest}");
}

/// A new project is right: it passes the gate, with nothing but notes, whatever requests are drawn.
/// The seeds are fixed: a fault that few of them show would fail one run in many. Projects decide
/// by the same rules in every language: each language has seeds of its own, and few.
fn passes_the_gate(place: &Place, grants: &[String], seeds: Range<u32>) {
    for seed in seeds {
        let asked = ["policy", "check", "mine/mine.wasm", "--all", "--json", "--seed", &seed.to_string()];
        let checked = place.run(&[&asked[..], &strs(grants)].concat()).json();
        let mut findings = checked["findings"].as_array().unwrap().iter();
        let worse = findings.find(|finding| finding["severity"] != "note");
        assert!(worse.is_none(), "seed {seed}: {}", worse.unwrap());
    }
}

/// An author's other uses of a policy work in this language as in any other.
fn every_verb_works(place: &Place, grants: &[String]) {
    let run = |words: &[&str]| place.run(&[&["policy"], words, &strs(grants)].concat());
    let policy = "mine/mine.wasm";
    // The times of a policy that needs as much as Python are left out: it is compiled anew for
    // them, for a third of a minute. JavaScript's are measured with grants.
    if !grants.iter().any(|grant| grant == "64MiB") {
        let measured = run(&["bench", policy, "--iterations", "20", "--json"]).json();
        println!("decide: {}", measured["calls"][0]);
    }
    run(&["diff", "fixed", policy]).succeeded();

    let options = ["--policy", policy, "--record", "r.jsonl", "--record", "full", "-o", "out.png"];
    place.decode(&smaller(place), &[&options[..], &strs(grants)].concat()).succeeded();
    let replayed = run(&["replay", "r.jsonl", "--policy-file", policy, "--json"]).json();
    assert_eq!((&replayed["totals"]["equal"], &replayed["totals"]["calls"]), (&2.into(), &2.into()), "{replayed}");
    let device = root().join("examples/devices/two-core-cpu.json").display().to_string();
    let simulated = run(&["simulate", "--device", &device, "--policy", policy, "--json"]).json();
    assert!(simulated["policies"][0]["done"].as_u64().unwrap() > 0, "{simulated}");

    place.run(&["policy", "keygen", "ada", "--no-password"]).succeeded();
    run(&["sign", policy, "--key", "ada.key"]).succeeded();
    place.run(&["policy", "verify", policy, "--key", "ada.pub"]).succeeded();
    if let Some(registry) = Registry::open() {
        run(&["push", policy, &registry.named("mine:1"), "--plain-http"]).succeeded();
        run(&["pull", &registry.named("mine:1"), "-o", "pulled.wasm", "--plain-http"]).succeeded();
        assert!(fs::read(place.path("pulled.wasm")).unwrap() == fs::read(place.path(policy)).unwrap());
        place.run(&["policy", "verify", "pulled.wasm", "--key", "ada.pub"]).succeeded();
    }
}

/// The same question has the same answer and the same price, in one process and the next.
fn decides_alike(place: &Place, grants: &[String]) {
    let options = [&["--policy", "mine/mine.wasm", "--dry-run", "--json"], &strs(grants)[..]].concat();
    let asked = || {
        let record = place.decode(&bundled(), &options).json();
        assert_eq!(record["fallback"], Value::Null, "{record}");
        (record["answer"].clone(), record["fuel"].clone())
    };
    assert_eq!(asked(), asked());
}

#[test]
fn a_policy_in_rust() {
    let place = begun("rust", &["Cargo.toml", "src/lib.rs", "sdk/wit/policy.wit", "README.md"]);
    keep_target(&place.path("mine"), "projects-rust");
    in_project(&place, "cargo test --quiet").succeeded();
    let (_, grants) = built(&place);
    assert!(grants.is_empty());
    passes_the_gate(&place, &grants, 0..5);
    decodes(&place, &grants);
    samples(&place, &grants);
    decides_alike(&place, &grants);
    every_verb_works(&place, &grants);
    // A mistake: the compiler's last lines, and one that says that it failed.
    fs::write(place.path("mine/src/lib.rs"), "fn broken( {}\n").unwrap();
    let failed = run(&place, &["policy", "build", "mine"]);
    failed.failed(1, "cargo failed");
    assert!(failed.stderr().contains("src/lib.rs:1"), "{}", failed.stderr());
    assert!(place.path("mine/mine.wasm").is_file(), "what was built before stays");
}

#[test]
fn projects_that_share_cargos_folder_are_built_each_for_itself() {
    let place = Place::new();
    let module = |name: &str| place.path(name).join("target/wasm32-unknown-unknown/release/policy.wasm");
    for name in ["one", "two"] {
        place.run(&["policy", "new", name]).succeeded();
        keep_target(&place.path(name), &format!("projects-rust-{name}"));
        // The one of an earlier test run.
        let _ = fs::remove_file(module(name));
    }
    // The third time, cargo finds nothing to do.
    for name in ["one", "two", "one"] {
        let built = run(&place, &["policy", "build", name, "--json"]).json();
        assert_eq!(built["policy"]["name"], name, "{built}");
        assert!(module(name).is_file());
    }
}

#[test]
fn a_policy_in_c() {
    if !wanted("C") {
        return;
    }
    let place = begun("c", &["decide.c", "sdk/contract.h", "sdk/policy.wit", "README.md"]);
    in_project(&place, "mkdir -p build && cc -Isdk -o build/test test.c decide.c sample.c && build/test").succeeded();
    let (_, grants) = built(&place);
    assert!(grants.is_empty());
    passes_the_gate(&place, &grants, 5..10);
    decodes(&place, &grants);
    samples(&place, &grants);
    decides_alike(&place, &grants);
    every_verb_works(&place, &grants);
    fs::write(place.path("mine/decide.c"), "broken\n").unwrap();
    run(&place, &["policy", "build", "mine"]).failed(1, "failed (exit status 1)");
}

#[test]
fn a_policy_in_python() {
    if !wanted("PYTHON") {
        return;
    }
    let place = begun("python", &["app.py", "wit/policy.wit", "requirements.txt", "README.md"]);
    let (_, grants) = built(&place);
    in_project(&place, "python3 -m unittest --quiet").succeeded();
    // Without the grant it is refused, with the option that grants it.
    place.run(&["policy", "inspect", "mine/mine.wasm"]).failed(2, "--policy-memory 64MiB");
    passes_the_gate(&place, &grants, 10..12);
    decodes(&place, &grants);
    samples(&place, &grants);
    decides_alike(&place, &grants);
    every_verb_works(&place, &grants);
}

#[test]
fn a_policy_in_javascript() {
    if !wanted("JS") {
        return;
    }
    let place = begun("js", &["policy.js", "wit/policy.wit", "package.json", "README.md"]);
    in_project(&place, "node --test").succeeded();
    let (_, grants) = built(&place);
    passes_the_gate(&place, &grants, 12..14);
    decodes(&place, &grants);
    samples(&place, &grants);
    decides_alike(&place, &grants);
    every_verb_works(&place, &grants);
}

#[test]
fn an_inert_wasi_is_given_only_where_it_is_granted() {
    if !wanted("JS") {
        return;
    }
    let place = begun("js", &[]);
    let rules = fs::read_to_string(place.path("mine/rules.js")).unwrap();
    let reason = "reason: `the best that fits";
    assert!(rules.contains(reason));
    let rules = rules.replace(reason, &format!("{reason} ${{Date.now()}} ${{Math.random()}}"));
    fs::write(place.path("mine/rules.js"), rules).unwrap();
    let built = run(&place, &["policy", "build", "mine", "--wasi", "inert", "--json"]).json();
    let imports = built["policy"]["imports"].to_string();
    assert!(imports.contains("wasi:"), "{imports}");
    assert_eq!(built["grants"], serde_json::json!(["--policy-memory 32MiB", "--wasi inert"]));
    place.run(&["policy", "inspect", "mine/mine.wasm", "--policy-memory", "32MiB"]).failed(2, "--wasi inert");
    decides_alike(&place, &["--policy-memory", "32MiB", "--wasi", "inert"].map(str::to_owned));
}

#[test]
fn what_is_no_project_and_what_stands_already_is_refused() {
    let place = Place::new();
    place.run(&["policy", "build"]).failed(2, "no policy project");
    place.run(&["policy", "build", "nowhere"]).failed(2, "nowhere");
    place.run(&["policy", "new", "1st"]).failed(2, "begin with a letter");
    place.run(&["policy", "new", "a/b"]).failed(2, "only letters, digits and -");
    place.run(&["policy", "new", "tilewright-sdk"]).failed(2, "it is the name of the SDK in the project");
    place.run(&["policy", "new", "mine", "--lang", "cobol"]).failed(2, "rust, c, python, js");
    place.write("file", "");
    place.run(&["policy", "new", "mine", "--into", "file"]).failed(1, "file");
    assert_eq!(place.files(), ["file"]);
    place.run(&["policy", "new", "mine"]).succeeded();
    place.run(&["policy", "new", "mine", "--lang", "c"]).failed(2, "exists already");
    assert_eq!(place.files(), ["file", "mine"]);
}

#[test]
fn a_missing_tool_chain_is_asked_for_by_the_command_that_gets_it() {
    for (language, advice) in [
        ("rust", "https://rustup.rs"),
        ("c", "apt install clang lld"),
        ("python", "pip install -r requirements.txt"),
        ("js", "apt install nodejs npm"),
    ] {
        let place = begun(language, &[]);
        let mut command = place.command(&["policy", "build", "mine"]);
        Run(command.env("PATH", "/nowhere").output().unwrap()).failed(1, advice);
    }
}
