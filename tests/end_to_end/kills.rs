//! Clips under way are killed and interrupted at moments all over their decode: what stands under
//! the final name is whole, a process that is asked to end leaves nothing lying about, and what was
//! decoded before the end is gone on from, to the same bytes.
//!
//! TILEWRIGHT_KILLS=100 kills more often than the 12 times that every run of the tests does.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    program::{Place, one_tensor},
    video::{ffmpeg, model, with_path},
};

/// Kills, if the environment asks for no other number: each output by each signal.
const KILLS: usize = 12;

/// Ends a test that hangs, and nothing else.
const PATIENCE: Duration = Duration::from_secs(900);

const SIGNALS: [&str; 3] = ["KILL", "INT", "TERM"];

/// Outputs, each with a plan: the way an output begins, grows and ends depends on the output, and
/// the point that a decode goes on from depends on the plan.
const FORMS: [(&str, &[&str]); 4] = [
    ("clip.mp4", &["space=whole", "time=carried", "chunk=8"]),
    ("clip.gif", &["space=whole"]),
    ("clip", &["space=exact", "tile=64", "time=carried", "chunk=4"]),
    ("clip.safetensors", &["space=blended", "tile=64", "overlap=16", "time=carried", "chunk=12"]),
];

/// A small generator (Marsaglia's xorshift), so that a failure can be had again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A latent of 25 frames of 96×96.
fn latent(random: &mut Random) -> Vec<u8> {
    let shape = [1, 16, 7, 12, 12];
    let count: usize = shape.iter().product();
    let values: Vec<u8> = (0..count).flat_map(|_| ((random.share() * 3.0 - 1.5) as f32).to_le_bytes()).collect();
    one_tensor("latents", "F32", &shape, &values)
}

/// A decode of the latent into one of the forms.
fn decode(place: &Place, latent: &Path, form: usize, resume: bool) -> Command {
    let (name, settings) = FORMS[form];
    let latent = latent.display().to_string();
    let model = model();
    let mut arguments = vec!["decode", &latent, "--vae", &model, "--device", "cpu", "--threads", "1", "-o", name];
    arguments.extend(["--policy", "fixed"]);
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    arguments.extend(resume.then_some("--resume"));
    let mut command = with_path(place, &arguments);
    let log = File::options().create(true).append(true).open(place.history().with_file_name("log")).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command
}

/// The contents of the output: a video's frames, and else the bytes. A process that was killed
/// while it wrote into a folder that was there already leaves its temporary folder in it.
fn contents(place: &Place, name: &str) -> Option<Vec<u8>> {
    let path = place.path(name);
    if path.is_dir() {
        let mut files: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.is_file());
        files.sort();
        return Some(
            files
                .iter()
                .flat_map(|file| [file.file_name().unwrap().as_encoded_bytes(), &fs::read(file).unwrap()].concat())
                .collect(),
        );
    }
    if !path.is_file() {
        return None;
    }
    if name.ends_with(".mp4") {
        let mut command = Command::new("ffmpeg");
        let output = command.args(["-v", "error", "-i"]).arg(&path).args(["-f", "framemd5", "-"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return Some(output.stdout);
    }
    Some(fs::read(path).unwrap())
}

fn send(signal: &str, child: &Child) {
    // It may have ended.
    let _ = Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).stderr(Stdio::null()).status();
}

fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "it does not end");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Processes that have this place's folder in their arguments.
fn children(place: &Place) -> usize {
    let folder = place.path("").display().to_string();
    let folder = folder.trim_end_matches('/').as_bytes();
    // ffmpeg is given names relative to the folder that it runs in.
    let here =
        |path: &Path| fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.as_os_str().as_encoded_bytes() == folder);
    fs::read_dir("/proc").unwrap().flatten().filter(|entry| here(&entry.path())).count()
}

/// The moment of a signal.
#[derive(Clone, Copy, Debug)]
enum Moment {
    After(Duration),
    /// As soon as frames are kept, so that there is something to go on from, however fast the
    /// machine is.
    Kept,
}

/// Waits for the moment, or for the end of the process.
fn await_moment(moment: Moment, place: &Place, name: &str, child: &mut Child) {
    let job = place.path(&format!("{name}.partial")).join("job.json");
    let is_kept = || {
        let job: serde_json::Value = serde_json::from_slice(&fs::read(&job).ok()?).ok()?;
        Some(job["done"].as_array()?.iter().any(|frames| frames.as_u64().is_some_and(|frames| frames > 0)))
    };
    match moment {
        Moment::After(time) => thread::sleep(time),
        Moment::Kept => {
            while !is_kept().unwrap_or(false) && child.try_wait().unwrap().is_none() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The ends of the processes that got a signal.
#[derive(Default)]
struct Tally {
    ends: BTreeMap<String, usize>,
    slowest: Duration,
    resumed: usize,
}

#[test]
fn killed_decodes_leave_nothing_half_written_and_go_on_to_the_same_bytes() {
    let kills = std::env::var("TILEWRIGHT_KILLS").ok().map_or(KILLS, |count| count.parse().unwrap());
    let forms: Vec<usize> = (0..FORMS.len()).filter(|&form| !FORMS[form].0.ends_with(".mp4") || ffmpeg()).collect();
    let mut random = Random(20_261_121);
    let inputs = Place::new();
    let latent = inputs.path(&inputs.write("latent.safetensors", latent(&mut random)));

    // Undisturbed: what is to come out, and how long it takes. Once before, so that the machine has
    // been measured.
    let mut undisturbed = BTreeMap::new();
    for form in [&forms[..1], &forms].concat() {
        let place = Place::new();
        let start = Instant::now();
        assert!(decode(&place, &latent, form, false).status().unwrap().success());
        assert_eq!(place.files(), [FORMS[form].0]);
        undisturbed.insert(form, (start.elapsed(), contents(&place, FORMS[form].0)));
    }

    let mut tally = Tally::default();
    for number in 0..kills {
        let signal = SIGNALS[number % 3];
        let form = forms[number / 3 % forms.len()];
        // Every other one goes on, and in the next round the others.
        let resume = (number + number / (3 * forms.len())).is_multiple_of(2);
        let (took, expected) = &undisturbed[&form];
        let name = FORMS[form].0;
        let place = Place::new();
        // Decodes that go on are killed up to three times.
        for turn in 0..if resume { 3 } else { 1 } {
            let after = Moment::After(took.mul_f64(random.share() * 1.05));
            let moment = if resume && turn == 0 { Moment::Kept } else { after };
            let what = format!("number {number}, {name}, {signal}, {moment:?}, resume {resume}");
            if disturbed(
                &place,
                &mut decode(&place, &latent, form, resume),
                moment,
                signal,
                expected,
                &what,
                &mut tally,
            ) {
                break;
            }
        }
        if resume {
            let status = decode(&place, &latent, form, true).status().unwrap();
            let log = fs::read_to_string(place.history().with_file_name("log")).unwrap();
            assert!(status.success(), "number {number}: {log}");
            tally.resumed += usize::from(log.contains("are there already"));
            let files: Vec<String> = visible(&place);
            assert_eq!(files, [name], "number {number}");
            assert!(contents(&place, name) == *expected, "number {number}: {name} differs after {log}");
        }
    }
    println!("{kills} decodes: {:?}, slowest to end {:?}, {} went on", tally.ends, tally.slowest, tally.resumed);
    assert!(tally.resumed > 0, "no decode was ended late enough to go on from");
}

fn visible(place: &Place) -> Vec<String> {
    place.files().into_iter().filter(|name| !name.starts_with(".tilewright-")).collect()
}

/// Starts a decode, sends it a signal and looks at what it leaves; whether it came to its end.
fn disturbed(
    place: &Place,
    command: &mut Command,
    moment: Moment,
    signal: &str,
    expected: &Option<Vec<u8>>,
    what: &str,
    tally: &mut Tally,
) -> bool {
    let name = command.get_args().skip_while(|argument| *argument != "-o").nth(1).unwrap().to_str().unwrap().to_owned();
    let partial = format!("{name}.partial");
    let hidden = || place.files().iter().filter(|name| name.starts_with(".tilewright-")).count();
    let before = hidden();
    let mut child = command.spawn().unwrap();
    await_moment(moment, place, &name, &mut child);
    send(signal, &child);
    let sent = Instant::now();
    let status = wait(&mut child);
    tally.slowest = tally.slowest.max(sent.elapsed());
    let end = match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (_, signal) => format!("signal {}", signal.unwrap_or(0)),
    };
    *tally.ends.entry(format!("{signal}: {end}")).or_default() += 1;

    let log = || fs::read_to_string(place.history().with_file_name("log")).unwrap();
    match (status.code(), contents(place, &name)) {
        (Some(0), None) => panic!("{what}: it ended well without an output"),
        (_, Some(found)) => assert!(found == *expected.as_ref().unwrap(), "{what}: what stands there is not whole"),
        _ => {}
    }
    for file in visible(place) {
        assert!(file == name || file == partial, "{what}: {file} is left");
    }
    // If the program does not end it, ffmpeg hears of it by the end of its input.
    let start = Instant::now();
    while children(place) > 0 {
        assert!(start.elapsed() < PATIENCE, "{what}: ffmpeg goes on");
        thread::sleep(Duration::from_millis(5));
    }
    if signal != "KILL" {
        assert_eq!(hidden(), before, "{what}: temporary files are left: {:?}", place.files());
        match status.code() {
            Some(0) => {}
            Some(130 | 143) => {
                assert_eq!(status.code(), Some(if signal == "INT" { 130 } else { 143 }), "{what}");
                assert!(log().contains("error: interrupted"), "{what}: {}", log());
                assert!(!place.path(&name).exists(), "{what}: it failed and left an output");
            }
            // Before it listens nothing is there that could be left.
            None if place.files().is_empty() || place.files() == [partial.as_str()] => {}
            _ => panic!("{what}: {status:?}, {}", log()),
        }
    }
    status.code() == Some(0)
}
