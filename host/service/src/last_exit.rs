//! The end of the previous server, as far as it concerns the jobs at work then: a crash may be a
//! job's doing; a kill or a power failure is not.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use tilewright_torch::crash;

/// The file below the data folder: a line about the machine and, after a crash, a byte with the
/// signal's number.
const FILE: &str = "crash";

/// The longest such file that is read, in bytes.
const LONGEST: u64 = 64 << 10;

/// Reads how the previous server ended, and prepares the file for the next one. Returns the cause
/// of a crash in words. None if the server ended as asked, lost its power or was killed, unless the
/// system ran out of memory meanwhile.
pub fn detect_crash(data: &Path) -> Option<String> {
    let (path, machine) = (data.join(FILE), describe_machine());
    let before = tilewright_files::read(&path, LONGEST).ok();
    let prepared = File::options().create(true).write(true).truncate(true).open(&path).and_then(|mut file| {
        file.write_all(machine.as_bytes())?;
        crash::mark_in(File::options().append(true).open(&path)?)
    });
    if let Err(error) = prepared {
        warn_unprepared(&error);
    }
    parse_mark(&before?, &machine)
}

fn warn_unprepared(error: &io::Error) {
    tracing::warn!(%error, "a crash can't be told from a kill after the next start");
}

/// Reads a file's contents `before` on a machine whose line is `now`.
fn parse_mark(before: &[u8], now: &str) -> Option<String> {
    let line = before.split(|byte| *byte == b'\n').next()?;
    if let Some(signal) = before.get(line.len() + 1) {
        return Some(format!("by signal {signal}"));
    }
    let (boot, killed) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let (boot_now, killed_now) = now.trim_end().split_once(' ')?;
    let more = killed_now.parse::<u64>().ok()? > killed.parse::<u64>().ok()?;
    (boot == boot_now && more).then(|| "while the system was out of memory".to_owned())
}

/// A line with the machine's boot and the number of processes killed for lack of memory since.
fn describe_machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let counts = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let killed = counts.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap_or("0");
    format!("{} {}\n", boot.trim(), killed.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_told_from_a_kill_and_from_a_power_failure() {
        let now = "boot-a 3\n";
        assert_eq!(parse_mark(b"boot-a 3\n", now), None, "killed, or ended as asked");
        assert_eq!(parse_mark(b"", now), None);
        assert_eq!(parse_mark(b"boot-a 3\n\x0b", now).as_deref(), Some("by signal 11"));
        assert_eq!(parse_mark(b"boot-b 2\n\x06", now).as_deref(), Some("by signal 6"));
        assert!(parse_mark(b"boot-a 2\n", now).is_some_and(|why| why.contains("out of memory")));
        assert_eq!(parse_mark(b"boot-b 2\n", now), None, "the machine was started anew");
        let machine = describe_machine();
        assert!(machine.split(' ').count() == 2 && parse_mark(machine.as_bytes(), &machine).is_none());
    }
}
