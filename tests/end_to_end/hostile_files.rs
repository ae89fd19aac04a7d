//! Hostile files against every verb that reads them: no panic, no signal, one line, at most 20 s of
//! processor time, or ten times what good files take on a slow machine, and 1 GiB more than those,
//! and nothing left behind.

#[path = "hostile_files/bombs.rs"]
pub mod bombs;
#[path = "hostile_files/corpus.rs"]
mod corpus;

use std::{
    fs,
    io::Read,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    costly::measured,
    program::{Place, bundled, fixture, root},
    video::ffmpeg,
};
use corpus::{As, Hostile};

/// The memory limit beyond that of good files, in KiB.
const MOST_MEMORY: u64 = 1 << 20;

/// The limit of processor time in seconds, and as a multiple of what good files take here: a
/// machine that is slow is slow with those, too.
const MOST_TIME: u64 = 20;
const TIMES_GOOD: f64 = 10.0;

/// Much longer than [`MOST_TIME`]: a process that waits for ever uses no processor time.
const PATIENCE: Duration = Duration::from_secs(1800);

/// The commands that read a file of this kind.
fn commands(given_as: As, name: &str) -> Vec<Vec<String>> {
    let vae = fixture("flux-bfl/ae.safetensors");
    let latent = fixture("flux-bfl/latent.safetensors");
    let video = root().join("examples/models/wan-tiny/Wan2.1_VAE.safetensors").display().to_string();
    let list = |words: &[&str]| -> Vec<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    let at = format!("./{name}");
    match given_as {
        As::Latent => vec![list(&["decode", name, "--vae", &vae, "--device", "cpu", "-o", "out.png"])],
        As::Vae => vec![
            list(&["decode", &latent, "--vae", name, "--device", "cpu", "-o", "out.png"]),
            list(&["encode", "good.png", "--vae", name, "--device", "cpu", "-o", "out.latent"]),
        ],
        As::Picture => vec![list(&[
            "encode",
            name,
            "--vae",
            &fixture("sd15-ldm/vae-ft-mse.safetensors"),
            "--device",
            "cpu",
            "-o",
            "out.latent",
        ])],
        As::Clip => vec![list(&["encode", name, "--vae", &video, "--device", "cpu", "--dry-run", "-o", "out.latent"])],
        As::Policy => vec![
            list(&["policy", "inspect", &at]),
            list(&["decode", &latent, "--vae", &vae, "--device", "cpu", "--policy", &at, "--dry-run"]),
        ],
        As::Records => vec![list(&["policy", "replay", name])],
        As::Table => vec![list(&["policy", "simulate", "--device", name])],
        As::History => {
            vec![list(&["history"]), list(&["decode", &latent, "--vae", &vae, "--device", "cpu", "--dry-run"])]
        }
        As::Config => vec![list(&["--config", name, "config", "check"])],
    }
}

/// The command to run, in a folder with a good picture.
fn command(place: &Place, words: &[String], given_as: As, name: &str) -> Command {
    let mut command = place.command(words);
    if given_as == As::History {
        command.env("TILEWRIGHT_HISTORY", place.path(name));
    }
    // For ffmpeg.
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// The limits of a command.
#[derive(Clone, Copy)]
struct Bounds {
    seconds: u64,
    kibibytes: u64,
}

/// The same command under limits that the shell sets.
fn limited(command: &Command, bounds: Bounds) -> Command {
    let Bounds { seconds, kibibytes } = bounds;
    let mut shell = Command::new("/bin/sh");
    let script = format!("ulimit -c 0; ulimit -t {seconds}; ulimit -d {kibibytes}; exec \"$0\" \"$@\"");
    shell.args(["-c", &script]).arg(command.get_program()).args(command.get_args());
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    shell
}

/// The peak data size of a process until it ends, in KiB.
fn most_data(mut child: Child) -> u64 {
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        most = most.max(number.unwrap_or(0));
        thread::sleep(Duration::from_millis(2));
    }
    most
}

/// The result of a run.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs a command to the end, however much it prints; one that waits for ever is killed.
fn run(mut command: Command) -> Ended {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let drained = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = drained(Box::new(child.stdout.take().unwrap()));
    let stderr = drained(Box::new(child.stderr.take().unwrap()));
    let started = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if started.elapsed() > PATIENCE => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    Ended { code: status.and_then(|status| status.code()), stdout, stderr }
}

/// True if `inspect` is given files of this kind, too: many at once, since it starts as long as it
/// reads.
fn is_inspected(hostile: &Hostile) -> bool {
    hostile.given_as.iter().any(|role| matches!(role, As::Latent | As::Picture | As::Clip | As::Records))
}

/// The faults in the way that `inspect` deals with several files. If there are some, each file is
/// looked into by itself, so that the fault has its name.
fn inspected(all: &[&Hostile], bounds: Bounds) -> Vec<String> {
    let place = Place::new();
    let _listeners: Vec<_> = all.iter().filter_map(|hostile| hostile.write(place.path(".").as_path())).collect();
    let names = all.iter().map(|hostile| hostile.name.clone());
    let words: Vec<String> = ["inspect".to_owned()].into_iter().chain(names).collect();
    let look = |bounds| objection(&place, all, all[0].given_as[0], &words, bounds);
    let together = look(bounds);
    if together.is_none() || all.len() == 1 {
        return together.into_iter().collect();
    }
    let alone: Vec<String> = all.iter().flat_map(|hostile| inspected(&[*hostile], bounds)).collect();
    // Each within its time may take longer than one together.
    let seconds = bounds.seconds.saturating_mul(all.len() as u64);
    if alone.is_empty() { look(Bounds { seconds, ..bounds }).into_iter().collect() } else { alone }
}

/// The faults in a command's handling of files; none if all is well.
fn objection(place: &Place, files: &[&Hostile], given_as: As, words: &[String], bounds: Bounds) -> Option<String> {
    let hostile = files[0];
    let ended = run(limited(&command(place, words, given_as, &hostile.name), bounds));
    let mut wrong = Vec::new();
    let errors = ended.stderr.lines().filter(|line| line.starts_with("error: ")).count();
    match ended.code {
        None => wrong.push("it was ended by a signal, or never ended".to_owned()),
        Some(0) if errors == 0 => {}
        Some(1 | 2) if errors == 1 => {}
        Some(code) => wrong.push(format!("status {code} with {errors} errors")),
    }
    for noise in ["panicked", "C++", "Exception", "backtrace", "at::", "overflow"] {
        if ended.stderr.contains(noise) {
            wrong.push(format!("it says {noise}"));
        }
    }
    let output = |name: &String| ended.code == Some(0) && name.starts_with("out.");
    // A damaged history is put aside under a longer name.
    let history = |name: &String| given_as == As::History && name.starts_with(&hostile.name);
    let is_given = |name: &String| files.iter().any(|hostile| hostile.name == *name);
    let expected = |name: &String| is_given(name) || name == "good.png" || output(name) || history(name);
    let left: Vec<String> = place.files().into_iter().filter(|name| !expected(name)).collect();
    if !left.is_empty() {
        wrong.push(format!("it leaves {left:?}"));
    }
    let _ = ["out.png", "out.latent"].map(|name| fs::remove_file(place.path(name)));
    let said = format!("{}{}", ended.stdout, ended.stderr);
    let said: String = said.chars().take(600).collect();
    (!wrong.is_empty()).then(|| format!("{} as {given_as:?} ({words:?}): {}: {said}", hostile.name, wrong.join(", ")))
}

#[test]
fn hostile_files_are_refused_within_bounds_by_every_verb() {
    let good = root().join("examples/astronaut-decoded.png");
    // The memory that the same commands take for good files.
    let place = Place::new();
    let [latent, _, vae] = bundled();
    let whole = [
        vec!["decode", &latent, "--vae", &vae, "--device", "cpu", "-o", "out.png"],
        vec!["encode", good.to_str().unwrap(), "--vae", &vae, "--device", "cpu", "-o", "out.latent"],
    ];
    let baseline = whole.each_ref().map(|words| {
        let child = place.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        most_data(child)
    });
    let baseline = baseline.into_iter().max().unwrap();
    assert!(baseline > 0, "good files take memory, too");
    let good = whole.iter().map(|words| measured(&place, words).1).fold(0.0, f64::max);
    let seconds = MOST_TIME.max((TIMES_GOOD * good).ceil() as u64);
    let bounds = Bounds { seconds, kibibytes: baseline + MOST_MEMORY };

    let corpus = corpus::all(ffmpeg());
    assert!(corpus.len() >= 200, "{}", corpus.len());
    let to_inspect: Vec<&Hostile> = corpus.iter().filter(|hostile| is_inspected(hostile)).collect();
    let batches: Vec<&[&Hostile]> = to_inspect.chunks(16).collect();
    let (next, next_batch) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let mut objections = Vec::new();
        while let Some(batch) = batches.get(next_batch.fetch_add(1, Ordering::Relaxed)) {
            objections.extend(inspected(batch, bounds).into_iter().inspect(|line| println!("{line}")));
        }
        while let Some(hostile) = corpus.get(next.fetch_add(1, Ordering::Relaxed)) {
            for given_as in hostile.given_as {
                let place = Place::new();
                fs::copy(fixture("../../examples/astronaut-decoded.png"), place.path("good.png")).unwrap();
                let _listener = hostile.write(place.path(".").as_path());
                for words in commands(*given_as, &hostile.name) {
                    let found = objection(&place, &[hostile], *given_as, &words, bounds);
                    // Printed at once: a run that is cut off still shows its findings.
                    objections.extend(found.inspect(|line| println!("{line}")));
                }
            }
        }
        objections
    };
    let objections: Vec<String> = thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(objections.is_empty(), "{} of {} files:\n{}", objections.len(), corpus.len(), objections.join("\n"));
}
