//! Files of weights and latents that change while the program reads them. A test meets the program
//! at a point of its work and changes a file there.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{ErrorKind, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::program::{Place, Run, fixture};
use crate::{generate::fresh_prompt, service::server::PATIENCE};

/// The words of each failure.
const CHANGED: &str = "changed while it was in use";

/// A point at which the program waits for a test.
pub struct Meeting {
    pipe: PathBuf,
    point: String,
}

impl Meeting {
    /// At a point of the work; the program has to be started with [`Self::environment`].
    pub fn at(place: &Place, point: &str) -> Self {
        let pipe = place.path("meeting");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        Self { pipe, point: point.to_owned() }
    }

    pub fn environment(&self) -> [(&'static str, String); 1] {
        [("TILEWRIGHT_MEET_AT", format!("{}={}", self.point, self.pipe.display()))]
    }

    /// Waits for the program, does something while it waits, and lets it go on; it does not stop
    /// there again.
    pub fn hold<T>(self, meanwhile: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        // None reads the pipe before the program is there.
        let waits = loop {
            match OpenOptions::new().write(true).custom_flags(nonblocking()).open(&self.pipe) {
                Ok(pipe) => break pipe,
                Err(error) => assert!(error.kind() != ErrorKind::NotFound, "{error}"),
            }
            assert!(started.elapsed() < PATIENCE, "the program never comes to '{}'", self.point);
            thread::sleep(Duration::from_millis(5));
        };
        let found = meanwhile();
        fs::remove_file(&self.pipe).unwrap();
        drop(waits);
        found
    }
}

fn nonblocking() -> i32 {
    // The number of O_NONBLOCK on Linux.
    0o4000
}

/// A way in which a file changes.
type Change = fn(&Path);

/// The ways that leave another file in the place of the open one's contents.
const CHANGES: [(&str, Change); 3] =
    [("cut short", cut_short), ("copied over", copy_over), ("written over", write_over)];

/// Two of the ways: the one in which nothing faults, so that only a look at the file shows it, and
/// one of the others in turn.
pub fn two_ways(turn: usize) -> [(&'static str, Change); 2] {
    [CHANGES[turn % 2], CHANGES[2]]
}

fn cut_short(path: &Path) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap();
}

/// As `cp` does it, with a file of another length.
fn copy_over(path: &Path) {
    let other = path.with_extension("other");
    fs::write(&other, [fs::read(path).unwrap(), vec![0; 5000]].concat()).unwrap();
    assert!(Command::new("cp").arg(&other).arg(path).status().unwrap().success());
    fs::remove_file(other).unwrap();
}

/// In place, with as many bytes: nothing faults.
fn write_over(path: &Path) {
    let bytes: Vec<u8> = fs::read(path).unwrap().iter().map(|byte| byte ^ 1).collect();
    OpenOptions::new().write(true).open(path).unwrap().write_all(&bytes).unwrap();
}

/// A copy of a file, of long ago and of another second than all others: a file system's clock has
/// ticks, and a test none to wait for.
pub fn copied(from: &str, to: &Path) {
    static COPIES: AtomicU64 = AtomicU64::new(1_000_000_000);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::write(to, fs::read(from).unwrap()).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(COPIES.fetch_add(1, Ordering::Relaxed));
    File::options().write(true).open(to).unwrap().set_modified(long_ago).unwrap();
}

/// A copy of a folder of the fixtures.
pub fn copied_folder(from: &str, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path().display().to_string(), to.join(entry.file_name()));
        if entry.path().is_dir() { copied_folder(&from, &to) } else { copied(&from, &to) }
    }
}

/// Runs the program, and changes files when it comes to a point.
fn run_and(place: &Place, words: &[&str], point: &str, change: impl FnOnce()) -> Run {
    let meeting = Meeting::at(place, point);
    let mut command = place.command(words);
    command.envs(meeting.environment()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.spawn().unwrap();
    meeting.hold(change);
    Run(program.wait_with_output().unwrap())
}

/// A prompt's picture by a copy of a model whose weights are read from their files as they are
/// needed.
fn generation(place: &Place) -> Vec<String> {
    copied_folder(&fixture("generate-flux"), &place.path("model"));
    let words = "generate PROMPT --model model --size 48x32 --steps 3 --seed 7 --device cpu --no-history -o a.safetensors \
                 --policy fixed --set denoise.weights=packed";
    words.split(' ').map(|word| word.replace("PROMPT", &fresh_prompt())).collect()
}

#[test]
fn work_fails_by_the_name_of_the_file_that_changes() {
    let load = |path: &Path| format!("load {}", path.display());
    let points = [
        ("vae/diffusion_pytorch_model.safetensors", None),
        ("text_encoder/model.safetensors", None),
        ("text_encoder_2/model.safetensors", None),
        ("transformer/diffusion_pytorch_model.safetensors", None),
        ("transformer/diffusion_pytorch_model.safetensors", Some("step")),
        ("vae/diffusion_pytorch_model.safetensors", Some("step")),
        ("vae/diffusion_pytorch_model.safetensors", Some("progress")),
    ];
    for (turn, (part, point)) in points.into_iter().enumerate() {
        for (way, change) in two_ways(turn) {
            let place = Place::new();
            let words = generation(&place);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let file = Path::new("model").join(part);
            let point = point.map_or_else(|| load(&file), str::to_owned);
            let run = run_and(&place, &words, &point, || change(&place.path("").join(&file)));
            run.failed(1, &format!("{}: {CHANGED}", file.display()));
            assert_eq!(place.files(), ["model"], "{way}, {part} at {point}");
        }
    }
}

#[test]
fn blocks_that_are_read_in_their_turns_fail_alike() {
    for (turn, (way, change)) in CHANGES.into_iter().enumerate() {
        let place = Place::new();
        copied(&fixture("sample-wan-gguf-k/wan-tiny.gguf"), &place.path("wan.gguf"));
        let at = |name: &str| fixture(&format!("sample-wan-t2v-original/{name}"));
        let (conditioning, noise) = (at("conditioning.safetensors"), at("noise.safetensors"));
        let words = [
            ["sample", "--transformer", "wan.gguf", "--conditioning", &conditioning, "--noise", &noise].as_slice(),
            &[
                "--negative",
                &conditioning,
                "--cfg",
                "3",
                "--steps",
                "3",
                "--device",
                "cpu",
                "--no-history",
                "-o",
                "a.latent",
            ],
            &["--policy", "fixed", "--set", "weights=packed", "--set", "ahead=0"],
        ]
        .concat();
        if turn == 0 {
            place.run(&words).succeeded();
            fs::remove_file(place.path("a.latent")).unwrap();
        }
        let run = run_and(&place, &words, "step", || change(&place.path("wan.gguf")));
        run.failed(1, &format!("wan.gguf: {CHANGED}"));
        assert_eq!(place.files(), ["wan.gguf"], "{way}");
    }
}

#[test]
fn a_latent_that_changes_is_no_latent() {
    for (way, change) in CHANGES {
        let place = Place::new();
        copied(&fixture("flux-bfl/latent.safetensors"), &place.path("my.safetensors"));
        let vae = fixture("flux-bfl/ae.safetensors");
        let words = ["decode", "my.safetensors", "--vae", &vae, "--device", "cpu", "-o", "a.png"];
        let run = run_and(&place, &words, "load my.safetensors", || change(&place.path("my.safetensors")));
        run.failed(1, &format!("my.safetensors: {CHANGED}"));
        assert_eq!(place.files(), ["my.safetensors"], "{way}");
    }
}

#[test]
fn what_leaves_the_contents_alone_leaves_the_pixels() {
    let place = Place::new();
    let words = generation(&place);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    place.run(&words).succeeded();
    let expected = place.sample("a.safetensors");
    let parts = [
        "text_encoder/model.safetensors",
        "text_encoder_2/model.safetensors",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    ];
    let again = words.iter().map(|word| word.replace("a.safetensors", "b.safetensors")).collect::<Vec<_>>();
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    let run = run_and(&place, &again, "step", || {
        for path in parts.map(|part| place.path("model").join(part)) {
            // The usual way to put a new file in the place of one that may be in use.
            let new = path.with_extension("new");
            fs::hard_link(&path, path.with_extension("kept")).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            fs::write(&new, "another file").unwrap();
            fs::rename(&new, &path).unwrap();
        }
    });
    run.succeeded();
    assert!(place.sample("b.safetensors") == expected, "other pixels");
    place.run(&again).failed(2, "safetensors");
}
