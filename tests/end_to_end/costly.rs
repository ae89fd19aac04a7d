//! Modules made to be costly to compile, through every verb that takes a module: it ends soon, with
//! a reason and in little memory, the compiling process included, and the next command works.

use std::{
    ffi::OsStr,
    fmt::Debug,
    fs,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::{
    hostile::with_fields,
    program::{Place, fixture},
};

/// Seconds of processor time that a command may take: more than the limits of the compiling process
/// and of the gate together, which are the same on every machine.
const MOST_SECONDS: f64 = 5.0;

/// On a slow machine the program's own work counts for more: as many times what it takes here for a
/// healthy module.
const TIMES_HEALTHY: f64 = 4.0;

/// Bytes that a command and the processes that it starts may hold together.
const MOST_BYTES: u64 = 512 << 20;

/// A module of each kind that is refused, and one that just compiles. The kinds that take too much
/// to compile are one to a verb: the answer is the same for each.
fn modules() -> Vec<(&'static str, Vec<u8>, Option<&'static str>)> {
    let wide = "i64 ".repeat(64);
    let blocks = format!(
        "(type $wide (func (param {wide}) (result {wide}))) (func {} {} {} {})",
        "i64.const 1 ".repeat(64),
        "loop (type $wide) ".repeat(1000),
        "end ".repeat(1000),
        "drop ".repeat(64)
    );
    let stack = format!("(func (param i32) {} {} drop)", "local.get 0 ".repeat(16_000), "i32.xor ".repeat(15_999));
    let loops = format!("(func {} {})", "loop ".repeat(24_000), "i32.const 0 br_if 0 end ".repeat(24_000));
    let signatures =
        format!("(type $wide (func (param {}))) {}", "i64 ".repeat(1000), "(func (type $wide))".repeat(2000));
    let many = format!("(func {} {})", "loop ".repeat(10), "i32.const 0 br_if 0 end ".repeat(10)).repeat(400);
    let too_much = Some("too much to compile");
    vec![
        ("blocks.wasm", with_fields(&blocks), too_much),
        ("stack.wasm", with_fields(&stack), too_much),
        ("loops.wasm", with_fields(&loops), too_much),
        ("signatures.wasm", with_fields(&signatures), too_much),
        ("adapters.wasm", adapters(), Some("a component within it holds code of its own")),
        ("many.wasm", with_fields(&many), None),
    ]
}

/// A component with calls between two inner ones, of a tuple with many fields.
fn adapters() -> Vec<u8> {
    let tuple = format!("(tuple {})", "u8 ".repeat(900));
    let lowered: String =
        (0..400).map(|call| format!(r#"(core func $l{call} (canon lower (func $f) (memory $m "memory")))"#)).collect();
    // An adapter that nothing calls is not made.
    let used: String = (0..400).map(|call| format!(r#"(import "" "{call}" (func (param i32)))"#)).collect();
    let given: String = (0..400).map(|call| format!(r#"(export "{call}" (func $l{call}))"#)).collect();
    let text = format!(
        r#"(component
        (component $a
            (core module $m (memory (export "memory") 1) (func (export "f") (param i32))
                (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 0))
            (core instance $m (instantiate $m))
            (func (export "f") (param "x" {tuple}) (canon lift (core func $m "f") (memory $m "memory") (realloc (func $m "realloc")))))
        (component $b
            (import "f" (func $f (param "x" {tuple})))
            (core module $m (memory (export "memory") 1))
            (core instance $m (instantiate $m))
            {lowered}
            (core module $user {used})
            (core instance (instantiate $user (with "" (instance {given})))))
        (instance $a (instantiate $a))
        (instance (instantiate $b (with "f" (func $a "f"))))
        (instance $names)
        (export "tilewright:policy/lifecycle@0.1.0" (instance $names))
        (export "tilewright:policy/decoding-policy@0.1.0" (instance $names)))"#
    );
    wat::parse_str(text).unwrap()
}

/// Resident bytes of a process and all its descendants.
fn resident(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let own = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10;
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    own + children.split_whitespace().map(resident).sum::<u64>()
}

/// A command's standard error, its processor seconds and its peak of resident bytes, its children
/// included.
pub fn measured<S: AsRef<OsStr> + Debug>(place: &Place, arguments: &[S]) -> (String, f64, u64) {
    let program = place.command(&[] as &[&str]);
    // The shell's builtin `times` knows the processor time of all that it waited for.
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", r#""$0" "$@" >&2; times"#]).arg(program.get_program()).args(arguments);
    shell.env_clear().current_dir(place.path("."));
    shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id().to_string();
    let (mut most, started) = (0, Instant::now());
    while child.try_wait().unwrap().is_none() {
        most = most.max(resident(&id));
        assert!(started.elapsed() < Duration::from_secs(900), "{arguments:?} does not end");
        thread::sleep(Duration::from_millis(4));
    }
    let output = child.wait_with_output().unwrap();
    let times = String::from_utf8(output.stdout).unwrap();
    let seconds = times.lines().last().unwrap().split_whitespace().map(|time| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        60.0 * minutes.parse::<f64>().unwrap() + seconds.parse::<f64>().unwrap()
    });
    (String::from_utf8(output.stderr).unwrap(), seconds.sum(), most)
}

#[test]
fn every_verb_ends_soon_whatever_a_module_costs_to_compile() {
    let place = Place::new();
    let (latent, vae) = (fixture("flux-bfl/latent.safetensors"), fixture("flux-bfl/ae.safetensors"));
    let healthy = place.write("healthy.wasm", with_fields(""));
    let verbs = |module: &str| -> [Vec<String>; 5] {
        let decode = ["decode", &latent, "--vae", &vae, "--device", "cpu", "-o", "x.png", "--policy", module];
        [
            &["policy", "inspect", module][..],
            &["policy", "check", module],
            &["policy", "bench", module, "--iterations", "10"],
            &["policy", "diff", "fixed", module],
            &decode,
        ]
        .map(|words| words.iter().map(|&word| word.to_owned()).collect())
    };
    let usual = verbs(&healthy).map(|verb| {
        let seconds = measured(&place, &verb).1;
        println!("healthy {}: {seconds:.2} s", verb[..2].join(" "));
        seconds
    });
    for (name, module, reason) in modules() {
        let module = place.write(name, module);
        let count = if ["stack.wasm", "loops.wasm", "signatures.wasm"].contains(&name) { 1 } else { usual.len() };
        for (verb, usual) in verbs(&module).iter().zip(usual).take(count) {
            let (said, seconds, bytes) = measured(&place, verb);
            println!("{name} {}: {seconds:.2} s, {} MiB", verb[..2].join(" "), bytes >> 20);
            assert!(seconds < MOST_SECONDS.max(TIMES_HEALTHY * usual), "{verb:?}: {seconds} s, {usual} s usually");
            assert!(bytes < MOST_BYTES, "{verb:?}: {} MiB", bytes >> 20);
            if let Some(reason) = reason {
                assert!(said.contains(reason), "{verb:?}: {said}");
            }
        }
    }
    place.run(&["policy", "inspect", &healthy]).succeeded();
    place.decode(&[latent, "--vae".into(), vae], &["-o", "x.png", "--policy", &healthy]).succeeded();
}
