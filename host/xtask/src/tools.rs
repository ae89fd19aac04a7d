//! The system's programs that set-up needs: found, installed where that is allowed, or asked for in one line.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// Tells what is done next.
pub fn say(what: &str) {
    println!("→ {what}");
}

/// Runs a command in the foreground.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{:?} can't be started", command.get_program()))?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs a command and gives what it printed; nothing where it fails.
pub fn ask(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn shown(command: &Command) -> String {
    let words = command.get_args().take(4).map(|word| word.to_string_lossy().into_owned());
    std::iter::once(command.get_program().to_string_lossy().into_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Makes sure of a C++ compiler.
pub fn compiler() -> Result<()> {
    let works = || ["c++", "g++", "clang++"].iter().any(|name| ask(Command::new(name).arg("--version")).is_some());
    ensure(works, &["g++"], "a C++ compiler")
}

/// Makes sure of Python 3 with pip.
pub fn python() -> Result<()> {
    let works = || ask(Command::new("python3").args(["-m", "pip", "--version"])).is_some();
    ensure(works, &["python3", "python3-pip"], "Python 3 with pip")
}

/// Makes sure of something by Debian's packages, where this user may install them.
pub fn ensure(works: impl Fn() -> bool, packages: &[&str], what: &str) -> Result<()> {
    if works() {
        return Ok(());
    }
    let asked = format!("{what} is needed: install it (on Debian: apt-get install {})", packages.join(" "));
    if !is_root() || ask(Command::new("apt-get").arg("--version")).is_none() {
        bail!("{asked}");
    }
    say(&format!("installing {what} ({})", packages.join(", ")));
    let apt = |arguments: &[&str]| run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").arg("-qq").args(arguments));
    apt(&["update"]).and_then(|()| apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())).context(asked.clone())?;
    if !works() {
        bail!("{asked}");
    }
    Ok(())
}

fn is_root() -> bool {
    ask(Command::new("id").arg("-u")).as_deref() == Some("0")
}

/// Fails where a folder's disk has less than this many bytes free.
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

/// Puts a symbolic link in place at once, whatever stood there.
pub fn link(target: &Path, at: &Path) -> Result<()> {
    if fs::read_link(at).is_ok_and(|now| now == target) {
        return Ok(());
    }
    let aside = at.with_extension("new");
    let _ = fs::remove_file(&aside);
    std::os::unix::fs::symlink(target, &aside).with_context(|| format!("{}", aside.display()))?;
    fs::rename(&aside, at).with_context(|| format!("{}", at.display()))
}
