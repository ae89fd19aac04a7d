//! The program's behaviour towards terminals, pipes, signals and scripts.

use std::{
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tilewright_plan::terminal::is_safe;

use crate::program::{Place, Run, bundled, fixture, smaller};

/// A name that clears the screen, sets the title, turns the direction of writing and forges a line.
const HOSTILE: &str = "a\u{1b}[2J\u{1b}]0;t\u{7}\u{9b}31m\u{202e}b\r\nerror: forged";

/// The text as a JSON string.
fn in_json(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// A safetensors file whose tensor, text and key have the hostile name.
fn hostile_file() -> Vec<u8> {
    let name = in_json(HOSTILE);
    let header = format!(
        r#"{{"__metadata__":{{{name}:{name}}},{name}:{{"dtype":"F32","shape":[1,4,8,8],"data_offsets":[0,1024]}}}}"#
    );
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 1024]].concat()
}

fn assert_clean(run: &Run, what: &str) {
    for text in [run.stdout(), run.stderr()] {
        assert!(text.chars().all(|one| is_safe(one) || "\n\t".contains(one)), "{what}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("error: forged")), "{what}: {text}");
    }
}

#[test]
fn what_files_say_reaches_a_terminal_cleaned() {
    let place = Place::new();
    place.write("hostile.safetensors", hostile_file());
    let config = format!("[[routes]]\npolicy = \"fixed\"\nname = {}\n", in_json(HOSTILE));
    place.write("hostile.toml", config);
    let [_, _, vae] = bundled();
    let latent = ["decode", "hostile.safetensors", "--vae", &vae, "--device", "cpu"];
    for arguments in [
        &["inspect", "hostile.safetensors", "--tensors"][..],
        &["inspect", "hostile.safetensors", "--tensors", "--json"],
        &["inspect", HOSTILE],
        &["config", "check", "--config", "hostile.toml"],
        &["policy", "inspect", HOSTILE],
        &["decode", HOSTILE, "--vae", HOSTILE, "--policy", HOSTILE],
        &["-vvv", "policy", "check", "./hostile.safetensors.wasm"],
        &latent,
    ] {
        let run = place.run(arguments);
        assert_clean(&run, &arguments.join(" "));
        assert!(!run.stdout().is_empty() || !run.stderr().is_empty());
    }
    // The name stays recognisable, and JSON gives it unchanged.
    let table = place.run(&["inspect", "hostile.safetensors", "--tensors"]);
    assert!(
        table.succeeded().stdout().contains(r"a\u001b[2J\u001b]0;t\u0007\u009b31m\u202eb\r\nerror: forged"),
        "{}",
        table.stdout()
    );
    let json = place.run(&["inspect", "hostile.safetensors", "--tensors", "--json"]).json();
    assert_eq!(json["listing"][0]["name"], HOSTILE);
}

/// Runs a command and reads nothing from its standard output.
fn unread(mut command: Command) -> Run {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    Run(child.wait_with_output().unwrap())
}

#[test]
fn a_reader_that_has_gone_is_no_failure() {
    let place = Place::new();
    let vae = fixture("flux-bfl/ae.safetensors");
    for arguments in [
        &["completions", "bash"][..],
        &["completions", "zsh"],
        &["man"],
        &["--help"],
        &["--version"],
        &["help", "decode"],
        &["policy", "list"],
        &["policy", "list", "--json"],
        &["policy", "inspect", "adaptive"],
        &["history"],
        &["config", "check"],
        &["inspect", &vae, "--tensors"],
    ] {
        let run = unread(place.command(arguments));
        let what = arguments.join(" ");
        assert_eq!(run.0.status.code(), Some(0), "{what}: {}", run.stderr());
        assert_eq!(run.stderr(), "", "{what}");
    }
}

/// True if the process handles SIGINT and SIGTERM, signals 2 and 15, by the mask in its status
/// (proc(5)).
pub fn listens(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask & (1 << 1) != 0 && mask & (1 << 14) != 0
}

/// Ends a test that hangs, and nothing else.
const PATIENCE: Duration = Duration::from_secs(900);

/// Sends a signal when the process listens and some more time has passed, and waits for its end.
fn interrupted(mut child: Child, signal: &str, later: Duration) -> Run {
    let start = Instant::now();
    while !listens(&child) {
        assert!(start.elapsed() < PATIENCE, "it does not listen");
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(later);
    // A process that nobody has waited for yet can be sent a signal, also after its end.
    let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().unwrap();
    assert!(sent.success());
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "it does not end");
        thread::sleep(Duration::from_millis(5));
    }
    Run(child.wait_with_output().unwrap())
}

#[test]
fn signals_end_it_with_their_statuses_and_one_line() {
    let place = Place::new();
    for (signal, status) in [("INT", 130), ("TERM", 143)] {
        // The command waits for its standard input, which nobody writes to.
        let mut command = place.command(&["policy", "replay", "-"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let run = interrupted(child, signal, Duration::ZERO);
        run.failed(status, "interrupted");
        assert_eq!(run.stderr().lines().count(), 1, "{}", run.stderr());
    }
}

#[test]
fn a_signal_amid_libtorchs_work_ends_it_as_cleanly() {
    let place = Place::new();
    // Often, since the threads of libtorch are rarely all at a harmful place.
    let mut ended = 0;
    for later in [0, 400, 800, 1200, 600, 200] {
        let mut command = place.command(&["device", "--device", "cpu"]);
        command.env_remove("OMP_NUM_THREADS");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It measures for about 3 s; on a machine that is done before, it has ended well.
        let run = interrupted(child, "INT", Duration::from_millis(later));
        if run.0.status.success() {
            continue;
        }
        run.failed(130, "interrupted");
        assert_eq!(run.stderr().lines().last(), Some("error: interrupted"), "{}", run.stderr());
        ended += 1;
    }
    assert!(ended > 0, "none was interrupted");
}

#[test]
fn a_configuration_that_is_not_there_is_refused_everywhere() {
    let place = Place::new();
    let [latent, _, vae] = bundled();
    for arguments in [
        &["decode", &latent, "--vae", &vae][..],
        &["encode", "x.png", "--vae", &vae],
        &["inspect", &vae],
        &["device"],
        &["bench", &latent, "--vae", &vae],
        &["policy", "list"],
        &["policy", "inspect", "adaptive"],
        &["policy", "check", "adaptive"],
        &["history"],
        &["history", "path"],
        &["config", "check"],
        &["config", "path"],
        &["serve"],
        &["completions", "bash"],
        &["man"],
    ] {
        let mut with = arguments.to_vec();
        with.extend(["--config", "missing.toml"]);
        place.run(&with).failed(2, "missing.toml: the configuration can't be read: No such file");
    }
    assert!(place.files().is_empty());
}

#[test]
fn weights_that_cannot_be_loaded_are_no_outcome_of_a_plan() {
    let place = Place::new();
    let [latent, _, vae] = bundled();
    // F8 is a dtype that headers may have but no decoder computes with; each value is one byte of
    // the file.
    let bytes = std::fs::read(vae).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let (mut at, mut tensors) = (0, serde_json::Map::new());
    for (name, tensor) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let count: u64 = tensor["shape"].as_array().unwrap().iter().map(|extent| extent.as_u64().unwrap()).product();
        let offsets = [at, at + count];
        tensors.insert(
            name.clone(),
            serde_json::json!({"dtype": "I8", "shape": tensor["shape"], "data_offsets": offsets}),
        );
        at += count;
    }
    let header = serde_json::to_vec(&tensors).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &vec![1; at as usize]].concat();
    place.write("i8.safetensors", file);
    let run =
        place.decode(&[latent.as_str(), "--vae", "i8.safetensors"], &["--record", "records.jsonl", "-o", "x.png"]);
    assert_eq!(run.0.status.code(), Some(2), "{}", run.stderr());
    let recorded = std::fs::read_to_string(place.path("records.jsonl")).unwrap_or_default();
    assert_eq!(recorded, "", "nothing is recorded");
    assert!(!place.path("x.png").exists());
    assert_eq!(place.run(&["history", "list", "--json"]).succeeded().stdout(), "");
}

#[test]
fn json_names_the_outputs_and_quiet_says_nothing() {
    let place = Place::new();
    let inputs = smaller(&place);
    let report = place.decode(&inputs, &["-o", "one.png", "--explain-image", "tiles.png", "--json"]).json();
    assert_eq!(report["outputs"], serde_json::json!(["one.png", "tiles.png"]));
    let nothing = place.decode(&inputs, &["--dry-run", "--json"]).json();
    assert_eq!(nothing["outputs"], serde_json::json!([]), "nothing was written");

    let quiet = place.decode(&inputs, &["-o", "two.png", "--quiet"]);
    assert_eq!((quiet.succeeded().stdout(), quiet.stderr()), (String::new(), String::new()));
    assert!(place.path("two.png").is_file());
    let explained = place.decode(&inputs, &["-o", "two.png", "-q", "--explain"]).succeeded().stdout();
    assert!(explained.contains("considered") && !explained.contains("measured  "), "{explained}");
    place.decode(&inputs, &["-o", "two.nonsense", "-q"]).failed(2, "two.nonsense");
    place.run(&["device", "-q", "-v"]).failed(2, "cannot be used with");
}

#[test]
fn names_that_are_nearly_right_are_guessed() {
    let place = Place::new();
    let inputs = bundled();
    for (options, words) in [
        (&["--policy", "adaptiv"][..], "unknown policy 'adaptiv' (did you mean adaptive?)"),
        (&["--policy", "fixed", "--set", "tyle=64"], "no setting 'tyle' (did you mean tile?)"),
        (&["--family", "fluks"], "unknown family 'fluks' (did you mean flux?)"),
        (&["--family", "sdxl"], "is of the family flux or sd3, as its tensors show, not of sdxl"),
        (&["--objective", "fastst"], "a similar value exists: 'fastest'"),
        (&["--polcy", "fixed"], "a similar argument exists: '--policy'"),
    ] {
        place.decode(&inputs, options).failed(2, words);
    }
    place.run(&["decod"]).failed(2, "similar subcommands exist: 'device', 'demo', 'encode', 'decode'");
    place.run(&["policy", "chek", "x.wasm"]).failed(2, "a similar subcommand exists: 'check'");
    place.run(&["bench", "weights", "fluks", "-o", "x"]).failed(2, "(did you mean flux?)");
}

#[test]
fn a_route_knows_the_families_that_a_decode_knows() {
    let place = Place::new();
    place.configure("[[routes]]\nfamily = \"nothing\"\npolicy = \"fixed\"\n");
    let told = |run: Run| {
        let error = run.stderr();
        let families = error.split("expected one of ").nth(1).unwrap_or_else(|| panic!("{error}"));
        families.lines().next().unwrap().trim().trim_end_matches(" (see --help)").to_owned()
    };
    place.run(&["config", "check"]).failed(2, "config.toml:2: unknown family 'nothing'");
    let by_route = told(place.run(&["config", "check"]));
    let elsewhere = Place::new();
    assert_eq!(by_route, told(elsewhere.decode(&bundled(), &["--family", "nothing", "-o", "x.png"])));
}

#[test]
fn what_a_server_would_not_start_with_is_refused_by_the_check_with_the_same_line() {
    let place = Place::new();
    let [_, _, vae] = bundled();
    place.write("short", "0123456789");
    place.write("text.pem", "nothing");
    let model = |more: &str| format!("[models.flux]\nvae = \"{vae}\"\n{more}");
    let policy = "[policies.own]\nsource = \"fixed\"\nset = { tile = 0 }\n".to_owned();
    let check = |text: &str| {
        place.write("c.toml", format!("[server]\ndata = \"data\"\nlisten = \"127.0.0.1:0\"\n{text}"));
        place.run(&["config", "check", "--config", "c.toml"])
    };
    let said = check(&model("")).succeeded().stdout();
    assert!(said.contains("flux: flux") && said.contains("keeps jobs in"), "{said}");
    for (text, words) in [
        ("token-file = \"short\"\n".to_owned() + &model(""), "c.toml:4: short: expected a token of at least 16"),
        (
            "tls = { certificate = \"text.pem\", key = \"text.pem\" }\n".to_owned() + &model(""),
            "c.toml:4: text.pem: no certificate in it",
        ),
        (policy, "c.toml:6: policy fixed: tile=0: allowed is"),
        (model("family = \"sd\"\n"), "c.toml:6: "),
    ] {
        check(&text).failed(2, words);
        place.run(&["serve", "--config", "c.toml"]).failed(2, words);
    }
}

#[test]
fn a_manual_page_is_printed_and_written_for_every_command() {
    let place = Place::new();
    let page = place.run(&["man"]).succeeded().stdout();
    assert!(page.contains(".TH tilewright 1") && page.contains("decode") && !page.contains('\u{1b}'), "{page}");
    std::fs::create_dir(place.path("man")).unwrap();
    place.run(&["man", "man"]).succeeded();
    for name in ["tilewright.1", "tilewright-decode.1", "tilewright-policy-check.1"] {
        assert!(place.path("man").join(name).is_file(), "{name}");
    }
    place.run(&["man", "nowhere"]).failed(2, "nowhere: no such folder");
}

#[test]
fn manual_pages_are_written_as_other_outputs_are() {
    let place = Place::new();
    std::fs::create_dir(place.path("man")).unwrap();
    let pages = || std::fs::read_dir(place.path("man")).unwrap().count();
    let pipe = place.path("man/tilewright.1");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    place.run(&["man", "man"]).failed(2, "tilewright.1: is a pipe");
    assert_eq!(pages(), 1, "nothing was written");
    std::fs::remove_file(&pipe).unwrap();
    place.write("victim", "precious");
    std::fs::hard_link(place.path("victim"), place.path("man/tilewright.1")).unwrap();
    place.run(&["man", "man"]).succeeded();
    assert_eq!(std::fs::read_to_string(place.path("victim")).unwrap(), "precious");
    assert!(std::fs::read_to_string(place.path("man/tilewright.1")).unwrap().contains(".TH tilewright 1"));
    assert!(pages() > 10, "{}", pages());
}

#[test]
fn a_first_decode_says_what_it_waits_for() {
    let place = Place::new();
    let cache = tempfile::tempdir().unwrap();
    let note = "note: measuring ";
    let run = |options: &[&str]| {
        let [latent, file] = ["latent", "ae"].map(|name| fixture(&format!("flux-bfl/{name}.safetensors")));
        let mut arguments = vec!["decode", &latent, "--vae", &file, "--device", "cpu", "-o", "x.png"];
        arguments.extend(options);
        Run(place.command(&arguments).env("XDG_CACHE_HOME", cache.path()).output().unwrap())
    };
    assert!(run(&[]).succeeded().stderr().contains(note));
    let files = walk(cache.path());
    // As if this machine were quiet: others are measured again when they are.
    let kept = cache.path().join("tilewright").join(files.iter().find(|name| name.starts_with("probe-")).unwrap());
    let mut probe: serde_json::Value = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    probe["measured"]["disturbed"] = false.into();
    probe["was_quiet"] = true.into();
    std::fs::write(&kept, probe.to_string()).unwrap();
    assert!(!run(&[]).succeeded().stderr().contains(note));
    let files = walk(cache.path());
    assert!(files.iter().all(|name| !name.starts_with(".tilewright-")), "{files:?}");
}

fn walk(folder: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("tilewright")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}
