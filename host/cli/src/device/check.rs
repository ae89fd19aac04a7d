//! `tilewright device check`: each part in a process of its own, under a watchdog; a table and a
//! report.

use std::{
    fmt, fs,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::Value;
use tch::Device;
use tempfile::TempDir;
use tilewright_device_check::{Effort, Finding, PARTS, Part, Verdict, find};
use tilewright_plan::Backend;
use tilewright_torch::{
    backend,
    device::{self, Choice},
};

use super::trial;
use crate::{
    args::DeviceCheck,
    child::{self, End},
    failure::{Failure, Outcome},
    files, output, printer,
    signals::{self, StopMode},
};

/// The names by which a process is asked for the back end that loads and for the GPU that works,
/// and the longest time of either.
const BACKEND: &str = "backend";
const DEVICE: &str = "device";
const LOADING: Duration = Duration::from_secs(120);

/// The report that people send.
#[derive(Serialize)]
struct Report {
    tilewright: &'static str,
    backend: Option<Backend>,
    /// The device, as options name it.
    device: String,
    quick: bool,
    /// All parts have ended, and none failed.
    passed: bool,
    /// The parts that have not ended: in a report that stayed behind, the first was running.
    unfinished: Vec<&'static str>,
    parts: Vec<Row>,
}

impl Report {
    fn new(quick: bool, backend: Option<Backend>, device: Choice, unfinished: Vec<&'static str>) -> Self {
        let (tilewright, device) = (env!("CARGO_PKG_VERSION"), device.to_string());
        Self { tilewright, backend, device, quick, passed: false, unfinished, parts: Vec::new() }
    }

    /// Adds the part that was running.
    fn add(&mut self, row: Row) {
        self.unfinished.retain(|name| *name != row.part);
        self.parts.push(row);
        self.passed = self.unfinished.is_empty() && self.failed() == 0;
    }

    fn failed(&self) -> usize {
        self.parts.iter().filter(|row| row.finding.verdict == Verdict::Fail).count()
    }

    fn text(&self) -> Outcome<String> {
        serde_json::to_string_pretty(self).map_err(Failure::work)
    }

    fn write(&self, path: &Path) -> Outcome {
        tilewright_outputs::write_whole(path, self.text()?.as_bytes()).map_err(files::unwritten(path))
    }
}

/// A part of the report.
#[derive(Serialize)]
struct Row {
    part: &'static str,
    about: &'static str,
    seconds: f64,
    #[serde(flatten)]
    finding: Finding,
}

/// Folders that are the same for everybody.
const SYSTEM: [&str; 3] = ["/dev/", "/proc/", "/sys/"];

/// Checks a device.
pub fn run(arguments: &DeviceCheck) -> Outcome {
    let effort = if arguments.quick { Effort::Quick } else { Effort::Full };
    arguments.on.set_threads();
    if let Some(name) = &arguments.part {
        child::end_with_parent();
        let finding = match name.as_str() {
            BACKEND => Finding::pass("", serde_json::to_value(backend(arguments.on.device)).map_err(Failure::work)?),
            DEVICE => Finding::pass("", gpu()?.into()),
            name => match trial::finding(name, arguments.on.device) {
                Some(finding) => finding,
                None => known(name)?.run(arguments.on.device, effort),
            },
        };
        let text = serde_json::to_string(&finding).map_err(Failure::work)?;
        return Ok(writeln!(printer::stdout(), "{text}")?);
    }
    for name in &arguments.only {
        known(name)?;
    }
    if let Some(report) = &arguments.report {
        files::roles().writes("--report", report).check()?;
        output::writable(report)?;
    }
    let scratch = Scratch::new()?;
    // Libraries that crash or hang while they are loaded must not end the check.
    let loaded = scratch.child(BACKEND, &[], LOADING, arguments.on.device, arguments)?;
    let backend: Option<Backend> = serde_json::from_value(loaded.data).unwrap_or_default();
    // A part that found no GPU would check the processor in its place, also where the back end that
    // lies beside the program does not load.
    let device = match (arguments.on.device, backend::beside()) {
        (Choice::Auto, Some(_)) => match scratch.child(DEVICE, &[], LOADING, arguments.on.device, arguments)?.data {
            Value::String(name) => name.parse().map_err(Failure::work)?,
            _ => Choice::Gpu(0),
        },
        (device, _) => device,
    };
    let is_wanted = |part: &&Part| arguments.only.is_empty() || arguments.only.iter().any(|name| name == part.name);
    let parts: Vec<&Part> = PARTS.iter().filter(is_wanted).collect();
    let mut report = Report::new(arguments.quick, backend, device, parts.iter().map(|part| part.name).collect());
    for part in parts {
        // Before each part: a device may take the machine with it.
        if let Some(path) = &arguments.report {
            report.write(path)?;
            signals::advise("the report holds the parts that had ended".into());
        }
        let start = Instant::now();
        let patience = arguments.patience.map_or_else(|| part.patience(effort), Duration::from_secs);
        let mut finding = match part.only {
            Some(only) if backend != Some(only) => Finding::skipped(format!("for {only:?} alone").to_lowercase()),
            _ => {
                // This one asks why no GPU was taken.
                let device = if part.name == PARTS[0].name { arguments.on.device } else { device };
                scratch.child(part.name, part.environment, patience, device, arguments)?
            }
        };
        finding.detail = without_folders(&finding.detail);
        strip_folders(&mut finding.data);
        let row = Row { part: part.name, about: part.about, seconds: start.elapsed().as_secs_f64(), finding };
        if !arguments.json {
            say(&row)?;
        }
        report.add(row);
    }
    if let Some(path) = &arguments.report {
        report.write(path)?;
    }
    if arguments.json {
        writeln!(printer::stdout(), "{}", report.text()?)?;
    }
    match report.failed() {
        0 => Ok(()),
        failed => Err(Failure::work(format!("{failed} of {} parts failed", report.parts.len()))),
    }
}

/// The GPU back end that loads for a device.
fn backend(choice: Choice) -> Option<Backend> {
    match choice {
        Choice::Cpu => None,
        _ => backend::load().unwrap_or_default(),
    }
}

/// The first GPU that works, or else the first, by the name that options give it; "cpu" on a
/// machine where neither the driver nor the runtime shows any.
fn gpu() -> Outcome<String> {
    let backend = backend::load().map_err(Failure::work)?;
    let choice = match device::select(Choice::Auto).map_err(Failure::work)? {
        Device::Cuda(index) => Choice::Gpu(index),
        _ if backend.is_some_and(device::is_gpu_expected) => Choice::Gpu(0),
        _ => Choice::Cpu,
    };
    Ok(choice.to_string())
}

/// Text whose paths have lost their folders, which tell of the user: reports are published. Those
/// of the system stay.
fn without_folders(text: &str) -> String {
    let is_end = |letter: char| letter.is_whitespace() || "'\",;:()=[]<>`".contains(letter);
    let shortened = |word: &str| match word.rsplit_once('/') {
        Some((folder, name)) if folder.starts_with('/') && !SYSTEM.iter().any(|of| word.starts_with(of)) => {
            name.to_owned()
        }
        _ => word.to_owned(),
    };
    text.split_inclusive(is_end)
        .map(|part| match part.char_indices().next_back().filter(|(_, last)| is_end(*last)) {
            Some((at, last)) => format!("{}{last}", shortened(&part[..at])),
            None => shortened(part),
        })
        .collect()
}

/// The same for all texts of a part's figures.
fn strip_folders(data: &mut Value) {
    match data {
        Value::String(text) => *text = without_folders(text),
        Value::Array(values) => values.iter_mut().for_each(strip_folders),
        Value::Object(fields) => fields.values_mut().for_each(strip_folders),
        _ => {}
    }
}

fn known(name: &str) -> Outcome<&'static Part> {
    find(name).ok_or_else(|| {
        let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        Failure::input(format!("there is no part {name:?}: the parts are {}", names.join(", ")))
    })
}

/// A line of the table, as soon as it is known.
fn say(row: &Row) -> Outcome {
    let verdict = match row.finding.verdict {
        Verdict::Pass => "PASS",
        Verdict::Fail => "FAIL",
        Verdict::Skipped => "SKIPPED",
    };
    let detail = &row.finding.detail;
    let mut stdout = printer::stdout();
    writeln!(stdout, "{verdict:<8}{:<16}{:>6.1} s  {detail}", row.part, row.seconds)?;
    Ok(stdout.flush()?)
}

/// The folder of the files that parts write: those of a part that is killed go with it.
struct Scratch(TempDir);

impl Scratch {
    /// A folder that goes when the check ends, also by a signal.
    fn new() -> Outcome<Self> {
        let folder = TempDir::with_prefix("tilewright-check-").map_err(no_folder)?;
        let path = folder.path().to_owned();
        // The part that is running is ended first, which takes a moment.
        signals::manner(StopMode::Patiently);
        signals::on_abandon(move || drop(fs::remove_dir_all(path)));
        Ok(Self(folder))
    }

    /// The finding of a process of this program, which may take as long as `patience`.
    fn child(
        &self,
        name: &str,
        environment: &[(&str, &str)],
        patience: Duration,
        device: Choice,
        arguments: &DeviceCheck,
    ) -> Outcome<Finding> {
        let files = TempDir::with_prefix_in("part-", &self.0).map_err(no_folder)?;
        let mut command = child::of_this_program().map_err(Failure::work)?;
        command.env("TMPDIR", files.path()).env(child::FILES, self.0.path());
        command.args(["device", "check", "--part", name, "--device", &device.to_string()]);
        command.args(arguments.quick.then_some("--quick"));
        if let Some(threads) = arguments.on.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        command.envs(environment.iter().copied());
        let (stdout, stderr) = match child::run(&mut command, patience).map_err(Failure::work)? {
            End::Exited { stdout, stderr } => (stdout, stderr),
            End::Signal { signal, stderr } => return Ok(Finding::fail(trial::crash(signal, &stderr), Value::Null)),
            End::Hung => {
                let hangs = format!("did not end within {} s: it hangs", patience.as_secs());
                return Ok(Finding::fail(hangs, Value::Null));
            }
            End::Interrupted(_) => return Err(Failure::work("interrupted")),
        };
        Ok(finding(&stdout).unwrap_or_else(|| {
            let line = child::last_words(&stderr).unwrap_or("it said nothing");
            let line = line.trim_start_matches("error: ").to_owned();
            Finding::fail(line, Value::Null)
        }))
    }
}

fn no_folder(error: impl fmt::Display) -> Failure {
    Failure::work(format!("TMPDIR has no room for files: {error}: set it to a folder with 2 GB"))
}

/// The finding that a process wrote.
pub fn finding(stdout: &str) -> Option<Finding> {
    stdout.lines().last().and_then(|line| serde_json::from_str(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_tell_no_folders() {
        let told =
            without_folders("loading /home/ann/torch/lib/libtorch_hip.so: \"/opt/my/a b\" (/dev/kfd), 3/4 of it");
        assert_eq!(told, "loading libtorch_hip.so: \"a b\" (/dev/kfd), 3/4 of it");
        assert_eq!(without_folders(""), "");
        let mut data = serde_json::json!([{ "failure": "/home/ann/x.safetensors: no header", "error": 0.5 }, "/a/b"]);
        strip_folders(&mut data);
        assert_eq!(data, serde_json::json!([{ "failure": "x.safetensors: no header", "error": 0.5 }, "b"]));
    }

    #[test]
    fn a_report_has_passed_when_all_parts_have() {
        let row = |part| Row { part, about: "", seconds: 0.0, finding: Finding::pass("", Value::Null) };
        let mut report = Report::new(true, None, Choice::Cpu, vec!["facts", "order"]);
        report.add(row("facts"));
        assert!(!report.passed && report.unfinished == ["order"]);
        report.add(row("order"));
        assert!(report.passed && report.unfinished.is_empty());
        let mut failed = Report::new(true, None, Choice::Cpu, vec!["facts"]);
        failed.add(Row { finding: Finding::fail("", Value::Null), ..row("facts") });
        assert!(!failed.passed && failed.failed() == 1);
    }
}
