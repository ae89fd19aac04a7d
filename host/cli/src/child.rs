//! Processes of this program under a watchdog, so that a crash or a hang of theirs ends with them.

use std::{
    env, fs, io,
    io::{ErrorKind, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use signal_hook::low_level;

use crate::signals;

/// The pause between two looks at a process.
const PAUSE: Duration = Duration::from_millis(20);

/// The longest wait for the end of a process that was killed.
const LAST: Duration = Duration::from_secs(2);

/// The end of a process.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// It ended by itself, with what it wrote on its outputs.
    Exited { stdout: String, stderr: String },
    /// A signal ended it, after this on its standard error.
    Signal { signal: i32, stderr: String },
    /// It was ended for taking longer than it may.
    Hung,
    /// It was ended because the user interrupts this program, with this status.
    Interrupted(u8),
}

/// The variable by which a process knows that another waits for it: the folder of its files, or
/// nothing.
pub const FILES: &str = "TILEWRIGHT_CHECK_FILES";

/// The most times that a folder's files are removed while others may come.
const TURNS: u32 = 100;

/// Ends this process, and removes its files, as soon as the one that waits for it has ended in
/// whatever way: that one holds the other end of standard input.
pub fn end_with_parent() {
    let Some(files) = env::var_os(FILES) else { return };
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        // Other threads may write there meanwhile.
        for _ in 0..TURNS {
            if !files.is_empty() && fs::remove_dir_all(&files).is_err_and(|error| error.kind() != ErrorKind::NotFound) {
                continue;
            }
            break;
        }
        low_level::exit(1);
    });
}

/// The line that says most of a crash: ROCm's, which throws no exception then, or else the last one
/// that is no advice.
pub fn last_words(stderr: &str) -> Option<&str> {
    const MEMORY_FAULT: &str = "Memory access fault by GPU";
    let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("note: "));
    lines().find(|line| line.contains(MEMORY_FAULT)).or_else(|| lines().next_back())
}

/// A command of this program.
pub fn of_this_program() -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    // A panic's last line is to be its message.
    command.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE").env(FILES, "");
    Ok(command)
}

/// Runs a process to its end, for as long as it may take.
pub fn run(command: &mut Command, patience: Duration) -> io::Result<End> {
    // In a group of its own: a terminal's signals come to this process alone, which ends it.
    command.process_group(0);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // Read aside: a full pipe would stop the process.
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let Some(status) = wait(&mut child, patience) else {
        let _ = child.kill();
        // One that hangs in the kernel's driver does not even end by that.
        let start = Instant::now();
        while start.elapsed() < LAST && matches!(child.try_wait(), Ok(None)) {
            thread::sleep(PAUSE);
        }
        if matches!(child.try_wait(), Ok(None)) {
            // It is taken off the table of processes when it ends at last.
            thread::spawn(move || child.wait());
        }
        return Ok(signals::status().map_or(End::Hung, End::Interrupted));
    };
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    // Another signal may have ended it because of this one.
    if let Some(interrupted) = signals::status() {
        return Ok(End::Interrupted(interrupted));
    }
    Ok(match status.signal() {
        Some(signal) => End::Signal { signal, stderr },
        None => End::Exited { stdout, stderr },
    })
}

/// Reads all of a pipe in a thread.
fn read(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The status of a process that ended in time; none if it did not, or the user interrupts.
fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < patience && signals::status().is_none() {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(PAUSE);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_process_is_known() {
        let run = |script: &str, patience| run(Command::new("sh").args(["-c", script]), patience).unwrap();
        let long = Duration::from_secs(3600);
        let said = |stdout: &str, stderr: &str| End::Exited { stdout: stdout.into(), stderr: stderr.into() };
        assert_eq!(run("echo one; echo two >&2; exit 3", long), said("one\n", "two\n"));
        assert_eq!(run("echo why >&2; kill -SEGV $$", long), End::Signal { signal: 11, stderr: "why\n".into() });
        assert_eq!(run("exec sleep 3600", Duration::from_millis(100)), End::Hung);
        assert_eq!(
            last_words("thread 'main' panicked at a.rs:1:\nwhy\nnote: run with `RUST_BACKTRACE=1`\n"),
            Some("why")
        );
        assert_eq!(last_words("\n"), None);
    }
}
