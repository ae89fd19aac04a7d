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
    program::{Place, fixture, root, smaller},
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

/// A verb that takes many files at once, since it starts as long as it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Many {
    Inspect,
    Decode,
    Encode,
}

impl Many {
    const ALL: [Self; 3] = [Self::Inspect, Self::Decode, Self::Encode];

    /// The roles in which it is given files.
    fn roles(self) -> &'static [As] {
        match self {
            Self::Inspect => &[As::Latent, As::Picture, As::Clip, As::Records],
            Self::Decode => &[As::Latent],
            Self::Encode => &[As::Picture],
        }
    }

    /// True if it takes this file: work on several ends before it begins if one of them is no file.
    fn takes(self, hostile: &Hostile) -> bool {
        let is_given = hostile.given_as.iter().any(|role| self.roles().contains(role));
        is_given && (self == Self::Inspect || hostile.is_file())
    }

    fn command(self, names: &[&str]) -> Vec<String> {
        match self {
            Self::Inspect => list(&[&["inspect"], names].concat()),
            Self::Decode => decode(names, &["-o", "out.{n}.png"]),
            Self::Encode => encode(names, &fixture("sd15-ldm/vae-ft-mse.safetensors"), &["-o", "out.{n}.latent"]),
        }
    }
}

fn list(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn decode(names: &[&str], options: &[&str]) -> Vec<String> {
    let vae = fixture("flux-bfl/ae.safetensors");
    list(&[&["decode"], names, &["--vae", &vae, "--device", "cpu"], options].concat())
}

fn encode(names: &[&str], vae: &str, options: &[&str]) -> Vec<String> {
    list(&[&["encode"], names, &["--vae", vae, "--device", "cpu"], options].concat())
}

/// The command that reads a file of this kind.
fn command_for(given_as: As, name: &str) -> Vec<String> {
    let latent = fixture("flux-bfl/latent.safetensors");
    let video = root().join("examples/models/wan-tiny/Wan2.1_VAE.safetensors").display().to_string();
    let at = format!("./{name}");
    match given_as {
        As::Latent => decode(&[name], &["-o", "out.png"]),
        As::Vae => list(&["decode", &latent, "--vae", name, "--device", "cpu", "-o", "out.png"]),
        As::Encoder => encode(&["good.png"], name, &["-o", "out.latent"]),
        As::Picture => encode(&[name], &fixture("sd15-ldm/vae-ft-mse.safetensors"), &["-o", "out.latent"]),
        As::Clip => encode(&[name], &video, &["--dry-run", "-o", "out.latent"]),
        As::Policy => list(&["policy", "inspect", &at]),
        As::Planner => decode(&[&latent], &["--policy", &at, "--dry-run"]),
        As::Records => list(&["policy", "replay", name]),
        As::Table => list(&["policy", "simulate", "--device", name]),
        As::History => decode(&[&latent], &["--dry-run"]),
        As::Config => list(&["--config", name, "config", "check"]),
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

/// The faults in the way that a verb deals with several files. If there are some, it is given each
/// file by itself, so that the fault has its name.
fn together(many: Many, all: &[&Hostile], bounds: Bounds) -> Vec<String> {
    let place = Place::new();
    let _listeners: Vec<_> = all.iter().filter_map(|hostile| hostile.write(place.path(".").as_path())).collect();
    let names: Vec<&str> = all.iter().map(|hostile| hostile.name.as_str()).collect();
    let words = many.command(&names);
    let look = |bounds| objection(&place, all, all[0].given_as[0], &words, bounds);
    let found = look(bounds);
    if found.is_none() || all.len() == 1 {
        return found.into_iter().collect();
    }
    println!("each by itself: {found:?}");
    let alone: Vec<String> = all.iter().flat_map(|hostile| together(many, &[*hostile], bounds)).collect();
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
    // Work on several files goes on behind one that fails, and the others have their outputs.
    let is_work = files.len() > 1 && words[0] != "inspect";
    let failed = ended.stderr.lines().filter(|line| line.starts_with("failed: ")).count();
    let is_done = ended.code == Some(0) || is_work && ended.code == Some(1) && failed < files.len();
    let output = |name: &String| is_done && name.starts_with("out.");
    for (index, hostile) in files.iter().enumerate().filter(|_| is_work) {
        if !ended.stderr.contains(&format!("{} of {}: {}\n", index + 1, files.len(), hostile.name)) {
            wrong.push(format!("it does not come to {}", hostile.name));
        }
    }
    // A damaged history is put aside under a longer name.
    let history = |name: &String| given_as == As::History && name.starts_with(&hostile.name);
    let is_given = |name: &String| files.iter().any(|hostile| hostile.name == *name);
    let expected = |name: &String| is_given(name) || name == "good.png" || output(name) || history(name);
    let (outputs, others): (Vec<String>, Vec<String>) =
        place.files().into_iter().partition(|name| name.starts_with("out."));
    let left: Vec<&String> = outputs.iter().chain(&others).filter(|name| !expected(name)).collect();
    if !left.is_empty() || is_work && outputs.len() + failed > files.len() {
        wrong.push(format!("it leaves {left:?}, and {} outputs of {} files", outputs.len(), files.len() - failed));
    }
    outputs.iter().for_each(|name| fs::remove_file(place.path(name)).unwrap());
    let said = format!("{}{}", ended.stdout, ended.stderr);
    let said: String = said.chars().take(600).collect();
    (!wrong.is_empty()).then(|| format!("{} as {given_as:?} ({words:?}): {}: {said}", hostile.name, wrong.join(", ")))
}

#[test]
fn hostile_files_are_refused_within_bounds_by_every_verb() {
    // The memory that the same commands take for good files.
    let place = Place::new();
    let [latent, _, vae] = smaller(&place);
    let photograph = image::open(root().join("examples/latents/astronaut.png")).unwrap();
    photograph.crop_imm(160, 160, 192, 192).save(place.path("good.png")).unwrap();
    let good_picture = fs::read(place.path("good.png")).unwrap();
    let whole = [
        vec!["decode", &latent, "--vae", &vae, "--device", "cpu", "-o", "out.png"],
        vec!["encode", "good.png", "--vae", &vae, "--device", "cpu", "-o", "out.latent"],
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
    let mut batches: Vec<(Many, Vec<&Hostile>)> = Vec::new();
    for many in Many::ALL {
        let (large, small): (Vec<&Hostile>, Vec<&Hostile>) =
            corpus.iter().filter(|hostile| many.takes(hostile)).partition(|hostile| hostile.is_large());
        // The costly ones together are over a command's time, and then none was of use.
        let batched = large.chunks(1).chain(small.chunks(16));
        batches.extend(batched.map(|batch| (many, batch.to_vec())));
    }
    let (next, next_batch) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let mut objections = Vec::new();
        while let Some((many, batch)) = batches.get(next_batch.fetch_add(1, Ordering::Relaxed)) {
            objections.extend(together(*many, batch, bounds).into_iter().inspect(|line| println!("{line}")));
        }
        while let Some(hostile) = corpus.get(next.fetch_add(1, Ordering::Relaxed)) {
            let works = [Many::Decode, Many::Encode].into_iter().filter(|many| many.takes(hostile));
            let done: Vec<&As> = works.flat_map(Many::roles).collect();
            for given_as in hostile.given_as.iter().filter(|role| !done.contains(role)) {
                let place = Place::new();
                fs::write(place.path("good.png"), &good_picture).unwrap();
                let _listener = hostile.write(place.path(".").as_path());
                let history = (*given_as == As::History).then(|| list(&["history"]));
                for words in history.into_iter().chain([command_for(*given_as, &hostile.name)]) {
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
