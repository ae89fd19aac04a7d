//! Programs of the system that set-up needs: found, installed if possible, or asked for in one
//! line.

use std::{
    env, fs,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

/// Prints the next step.
pub fn say(what: &str) {
    println!("→ {what}");
}

/// A value's name on the command line.
pub fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Runs a command in the foreground.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{:?} can't be started", command.get_program()))?;
    check(command, status)
}

/// Runs a command in the foreground and hands on each line that it prints, instead of showing it.
pub fn follow(command: &mut Command, mut line: impl FnMut(&str)) -> Result<()> {
    let started = command.stdout(Stdio::piped()).spawn();
    let mut child = started.with_context(|| format!("{:?} can't be started", command.get_program()))?;
    for printed in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        line(&printed?);
    }
    check(command, child.wait()?)
}

fn check(command: &Command, status: ExitStatus) -> Result<()> {
    if status.success() { Ok(()) } else { bail!("{} failed ({status})", format_command(command)) }
}

/// Waits for a program's end, and kills it after a time limit; none then.
pub fn wait_or_kill(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(Duration::from_millis(50));
    }
    child.kill()?;
    child.wait().map(|_| None)
}

/// Runs a command and returns its output; none if it fails.
pub fn ask(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn format_command(command: &Command) -> String {
    let words = command.get_args().take(4).map(|word| word.to_string_lossy().into_owned());
    std::iter::once(command.get_program().to_string_lossy().into_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Ensures a C++ compiler, under the name that build scripts call it by.
pub fn compiler() -> Result<()> {
    if let Some(own) = env::var_os("CXX").filter(|own| !own.is_empty()) {
        // The variable may hold a wrapper and options, as in `ccache g++`.
        if ask(Command::new("sh").args(["-c", "$CXX --version"])).is_none() {
            bail!("CXX is set to {own:?}, which doesn't run: correct it, or unset it");
        }
        return Ok(());
    }
    ensure(|| ask(Command::new("c++").arg("--version")).is_some(), &["g++"], "a C++ compiler")
}

/// Ensures ffmpeg's programs, which read and write videos. Their absence is only reported, since
/// everything else works without. Tests of them fail then, unless TILEWRIGHT_WITHOUT_FFMPEG is set.
pub fn ffmpeg() {
    if env::var_os("TILEWRIGHT_WITHOUT_FFMPEG").is_some() {
        return;
    }
    if let Err(error) = ensure(has_ffmpeg, &["ffmpeg"], "ffmpeg, for videos,") {
        say(&format!(
            "going on without videos: {error:#} (their tests: set TILEWRIGHT_WITHOUT_FFMPEG=1 to leave them out)"
        ));
    }
}

/// True if ffmpeg's programs are installed.
pub fn has_ffmpeg() -> bool {
    ["ffmpeg", "ffprobe"].iter().all(|program| ask(Command::new(program).arg("-version")).is_some())
}

/// Ensures the programs that tests of signatures, registries and the service run against. Each row:
/// the variable that skips it, the Debian package and its program, which have one name, and its
/// purpose. Returns the variables of those that aren't available here.
pub fn counterparts() -> Vec<&'static str> {
    let mut missing = Vec::new();
    for (variable, package, what) in [
        ("TILEWRIGHT_WITHOUT_MINISIGN", "minisign", "minisign, to test signatures with,"),
        ("TILEWRIGHT_WITHOUT_REGISTRY", "docker-registry", "docker-registry, to test push and pull with,"),
        ("TILEWRIGHT_WITHOUT_CURL", "curl", "curl, to try what the book says of the service with,"),
    ] {
        if env::var_os(variable).is_some() {
            continue;
        }
        let works =
            || Command::new(package).arg(if package == "minisign" { "-v" } else { "--version" }).output().is_ok();
        if let Err(error) = ensure(works, &[package], what) {
            say(&format!("going on without {package} and its tests: {error:#}"));
            missing.push(variable);
        }
    }
    missing
}

/// Finds a Python 3 with pip: the one in PATH, a virtual environment of its own in `scratch`, or
/// Debian's.
pub fn python(scratch: &Path) -> Result<PathBuf> {
    let has_pip = |python: &Path| ask(Command::new(python).args(["-m", "pip", "--version"])).is_some();
    let python = PathBuf::from("python3");
    if has_pip(&python) {
        return Ok(python);
    }
    let own = scratch.join("python");
    let made = ask(Command::new(&python).args(["-m", "venv"]).arg(&own)).map(|_| own.join("bin/python3"));
    if let Some(python) = made.filter(|python| has_pip(python)) {
        return Ok(python);
    }
    // A python3 of the user's, ahead in PATH, doesn't see what Debian installs.
    let candidates = [python, PathBuf::from("/usr/bin/python3")];
    let find = || candidates.iter().find(|python| has_pip(python));
    ensure(|| find().is_some(), &["python3", "python3-pip"], "Python 3 with pip")?;
    find().cloned().context("Python 3 with pip is gone again")
}

/// Ensures something by Debian's packages, if this user may install them.
pub fn ensure(works: impl Fn() -> bool, packages: &[&str], what: &str) -> Result<()> {
    if works() {
        return Ok(());
    }
    let asked = format!("{what} is needed: install it (on Debian: apt-get install {})", packages.join(" "));
    if !is_root() || ask(Command::new("apt-get").arg("--version")).is_none() {
        bail!("{asked}");
    }
    say(&format!("installing {what} ({})", packages.join(", ")));
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    // A fresh image has no package lists, an old one outdated ones. Without lists apt-get takes
    // `g++` for a pattern, finds nothing and reports success, so the result is tested instead.
    if apt(&install).is_err() || !works() {
        apt(&["update"]).and_then(|()| apt(&install)).context(asked.clone())?;
    }
    if !works() {
        bail!("{asked}");
    }
    Ok(())
}

/// Fetches the file of a Debian package into a folder; installs nothing.
pub fn package_file(package: &str, folder: &Path) -> Result<PathBuf> {
    let download = || apt_in(folder, &["download", package]);
    // As for installing: package lists may be missing or outdated.
    download().or_else(|error| if is_root() { apt(&["update"]).and_then(|()| download()) } else { Err(error) })?;
    let mut files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let is_file = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "deb");
    files.find(is_file).with_context(|| format!("apt-get brought no file of {package}"))
}

/// Runs apt-get without questions; its output is shown only if it fails.
fn apt(arguments: &[&str]) -> Result<()> {
    apt_in(Path::new("."), arguments)
}

/// Runs apt-get in a folder, which its downloads go to.
fn apt_in(folder: &Path, arguments: &[&str]) -> Result<()> {
    // Parts of the set-up run side by side, and apt-get refuses to run twice.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut apt = Command::new("apt-get");
    apt.current_dir(folder);
    apt.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq").args(arguments).stdin(Stdio::null());
    let output = apt.output().context("apt-get can't be started")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("apt-get {}: {}", arguments[0], text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("failed"));
    }
    Ok(())
}

/// True if Debian's package manager has installed this package.
pub fn has_package(name: &str) -> bool {
    let state = ask(Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", name]));
    state.as_deref() == Some("installed")
}

fn is_root() -> bool {
    ask(Command::new("id").arg("-u")).as_deref() == Some("0")
}

/// Fails if a folder's disk has less than this many bytes free.
pub fn room(folder: &Path, bytes: u64) -> Result<()> {
    let listing = ask(Command::new("df").arg("-Pk").arg(folder));
    let free = listing.and_then(|text| text.lines().nth(1)?.split_whitespace().nth(3)?.parse::<u64>().ok());
    match free.map(|kib| kib << 10) {
        Some(free) if free < bytes => bail!(
            "{}: {:.1} GB are free and {:.1} GB needed: make room, or set up elsewhere",
            folder.display(),
            free as f64 / 1e9,
            bytes as f64 / 1e9
        ),
        _ => Ok(()),
    }
}

/// Replaces anything at a path by a symbolic link atomically.
pub fn link(target: &Path, at: &Path) -> Result<()> {
    if fs::read_link(at).is_ok_and(|now| now == target) {
        return Ok(());
    }
    let aside = at.with_extension("new");
    let _ = fs::remove_file(&aside);
    std::os::unix::fs::symlink(target, &aside).with_context(|| format!("{}", aside.display()))?;
    fs::rename(&aside, at).with_context(|| format!("{}", at.display()))
}
